# SPDX-License-Identifier: MIT OR Apache-2.0
"""Medians over rounds, with intervals that a disturbed round widens and does not move.

Everything is measured once a round, things in turn, so that what disturbs a round disturbs all things in it alike. A
value is the median over rounds; its interval is bootstrapped over them (Efron and Tibshirani, "An Introduction to the
Bootstrap", chapter 13: the percentile interval). What compares two things pairs them round by round.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import lru_cache
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

RESAMPLES = 1000
"""Of a bootstrap: the ends of a 95 % interval are then its 25 smallest and largest."""
ROUNDS_MIN = 5
"""With fewer rounds, an interval that covers 95 % cannot be had from medians: of 5, all beyond one side of the true
median has a chance of 1 in 32."""


@dataclass(frozen=True)
class Value:
    """A median with its 95 % interval; without one (None) where there were fewer than five rounds."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def ci95(self) -> float | None:
        """The longer half of the interval."""
        if self.low is None or self.high is None:
            return None
        return max(self.high - self.value, self.value - self.low)

    def span(self, decimals: int) -> str:
        """The value with its interval, for people."""
        shown = f"{self.value:.{decimals}f}"
        if self.low is None or self.high is None:
            return shown
        return f"{shown} ({self.low:.{decimals}f} to {self.high:.{decimals}f})"

    def surely_above(self, bound: float) -> bool:
        """Whether the whole interval is above ``bound``."""
        return self.low is not None and self.low > bound

    def surely_below(self, bound: float) -> bool:
        """Whether the whole interval is below ``bound``."""
        return self.high is not None and self.high < bound


def value(samples: Sequence[float]) -> Value:
    """The median of ``samples``, one a round."""
    return _value(tuple(samples))


@lru_cache(maxsize=4096)
def _value(samples: tuple[float, ...]) -> Value:
    """Tables, pictures and verdicts ask for the same ones."""
    return bootstrapped(len(samples), lambda rounds: median(samples[index] for index in rounds))


def ratio(above: Sequence[float], below: Sequence[float]) -> Value:
    """The median over rounds of the quotient of two things, both measured in each round."""
    return value([a / b for a, b in zip(above, below, strict=True)])


def difference(one: Sequence[float], other: Sequence[float]) -> Value:
    """The median over rounds of the difference of two things, both measured in each round."""
    return value([a - b for a, b in zip(one, other, strict=True)])


def bootstrapped(rounds: int, estimate: Callable[[Sequence[int]], float]) -> Value:
    """``estimate`` of all rounds, given by their numbers, with its interval over resampled ones."""
    found = estimate(range(rounds))
    if rounds < ROUNDS_MIN:
        return Value(found)
    dice = random.Random(rounds)  # noqa: S311 (the same rounds give the same interval)
    resampled = sorted(estimate(dice.choices(range(rounds), k=rounds)) for _ in range(RESAMPLES))
    tail = RESAMPLES * 25 // 1000
    return Value(found, min(found, resampled[tail]), max(found, resampled[-tail - 1]))
