# SPDX-License-Identifier: MIT OR Apache-2.0
"""Traces that are made up from parts of real ones, or from assumptions: which, each function says.

Random numbers come from one generator of Python's own (``random.Random.random``), whose numbers are the same in every
version; so the same seed gives the same trace.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import polars as pl

from nestwalk.cloud.requests import SCHEMA, Requests
from nestwalk.errors import NestwalkError
from nestwalk.sizes import PAGE_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

DAY_S = 86_400
WARM_UP_DAYS = 10
"""Days of arrivals that are played before time 0 to find the short-lived VMs that run then."""

AZURE_VMS = 2_013_767
"""VMs of Azure's trace. Source: Compromis' evaluation; Azure's own description has the same number."""

GIB_PAGES = (1 << 30) // PAGE_BYTES


def lifetimes(late: pl.DataFrame, ends: Sequence[int]) -> pl.DataFrame:
    """How long VMs live, by memory: Kaplan and Meier's estimate, in which VMs seen to the trace's end are not lost.

    Args:
        late: Requests; those without a departure were seen to the end of their part of the trace.
        ends: The ends of those parts, ascending.

    Returns:
        ``memory_pages``, ``upto`` (the share of VMs that have ended by then; ascending for each size, the last may be
        below 1), and the bounds of the lifetime in seconds, ``lo`` and ``hi``.
    """
    end = pl.coalesce([pl.when(pl.col("arrive_s") < end).then(end) for end in ends] + [pl.lit(ends[-1])])
    lo, hi = (pl.col(f"leave_{bound}_s") - pl.col("arrive_s") for bound in ("lo", "hi"))
    seen = late.select(
        "memory_pages",
        lo.alias("lo"),
        hi.alias("hi"),
        lo.is_null().alias("censored"),
        pl.coalesce((lo + hi) / 2, (end - pl.col("arrive_s")).cast(pl.Float64)).alias("seen_s"),
    ).sort("memory_pages", "seen_s", "censored", "lo", "hi", maintain_order=True)
    # Of those that were still seen to run, each that ends takes its share.
    left = (pl.len() - pl.int_range(pl.len())).over("memory_pages")
    survives = pl.when(pl.col("censored")).then(1.0).otherwise(1.0 - 1.0 / left)
    return (
        seen.with_columns((1.0 - survives.cum_prod().over("memory_pages")).alias("upto"))
        .filter(~pl.col("censored"))
        .select("memory_pages", "upto", "lo", "hi")
    )


def with_lifetimes(frame: pl.DataFrame, known: pl.DataFrame, random: Random) -> pl.DataFrame:
    """Requests with a departure drawn for each by its memory; none where the lifetime is longer than any seen.

    A size of which nothing is known gets none either.
    """
    drawn = pl.Series("upto", [random.random() for _ in range(len(frame))], dtype=pl.Float64)
    found = (
        frame.with_columns(drawn)
        .with_row_index("order")
        .sort("upto")
        .join_asof(known.sort("upto"), on="upto", by="memory_pages", strategy="forward", check_sortedness=False)
        .sort("order")
    )
    return found.with_columns(
        (pl.col("arrive_s") + pl.col("lo")).alias("leave_lo_s"), (pl.col("arrive_s") + pl.col("hi")).alias("leave_hi_s")
    ).select(SCHEMA.keys())


@dataclass(frozen=True)
class Azure:
    """Azure's trace at full length, made up from its parts."""

    trace: Requests
    at_start: int
    """VMs that run when the trace begins."""
    drawn: int
    """VMs whose lifetime was drawn."""


def azure(early: Requests, late: Requests, *, seed: int, vms: int = AZURE_VMS, one_in: int = 1) -> Azure:
    """Thirty days of Azure V1 from the arrivals of days 1 to 20 and the VMs of days 21 to 30.

    - A VM of days 1 to 20 gets a lifetime drawn from those of VMs with its memory in days 21 to 30
      (:func:`lifetimes`).
    - The VMs that run at time 0, as many as are missing to ``vms``: the arrivals of days 1 to 10 are played ten days
      earlier, and those that still run at 0 are taken. The rest are VMs of long life: their sizes are drawn from
      arrivals, each taken with the chance that it outlives what is known, and they never leave.

    Args:
        early: Days 1 to 20.
        late: Days 21 to 30.
        seed: Everything random follows from it.
        vms: All VMs.
        one_in: Keep every so-many-th VM only.
    """
    random = Random(seed)  # noqa: S311 (no secret)
    known = lifetimes(late.frame, [AZURE_SPLIT_S, max(late.span_s[1], AZURE_SPLIT_S + 1)])
    whole = with_lifetimes(_renamed(early.frame, "day1-20"), known, random)
    before = _running_at_start(early.frame, known, random, max(vms - len(whole) - len(late.frame), 0))
    frame = pl.concat([before, whole, _renamed(late.frame, "day21-30")]).sort("arrive_s", maintain_order=True)
    if one_in > 1:
        frame = frame.gather_every(one_in)
    short = before["leave_lo_s"].count()
    notes = (
        f"{len(whole):,} VMs of days 1 to 20 have a lifetime drawn from VMs of their size of days 21 to 30",
        f"{len(before):,} VMs that run at the beginning are made up: {short:,} arrived before it, the rest never leave",
        *((f"one VM in {one_in} is kept",) if one_in > 1 else ()),
    )
    made = Requests(early.path, "Azure V1, full length, made up", frame, notes=notes)
    return Azure(made, len(before), len(whole))


AZURE_SPLIT_S = 2_100_000
"""Where the first part of days 21 to 30 ends: at the second one's first creation.

VMs without a departure were seen to run until the end of their part.
"""


def _renamed(frame: pl.DataFrame, part: str) -> pl.DataFrame:
    return frame.with_columns(pl.format("{}-" + part, "vm").alias("vm"))


def _running_at_start(early: pl.DataFrame, known: pl.DataFrame, random: Random, wanted: int) -> pl.DataFrame:
    """``wanted`` VMs that run at time 0."""
    shift = WARM_UP_DAYS * DAY_S
    earlier = _renamed(early.filter(pl.col("arrive_s") < shift), "before").with_columns(pl.col("arrive_s") - shift)
    played = with_lifetimes(earlier, known, random)
    running = played.filter(pl.col("leave_lo_s") > 0).head(wanted)
    lasting = played.filter(pl.col("leave_lo_s").is_null())
    missing = wanted - len(running)
    if not missing or lasting.is_empty():
        return running
    rows = [int(random.random() * len(lasting)) for _ in range(missing)]
    number = pl.int_range(pl.len()).cast(pl.String)
    long = lasting[rows].with_columns((number + "-long").alias("vm"), pl.lit(-shift, dtype=pl.Int64).alias("arrive_s"))
    return pl.concat([long, running])


CLOUDS = 308
CLOUD_VMS = 301_440
CLOUD_SIZES = 201
"""Private clouds, their VMs, and their distinct sizes of VMs. Source: Compromis' evaluation."""

CLOUD_SIGMA = 1.2
"""Assumption: the numbers of VMs of clouds are log-normal with this standard deviation of the logarithm."""

ZIPF = 1.5
"""Assumption: the exponent of Zipf's law by which VMs have the sizes."""

GIB_PER_CORE = 4
"""Assumption: virtual CPUs of a VM, one for each so many GiB, rounded up to a power of two."""


def private_clouds(
    *, seed: int, clouds: int = CLOUDS, vms: int = CLOUD_VMS, sizes: int = CLOUD_SIZES
) -> list[Requests]:
    """Boot storms of private clouds: all VMs of a cloud arrive at once, in random order, and stay.

    All of this is assumed, as the snapshots of the paper are not public: the number of VMs of a cloud is log-normal,
    scaled so that the sum is right; the sizes are on a grid from 0.5 GiB upwards that widens with them; how often a
    size occurs follows Zipf's law, the commonest being powers of two of GiB.
    """
    if clouds < 1 or vms < clouds or sizes < 1:
        raise NestwalkError("a set of private clouds needs at least one cloud, one size, and one VM for each cloud")
    random = Random(seed)  # noqa: S311 (no secret)
    weights = [math.exp(CLOUD_SIGMA * _normal(random)) for _ in range(clouds)]
    counts = _apportion(weights, vms)
    known = _sizes(sizes)
    upto = _cumulative(rank**-ZIPF for rank in range(1, len(known) + 1))
    found = []
    for number, count in enumerate(counts):
        rows: list[tuple[str, int, None, None, int, int]] = []
        for vm in range(count):
            pages = known[min(bisect_left(upto, random.random() * upto[-1]), len(known) - 1)]
            cores = 1 << max(math.ceil(math.log2(max(pages / GIB_PAGES / GIB_PER_CORE, 1))), 0)
            rows.append((f"{number}-{vm}", 0, None, None, cores, pages))
        frame = pl.DataFrame(rows, schema=SCHEMA, orient="row")
        found.append(Requests(Path(f"private-cloud-{number}"), "private cloud, made up", frame))
    return found


def _normal(random: Random) -> float:
    """A normal variate (Box and Muller)."""
    return math.sqrt(-2 * math.log(1 - random.random())) * math.cos(2 * math.pi * random.random())


def _apportion(weights: Sequence[float], total: int) -> list[int]:
    """``total`` in whole parts by weight, each at least 1; what rounding leaves goes to the first ones."""
    spare = total - len(weights)
    parts = [1 + math.floor(spare * weight / sum(weights)) for weight in weights]
    for at in range(total - sum(parts)):
        parts[at % len(parts)] += 1
    return parts


def _sizes(count: int) -> list[int]:
    """So many sizes in pages, the commonest first: powers of two of GiB from 1 to 64, then others from small to large.

    The grid of the others is 0.5 GiB up to 32 GiB, 1 GiB up to 128 GiB, then 4 GiB.
    """
    half = GIB_PAGES // 2
    found = [GIB_PAGES << power for power in (2, 3, 1, 4, 0, 5, 6)]
    known, size = set(found), half
    while len(found) < count:
        if size not in known:
            found.append(size)
        size += half if size < 64 * half else 2 * half if size < 256 * half else 8 * half
    return found[:count]


def _cumulative(values: Iterable[float]) -> list[float]:
    found: list[float] = []
    total = 0.0
    for value in values:
        total += value
        found.append(total)
    return found
