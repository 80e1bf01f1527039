# SPDX-License-Identifier: MIT OR Apache-2.0
"""What the command says beside its results: lines on standard error, as many as ``-q`` and ``-v`` ask for.

Standard error may be closed or full. That never ends a run: what cannot be said there is lost, and nothing else is.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from enum import IntEnum


class Level(IntEnum):
    """How much is said."""

    QUIET = 0
    """Errors only."""
    NORMAL = 1
    """Progress, warnings, and what was written."""
    VERBOSE = 2
    """What is done and how, and the traceback of an error."""


_level = Level.NORMAL


def level() -> Level:
    """How much is said now."""
    return _level


def set_level(chosen: Level) -> None:
    """Says so much from now on."""
    global _level  # noqa: PLW0603 (one command line, one level)
    _level = chosen


def line(text: str) -> None:
    """A line on standard error, whatever the level."""
    with suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


def note(text: str) -> None:
    """A line for people who did not ask for quiet."""
    if _level >= Level.NORMAL:
        line(text)


def error(text: str) -> None:
    """That something failed, in one line, whatever the level."""
    line(f"nestwalk: {' '.join(text.split())}")


def warn(text: str) -> None:
    """A warning, in one line."""
    note(f"nestwalk: warning: {' '.join(text.split())}")


def detail(text: str) -> None:
    """A line for people who asked for more."""
    if _level >= Level.VERBOSE:
        line(f"nestwalk: {text}")
