# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a quick run cannot tell: values of which it was measured to part from a full run.

``packaging/quick.py`` makes both and writes ``quick.toml``; the values that it names are unavailable in a quick run.
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from nestwalk.errors import NestwalkError
from nestwalk.reproduce.paper import Relation
from nestwalk.reproduce.plan import UNAVAILABLE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nestwalk.reproduce.paper import Claim
    from nestwalk.reproduce.plan import Value

FILE = "quick.toml"
TOLERANCE = 1 / 3
"""A quick run tells a figure if it has the full run's sign and is off by at most this share of it."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Parting(_Strict):
    """A value of both sizes, where they part."""

    quick: float | str
    full: float | str


class Compared(_Strict):
    """How a paper's quick run was held against a full one."""

    scale: str
    """Of the quick run, in words; of another scale nothing is known."""
    model: str
    """The version of the model that made both."""
    seed: int
    parts: dict[str, Parting]
    """By key of the claim."""


class _File(_Strict):
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


def compared(paper: str) -> Compared | None:
    """How the quick run of ``paper`` was held against a full one; None if it was not."""
    return _known().get(paper)


def told(paper: str, scale: str, values: Mapping[str, Value]) -> dict[str, Value]:
    """The ``values`` of a quick run of that ``scale``; a sentence where it is known to part from a full run."""
    found = compared(paper)
    if found is None or found.scale != scale:
        return dict(values)
    return {**values, **{key: _sentence(part) for key, part in found.parts.items() if key in values}}


def remark(paper: str, scale: str) -> str:
    """What is known of quick runs of ``paper``, for the end of a summary."""
    found = compared(paper)
    if found is None or found.scale != scale:
        return "how far this quick run is from a full one was not measured"
    return f"{len(found.parts)} values are left to a full run, as a quick one was measured to part from it there"


def _sentence(part: Parting) -> str:
    quick, full = (f"{value:.3g}" if isinstance(value, float) else "none" for value in (part.quick, part.full))
    return f"{UNAVAILABLE}a quick run gave {quick} where a full one gave {full}; make it without --quick"


@cache
def _known() -> dict[str, Compared]:
    text = resources.files("nestwalk.reproduce").joinpath(FILE).read_text(encoding="utf-8")
    try:
        table = tomllib.loads(text)
        return _File.model_validate({"schema_": table.pop("schema", None), **table}).paper
    except (tomllib.TOMLDecodeError, ValidationError) as error:
        raise NestwalkError(f"{FILE}: {error}; make it again with packaging/quick.py") from error
