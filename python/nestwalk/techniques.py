# SPDX-License-Identifier: MIT OR Apache-2.0
"""What each technique is, who must act for it, and how to get it: the facts of ``techniques.toml``."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from nestwalk.errors import NestwalkError, unknown

FILE = "techniques.toml"
SCHEMA = 1

WHO = ("guest setting", "host setting", "guest kernel", "host kernel", "hardware")
"""Who may have to change something; of the kernels their code."""

CLASSES = ("settings", "kernel patch", "hardware")
"""The same by what it takes: anybody's root shell, a kernel of one's own, a new processor."""

_KEYS = {"name", "colour", "title", "sentence", "who", "short", "source", "link", "get", "check", "mind", "costs"}


@dataclass(frozen=True)
class Step:
    """A line to type or to write, and where."""

    where: str
    """``guest``, ``host``, ``QEMU`` ...; empty where ``line`` is a sentence."""
    line: str


@dataclass(frozen=True)
class Cost:
    """What a technique costs besides the work of setting it up, as its documentation has it."""

    of: str
    """``memory`` or ``latency``."""
    sentence: str
    source: str
    """Where that is written: a link."""


@dataclass(frozen=True)
class Technique:
    """A technique."""

    name: str
    colour: str
    """In every picture."""
    title: str
    sentence: str
    """What it does."""
    who: tuple[str, ...]
    """Of :data:`WHO`."""
    short: str
    """How to get it, for a table's cell."""
    source: str
    """The paper or the kernel's function."""
    link: str
    get: tuple[Step, ...]
    check: tuple[Step, ...]
    """How to see that it took effect."""
    mind: str
    """What to mind."""
    costs: tuple[Cost, ...]


@cache
def known() -> dict[str, Technique]:
    """All techniques by name, in the file's order.

    Raises:
        NestwalkError: When the file is not what it should be.
    """
    return {technique.name: technique for technique in map(_technique, _file()["technique"])}


@cache
def order() -> tuple[str, ...]:
    """The names in the order in which a person should try them."""
    return tuple(_file()["order"])


@cache
def _file() -> dict[str, Any]:
    table = tomllib.loads(resources.files("nestwalk").joinpath(FILE).read_text(encoding="utf-8"))
    if table.get("schema") != SCHEMA:
        raise NestwalkError(f"{FILE}: schema is {table.get('schema')!r}; this version reads schema = {SCHEMA}")
    return table


def find(name: str) -> Technique:
    """The technique called ``name``.

    Raises:
        NestwalkError: When there is none.
    """
    if name not in known():
        raise unknown("technique", name, list(known()))
    return known()[name]


def class_of(changes: tuple[str, ...]) -> str | None:
    """The one of :data:`CLASSES` that ``changes`` (of :data:`WHO`) come to; None if nothing has to change."""
    if "hardware" in changes:
        return CLASSES[2]
    if any(who.endswith("kernel") for who in changes):
        return CLASSES[1]
    return CLASSES[0] if changes else None


def how(names: tuple[str, ...]) -> str:
    """How to get all of ``names``, for a table's cell: what cannot be had makes the rest pointless."""
    shorts = list(dict.fromkeys(find(name).short for name in names))
    nowhere = [find(name).short for name in names if "hardware" in find(name).who]
    return nowhere[0] if nowhere else "; ".join(shorts)


def _technique(table: dict[str, Any]) -> Technique:
    if set(table) != _KEYS:
        raise NestwalkError(f"{FILE}: '{table.get('name')}' lacks or has besides {sorted(_KEYS ^ set(table))}")
    return Technique(
        **{key: table[key] for key in ("name", "colour", "title", "sentence", "short", "source", "link", "mind")},
        who=tuple(table["who"]),
        get=tuple(map(_step, table["get"])),
        check=tuple(map(_step, table["check"])),
        costs=tuple(Cost(*words) for words in table["costs"]),
    )


def _step(words: list[str]) -> Step:
    """A pair of where and a line, or a sentence by itself."""
    *where, line = words
    return Step(where[0] if where else "", line)
