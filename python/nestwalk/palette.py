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

SERIES = {
    "EPT": PLAIN,
    "stock": PLAIN,
    "DS-1": "#dbd673",
    "DS-2": "#c2ba39",
    "DS-3": "ds",
    "PTEMagnet": "ptemagnet",
    "HugeGPT": "hugegpt",
    "shadow paging": "shadow",
    "Ingens": "ingens",
    "HawkEye": "hawkeye",
    "FreeBSD": "freebsd",
    "Sync-1": "#f2a6f2",
    "Sync-64": "quicksilver",
    "P1": "#f5b895",
    "P1g": "#f5b895",
    "P1+P2": "asap",
    "P1g+P2g": "#eb905a",
    "P1g+P1h": "asap",
    "all": "#943f00",
}
"""Of series in the papers' figures: a technique's, or lighter and darker ones of it for its variants."""


def of_series(name: str) -> str | None:
    """The colour of a series; None if it stands for no technique."""
    found = SERIES.get(name)
    return found if found is None or found.startswith("#") else techniques.find(found).colour


def of(entry: Entry) -> str:
    """The colour of a configuration."""
    if entry.role in ROLES:
        return ROLES[entry.role]
    return techniques.find(entry.techniques[-1]).colour if entry.techniques else PLAIN
