# SPDX-License-Identifier: MIT OR Apache-2.0
"""The main job: one program under several configurations, side by side."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nestwalk import (
    _native,
    checks,
    data,
    files,
    intervals,
    matrix,
    palette,
    pool,
    program,
    progress,
    same_place,
    scenario,
    techniques,
    what_if,
    whole_run,
)
from nestwalk.conduct import Means
from nestwalk.errors import SEED_MAX, NestwalkError
from nestwalk.matrix import STANDARD

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import polars as pl

    from nestwalk.charts import Picture
    from nestwalk.matrix import Cell, Entry, LimitRow, Matrix
    from nestwalk.program import Program
    from nestwalk.result import Result
    from nestwalk.toml_file import KeyPath
    from nestwalk.verdict import Verdict

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

HOW = {
    "limit": "a limit: not to be had in a VM",
    "setup": "another set-up, no remedy",
    "nothing": "nothing has to change",
}
"""How to get rows that use no technique."""

_TEXT_KEYS = ("configuration", "title", "variant", "kind", "role", "who", "how", "of")


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

    def job(self, cell: Cell, prefix: str = "", warm_accesses_min: int = 0) -> pool.Job:
        """The run of one cell, called by the cell's name with ``prefix`` before it.

        With ``warm_accesses_min``, a warm-up that has no length of its own lasts at least so many accesses.
        """
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
        text = scenario.write(matrix.merge(same_place.warming(table, warm_accesses_min), cell.scenario))

        def place(path: KeyPath) -> str:
            """Where the user wrote what is at ``path`` of the scenario; the matrix file, if nowhere."""
            source = self.matrix.source
            origin = cell.origin(path)
            if origin is None and path[:1] == ("workload",):
                own = self.program.quick_path if self.quick else self.program.workload_path
                origin = (*own, *path[1:]) if own else None
            return f"{source.file if origin is None else source.at(origin)}: {cell.name}"

        return pool.Job(name, text, Path(f"{name}.toml"), place)


@dataclass(frozen=True, repr=False)
class Comparison:
    """A comparison that was made: its results, as a frame, as pictures, and on disk."""

    plan: Plan
    results: tuple[Result, ...]
    """One for each cell of the matrix, in its order."""

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The table's rows: a variant's runs, then its limits.

        Beside :data:`ROW_KEYS`: titles, ``kind`` (``run`` or ``limit``), ``changes`` (who must change what), ``who``
        (what class of change that is), ``role``, ``how`` to get it, ``against_baseline`` (time over that of the plain
        VM of the same variant), the whole run's values, and half of the 95 % intervals as ``*_ci95``.
        """
        by_variant: dict[str, list[dict[str, Any]]] = {}
        for cell, row in self.measured:
            by_variant.setdefault(cell.variant.name, []).append(row)
        for cell, result in zip(self.plan.matrix.cells, self.results, strict=True):
            for limit in self.plan.matrix.limits:
                if limit.of == cell.configuration.name:
                    by_variant[cell.variant.name].append(self._row(result, "limit", limit, cell.variant))
        return [row for rows in by_variant.values() for row in rows]

    @property
    def measured(self) -> list[tuple[Cell, dict[str, Any]]]:
        """The rows of the runs, with their cells."""
        cells = self.plan.matrix.cells
        return [
            (cell, self._row(result, "run", cell.configuration, cell.variant))
            for cell, result in zip(cells, self.results, strict=True)
        ]

    def plain(self, variant: str) -> tuple[Cell, Result] | None:
        """The plain VM, the matrix' baseline, in ``variant``; None if it is not among the runs."""
        for cell, result in zip(self.plan.matrix.cells, self.results, strict=True):
            if (cell.configuration.name, cell.variant.name) == (self.plan.matrix.baseline, variant):
                return cell, result
        return None

    @property
    def elsewhere(self) -> list[str]:
        """Titles of rows that were measured at another place of the program than the plain VM of the same variant.

        Either they or the plain VM were never warm, or may not warm up for so long: all others are measured where the
        last of them was warm.
        """
        found = []
        for cell, result in zip(self.plan.matrix.cells, self.results, strict=True):
            plain = self.plain(cell.variant.name)
            if plain is not None and same_place.differ(result, plain[1]):
                own, other = (one.statistics["warm_accesses"] for one in (result, plain[1]))
                lengths = f"{own:,} and {other:,} accesses".replace(",", " ")
                found.append(f"{cell.configuration.title} ({lengths})")
        return list(dict.fromkeys(found))

    @property
    def verdict(self) -> Verdict:
        """The answer: what page walks take, what gives it back, and who must act."""
        from nestwalk import verdict

        return verdict.of(self)

    def _row(self, result: Result, kind: str, configuration: Entry | LimitRow, variant: Entry) -> dict[str, Any]:
        """The row of a run, or of what is computed from one."""
        limit = configuration if isinstance(configuration, matrix.LimitRow) else None
        values = what_if.limit_row(result, limit.kind) if limit else result.row
        whole = dict.fromkeys(whole_run.KEYS) if limit else whole_run.row(result)
        plain = self.plain(variant.name)
        base = None if plain is None else plain[1]
        gain = None if limit or base is None or result is base else intervals.gain(result, base)
        whole_gain = None if gain is None or base is None else whole_run.gain(result, base)
        first, stock = self.results[0].row["cycles_per_access"], base.row["cycles_per_access"] if base else None
        stock_whole = whole_run.row(base)["whole_run_cycles_per_access"] if base else None
        return {
            **values,
            "configuration": _named(configuration.name, variant),
            "title": configuration.title,
            "variant": variant.title,
            "relative_time": _quotient(values["cycles_per_access"], first),
            "relative_time_ci95": None if limit else relative_interval(result, self.results[0]),
            "kind": kind,
            **_acting(configuration),
            "of": _named(limit.of, variant) if limit else None,
            "against_baseline": _quotient(values["cycles_per_access"], stock),
            "against_baseline_ci95": gain.ci95 if gain else None,
            "warm_up_reached": None if limit else result.warm_up["reached"],
            **whole,
            "whole_run_against_baseline": _quotient(whole["whole_run_cycles_per_access"], stock_whole),
            "whole_run_against_baseline_ci95": whole_gain.ci95 if whole_gain else None,
        }

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

    @property
    def colours(self) -> dict[str, str]:
        """The colour of each configuration's title, the same in all pictures."""
        return {cell.configuration.title: palette.of(cell.configuration) for cell in self.plan.matrix.cells}

    def plain_cycles(self, key: str) -> dict[str, float]:
        """A value of the plain VM's row, cycles an access, by variant; without those where it is not known."""
        names = {cell.variant.name: cell.variant.title for cell in self.plan.matrix.cells}
        rows = {row["configuration"]: row for row in self.rows}
        found = {title: self.plain(name) for name, title in names.items()}
        return {title: rows[plain[0].name][key] for title, plain in found.items() if plain and rows[plain[0].name][key]}

    def plot_time(self) -> Picture:
        """What the program's time is spent on, in per cent of the plain VM's."""
        from nestwalk import charts

        return charts.time(self.labelled, self.plain_cycles("cycles_per_access"), ci95=self.time_intervals)

    @property
    def time_intervals(self) -> dict[tuple[str, str], float]:
        """Half of the interval of each row's time against its plain VM, by title and variant, where it is known."""
        return self._intervals("against_baseline_ci95")

    @property
    def whole_run_intervals(self) -> dict[tuple[str, str], float]:
        """The same over the whole run."""
        return self._intervals("whole_run_against_baseline_ci95")

    def _intervals(self, key: str) -> dict[tuple[str, str], float]:
        return {(row["title"], row["variant"]): row[key] for row in self.rows if row[key] is not None}

    def plot_whole_run(self) -> Picture:
        """The same over the whole run, with first touches, faults and exits."""
        from nestwalk import charts

        return charts.whole_run(
            self.labelled, self.plain_cycles("whole_run_cycles_per_access"), ci95=self.whole_run_intervals
        )

    def plot_latency(self) -> Picture:
        """Average walk latency by configuration."""
        from nestwalk import charts

        return charts.latency(self.labelled, self.colours)

    def plot_references(self) -> Picture:
        """Where each level's references were served (as in ASAP's figure 9)."""
        from nestwalk import charts

        return charts.references(self.labelled)

    def plot_latency_distribution(self) -> Picture:
        """Walks by latency."""
        from nestwalk import charts

        return charts.latency_distribution(self.labelled, self.colours)

    def plot_fragmentation(self) -> Picture:
        """Groups of 8 guest pages by the lines that hold their host PTEs."""
        from nestwalk import charts

        return charts.fragmentation(self.labelled, self.colours)

    def plot_reserved(self) -> Picture:
        """Frames set aside and not used, over the time of each run."""
        from nestwalk import charts

        return charts.reserved(self.labelled, self.colours)

    def write_report(self, path: str | Path) -> Path:
        """Writes all of it as one HTML file that needs no other, whole or not at all."""
        target = checks.path("path", path)
        files.check_file(target)
        files.write_file(target, self.page())
        return target

    def page(self) -> str:
        """All of it as one HTML page that needs no other file."""
        from nestwalk import report

        return report.render(self)

    def save(self, folder: str | Path, *, report: bool = True) -> Path:
        """Writes ``results.parquet``, ``results.json``, ``report.html`` and ``scenarios``, which make each run again.

        Earlier results in ``folder`` are replaced file by file; what is not ours stays.
        """
        from nestwalk import store

        page = self.page if report else None
        return store.save(checks.path("folder", folder), self.frame, self.to_json(runs=True), self.results, page)

    def __repr__(self) -> str:
        """What was compared, for a notebook: the rows are in ``frame``."""
        quick = ", quick" if self.plan.quick else ""
        count = len(self.results)
        what = f"{self.plan.program.name} on {self.plan.machine}"
        return f"<Comparison of {what}: {count} runs, seed {self.plan.seed}{quick}>"

    def to_json(self, *, runs: bool = False) -> dict[str, Any]:
        """What ``nestwalk compare --json`` prints; with ``runs``, each run's whole result besides."""
        value: dict[str, Any] = {
            "schema": 1,
            "version": self.results[0].version,
            "trace": self.plan.program.title,
            "machine": self.plan.machine,
            "seed": self.plan.seed,
            "quick": self.plan.quick,
            "verdict": self.verdict.to_json(),
            "rows": self.rows,
        }
        if runs:
            value["runs"] = [result.json for result in self.results]
        return value


def _named(name: str, variant: Entry) -> str:
    """What a configuration is called in ``variant``."""
    return "+".join(part for part in (name, variant.name) if part)


def _acting(configuration: Entry | LimitRow) -> dict[str, Any]:
    """Who must act for a row, and how."""
    how = how_to_get(configuration)
    if isinstance(configuration, matrix.LimitRow):
        return {"changes": None, "who": None, "role": "limit", "how": how}
    changes = configuration.changes
    return {
        "changes": None if changes is None else list(changes),
        "who": None if changes is None else techniques.class_of(changes),
        "role": configuration.role,
        "how": how,
    }


def how_to_get(configuration: Entry | LimitRow) -> str | None:
    """How to get a row, in a table's cell; None where the matrix does not say."""
    if isinstance(configuration, matrix.LimitRow):
        return HOW["limit"]
    if configuration.techniques:
        return techniques.how(configuration.techniques)
    return HOW.get(configuration.role) or (HOW["nothing"] if configuration.changes == () else None)


def frame_of(rows: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    """Rows of comparisons as a frame: keys that are not :data:`ROW_KEYS` come behind these, but for a ``program``."""
    import polars as pl

    first = [key for key in ("program",) if key in rows[0]]
    order = [*first, *ROW_KEYS, *(key for key in rows[0] if key not in ROW_KEYS and key not in first)]
    text = {*_TEXT_KEYS, "program"}
    schema = {key: pl.String if key in text else pl.Float64 for key in order}
    return pl.DataFrame(rows, schema={**schema, "warm_up_reached": pl.Boolean, "changes": pl.List(pl.String)})


def relative_interval(result: Result, first: Result) -> float | None:
    """Half of the 95 % interval of ``relative_time``: over pairs of windows of the same accesses in both runs.

    None for the first run itself, and where the windows are too few. Where the two runs warmed up for different lengths
    and so measured other accesses of the program, the interval is that of independent runs.
    """
    if result.statistics["warm_accesses"] != first.statistics["warm_accesses"]:
        gain = intervals.gain(result, first)
        return gain.ci95 if gain else None
    of_both = [[window["accesses"] for window in run.statistics["windows"]] for run in (result, first)]
    if result is first or of_both[0] != of_both[1]:
        return None
    found = intervals.ratio(intervals.cycles(result), intervals.cycles(first), intervals.modelled(first))
    return found.ci95 if found else None


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
    chosen = choose(matrix_name, configurations, quick=quick)
    one = program.of_trace(checks.text("trace", data.DEFAULT_TRACE if trace is None else trace))
    return Plan(chosen, one, place_of(machine), checks.whole("seed", seed, 0, SEED_MAX), quick)


def choose(matrix_name: str | Matrix, configurations: Sequence[str] | None, *, quick: bool = False) -> Matrix:
    """The matrix called so, what of it a ``quick`` run makes, or its ``configurations`` only."""
    chosen = matrix_name if isinstance(matrix_name, matrix.Matrix) else matrix.load(checks.text("matrix", matrix_name))
    wanted = checks.names("configurations", configurations)
    if wanted is not None:
        return chosen.only(wanted)
    return chosen.for_quick() if quick else chosen


def place_of(machine: str) -> str:
    """A machine's name, or where its file is, whatever folder a run is made in."""
    name = checks.text("machine", machine)
    return str(Path(name).absolute()) if name.endswith(scenario.SUFFIX) else name


def execute(plan: Plan, *, means: Means | None = None, watcher: pool.Watcher | None = None) -> Comparison:
    """Makes the runs of ``plan`` that are not kept from earlier, by ``means``."""
    return execute_all({"": plan}, means, watcher)[0]


def execute_all(plans: Mapping[str, Plan], means: Means | None, watcher: pool.Watcher | None) -> list[Comparison]:
    """Makes the runs of some plans, with each plan's key before its runs' names.

    Runs of one variant whose warm-up ended before another's are made again with one as long as that.
    """
    runs = [(plan, cell, prefix) for prefix, plan in plans.items() for cell in plan.matrix.cells]

    def job(number: int, warm_accesses_min: int) -> pool.Job:
        plan, cell, prefix = runs[number]
        return plan.job(cell, prefix, warm_accesses_min)

    chosen = means or Means()
    chosen.check()
    _check([job(number, 0) for number in range(len(runs))])
    compared = [(prefix, cell.variant.name) for _, cell, prefix in runs]
    made = iter(same_place.results(compared, job, chosen, watcher or pool.Silent()))
    return [Comparison(plan, tuple(next(made) for _ in plan.matrix.cells)) for plan in plans.values()]


def _check(work: Sequence[pool.Job]) -> None:
    """What is wrong is said at once, and the same whichever run would have come first."""
    for job in work:
        try:
            _native.check(job.scenario, str(job.path), str(data.TRACES))
        except NestwalkError as error:
            raise NestwalkError(job.explain(str(error))) from error


def comparison(
    trace: str | Path | None = None,
    *,
    machine: str = DEFAULT_MACHINE,
    seed: int = DEFAULT_SEED,
    quick: bool = False,
    configurations: Sequence[str] | None = None,
    matrix: str | Matrix = STANDARD,
    jobs: int | None = None,
    dask: str | None = None,
    results: str | None = None,
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
        dask: A Dask cluster that makes the runs (docs/sweeps.md); this machine if None.
        results: Where results are kept, as of :func:`nestwalk.sweep`.

    Returns:
        The results, with their frame, their pictures, ``save`` and ``write_report``.

    Raises:
        NestwalkError: When something is wrong with the input; one line says what, where, and what to do.
    """
    made = plan(trace, machine=machine, seed=seed, quick=quick, configurations=configurations, matrix_name=matrix)
    with progress.of_notebook([cell.title for cell in made.matrix.cells]) as watcher:
        return execute(made, means=Means(jobs, results, dask), watcher=watcher)


def compare(
    trace: str | Path | None = None,
    *,
    machine: str = DEFAULT_MACHINE,
    seed: int = DEFAULT_SEED,
    quick: bool = False,
    configurations: Sequence[str] | None = None,
    matrix: str | Matrix = STANDARD,
    jobs: int | None = None,
    dask: str | None = None,
    results: str | None = None,
) -> pl.DataFrame:
    """The table of :func:`comparison`, as a frame: a row for each configuration, :data:`ROW_KEYS` first."""
    return comparison(
        trace,
        machine=machine,
        seed=seed,
        quick=quick,
        configurations=configurations,
        matrix=matrix,
        jobs=jobs,
        dask=dask,
        results=results,
    ).frame
