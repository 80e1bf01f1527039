# SPDX-License-Identifier: MIT OR Apache-2.0
"""How sure a difference between two runs is, from their measured windows.

Runs of one comparison execute the same accesses, so window by window one can be held against the other: what a window
does to both (a phase of the program, a cold cache) cancels out. Where windows do not match, the two intervals are taken
as independent, which makes the difference's wider than it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nestwalk.cycles import total

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nestwalk.result import Result

WINDOWS_MIN = 3
"""Fewer windows than this say nothing about their scatter."""

BATCHES_MIN = 4
"""Neighbouring windows are taken together as long as so many batches are left."""

_T95 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131),
    *(2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
"""The two-sided 95 % quantile of Student's t, for 1 to 30 degrees of freedom."""


@dataclass(frozen=True)
class Estimate:
    """A value with half of its 95 % interval; None where that is not known."""

    value: float
    ci95: float | None = None

    @property
    def differs(self) -> bool | None:
        """Whether it is certainly not 0; None if its interval is not known."""
        return None if self.ci95 is None else abs(self.value) > self.ci95

    def __sub__(self, other: Estimate) -> Estimate:
        """The difference of two independent estimates."""
        known = self.ci95 is not None and other.ci95 is not None
        return Estimate(self.value - other.value, math.hypot(self.ci95 or 0.0, other.ci95 or 0.0) if known else None)


def ratio(above: Sequence[float], below: Sequence[float]) -> Estimate | None:
    """The ratio of two sums over the same windows, with its interval; None if ``below`` sums to nothing.

    The ratio estimator (Cochran, Sampling Techniques, section 6.4) over windows and over batches of 2, 4, 8 ...
    neighbouring ones, of which the widest interval is taken, as the engine has it for a run's own values
    (`crates/machine/src/estimate.rs`).
    """
    total = sum(below)
    if not total:
        return None
    value = sum(above) / total
    batches = list(zip(above, below, strict=True))
    widths = [_half_width(batches, value)]
    while len(batches) >= 2 * BATCHES_MIN:
        batches = [
            (sum(y for y, _ in batches[at : at + 2]), sum(x for _, x in batches[at : at + 2]))
            for at in range(0, len(batches), 2)
        ]
        widths.append(_half_width(batches, value))
    return Estimate(value, max((width for width in widths if width is not None), default=None))


def _half_width(windows: Sequence[tuple[float, float]], value: float) -> float | None:
    """Half of the 95 % interval of a ratio; None for fewer than :data:`WINDOWS_MIN` windows.

    A window without a share in either sum says nothing of the ratio, and does not count.
    """
    count = sum(1 for y, x in windows if y or x)
    if count < WINDOWS_MIN:
        return None
    residuals = sum((y - value * x) ** 2 for y, x in windows)
    error = math.sqrt(residuals / (count - 1) / count) / (sum(x for _, x in windows) / count)
    return _student(count - 1) * error


def cycles(result: Result) -> list[int]:
    """Estimated cycles of each measured window."""
    return [total(window["cycles"]) for window in result.statistics["windows"]]


def match(one: Result, two: Result) -> bool:
    """Whether both measured the same windows: of so many accesses each, after as many to warm up."""
    windows = [[window["accesses"] for window in result.statistics["windows"]] for result in (one, two)]
    warm = [result.statistics["warm_accesses"] for result in (one, two)]
    return windows[0] == windows[1] and warm[0] == warm[1]


def gain(run: Result, plain: Result) -> Estimate | None:
    """The share of the time of ``plain`` that ``run`` gives back; negative where it takes more."""
    return difference(plain, run, plain)


def difference(one: Result, two: Result, plain: Result) -> Estimate | None:
    """How much less time ``two`` takes than ``one``, as a share of that of ``plain``; None if nothing was measured."""
    if match(one, plain) and match(two, plain):
        saved = [before - after for before, after in zip(cycles(one), cycles(two), strict=True)]
        return ratio(saved, cycles(plain))
    per_access = [_per_access(result) for result in (one, two, plain)]
    if None in per_access:
        return None
    before, after, base = (found for found in per_access if found is not None)
    if not base.value:
        return None
    saved_cycles = before - after
    ci95 = None if saved_cycles.ci95 is None else saved_cycles.ci95 / base.value
    return Estimate(saved_cycles.value / base.value, ci95)


def _per_access(result: Result) -> Estimate | None:
    value = result.row["cycles_per_access"]
    return None if value is None else Estimate(value, result.row["cycles_per_access_ci95"])


def walk_share(result: Result) -> Estimate | None:
    """The share of the estimated time that goes to page walks."""
    walks = [window["cycles"]["walk"] for window in result.statistics["windows"]]
    return ratio(walks, cycles(result))


def _student(degrees_of_freedom: int) -> float:
    """Student's t; beyond the table the normal quantile with its first correction."""
    if degrees_of_freedom <= len(_T95):
        return _T95[degrees_of_freedom - 1]
    return 1.96 + 2.372 / degrees_of_freedom
