# SPDX-License-Identifier: MIT OR Apache-2.0
"""A sweep: planned, made, and what came of it."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nestwalk import _native, checks, conduct, content_store, data, orders, pool, progress
from nestwalk.conduct import Conductor, Failure, Means, Tally
from nestwalk.errors import NestwalkError
from nestwalk.result import Result
from nestwalk.sweeps import spec as specs
from nestwalk.sweeps.jobs import Builder

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl

    from nestwalk.orders import Wanted
    from nestwalk.sweeps.spec import Point, Spec

UNAVAILABLE = "unavailable, because "
NOTHING_TO_RUN = "the conditions leave out every run; take one of the [[skip]] entries out"

ROW_KEYS = (
    "walks_per_kiloaccess",
    "walk_latency_cycles",
    "walk_latency_cycles_ci95",
    "references_per_walk",
    "memory_served_share",
    "walk_cycles_per_access",
    "walk_cycles_per_access_ci95",
    "cycles_per_access",
    "cycles_per_access_ci95",
    "host_pt_fragmentation",
)
"""Of a result's row, what a sweep's table has; the frame has all of it."""


@dataclass(frozen=True)
class Estimate:
    """What the runs to be made will take, from earlier runs of their kinds."""

    runs: int
    """To be made."""
    known: int
    """Of them, those whose kind has been run before."""
    seconds: float
    """Of one processor, for the known ones."""
    memory_bytes: int
    """Of the largest known one."""

    @property
    def unavailable(self) -> str | None:
        """Why there is no estimate for all runs; None if there is."""
        if self.known == self.runs:
            return None
        what = f"{self.runs - self.known} of them are of kinds" if self.known else "they are of kinds"
        return f"{UNAVAILABLE}{what} that the store has no earlier run of"

    def to_json(self, slots: int) -> dict[str, Any]:
        """For scripts; ``slots`` runs go at a time."""
        unavailable = self.unavailable
        return {
            "cpu_seconds": round(self.seconds, 1) if unavailable is None else unavailable,
            "seconds": round(self.seconds / slots, 1) if unavailable is None else unavailable,
            "memory_bytes_a_run": self.memory_bytes if self.known else unavailable or 0,
            "known_runs": self.known,
            "cpu_seconds_of_known_runs": round(self.seconds, 1),
        }


@dataclass(frozen=True)
class Plan:
    """A sweep to be made."""

    spec: Spec
    quick: bool
    points: tuple[Point, ...]
    conductor: Conductor
    means: Means

    @property
    def wanted(self) -> Sequence[Wanted]:
        """The runs, one a point."""
        return self.conductor.wanted

    @property
    def titles(self) -> list[str]:
        """What the runs are, for people."""
        return [point.title for point in self.points]

    @cached_property
    def missing(self) -> list[Wanted]:
        """The orders whose results are not kept, as far as that shows without reading them."""
        store = self.conductor.store
        kept = set(store.keys()) if store is not None else set()
        return [one for one in self.conductor.unique if one.order.key not in kept]

    @cached_property
    def populations(self) -> int:
        """Memories that have to be populated for what is missing, if each is populated once."""
        return len({one.populated_by for one in self.missing})

    @cached_property
    def estimate(self) -> Estimate:
        """What is missing will take."""
        store = self.conductor.store
        known, seconds, memory_bytes = 0, 0.0, 0
        costs: dict[str, list[tuple[float, int]]] = {}
        for one in self.missing:
            kind = one.order.kind
            if kind not in costs:
                costs[kind] = store.costs(kind) if store is not None else []
            if costs[kind]:
                known += 1
                seconds += sum(cost[0] for cost in costs[kind]) / len(costs[kind])
                memory_bytes = max(memory_bytes, *(cost[1] for cost in costs[kind]))
        return Estimate(len(self.missing), known, seconds, memory_bytes)

    def slots(self) -> int:
        """Runs at a time here, for the estimate."""
        return self.means.workers or self.means.jobs or pool.processors()

    def to_json(self) -> dict[str, Any]:
        """What ``nestwalk sweep --plan --json`` prints."""
        unique = len(self.conductor.unique)
        return {
            "schema": 1,
            "version": _native.version(),
            "model": _native.model(),
            "title": self.spec.title,
            "quick": self.quick,
            "grid": self.spec.size,
            "runs": len(self.points),
            "duplicates": len(self.points) - unique,
            "kept": unique - len(self.missing),
            "to_make": len(self.missing),
            "populations": self.populations,
            "axes": {name: self.values(name) for name in self.spec.columns},
            "results": self.conductor.store.place if self.conductor.store else content_store.NONE,
            "estimate": self.estimate.to_json(self.slots()),
        }

    def values(self, axis: str) -> list[Any]:
        """What an axis is in these runs, in the order of the specification."""
        return list(dict.fromkeys(point.values[axis] for point in self.points if axis in point.values))


def plan(spec: str | Path | Spec, *, quick: bool = False, means: Means | None = None, must_keep: bool = True) -> Plan:
    """What :func:`sweep` will do; everything is checked that shows without a run.

    Raises:
        NestwalkError: When the specification, or a run of it, is not what it should be.
    """
    read = spec if isinstance(spec, specs.Spec) else specs.load(spec)
    points = tuple(read.points())
    if not points:
        raise NestwalkError(f"{read.source.file}: {NOTHING_TO_RUN}")
    chosen = means or Means()
    wanted: list[Wanted] = []
    checked: set[str] = set()
    # Changed machine and cost files are there as long as they are read; what is made from them has their texts.
    with tempfile.TemporaryDirectory(prefix="nestwalk-sweep-") as folder:
        builder = Builder(read, Path(folder), quick=quick)
        for number, point in enumerate(points, 1):
            job = builder.job(point, number)
            wanted.append(orders.of(job))
            if wanted[-1].order.kind not in checked:
                checked.add(wanted[-1].order.kind)
                check(job)
    return Plan(read, quick, points, Conductor(wanted, chosen.store(), must_keep=must_keep), chosen)


def check(job: pool.Job) -> None:
    """Lets the engine look at a job and at the files that it names.

    Raises:
        NestwalkError: When it refuses it.
    """
    try:
        _native.check(job.scenario, str(job.path), str(data.TRACES))
    except NestwalkError as error:
        raise NestwalkError(job.explain(str(error))) from error


@dataclass(frozen=True, repr=False)
class Sweep:
    """A sweep that was made: its rows, as a frame, as a page, on disk."""

    plan: Plan
    rows: list[dict[str, Any]]
    """One a point, in the order of the plan: ``run`` (its number), the axes, ``key``, and the row of its result."""
    tally: Tally
    failures: list[Failure]

    @property
    def frame(self) -> pl.DataFrame:
        """The rows as a frame. Axes that are numbers are so; a point that an axis does not have has null there."""
        import polars as pl

        columns = self.plan.spec.columns
        names = dict.fromkeys(["run", *columns, "key", "error", *(key for row in self.rows for key in row)])
        schema: dict[str, Any] = dict.fromkeys(names, pl.Float64)
        schema |= {"run": pl.Int64, "key": pl.String, "error": pl.String}
        for name in columns:
            kinds = {type(row[name]) for row in self.rows if row.get(name) is not None}
            whole, numbers = kinds <= {int}, kinds <= {int, float}
            schema[name] = pl.Int64 if whole and kinds else pl.Float64 if numbers and kinds else pl.String
        texts = {name for name in columns if schema[name] == pl.String}
        rows = [
            {name: str(row[name]) if name in texts and row.get(name) is not None else row.get(name) for name in names}
            for row in self.rows
        ]
        return pl.DataFrame(rows, schema=schema)

    def to_json(self) -> dict[str, Any]:
        """What ``nestwalk sweep --json`` prints."""
        about = self.plan.to_json()
        keys = ("schema", "version", "model", "title", "quick", "duplicates", "axes", "results")
        return {
            **{key: about[key] for key in keys},
            "runs": len(self.plan.points),
            "made": self.tally.made,
            "reused": self.tally.reused,
            "failed": self.tally.failed,
            "failures": [{"run": one.index + 1, "error": one.message} for one in self.failures],
            "seconds_made": round(self.tally.seconds_made, 3),
            "seconds_reused": round(self.tally.seconds_reused, 3),
            "rows": self.rows,
        }

    def page(self) -> str:
        """All of it as one HTML page that needs no other file."""
        from nestwalk.sweeps import page

        return page.render(self)

    def save(self, folder: str | Path, *, report: bool = True) -> Path:
        """Writes ``results.parquet``, ``results.json`` and ``report.html``; whole results are in the store."""
        from nestwalk import store

        page = self.page if report else None
        return store.save(checks.path("folder", folder), self.frame, self.to_json(), [], page)

    def __repr__(self) -> str:
        """What was made, for a notebook: the rows are in ``frame``."""
        return f"<Sweep {self.plan.spec.title!r}: {len(self.rows)} runs, {self.tally.failed} failed>"


def execute(plan: Plan, *, watcher: pool.Watcher | None = None, retries: int = conduct.RETRIES) -> Sweep:
    """Makes what is missing of ``plan``. A run that fails does not keep the others from being made.

    Raises:
        NestwalkError: When results cannot be kept; those that were stay, and another try goes on from there.
        KeyboardInterrupt: On Ctrl-C; the same holds.
    """
    told = watcher or pool.Silent()
    conductor = plan.conductor
    rows: dict[int, dict[str, Any]] = {}

    def head(index: int) -> dict[str, Any]:
        return {"run": index + 1, **dict(plan.points[index].values), "key": plan.wanted[index].order.key}

    def take(index: int, result: dict[str, Any]) -> None:
        row = {key: value for key, value in Result(result).row.items() if key != "configuration"}
        rows[index] = {**head(index), **row}

    def fail(failure: Failure) -> None:
        for index in conductor.indices(plan.wanted[failure.index]):
            rows[index] = {**head(index), "error": failure.message}

    missing = conductor.find(take, told)
    if missing:
        site = plan.means.site()
        try:
            conductor.make(missing, site, take, told, on_failure=fail, retries=retries)
        finally:
            site.close()
    ordered = [rows[index] for index in range(len(plan.points))]
    return Sweep(plan, ordered, conductor.tally, sorted(conductor.failures, key=lambda one: one.index))


def sweep(
    spec: str | Path,
    *,
    quick: bool = False,
    jobs: int | None = None,
    results: str | None = None,
    dask: str | None = None,
    workers: int | None = None,
) -> Sweep:
    """Makes the runs of a specification that are not kept from earlier.

    Args:
        spec: The specification's file (docs/sweeps.md).
        quick: Measure less.
        jobs: Runs at a time on this machine; as many as there are processors if None. Results do not depend on it.
        results: Where results are kept: a directory or a URL of fsspec; ``"none"`` keeps nothing. The default is
            ``$NESTWALK_RESULTS``, else ``~/.cache/nestwalk/results``.
        dask: The address of a Dask scheduler, or ``"slurm"``, ``"kubernetes"``, ``"ssh:HOST,HOST"`` to start one.
        workers: Of a cluster that is started.

    Raises:
        NestwalkError: When something is wrong with the input; one line says what, where, and what to do.
    """
    made = plan(spec, quick=quick, means=Means(jobs, results, dask, workers))
    with progress.of_notebook(made.titles) as watcher:
        return execute(made, watcher=watcher)
