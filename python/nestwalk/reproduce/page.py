# SPDX-License-Identifier: MIT OR Apache-2.0
"""The page: one HTML file with every figure, the table, the machine and the caveats."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nestwalk import _native, tables
from nestwalk.report import pages, words
from nestwalk.report import pictures as inlining
from nestwalk.reproduce import pictures, why
from nestwalk.reproduce.pictures import in_paper, number
from nestwalk.reproduce.plan import Panel

if TYPE_CHECKING:
    from collections.abc import Callable

    from nestwalk.charts import Layout, Picture
    from nestwalk.reproduce.plan import Drawing, Results
    from nestwalk.reproduce.side_by_side import Reproduction


QUICK_PICTURES = (
    "This was a quick run: the pictures by program show its values, also where a row leaves its value to a full run."
)


def render(done: Reproduction) -> str:
    """The page on a reproduction."""
    made = list(done.results.made.values())
    quick = ["--quick"] if done.scale.quick else []
    cold = tables.cold(done.not_warm)
    return pages.fill(
        "reproduce/page.html",
        paper=done.paper,
        scale=done.scale,
        summary=done.summary,
        version=_native.version(),
        figures=[_figure(done, index) for index in range(len(done.paper.figures))],
        machine=words.machine(made[0]) if made else [],
        caveats=[
            *done.paper.caveats,
            *([QUICK_PICTURES] if done.scale.quick else []),
            *([cold] if cold else []),
            *words.model_caveats(made),
        ],
        command=" ".join(["nestwalk reproduce", done.paper.name, *quick, "--seed", str(done.scale.seed)]),
    )


def _draw(drawing: Drawing | Panel, results: Results, layout: Layout) -> Picture | None:
    """What it shows; None if that is nothing."""
    if isinstance(drawing, Panel):
        return drawing.draw(results, layout)
    bars = drawing.bars(results)
    return pictures.by_program(bars, drawing.unit, layout) if bars else None


def _drawn(title: str, draw: Callable[[Layout], Picture | None]) -> list[dict[str, Any]]:
    """The picture with its title, for desktop and phone; nothing if there is none."""
    drawn = inlining.layouts(draw, pictures.WIDE)
    return [{"title": title, "drawn": drawn}] if drawn else []


def _figure(done: Reproduction, index: int) -> dict[str, Any]:
    """A figure's title, rows as text, and pictures."""
    figure = done.paper.figures[index]
    rows = [row for row in done.rows if row["figure"] == figure.title]
    drawn = _drawn("the paper and Nestwalk", lambda layout: pictures.beside(rows, layout))
    for drawing in done.experiment.drawings:
        if drawing.figure == figure.name:
            drawn += _drawn(drawing.title, lambda layout, one=drawing: _draw(one, done.results, layout))  # type: ignore[misc]
    return {
        "name": figure.name,
        "title": figure.title,
        "text": figure.text,
        "rows": [
            {**row, "paper": in_paper(row), "ours": number(row["ours"]), "ratio": number(row["ratio"])} for row in rows
        ],
        "pictures": drawn,
        "why_off": why.explanation(done.paper.name, figure.name, rows, divided=done.scale.divide_footprint > 1),
    }
