# SPDX-License-Identifier: MIT OR Apache-2.0
"""Rounds of a program with either kind of pages, and what they say."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nestwalk.probe import statistics
from nestwalk.timed import pages, trial

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Sequence

    from nestwalk.probe.statistics import Value
    from nestwalk.timed.held import Held, Simulation
    from nestwalk.timed.pages import Means, Pages
    from nestwalk.timed.trial import Trial

MEASURES = {
    "own_s": "its own time, s",
    "user_s": "user time, s",
    "kernel_s": "kernel time, s",
    "elapsed_s": "elapsed, s",
    "faults": "page faults",
}
"""What is measured of a run, and what tables call it."""
SECONDS_MIN = 0.5
"""Of a run: shorter ones are mostly start-up."""


@dataclass
class Timed:
    """A program that was timed."""

    words: Sequence[str]
    means: Means
    """How it got its huge pages."""
    trials: dict[Pages, list[Trial]]
    """A run a round."""
    huge_bytes: dict[Pages, int | None]
    """The most memory that lay in huge pages at a time, by a run that was not timed."""
    simulation: Simulation | None = None
    """The simulator's time, if there was a trace."""

    def samples(self, measure: str, which: Pages) -> list[float] | None:
        """One number a round; None of a program that was not asked."""
        found = [getattr(one, measure) for one in self.trials[which]]
        return None if None in found else found

    def value(self, measure: str, which: Pages) -> Value | None:
        """The median over rounds."""
        found = self.samples(measure, which)
        return None if found is None else statistics.value(found)

    def ratio(self, measure: str) -> Value | None:
        """With 4 KiB pages by with huge ones, round by round; None where there is nothing to divide by."""
        small, huge = (self.samples(measure, which) for which in pages.BOTH)
        if small is None or huge is None or not all(huge):
            return None
        return statistics.ratio(small, huge)

    @property
    def held(self) -> Sequence[Held]:
        """What was measured beside what was simulated, by host; nothing without a trace."""
        return self.simulation.held if self.simulation else ()

    def cycles(self, which: Pages) -> list[float] | None:
        """Cycles an access, one number a round: user time by the accesses of the trace's whole program.

        None without a trace, and where the program's own time is that of a part of which the accesses are not known.
        """
        seconds = self.samples("user_s", which)
        if self.simulation is None or self.judged != "user_s" or not self.simulation.accesses or seconds is None:
            return None
        return [one * self.simulation.mhz * 1e6 / self.simulation.accesses for one in seconds]

    def shares(self, held: Held) -> dict[str, Value] | None:
        """The ``[timing]`` with which a host's simulated times would be those measured, by key of the machine's file.

        The median over rounds. None where :meth:`cycles` is, and where no shares do it in half of the rounds or more.
        """
        small, huge = (self.cycles(which) for which in pages.BOTH)
        if small is None or huge is None:
            return None
        found = [held.shares_for(*both) for both in zip(small, huge, strict=True)]
        some = [one for one in found if one is not None]
        if 2 * len(some) <= len(found):
            return None
        return {
            "data_overlap_permille": statistics.value([one.overlap for one in some]),
            "walk_critical_permille": statistics.value([one.critical for one in some]),
        }

    @property
    def judged(self) -> str:
        """The measure that the simulator is held against: what the program says, else its processor time.

        User time and not elapsed time: the simulator's is that of the program's own accesses.
        """
        return "user_s" if self.samples("own_s", "4k") is None else "own_s"

    @property
    def notes(self) -> list[str]:
        """What to know of it: a sentence each."""
        found = []
        if self.huge_bytes["huge"] == 0:
            why = " (only what malloc hands out can be asked for: glibc 2.35)" if self.means == "madvise" else ""
            found.append(f"The program got no huge pages{why}: there is nothing to compare.")
        shortest = min(one.user_s + one.kernel_s for some in self.trials.values() for one in some)
        if shortest < SECONDS_MIN and self.judged == "user_s":
            found.append(f"A run takes {shortest:.2f} s of processor time: little more than its start.")
        return found

    def to_json(self) -> dict[str, Any]:
        """Everything, for scripts."""
        return {
            "schema": 1,
            "program": list(self.words),
            "means": self.means,
            "rounds": len(self.trials["4k"]),
            "judged": self.judged,
            "measures": {
                measure: {
                    **{which: _plain(self.value(measure, which)) for which in pages.BOTH},
                    "ratio": _plain(self.ratio(measure)),
                }
                for measure in MEASURES
            },
            "huge_bytes": dict(self.huge_bytes),
            "machine": self.simulation.machine if self.simulation else None,
            "cycles_per_access": {which: _plain(_value(self.cycles(which))) for which in pages.BOTH},
            "held": [
                {
                    **one.to_json(),
                    "timing_measured": {key: _plain(share) for key, share in shares.items()}
                    if (shares := self.shares(one))
                    else None,
                }
                for one in self.held
            ],
            "notes": self.notes,
        }


def _value(samples: Sequence[float] | None) -> Value | None:
    return None if samples is None else statistics.value(samples)


def _plain(value: Value | None) -> dict[str, float | None] | None:
    return None if value is None else {"value": value.value, "low": value.low, "high": value.high}


def time(
    words: Sequence[str],
    *,
    rounds: int,
    own: re.Pattern[str] | None = None,
    seed: int = 1,
    advanced: Callable[[float], None] = lambda _: None,
) -> Timed:
    """Runs a program twice a round, in an order that is drawn each round.

    Before it are two runs that are not timed: they read the program's files into memory, and see whether it gets huge
    pages.

    Raises:
        NestwalkError: When no program gets huge pages here, or a run fails.
    """
    how = pages.means()
    total, count = 2 + 2 * rounds, 0

    def step() -> None:
        nonlocal count
        count += 1
        advanced(count / total)

    huge: dict[Pages, int | None] = {}
    for which in pages.BOTH:
        huge[which] = trial.huge_bytes(words, which, how)
        step()
    trials: dict[Pages, list[Trial]] = {which: [] for which in pages.BOTH}
    dice = random.Random(seed)  # noqa: S311 (an order, no secret)
    for _ in range(rounds):
        for which in dice.sample(pages.BOTH, k=2):
            trials[which].append(trial.run(words, which, how, own))
            step()
    return Timed(words, how, trials, huge)
