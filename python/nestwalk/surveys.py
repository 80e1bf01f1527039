# SPDX-License-Identifier: MIT OR Apache-2.0
"""A matrix over several programs: which technique is worth what, to whom, and who has to change something for it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nestwalk import _native, checks, comparisons, data, files, pool, program, progress
from nestwalk.comparisons import DEFAULT_MACHINE, DEFAULT_SEED, Comparison
from nestwalk.conduct import Means
from nestwalk.errors import SEED_MAX, NestwalkError, unknown
from nestwalk.matrix import EVERYTHING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl

    from nestwalk.matrix import Matrix
    from nestwalk.result import Result


@dataclass(frozen=True)
class Plan:
    """A survey to be made."""

    matrix: Matrix
    plans: tuple[comparisons.Plan, ...]
    """A comparison for each program."""

    @property
    def titles(self) -> list[str]:
        """What the runs are, for people: a program's after the other's."""
        return [f"{plan.program.name}: {cell.title}" for plan in self.plans for cell in plan.matrix.cells]


@dataclass(frozen=True, repr=False)
class Survey:
    """A survey that was made: its rows, as a frame, as a page, on disk."""

    plan: Plan
    comparisons: tuple[Comparison, ...]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of all comparisons, each with its ``program``, and ``against_baseline``.

        That is its estimated time over that of the matrix' baseline for the same program in the same variant; None
        where there is none.
        """
        return [{"program": done.plan.program.name, **row} for done in self.comparisons for row in done.rows]

    @property
    def results(self) -> list[Result]:
        """All runs' results."""
        return [result for done in self.comparisons for result in done.results]

    @property
    def frame(self) -> pl.DataFrame:
        """The rows as a frame."""
        return comparisons.frame_of(self.rows)

    def __repr__(self) -> str:
        """What was compared, for a notebook: the rows are in ``frame``."""
        programs = ", ".join(done.plan.program.name for done in self.comparisons)
        return f"<Survey of {programs}: {len(self.results)} runs>"

    def to_json(self) -> dict[str, Any]:
        """What ``nestwalk matrix --json`` prints."""
        first = self.plan.plans[0]
        return {
            "schema": 1,
            "version": _native.version(),
            "matrix": self.plan.matrix.title,
            "baseline": self.plan.matrix.baseline,
            "machine": first.machine,
            "seed": first.seed,
            "quick": first.quick,
            "programs": [_described(plan) for plan in self.plan.plans],
            "verdicts": {done.plan.program.name: done.verdict.to_json() for done in self.comparisons},
            "left_out": [{"what": mix.what, "why": mix.why} for mix in self.plan.matrix.left_out],
            "rows": self.rows,
        }

    def page(self) -> str:
        """All of it as one HTML page that needs no other file."""
        from nestwalk.report import survey

        return survey.render(self)

    def save(self, folder: str | Path, *, report: bool = True) -> Path:
        """Writes ``results.parquet``, ``results.json``, ``report.html``, and ``scenarios`` that make each run again."""
        from nestwalk import store

        everything = {**self.to_json(), "runs": [result.json for result in self.results]}
        return store.save(
            checks.path("folder", folder), self.frame, everything, self.results, self.page if report else None
        )


def _described(plan: comparisons.Plan) -> dict[str, Any]:
    chosen = plan.program.quick if plan.quick else plan.program.workload
    return {"name": plan.program.name, "title": plan.program.title, "workload": dict(chosen)}


def plan(
    programs: Sequence[str] | None = None,
    *,
    matrix_name: str | Matrix = EVERYTHING,
    machine: str = DEFAULT_MACHINE,
    seed: int = DEFAULT_SEED,
    quick: bool = False,
    configurations: Sequence[str] | None = None,
) -> Plan:
    """What :func:`survey` will do.

    Raises:
        NestwalkError: When a program or a row has an unknown name, or the matrix names no programs.
    """
    chosen = comparisons.choose(matrix_name, configurations, quick=quick)
    programs = checks.names("programs", programs)
    known = {one.name: one for one in chosen.programs}
    if programs is None and not known:
        raise NestwalkError(f"the matrix {matrix_name!r} names no [[program]]; name some with --program")
    wanted = [_program(name, known) for name in programs] if programs is not None else list(known.values())
    if len({one.name for one in wanted}) < len(wanted):
        raise NestwalkError("two of the programs have one name")
    place = comparisons.place_of(machine)
    checks.whole("seed", seed, 0, SEED_MAX)
    return Plan(chosen, tuple(comparisons.Plan(chosen, one, place, seed, quick) for one in wanted))


def _program(name: str, known: dict[str, program.Program]) -> program.Program:
    """One of the matrix, or a trace."""
    if name in known:
        return known[name]
    with files.telling(Path(name), "cannot be read"):
        if name in data.traces() or Path(name).is_file():
            return program.of_trace(name)
    raise unknown("program", name, [*known, *data.traces()])


def execute(plan: Plan, *, means: Means | None = None, watcher: pool.Watcher | None = None) -> Survey:
    """Makes the runs of ``plan`` that are not kept from earlier, by ``means``."""
    plans = {f"{one.program.name}-": one for one in plan.plans}
    return Survey(plan, tuple(comparisons.execute_all(plans, means, watcher)))


def survey(
    programs: Sequence[str] | None = None,
    *,
    matrix: str | Matrix = EVERYTHING,
    machine: str = DEFAULT_MACHINE,
    seed: int = DEFAULT_SEED,
    quick: bool = False,
    configurations: Sequence[str] | None = None,
    jobs: int | None = None,
    dask: str | None = None,
    results: str | None = None,
) -> Survey:
    """Compares several programs under every configuration of a matrix.

    Args:
        programs: Names of the matrix' ``[[program]]`` entries, of bundled traces, or trace files; the entries if None.
        matrix: The name or the file of the matrix.
        machine: A machine's name or the path of its TOML file.
        seed: Everything random follows from it.
        quick: Measure less of the same programs, as the matrix says, and leave out its variants that are not quick.
        configurations: Names of rows to make; all if None.
        jobs: Runs at a time; as many as there are processors if None. Results do not depend on it.
        dask: A Dask cluster that makes the runs (docs/sweeps.md); this machine if None.
        results: Where results are kept, as of :func:`nestwalk.sweep`.

    Raises:
        NestwalkError: When something is wrong with the input; one line says what, where, and what to do.
    """
    made = plan(programs, matrix_name=matrix, machine=machine, seed=seed, quick=quick, configurations=configurations)
    with progress.of_notebook(made.titles) as watcher:
        return execute(made, means=Means(jobs, results, dask), watcher=watcher)
