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

from nestwalk import _native
from nestwalk.cycles import total

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nestwalk.counters import Modelled
    from nestwalk.result import Result

    Model = tuple[list[tuple[float, float]], tuple[float, float]]


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


def ratio(above: Sequence[float], below: Sequence[float], model: Model | None = None) -> Estimate | None:
    """The ratio of two sums over the same windows, with its interval; None if ``below`` sums to nothing.

    As the engine has it for a run's own values (`crates/machine/src/estimate.rs`). ``model``: what a capture's model
    says of the windows, as :func:`modelled` makes it.
    """
    value, ci95 = _native.ratio(list(zip(above, below, strict=True)), model)
    return None if value is None else Estimate(value, ci95)


def modelled(result: Result) -> Model | None:
    """What the model of a capture counted of each measured window and of all: walk cycles, and all its cycles.

    None where no model chose the windows. What a technique saves goes with the walk cycles, so they explain how windows
    differ. A model's cycles have one for each access, in place of the instructions.
    """
    program = result.statistics.get("modelled_program")
    windows = [window.get("modelled") for window in result.statistics["windows"]]
    known = [_cycles_of_walks(counted) for counted in windows if counted]
    return None if program is None or len(known) < len(windows) else (known, _cycles_of_walks(program))


def _cycles_of_walks(counted: Modelled) -> tuple[float, float]:
    return counted["walk_cycles"], counted["accesses"] + counted["walk_cycles"] + counted["data_cycles"]


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
        return ratio(saved, cycles(plain), modelled(plain))
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
    return ratio(walks, cycles(result), modelled(result))
