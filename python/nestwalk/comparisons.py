# SPDX-License-Identifier: MIT OR Apache-2.0
"""The main job: one program under several configurations, side by side."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nestwalk import _native, data, files, matrix, pool, program, scenario, what_if
from nestwalk.matrix import STANDARD
from nestwalk.result import Result

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import polars as pl

    from nestwalk.charts import Picture
    from nestwalk.matrix import Cell, Entry, LimitRow, Matrix
    from nestwalk.program import Program

DEFAULT_MACHINE = "broadwell-asap"
DEFAULT_SEED = 1

ROW_KEYS = (
    "configuration",
    "walks_per_kiloaccess",
    "walk_latency_cycles",
    "references_per_walk",
    "guest_references_per_walk",
    "host_references_per_walk",
    "memory_served_share",
    "walk_cycles_per_access",
    "host_pt_fragmentation",
    "relative_time",
)
"""Keys of a row that scripts may rely on, in the order of the table."""

_TEXT_KEYS = ("configuration", "title", "variant", "kind")


@dataclass(frozen=True)
class Plan:
    """A comparison to be made."""

    matrix: Matrix
    program: Program
    machine: str
    seed: int
    quick: bool

    @property
    def options(self) -> list[str]:
        """What has to be said on the command line, besides the program, to make the same comparison."""
        quick = ["--quick"] if self.quick else []
        return ["--machine", self.machine, "--seed", str(self.seed), *quick, *self.matrix.options]

    def job(self, cell: Cell, prefix: str = "") -> pool.Job:
        """The run of one cell, called by the cell's name with ``prefix`` before it."""
        name = prefix + cell.name
        table: dict[str, Any] = {
            "schema": 1,
            "name": name,
            "description": cell.title,
            "machine": self.machine,
            "seed": self.seed,
            "workload": dict(self.program.quick if self.quick else self.program.workload),
        }
        if self.quick and "trace" in self.program.workload:
            table["sampling"] = scenario.quick_sampling(None, self.program.workload["trace"])
        text = scenario.write(matrix.merge(table, cell.scenario))
        return pool.Job(name, text, Path(f"{name}.toml"))


@dataclass(frozen=True)
class Comparison:
    """A comparison that was made: its results, as a frame, as pictures, and on disk."""

    plan: Plan
    results: tuple[Result, ...]
    """One for each cell of the matrix, in its order."""

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The table's rows: a variant's runs, then its limits.

        Beside :data:`ROW_KEYS`: titles, ``kind`` (``run`` or ``limit``), ``changes`` (who must change what), and half
        of the 95 % intervals as ``*_ci95``.
        """
        by_variant: dict[str, list[dict[str, Any]]] = {}
        for cell, row in self.measured:
            by_variant.setdefault(cell.variant.name, []).append(row)
        for cell, result in zip(self.plan.matrix.cells, self.results, strict=True):
            for limit in self.plan.matrix.limits:
                if limit.of == cell.configuration.name:
                    by_variant[cell.variant.name].append(self._limit(limit, cell.variant, result))
        return [row for rows in by_variant.values() for row in rows]

    @property
    def measured(self) -> list[tuple[Cell, dict[str, Any]]]:
        """The rows of the runs, with their cells."""
        cells = self.plan.matrix.cells
        return [
            (cell, self._row(result.row, "run", cell.configuration, cell.variant, result))
            for cell, result in zip(cells, self.results, strict=True)
        ]

    def _row(
        self,
        values: Mapping[str, Any],
        kind: str,
        configuration: Entry | LimitRow,
        variant: Entry,
        result: Result | None = None,
    ) -> dict[str, Any]:
        changes = None if isinstance(configuration, matrix.LimitRow) else configuration.changes
        return {
            **values,
            "configuration": "+".join(name for name in (configuration.name, variant.name) if name),
            "title": configuration.title,
            "variant": variant.title,
            "relative_time": _quotient(values["cycles_per_access"], self.results[0].row["cycles_per_access"]),
            "relative_time_ci95": None if result is None else relative_interval(result, self.results[0]),
            "kind": kind,
            "changes": None if changes is None else list(changes),
        }

    def _limit(self, limit: LimitRow, variant: Entry, result: Result) -> dict[str, Any]:
        return self._row(what_if.limit_row(result, limit.kind), "limit", limit, variant)

    @property
    def frame(self) -> pl.DataFrame:
        """The rows as a frame, :data:`ROW_KEYS` first."""
        return frame_of(self.rows)

    @property
    def labelled(self) -> list[tuple[str, str, Result]]:
        """Results with their titles, as the charts want them."""
        cells = self.plan.matrix.cells
        return [
            (cell.configuration.title, cell.variant.title, result)
            for cell, result in zip(cells, self.results, strict=True)
        ]

    def plot_latency(self) -> Picture:
        """Average walk latency by configuration."""
        from nestwalk import charts

        return charts.latency(self.labelled)

    def plot_references(self) -> Picture:
        """Where each level's references were served (as in ASAP's figure 9)."""
        from nestwalk import charts

        return charts.references(self.labelled)

    def plot_latency_distribution(self) -> Picture:
        """Walks by latency."""
        from nestwalk import charts

        return charts.latency_distribution(self.labelled)

    def plot_time(self) -> Picture:
        """What the program's cycles are spent on."""
        from nestwalk import charts

        return charts.time(self.labelled)

    def plot_fragmentation(self) -> Picture:
        """Groups of 8 guest pages by the lines that hold their host PTEs."""
        from nestwalk import charts

        return charts.fragmentation(self.labelled)

    def plot_reserved(self) -> Picture:
        """Frames set aside and not used, over the time of each run."""
        from nestwalk import charts

        return charts.reserved(self.labelled)

    def write_report(self, path: str | Path) -> Path:
        """Writes all of it as one HTML file that needs no other, whole or not at all."""
        from nestwalk import report

        files.write_file(Path(path), report.render(self))
        return Path(path)

    def save(self, folder: str | Path, *, report: bool = True) -> Path:
        """Writes ``results.parquet``, ``results.json``, ``report.html`` and ``scenarios``, which make each run again.

        Whole or not at all; earlier results in ``folder`` are replaced.
        """
        from nestwalk import report as pages
        from nestwalk import store

        page = pages.render(self) if report else None
        return store.save(Path(folder), self.frame, self.to_json(runs=True), self.results, page)

    def to_json(self, *, runs: bool = False) -> dict[str, Any]:
        """What ``nestwalk compare --json`` prints; with ``runs``, each run's whole result besides."""
        value: dict[str, Any] = {
            "schema": 1,
            "version": self.results[0].version,
            "trace": self.plan.program.title,
            "machine": self.plan.machine,
            "seed": self.plan.seed,
            "quick": self.plan.quick,
            "rows": self.rows,
        }
        if runs:
            value["runs"] = [result.json for result in self.results]
        return value


def frame_of(rows: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    """Rows of comparisons as a frame: keys that are not :data:`ROW_KEYS` come behind these, but for a ``program``."""
    import polars as pl

    first = [key for key in ("program",) if key in rows[0]]
    order = [*first, *ROW_KEYS, *(key for key in rows[0] if key not in ROW_KEYS and key not in first)]
    text = {*_TEXT_KEYS, "program"}
    schema = {key: pl.String if key in text else pl.Float64 for key in order}
    return pl.DataFrame(rows, schema={**schema, "changes": pl.List(pl.String)})


def relative_interval(result: Result, first: Result) -> float | None:
    """Half of the 95 % interval of ``relative_time``: over pairs of windows of the same accesses in both runs.

    None for the first run itself, where the windows are too few, and where they are not of the same accesses.
    """
    pairs = [
        (sum(mine["cycles"].values()), sum(its["cycles"].values()))
        for mine, its in zip(result.statistics["windows"], first.statistics["windows"], strict=False)
        if mine["accesses"] == its["accesses"]
    ]
    same = len(result.statistics["windows"]) == len(first.statistics["windows"]) == len(pairs)
    return _native.ratio(pairs)[1] if same and result is not first else None


def _quotient(value: float | None, first: float | None) -> float | None:
    return value / first if value is not None and first else None


def plan(
    trace: str | Path | None = None,
    *,
    machine: str = DEFAULT_MACHINE,
    seed: int = DEFAULT_SEED,
    quick: bool = False,
    configurations: Sequence[str] | None = None,
    matrix_name: str | Matrix = STANDARD,
) -> Plan:
    """What :func:`comparison` will do, checked as far as that goes without the engine."""
    chosen = choose(matrix_name, configurations)
    return Plan(chosen, program.of_trace(str(trace or data.DEFAULT_TRACE)), place_of(machine), seed, quick)


def choose(matrix_name: str | Matrix, configurations: Sequence[str] | None) -> Matrix:
    """The matrix called so, or its ``configurations`` only."""
    chosen = matrix.load(matrix_name) if isinstance(matrix_name, str) else matrix_name
    return chosen if configurations is None else chosen.only(configurations)


def place_of(machine: str) -> str:
    """A machine's name, or where its file is, whatever folder a run is made in."""
    return str(Path(machine).absolute()) if machine.endswith(scenario.SUFFIX) else machine


def execute(plan: Plan, *, jobs: int | None = None, watcher: pool.Watcher | None = None) -> Comparison:
    """Makes the runs of ``plan``, ``jobs`` at a time (as many as there are processors, if None)."""
    return Comparison(plan, run_all([plan.job(cell) for cell in plan.matrix.cells], jobs, watcher))


def run_all(work: Sequence[pool.Job], jobs: int | None, watcher: pool.Watcher | None) -> tuple[Result, ...]:
    """The results of ``work``, ``jobs`` runs at a time (as many as there are processors, if None)."""
    for job in work:  # what is wrong is said at once, and the same whichever run would have come first
        _native.check(job.scenario, str(job.path), str(data.TRACES))
    done = pool.run_all(work, pool.processors() if jobs is None else jobs, watcher or pool.Silent())
    return tuple(Result(value) for value in done)


def comparison(
    trace: str | Path | None = None,
    *,
    machine: str = DEFAULT_MACHINE,
    seed: int = DEFAULT_SEED,
    quick: bool = False,
    configurations: Sequence[str] | None = None,
    matrix: str | Matrix = STANDARD,
    jobs: int | None = None,
) -> Comparison:
    """Compares one program under several configurations.

    Args:
        trace: A trace file or the name of a bundled trace (``nestwalk list workloads``); the bundled redis if None.
        machine: A machine's name or the path of its TOML file.
        seed: Everything random follows from it.
        quick: Measure less: the same code, seconds instead of minutes, wider intervals.
        configurations: Names of rows to make (``"vm-4k"``, ``"vm-4k+smt"``); all if None.
        matrix: The name or the file of the matrix that says what is compared, or one made by
            :func:`nestwalk.matrix.of_tables`.
        jobs: Runs at a time; as many as there are processors if None. Results do not depend on it.

    Returns:
        The results, with their frame, their pictures, ``save`` and ``write_report``.

    Raises:
        NestwalkError: When something is wrong with the input; one line says what, where, and what to do.
    """
    made = plan(trace, machine=machine, seed=seed, quick=quick, configurations=configurations, matrix_name=matrix)
    return execute(made, jobs=jobs)


def compare(
    trace: str | Path | None = None,
    *,
    machine: str = DEFAULT_MACHINE,
    seed: int = DEFAULT_SEED,
    quick: bool = False,
    configurations: Sequence[str] | None = None,
    matrix: str | Matrix = STANDARD,
    jobs: int | None = None,
) -> pl.DataFrame:
    """The table of :func:`comparison`, as a frame: a row for each configuration, :data:`ROW_KEYS` first."""
    return comparison(
        trace, machine=machine, seed=seed, quick=quick, configurations=configurations, matrix=matrix, jobs=jobs
    ).frame
