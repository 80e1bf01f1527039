# SPDX-License-Identifier: MIT OR Apache-2.0
"""A TOML file that a user wrote, read so that a message names its line and its key."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from nestwalk import _native
from nestwalk.errors import NestwalkError, unknown

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

KeyPath = tuple[str | int, ...]
"""Names of keys, and numbers of elements of arrays, outermost first."""

SHOWN_MAX = 60
"""Characters of a wrong value in a message."""


def parse(text: str, place: str) -> dict[str, Any]:
    """What the TOML ``text``, of the file ``place``, says.

    Raises:
        NestwalkError: When it is no TOML; with file, line and column, as the engine has them for its own files.
    """
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        _native.toml_check(place, text)
        # What one reader takes and the other does not.
        if isinstance(error, RecursionError):
            raise NestwalkError(f"{place}: tables and arrays are nested too deeply: take some levels out") from error
        raise NestwalkError(f"{place}: {error}") from error


@dataclass(frozen=True)
class Source:
    """A file and its text."""

    file: str
    text: str = field(repr=False)

    def at(self, path: KeyPath, *, of_key: bool = False) -> str:
        """The place of the value at ``path``, or of its key: ``mine.toml:3:1``.

        Of what is not there, the place of the deepest part of the path that is.
        """
        position = _native.toml_position(self.text, [str(name) for name in path], of_key)
        return self.file if position is None else f"{self.file}:{position[0]}:{position[1]}"


@dataclass(frozen=True)
class Table:
    """A table of such a file, whose values are checked as they are read."""

    source: Source
    path: KeyPath
    value: Mapping[str, Any]
    title: str = ""
    """What a message calls it: ``configuration 'vm-4k'``."""
    defaults: Table | None = None
    """Where the values are from that are not its own."""
    own: frozenset[str] = frozenset()
    """The keys that are its own, if there are ``defaults``."""

    def refused(self, key: str, what: object, *more: str | int, of_key: bool = False) -> NestwalkError:
        """That the value of ``key`` (or of what is at ``more`` in it) is wrong; of the table itself if it is empty."""
        path = (*self._home(key), *([key] if key else []), *more)
        title = f"{self.title}: " if self.title else ""
        return NestwalkError(f"{self.source.at(path, of_key=of_key)}: {title}{what}")

    def _home(self, key: str) -> KeyPath:
        """The path of the table that has ``key``."""
        inherited = self.defaults is not None and key not in self.own and key in self.defaults.value
        return self.defaults.path if inherited and self.defaults is not None else self.path

    def titled(self, title: str) -> Table:
        """The same under a better name."""
        return replace(self, title=title)

    def only(self, known: Collection[str]) -> None:
        """Refuses keys that nobody reads.

        Raises:
            NestwalkError: At the first one, with the nearest that there is.
        """
        for key in self.value:
            if key not in known:
                raise self.refused(key, unknown("key", key, known), of_key=True)

    def schema(self, version: int) -> None:
        """Refuses a file of another version.

        Raises:
            NestwalkError: When ``schema`` is missing or is not ``version``.
        """
        found = self.value.get("schema")
        if isinstance(found, bool) or found != version:
            what = "is missing; give" if found is None else f"is {_shown(found)}; this version reads"
            raise self.refused("schema", f"schema {what} schema = {version}")

    def whole(self, key: str, least: int, most: int, default: int | None = None) -> int:
        """A whole number in a range; required if there is no ``default``.

        Raises:
            NestwalkError: When it is missing or something else.
        """
        value = self.value.get(key, default)
        if value is None:
            raise self.refused("", f"{key} is missing; give a whole number from {least} to {most:,}")
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self.wrong(key, value, f"a whole number from {least} to {most:,}")
        return value

    def number(self, key: str, least: float, most: float) -> float:
        """A number above ``least``, at most ``most``; the key is there.

        Raises:
            NestwalkError: When it is something else.
        """
        value = self.value[key]
        if isinstance(value, bool) or not isinstance(value, int | float) or not least < value <= most:
            raise self.wrong(key, value, f"a number above {least:g}, at most {most:g}")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """A text; required if there is no ``default``.

        Raises:
            NestwalkError: When it is missing or something else.
        """
        value = self.value.get(key, default)
        if value is None:
            raise self.refused("", f'{key} is missing; give {key} = "..."')
        if not isinstance(value, str):
            raise self.wrong(key, value, "a text in quotes")
        return value

    def one_of(self, key: str, known: Collection[str], default: str | None = None) -> str:
        """One of a few names.

        Raises:
            NestwalkError: When it is missing or something else.
        """
        value = self.text(key, default)
        if value not in known:
            raise self.refused(key, unknown(key, value, known))
        return value

    def several_of(self, key: str, known: Collection[str], kind: str) -> tuple[str, ...] | None:
        """A list of such names, each a ``kind``; None if there is no such key.

        Raises:
            NestwalkError: When it is something else.
        """
        value = self.value.get(key)
        if value is None:
            return None
        if not isinstance(value, list):
            raise self.wrong(key, value, f"a list of {', '.join(known)}")
        for number, name in enumerate(value):
            if not isinstance(name, str):
                raise self.refused(key, f"{key} has {_shown(name)}: give a list of texts in quotes", number)
            if name not in known:
                raise self.refused(key, unknown(kind, name, known), number)
        return tuple(value)

    def table(self, key: str, example: str, *, required: bool = False) -> dict[str, Any]:
        """A table that is passed on as it is; an empty one if it is not there.

        Raises:
            NestwalkError: When it is something else, or missing.
        """
        value = self.value.get(key)
        if value is None:
            if required:
                raise self.refused("", f"{key} is missing; give a table, such as {key} = {example}")
            return {}
        if not isinstance(value, dict):
            raise self.wrong(key, value, f"a table, such as {key} = {example}")
        return value

    def tables(self, key: str) -> list[Table]:
        """The entries ``[[key]]``.

        Raises:
            NestwalkError: When there is something else under that name.
        """
        found = self.value.get(key, [])
        if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
            raise self.wrong(key, found, f"tables, each headed [[{key}]]")
        return [
            Table(self.source, (*self._home(key), key, number), entry, f"{key} {number + 1}")
            for number, entry in enumerate(found)
        ]

    def inner(self, key: str) -> Table:
        """The table ``[key]``; an empty one if it is not there.

        Raises:
            NestwalkError: When there is something else under that name.
        """
        found = self.value.get(key, {})
        if not isinstance(found, dict):
            raise self.wrong(key, found, f"a table, headed [{key}]")
        return Table(self.source, (*self.path, key), found, f"[{key}]")

    def over(self, defaults: Table) -> Table:
        """This with the values of ``defaults`` where it has none; those keep their own places in messages."""
        return replace(self, defaults=defaults, value={**defaults.value, **self.value}, own=frozenset(self.value))

    def wrong(self, key: str, value: object, wanted: str) -> NestwalkError:
        """That a value is of a wrong sort."""
        return self.refused(key, f"{key} = {_shown(value)}: give {wanted}")


def _shown(value: object) -> str:
    """A value as a file writes it, of a reasonable length."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "a table"
    text = (
        repr(value) if isinstance(value, str | int | float) else "an array" if isinstance(value, list) else str(value)
    )
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}..."
