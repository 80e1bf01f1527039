# SPDX-License-Identifier: MIT OR Apache-2.0
"""The standard streams, made safe: closed, full, or unable to show a character.

Standard output carries the results: where it is closed, nothing is begun. Standard error and standard input carry
nothing that a run needs: where they are closed, the run goes on.
"""

from __future__ import annotations

import codecs
import os
import sys
from contextlib import suppress

from nestwalk import say
from nestwalk.errors import EXIT_ERROR

ASCII = {
    "\N{PLUS-MINUS SIGN}": "+-",
    "\N{EN DASH}": "-",
    "\N{EM DASH}": "-",
    "\N{MULTIPLICATION SIGN}": "x",
    "\N{HORIZONTAL ELLIPSIS}": "...",
    "\N{RIGHT SINGLE QUOTATION MARK}": "'",
    "\N{LEFT SINGLE QUOTATION MARK}": "'",
    "\N{LEFT DOUBLE QUOTATION MARK}": '"',
    "\N{RIGHT DOUBLE QUOTATION MARK}": '"',
    "\N{GREEK SMALL LETTER MU}": "u",
    "\N{MICRO SIGN}": "u",
    "\N{NO-BREAK SPACE}": " ",
    "\N{RIGHTWARDS ARROW}": "->",
    "\N{LESS-THAN OR EQUAL TO}": "<=",
    "\N{GREATER-THAN OR EQUAL TO}": ">=",
}
"""What stands for a character where an encoding does not have it."""

HANDLER = "nestwalk.plain"


def plain(text: str, encoding: str) -> str:
    """``text`` as ``encoding`` can show it."""
    return text.encode(encoding, HANDLER).decode(encoding)


def _replace(error: UnicodeError) -> tuple[str, int]:
    """For codecs: the nearest that there is, and an escape where there is none (as of a name that is no UTF-8)."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    found = "".join(
        ASCII.get(letter) or letter.encode("ascii", "backslashreplace").decode()
        for letter in error.object[error.start : error.end]
    )
    return found, error.end


codecs.register_error(HANDLER, _replace)


def prepare() -> None:
    """Makes the standard streams fit to be used.

    Raises:
        SystemExit: When standard output is closed, having said so.
    """
    closed = _fill_gaps()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=HANDLER)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 (as long as the process)
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: PTH123, SIM115
    if 1 in closed or sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115
        say.line("nestwalk: error: standard output is closed, so the results could go nowhere; open it, or use > FILE")
        raise SystemExit(EXIT_ERROR)


def _fill_gaps() -> set[int]:
    """Opens the null device where a standard stream is closed: else the next file to be opened would take its place."""
    closed = set()
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            closed.add(number)
            with suppress(OSError):
                os.open(os.devnull, os.O_RDWR)
    return closed


def give_up() -> None:
    """Lets what is still to be written to standard output go nowhere, so that Python does not complain at the end."""
    with suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)


def finish(code: int) -> int:
    """Writes out what is buffered, and says what the exit code is then."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        give_up()
        code = code or EXIT_ERROR
    except (OSError, ValueError) as error:
        give_up()
        if not code:
            say.line(f"nestwalk: error: standard output: {getattr(error, 'strerror', None) or error}")
        code = code or EXIT_ERROR
    try:
        sys.stderr.flush()
    except (OSError, ValueError):
        with suppress(OSError, ValueError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 2)
            os.close(null)
    return code
