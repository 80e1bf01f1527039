# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a quick run cannot tell: values of which it was measured to part from a full run.

``packaging/quick.py`` makes both and writes ``quick.toml``; the values that it names are unavailable in a quick run.
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Literal

from pydantic import ValidationError

from nestwalk.errors import NestwalkError
from nestwalk.reproduce.paper import Relation, Strict
from nestwalk.reproduce.plan import UNAVAILABLE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nestwalk.reproduce.paper import Claim, Paper
    from nestwalk.reproduce.plan import Value

FILE = "quick.toml"
TOLERANCE = 1 / 3
"""A quick run tells a figure if it has the full run's sign and is off by at most this share of it."""


class Parting(Strict):
    """A value of both sizes, where they part."""

    quick: float | str
    full: float | str


class Compared(Strict):
    """How a paper's quick run was held against a full one."""

    scale: str
    """Of the quick run, in words; of another scale nothing is known."""
    model: str
    """The version of the model that made both."""
    seed: int
    parts: dict[str, Parting]
    """By key of the claim."""


class _File(Strict):
    schema_: Literal[1]
    paper: dict[str, Compared]


def agrees(claim: Claim, quick: Value, full: Value) -> bool:
    """Whether ``quick`` tells what ``full`` does.

    A bound: whether it is kept. A figure: its sign, and its size within a third. What is not known in full need not be
    known in a quick run.
    """
    if isinstance(full, str):
        return isinstance(quick, str)
    if isinstance(quick, str):
        return False
    if claim.paper is not None and claim.relation is not Relation.EQUALS:
        return claim.verdict(quick) == claim.verdict(full)
    return quick * full >= 0 and abs(quick - full) <= TOLERANCE * abs(full)


def check(paper: Paper) -> None:
    """Refuses what is kept of ``paper`` if it cannot be used, so that no run is made before that is seen.

    Raises:
        NestwalkError: When the file is not what it should be, or names a value that the paper does not have.
    """
    found = known().get(paper.name)
    strange = sorted(found.parts.keys() - paper.claims.keys()) if found else []
    if strange:
        raise NestwalkError(f"{FILE}: {paper.name} has no value {strange[0]!r}; make it again with packaging/quick.py")


def compared(paper: str, scale: str) -> Compared | None:
    """How the quick run of ``paper`` was held against a full one; None if one of that ``scale`` was not."""
    found = known().get(paper)
    return found if found and found.scale == scale else None


def told(paper: str, scale: str, values: Mapping[str, Value]) -> dict[str, Value]:
    """The ``values`` of a quick run of that ``scale``; a sentence where it is known to part from a full run."""
    found = compared(paper, scale)
    parts = {key: part for key, part in found.parts.items() if key in values} if found else {}
    return {**values, **{key: _sentence(part) for key, part in parts.items()}}


def remark(paper: str, scale: str) -> str:
    """What is known of quick runs of ``paper``, for the end of a summary."""
    found = compared(paper, scale)
    if found is None:
        return "how far this quick run is from a full one was not measured"
    return f"a quick run was measured to part from a full one in {len(found.parts)} values"


def _sentence(part: Parting) -> str:
    from nestwalk.reproduce.pictures import number

    quick, full = ("none" if isinstance(value, str) else number(value) for value in (part.quick, part.full))
    return f"{UNAVAILABLE}a quick run gave {quick} where a full one gave {full}; make it without --quick"


@cache
def known() -> dict[str, Compared]:
    """Of each paper that was compared, how.

    Raises:
        NestwalkError: When the file is not what it should be.
    """
    text = resources.files("nestwalk.reproduce").joinpath(FILE).read_text(encoding="utf-8")
    try:
        table = tomllib.loads(text)
        return _File.model_validate({"schema_": table.pop("schema", None), **table}).paper
    except (tomllib.TOMLDecodeError, ValidationError) as error:
        raise NestwalkError(f"{FILE}: {error}; make it again with packaging/quick.py") from error
