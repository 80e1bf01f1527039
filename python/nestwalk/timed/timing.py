# SPDX-License-Identifier: MIT OR Apache-2.0
"""Rounds of a program with either kind of pages, and what they say."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nestwalk.probe import statistics
from nestwalk.timed import pages, trial

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Sequence

    from nestwalk.probe.statistics import Value
    from nestwalk.timed.held import Held
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
    held: list[Held] = field(default_factory=list)
    """The simulator's time, if there was a trace."""
    machine: str | None = None
    """What was simulated."""

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
            "machine": self.machine,
            "held": [one.to_json() for one in self.held],
            "notes": self.notes,
        }


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
