# SPDX-License-Identifier: MIT OR Apache-2.0
"""What is compared: a matrix file (TOML) of configurations and variants, each a part of a scenario.

The one that comes with Nestwalk is ``matrices/standard.toml``. Adding a technique to a comparison is adding an entry to
such a file.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nestwalk.errors import NestwalkError, unknown, unreadable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

SCHEMA = 1
STANDARD = "standard"
_KEYS = ("name", "title", "description", "scenario")


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
        return merge(self.configuration.scenario, self.variant.scenario)


@dataclass(frozen=True)
class Matrix:
    """All configurations in all variants."""

    title: str
    cells: tuple[Cell, ...]

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
        return Matrix(self.title, tuple(cell for cell in self.cells if cell.name in wanted))


def load(name: str) -> Matrix:
    """The matrix called ``name``, or that of the file ``name`` if it ends in ``.toml``.

    Raises:
        NestwalkError: When there is none, or it is not what it should be.
    """
    if name.endswith(".toml"):
        path = Path(name)
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise unreadable(path, error) from error
        return parse(text, name)
    shelf = resources.files("nestwalk").joinpath("matrices")
    known = sorted(entry.name.removesuffix(".toml") for entry in shelf.iterdir() if entry.name.endswith(".toml"))
    if name not in known:
        raise unknown("matrix", name, known)
    return parse(shelf.joinpath(f"{name}.toml").read_text(encoding="utf-8"), f"{name}.toml")


def of_tables(dumps: Sequence[str]) -> Matrix:
    """A VM with the page tables of each of the files ``dumps`` (``NAME=FILE`` or ``FILE``), on a host with 4 KiB pages.

    Raises:
        NestwalkError: When there is no such file, or two of them have one name.
    """
    cells = []
    for dump in dumps:
        name, _, file = dump.rpartition("=")
        path = Path(file)
        if not path.is_file():
            raise NestwalkError(f"{file}: no such file; linux/harness/outside.py dumps page tables")
        name = name or path.name.split(".")[0]
        part = {"kernels": [{"manager": {"kind": "linux4k"}}, {"dump": str(path.absolute())}]}
        entry = Entry(name, f"VM, tables of {name}", f"the guest's page tables are those in {path.name}", part)
        cells.append(Cell(entry, Entry("", "", "", {})))
    if len({cell.name for cell in cells}) < len(cells):
        raise NestwalkError("two of the tables have one name: give NAME=FILE")
    return Matrix("The page tables of running guests", tuple(cells))


def parse(text: str, place: str) -> Matrix:
    """The matrix that ``text``, which stands in the file ``place``, describes.

    Raises:
        NestwalkError: When it is not what it should be.
    """
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise NestwalkError(f"{place}: {error}") from error
    _check_keys(table, ("schema", "title", "variant", "configuration"), place)
    if table.get("schema") != SCHEMA:
        raise NestwalkError(f"{place}: schema is {table.get('schema')!r}; this version reads schema = {SCHEMA}")
    configurations = _entries(table, "configuration", place)
    variants = _entries(table, "variant", place) if "variant" in table else [Entry("", "", "", {})]
    cells = tuple(Cell(configuration, variant) for variant in variants for configuration in configurations)
    names = [cell.name for cell in cells]
    for name in names:
        if names.count(name) > 1:
            raise NestwalkError(f"{place}: two entries make '{name}'; give each a name of its own")
    return Matrix(str(table.get("title", place)), cells)


def _entries(table: Mapping[str, Any], kind: str, place: str) -> list[Entry]:
    found = table.get(kind)
    if not isinstance(found, list) or not found or not all(isinstance(entry, dict) for entry in found):
        raise NestwalkError(f"{place}: needs at least one [[{kind}]]")
    return [_entry(entry, f"{place}: {kind} {number}") for number, entry in enumerate(found, 1)]


def _entry(entry: Mapping[str, Any], place: str) -> Entry:
    _check_keys(entry, _KEYS, place)
    name, scenario = entry.get("name"), entry.get("scenario", {})
    texts = [entry.get("title", name), entry.get("description", "")]
    if not isinstance(name, str) or not all(isinstance(text, str) for text in texts):
        raise NestwalkError(f"{place}: needs a name, and texts must be strings")
    if "/" in name or name.startswith("."):
        raise NestwalkError(f"{place}: the name '{name}' cannot name a file; leave out slashes and leading dots")
    if not isinstance(scenario, dict):
        raise NestwalkError(f"{place}: scenario must be a table")
    return Entry(name, texts[0], texts[1], scenario)


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
