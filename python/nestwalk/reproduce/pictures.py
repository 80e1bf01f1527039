# SPDX-License-Identifier: MIT OR Apache-2.0
"""A paper's figures as pictures: its values beside ours, and ours by program."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import altair as alt
import polars as pl

from nestwalk import charts, palette
from nestwalk.reproduce.paper import Relation
from nestwalk.tables import NOTHING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nestwalk.charts import Layout, Picture

SERIES = {"paper": "#7f8c99", "Nestwalk": "#2f6fa7"}
COLOURS = ["#2f6fa7", "#f0b93a", "#d1495b", "#4f9d69", "#8b6bb1", "#3bb3b3", "#a0704f", "#7f8c99"]
BAR = 12
"""Pixels that a bar is high."""
WIDE = replace(charts.WIDE, width=560, label_width=340)


def beside(rows: Sequence[dict[str, Any]], layout: Layout = WIDE) -> Picture | None:
    """The rows of one figure as bars, the paper's and ours, a panel for each unit; None if there is nothing to draw."""
    found = [
        {
            "what": row["what"],
            "series": series,
            "value": float(row[key]),
            "unit": row["unit"],
            "label": number(row[key]),
        }
        for row in rows
        for key, series in (("paper", "paper"), ("ours", "Nestwalk"))
        if isinstance(row[key], int | float)
    ]
    if not found:
        return None
    frame = pl.DataFrame(found)
    units = list(dict.fromkeys(entry["unit"] for entry in found))
    panels = [_panel(frame.filter(pl.col("unit") == unit), unit, layout) for unit in units]
    picture: Picture = alt.vconcat(*panels).resolve_scale(color="shared") if len(panels) > 1 else panels[0]
    return picture


def _panel(frame: pl.DataFrame, unit: str, layout: Layout) -> Picture:
    """Two bars a row, the paper's above ours; on a phone below the row's name."""
    order = frame["what"].unique(maintain_order=True).to_list()
    scale = alt.Scale(domain=list(SERIES), range=list(SERIES.values()))
    reach = _with_room(frame, layout)
    top = 0 if layout.label_width else layout.bar["yOffset"]
    layers = []
    for place, series in enumerate(SERIES):
        below = top + (place - 0.5) * BAR
        for sign, own in ((1, pl.col("value") >= 0), (-1, pl.col("value") < 0)):
            base = alt.Chart(frame.filter((pl.col("series") == series) & own)).encode(
                y=alt.Y("what:N", sort=order, title=None, axis=layout.names(order), scale=alt.Scale(domain=order)),
                x=alt.X("value:Q", title=unit, scale=reach, axis=alt.Axis(tickCount=5)),
            )
            bars = base.mark_bar(height=BAR - 1, yOffset=below).encode(
                color=alt.Color("series:N", scale=scale, sort=list(SERIES), title=None, legend=charts.legend(layout))
            )
            text = base.mark_text(
                align="left" if sign > 0 else "right", dx=4 * sign, yOffset=below, fontSize=charts.LABEL_FONT_SIZE
            )
            layers += [bars, text.encode(text="label:N")]
    step = 2 * BAR + 6 if layout.label_width else 2 * BAR + 22
    picture: Picture = alt.layer(*layers).properties(width=layout.width, height=alt.Step(step))
    return picture


def _with_room(frame: pl.DataFrame, layout: Layout) -> alt.Scale:
    """An axis with room for each bar's label behind its end, which lies left of 0 for values below that."""
    values = frame["value"].to_list()
    room = max(charts.text_width(label, charts.LABEL_FONT_SIZE) for label in frame["label"]) + 8
    left, right = (room if any(value < 0 for value in values) else 0), room
    low, high = min(0.0, *values), max(0.0, *values)
    pixel = ((high - low) or 1.0) / (layout.width - left - right)
    return alt.Scale(domain=[low - left * pixel, high + right * pixel], nice=False)


def by_program(bars: Sequence[tuple[str, str, float]], unit: str, layout: Layout = WIDE) -> Picture:
    """Grouped columns, a group for each program, as the papers draw them."""
    frame = pl.DataFrame(bars, schema={"program": pl.String, "series": pl.String, "value": pl.Float64}, orient="row")
    programs = frame["program"].unique(maintain_order=True).to_list()
    series = frame["series"].unique(maintain_order=True).to_list()
    picture: Picture = (
        alt.Chart(frame)
        .mark_bar()
        .encode(
            x=alt.X("program:N", sort=programs, title=None, axis=alt.Axis(labelAngle=-40, labelLimit=180)),
            xOffset=alt.XOffset("series:N", sort=series),
            y=alt.Y("value:Q", title=unit),
            color=alt.Color(
                "series:N",
                sort=series,
                scale=alt.Scale(domain=series, range=_colours(series)),
                title=None,
                legend=charts.legend(layout),
            ),
        )
        .properties(width=max(layout.width, 18 * len(bars)) if layout.label_width else layout.width - 30, height=240)
    )
    return picture


def _colours(series: Sequence[str]) -> list[str]:
    """A technique's own colour; of series that stand for none the next of :data:`COLOURS`."""
    return [palette.of_series(name) or COLOURS[place % len(COLOURS)] for place, name in enumerate(series)]


def number(value: float | str | None) -> str:
    """A value for people, to three or four digits; a sentence as it is."""
    if value is None:
        return NOTHING
    if isinstance(value, str):
        return value
    large = 1000
    return f"{value:,.0f}" if abs(value) >= large else f"{value:.3g}"


def in_paper(row: Mapping[str, Any]) -> str:
    """The paper's value of a row for people, with its relation where that is a bound."""
    relation = "" if row["relation"] in (None, Relation.EQUALS) else f"{row['relation']} "
    return relation + number(row["paper"])
