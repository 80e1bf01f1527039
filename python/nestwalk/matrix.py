# SPDX-License-Identifier: MIT OR Apache-2.0
"""What is compared: a matrix file (TOML) of configurations and variants, each a part of a scenario.

Those that come with Nestwalk are ``standard.toml``, ``everything.toml``, ``superpages.toml``,
``contiguous.toml`` and ``pairs.toml`` in ``matrices/``. In the last, each ``[[guest]]`` on each
``[[host]]`` is a configuration. Adding a technique to a comparison is adding an entry to such a file.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nestwalk import _native, checks, files, scenario, techniques, toml_file
from nestwalk.errors import NestwalkError, ending, shown, unknown
from nestwalk.program import Program
from nestwalk.techniques import WHO
from nestwalk.toml_file import KeyPath, Source, Table
from nestwalk.what_if import LIMITS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

SCHEMA = 1
STANDARD = "standard"
EVERYTHING = "everything"
SUPERPAGES = "superpages"
CONTIGUOUS = "contiguous"
PAIRS = "pairs"
ROLES = ("advice", "limit", "setup")
"""What a row is to the user: something to do; something that cannot be had; another set-up than theirs."""

_MATRIX_KEYS = (
    *("schema", "title", "baseline", "variant", "configuration"),
    *("host", "guest", "limit", "left_out", "program"),
)
_KEYS = ("name", "title", "description", "scenario")
_CONFIGURATION_KEYS = (*_KEYS, "changes", "techniques", "role")
_VARIANT_KEYS = (*_KEYS, "every_kernel", "host_kernel", "guest_kernel", "not_quick")
_SIDE_KEYS = ("name", "title", "description", "kernel", "changes", "techniques")

NAME_BYTES_MAX = 60
"""Of a name: files are called by a program's, a configuration's and a variant's together."""


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
    host_kernel: Mapping[str, Any] = field(default_factory=dict)
    """Of a variant: what the lowest kernel of a configuration gets besides."""
    guest_kernel: Mapping[str, Any] = field(default_factory=dict)
    """Of a variant: what the uppermost kernel of a configuration gets besides."""
    not_quick: str = ""
    """Of a variant: why a quick run leaves it to a full one; empty where it does not."""
    techniques: tuple[str, ...] | None = None
    """Of a configuration: those of ``techniques.toml`` that it uses; None where the file does not say."""
    role: str = "advice"
    """Of a configuration: one of :data:`ROLES`."""
    path: KeyPath = ()
    """Where it is in its file."""
    sides: tuple[KeyPath, ...] = ()
    """Of a pair: where its kernels are in the file, the host's first."""


@dataclass(frozen=True)
class Side:
    """One half of a pair: a kernel as host or as guest."""

    name: str
    title: str
    description: str
    kernel: dict[str, Any]
    changes: tuple[str, ...] | None
    techniques: tuple[str, ...] | None
    path: KeyPath


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
        kernels = merged.get("kernels")
        # What is no list of tables is refused with its line when it is run.
        if isinstance(kernels, list) and kernels and all(isinstance(kernel, dict) for kernel in kernels):
            kernels = [merge(kernel, self.variant.every_kernel) for kernel in kernels]
            kernels[0] = merge(kernels[0], self.variant.host_kernel)
            kernels[-1] = merge(kernels[-1], self.variant.guest_kernel)
            merged["kernels"] = kernels
        return merged

    def origin(self, path: KeyPath) -> KeyPath | None:
        """Where in the matrix file the value at ``path`` of the cell's scenario comes from; None where not from there.

        Of what is missing, the deepest part that is there.
        """
        # What wins a merge comes first; a path into `every_kernel` lacks the first two names.
        parts: list[tuple[KeyPath, object, int]] = [
            ((*self.variant.path, "scenario"), self.variant.scenario, 0),
            ((*self.configuration.path, "scenario"), self.configuration.scenario, 0),
        ]
        if path[:1] == ("kernels",):
            parts.insert(0, ((*self.variant.path, "every_kernel"), self.variant.every_kernel, 2))
            kernels, number = self.configuration.scenario.get("kernels"), path[1:2]
            if isinstance(kernels, list) and number == (len(kernels) - 1,):
                parts.insert(0, ((*self.variant.path, "guest_kernel"), self.variant.guest_kernel, 2))
            if number == (0,):
                parts.insert(0, ((*self.variant.path, "host_kernel"), self.variant.host_kernel, 2))
            if self.configuration.sides and number and isinstance(number[0], int):
                # The pair has no scenario of its own in the file.
                side = self.configuration.sides[number[0]]
                parts[-1] = (side, self.configuration.scenario["kernels"][number[0]], 2)
        best: tuple[int, KeyPath | None] = (0, None)
        for head, part, skipped in parts:
            depth = _depth(part, path[skipped:])
            if depth and depth + skipped > best[0]:
                best = (depth + skipped, (*head, *path[skipped:]))
        return best[1]


def _depth(value: object, path: KeyPath) -> int:
    """How much of ``path`` is there in ``value``."""
    for depth, name in enumerate(path):
        try:
            value = value[name]  # type: ignore[index]
        except (LookupError, TypeError):
            return depth
    return len(path)


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
    """A mix of techniques that is not compared, or a variant that this run leaves out."""

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
    source: Source = Source("the matrix", "")  # noqa: RUF009 (a constant)
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

    def for_quick(self) -> Matrix:
        """What of it a quick run makes; the rest is left out, and says why."""
        variants = {cell.variant.name: cell.variant for cell in self.cells if cell.variant.not_quick}
        cells = tuple(cell for cell in self.cells if cell.variant.name not in variants)
        left_out = tuple(LeftOut(one.title, one.not_quick) for one in variants.values())
        return replace(self, cells=cells, left_out=(*self.left_out, *left_out))


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
        with files.telling(Path(name), "cannot be read"):
            is_there = Path(name).exists()
        raise ending(Path(name), "matrix") if is_there else unknown("matrix", name, known)
    text = shelf.joinpath(f"{name}.toml").read_text(encoding="utf-8")
    return replace(parse(text, f"{name}.toml"), options=("--matrix", name))


ASAP_ON_TABLES = (([1], "P1g"), ([1, 2], "P1g+P2g"))
"""Levels that ASAP prefetches of a guest's dumped table, with the paper's names. The host is stock, so none of its."""


def of_tables(dumps: Sequence[str]) -> Matrix:
    """A VM with the page tables of each of the files ``dumps`` (``NAME=FILE`` or ``FILE``), on a host with 4 KiB pages.

    Where a dump says in which regions its kernel sorts tables, ASAP's prefetches of the guest's table follow, by them.

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
            raise NestwalkError(f"{file}: no such file; nestwalk vm tables dumps page tables")
        name = name or path.name.split(".")[0]
        part = {"kernels": [{"manager": {"kind": "linux4k"}}, {"dump": str(path.absolute())}]}
        entry = Entry(name, f"VM, tables of {name}", f"the guest's page tables are those in {path.name}", part)
        cells.append(Cell(entry, Entry("", "", "", {})))
        if _native.tables_have_regions(str(path)):
            for levels, title in ASAP_ON_TABLES:
                key = "".join(f"-p{level}" for level in levels)
                with_asap = Entry(
                    f"{name}-asap{key}",
                    f"VM, tables of {name}, ASAP {title}",
                    f"prefetches of {title} by the regions in {path.name}",
                    {**part, "asap": {"guest_levels": levels}},
                )
                cells.append(Cell(with_asap, Entry("", "", "", {})))
    if len({cell.name for cell in cells}) < len(cells):
        raise NestwalkError("two of the tables have one name: give NAME=FILE")
    options = tuple(word for dump in dumps for word in ("--tables", dump))
    return Matrix("The page tables of running guests", tuple(cells), options=options)


def parse(text: str, place: str) -> Matrix:
    """The matrix that ``text``, which stands in the file ``place``, describes.

    Raises:
        NestwalkError: When it is not what it should be; with the file, the line, and the key.
    """
    file = Table(Source(place, text), (), toml_file.parse(text, place))
    file.only(_MATRIX_KEYS)
    file.schema(SCHEMA)
    configurations = [*_entries(file, "configuration", _CONFIGURATION_KEYS), *_pairs(file)]
    if not configurations:
        raise file.refused("configuration", "there is no [[configuration]]; give at least one, so there is what to run")
    variants = _entries(file, "variant", _VARIANT_KEYS) or [Entry("", "", "", {})]
    cells = tuple(Cell(configuration, variant) for variant in variants for configuration in configurations)
    _refuse_twins(file, [(cell.name, (*cell.configuration.path, "name")) for cell in cells])
    known = [configuration.name for configuration in configurations]
    limits = tuple(_limit(entry, known) for entry in file.tables("limit"))
    _refuse_twins(file, [(limit.name, ("limit", number, "name")) for number, limit in enumerate(limits)])
    left_out = tuple(_left_out(entry) for entry in file.tables("left_out"))
    programs = tuple(program_of(entry) for entry in file.tables("program"))
    _refuse_twins(file, [(program.name, ("program", number, "name")) for number, program in enumerate(programs)])
    baseline = file.one_of("baseline", known, known[0])
    title = file.text("title", place)
    return Matrix(title, cells, limits, left_out, programs, baseline, source=file.source)


def _refuse_twins(file: Table, named: Iterable[tuple[str, KeyPath]]) -> None:
    """Refuses a name that two entries have: results are known by it."""
    first: dict[str, KeyPath] = {}
    for name, path in named:
        if name in first:
            other = file.source.at(first[name]).removeprefix(f"{file.source.file}:").partition(":")[0]
            what = f"the name '{name}' is taken by line {other}; give each entry a name of its own"
            raise NestwalkError(f"{file.source.at(path)}: {what}")
        first[name] = path


def _left_out(entry: Table) -> LeftOut:
    entry.only(("what", "why"))
    return LeftOut(entry.text("what"), entry.text("why"))


def _limit(entry: Table, configurations: list[str]) -> LimitRow:
    keys = ("name", "title", "description", "of", "kind")
    entry.only(keys)
    limit = LimitRow(*(entry.text(key) for key in keys))
    _check_name(entry, limit.name)
    entry = entry.titled(f"limit '{limit.name}'")
    entry.one_of("kind", LIMITS)
    if limit.of not in configurations:
        raise entry.refused("of", unknown("configuration", limit.of, configurations))
    if limit.name in configurations:
        raise entry.refused("name", f"'{limit.name}' is a configuration already; give it another name")
    return limit


def program_of(entry: Table) -> Program:
    """A program as an entry [[program]] has it."""
    entry.only(("name", "title", "workload", "quick"))
    name = entry.text("name")
    _check_name(entry, name)
    entry = entry.titled(f"program '{name}'")
    title = entry.text("title")
    workload = entry.table("workload", '{ trace = "redis" }', required=True)
    quick = entry.table("quick", '{ trace = "redis" }')
    places = [(*entry.path, "workload"), (*entry.path, "quick" if quick else "workload")]
    return Program(name, title, workload, quick or workload, *places)


def _entries(file: Table, kind: str, keys: tuple[str, ...]) -> list[Entry]:
    return [_entry(entry, keys) for entry in file.tables(kind)]


def _entry(entry: Table, keys: tuple[str, ...]) -> Entry:
    name = entry.value.get("name")
    if isinstance(name, str) and name:
        entry = entry.titled(f"{entry.path[0]} '{shown(name)}'")
    entry.only(keys)
    name = entry.text("name")
    _check_name(entry, name, may_be_empty="every_kernel" in keys)
    return Entry(
        name,
        title=entry.text("title", name),
        description=entry.text("description", ""),
        scenario=entry.table("scenario", '{ corunner = "random" }'),
        changes=entry.several_of("changes", WHO, "change"),
        every_kernel=entry.table("every_kernel", "{ levels = 5 }"),
        host_kernel=entry.table("host_kernel", "{ levels = 5 }"),
        guest_kernel=entry.table("guest_kernel", "{ levels = 5 }"),
        not_quick=entry.text("not_quick", ""),
        techniques=entry.several_of("techniques", list(techniques.known()), "technique"),
        role=entry.one_of("role", ROLES, ROLES[0]),
        path=entry.path,
    )


def _pairs(file: Table) -> list[Entry]:
    """Each ``[[guest]]`` on each ``[[host]]``."""
    hosts, guests = ([_side(entry) for entry in file.tables(kind)] for kind in ("host", "guest"))
    for here, there, kind in ((hosts, guests, "guest"), (guests, hosts, "host")):
        if here and not there:
            raise file.refused(kind, f"there is no [[{kind}]]; each [[guest]] on each [[host]] is a configuration")
    return [_pair(guest, host) for guest in guests for host in hosts]


def _side(entry: Table) -> Side:
    entry.only(_SIDE_KEYS)
    name = entry.text("name")
    _check_name(entry, name)
    entry = entry.titled(f"{entry.path[0]} '{name}'")
    return Side(
        name,
        title=entry.text("title", name),
        description=entry.text("description", ""),
        kernel=entry.table("kernel", '{ manager = { kind = "thp" } }', required=True),
        changes=entry.several_of("changes", WHO, "change"),
        techniques=entry.several_of("techniques", list(techniques.known()), "technique"),
        path=entry.path,
    )


def _pair(guest: Side, host: Side) -> Entry:
    def both(one: tuple[str, ...] | None, two: tuple[str, ...] | None) -> tuple[str, ...] | None:
        return None if one is None or two is None else tuple(dict.fromkeys((*one, *two)))

    return Entry(
        f"{guest.name}-on-{host.name}",
        title=f"{guest.title} on {host.title}",
        description=f"guest: {guest.description}; host: {host.description}",
        scenario={"kernels": [host.kernel, guest.kernel]},
        changes=both(guest.changes, host.changes),
        techniques=both(guest.techniques, host.techniques),
        path=guest.path,
        sides=((*host.path, "kernel"), (*guest.path, "kernel")),
    )


def _check_name(entry: Table, name: str, *, may_be_empty: bool = False) -> None:
    """Refuses a name that cannot be part of a file's."""
    if not name and not may_be_empty:
        raise entry.refused("name", "the name is empty; results are known by it, so give one")
    if len(name.encode()) > NAME_BYTES_MAX:
        raise entry.refused("name", f"the name has {len(name.encode())} bytes; give at most {NAME_BYTES_MAX}")
    if "/" in name or name.startswith((".", "-")) or not name.isprintable():
        what = f"the name {name!r} cannot name a file; leave out slashes, control characters, and a leading dot or dash"
        raise entry.refused("name", what)


def merge(one: Mapping[str, Any], two: Mapping[str, Any]) -> dict[str, Any]:
    """Both, tables joined and else the value of ``two`` where they differ."""
    merged = dict(one)
    for key, value in two.items():
        old = merged.get(key)
        merged[key] = merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged
