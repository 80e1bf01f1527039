# SPDX-License-Identifier: MIT OR Apache-2.0
"""The curves of a probe, with their noise, and measured against simulated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import altair as alt
import polars as pl

from nestwalk.charts import LINE_COLOURS, WIDE, Layout, Picture, legend
from nestwalk.probe.cells import HUGE, LINES, SPREADS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nestwalk.probe.probing import Probed
    from nestwalk.probe.validation import Validated

MIB = 1 << 20
TITLES = {HUGE: "2 MiB pages", "in-order": "1 line, in order", "lines-1": "1 line a group"}
TITLES |= {f"lines-{count}": f"{count} lines a group" for count in (2, 4, 8)}
HEIGHT = 240
AXIS_ROOM = 50
"""Pixels beside a picture on a phone for its axis."""
ROUND_MIB = [4.0**power for power in range(-4, 9)]
"""Where a logarithmic axis of footprints has numbers."""
_LABELS = (
    "datum.value >= 1024 ? datum.value / 1024 + 'G' : datum.value >= 1 ? datum.value + 'M' : datum.value * 1024 + 'K'"
)


def _footprint() -> alt.X:
    # Where two labels would touch, as at the right end on a phone, every other one goes.
    axis = alt.Axis(values=ROUND_MIB, labelExpr=_LABELS, grid=False, labelOverlap="parity", labelSeparation=6)
    return alt.X("mib:Q", title="footprint", scale=alt.Scale(type="log", nice=False), axis=axis)


def _colour(titles: Sequence[str], layout: Layout) -> alt.Color:
    scale = alt.Scale(domain=list(titles), range=LINE_COLOURS[: len(titles)])
    return alt.Color("title:N", scale=scale, title=None, sort=list(titles), legend=legend(layout, lines=True))


def _drawn(rows: list[dict[str, Any]], titles: Sequence[str], layout: Layout, what: str) -> Picture:
    """Lines with bands for their intervals."""
    base = alt.Chart(pl.DataFrame(rows, infer_schema_length=None)).encode(x=_footprint(), color=_colour(titles, layout))
    # An interval that leaves the picture is cut: it says "anything".
    top = alt.Scale(domain=[0, 1.3 * max(row["ns"] for row in rows)], clamp=True, nice=False)
    y = alt.Y("ns:Q", title=what, scale=top, axis=alt.Axis(tickCount=5))
    band = base.mark_area(opacity=0.2).encode(y=alt.Y("low:Q", title=what, scale=top), y2="high:Q")
    line = base.mark_line(point={"size": 16}, strokeWidth=1.6).encode(y=y)
    picture: Picture = alt.layer(band, line)
    room = 0 if layout.label_width else AXIS_ROOM
    return picture.properties(width=layout.width - room, height=HEIGHT)


def curve(done: Probed, layout: Layout = WIDE) -> Picture:
    """Nanoseconds an access by footprint: 2 MiB pages, 4 KiB pages at random, and by group on 1 and on 8 lines."""
    titles = {
        (HUGE, "random"): "2 MiB pages, random",
        ("lines-1", "random"): "4 KiB pages, random",
        ("lines-1", "grouped"): "grouped, on 1 line",
        ("lines-8", "grouped"): "grouped, on 8 lines",
    }
    rows = [_row(row, titles[row["layout"], row["order"]]) for row in done.measured.curve() if row["order"] != LINES]
    return _drawn(rows, list(titles.values()), layout, "ns an access")


def caches(done: Probed, layout: Layout = WIDE) -> Picture:
    """Nanoseconds a load of the chase through all lines, from which the share of the last-level cache is taken."""
    rows = [_row(row, "a load of any line") for row in done.measured.curve() if row["order"] == LINES]
    return _drawn(rows, ["a load of any line"], layout, "ns a load")


def _row(row: dict[str, Any], title: str) -> dict[str, Any]:
    ns = row["ns_per_access"]
    low, high = (ns if row[end] is None else row[end] for end in ("low", "high"))
    return {"title": title, "mib": row["footprint_bytes"] / MIB, "ns": ns, "low": low, "high": high}


def side_by_side(done: Validated, order: str, layout: Layout = WIDE) -> Picture:
    """Measured with its noise, and simulated below it, by footprint, a line a layout."""
    titles = [TITLES[name] for name in (HUGE, *SPREADS)]
    own = [row for row in done.rows() if row["order"] == order]
    seen = _drawn([_row(row, TITLES[row["layout"]]) for row in own], titles, layout, "measured, ns")
    ours = [{**_row(row, TITLES[row["layout"]]), **_simulated(row)} for row in own]
    stacked: Picture = alt.vconcat(seen, _drawn(ours, titles, layout, "simulated, ns"))
    return stacked


def _simulated(row: dict[str, Any]) -> dict[str, float]:
    return dict.fromkeys(("ns", "low", "high"), row["simulated_ns"])
