# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a paper says: its figures as data, from a TOML file beside this module."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib import resources
from typing import Any

from nestwalk.errors import NestwalkError

SCHEMA = 1


@dataclass(frozen=True)
class Claim:
    """A value that the paper gives."""

    key: str
    """Its name in the paper's module, which makes our value."""
    what: str
    """For people."""
    paper: float | None
    """The paper's value; None where it only says something in words."""
    unit: str
    note: str
    """What to know of it whatever comes out."""


@dataclass(frozen=True)
class Figure:
    """A figure or table of the paper."""

    name: str
    title: str
    text: str
    """What it shows, and how it was made here."""
    claims: tuple[Claim, ...]


@dataclass(frozen=True)
class Paper:
    """A paper."""

    name: str
    title: str
    citation: str
    machine: str
    """The machine file that its runs use."""
    quick_divisor: int
    """By how much footprints are divided in a quick run."""
    caveats: tuple[str, ...]
    figures: tuple[Figure, ...]

    @property
    def claims(self) -> dict[str, Claim]:
        """All values by key."""
        return {claim.key: claim for figure in self.figures for claim in figure.claims}


def load(name: str) -> Paper:
    """The paper called ``name``.

    Raises:
        NestwalkError: When its file is not what it should be.
    """
    file = f"{name.replace('-', '_')}.toml"
    table = tomllib.loads(resources.files("nestwalk.reproduce").joinpath(file).read_text(encoding="utf-8"))
    if table["schema"] != SCHEMA:
        raise NestwalkError(f"{file}: schema is {table['schema']!r}; this version reads schema = {SCHEMA}")
    return Paper(
        name=name,
        title=table["title"],
        citation=table["citation"],
        machine=table["machine"],
        quick_divisor=table["quick_divisor"],
        caveats=tuple(table["caveats"]),
        figures=tuple(_figure(figure) for figure in table["figure"]),
    )


def _figure(table: dict[str, Any]) -> Figure:
    claims = (
        Claim(row["key"], row["what"], row.get("paper"), row["unit"], row.get("note", "")) for row in table["claim"]
    )
    return Figure(table["name"], table["title"], table["text"], tuple(claims))
