# SPDX-License-Identifier: MIT OR Apache-2.0
"""The pictures, as altair charts, with units on their axes and colours that the colour-blind can tell apart."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import altair as alt
import polars as pl

from nestwalk import frames

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from nestwalk.frames import Labelled

SERVER_COLOURS = {"L1-D": "#a6cee3", "L2": "#5b9bc8", "LLC": "#f0b93a", "memory": "#d1495b"}
WALK_SERVER_COLOURS = {"page-walk cache": "#4f9d69", **SERVER_COLOURS}
PART_COLOURS = {
    "instructions": "#9aa5b1",
    "waiting for data": "#5b9bc8",
    "page walks": "#d1495b",
    "kernel work": "#f0b93a",
}
WHOLE_COLOURS = {
    frames.OWN: "#9aa5b1",
    "page faults": "#f0b93a",
    "zeroing pages": "#4f9d69",
    "VM exits": "#d1495b",
    frames.OTHER: "#8b6bb1",
    frames.UNSEEN: "#e8a0a8",
}
LINE_COLOURS = ["#7f8c99", "#2f6fa7", "#d1495b", "#e39b2d", "#4f9d69", "#8b6bb1", "#3bb3b3", "#a0704f"]
"""Of rows that have no colour of their own."""
FONT = "Helvetica, Arial, Liberation Sans, sans-serif"
AXIS_FONT_SIZE = 11
LABEL_FONT_SIZE = 10
EM_WIDEST = 0.66
"""Of a letter in the widest font that a browser may fall back on (DejaVu Sans), on average over our labels, in em."""
SPARE = 30
"""Pixels between columns of a legend and at a picture's right edge: texts before them may come out so much wider."""
TENTH = 0.1
"""Intervals of shares below this get a digit."""
HEAT_SPAN_MIN = 0.05
"""The colours of a heat map span at least this much on each side of 1."""


@dataclass(frozen=True)
class Layout:
    """How much room there is."""

    width: int
    """Of what is drawn, in pixels; two panels side by side have half of it each."""
    label_width: int
    """Room for names left of the bars; 0: they stand above them."""
    columns: int
    """Panels side by side, at most; and entries of a legend."""

    def names(self, titles: Sequence[str]) -> alt.Axis:
        """The axis of rows' names, which are ``titles``."""
        if self.label_width:
            room = min(self.label_width, max([text_width(title, AXIS_FONT_SIZE) for title in titles], default=0.0))
            return alt.Axis(labelLimit=self.label_width, minExtent=room + 6, ticks=False, domain=False, labelPadding=6)
        return alt.Axis(
            labelLimit=self.width,
            ticks=False,
            domain=False,
            labelAlign="left",
            labelBaseline="bottom",
            labelOffset=-6,
            labelPadding=0,
        )

    @property
    def step(self) -> int:
        """Pixels a row."""
        return 20 if self.label_width else 38

    @property
    def bar(self) -> dict[str, Any]:
        """A bar's place in its row."""
        return {"height": 13} if self.label_width else {"height": 13, "yOffset": 7}


WIDE = Layout(width=640, label_width=260, columns=4)
NARROW = Layout(width=290, label_width=0, columns=2)
"""For a phone held upright."""


def text_width(text: str, size: int) -> float:
    """Pixels that ``text`` takes at most, whichever of the page's fonts the browser has.

    The renderer lays pictures out for its own font, which is narrower than what some browsers fall back on.
    """
    return EM_WIDEST * size * len(text)


_FROM_TEN = alt.Scale(type="log", nice=False, domainMin=10, clamp=True)
"""No walk is much shorter."""
_ROUND_CYCLES = [digit * 10**power for power in range(1, 6) for digit in (1, 2, 5)]
"""Where a logarithmic axis of cycles has numbers."""

Colours = Mapping[str, str]
"""Titles of configurations and their colours."""

Picture = alt.Chart | alt.LayerChart | alt.FacetChart | alt.VConcatChart | alt.ConcatChart


def latency(labelled: Labelled, colours: Colours | None = None, layout: Layout = WIDE) -> Picture:
    """Average walk latency by configuration, shortest first, with its 95 % interval; a panel for each variant."""
    frame = frames.rows(labelled).select(
        "title",
        "variant",
        pl.col("walk_latency_cycles").alias("cycles"),
        (pl.col("walk_latency_cycles") - pl.col("walk_latency_cycles_ci95").fill_null(0.0)).alias("low"),
        (pl.col("walk_latency_cycles") + pl.col("walk_latency_cycles_ci95").fill_null(0.0)).alias("high"),
        pl.struct("walk_latency_cycles", "walk_latency_cycles_ci95")
        .map_elements(_with_interval, return_dtype=pl.String)
        .alias("label"),
    )
    frame = frame.filter(pl.col("cycles").is_not_null())
    return _by_variant(frame, lambda own: _latency_of(own, _scale(own["title"].to_list(), colours), layout))


def _with_interval(row: dict[str, float | None]) -> str:
    value, ci95 = row.values()
    if value is None:
        return ""
    if ci95 is None:
        return f"{value:.0f}"
    digits = 0 if ci95 >= 1 else 1
    return f"{value:.{digits}f} \N{PLUS-MINUS SIGN}{ci95:.{digits}f}"


def _latency_of(frame: pl.DataFrame, scale: alt.Scale, layout: Layout) -> Picture:
    order = frame.sort("cycles")["title"].to_list()
    end = _with_room(zip(frame["high"], frame["label"], strict=True), layout)
    base = alt.Chart(frame).encode(y=alt.Y("title:N", sort=order, title=None, axis=layout.names(order)))
    reach = alt.Scale(domain=[0, end], nice=False)
    bars = base.mark_bar(**layout.bar).encode(
        x=alt.X("cycles:Q", title="average walk latency, cycles", scale=reach, axis=alt.Axis(tickCount=5)),
        color=alt.Color("title:N", scale=scale, legend=None),
    )
    offset = layout.bar.get("yOffset", 0)
    intervals = base.mark_rule(strokeWidth=1.5, yOffset=offset).encode(x="low:Q", x2="high:Q")
    labels = base.mark_text(align="left", dx=4, yOffset=offset, fontSize=LABEL_FONT_SIZE).encode(
        x="high:Q", text="label:N"
    )
    picture: Picture = alt.layer(bars, intervals, labels)
    return picture.properties(width=layout.width, height=alt.Step(layout.step))


def time(
    labelled: Labelled,
    whole: Mapping[str, float] | None = None,
    layout: Layout = WIDE,
    ci95: Mapping[tuple[str, str], float] | None = None,
) -> Picture:
    """What time is spent on, in per cent of the plain VM's (``whole``: its cycles an access), least first.

    ``ci95`` has half of the 95 % interval of a row's share, by title and variant, where it is known.
    """
    frame = frames.time(labelled, whole)
    title = "per cent of the plain VM's time" if whole else "per cent of the time"
    return _by_variant(frame, lambda own: _parts(own, PART_COLOURS, title, layout, ci95))


def whole_run(
    labelled: Labelled,
    whole: Mapping[str, float],
    layout: Layout = WIDE,
    ci95: Mapping[tuple[str, str], float] | None = None,
) -> Picture:
    """The same over the whole run, with kernel work by what it is for."""
    frame = frames.whole_run(labelled, whole)
    title = "per cent of the plain VM's whole run"
    return _by_variant(frame, lambda own: _parts(own, WHOLE_COLOURS, title, layout, ci95))


def _parts(
    frame: pl.DataFrame,
    colours: dict[str, str],
    title: str,
    layout: Layout,
    ci95: Mapping[tuple[str, str], float] | None = None,
) -> Picture:
    """Stacked bars, the shortest first, with their sum behind them."""
    sums = frame.group_by("title", "variant", maintain_order=True).agg(pl.col("share").sum()).sort("share")
    halves = [(ci95 or {}).get((name, variant)) for name, variant in sums.select("title", "variant").iter_rows()]
    labels_of = [_per_cent(share, half) for share, half in zip(sums["share"], halves, strict=True)]
    sums = sums.with_columns(pl.Series("label", labels_of, dtype=pl.String))
    end = _with_room(zip(sums["share"], labels_of, strict=True), layout)
    order = sums["title"].to_list()
    names = alt.Y("title:N", sort=order, title=None, axis=layout.names(order))
    reach = alt.Scale(domain=[0, end], nice=False)
    share = alt.X(
        "share:Q",
        title=title,
        stack="zero",
        scale=reach,
        axis=alt.Axis(labelExpr="round(100 * datum.value)", tickCount=5),
    )
    colour = _colour("part:N", colours, None, layout)
    bars = alt.Chart(frame).mark_bar(**layout.bar).encode(x=share, y=names, color=colour, order="rank:O")
    place = {"dx": 4, "yOffset": layout.bar.get("yOffset", 0), "fontSize": LABEL_FONT_SIZE}
    labels = alt.Chart(sums).mark_text(align="left", **place).encode(x="share:Q", y=names, text="label:N")
    picture: Picture = alt.layer(bars, labels)
    return picture.properties(width=layout.width, height=alt.Step(layout.step))


def _with_room(bars: Iterable[tuple[float, str]], layout: Layout) -> float:
    """Where the axis ends so that each bar's label has room behind it."""
    ends = [value / (1 - (text_width(label, LABEL_FONT_SIZE) + 8) / layout.width) for value, label in bars]
    return max([*ends, 0.01])


def _per_cent(share: float, ci95: float | None) -> str:
    value = f"{100 * share:.0f}"
    if not ci95:
        return value
    digits = 2 if ci95 < TENTH / 200 else 1 if ci95 < TENTH else 0
    return f"{100 * share:.{digits}f} \N{PLUS-MINUS SIGN}{100 * ci95:.{digits}f}"


def references(labelled: Labelled, layout: Layout = WIDE) -> Picture:
    """References a walk to each level of each table, by what served them."""
    height = alt.Y("per_walk:Q", title="refs a walk", stack="zero", axis=alt.Axis(tickCount=4))
    colour = _colour("server:N", SERVER_COLOURS, "served by", layout)
    return _levels(labelled, frames.references(labelled), height, colour, layout)


def served(labelled: Labelled, layout: Layout = WIDE) -> Picture:
    """Who answers for each level of each table, in shares of the walks that go as far down (ASAP's figure 9)."""
    height = alt.Y("share:Q", title="share", stack="zero", axis=alt.Axis(format="%", tickCount=4))
    colour = _colour("server:N", WALK_SERVER_COLOURS, "answered by", layout)
    return _levels(labelled, frames.served(labelled), height, colour, layout)


def _levels(labelled: Labelled, frame: pl.DataFrame, height: alt.Y, colour: alt.Color, layout: Layout) -> Picture:
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
    return _grid(chart.properties(width=_panel_width(layout), height=90), titles, variants)


def latency_distribution(labelled: Labelled, colours: Colours | None = None, layout: Layout = WIDE) -> Picture:
    """Share of the walks that took no longer than so many cycles."""
    titles, variants = _order(labelled)
    shown = legend(layout, lines=True)
    chart = (
        alt.Chart(frames.latencies(labelled))
        .mark_line(interpolate="step-after", strokeWidth=2)
        .encode(
            x=alt.X("cycles:Q", title="walk latency, cycles", scale=_FROM_TEN, axis=alt.Axis(values=_ROUND_CYCLES)),
            y=alt.Y(
                "share:Q", title="walks that took no longer", axis=alt.Axis(format="%"), scale=alt.Scale(domain=[0, 1])
            ),
            color=alt.Color("title:N", sort=titles, scale=_scale(titles, colours), title=None, legend=shown),
        )
        .properties(width=_panel_width(layout), height=220)
    )
    return _grid(chart, [], variants)


def fragmentation(labelled: Labelled, colours: Colours | None = None, layout: Layout = WIDE) -> Picture:
    """Groups of 8 neighbouring guest pages by the lines that their host PTEs fill, a panel for each configuration."""
    titles, variants = _order(labelled)
    chart = (
        alt.Chart(frames.fragmentation(labelled))
        .mark_bar()
        .encode(
            x=alt.X("lines:O", title="lines of a group's host PTEs", axis=alt.Axis(labelAngle=0)),
            y=alt.Y("share:Q", title="share of groups", axis=alt.Axis(format="%", tickCount=4)),
            color=alt.Color("title:N", scale=_scale(titles, colours), legend=None),
        )
        .properties(width=_panel_width(layout) - 40, height=90)
    )
    return _grid(chart, titles, variants)


def reserved(labelled: Labelled, colours: Colours | None = None, layout: Layout = WIDE) -> Picture:
    """Frames set aside and not mapped, over the time of the run."""
    titles, variants = _order(labelled)
    shown = legend(layout, lines=True)
    chart = (
        alt.Chart(frames.reserved(labelled))
        .mark_line(strokeWidth=2)
        .encode(
            x=alt.X("milliseconds:Q", title="simulated time, ms"),
            y=alt.Y("share:Q", title="reserved / in use", axis=alt.Axis(format="%", tickCount=5)),
            color=alt.Color("title:N", sort=titles, scale=_scale(titles, colours), title=None, legend=shown),
        )
        .properties(width=_panel_width(layout), height=160)
    )
    return _grid(chart, [], variants)


def heat(cells: pl.DataFrame, layout: Layout = WIDE) -> Picture:
    """A field for each configuration (downwards) and program (across), a panel for each variant.

    ``cells`` has ``title``, ``program``, ``variant``, ``label`` (what stands in the field) and ``against`` (its colour:
    less than 1 is better than the baseline), in the order in which they are to stand. Colours are centred at 1 and
    reach as far to both sides as the values do on the side where they reach further (but not beyond 0 and 2).
    """
    order = {key: cells[key].unique(maintain_order=True).to_list() for key in ("title", "program", "variant")}
    span = min(1.0, max(HEAT_SPAN_MIN, *(abs(value - 1) for value in cells["against"].to_list())))
    scale = alt.Scale(
        range=["#2166ac", "#92c5de", "#f7f7f7", "#f4a582", "#b2182b"],
        domain=[1 - span, 1 - span / 2, 1, 1 + span / 2, 1 + span],
        clamp=True,
    )
    ends = [1 - span, 1, 1 + span]
    legend = alt.Legend(orient="top", direction="horizontal", gradientLength=180, titleLimit=300, values=ends)
    colour = alt.Color("against:Q", scale=scale, title="of the baseline's (1: the same)", legend=legend)
    # Strong colours at both ends need light ink.
    strong = f"abs(datum.against - 1) > {0.7 * span}"
    ink = alt.condition(strong, alt.value("#ffffff"), alt.value("#222222"))
    columns = 2 if layout.label_width else 1
    panels = []
    for place, variant in enumerate(order["variant"]):
        names = _heat_names(order["title"], layout) if place % columns == 0 else None
        base = alt.Chart(cells.filter(pl.col("variant") == variant)).encode(
            y=alt.Y("title:N", scale=alt.Scale(domain=order["title"]), title=None, axis=names),
            x=alt.X(
                "program:N",
                scale=alt.Scale(domain=order["program"]),
                title=None,
                axis=alt.Axis(labelAngle=-40, orient="top"),
            ),
        )
        fields = base.mark_rect().encode(color=colour)
        labels = base.mark_text(fontSize=10).encode(text="label:N", color=ink)
        size = {"width": alt.Step(46), "height": alt.Step(16)} if layout.label_width else _HEAT_NARROW
        title = variant if len(order["variant"]) > 1 else ""
        panels.append(alt.layer(fields, labels).properties(title=title, **size))
    picture: Picture = alt.concat(*panels, columns=columns, spacing=20) if len(panels) > 1 else panels[0]
    return picture


_PARTS = r", | \+ "
_SMALL = 9
_HEAT_NARROW = {"width": alt.Step(38), "height": alt.Step(30)}


def _heat_names(titles: Sequence[str], layout: Layout) -> alt.Axis:
    """Names beside the fields; on a phone a part a line."""
    if layout.label_width:
        limit = layout.label_width + 40
        room = min(limit, max(text_width(title, AXIS_FONT_SIZE) for title in titles))
        return alt.Axis(labelLimit=limit, minExtent=room + 8)
    parts = [part for title in titles for part in re.split(_PARTS, title)]
    room = min(150, max(text_width(part, _SMALL) for part in parts))
    return alt.Axis(
        labelLimit=150, minExtent=room + 8, labelFontSize=_SMALL, labelExpr=f"split(datum.label, /{_PARTS}/)"
    )


def _order(labelled: Labelled) -> tuple[list[str], list[str]]:
    """Titles of configurations and of variants, each once, in their order."""
    titles = list(dict.fromkeys(title for title, _, _ in labelled))
    variants = list(dict.fromkeys(variant for _, variant, _ in labelled))
    return titles, variants


def _colour(field: str, colours: dict[str, str], title: str | None, layout: Layout) -> alt.Color:
    scale = alt.Scale(domain=list(colours), range=list(colours.values()))
    shown = legend(layout)
    return alt.Color(field, scale=scale, sort=list(colours), title=title, legend=shown)


def _scale(titles: Sequence[str], colours: Colours | None) -> alt.Scale:
    """The colours of ``titles``: their own, or the next of :data:`LINE_COLOURS`."""
    names = list(dict.fromkeys(titles))
    spare = {name: LINE_COLOURS[place % len(LINE_COLOURS)] for place, name in enumerate(names)}
    return alt.Scale(domain=names, range=[(colours or spare).get(name, spare[name]) for name in names])


def legend(layout: Layout, *, lines: bool = False) -> alt.Legend:
    """Above the picture, as wide as that, with nothing cut; names of configurations are long and get fewer columns."""
    columns = max(1, layout.columns - 1) if lines else layout.columns
    return alt.Legend(
        orient="top",
        direction="horizontal",
        columns=columns,
        labelLimit=0,
        symbolOpacity=1,
        symbolStrokeWidth=3 if lines else 0,
    )


def _panel_width(layout: Layout) -> int:
    """Of one of two panels side by side; on a phone of one by itself."""
    return layout.width // 2 if layout.label_width else layout.width - 60


def _by_variant(frame: pl.DataFrame, draw: Callable[[pl.DataFrame], Picture]) -> Picture:
    """A panel for each variant, one below the other."""
    variants = frame["variant"].unique(maintain_order=True).to_list()
    if len(variants) <= 1:
        return draw(frame)
    panels = [draw(frame.filter(pl.col("variant") == variant)).properties(title=variant) for variant in variants]
    picture: Picture = alt.vconcat(*panels)
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
        chart.configure(
            background="transparent",
            font=FONT,
            view=alt.ViewConfig(stroke="#88888855"),
            padding={"left": 5, "top": 5, "bottom": 5, "right": SPARE},
        )
        .configure_axis(
            gridColor="#88888833",
            domainColor="#888888",
            tickColor="#888888",
            labelFontSize=AXIS_FONT_SIZE,
            titleFontSize=12,
        )
        .configure_legend(labelFontSize=12, titleFontSize=12, columnPadding=SPARE)
    )
    # altair refuses more than 5000 rows, to keep notebooks small; here they become one drawing.
    with alt.data_transformers.enable("default", max_rows=None):
        return renderer.svg(themed.to_dict())
