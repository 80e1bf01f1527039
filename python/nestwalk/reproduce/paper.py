# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a paper says: its figures as data, from a TOML file beside this module."""

from __future__ import annotations

import tomllib
from enum import StrEnum
from importlib import resources
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from nestwalk.errors import NestwalkError, unknown

TOLERANCE = 0.2
"""A figure of ours is within a paper's if it is off by at most this share of it."""


class Relation(StrEnum):
    """What a paper says of a value: that it is a number, or how it stands to a bound."""

    EQUALS = "equals"
    BELOW = "below"
    """At most the bound."""
    ABOVE = "above"
    """At least the bound."""
    WITHIN = "within"
    """At most the bound in absolute value."""


class Verdict(StrEnum):
    """How our value stands to the paper's."""

    WITHIN = "within"
    """A figure: off by at most :data:`TOLERANCE` of the paper's value, or, where that is 0, rounded to it."""
    OFF = "off"
    """A figure: off by more."""
    KEPT = "bound kept"
    BROKEN = "bound broken"
    UNAVAILABLE = "unavailable"
    OURS = "ours alone"
    """The paper gives no value: an experiment, or what its words are held against."""


class Strict(BaseModel):
    """A table in which nothing is unknown and nothing is converted."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Claim(Strict):
    """A value that the paper gives."""

    key: str
    """Its name in the paper's module, which makes our value."""
    what: str
    """For people."""
    unit: str
    paper: float | None = None
    """The paper's value, or the bound; None where it gives none."""
    relation: Relation = Field(default=Relation.EQUALS, strict=False)
    note: str = ""
    """What to know of it whatever comes out."""

    def verdict(self, ours: float | str) -> Verdict:
        """How ``ours`` stands to the paper's value; a sentence is no value.

        Bounds are compared as they are, without rounding.
        """
        if isinstance(ours, str):
            return Verdict.UNAVAILABLE
        if self.paper is None:
            return Verdict.OURS
        if self.relation is Relation.EQUALS:
            return Verdict.WITHIN if _is_near(ours, self.paper) else Verdict.OFF
        keeps = {
            Relation.BELOW: ours <= self.paper,
            Relation.ABOVE: ours >= self.paper,
            Relation.WITHIN: abs(ours) <= self.paper,
        }
        return Verdict.KEPT if keeps[self.relation] else Verdict.BROKEN


def _is_near(ours: float, paper: float) -> bool:
    if paper == 0:
        return round(ours) == 0
    return abs(ours - paper) <= TOLERANCE * abs(paper)


class Figure(Strict):
    """A figure or table of the paper."""

    name: str
    title: str
    text: str
    """What it shows, and how it was made here."""
    claims: tuple[Claim, ...] = Field(alias="claim", strict=False, min_length=1)


class _File(Strict):
    schema_: Literal[1] = Field(alias="schema")
    title: str
    citation: str
    machine: str
    """The machine file that its runs use."""
    quick_divisor: int
    """By how much footprints are divided in a quick run."""
    caveats: tuple[str, ...] = Field(strict=False)
    figures: tuple[Figure, ...] = Field(alias="figure", strict=False, min_length=1)


class Paper(_File):
    """A paper."""

    name: str

    @property
    def claims(self) -> dict[str, Claim]:
        """All values by key."""
        return {claim.key: claim for figure in self.figures for claim in figure.claims}


_TABLES: dict[str, type[Strict]] = {"figure": Figure, "claim": Claim}


def load(name: str) -> Paper:
    """The paper called ``name``.

    Raises:
        NestwalkError: When its file is not what it should be.
    """
    file = f"{name.replace('-', '_')}.toml"
    text = resources.files("nestwalk.reproduce").joinpath(file).read_text(encoding="utf-8")
    return parse(text, name, file)


def parse(text: str, name: str, file: str) -> Paper:
    """The paper called ``name`` that ``text``, which stands in ``file``, describes.

    Raises:
        NestwalkError: When it is not what it should be; one line says where.
    """
    try:
        table = tomllib.loads(text)
        _File.model_validate(table)
        paper = Paper.model_validate({**table, "name": name})
    except tomllib.TOMLDecodeError as error:
        raise NestwalkError(f"{file}: {error}") from error
    except ValidationError as error:
        raise NestwalkError(f"{file}: {_refusal(error)}") from error
    for kind, keys in (("figure", [figure.name for figure in paper.figures]), ("claim", _keys(paper))):
        twice = sorted({key for key in keys if keys.count(key) > 1})
        if twice:
            raise NestwalkError(f"{file}: two {kind}s are called '{twice[0]}'; give each a name of its own")
    return paper


def _keys(paper: Paper) -> list[str]:
    return [claim.key for figure in paper.figures for claim in figure.claims]


def _refusal(error: ValidationError) -> str:
    """The first thing that is wrong, with its place: an unknown key before one that is missing for it."""
    found = error.errors()
    first = next((one for one in found if one["type"] == "extra_forbidden"), found[0])
    *above, last = first["loc"]
    place = "".join(f"{part} {number + 1}: " for part, number in zip(above[::2], above[1::2], strict=False))  # type: ignore[operator]
    if first["type"] == "extra_forbidden":
        fields = _TABLES.get(str(above[-2]) if above else "", _File).model_fields
        known = [field.alias or name for name, field in fields.items()]
        return f"{place}{unknown('key', str(last), known)}"
    return f"{place}{last}: {first['msg']}"
