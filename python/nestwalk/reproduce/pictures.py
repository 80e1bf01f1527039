# SPDX-License-Identifier: MIT OR Apache-2.0
"""A paper's figures as pictures: its values beside ours, and ours by program."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import altair as alt
import polars as pl

from nestwalk.reproduce.paper import Relation
from nestwalk.tables import NOTHING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nestwalk.charts import Picture

SERIES = {"paper": "#7f8c99", "Nestwalk": "#2f6fa7"}
COLOURS = ["#2f6fa7", "#f0b93a", "#d1495b", "#4f9d69", "#8b6bb1", "#3bb3b3", "#a0704f", "#7f8c99"]
LEGEND = alt.Legend(orient="top", direction="horizontal", columns=4, labelLimit=0)
WIDTH = 560
LABEL_WIDTH = 340


def beside(rows: Sequence[dict[str, Any]]) -> Picture | None:
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
    panels = [_panel(frame.filter(pl.col("unit") == unit), unit) for unit in units]
    picture: Picture = alt.vconcat(*panels).resolve_scale(color="shared") if len(panels) > 1 else panels[0]
    return picture


def _panel(frame: pl.DataFrame, unit: str) -> Picture:
    order = frame["what"].unique(maintain_order=True).to_list()
    base = alt.Chart(frame).encode(
        y=alt.Y("what:N", sort=order, title=None, axis=alt.Axis(labelLimit=LABEL_WIDTH)),
        yOffset=alt.YOffset("series:N", sort=list(SERIES)),
        x=alt.X("value:Q", title=unit),
    )
    scale = alt.Scale(domain=list(SERIES), range=list(SERIES.values()))
    bars = base.mark_bar().encode(
        color=alt.Color("series:N", scale=scale, sort=list(SERIES), title=None, legend=LEGEND)
    )
    labels = base.mark_text(align="left", dx=4).encode(text="label:N")
    layers: Picture = alt.layer(bars, labels).properties(width=WIDTH, height=alt.Step(15))
    return layers


def by_program(bars: Sequence[tuple[str, str, float]], unit: str) -> Picture:
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
                scale=alt.Scale(domain=series, range=COLOURS[: len(series)]),
                title=None,
                legend=LEGEND,
            ),
        )
        .properties(width=max(WIDTH, 18 * len(bars)), height=240)
    )
    return picture


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
