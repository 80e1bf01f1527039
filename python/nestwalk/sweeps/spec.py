# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a sweep is: a specification (TOML) with programs, machines, techniques, seeds and axes, each against each."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nestwalk import checks, matrix, program, scenario, toml_file
from nestwalk.comparisons import DEFAULT_MACHINE, DEFAULT_SEED
from nestwalk.errors import SEED_MAX, NestwalkError, shown
from nestwalk.matrix import STANDARD, Cell
from nestwalk.sweeps import axes
from nestwalk.sweeps.axes import FILES, POINTS_MAX, Axis, Clause, Value
from nestwalk.toml_file import Source, Table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from nestwalk.program import Program
    from nestwalk.toml_file import KeyPath

SCHEMA = 1
KEYS = (
    "schema",
    "title",
    "base",
    "programs",
    "program",
    "machines",
    "techniques",
    "seeds",
    "set",
    "axis",
    "skip",
)
FIXED = ("program", "machine", "technique", "seed")
"""Axes that every sweep has, in the order of columns."""
AS_WRITTEN = "as written"
"""The technique of a sweep that names none: what the scenario says."""


@dataclass(frozen=True)
class Point:
    """A run of a sweep."""

    values: Mapping[str, Any]
    """Of each axis that it has."""
    program: Program | None
    machine: str
    cell: Cell | None
    seed: int
    settings: tuple[tuple[KeyPath, Any, KeyPath], ...]
    """What its axes set, in their order: where, to what, and where in the specification that is written."""

    @property
    def title(self) -> str:
        """It in words."""
        return ", ".join(
            str(value) if axis in FIXED and axis != "seed" else f"{axis} {value}"
            for axis, value in self.values.items()
            if value != AS_WRITTEN
        )


@dataclass(frozen=True)
class Spec:
    """A specification that was read."""

    source: Source
    title: str
    base: Mapping[str, Any]
    """A scenario, or what there is of one."""
    programs: tuple[Program, ...]
    machines: tuple[str, ...]
    techniques: matrix.Matrix | None
    seeds: tuple[int, ...]
    parts: Mapping[str, Mapping[str, Any]]
    """What is set in all runs, by file."""
    axes: tuple[Axis, ...]
    skipped: tuple[tuple[Clause, ...], ...]

    @property
    def folder(self) -> Path:
        """Where its relative paths begin."""
        return Path(self.source.file).absolute().parent

    @property
    def columns(self) -> list[str]:
        """Names of all axes."""
        return [*FIXED, *(axis.name for axis in self.axes)]

    @property
    def size(self) -> int:
        """Points of the whole grid, conditions apart."""
        count = max(len(self.programs), 1) * len(self.machines) * len(self.seeds)
        count *= len(self.techniques.cells) if self.techniques else 1
        for axis in self.axes:
            count *= len(axis.values)
        return count

    def points(self) -> Iterator[Point]:
        """All runs, the last axis fastest. Where an axis is not there, the grid's points are one."""
        cells: list[Cell | None] = list(self.techniques.cells) if self.techniques else [None]
        programs: list[Program | None] = list(self.programs) or [None]
        for one, machine, cell, seed in itertools.product(programs, self.machines, cells, self.seeds):
            named = {
                "program": one.name if one else str(self.base.get("name", "base")),
                "machine": Path(machine).stem if machine.endswith(scenario.SUFFIX) else machine,
                "technique": cell.name if cell else AS_WRITTEN,
                "seed": seed,
            }
            for values, settings in self._grid(named, 0):
                if not any(all(clause.holds(values) for clause in skip) for skip in self.skipped):
                    yield Point(values, one, machine, cell, seed, settings)

    def _grid(
        self, values: dict[str, Any], number: int
    ) -> Iterator[tuple[dict[str, Any], tuple[tuple[KeyPath, Any, KeyPath], ...]]]:
        """The points of the axes from ``number`` on, for given values of those before."""
        if number == len(self.axes):
            yield values, ()
            return
        axis = self.axes[number]
        there = all(clause.holds(values) for clause in axis.when)
        chosen: tuple[Value | None, ...] = axis.values if there else (None,)
        for value in chosen:
            own = values if value is None else {**values, axis.name: value.shown}
            for found, settings in self._grid(own, number + 1):
                yield found, ((*value.settings, *settings) if value is not None else settings)


def load(name: str | Path) -> Spec:
    """The specification in a file.

    Raises:
        NestwalkError: When it cannot be read, or is not what it should be.
    """
    path = checks.text("specification", name)
    return parse(scenario.read_text(Path(path)), path)


def parse(text: str, place: str) -> Spec:
    """The specification ``text`` of the file ``place``.

    Raises:
        NestwalkError: When it is not what it should be; with file, line and column.
    """
    file = Table(Source(place, text), (), toml_file.parse(text, place))
    file.only(KEYS)
    file.schema(SCHEMA)
    folder = Path(place).absolute().parent
    base = _base(file, folder)
    parts = file.inner("set")
    parts.only(FILES)
    own = {name: parts.table(name, '{ corunner = "random" }') for name in FILES}
    found = tuple(axes.read(entry) for entry in file.tables("axis"))
    spec = Spec(
        source=file.source,
        title=file.text("title", Path(place).stem),
        base=base,
        programs=_programs(file, folder, own["scenario"], base),
        machines=_machines(file, folder, base),
        techniques=_techniques(file, folder),
        seeds=_seeds(file, base),
        parts=own,
        axes=found,
        skipped=tuple(axes.condition(entry) for entry in file.tables("skip")),
    )
    _check_axes(file, spec)
    if spec.size > POINTS_MAX:
        what = (
            f"the axes make {spec.size:,} runs; a sweep has at most {POINTS_MAX:,}: take values out, or make two sweeps"
        )
        raise file.refused("axis" if found else "", what)
    return spec


def _base(file: Table, folder: Path) -> dict[str, Any]:
    """The scenario that all runs begin with; relative paths of it, which begin at its own folder, made absolute."""
    if "base" not in file.value:
        return {}
    name = file.text("base")
    own = folder / name if name.endswith(scenario.SUFFIX) else Path(name)
    try:
        job = scenario.read(str(own))
    except NestwalkError as error:
        raise file.refused("base", error) from error
    table = toml_file.parse(job.scenario, str(job.path))
    return _absolute(table, own.parent) if name.endswith(scenario.SUFFIX) else table


def _absolute(table: dict[str, Any], folder: Path) -> dict[str, Any]:
    changed = dict(table)
    for key in ("machine", "costs"):
        if isinstance(changed.get(key), str) and changed[key].endswith(scenario.SUFFIX):
            changed[key] = str(folder / changed[key])
    workload = changed.get("workload")
    if isinstance(workload, dict) and isinstance(workload.get("trace"), str):
        name = workload["trace"]
        if "/" in name or Path(name).suffix:
            changed["workload"] = {**workload, "trace": str(folder / name)}
    return changed


def _texts(file: Table, key: str, example: str) -> list[str]:
    found = file.value.get(key, [])
    if not isinstance(found, list) or not all(isinstance(one, str) and one for one in found):
        raise file.wrong(key, found, f"a list of names, such as {example}")
    for number, one in enumerate(found):
        if one in found[:number]:
            raise file.refused(key, f"{shown(one)!r} is there twice; each makes runs of its own", number)
    return found


def _programs(file: Table, folder: Path, part: Mapping[str, Any], base: Mapping[str, Any]) -> tuple[Program, ...]:
    """Traces by name or file, then entries ``[[program]]`` as a matrix has them."""
    found = []
    for number, name in enumerate(_texts(file, "programs", '["redis", "bfs"]')):
        try:
            found.append(program.of_trace(str(folder / name) if "/" in name or Path(name).suffix else name))
        except NestwalkError as error:
            raise file.refused("programs", error, number) from error
    found += [matrix.program_of(entry) for entry in file.tables("program")]
    names = [one.name for one in found]
    for number, name in enumerate(names):
        if name in names[:number]:
            raise file.refused("", f"two programs are called '{name}'; rename one, or make it a [[program]]")
    if not found and "workload" not in part and "workload" not in base:
        raise file.refused(
            "", 'there is no program; give programs = ["redis"], a [[program]], or a base with a workload'
        )
    return tuple(found)


def _machines(file: Table, folder: Path, base: Mapping[str, Any]) -> tuple[str, ...]:
    found = _texts(file, "machines", '["broadwell-asap"]')
    if "machines" in file.value and not found:
        raise file.refused("machines", "the list is empty; name a machine, or leave it out")
    places = [str(folder / name) if name.endswith(scenario.SUFFIX) else name for name in found]
    return tuple(places) or (str(base.get("machine", DEFAULT_MACHINE)),)


def _techniques(file: Table, folder: Path) -> matrix.Matrix | None:
    """Rows of a matrix."""
    if "techniques" not in file.value:
        return None
    table = file.inner("techniques")
    table.only(("matrix", "only"))
    name = table.text("matrix", STANDARD)
    try:
        chosen = matrix.load(str(folder / name) if name.endswith(scenario.SUFFIX) else name)
    except NestwalkError as error:
        raise table.refused("matrix", error) from error
    if "only" not in table.value:
        return chosen
    wanted = table.several_of("only", [cell.name for cell in chosen.cells], "configuration")
    if not wanted:
        raise table.refused("only", "the list is empty; name some rows, or leave it out for all")
    return chosen.only(wanted)


def _seeds(file: Table, base: Mapping[str, Any]) -> tuple[int, ...]:
    found = file.value.get("seeds")
    if found is None:
        seed = base.get("seed", DEFAULT_SEED)
        return (seed,)
    if isinstance(found, dict):
        table = file.inner("seeds")
        table.only(("from", "to"))
        first = table.whole("from", 0, SEED_MAX)
        last = table.whole("to", first, min(first + POINTS_MAX, SEED_MAX))
        return tuple(range(first, last + 1))
    if not isinstance(found, list) or not found:
        raise file.wrong("seeds", found, "a list such as [1, 2, 3], or { from = 1, to = 10 }")
    for number, seed in enumerate(found):
        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= SEED_MAX:
            raise file.refused("seeds", f"{seed!r}: give a whole number from 0 to {SEED_MAX}", number)
        if seed in found[:number]:
            raise file.refused("seeds", f"{seed} is there twice; the same seed gives the same run", number)
    return tuple(found)


def _check_axes(file: Table, spec: Spec) -> None:
    """Names of axes, and conditions on them."""
    fixed: dict[str, list[Any]] = {
        "program": [one.name for one in spec.programs] or [str(spec.base.get("name", "base"))],
        "machine": [Path(name).stem if name.endswith(scenario.SUFFIX) else name for name in spec.machines],
        "technique": [cell.name for cell in spec.techniques.cells] if spec.techniques else [AS_WRITTEN],
        "seed": list(spec.seeds),
    }
    known = dict(fixed)
    for entry, axis in zip(file.tables("axis"), spec.axes, strict=True):
        if axis.name in known:
            key = "name" if "name" in entry.value else "key"
            raise entry.refused(key, f"two axes are called '{axis.name}'; give this one another name")
        if axis.when:
            axes.check_names(entry.inner("when"), axis.when, known)
        known[axis.name] = [value.shown for value in axis.values]
    for entry, skip in zip(file.tables("skip"), spec.skipped, strict=True):
        axes.check_names(entry, skip, known)
