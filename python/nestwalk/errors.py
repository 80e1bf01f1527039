# SPDX-License-Identifier: MIT OR Apache-2.0
"""What Nestwalk says when something is wrong: one line that names the place and the remedy."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

EXIT_ERROR = 2
"""Exit code of the command when the input or the request was bad; nothing was written."""

LISTED_MAX = 40
"""Of more known names than this, an error lists the first ones only."""

EXIT_INTERRUPTED = 130
"""Exit code of the command after Ctrl-C (128 + SIGINT, as shells have it); nothing was written."""


class NestwalkError(Exception):
    """Bad input or an impossible request. Its text is one line, made for people.

    The engine raises it too, so this is the one exception to catch.
    """


def unknown(kind: str, name: str, known: Iterable[str]) -> NestwalkError:
    """That ``name`` is no ``kind``, with the nearest one that is."""
    names = list(dict.fromkeys(known))
    nearest = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f", did you mean '{nearest[0]}'?" if nearest else ""
    more = f" and {len(names) - LISTED_MAX} more" if len(names) > LISTED_MAX else ""
    there = f"there are {', '.join(names[:LISTED_MAX])}{more}" if names else "there are none"
    return NestwalkError(f"unknown {kind} '{name}'{hint}; {there}")


def unreadable(path: Path, error: OSError) -> NestwalkError:
    """That a file cannot be read, and why."""
    return NestwalkError(f"{path}: {error.strerror or error}")
