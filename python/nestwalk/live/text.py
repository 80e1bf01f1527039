# SPDX-License-Identifier: MIT OR Apache-2.0
"""What ``nestwalk inspect`` prints for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from nestwalk.live import known, strip, verdicts
from nestwalk.tables import NOTHING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import RenderableType

    from nestwalk.live.verdicts import Line

LISTED = 20
"""Processes that the table lists."""


def lines(rows: Sequence[Line]) -> Table:
    """What, how much, and what that means."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    made.add_column("what")
    made.add_column("value", justify="right", no_wrap=True)
    made.add_column("verdict", overflow="fold")
    for row in rows:
        made.add_row(row.what, row.value or NOTHING, row.verdict)
    return made


def title(facts: Mapping[str, Any]) -> str:
    """Which process it is."""
    process = facts["process"]
    name = known.either(process["name"], str)
    pid = process["pid"]
    if known.reason(process["name"]) is not None:
        name = "a process without a name"
    number = "" if known.reason(pid) is not None else f" ({pid})"
    place = f", from {facts['recording']}" if facts.get("recording") else ""
    return f"{name}{number}{place}"


def process(facts: Mapping[str, Any], width: int) -> list[RenderableType]:
    """All that is printed of one process."""
    page: list[RenderableType] = [Text(title(facts), style="bold"), Text(), lines(verdicts.of_process(facts))]
    if facts["strip"]:
        page += [Text(), *strip.text(facts["strip"], width)]
    page += [Text(note) for note in facts["notes"]]
    return page


def several(facts: Mapping[str, Any]) -> list[RenderableType]:
    """All that is printed of several processes."""
    found = facts["processes"]
    head = f"{facts['scope']}: {len(found)} processes"
    page: list[RenderableType] = [Text(head, style="bold"), Text(), lines(verdicts.of_several(facts)), Text()]
    page.append(_table(found[:LISTED]))
    if len(found) > LISTED:
        page.append(Text(f"and {len(found) - LISTED} more with less memory; --json has all"))
    left_out = (f"Left out: {one['name']} ({one['pid']}): {one['unavailable']}" for one in facts["left_out"])
    return [*page, *map(Text, left_out)]


def _table(found: Sequence[Mapping[str, Any]]) -> Table:
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    made.add_column("process")
    for heading in ("pid", "present", "lines\na group", "pages\na run", "2 MiB\npages", "page\ntables", "VMAs\n99 %"):
        made.add_column(heading, justify="right", no_wrap=True)
    for one in found:
        made.add_row(*_cells(one))
    return made


def _cells(one: Mapping[str, Any]) -> list[str]:
    def shown(value: Any, words: Any) -> str:
        return NOTHING if known.reason(value) is not None else str(words(value))

    return [
        shown(one["process"]["name"], str),
        shown(one["process"]["pid"], str),
        verdicts.size(one["memory"]["present_bytes"]),
        shown(one["host_pt_fragmentation"], lambda it: f"{it['value']:.2f}"),
        shown(one["contiguity"], lambda it: f"{it['virtual_order']['mean_pages']:.1f}"),
        shown(one["huge_pages"]["pmd_mapped_share"], verdicts.percent),
        shown(one["page_tables"]["bytes"], verdicts.size),
        f"{one['mappings']['for_99_percent']:,}",
    ]
