# SPDX-License-Identifier: MIT OR Apache-2.0
"""Files that are there whole or not at all.

What is written goes to a temporary neighbour first and is renamed into place at the end, so that an interrupted or
failed command leaves what was there before.
"""

from __future__ import annotations

import os
import secrets
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

from nestwalk.errors import NestwalkError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MARKER = "results.parquet"
"""The file by which a directory of results is known; only such a directory, or an empty one, is ever replaced."""


def check_file(path: Path) -> None:
    """Refuses early what could not be written in the end.

    Raises:
        NestwalkError: When there is no such directory, or it is not writable, or ``path`` is a directory.
    """
    if path.is_dir():
        raise NestwalkError(f"{path}: is a directory; name a file in it")
    _check_parent(path)


def check_directory(path: Path) -> None:
    """Refuses early a directory that holds something other than results.

    Raises:
        NestwalkError: When ``path`` is a file or a directory with other contents, or cannot be made.
    """
    if path.exists():
        if not path.is_dir():
            raise NestwalkError(f"{path}: is a file; name a directory that does not exist yet")
        if any(path.iterdir()) and not (path / MARKER).is_file():
            raise NestwalkError(f"{path}: holds files that are not results; name a new or empty directory")
    _check_parent(path)


def _check_parent(path: Path) -> None:
    parent = path.absolute().parent
    if not parent.is_dir():
        raise NestwalkError(f"{path}: there is no directory {parent}; make it first")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise NestwalkError(f"{path}: no permission to write in {parent}")


def write_file(path: Path, content: str | bytes) -> None:
    """Writes ``content`` to ``path``, whole or not at all.

    Raises:
        NestwalkError: When it cannot be written.
    """
    data = content.encode() if isinstance(content, str) else content
    temporary = _neighbour(path)
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    except OSError as error:
        raise NestwalkError(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def directory(path: Path) -> Iterator[Path]:
    """A new directory to fill, which becomes ``path`` when the block ends well, in place of earlier results there.

    Raises:
        NestwalkError: When it cannot be written.
    """
    check_directory(path)
    fresh = _neighbour(path)
    old = _neighbour(path)
    try:
        fresh.mkdir()
        yield fresh
        if path.exists():
            path.rename(old)
        fresh.rename(path)
    except OSError as error:
        raise NestwalkError(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        if old.exists() and not path.exists():
            old.rename(path)
        shutil.rmtree(old, ignore_errors=True)
        shutil.rmtree(fresh, ignore_errors=True)


def _neighbour(path: Path) -> Path:
    """A name beside ``path`` that nobody has: a rename within one directory is atomic."""
    return path.absolute().parent / f".{path.name}.{secrets.token_hex(4)}.tmp"
