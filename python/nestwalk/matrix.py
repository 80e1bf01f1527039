# SPDX-License-Identifier: MIT OR Apache-2.0
"""What is compared: a matrix file (TOML) of configurations and variants, each a part of a scenario.

Those that come with Nestwalk are ``matrices/standard.toml`` and ``matrices/everything.toml``. Adding a technique to a
comparison is adding an entry to such a file.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nestwalk import checks, files, scenario
from nestwalk.errors import NestwalkError, unknown
from nestwalk.program import Program
from nestwalk.what_if import LIMITS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

SCHEMA = 1
STANDARD = "standard"
EVERYTHING = "everything"
WHO = ("guest setting", "host setting", "guest kernel", "host kernel", "hardware")
"""Who may have to change something; of the kernels their code."""

_MATRIX_KEYS = ("schema", "title", "baseline", "variant", "configuration", "limit", "left_out", "program")
_KEYS = ("name", "title", "description", "scenario")
_CONFIGURATION_KEYS = (*_KEYS, "changes")
_VARIANT_KEYS = (*_KEYS, "every_kernel")


@dataclass(frozen=True)
class Entry:
    """A configuration or a variant."""

    name: str
    """Short, for scripts; may be empty in one variant."""
    title: str
    """For tables."""
    description: str
    """One line about it."""
    scenario: dict[str, Any]
    """A part of a scenario."""
    changes: tuple[str, ...] | None = None
    """Of a configuration: who must change what (:data:`WHO`); None where the file does not say."""
    every_kernel: Mapping[str, Any] = field(default_factory=dict)
    """Of a variant: what every kernel of a configuration gets besides."""


@dataclass(frozen=True)
class Cell:
    """A configuration in a variant: a run to be made."""

    configuration: Entry
    variant: Entry

    @property
    def name(self) -> str:
        """The names of both, for scripts and files."""
        return "+".join(name for name in (self.configuration.name, self.variant.name) if name)

    @property
    def title(self) -> str:
        """The titles of both, for people."""
        return f"{self.configuration.title}, {self.variant.title}" if self.variant.name else self.configuration.title

    @property
    def scenario(self) -> dict[str, Any]:
        """The parts of both."""
        merged = merge(self.configuration.scenario, self.variant.scenario)
        if self.variant.every_kernel and "kernels" in merged:
            merged["kernels"] = [merge(kernel, self.variant.every_kernel) for kernel in merged["kernels"]]
        return merged


@dataclass(frozen=True)
class LimitRow:
    """A row that no run makes: what would be left of a configuration if its walks cost as little as can be."""

    name: str
    title: str
    description: str
    of: str
    """The name of the configuration from whose counters it follows."""
    kind: str
    """One of :data:`nestwalk.what_if.LIMITS`."""


@dataclass(frozen=True)
class LeftOut:
    """A mix of techniques that is not compared."""

    what: str
    why: str


@dataclass(frozen=True)
class Matrix:
    """All configurations in all variants."""

    title: str
    cells: tuple[Cell, ...]
    limits: tuple[LimitRow, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    programs: tuple[Program, ...] = ()
    """What ``nestwalk matrix`` runs."""
    baseline: str = ""
    """The configuration against which pictures show the others; the first one's name if the file names none."""
    options: tuple[str, ...] = ()
    """What has to be said on the command line to get it."""
    place: str = "the matrix"
    """Its file, for messages."""

    def only(self, names: Iterable[str]) -> Matrix:
        """Those of the cells that are called ``names``, in the matrix's order.

        Raises:
            NestwalkError: When there is no such cell.
        """
        wanted = list(names)
        known = [cell.name for cell in self.cells]
        for name in wanted:
            if name not in known:
                raise unknown("configuration", name, known)
        options = (*self.options, *(word for name in wanted for word in ("--only", name)))
        return replace(self, cells=tuple(cell for cell in self.cells if cell.name in wanted), options=options)


def load(name: str) -> Matrix:
    """The matrix called ``name``, or that of the file ``name`` if it ends in ``.toml``.

    Raises:
        NestwalkError: When there is none, or it is not what it should be.
    """
    if name.endswith(".toml"):
        text = scenario.read_text(Path(name))
        return replace(parse(text, name), options=("--matrix", name))
    shelf = resources.files("nestwalk").joinpath("matrices")
    known = sorted(entry.name.removesuffix(".toml") for entry in shelf.iterdir() if entry.name.endswith(".toml"))
    if name not in known:
        raise unknown("matrix", name, known)
    text = shelf.joinpath(f"{name}.toml").read_text(encoding="utf-8")
    return replace(parse(text, f"{name}.toml"), options=("--matrix", name))


def of_tables(dumps: Sequence[str]) -> Matrix:
    """A VM with the page tables of each of the files ``dumps`` (``NAME=FILE`` or ``FILE``), on a host with 4 KiB pages.

    Raises:
        NestwalkError: When there is no such file, or two of them have one name.
    """
    cells = []
    for dump in dumps:
        name, _, file = dump.rpartition("=")
        path = Path(checks.text("a dump of page tables", file))
        with files.telling(path, "cannot be read"):
            is_file = path.is_file()
        if not is_file:
            raise NestwalkError(f"{file}: no such file; linux/harness/outside.py dumps page tables")
        name = name or path.name.split(".")[0]
        part = {"kernels": [{"manager": {"kind": "linux4k"}}, {"dump": str(path.absolute())}]}
        entry = Entry(name, f"VM, tables of {name}", f"the guest's page tables are those in {path.name}", part)
        cells.append(Cell(entry, Entry("", "", "", {})))
    if len({cell.name for cell in cells}) < len(cells):
        raise NestwalkError("two of the tables have one name: give NAME=FILE")
    options = tuple(word for dump in dumps for word in ("--tables", dump))
    return Matrix("The page tables of running guests", tuple(cells), options=options)


def parse(text: str, place: str) -> Matrix:
    """The matrix that ``text``, which stands in the file ``place``, describes.

    Raises:
        NestwalkError: When it is not what it should be.
    """
    table = scenario.parse(text, place)
    _check_keys(table, _MATRIX_KEYS, place)
    if table.get("schema") != SCHEMA:
        raise NestwalkError(f"{place}: schema is {table.get('schema')!r}; this version reads schema = {SCHEMA}")
    configurations = _entries(table, "configuration", place)
    variants = _entries(table, "variant", place) if "variant" in table else [Entry("", "", "", {})]
    cells = tuple(Cell(configuration, variant) for variant in variants for configuration in configurations)
    names = [cell.name for cell in cells]
    for name in names:
        if names.count(name) > 1:
            raise NestwalkError(f"{place}: two entries make '{name}'; give each a name of its own")
    limits = tuple(_limit(entry, at, configurations) for entry, at in _tables(table, "limit", place))
    left_out = tuple(LeftOut(*_texts(entry, ("what", "why"), at)) for entry, at in _tables(table, "left_out", place))
    programs = tuple(_program(entry, at) for entry, at in _tables(table, "program", place))
    baseline = table.get("baseline", configurations[0].name)
    if baseline not in [configuration.name for configuration in configurations]:
        raise unknown("baseline", str(baseline), [configuration.name for configuration in configurations])
    return Matrix(str(table.get("title", place)), cells, limits, left_out, programs, baseline, place=place)


def _tables(table: Mapping[str, Any], kind: str, place: str) -> list[tuple[Mapping[str, Any], str]]:
    """The entries ``[[kind]]``, each with its place."""
    found = table.get(kind, [])
    if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
        raise NestwalkError(f"{place}: {kind} must be [[{kind}]]")
    return [(entry, f"{place}: {kind} {number}") for number, entry in enumerate(found, 1)]


def _texts(entry: Mapping[str, Any], keys: tuple[str, ...], place: str) -> list[str]:
    """The values of ``keys``, all of which are strings and there."""
    _check_keys(entry, keys, place)
    for key in keys:
        if not isinstance(entry.get(key), str):
            raise NestwalkError(f'{place}: needs {key} = "..."')
    return [entry[key] for key in keys]


def _limit(entry: Mapping[str, Any], place: str, configurations: list[Entry]) -> LimitRow:
    limit = LimitRow(*_texts(entry, ("name", "title", "description", "of", "kind"), place))
    if limit.kind not in LIMITS:
        raise NestwalkError(f"{place}: {unknown('kind', limit.kind, LIMITS)}")
    known = [configuration.name for configuration in configurations]
    if limit.of not in known:
        raise NestwalkError(f"{place}: {unknown('configuration', limit.of, known)}")
    if limit.name in known:
        raise NestwalkError(f"{place}: '{limit.name}' is a configuration already")
    return limit


def _program(entry: Mapping[str, Any], place: str) -> Program:
    _check_keys(entry, ("name", "title", "workload", "quick"), place)
    name, title, workload = entry.get("name"), entry.get("title"), entry.get("workload")
    quick = entry.get("quick", workload)
    if not isinstance(name, str) or not isinstance(title, str):
        raise NestwalkError(f"{place}: needs a name and a title")
    if not isinstance(workload, dict) or not isinstance(quick, dict):
        raise NestwalkError(f'{place}: workload and quick must be tables, such as workload = {{ trace = "redis" }}')
    return Program(name, title, workload, quick)


def _entries(table: Mapping[str, Any], kind: str, place: str) -> list[Entry]:
    found = _tables(table, kind, place)
    if not found:
        raise NestwalkError(f"{place}: needs at least one [[{kind}]]")
    keys = _CONFIGURATION_KEYS if kind == "configuration" else _VARIANT_KEYS
    return [_entry(entry, at, keys) for entry, at in found]


def _entry(entry: Mapping[str, Any], place: str, keys: tuple[str, ...]) -> Entry:
    _check_keys(entry, keys, place)
    name, scenario = entry.get("name"), entry.get("scenario", {})
    texts = [entry.get("title", name), entry.get("description", "")]
    if not isinstance(name, str) or not all(isinstance(text, str) for text in texts):
        raise NestwalkError(f"{place}: needs a name, and texts must be strings")
    if "/" in name or name.startswith("."):
        raise NestwalkError(f"{place}: the name '{name}' cannot name a file; leave out slashes and leading dots")
    if not isinstance(scenario, dict):
        raise NestwalkError(f"{place}: scenario must be a table")
    changes, every_kernel = entry.get("changes"), entry.get("every_kernel", {})
    if changes is not None and not isinstance(changes, list):
        raise NestwalkError(f"{place}: changes must be a list of {', '.join(WHO)}")
    for who in changes or ():
        if who not in WHO:
            raise NestwalkError(f"{place}: {unknown('change', str(who), WHO)}")
    if not isinstance(every_kernel, dict):
        raise NestwalkError(f"{place}: every_kernel must be a table")
    return Entry(name, texts[0], texts[1], scenario, None if changes is None else tuple(changes), every_kernel)


def _check_keys(table: Mapping[str, Any], known: tuple[str, ...], place: str) -> None:
    for key in table:
        if key not in known:
            raise NestwalkError(f"{place}: {unknown('key', key, known)}")


def merge(one: Mapping[str, Any], two: Mapping[str, Any]) -> dict[str, Any]:
    """Both, tables joined and else the value of ``two`` where they differ."""
    merged = dict(one)
    for key, value in two.items():
        old = merged.get(key)
        merged[key] = merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged
