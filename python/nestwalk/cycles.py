# SPDX-License-Identifier: MIT OR Apache-2.0
"""Cycles of a run by what they are spent on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from nestwalk.counters import Cycles

Part = Literal["work", "data", "walk", "os"]
"""What cycles are spent on."""


def by_part(cycles: Cycles) -> dict[str, int]:
    """Them all by name, for who goes through them."""
    return {"work": cycles["work"], "data": cycles["data"], "walk": cycles["walk"], "os": cycles["os"]}


def total(cycles: Cycles) -> int:
    """Their sum."""
    return sum(by_part(cycles).values())
