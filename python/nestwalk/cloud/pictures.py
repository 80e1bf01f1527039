# SPDX-License-Identifier: MIT OR Apache-2.0
"""The pictures of a replay, as altair charts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import altair as alt
import polars as pl

from nestwalk import sizes
from nestwalk.charts import LINE_COLOURS, WIDE, Layout, Picture, legend
from nestwalk.sizes import PAGE_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nestwalk.cloud.place import Replay, Replayed

SEGMENT_COLOURS = {"1": "#4f9d69", "2": "#f0b93a", "3": "#e07b39", "more": "#d1495b"}
"""Of VMs by their number of segments."""
KIND_COLOURS = {
    "free": "#e8ecf0",
    "VM": "#5b9bc8",
    "next VM": "#2f6fa7",
    "hypervisor": "#7f8c99",
    "firmware": "#a0704f",
    "bad": "#d1495b",
    "mmio": "#c9b458",
}
"""Of a host's memory; VMs next to each other take turns in two blues."""

HOUR_S, DAY_S = 3600, 86_400
SIZES_MAX = 24
"""Of more VM sizes than this, those with most VMs are drawn."""
GIB = 1 << 30


def shares(done: Replay, layout: Layout = WIDE) -> Picture | None:
    """VMs by number of segments, a bar for each version."""
    rows = [
        {
            "title": one.version.title,
            "count": key,
            "rank": rank,
            "share": one.result["segments"]["shares"].get(key, 0.0),
        }
        for one in done.made
        for rank, key in enumerate(SEGMENT_COLOURS)
    ]
    return shares_of(rows, done.plan.titles, layout) if any(row["share"] for row in rows) else None


def shares_of(rows: Sequence[Mapping[str, Any]], titles: Sequence[str], layout: Layout) -> Picture:
    """The same of any rows: ``title``, ``count`` (of :data:`SEGMENT_COLOURS`), ``rank``, ``share``."""
    picture: Picture = (
        alt.Chart(pl.DataFrame(rows))
        .mark_bar(**layout.bar)
        .encode(
            x=alt.X("share:Q", title="share of VMs", stack="zero", axis=alt.Axis(format="%", tickCount=5)),
            y=alt.Y("title:N", sort=list(titles), title=None, axis=layout.names(titles)),
            color=_segments(layout),
            order="rank:O",
        )
        .properties(width=layout.width, height=alt.Step(layout.step))
    )
    return picture


def curve(done: Replay, layout: Layout = WIDE) -> Picture | None:
    """VMs that a processor with n segments leaves to EPT or shadow paging, n = 1 to 8."""
    return curve_of([(one.version.title, one.modes) for one in done.made], layout)


def curve_of(lines: Sequence[tuple[str, Sequence[Mapping[str, int]]]], layout: Layout = WIDE) -> Picture | None:
    """The same of any titles and modes. The scale is logarithmic: a line ends where no VM is left."""
    titles = [title for title, _ in lines]
    rows: list[dict[str, Any]] = []
    for title, modes in lines:
        for mode in modes:
            total = mode["ds_vms"] + mode["ept_vms"]
            if total and mode["ept_vms"]:
                rows.append({"title": title, "n": str(mode["n"]), "share": mode["ept_vms"] / total})
    if not rows:
        return None
    counts = [str(n) for n in range(1, 9)]
    low = min(10.0 ** math.floor(math.log10(min(float(row["share"]) for row in rows))), 0.1)
    picture: Picture = (
        alt.Chart(pl.DataFrame(rows))
        .mark_line(point=True, strokeWidth=1.8)
        .encode(
            x=alt.X(
                "n:O",
                title="n: segments that a processor has",
                axis=alt.Axis(labelAngle=0),
                scale=alt.Scale(domain=counts),
            ),
            y=alt.Y(
                "share:Q",
                title="VMs left to EPT",
                axis=alt.Axis(format=".4~%"),
                scale=alt.Scale(type="log", domain=[low, 1]),
            ),
            color=_titles(titles, layout),
            strokeDash=alt.StrokeDash("title:N", sort=titles, legend=None),
        )
        .properties(width=_plot_width(layout), height=220)
    )
    return picture


def fleet(done: Replay, layout: Layout = WIDE) -> Picture | None:
    """Over the time of the trace: running VMs, memory in use, and free memory that is unusable, a line a version."""
    n = done.plan.settings.segments
    rows: list[dict[str, Any]] = []
    for one in done.made:
        for point in one.result["series"]:
            values = {
                "running VMs": point["running"],
                "memory in use": point["memory_share"],
                "virtual CPUs in use": point["vcpu_share"],
                f"free memory that is unusable (n = {n})": point["unusable_share"][n - 1]
                if point["unusable_share"]
                else None,
            }
            rows += [
                {"title": one.version.title, "time_s": point["time_s"], "what": what, "value": value}
                for what, value in values.items()
                if value is not None
            ]
    if len({row["time_s"] for row in rows}) < 2:  # noqa: PLR2004 (a line has two ends)
        return None
    first = min(row["time_s"] for row in rows)
    span = max(row["time_s"] for row in rows) - first
    unit, seconds = ("days", DAY_S) if span > 2 * DAY_S else ("hours", HOUR_S)
    frame = pl.DataFrame(rows).with_columns(((pl.col("time_s") - first) / seconds).alias("time"))
    panels = []
    for what in dict.fromkeys(row["what"] for row in rows):
        axis = alt.Axis(tickCount=4) if what == "running VMs" else alt.Axis(format=".3~%", tickCount=4)
        panels.append(
            alt.Chart(frame.filter(pl.col("what") == what), title=alt.Title(what, anchor="start", fontSize=12))
            .mark_line(strokeWidth=1.5)
            .encode(
                x=alt.X(
                    "time:Q",
                    title=f"time of the trace, {unit}",
                    axis=alt.Axis(format="~g", tickCount=8 if layout.label_width else 5),
                    scale=alt.Scale(nice=False),
                ),
                y=alt.Y("value:Q", title=None, axis=axis),
                color=_titles(done.plan.titles, layout),
                strokeDash=alt.StrokeDash("title:N", sort=done.plan.titles, legend=None),
            )
            .properties(width=_plot_width(layout), height=110)
        )
    picture: Picture = alt.vconcat(*panels)
    return picture


def sizes_by_segments(done: Replay, layout: Layout = WIDE) -> Picture | None:
    """VMs of each size by their number of segments, a panel for each version."""
    rows = []
    for one in done.made:
        by_size = sorted(one.result["by_size"], key=lambda size: -size["vms"]["placed"])[:SIZES_MAX]
        for size in by_size:
            for rank, key in enumerate(SEGMENT_COLOURS):
                share = size["segments"]["shares"].get(key, 0.0)
                label = sizes.words(size["memory_pages"])
                rows.append(
                    {
                        "title": one.version.title,
                        "pages": size["memory_pages"],
                        "size": label,
                        "count": key,
                        "rank": rank,
                        "share": share,
                    }
                )
    if not rows:
        return None
    order = list(dict.fromkeys(row["size"] for row in sorted(rows, key=lambda row: row["pages"])))
    chart = (
        alt.Chart(pl.DataFrame(rows))
        .mark_bar()
        .encode(
            x=alt.X("size:N", sort=order, title="memory of the VM", axis=alt.Axis(labelAngle=-40)),
            y=alt.Y("share:Q", title="share of VMs", stack="zero", axis=alt.Axis(format="%", tickCount=4)),
            color=_segments(layout),
            order="rank:O",
        )
        .properties(width=layout.width // 2 if layout.label_width else _plot_width(layout), height=120)
    )
    facet = alt.Facet("title:N", sort=done.plan.titles, title=None, header=alt.Header(labelFontSize=12))
    picture: Picture = chart.facet(facet, columns=2 if layout.label_width else 1)
    return picture


def memory_map(done: Replay, layout: Layout = WIDE) -> Picture | None:
    """A host's memory at the first and the last point where it was drawn, a strip for each version."""
    rows: list[dict[str, Any]] = []
    order: list[str] = []
    for one in done.made:
        for when, drawn in _before_and_after(one):
            label = f"{one.version.title}, {when}"
            order.append(label)
            rows += [{"strip": label, **cell} for cell in _cells(drawn["cells"])]
    if not rows:
        return None
    kinds = [kind for kind in KIND_COLOURS if any(row["kind"] == kind for row in rows)]
    picture: Picture = (
        alt.Chart(pl.DataFrame(rows))
        .mark_bar(**layout.bar)
        .encode(
            x=alt.X(
                "from:Q",
                title="host-physical address, GiB",
                scale=alt.Scale(nice=False),
                axis=alt.Axis(tickCount=10 if layout.label_width else 5),
            ),
            x2="to:Q",
            y=alt.Y("strip:N", sort=order, title=None, axis=layout.names(order)),
            color=alt.Color(
                "kind:N",
                sort=kinds,
                title=None,
                scale=alt.Scale(domain=kinds, range=[KIND_COLOURS[kind] for kind in kinds]),
                legend=legend(layout),
            ),
        )
        .properties(width=layout.width, height=alt.Step(layout.step))
    )
    return picture


def _before_and_after(one: Replayed) -> list[tuple[str, Mapping[str, Any]]]:
    """The maps of one version: the first and the last."""
    maps = list(one.result["maps"])
    if not maps:
        return []
    first = maps[0]["time_s"]
    chosen = maps[:1] if len(maps) == 1 else [maps[0], maps[-1]]
    return [("before" if drawn is chosen[0] else _after(drawn["time_s"] - first), drawn) for drawn in chosen]


def _after(seconds: int) -> str:
    if seconds > 2 * DAY_S:
        return f"after {seconds / DAY_S:.1f} days"
    return f"after {seconds / HOUR_S:.1f} hours" if seconds else "after all arrivals"


def _cells(cells: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A host's ranges of memory as rectangles; neighbouring VMs differ in colour."""
    found = []
    last_vm, kind = None, "VM"
    for cell in cells:
        name = cell["kind"]
        if name == "vm":
            if cell["vm"] != last_vm:
                kind = "next VM" if kind == "VM" else "VM"
            last_vm, name = cell["vm"], kind
        start = cell["start_page"] * PAGE_BYTES / GIB
        found.append({"from": start, "to": start + cell["pages"] * PAGE_BYTES / GIB, "kind": name})
    return found


def _plot_width(layout: Layout) -> int:
    """Of a picture with numbers beside its axis."""
    return layout.width if layout.label_width else layout.width - 50


def _segments(layout: Layout) -> alt.Color:
    scale = alt.Scale(domain=list(SEGMENT_COLOURS), range=list(SEGMENT_COLOURS.values()))
    return alt.Color("count:N", scale=scale, sort=list(SEGMENT_COLOURS), title="segments", legend=legend(layout))


def _titles(titles: Sequence[str], layout: Layout) -> alt.Color:
    scale = alt.Scale(domain=list(titles), range=LINE_COLOURS[1:])
    return alt.Color("title:N", sort=list(titles), scale=scale, title=None, legend=legend(layout, lines=True))
