# SPDX-License-Identifier: MIT OR Apache-2.0
"""Making runs: what is kept already is found, the rest goes to a site in groups, and is kept as it comes in.

A site takes a group and gives a :class:`concurrent.futures.Future` for it: this machine, by threads with worker
processes (:class:`nestwalk.pool.LocalExecutor`), or a cluster (:mod:`nestwalk.cluster`). Only this process writes to
the store, so a worker needs nothing but its order.
"""

from __future__ import annotations

import queue
from collections import deque
from concurrent.futures import CancelledError
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from nestwalk import content_store, orders, pool, room, say
from nestwalk.errors import NestwalkError
from nestwalk.pool import Outcome
from nestwalk.room import Room

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from nestwalk.content_store import ContentStore
    from nestwalk.orders import Order, Wanted
    from nestwalk.pool import Job, Watcher

RETRIES = 2
"""How often a run is tried again whose process or machine was lost."""


@dataclass(frozen=True)
class Means:
    """How and where runs are made, as the command line says it."""

    jobs: int | None = None
    """Runs at a time on this machine; as many as there are processors if None."""
    results: str | None = None
    """Where results are kept: a directory, a URL, ``none``; the default place if None."""
    dask: str | None = None
    """A cluster instead of this machine: see :mod:`nestwalk.cluster`."""
    workers: int | None = None
    """Of a cluster that is started for these runs."""

    def check(self) -> None:
        """Refuses a number of runs at a time that is none.

        Raises:
            NestwalkError: When it is no whole number above 0.
        """
        if self.jobs is not None:
            pool.check_count(self.jobs)

    def store(self) -> ContentStore | None:
        """The store of results."""
        return content_store.open_store(self.results)

    def site(self) -> Site:
        """Where runs are made."""
        if self.dask is not None:
            from nestwalk import cluster

            return cluster.connect(self.dask, self.workers, self.results)
        if self.workers is not None:
            raise NestwalkError("--workers is for a cluster that --dask starts; for this machine give --jobs")
        return Local(pool.check_count(pool.processors() if self.jobs is None else self.jobs))


class Site(Protocol):
    """A place that makes runs."""

    @property
    def slots(self) -> int:
        """Groups at a time."""

    largest_group: int | None
    """Runs of a group, at most."""

    room: Room
    """The memory that its groups share."""

    def submit(
        self, group: Sequence[Order], tell: Callable[[int, Outcome | float | None], None]
    ) -> Future[list[Outcome]]:
        """Hands a group over. ``tell`` may be told how it gets on, from any thread."""

    def recover(self, error: BaseException) -> bool:
        """After a group was lost with ``error``: whether it can be submitted again."""

    def close(self) -> None:
        """Ends what is under way, and what was started."""


class Local:
    """This machine."""

    largest_group: int | None = None

    def __init__(self, processes: int) -> None:
        """For so many runs at a time."""
        self.slots = processes
        self.room = Room(room.free_bytes(), processes)
        self._executor = pool.LocalExecutor(processes)

    def submit(
        self, group: Sequence[Order], tell: Callable[[int, Outcome | float | None], None]
    ) -> Future[list[Outcome]]:
        """As :class:`Site`."""
        return self._executor.submit(pool.carry_out, group, tell, None, self._executor.workers)

    def recover(self, error: BaseException) -> bool:  # noqa: ARG002
        """As :class:`Site`: a thread is not lost but by a bug."""
        return False

    def close(self) -> None:
        """As :class:`Site`."""
        self._executor.stop()


@dataclass
class Tally:
    """What became of some runs."""

    made: int = 0
    reused: int = 0
    failed: int = 0
    seconds_made: float = 0.0
    """Of all runs made, added up."""
    seconds_reused: float = 0.0
    """That the reused ones took when they were made."""


@dataclass
class Failure:
    """A run that came to nothing."""

    index: int
    message: str
    """One line, with the place that the user knows."""


class Conductor:
    """Makes the runs of some jobs. Those that depend on the same have one order and are made once."""

    def __init__(self, wanted: Sequence[Wanted], store: ContentStore | None, *, must_keep: bool = False) -> None:
        """For ``wanted``. With ``must_keep`` a result that cannot be kept ends everything; else it is a warning."""
        self.wanted = wanted
        self.store = store
        self.tally = Tally()
        self.failures: list[Failure] = []
        self._must_keep = must_keep
        self._indices: dict[str, list[int]] = {}
        for index, one in enumerate(wanted):
            self._indices.setdefault(one.order.key, []).append(index)
        self._warned = False

    @property
    def unique(self) -> list[Wanted]:
        """The first run of each order."""
        return [self.wanted[indices[0]] for indices in self._indices.values()]

    def find(self, take: Callable[[int, dict[str, Any]], None], watcher: Watcher) -> list[Wanted]:
        """Hands what is kept to ``take``, and returns what has to be made."""
        missing: list[Wanted] = []
        for one in self.unique:
            entry = self._kept(one.order.key)
            if entry is None:
                missing.append(one)
                continue
            self.tally.reused += 1
            self.tally.seconds_reused += entry.about.get("seconds", 0.0)
            result = entry.result
            for index in self._indices[one.order.key]:
                watcher.started(index)
                take(index, self.wanted[index].own(result))
                watcher.finished(index)
        return missing

    def _kept(self, key: str) -> content_store.Entry | None:
        if self.store is None:
            return None
        try:
            return self.store.get(key)
        except NestwalkError as error:
            self._give_up(error)
            return None

    def _give_up(self, error: NestwalkError) -> None:
        """Goes on without the store, or not at all."""
        if self._must_keep:
            raise error
        if not self._warned:
            say.warn(f"{error}; going on, but nothing is kept for next time")
        self._warned = True
        self.store = None

    def make(
        self,
        missing: Sequence[Wanted],
        site: Site,
        take: Callable[[int, dict[str, Any]], None],
        watcher: Watcher,
        *,
        on_failure: Callable[[Failure], None],
        retries: int = RETRIES,
    ) -> None:
        """Makes the runs of ``missing`` at ``site``; each result goes to the store and to ``take``.

        Raises:
            NestwalkError: What ``on_failure`` raises; or when a result cannot be kept that must be.
            KeyboardInterrupt: On Ctrl-C.
        """
        run = _Run(
            self, self._with_memory(missing), site, take=take, watcher=watcher, on_failure=on_failure, retries=retries
        )
        run.to_its_end()

    def _with_memory(self, missing: Sequence[Wanted]) -> list[Wanted]:
        """Orders that say how much memory earlier runs of their kinds needed, so that they can be placed."""
        if self.store is None:
            return list(missing)
        kinds = {one.order.kind for one in missing}
        most = {kind: max((memory for _, memory in self.store.costs(kind)), default=0) for kind in kinds}
        return [
            replace(one, order=replace(one.order, memory_bytes=most[one.order.kind] or one.order.memory_bytes))
            for one in missing
        ]

    def settle(self, one: Wanted, outcome: Outcome, take: Callable[[int, dict[str, Any]], None]) -> Failure | None:
        """Keeps what a run came to and hands it on; a failure is returned."""
        if outcome.result is None:
            self.tally.failed += 1
            failure = Failure(self._indices[one.order.key][0], explained(one.job, outcome))
            self.failures.append(failure)
            return failure
        self.tally.made += 1
        self.tally.seconds_made += outcome.seconds
        if self.store is not None:
            try:
                self.store.put(one.order, outcome.result, seconds=outcome.seconds, memory_bytes=outcome.memory_bytes)
            except NestwalkError as error:
                self._give_up(error)
        for index in self._indices[one.order.key]:
            take(index, self.wanted[index].own(outcome.result))
        return None

    def indices(self, one: Wanted) -> list[int]:
        """All jobs that one result is for."""
        return self._indices[one.order.key]


class _Run:
    """Groups on their way through a site."""

    def __init__(
        self,
        conductor: Conductor,
        missing: Sequence[Wanted],
        site: Site,
        *,
        take: Callable[[int, dict[str, Any]], None],
        watcher: Watcher,
        on_failure: Callable[[Failure], None],
        retries: int,
    ) -> None:
        self._conductor, self._site, self._take, self._watcher = conductor, site, take, watcher
        self._on_failure, self._retries = on_failure, retries
        work = pool.groups([one.populated_by for one in missing], site.slots, site.largest_group)
        self._todo = deque([missing[index] for index in group] for group in work)
        self._events: queue.SimpleQueue[tuple[str, int, Any]] = queue.SimpleQueue()
        self._under_way: dict[int, tuple[list[Wanted], Future[list[Outcome]]]] = {}
        self._settled: dict[int, int] = {}
        self._tries: dict[str, int] = {}
        self._begun: set[int] = set()
        self._number = 0

    def to_its_end(self) -> None:
        """Until nothing is left to be done."""
        while self._todo or self._under_way:
            # Twice as many as there are places, so that none waits for this thread; the rest can still be cancelled.
            while self._todo and len(self._under_way) < 2 * self._site.slots + 1:
                group = self._next()
                if group is None:
                    break
                self._submit(group)
            what, ticket, about = self._events.get()
            if ticket not in self._under_way:
                continue
            if what == "told":
                self._told(ticket, *about)
            else:
                self._ended(ticket)

    def _next(self) -> list[Wanted] | None:
        """What there is memory for beside what is under way; None if that must end first."""
        under_way = [_orders(group) for group, _ in self._under_way.values()]
        number = self._site.room.choose(map(_orders, self._todo), under_way)
        if number is None:
            return None
        group = self._todo[number]
        del self._todo[number]
        return group

    def _submit(self, group: list[Wanted]) -> None:
        self._number += 1
        ticket = self._number

        def tell(number: int, about: Outcome | float | None) -> None:
            self._events.put(("told", ticket, (number, about)))

        future = self._site.submit(_orders(group), tell)
        self._under_way[ticket] = (group, future)
        self._settled[ticket] = 0
        future.add_done_callback(lambda _: self._events.put(("ended", ticket, None)))

    def _told(self, ticket: int, number: int, about: Outcome | float | None) -> None:
        group, _ = self._under_way[ticket]
        if isinstance(about, Outcome):
            self._settle(ticket, group[number], about)
            return
        for index in self._conductor.indices(group[number]):
            self._begin(index)
            if about is not None:
                self._watcher.advanced(index, about)

    def _begin(self, index: int) -> None:
        if index not in self._begun:
            self._begun.add(index)
            self._watcher.started(index)

    def _ended(self, ticket: int) -> None:
        """A group is through: what was not told comes from its future; what is lost goes back to be done."""
        group, future = self._under_way[ticket]
        try:
            outcomes = future.result()
        except (Exception, CancelledError) as error:  # noqa: BLE001 (whatever a site raises)
            rest = group[self._settled[ticket] :]
            del self._under_way[ticket]
            again = self._site.recover(error)
            for one in rest:
                self._again(one, Outcome(error=f"it was lost: {_line(error)}", died=again))
            return
        for one, outcome in list(zip(group, outcomes, strict=True))[self._settled[ticket] :]:
            self._settle(ticket, one, outcome)
        del self._under_way[ticket]

    def _settle(self, ticket: int, one: Wanted, outcome: Outcome) -> None:
        self._settled[ticket] += 1
        if outcome.result is not None:
            self._site.room.measured(one.order, outcome.memory_bytes)
        if outcome.result is None and outcome.died:
            self._again(one, outcome)
        else:
            self._conclude(one, outcome)

    def _again(self, one: Wanted, outcome: Outcome) -> None:
        """Another try, alone, so that it takes nothing else with it; or the end of it."""
        tries = self._tries[one.order.key] = self._tries.get(one.order.key, 0) + 1
        if outcome.died and tries <= self._retries:
            say.note(f"{one.job.name}: {outcome.error.partition(';')[0]}; try {tries + 1} of {self._retries + 1}")
            self._todo.append([one])
        else:
            self._conclude(one, outcome)

    def _conclude(self, one: Wanted, outcome: Outcome) -> None:
        indices = self._conductor.indices(one)
        for index in indices:
            self._begin(index)
        failure = self._conductor.settle(one, outcome, self._take)
        if failure is not None:
            self._on_failure(failure)
        for index in indices:
            self._watcher.finished(index)


def _orders(group: Sequence[Wanted]) -> list[Order]:
    return [one.order for one in group]


def _line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def explained(job: Job, outcome: Outcome) -> str:
    """What went wrong with a run, with the place that the user knows."""
    path, text = outcome.written
    message = outcome.error
    if path and message.startswith(path):
        # The scenario was written anew for the engine: its lines lead to paths of keys, and those to the user's own.
        if job.origin is not None:
            return pool.Job(job.name, text, Path(path), job.origin).explain(message)
        message = str(job.path) + message.removeprefix(path)
    return f"{job.name}: {message}"


def results(jobs: Sequence[Job], means: Means, watcher: Watcher, *, retries: int = 0) -> list[dict[str, Any]]:
    """The results of all jobs, in their order.

    Raises:
        NestwalkError: The first run that fails; the others are stopped.
        KeyboardInterrupt: On Ctrl-C, after all workers are gone.
    """
    made: dict[int, dict[str, Any]] = {}

    def take(index: int, result: dict[str, Any]) -> None:
        made[index] = result

    def fail(failure: Failure) -> None:
        raise NestwalkError(failure.message)

    conductor = Conductor([orders.of(job) for job in jobs], means.store())
    missing = conductor.find(take, watcher)
    if conductor.tally.reused:
        say.note(f"{conductor.tally.reused} of {len(conductor.unique)} runs were made before: {kept_at(conductor)}")
    if missing:
        site = means.site()
        try:
            conductor.make(missing, site, take, watcher, on_failure=fail, retries=retries)
        finally:
            site.close()
    return [made[index] for index in range(len(jobs))]


def kept_at(conductor: Conductor) -> str:
    """Where results are kept, for a message."""
    return f"their results are in {conductor.store.place}" if conductor.store else "nothing is kept"
