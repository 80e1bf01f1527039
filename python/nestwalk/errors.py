# SPDX-License-Identifier: MIT OR Apache-2.0
"""What Nestwalk says when something is wrong: one line that names the place and the remedy."""

from __future__ import annotations

import difflib
import errno
import os
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


SEED_MAX = 2**63 - 1
"""The largest whole number that TOML has."""

CPUS_MAX = 4096
"""Of a kernel; an assumption: no server has more processors."""

NODE_MAX = 1023
"""The last NUMA node that Linux can have (NODES_SHIFT is 10 at most)."""

JOBS_MAX = CPUS_MAX
"""Of runs at a time."""


class NestwalkError(Exception):
    """Bad input or an impossible request. Its text is one line, made for people.

    The engine raises it too, so this is the one exception to catch.
    """


NAME_SHOWN_MAX = 200
"""Characters of a name in a message."""


def shown(path: Path | str) -> str:
    """A name for a message: whole if it is of a reasonable length, and without what no terminal can show."""
    text = printable(os.fspath(path))
    return text if len(text) <= NAME_SHOWN_MAX else f"{text[: NAME_SHOWN_MAX // 2]}...{text[-NAME_SHOWN_MAX // 4 :]}"


def printable(text: str) -> str:
    """``text`` with escapes for control characters, which could change what a terminal shows, and for stray bytes."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape", "surrogatepass").decode() for letter in text
    )


def unknown(kind: str, name: str, known: Iterable[str]) -> NestwalkError:
    """That ``name`` is no ``kind``, with the nearest one that is."""
    names = list(dict.fromkeys(known))
    name = shown(name)
    nearest = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f", did you mean '{nearest[0]}'?" if nearest else ""
    more = f" and {len(names) - LISTED_MAX} more" if len(names) > LISTED_MAX else ""
    there = f"there are {', '.join(names[:LISTED_MAX])}{more}" if names else "there are none"
    return NestwalkError(f"unknown {kind} '{name}'{hint}; {there}")


READING = {
    errno.ENOENT: "check its name",
    errno.ENOTDIR: "check its name",
    errno.EISDIR: "name a file in it",
    errno.EACCES: "read it as its owner, or as root",
    errno.ECONNREFUSED: "nothing listens there: name a running QEMU's socket (-qmp unix:SOCKET,server=on,wait=off)",
}
"""What to do where a file cannot be read."""


def unreadable(path: Path, error: OSError) -> NestwalkError:
    """That a file cannot be read, why, and what to do."""
    remedy = READING.get(error.errno or 0)
    return NestwalkError(f"{shown(path)}: {error.strerror or error}{f'; {remedy}' if remedy else ''}")


def ending(path: Path, kind: str) -> NestwalkError:
    """That ``path``, which exists, is not taken for a file of this kind because of its name."""
    if path.is_dir():
        return NestwalkError(f"{shown(path)}: is a directory; name a {kind} file in it, which ends in .toml")
    return NestwalkError(f"{shown(path)}: the name of a {kind} file ends in .toml; rename it")
