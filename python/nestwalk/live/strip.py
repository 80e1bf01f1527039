# SPDX-License-Identifier: MIT OR Apache-2.0
"""The address space as a strip: in the terminal, and as an SVG that fits a phone."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

HUGE, SWAPPED, PLAIN = "#4b8f5c", "#8a6fb0", "#8a929c"
SHADES = ("#2f6fb0", "#6f9fc8", "#c9b45a", "#d98a3d", "#c2452d")
"""Of small pages, from groups on one line to groups on eight."""
LIMITS = (1.3, 2.5, 4.0, 6.0)
"""Lines a group where the next shade begins."""
LETTERS = "12468"
"""The same in the terminal: about so many lines a group."""

WIDTH, NARROW = 720, 340
ROW_HEIGHT, GAP, SIZE = 22, 4, 12
LEGEND = (
    (HUGE, "2 MiB pages"),
    (SHADES[0], "packed: 1 line a group"),
    (SHADES[2], "3 lines a group"),
    (SHADES[4], "7 or 8 lines a group"),
    (PLAIN, "small pages, lines unknown"),
    (SWAPPED, "swapped out"),
)


def shade(lines: float | None) -> int | None:
    """Which of :data:`SHADES` stands for so many lines a group."""
    return None if lines is None else sum(lines > limit for limit in LIMITS)


def _kind(cell: Mapping[str, Any]) -> str:
    """What most of a cell is: ``huge``, ``small`` or ``swapped``."""
    shares = {kind: cell[f"{kind}_share"] for kind in ("huge", "small", "swapped")}
    return max(shares, key=lambda kind: shares[kind])


def letter(cell: Mapping[str, Any]) -> str:
    """A cell in one character."""
    kind = _kind(cell)
    if kind != "small":
        return "H" if kind == "huge" else "s"
    at = shade(cell["lines"])
    return "." if at is None else LETTERS[at]


def text(cells: Sequence[Mapping[str, Any]], width: int) -> list[Text]:
    """The strip in rows of at most ``width`` characters, with what they mean."""
    drawn = "".join(letter(cell) for cell in cells)
    room = max(min(width, 128), 16)
    mib = cells[0]["bytes"] >> 20
    rows = [Text(f"The touched address space, from {cells[0]['start']} to {cells[-1]['end']}, {mib:,} MiB a letter:")]
    rows += [Text(drawn[at : at + room]) for at in range(0, len(drawn), room)]
    rows.append(
        Text("H 2 MiB pages; 1 2 4 6 8 about so many lines a group; . small pages, lines unknown; s swapped out")
    )
    return rows


def colour(cell: Mapping[str, Any]) -> str:
    """A cell's colour in the picture."""
    kind = _kind(cell)
    if kind != "small":
        return HUGE if kind == "huge" else SWAPPED
    at = shade(cell["lines"])
    return PLAIN if at is None else SHADES[at]


def _words(cell: Mapping[str, Any]) -> str:
    """What a cell is, for the mouse that rests on it."""
    parts = [
        f"{100 * cell[key]:.0f} % {name}"
        for key, name in (
            ("huge_share", "2 MiB pages"),
            ("small_share", "small pages"),
            ("swapped_share", "swapped out"),
        )
        if cell[key]
    ]
    lines = "" if cell["lines"] is None else f", {cell['lines']:.2f} lines a group"
    return f"{cell['start']} to {cell['end']}: {', '.join(parts) or 'nothing present'}{lines}"


def svg(cells: Sequence[Mapping[str, Any]], width: int = WIDTH) -> str:
    """The strip as an SVG element, ``width`` pixels wide. How much of a cell is present is how high it is filled.

    Its ink is ``currentColor``, so that it can be read on light and on dark.
    """
    each = 8
    columns = max(width // each, 1)
    rows = -(-len(cells) // columns)
    top = rows * (ROW_HEIGHT + GAP)
    parts = [
        _cell(cell, index % columns * each, index // columns * (ROW_HEIGHT + GAP), each)
        for index, cell in enumerate(cells)
    ]
    entries = 1 if width <= NARROW else 3
    for index, (fill, words) in enumerate(LEGEND):
        x, y = index % entries * (width // entries), top + 10 + index // entries * 20
        parts.append(f'<rect x="{x}" y="{y}" width="12" height="12" fill="{fill}"/>')
        parts.append(f'<text x="{x + 18}" y="{y + 10}" font-size="{SIZE}" fill="currentColor">{escape(words)}</text>')
    height = top + 20 + -(-len(LEGEND) // entries) * 20
    return (
        f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="The touched address space" font-family="Helvetica, Arial, sans-serif">{"".join(parts)}</svg>'
    )


def _cell(cell: Mapping[str, Any], x: int, y: int, each: int) -> str:
    filled = min(cell["huge_share"] + cell["small_share"] + cell["swapped_share"], 1.0)
    height = max(round(filled * ROW_HEIGHT), 1) if filled else 0
    return (
        f"<g><title>{escape(_words(cell))}</title>"
        f'<rect x="{x}" y="{y}" width="{each - 1}" height="{ROW_HEIGHT}" fill="currentColor" opacity="0.08"/>'
        f'<rect x="{x}" y="{y + ROW_HEIGHT - height}" width="{each - 1}" height="{height}" fill="{colour(cell)}"/></g>'
    )
