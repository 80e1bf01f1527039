# SPDX-License-Identifier: MIT OR Apache-2.0
"""A sweep as one HTML page that needs no other file."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from nestwalk import _native, tables
from nestwalk.report import pages
from nestwalk.report import pictures as inlining
from nestwalk.sweeps import pictures, text

if TYPE_CHECKING:
    from collections.abc import Callable

    from nestwalk.charts import Layout, Picture
    from nestwalk.sweeps.sweep import Sweep

ROWS_MAX = 400
"""Of the page's table."""
PICTURES_MAX = 12
"""On a page."""
CAVEATS = (
    "Only what the simulator's model has is in these numbers (docs/model.md).",
    "Patterns over an axis are surer than single values.",
    "An interval covers the windows that were measured, and the mean of the seeds, and no other inputs of a program.",
)


def render(done: Sweep) -> str:
    """The page on a sweep."""
    plan = done.plan
    several = [name for name in plan.spec.columns if len(plan.values(name)) > 1]
    headings = [*several, *(tables.one_line(heading) for heading, _, _ in text.COLUMNS)]
    figures, left_out = _figures(done)
    quick = ["--quick"] if plan.quick else []
    return pages.fill(
        "sweeps/page.html",
        version=_native.version(),
        title=plan.spec.title,
        tally=done.tally,
        runs=len(done.rows),
        quick=plan.quick,
        failures=[failure.message for failure in done.failures[:20]],
        axes=[(name, len(plan.values(name)), plan.values(name)) for name in plan.spec.columns],
        headings=headings,
        rows=[
            [*("" if row.get(name) is None else str(row[name]) for name in several), *tables.cells(row, text.COLUMNS)]
            for row in done.rows[:ROWS_MAX]
        ],
        rows_max=ROWS_MAX,
        figures=figures,
        left_out=left_out,
        machine=[],
        caveats=CAVEATS,
        command=shlex.join(["nestwalk", "sweep", plan.spec.source.file, *quick]),
    )


def _figures(done: Sweep) -> tuple[list[dict[str, Any]], int]:
    """The pictures there is something to show in, and how many more there would be."""
    wanted: list[tuple[str, tuple[str, ...], Callable[[Layout], Picture | None]]] = [
        (f"Over {axis}", (axis,), lambda layout, axis=axis: pictures.over_one(done, axis, layout))  # type: ignore[misc]
        for axis in pictures.axes_of(done)
    ]
    wanted += [
        (
            f"Over {one} and {two}",
            (one, two),
            lambda layout, one=one, two=two: pictures.over_two(done, one, two, layout),  # type: ignore[misc]
        )
        for one, two in pictures.pairs_of(done)
    ]
    found: list[dict[str, Any]] = []
    for title, over, draw in wanted[:PICTURES_MAX]:
        drawn = inlining.layouts(draw)
        if drawn:
            name = f"over-{len(found) + 1}"
            found.append({"name": name, "title": title, "text": _sentence(done, over), "drawn": drawn})
    return found, max(len(wanted) - PICTURES_MAX, 0)


def _sentence(done: Sweep, over: tuple[str, ...]) -> str:
    """What a picture shows."""
    seeds = len(done.plan.values("seed"))
    words = (
        "Cycles of page walks an access; bars are 95 % intervals." if len(over) == 1 else "Cycles of walks an access."
    )
    if seeds > 1:
        words += f" Each point is the mean of {seeds} seeds."
    fixed = pictures.held(done, over)
    if fixed:
        words += " Held: " + ", ".join(f"{name} {value}" for name, value in fixed.items()) + "."
    return words
