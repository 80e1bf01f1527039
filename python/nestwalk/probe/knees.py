# SPDX-License-Identifier: MIT OR Apache-2.0
"""Where a curve leaves its plateau, and what that says of TLBs, of the host's pages and of the last-level cache.

Every answer may be "unknown": a step counts where the whole interval of what comes after it is above what came before.
Noise makes intervals wide, so it makes answers unknown, not wrong.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from nestwalk.probe import statistics

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nestwalk.probe.statistics import Value

AFTER = 2
"""Points after a knee that must lie above it: one alone may be a disturbance."""

MOSTLY, HARDLY = 0.4, 0.2
"""Of the walk cost of 4 KiB pages, what a buffer in 2 MiB pages pays: above the first, the TLB holds 4 KiB pieces of
it; below the second, whole 2 MiB pages. Natively, or with 2 MiB pages below, it pays nothing; with 4 KiB pages below,
the part of the walk that goes through the host's table: 54 to 73 % of a walk's cycles in the simulator, from 16 to 256
MiB (`huge` against `lines-1`, random, in docs/fidelity.md). The first bound is half-way from there to a buffer of which
half is in 2 MiB pages below."""


WIDEST = 0.5
"""An interval wider than that is no answer, on whichever side it lies: such noise is no longer that of a few rounds."""


@dataclass(frozen=True)
class Point:
    """A point of a curve."""

    at: float
    """Bytes, say."""
    value: Value


@dataclass(frozen=True)
class Knee:
    """Between which points a curve leaves its plateau."""

    last_flat: float
    first_above: float

    @property
    def middle(self) -> float:
        """The middle of both on a logarithmic scale."""
        return math.sqrt(self.last_flat * self.first_above)


def knee(points: Sequence[Point], step: float) -> Knee | None:
    """The first knee of a curve: where it rises by more than ``step`` above what it was, and stays there.

    The plateau is the median of the points up to there, all of which must surely be on it: behind a noisy point, what
    looks like the first knee may be a later one. None where no point is surely above, where the very first ones
    are (the knee is before them), or where intervals are not known.
    """
    ordered = sorted(points, key=lambda point: point.at)
    for index in range(len(ordered) - AFTER):
        flat = ordered[: index + 1]
        level = sorted(point.value.value for point in flat)[len(flat) // 2]
        height = max([level, *(point.value.high or math.inf for point in flat[-1:])]) if index else level
        if not all(point.value.surely_below(level + step) for point in flat):
            return None  # the knee may be here already: later steps are not the first one
        after = ordered[index + 1 : index + 1 + AFTER]
        above = [point.value.surely_above(max(level + step, height)) for point in after]
        if all(above):
            return Knee(ordered[index].at, after[0].at)
    return None


def host_pages(
    huge: Sequence[Sequence[float]], small: Sequence[Sequence[float]], what: str = "walks cost"
) -> tuple[str, str]:
    """What backs this VM's memory, "4k", "2m", "mixed" or "unknown", with the sentence why.

    Args:
        huge: What an access to a buffer in 2 MiB pages costs more than without TLB misses, ns: for each footprint that
            the TLB holds in 2 MiB pages and does not hold in 4 KiB pages, a value a round.
        small: The same of 4 KiB pages, at the same footprints.
        what: What these costs are of, for the sentence.
    """
    rounds = len(small[0]) if small else 0
    if rounds < statistics.ROUNDS_MIN:
        return "unknown", "there were too few rounds or footprints for an interval"
    # A round's footprints first: what disturbs one of them does not move their median.
    of_huge, of_small = ([median(costs) for costs in zip(*side, strict=True)] for side in (huge, small))
    if not statistics.value(of_small).surely_above(0):
        return "unknown", f"{what} nothing that is clear of the noise"
    share = statistics.bootstrapped(
        rounds, lambda chosen: median(of_huge[r] for r in chosen) / max(median(of_small[r] for r in chosen), _TINY)
    )
    low, high = share.low or 0.0, share.high or 0.0
    why = f"in 2 MiB pages an access pays {share.value:.0%} ({low:.0%} to {high:.0%}) of what {what} in 4 KiB pages"
    if high - low > WIDEST:
        return "unknown", why
    if low > MOSTLY:
        return "4k", why
    if high < HARDLY:
        return "2m", why
    return ("mixed" if low > HARDLY and high < MOSTLY else "unknown"), why


_TINY = 1e-9
"""Nanoseconds: instead of a cost of nothing, below which nothing can be divided."""


@dataclass(frozen=True)
class Capacity:
    """How much of a cache a program here has."""

    bytes: float
    low: float
    high: float
    plateau_ns: Value
    """A load that this cache serves."""
    beyond_ns: Value
    """A load that goes beyond it."""


def capacity(points: Sequence[Point], least: float, most: float) -> Capacity | None:
    """Where half of the loads go beyond a cache, from a chase through ever more lines.

    The plateau is the lowest point from ``least`` (beyond the cache before it) to ``most``; what is beyond is the
    last point. The capacity is where the curve is in the middle of both, its interval where the ends of the points'
    intervals are. A cache that replaces lines in order of use drops from hits to misses there; one that replaces them
    at random has half of them at 1.39 times its size. None where the last point is not surely above the plateau.
    """
    ordered = sorted(points, key=lambda point: point.at)
    within = [point for point in ordered if least <= point.at <= most]
    if not within or any(point.value.low is None for point in ordered):
        return None
    floor = min(within, key=lambda point: point.value.value)
    last = ordered[-1]
    if last.at <= floor.at or not last.value.surely_above((floor.value.high or math.inf) * 1.3):
        return None
    rising = [point for point in ordered if point.at >= floor.at]
    half = (floor.value.value + last.value.value) / 2

    def crossing(pick: str) -> float:
        """Where the curve of one end of the intervals crosses the middle, interpolated on a logarithmic scale."""
        for before, after in pairwise(rising):
            one, two = getattr(before.value, pick), getattr(after.value, pick)
            if one < half <= two:
                share = (half - one) / (two - one)
                return float(before.at * (after.at / before.at) ** share)
        return float(rising[0].at) if getattr(rising[0].value, pick) >= half else last.at

    middle, early, late = crossing("value"), crossing("high"), crossing("low")
    return Capacity(middle, min(early, middle), max(late, middle), floor.value, last.value)
