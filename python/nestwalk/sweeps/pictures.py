# SPDX-License-Identifier: MIT OR Apache-2.0
"""The pictures of a sweep: what walks cost over one axis, or over two, by technique."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

import altair as alt
import polars as pl

from nestwalk.charts import LINE_COLOURS, WIDE, Layout, Picture, legend

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nestwalk.sweeps.sweep import Sweep

COST, COST_CI95 = "walk_cycles_per_access", "walk_cycles_per_access_ci95"
COST_TITLE = "walk cycles an access"
LABEL_MAX = 30
"""Letters of a value below an axis."""
LOG_FROM = 8.0
"""A range of numbers whose ends differ by this factor or more is drawn logarithmically."""
LARGE = 1_000_000
"""Numbers from there on are written with a prefix: 4M."""
PANELS_MAX = 6
"""Programs, or techniques, that get a panel of their own in one picture."""
STRONG = 0.55
"""Of the largest value: fields above it need light ink."""


def axes_of(done: Sweep) -> list[str]:
    """The axes that a picture can run over: those with several values, apart from the technique and the seed."""
    names = [name for name in done.plan.spec.columns if name not in {"technique", "seed"}]
    return [name for name in names if len(done.plan.values(name)) > 1]


def pairs_of(done: Sweep) -> list[tuple[str, str]]:
    """Pairs of them; the program is a panel of each picture rather than an axis."""
    return list(itertools.combinations([name for name in axes_of(done) if name != "program"], 2))


def held(done: Sweep, over: Sequence[str]) -> dict[str, Any]:
    """The other axes, which a picture shows at their first values only; the program, technique and seed apart."""
    others = [name for name in axes_of(done) if name not in {*over, "program"}]
    return {name: done.plan.values(name)[0] for name in others}


def points(done: Sweep, over: Sequence[str]) -> pl.DataFrame:
    """Cost over axes: ``technique``, ``program``, the axes, ``cost``, ``low``, ``high``; the mean of all seeds.

    The interval is that of the mean of independent runs: the root of the sum of their squares, by their number.
    """
    fixed = held(done, over)
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in done.rows:
        there = all(row.get(name) == value for name, value in fixed.items() if name in row)
        if there and row.get(COST) is not None and all(row.get(name) is not None for name in over):
            key = (row["technique"], row["program"], *(row[name] for name in over))
            groups.setdefault(key, []).append(row)
    found = []
    for (technique, program, *values), rows in groups.items():
        cost = sum(row[COST] for row in rows) / len(rows)
        halves = [row.get(COST_CI95) for row in rows]
        half = 0.0 if None in halves else math.sqrt(sum(one * one for one in halves if one is not None)) / len(rows)
        found.append(
            {
                "technique": technique,
                "program": program,
                **{f"axis{number}": value for number, value in enumerate(values)},
                "cost": cost,
                "low": max(cost - half, 0.0),
                "high": cost + half,
            }
        )
    return pl.DataFrame(found)


def over_one(done: Sweep, axis: str, layout: Layout = WIDE) -> Picture | None:
    """Cost over one axis, a line for each technique, a panel for each program."""
    frame = points(done, [axis])
    if frame.is_empty():
        return None
    values = [value for value in done.plan.values(axis) if value in frame["axis0"].to_list()]
    numbers = all(isinstance(value, int | float) for value in values)
    x = _numbers(axis, values) if numbers else _names(axis, values)
    techniques = done.plan.values("technique")
    if axis == "program":
        return _panel(frame, x, techniques, layout)
    programs = frame["program"].unique(maintain_order=True).to_list()[:PANELS_MAX]
    panels = [
        _panel(frame.filter(pl.col("program") == name), x, techniques, layout).properties(title=_short(name))
        for name in programs
    ]
    picture: Picture = alt.vconcat(*panels) if len(panels) > 1 else panels[0]
    return picture


def _panel(frame: pl.DataFrame, x: alt.X, techniques: Sequence[str], layout: Layout) -> Picture:
    colours = [LINE_COLOURS[number % len(LINE_COLOURS)] for number in range(len(techniques))]
    shown = legend(layout, lines=True) if len(techniques) > 1 else None
    colour = alt.Color("technique:N", title=None, legend=shown, scale=alt.Scale(domain=list(techniques), range=colours))
    if not isinstance(frame["axis0"].dtype, pl.String | pl.Int64 | pl.Float64):
        frame = frame.with_columns(pl.col("axis0").cast(pl.String))
    base = alt.Chart(frame).encode(x=x, color=colour)
    scale = alt.Scale(zero=True)
    lines = base.mark_line(point=True, strokeWidth=1.8).encode(y=alt.Y("cost:Q", title=COST_TITLE, scale=scale))
    intervals = base.mark_rule(strokeWidth=1.2, opacity=0.7).encode(y="low:Q", y2="high:Q")
    width = layout.width if layout.label_width else layout.width - 50
    picture: Picture = alt.layer(intervals, lines).properties(width=width, height=220)
    return picture


def _numbers(axis: str, values: Sequence[float]) -> alt.X:
    """Numbers along an axis: each of them where there are few; logarithmically where they reach far."""
    far = min(values) > 0 and max(values) / min(values) >= LOG_FROM
    scale = alt.Scale(type="log", nice=False) if far else alt.Scale(zero=False, nice=False, padding=12)
    marks = alt.Axis(
        values=list(values),
        labelAngle=0,
        labelOverlap=True,
        format=",.7~r" if max(values) < LARGE else "~s",
        grid=False,
    )
    return alt.X("axis0:Q", title=_short(axis), scale=scale, axis=marks)


def _names(axis: str, values: Sequence[Any]) -> alt.X:
    marks = alt.Axis(labelAngle=-40, labelLimit=120)
    return alt.X("axis0:N", title=_short(axis), sort=[str(value) for value in values], axis=marks)


def over_two(done: Sweep, one: str, two: str, layout: Layout = WIDE) -> Picture | None:
    """Cost over two axes as fields, a panel for each technique, of the first program."""
    frame = points(done, [one, two])
    if frame.is_empty():
        return None
    program = frame["program"][0]
    own = frame.filter(pl.col("program") == program).with_columns(
        pl.col("axis0").cast(pl.String), pl.col("axis1").cast(pl.String)
    )
    largest = max(float(cost) for cost in own["cost"].to_list())
    colour = alt.Color(
        "cost:Q",
        title=COST_TITLE,
        scale=alt.Scale(scheme="blues", domain=[0, largest]),
        legend=alt.Legend(orient="top", direction="horizontal", gradientLength=180, titleLimit=300),
    )
    ink = alt.condition(f"datum.cost > {STRONG * largest}", alt.value("#ffffff"), alt.value("#222222"))
    panels = []
    for technique in own["technique"].unique(maintain_order=True).to_list()[:PANELS_MAX]:
        base = alt.Chart(own.filter(pl.col("technique") == technique)).encode(
            x=alt.X(
                "axis0:N",
                title=_short(one),
                sort=[str(value) for value in done.plan.values(one)],
                axis=alt.Axis(labelAngle=-40),
            ),
            y=alt.Y("axis1:N", title=_short(two), sort=[str(value) for value in done.plan.values(two)][::-1]),
        )
        fields = base.mark_rect().encode(color=colour)
        labels = base.mark_text(fontSize=9).encode(text=alt.Text("cost:Q", format=".1f"), color=ink)
        step = 40 if layout.label_width else min(40, (layout.width - 70) // max(own["axis0"].n_unique(), 1))
        size = {"width": alt.Step(step), "height": alt.Step(22)}
        panels.append(alt.layer(fields, labels).properties(title=_short(technique), **size))
    columns = 2 if layout.label_width else 1
    picture: Picture = alt.concat(*panels, columns=columns, spacing=20) if len(panels) > 1 else panels[0]
    return picture


def _short(text: object) -> str:
    shown = str(text)
    return shown if len(shown) <= LABEL_MAX else f"...{shown[-(LABEL_MAX - 3) :]}"
