# SPDX-License-Identifier: MIT OR Apache-2.0
"""Why a figure of ours is off the paper's: sentences from ``why_off.toml``, for the page."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from nestwalk.errors import NestwalkError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FILE = "why_off.toml"
SCHEMA = 1
TOLERANCE = 0.2
"""A value is off if it differs from the paper's by more than this share of it."""
UNKNOWN = "It is not known why."
DIVIDED = "Footprints are divided in a quick run: page tables sit higher in the caches than the paper's."


def is_off(row: Mapping[str, Any]) -> bool:
    """Whether our value is off the paper's; what is unavailable, or has no figure beside it, is not."""
    if "verdict" in row:
        return row["verdict"] in ("off", "bound broken")
    return row["ratio"] is not None and abs(row["ratio"] - 1) > TOLERANCE


def explanation(paper: str, figure: str, rows: Sequence[Mapping[str, Any]], *, divided: bool) -> str | None:
    """Why values of ``rows``, those of ``figure``, are off; None if none is. ``divided``: so are footprints."""
    if not any(map(is_off, rows)):
        return None
    said = known().get(paper, {}).get(figure, UNKNOWN)
    return f"{said} {DIVIDED}" if divided else said


@cache
def known() -> dict[str, dict[str, str]]:
    """All explanations by paper and figure.

    Raises:
        NestwalkError: When the file is of another version.
    """
    table = tomllib.loads(resources.files("nestwalk.reproduce").joinpath(FILE).read_text(encoding="utf-8"))
    if table.pop("schema") != SCHEMA:
        raise NestwalkError(f"{FILE}: this version reads schema = {SCHEMA}")
    return table
