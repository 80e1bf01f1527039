# SPDX-License-Identifier: MIT OR Apache-2.0
"""Frames over several results, in the shape that the charts draw: one row for each mark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import polars as pl

from nestwalk.counted import named
from nestwalk.counters import Cycles
from nestwalk.cycles import by_part
from nestwalk.result import LEVEL_NAMES, Result
from nestwalk.whole_run import KINDS, own_cycles_per_access

if TYPE_CHECKING:
    from collections.abc import Mapping

Labelled = Sequence[tuple[str, str, Result]]
"""Results with the titles of their configuration and their variant."""

SERVER_TITLES = {"l1d": "L1-D", "l2": "L2", "llc": "LLC", "memory": "memory"}
WALK_SERVER_TITLES = {"pwc": "page-walk cache", **SERVER_TITLES}
PREFIXES = {"guest": "", "host": "h"}
"""What stands before a level's name in pictures."""
PARTS = {"work": "instructions", "data": "waiting for data", "walk": "page walks", "os": "kernel work"}
"""What time is spent on, in the order of stacking, by its key in the statistics."""
named(Cycles, *PARTS)
OWN = "program and walks"
LARGE_KINDS = ("page faults", "zeroing pages", "VM exits")
OTHER = "other kernel work"
UNSEEN = "exits, estimated"
"""What the whole run is spent on, likewise."""


def rows(labelled: Labelled) -> pl.DataFrame:
    """The comparison's values, with titles."""
    found = [{**result.row, "title": title, "variant": variant} for title, variant, result in labelled]
    return pl.DataFrame(found, infer_schema_length=None)


def references(labelled: Labelled) -> pl.DataFrame:
    """References a walk by level and server: ``title``, ``variant``, ``place``, ``server``, ``rank``, ``per_walk``."""
    return _by_level(
        [(title, variant, result.references) for title, variant, result in labelled], SERVER_TITLES, "per_walk"
    )


def served(labelled: Labelled) -> pl.DataFrame:
    """Who answered for each level: ``title``, ``variant``, ``place``, ``server``, ``rank``, ``share`` of the level."""
    return _by_level(
        [(title, variant, result.served) for title, variant, result in labelled], WALK_SERVER_TITLES, "share"
    )


def _by_level(tables: Sequence[tuple[str, str, pl.DataFrame]], servers: Mapping[str, str], value: str) -> pl.DataFrame:
    """Frames by table, level and server, one below the other; ``servers`` has titles in the order of stacking."""
    parts = [
        table.select(
            pl.lit(title).alias("title"),
            pl.lit(variant).alias("variant"),
            (pl.col("table").replace(PREFIXES) + pl.col("level_name")).alias("place"),
            pl.col("served_by").replace(servers).alias("server"),
            pl.col("served_by").replace_strict({name: rank for rank, name in enumerate(servers)}).alias("rank"),
            value,
        )
        for title, variant, table in tables
    ]
    return pl.concat(parts)


def places(labelled: Labelled) -> list[str]:
    """The levels of :func:`references`, root first: of the program's own table, then of the host's if there is one."""
    order = []
    for table, prefix in PREFIXES.items():
        depths = [result.levels(table) for _, _, result in labelled if table == "guest" or result.virtualised]
        deepest = max(depths, default=0)
        names = [name for name in reversed(LEVEL_NAMES.values()) if name != "P4D" or deepest == len(LEVEL_NAMES)]
        order += [prefix + name for name in names if deepest]
    return order


def latencies(labelled: Labelled) -> pl.DataFrame:
    """Share of the walks that took no longer than so many cycles: ``title``, ``variant``, ``cycles``, ``share``.

    The last bucket of a histogram has no upper end, so it is left out: a line ends below 1 if any walk fell into it.
    """
    parts = []
    for title, variant, result in labelled:
        histogram = result.latency_histogram.head(-1).filter(pl.col("walks") > 0)
        points = histogram.select(pl.col("to_cycles").alias("cycles"), pl.col("share").cum_sum())
        # A line begins on the axis, where the fastest walks' bucket begins (1, as a logarithmic axis has no 0).
        start = histogram.head(1).select(pl.col("from_cycles").clip(1).alias("cycles"), pl.lit(0.0).alias("share"))
        parts.append(
            pl.concat([start, points]).select(
                pl.lit(title).alias("title"), pl.lit(variant).alias("variant"), "cycles", "share"
            )
        )
    return pl.concat(parts)


def time(labelled: Labelled, whole: Mapping[str, float] | None = None) -> pl.DataFrame:
    """What time is spent on, in shares: ``title``, ``variant``, ``part``, ``rank``, ``share``.

    ``whole`` has the cycles an access that are 1 in each variant: those of its plain VM; a row's own where it has none.
    """
    found: list[Mapping[str, Any]] = []
    for title, variant, result in labelled:
        cycles, accesses = by_part(result.statistics["cycles"]), result.statistics["accesses"]
        one = (whole or {}).get(variant) or (sum(cycles.values()) / accesses if accesses else None)
        for rank, (key, part) in enumerate(PARTS.items()):
            share = cycles[key] / accesses / one if one else 0.0
            found.append({"title": title, "variant": variant, "part": part, "rank": rank, "share": share})
    return pl.DataFrame(found)


def whole_run(labelled: Labelled, whole: Mapping[str, float]) -> pl.DataFrame:
    """The same over the whole run, kernel work by what it is for; ``whole`` as for :func:`time`, of the whole run.

    Only of results whose program's length is known.
    """
    found: list[Mapping[str, Any]] = []
    for title, variant, result in labelled:
        accesses, own = result.whole_run["accesses"], own_cycles_per_access(result)
        if not accesses or own is None:
            continue
        work = {KINDS[kind]: cycles / accesses for kind, cycles in result.whole_run["cycles"].items()}
        parts = {OWN: own, **{part: work.pop(part, 0.0) for part in LARGE_KINDS}, OTHER: sum(work.values())}
        parts[UNSEEN] = result.whole_run["estimated_cycles"] / accesses
        for rank, (part, cycles) in enumerate(parts.items()):
            share = cycles / whole[variant]
            found.append({"title": title, "variant": variant, "part": part, "rank": rank, "share": share})
    schema = {"title": pl.String, "variant": pl.String, "part": pl.String, "rank": pl.Int64, "share": pl.Float64}
    return pl.DataFrame(found, schema=schema)


def fragmentation(labelled: Labelled) -> pl.DataFrame:
    """Groups of 8 pages by the lines that their host PTEs fill: ``title``, ``variant``, ``lines``, ``share``.

    Only of results that have such groups.
    """
    found: list[Mapping[str, Any]] = []
    for title, variant, result in labelled:
        metric = result.host_pt_fragmentation
        if metric is None or not metric["groups"]:
            continue
        for lines, groups in enumerate(metric["distribution"], 1):
            share = groups / metric["groups"]
            found.append({"title": title, "variant": variant, "lines": lines, "share": share})
    schema = {"title": pl.String, "variant": pl.String, "lines": pl.Int64, "share": pl.Float64}
    return pl.DataFrame(found, schema=schema)


def reserved(labelled: Labelled) -> pl.DataFrame:
    """Frames set aside and not mapped, over those in use: ``title``, ``variant``, ``milliseconds``, ``share``.

    Only of results whose memory manager ever set any aside.
    """
    found: list[Mapping[str, Any]] = []
    for title, variant, result in labelled:
        if not result.reserved["maximum_frames"]:
            continue
        for point in result.reserved["series"]:
            if point["resident_frames"]:
                share = point["reserved_frames"] / point["resident_frames"]
                milliseconds = point["time_ns"] / 1e6
                found.append({"title": title, "variant": variant, "milliseconds": milliseconds, "share": share})
    schema = {"title": pl.String, "variant": pl.String, "milliseconds": pl.Float64, "share": pl.Float64}
    return pl.DataFrame(found, schema=schema)
