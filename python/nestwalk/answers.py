# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a comparison prints besides its table: the verdict first; then the whole run, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.padding import Padding
from rich.text import Text

from nestwalk import sections, tables, techniques

if TYPE_CHECKING:
    from rich.console import RenderableType

    from nestwalk.comparisons import Comparison
    from nestwalk.techniques import Technique

WHOLE_RUN = (
    "The whole run: from the program's beginning to where measuring ended, first touches, faults and exits included. "
    "Its accesses are taken to cost what they cost in the measured part (docs/model.md)."
)

WHOLE_COLUMNS = (
    ("page\nfaults", "whole_run_faults", 0),
    ("VM\nexits", "whole_run_exits", 0),
    ("kernels'\nshare of\nthe time", "whole_run_kernel_share", None),
    ("time to\nplain VM,\nwhole run", "whole_run_against_baseline", 3),
    ("time to\nplain VM,\nmeasured", "against_baseline", 3),
)
"""Headings of the whole run's table, keys, and decimals (None: a share in per cent; 0: a count)."""


def verdict_of(done: Comparison) -> list[RenderableType]:
    """The verdict, a paragraph for each group."""
    found = done.verdict
    if not found.groups:
        return [Text(f"Verdict: {found.unavailable}."), Text()]
    page: list[RenderableType] = []
    for group in found.groups:
        cost, *others = group.lines
        page += [Text(cost, style="bold"), *(Padding(Text(line), (0, 0, 0, 2)) for line in others), Text()]
    return page


def whole_run(done: Comparison) -> list[RenderableType]:
    """The second table: what the whole run cost beside the measured part; a sentence where that is not known."""
    reason = next((result.whole_run["unavailable"] for result in done.results if result.whole_run["unavailable"]), None)
    columns = WHOLE_COLUMNS if reason is None else WHOLE_COLUMNS[:2]
    table = tables.new(("configuration", *(heading for heading, _, _ in columns)))
    for section in sections.of(done):
        rows = [row for row in section.rows if row["kind"] == "run"]
        if rows and section.title:
            table.add_section()
            table.add_row(Text(section.title, style="italic"))
        for row in rows:
            table.add_row(row["title"], *cells(row, columns))
    notes = [WHOLE_RUN if reason is None else f"The time of the whole run is {reason}."]
    notes += estimated(done)
    return [Text("The whole run", style="bold"), table, *map(Text, notes), Text()]


def estimated(done: Comparison) -> list[str]:
    """What part of the kernel work is an estimate, and of which rows: a sentence, if there is any."""
    runs = zip(done.plan.matrix.cells, done.results, strict=True)
    titles = dict.fromkeys(cell.configuration.title for cell, run in runs if run.whole_run["estimated_cycles"])
    if not titles:
        return []
    why = "the trace is sampled, and exits between its windows are taken to be as frequent as in them"
    return [f"Kernel work of these rows is estimated in part: {'; '.join(titles)}. For {why}."]


def cells(row: dict[str, Any], columns: tuple[tuple[str, str, int | None], ...] = WHOLE_COLUMNS) -> list[str]:
    """A row's values of the whole run, for people."""
    return [grouped(row[key]) if decimals == 0 else tables.number(row[key], decimals) for _, key, decimals in columns]


def grouped(count: int | None) -> str:
    """A count with its thousands apart."""
    return tables.NOTHING if count is None else f"{count:,}".replace(",", " ")


def advice_of(done: Comparison) -> list[RenderableType]:
    """What to do, in the order in which a person should act: of the first variant."""
    from nestwalk.advice import text

    groups = done.verdict.groups
    if not groups:
        return []
    variant = f" ({groups[0].variant})" if len(groups) > 1 else ""
    return text.page(groups[0].advice, f"{text.HEAD}{variant}")


def used_by(done: Comparison) -> list[Technique]:
    """The techniques that the rows use, in the order of ``techniques.toml``."""
    names = {name for cell in done.plan.matrix.cells for name in cell.configuration.techniques or ()}
    return [technique for technique in techniques.known().values() if technique.name in names]
