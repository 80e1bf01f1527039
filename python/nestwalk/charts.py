# SPDX-License-Identifier: MIT OR Apache-2.0
"""The pictures, as altair charts, with units on their axes and colours that the colour-blind can tell apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import altair as alt
import polars as pl

from nestwalk import frames

if TYPE_CHECKING:
    from nestwalk.frames import Labelled

SERVER_COLOURS = {"L1-D": "#a6cee3", "L2": "#5b9bc8", "LLC": "#f0b93a", "memory": "#d1495b"}
WALK_SERVER_COLOURS = {"page-walk cache": "#4f9d69", **SERVER_COLOURS}
PART_COLOURS = {
    "instructions": "#9aa5b1",
    "waiting for data": "#5b9bc8",
    "page walks": "#d1495b",
    "kernel work": "#f0b93a",
}
LINE_COLOURS = ["#7f8c99", "#2f6fa7", "#d1495b", "#e39b2d", "#4f9d69", "#8b6bb1", "#3bb3b3", "#a0704f"]
VARIANT_COLOURS = ["#3f7fb5", "#d98032", "#6a9e58", "#8b6bb1"]
FONT = "Helvetica, Arial, Liberation Sans, sans-serif"
LABEL_WIDTH = 260
HEAT = [0.0, 2.0]
"""What the colours of a heat map span, as a multiple of the baseline."""
WIDTH = 640
"""Of what is drawn, in pixels; two panels side by side have half of it each."""


Picture = alt.Chart | alt.LayerChart | alt.FacetChart


def latency(labelled: Labelled) -> Picture:
    """Average walk latency by configuration, with its 95 % interval."""
    frame = frames.rows(labelled).select(
        "title",
        "variant",
        pl.col("walk_latency_cycles").alias("cycles"),
        (pl.col("walk_latency_cycles") - pl.col("walk_latency_cycles_ci95").fill_null(0.0)).alias("low"),
        (pl.col("walk_latency_cycles") + pl.col("walk_latency_cycles_ci95").fill_null(0.0)).alias("high"),
        pl.col("walk_latency_cycles").round(0).cast(pl.Int64).cast(pl.String).alias("label"),
    )
    titles, variants = _order(labelled)
    base = alt.Chart(frame).encode(
        y=alt.Y("title:N", sort=titles, title=None, axis=alt.Axis(labelLimit=LABEL_WIDTH)),
        yOffset=alt.YOffset("variant:N", sort=variants),
    )
    bars = base.mark_bar().encode(
        x=alt.X("cycles:Q", title="average walk latency, cycles"), color=_variant_colour(variants)
    )
    intervals = base.mark_rule(strokeWidth=1.5).encode(x="low:Q", x2="high:Q")
    labels = base.mark_text(align="left", dx=4).encode(x="high:Q", text="label:N")
    picture: Picture = alt.layer(bars, intervals, labels).properties(width=WIDTH, height=alt.Step(18))
    return picture


def time(labelled: Labelled) -> Picture:
    """Estimated cycles an access, by what they are spent on."""
    titles, variants = _order(labelled)
    chart = (
        alt.Chart(frames.time(labelled))
        .mark_bar()
        .encode(
            x=alt.X("cycles:Q", title="estimated cycles an access", stack="zero"),
            y=alt.Y("title:N", sort=titles, title=None, axis=alt.Axis(labelLimit=LABEL_WIDTH)),
            color=_colour("part:N", PART_COLOURS, "spent on"),
            order="rank:O",
        )
        .properties(width=WIDTH, height=alt.Step(20))
    )
    return _rows_of_variants(chart, variants)


def references(labelled: Labelled) -> Picture:
    """References a walk to each level of each table, by what served them."""
    height = alt.Y("per_walk:Q", title="references a walk", stack="zero")
    return _levels(labelled, frames.references(labelled), height, _colour("server:N", SERVER_COLOURS, "served by"))


def served(labelled: Labelled) -> Picture:
    """Who answers for each level of each table, in shares of the walks that go as far down (ASAP's figure 9)."""
    height = alt.Y("share:Q", title="share", stack="zero", axis=alt.Axis(format="%", tickCount=4))
    colour = _colour("server:N", WALK_SERVER_COLOURS, "answered by")
    return _levels(labelled, frames.served(labelled), height, colour)


def _levels(labelled: Labelled, frame: pl.DataFrame, height: alt.Y, colour: alt.Color) -> Picture:
    """Stacked columns for the levels of each table, a panel for each configuration and variant."""
    titles, variants = _order(labelled)
    places = frames.places(labelled)
    level = alt.X(
        "place:N",
        sort=places,
        title="level (h: of the host's table)",
        axis=alt.Axis(labelAngle=-60),
        scale=alt.Scale(domain=places),
    )
    chart = alt.Chart(frame).mark_bar().encode(x=level, y=height, color=colour, order="rank:O")
    return _grid(chart.properties(width=WIDTH / 2, height=90), titles, variants)


def latency_distribution(labelled: Labelled) -> Picture:
    """Share of the walks that took no longer than so many cycles."""
    titles, variants = _order(labelled)
    chart = (
        alt.Chart(frames.latencies(labelled))
        .mark_line(interpolate="step-after", strokeWidth=1.8)
        .encode(
            x=alt.X("cycles:Q", title="walk latency, cycles", scale=alt.Scale(type="log", nice=False)),
            y=alt.Y(
                "share:Q", title="walks that took no longer", axis=alt.Axis(format="%"), scale=alt.Scale(domain=[0, 1])
            ),
            color=alt.Color("title:N", sort=titles, scale=alt.Scale(domain=titles, range=LINE_COLOURS), title=None),
        )
        .properties(width=WIDTH / 2, height=220)
    )
    return _grid(chart, [], variants)


def fragmentation(labelled: Labelled) -> Picture:
    """Groups of 8 neighbouring guest pages by the lines that their host PTEs fill."""
    titles, variants = _order(labelled)
    chart = (
        alt.Chart(frames.fragmentation(labelled))
        .mark_bar(color=VARIANT_COLOURS[0])
        .encode(
            x=alt.X("lines:O", title="lines that hold a group's host PTEs", axis=alt.Axis(labelAngle=0)),
            y=alt.Y("share:Q", title="share of groups", axis=alt.Axis(format="%", tickCount=4)),
        )
        .properties(width=160, height=110)
    )
    facet = alt.Facet("title:N", sort=titles, title=None, header=alt.Header(labelFontSize=12))
    if len(variants) > 1:
        chart = chart.encode(
            xOffset=alt.XOffset("variant:N", sort=variants), color=_variant_colour(variants)
        ).properties(width=200)
    picture: Picture = chart.facet(facet, columns=3)
    return picture


def reserved(labelled: Labelled) -> Picture:
    """Frames set aside and not mapped, over the time of the run."""
    titles, variants = _order(labelled)
    chart = (
        alt.Chart(frames.reserved(labelled))
        .mark_line(strokeWidth=1.8)
        .encode(
            x=alt.X("milliseconds:Q", title="simulated time, ms"),
            y=alt.Y("share:Q", title="reserved / in use", axis=alt.Axis(format="%", tickCount=5)),
            color=alt.Color("title:N", sort=titles, scale=alt.Scale(range=LINE_COLOURS), title=None),
        )
        .properties(width=WIDTH / 2, height=160)
    )
    return _grid(chart, [], variants)


def heat(cells: pl.DataFrame) -> Picture:
    """A field for each configuration (downwards) and program (across), a panel for each variant.

    ``cells`` has ``title``, ``program``, ``variant``, ``label`` (what stands in the field) and ``against`` (its colour:
    less than 1 is better than the baseline), in the order in which they are to stand.
    """
    order = {key: cells[key].unique(maintain_order=True).to_list() for key in ("title", "program", "variant")}
    base = alt.Chart(cells).encode(
        y=alt.Y("title:N", sort=order["title"], title=None, axis=alt.Axis(labelLimit=LABEL_WIDTH + 40)),
        x=alt.X("program:N", sort=order["program"], title=None, axis=alt.Axis(labelAngle=-40, orient="top")),
    )
    scale = alt.Scale(scheme="redblue", domain=HEAT, domainMid=1, reverse=True, clamp=True)
    fields = base.mark_rect().encode(color=alt.Color("against:Q", scale=scale, title="of the baseline's"))
    # Strong colours at both ends need light ink.
    ink = alt.condition("datum.against < 0.35 || datum.against > 1.8", alt.value("#ffffff"), alt.value("#222222"))
    labels = base.mark_text(fontSize=10).encode(text="label:N", color=ink)
    layers: Picture = alt.layer(fields, labels).properties(width=alt.Step(46), height=alt.Step(16))
    if len(order["variant"]) == 1:
        return layers
    header = alt.Header(labelFontSize=13, labelOrient="top")
    facet = alt.Facet("variant:N", sort=order["variant"], title=None, header=header)
    picture: Picture = layers.facet(facet, columns=2, spacing=24)
    return picture


def _order(labelled: Labelled) -> tuple[list[str], list[str]]:
    """Titles of configurations and of variants, each once, in their order."""
    titles = list(dict.fromkeys(title for title, _, _ in labelled))
    variants = list(dict.fromkeys(variant for _, variant, _ in labelled))
    return titles, variants


def _colour(field: str, colours: dict[str, str], title: str) -> alt.Color:
    scale = alt.Scale(domain=list(colours), range=list(colours.values()))
    return alt.Color(field, scale=scale, sort=list(colours), title=title)


def _variant_colour(variants: list[str]) -> alt.Color:
    legend = alt.Legend(title=None) if len(variants) > 1 else None
    return alt.Color("variant:N", sort=variants, scale=alt.Scale(domain=variants, range=VARIANT_COLOURS), legend=legend)


def _rows_of_variants(chart: alt.Chart, variants: list[str]) -> Picture:
    if len(variants) == 1:
        return chart
    picture: Picture = chart.facet(row=alt.Row("variant:N", sort=variants, title=None, header=_header()), spacing=12)
    return picture


def _grid(chart: alt.Chart, titles: list[str], variants: list[str]) -> Picture:
    """A panel for each result: configurations downwards, variants across."""
    channels: dict[str, Any] = {}
    if len(titles) > 1:
        channels["row"] = alt.Row("title:N", sort=titles, title=None, header=_header())
    if len(variants) > 1:
        channels["column"] = alt.Column("variant:N", sort=variants, title=None, header=alt.Header(labelFontSize=13))
    picture: Picture = chart.facet(**channels, spacing=10) if channels else chart
    return picture


def _header() -> alt.Header:
    """Titles of rows above them, so that they read from left to right."""
    return alt.Header(labelAngle=0, labelAlign="left", labelOrient="top", labelAnchor="start", labelFontSize=12)


def svg(chart: Picture) -> str:
    """The chart as an SVG element, without a background, so that it suits light and dark pages.

    It is drawn in a process of its own; where that fails, the element says why.
    """
    from nestwalk import renderer

    themed = (
        chart.configure(background="transparent", font=FONT, view=alt.ViewConfig(stroke="#88888855"))
        .configure_axis(
            gridColor="#88888833", domainColor="#888888", tickColor="#888888", labelFontSize=11, titleFontSize=12
        )
        .configure_legend(labelFontSize=12, titleFontSize=12)
    )
    return renderer.svg(themed.to_dict())
