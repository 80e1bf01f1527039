# SPDX-License-Identifier: MIT OR Apache-2.0
"""What ``nestwalk reproduce`` prints for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from nestwalk import tables
from nestwalk.reproduce.pictures import in_paper, number

if TYPE_CHECKING:
    from rich.console import RenderableType

    from nestwalk.reproduce.side_by_side import Reproduction


def page(done: Reproduction) -> list[RenderableType]:
    """The head and a table for each figure, and the verdicts counted."""
    head = f"{done.paper.title} on {done.paper.machine}, seed {done.scale.seed}"
    parts: list[RenderableType] = [Text(head, style="bold"), Text(done.scale.sentence)]
    for figure in done.paper.figures:
        parts += [Text(), Text(figure.title, style="bold"), table(done, figure.title)]
    cold = tables.cold(done.not_warm)
    return [*parts, Text(), Text(done.summary), *([Text(cold)] if cold else [])]


def table(done: Reproduction, figure: str) -> Table:
    """The rows of one figure."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    made.add_column("")
    for heading in ("paper", "ours", "ratio"):
        made.add_column(heading, justify="right", overflow="fold", max_width=60)
    made.add_column("unit")
    made.add_column("verdict")
    made.add_column("note", overflow="fold", max_width=60)
    for row in done.rows:
        if row["figure"] == figure:
            values = [in_paper(row), *(number(row[key]) for key in ("ours", "ratio"))]
            made.add_row(row["what"], *values, row["unit"], row["verdict"], row["note"])
    return made
