# SPDX-License-Identifier: MIT OR Apache-2.0
"""The rows of a comparison in the order of its tables: by variant, then by who must act, the plain VM first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nestwalk.comparisons import Comparison

HEADS = {
    "plain": "held against",
    "settings": "settings",
    "kernel patch": "kernel patches",
    "hardware": "new hardware",
    "": "",
    "limit": "limits, not to be had in a VM",
    "setup": "other set-ups",
}
"""What a section is called, in the order of tables."""


@dataclass(frozen=True)
class Section:
    """Rows that belong together."""

    variant: str
    head: str
    """One of the values of :data:`HEADS`."""
    rows: tuple[dict[str, Any], ...]

    @property
    def title(self) -> str:
        """Both, for people."""
        return ": ".join(part for part in (self.variant, self.head) if part)


def of(done: Comparison) -> list[Section]:
    """The sections of a comparison; empty ones are left out."""
    rows = done.rows
    sections = []
    for variant in dict.fromkeys(row["variant"] for row in rows):
        own = [row for row in rows if row["variant"] == variant]
        plain = plain_of(done, own)
        for kind, head in HEADS.items():
            members = tuple(row for row in own if _kind(row, plain) == kind)
            if members:
                sections.append(Section(variant, head, members))
    return sections


def plain_of(done: Comparison, rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The row among ``rows``, all of one variant, against which they are held; None if it is not there."""
    baseline = done.plan.matrix.baseline
    return next((row for row in rows if row["configuration"].split("+")[0] == baseline and row["kind"] == "run"), None)


def _kind(row: dict[str, Any], plain: dict[str, Any] | None) -> str:
    """The key of the row's section."""
    if row is plain:
        return "" if row["changes"] is None else "plain"  # a matrix that names nobody has no such sections
    return row["who"] or "" if row["role"] == "advice" else str(row["role"])
