# SPDX-License-Identifier: MIT OR Apache-2.0
"""The pictures of a trace: footprint and working set, reuse distances of pages, the address space over time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import altair as alt
import polars as pl

from nestwalk.charts import WIDE, Layout, Picture

if TYPE_CHECKING:
    from collections.abc import Mapping

FOOTPRINT_COLOUR, WORKING_SET_COLOUR = "#2f6fa7", "#d1495b"
AXIS_ROOM = 56
"""Pixels left of a picture for its axis, within the page's width."""
LABEL_ROOM = 84
"""Pixels for an address of 12 digits in any font: renderers take it for narrower than browsers draw it."""
PAGE_BYTES = 4096
UNITS = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))
COUNTS = (("G", 10**9), ("M", 10**6), ("k", 10**3))
LABELS_MAX = 12
"""Rows of the address space with a label."""


def words(size: float) -> str:
    """A number of bytes as people write it: ``4 KiB``, ``1.5 GiB``."""
    for name, factor in UNITS:
        if size >= factor:
            return f"{size / factor:.3g} {name}" if size / factor < 1000 else f"{size / factor:.0f} {name}"  # noqa: PLR2004
    return f"{size:.0f} B"


def _scale(most: float, names: tuple[tuple[str, int], ...]) -> tuple[str, int]:
    return next(((name, factor) for name, factor in names if most >= factor), ("", 1))


def _time(profile: Mapping[str, Any], layout: Layout) -> tuple[int, alt.X]:
    """By what accesses are divided for an axis, and the axis."""
    most = max((point["access"] for point in profile["footprint"]), default=1)
    name, factor = _scale(most, COUNTS)
    title = f"accesses of the program, {name}" if name else "accesses of the program"
    axis = alt.Axis(format="~g", tickCount=8 if layout.label_width else 4)
    return factor, alt.X("access:Q", title=title, axis=axis, scale=alt.Scale(nice=False, zero=False))


def footprint(profile: Mapping[str, Any], layout: Layout = WIDE) -> Picture | None:
    """Memory touched so far, and memory touched in each stretch."""
    if not profile["footprint"]:
        return None
    factor, x = _time(profile, layout)
    most = max(point["bytes"] for point in profile["footprint"])
    unit, unit_bytes = next(((name, size) for name, size in UNITS if most >= size), UNITS[-1])
    lines = (("touched so far", profile["footprint"]), ("touched in each stretch", profile["working_set"]))
    rows = [
        {"access": point["access"] / factor, "memory": point["bytes"] / unit_bytes, "what": what}
        for what, points in lines
        for point in points
    ]
    colour = alt.Color(
        "what:N",
        title=None,
        scale=alt.Scale(domain=[what for what, _ in lines], range=[FOOTPRINT_COLOUR, WORKING_SET_COLOUR]),
        legend=alt.Legend(orient="top"),
    )
    y = alt.Y("memory:Q", title=f"memory, {unit}", axis=alt.Axis(tickCount=5))
    chart = alt.Chart(pl.DataFrame(rows)).mark_line(strokeWidth=1.5, point=alt.OverlayMarkDef(size=8))
    picture: Picture = chart.encode(x=x, y=y, color=colour).properties(width=layout.width - AXIS_ROOM, height=200)
    return picture


def reuse(profile: Mapping[str, Any], layout: Layout = WIDE) -> Picture | None:
    """The share of accesses that a fully associative LRU TLB of so many entries would not have had."""
    known = sum(point["accesses"] for point in profile["reuse"])
    everything = known + profile["first_accesses"]
    if not known:
        return None
    rows, left = [], everything
    for point in profile["reuse"]:
        left -= point["accesses"]
        # A distance below n is a hit in n entries.
        rows.append({"entries": point["pages_below"], "share": left / everything})
    shown = [row for row in rows if row["share"] > 0]
    if not shown:
        return None
    picture: Picture = (
        alt.Chart(pl.DataFrame(shown))
        .mark_line(strokeWidth=1.5, point=True, color=FOOTPRINT_COLOUR)
        .encode(
            x=alt.X(
                "entries:Q",
                title="entries of an LRU TLB for 4 KiB pages",
                scale=alt.Scale(type="log", base=2, nice=False),
                axis=alt.Axis(format=",d", tickCount=8 if layout.label_width else 5),
            ),
            y=alt.Y(
                "share:Q",
                title="accesses that miss",
                scale=alt.Scale(type="log", domainMax=1),
                axis=alt.Axis(format=".1~%", tickCount=5),
            ),
        )
        .properties(width=layout.width - AXIS_ROOM, height=200)
    )
    return picture


def address_space(profile: Mapping[str, Any], layout: Layout = WIDE) -> Picture | None:
    """Accesses by time and part of the address space; what is not accessed is left out between regions."""
    rows = profile["rows"]
    if not profile["heat"]:
        return None
    factor, x = _time(profile, layout)
    step = profile["interval_accesses"]
    cells = [
        {
            "access": cell["interval"] * step / factor,
            "until": (cell["interval"] + 1) * step / factor,
            "row": cell["row"],
            "accesses": cell["accesses"],
        }
        for cell in profile["heat"]
    ]
    first = [index for index, row in enumerate(rows) if index == 0 or row["region"] != rows[index - 1]["region"]]
    labelled = first if len(first) <= LABELS_MAX else first[:: -(-len(first) // LABELS_MAX)]
    names = {index: f"{rows[index]['start']:#x}" for index in labelled}
    height = 4 if layout.label_width else 3
    chosen = "".join(f"datum.value == {index} ? '{name}' : " for index, name in names.items()) + "''"
    picture: Picture = (
        alt.Chart(pl.DataFrame(cells))
        .mark_rect()
        .encode(
            x=x,
            x2="until:Q",
            y=alt.Y(
                "row:O",
                title=None,
                sort="descending",
                scale=alt.Scale(domain=list(range(len(rows)))),
                axis=alt.Axis(
                    values=list(names), labelExpr=chosen, ticks=False, labelOverlap=True, minExtent=LABEL_ROOM
                ),
            ),
            color=alt.Color(
                "accesses:Q",
                title="accesses",
                scale=alt.Scale(type="log", scheme="viridis"),
                legend=alt.Legend(orient="top", format=".2~s", gradientLength=160, tickCount=3),
            ),
        )
        .properties(width=layout.width - LABEL_ROOM - AXIS_ROOM // 2, height=max(height * len(rows), 60))
    )
    return picture
