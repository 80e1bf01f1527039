# SPDX-License-Identifier: MIT OR Apache-2.0
"""Traces that are made up from parts of real ones, or from assumptions: which, each function says.

Random numbers come from one generator of Python's own (``random.Random.random``), whose numbers are the same in every
version; so the same seed gives the same trace.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import polars as pl

from nestwalk.cloud.requests import PAGE_BYTES, SCHEMA, Requests
from nestwalk.errors import NestwalkError

if TYPE_CHECKING:
    from collections.abc import Iterable

DAY_S = 86_400
WARM_UP_DAYS = 10
"""Days of arrivals that are played before time 0 to find the short-lived VMs that run then."""

AZURE_VMS = 2_013_767
"""VMs of Azure's trace. Source: Compromis' evaluation; Azure's own description has the same number."""

GIB_PAGES = (1 << 30) // PAGE_BYTES


@dataclass(frozen=True)
class Lifetimes:
    """How long VMs of one size live, by Kaplan and Meier's estimate: VMs seen to the end of the trace are not lost."""

    upto: Sequence[float]
    """Share of VMs that have ended with each of :attr:`bounds`, ascending; the last may be below 1."""
    bounds: Sequence[tuple[int, int]]
    """Seconds: at least, at most."""

    def draw(self, random: Random) -> tuple[int, int] | None:
        """The bounds of a lifetime; None for one that is longer than any seen."""
        at = bisect_left(self.upto, random.random())
        return self.bounds[at] if at < len(self.bounds) else None


def lifetimes(frame: pl.DataFrame, ends: Sequence[int]) -> Lifetimes:
    """The estimate from the VMs ``frame`` of one size.

    Args:
        frame: Requests; those without a departure were seen to the end of their part of the trace.
        ends: The ends of those parts, ascending.
    """
    seen = []
    for arrive, lo, hi in frame.select("arrive_s", "leave_lo_s", "leave_hi_s").iter_rows():
        if lo is None:
            end = next((end for end in ends if end > arrive), ends[-1])
            seen.append((float(end - arrive), 1, (0, 0)))
        else:
            seen.append(((lo + hi) / 2 - arrive, 0, (lo - arrive, hi - arrive)))
    seen.sort()
    # Each ended VM takes its share of those that were still seen to run; what ran on is spread over the later ones.
    alive, ended = 1.0, 0.0
    upto, bounds = [], []
    for position, (_, censored, bound) in enumerate(seen):
        if not censored:
            step = alive / (len(seen) - position)
            alive -= step
            ended += step
            upto.append(ended)
            bounds.append(bound)
    return Lifetimes(upto, bounds)


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
    random = Random(seed)
    by_size = _by_size(late)
    whole = early.frame.select("vm", "arrive_s", "vcpus", "memory_pages").rows()
    rows = [
        (f"{vm}-day1-20", arrive, *_leave(by_size, pages, arrive, random), cores, pages)
        for vm, arrive, cores, pages in whole
    ]
    drawn = len(rows)
    wanted = max(vms - len(rows) - len(late.frame), 0)
    before = _running_at_start(whole, by_size, random, wanted)
    frame = pl.concat(
        [
            pl.DataFrame(before, schema=SCHEMA, orient="row"),
            pl.DataFrame(rows, schema=SCHEMA, orient="row"),
            late.frame.with_columns(pl.format("{}-day21-30", "vm").alias("vm")),
        ]
    ).sort("arrive_s", maintain_order=True)
    if one_in > 1:
        frame = frame.gather_every(one_in)
    notes = (
        f"{drawn:,} VMs of days 1 to 20 have a lifetime drawn from VMs of their size of days 21 to 30",
        f"{len(before):,} VMs that run at the beginning are made up: short-lived ones as arrivals before it, the rest never "
        "leave",
        *((f"one VM in {one_in} is kept",) if one_in > 1 else ()),
    )
    return Azure(Requests(early.path, "Azure V1, full length, made up", frame, notes=notes), len(before), drawn)


_Row = tuple[str, int, int | None, int | None, int, int]


def _by_size(late: Requests) -> dict[int, Lifetimes]:
    """Lifetimes by memory; of sizes that are not there, those of all."""
    # The two parts of the reduced trace end when its own description says (days 21 to 24.3, and to 30); VMs without a
    # departure were seen until then.
    ends = [AZURE_SPLIT_S, max(late.span_s[1], AZURE_SPLIT_S + 1)]
    found = {0: lifetimes(late.frame, ends)}
    for (pages,), part in late.frame.group_by("memory_pages", maintain_order=True):
        found[int(str(pages))] = lifetimes(part, ends)
    return found


AZURE_SPLIT_S = 2_100_000
"""Where the first part of days 21 to 30 ends: the second one's first creation."""


def _leave(
    by_size: dict[int, Lifetimes], pages: int, arrive: int, random: Random
) -> tuple[int, int] | tuple[None, None]:
    found = by_size.get(pages, by_size[0]).draw(random)
    return (None, None) if found is None else (arrive + found[0], arrive + found[1])


def _running_at_start(
    whole: Sequence[tuple[str, int, int, int]], by_size: dict[int, Lifetimes], random: Random, wanted: int
) -> list[_Row]:
    """``wanted`` VMs that run at time 0."""
    shift = WARM_UP_DAYS * DAY_S
    rows: list[_Row] = []
    lasting: list[tuple[int, int]] = []
    for vm, arrive, cores, pages in whole:
        if arrive >= shift:
            break
        lo, hi = _leave(by_size, pages, arrive - shift, random)
        if lo is None or hi is None:
            lasting.append((cores, pages))
        elif lo > 0 and len(rows) < wanted:
            rows.append((f"{vm}-before", arrive - shift, lo, hi, cores, pages))
    for number in range(wanted - len(rows)):
        cores, pages = lasting[int(random.random() * len(lasting))]
        rows.append((f"{number}-long", -shift, None, None, cores, pages))
    return rows


CLOUDS = 308
CLOUD_VMS = 301_440
CLOUD_SIZES = 201
"""Private clouds, their VMs, and their distinct sizes of VMs. Source: Compromis' evaluation."""

CLOUD_SIGMA = 1.2
"""Assumption: the numbers of VMs of clouds are log-normal with this standard deviation of the logarithm."""

GIB_PER_CORE = 4
"""Assumption: virtual CPUs of a VM, one for each so many GiB, rounded up to a power of two."""


def private_clouds(
    *, seed: int, clouds: int = CLOUDS, vms: int = CLOUD_VMS, sizes: int = CLOUD_SIZES
) -> list[Requests]:
    """Boot storms of private clouds: all VMs of a cloud arrive at once, in random order, and stay.

    All of this is assumed, as the snapshots of the paper are not public: the number of VMs of a cloud is log-normal,
    scaled so that the sum is right; the distinct sizes are the sizes from 0.5 GiB upwards on a grid that widens with
    them; how often a size occurs follows Zipf's law, the common sizes being the powers of two of GiB.
    """
    if clouds < 1 or vms < clouds or sizes < 1:
        raise NestwalkError("a set of private clouds needs at least one cloud, one size, and one VM for each cloud")
    random = Random(seed)
    weights = [math.exp(CLOUD_SIGMA * _normal(random)) for _ in range(clouds)]
    counts = _apportion(weights, vms)
    known = _sizes(sizes)
    upto = _cumulative(1 / rank for rank in range(1, len(known) + 1))
    found = []
    for number, count in enumerate(counts):
        rows: list[_Row] = []
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
    """So many sizes in pages, the commonest first: powers of two of GiB from 1 to 64, then the rest, small ones first."""
    common = [GIB_PAGES << power for power in (2, 3, 1, 4, 0, 5, 6)]
    others: list[int] = []
    size, step = GIB_PAGES // 2, GIB_PAGES // 2
    while len(others) + len(common) < count:
        if size not in common:
            others.append(size)
        size += step
        if size >= 32 * step:
            step *= 2
    return (common + others)[:count]


def _cumulative(values: Iterable[float]) -> list[float]:
    found: list[float] = []
    total = 0.0
    for value in values:
        total += value
        found.append(total)
    return found
