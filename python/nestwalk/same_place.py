# SPDX-License-Identifier: MIT OR Apache-2.0
"""Runs that are compared are measured at the same place of their program.

A warm-up without a length of its own ends when what is measured no longer drifts, and that depends on the TLBs, the
caches and the tables. Of a program that is not the same all the time, two runs that ended it at different accesses
measure two programs. So the runs that were warm first are made once more, and go on warming up until the last one ended
its warm-up (``sampling.warm_accesses_min``). Whether they are warm then, too, is the engine's to say: what it found is
kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nestwalk import conduct, pool, say
from nestwalk.result import Result

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    from nestwalk.conduct import Means

FACTOR = 1.5
"""Warm-ups end at accesses that have doubled since the check before, or some more, as steps end at whole batches."""


def results(
    compared: Sequence[Hashable], job: Callable[[int, int], pool.Job], means: Means, watcher: pool.Watcher
) -> list[Result]:
    """Makes some runs, and once more those that were warm before a run that they are compared with.

    Args:
        compared: For each run, what it is compared by: runs of the same are compared with each other.
        job: The run of a number, with a warm-up of at least so many accesses, if that has no length of its own.
        means: How they are made.
        watcher: Is told of each run as often as it is made.
    """
    made = _made([job(number, 0) for number in range(len(compared))], means, watcher)
    together: dict[Hashable, list[int]] = {}
    for number, by in enumerate(compared):
        together.setdefault(by, []).append(number)
    again = {
        numbers[number]: accesses
        for numbers in together.values()
        for number, accesses in warm_accesses_min([made[number] for number in numbers]).items()
    }
    if again:
        say.note(f"{len(again)} of {len(made)} runs warm up for longer, as those they are compared with did")
        longer = [job(number, accesses) for number, accesses in again.items()]
        for number, result in zip(again, _made(longer, means, pool.Part(watcher, list(again))), strict=True):
            made[number] = result
    return made


def _made(work: Sequence[pool.Job], means: Means, watcher: pool.Watcher) -> list[Result]:
    return [Result(value) for value in conduct.results(work, means, watcher)]


def warming(table: Mapping[str, Any], accesses: int) -> dict[str, Any]:
    """The scenario ``table`` with a warm-up of at least so many ``accesses``, if that has no length of its own."""
    if not accesses:
        return dict(table)
    return {**table, "sampling": {**table.get("sampling", {}), "warm_accesses_min": accesses}}


def warm_accesses_min(compared: Sequence[Result]) -> dict[int, int]:
    """How long the warm-ups of some of the runs must last, in accesses, by their numbers among ``compared``.

    The run that warmed up the longest decides, though it may never have been warm. One that may not warm up for so long
    stays where it is; both :func:`differ` then.
    """
    ends = {number: end for number, run in enumerate(compared) if (end := _end(run)) is not None}
    longest = max(ends.values(), default=0)
    asked: dict[int, int] = {}
    for number, end in ends.items():
        # A warm-up ends with a batch, and so a little behind what its scenario allows.
        most = min(longest, int(compared[number].warm_up["accesses_max"]))
        if _apart(end, longest) and not _apart(most, longest):
            asked[number] = most
    return asked


def differ(one: Result, other: Result) -> bool:
    """Whether two runs of a program were measured at different places of it, because their warm-ups had no length."""
    first, second = _end(one), _end(other)
    return first is not None and second is not None and _apart(first, second)


def _end(run: Result) -> int | None:
    """At which access its warm-up ended; None if the scenario gives its length."""
    return None if run.warm_up.get("accesses_max") is None else int(run.statistics["warm_accesses"])


def _apart(one: int, other: int) -> bool:
    return max(one, other) >= FACTOR * min(one, other) > 0
