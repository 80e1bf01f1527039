# SPDX-License-Identifier: MIT OR Apache-2.0
"""One colour a technique, the same in every picture; a configuration has that of the last technique it names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nestwalk import techniques

if TYPE_CHECKING:
    from nestwalk.matrix import Entry

PLAIN = "#8a929c"
"""Rows that change nothing."""
ROLES = {"limit": "#b3264a", "setup": "#a0704f"}
"""Rows that are no advice."""


def of(entry: Entry) -> str:
    """The colour of a configuration."""
    if entry.role in ROLES:
        return ROLES[entry.role]
    return techniques.find(entry.techniques[-1]).colour if entry.techniques else PLAIN
