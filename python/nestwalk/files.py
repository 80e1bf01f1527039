# SPDX-License-Identifier: MIT OR Apache-2.0
"""Files that are there whole or not at all, and nothing lost that was there before.

What is written goes to a temporary file first and is renamed into place at the end, so that an interrupted or failed
command leaves what was there before. Only regular files are renamed over: a link keeps pointing where it points, a
FIFO, a terminal or ``-`` (standard output) is written through, and a block device is refused.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
import sys
from contextlib import suppress
from pathlib import Path

from nestwalk.errors import NestwalkError, shown

STDOUT = Path("-")
"""The name of a file that means standard output."""

written: list[Path] = []
"""What this process has put in place, for the message after Ctrl-C."""

kept: dict[str, int] = {}
"""How many results this process has put into which store, for the same message."""

PREFIX = ".nestwalk-"
"""How temporary names begin: short, so that a neighbour of the longest possible name can be made."""


def check_file(path: Path) -> None:
    """Refuses early what could not be written in the end.

    Raises:
        NestwalkError: When ``path`` is a directory or a block device, or cannot be made or replaced.
    """
    if path == STDOUT:
        return
    with telling(path):
        target = resolve(path)
        if target.is_dir():
            raise NestwalkError(f"{path}: is a directory; name a file in it")
        if is_special(target):
            return
        if target.exists() and not os.access(target, os.W_OK):
            raise NestwalkError(f"{path}: is write-protected; name another file")
        check_writable(target.parent, path)


def check_apart(option: str, path: Path) -> None:
    """As :func:`check_file`, of a file beside what standard output is for already.

    Raises:
        NestwalkError: As there, and when ``path`` means standard output.
    """
    if path == STDOUT:
        raise NestwalkError(f"{option} -: standard output has the table or the JSON; give {option} a file")
    check_file(path)


def check_directory(path: Path) -> None:
    """As :func:`nestwalk.folders.check_directory`."""
    from nestwalk import folders

    folders.check_directory(path)


def check_writable(parent: Path, path: Path) -> None:
    """Refuses a directory in which nothing can be made; ``path`` is what the user named.

    Raises:
        NestwalkError: When there is no such directory, or no file can be made in it.
    """
    if not parent.is_dir():
        raise NestwalkError(f"{path}: there is no directory {parent}; make it first")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise NestwalkError(f"{path}: no permission to write in {parent}")
    probe = neighbour(parent / "probe")  # quotas, full disks and odd file systems show themselves only so
    try:
        probe.touch(exist_ok=False)
    finally:
        probe.unlink(missing_ok=True)


def resolve(path: Path) -> Path:
    """What ``path`` names when all links are followed; it need not exist."""
    target = path.absolute()
    if target.is_symlink():
        target = target.resolve()
        if target.is_symlink():
            raise NestwalkError(f"{path}: is a link to itself")
    return target


def is_special(target: Path) -> bool:
    """Whether ``target`` is written through: a FIFO or a character device, such as ``/dev/null`` or a terminal.

    Raises:
        NestwalkError: When it is a block device or a socket, which are neither replaced nor written.
    """
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        return False
    if stat.S_ISBLK(mode) or stat.S_ISSOCK(mode):
        raise NestwalkError(f"{target}: is a {'block device' if stat.S_ISBLK(mode) else 'socket'}; name a file")
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)


def write_file(path: Path, content: str | bytes) -> None:
    """Writes ``content`` to ``path``, whole or not at all; through it where it is no regular file.

    Raises:
        NestwalkError: When it cannot be written.
    """
    data = content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content
    with telling(path):
        if path == STDOUT:
            sys.stdout.flush()
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
            return
        target = resolve(path)
        if is_special(target):
            with target.open("wb") as through:
                through.write(data)
            _note_written(path)
            return
        temporary = neighbour(target)
        try:
            temporary.write_bytes(data)
            install(temporary, target)
            _note_written(path)
        finally:
            temporary.unlink(missing_ok=True)


def _note_written(path: Path) -> None:
    """Once, however often a file is written anew (``inspect --watch`` does it for days)."""
    if path not in written:
        written.append(path)


def install(temporary: Path, target: Path) -> None:
    """Renames ``temporary`` over the regular file ``target``, which keeps its mode."""
    with suppress(FileNotFoundError):
        temporary.chmod(stat.S_IMODE(target.stat().st_mode))
    temporary.replace(target)


def neighbour(path: Path) -> Path:
    """A name beside ``path`` that nobody has: a rename within one directory is atomic."""
    return path.absolute().parent / f"{PREFIX}{secrets.token_hex(4)}.tmp"


class telling:  # noqa: N801 (used as a statement, like contextlib's)
    """A block whose :class:`OSError` becomes one line about ``path``."""

    def __init__(self, path: Path, what: str = "cannot be written") -> None:
        """Names what the block is about."""
        self._path = path
        self._what = what

    def __enter__(self) -> None:
        """Nothing."""

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """Says it."""
        if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
            raise NestwalkError(f"{shown(self._path)}: {self._what}: {reason(error)}") from error


def reason(error: OSError) -> str:
    """Why, with what to do where that is known."""
    why = error.strerror or str(error)
    if error.errno in _REMEDIES:
        return f"{why}; {_REMEDIES[error.errno]}"
    if error.errno == errno.ENOENT and not working_directory_exists():
        return GONE
    return why


GONE = "the working directory is gone; change to one that exists"

_REMEDIES = {
    errno.ENAMETOOLONG: "give a shorter name",
    errno.EMFILE: "allow more open files (ulimit -n 256)",
    errno.ENFILE: "the system has no more room for open files; close some programs",
    errno.EACCES: "ask for permission, or name another place",
    errno.ENOSPC: "make room, or name another place",
}


def working_directory_exists() -> bool:
    """Whether the directory that this process works in is still there."""
    try:
        Path.cwd()
    except OSError:
        return False
    return True
