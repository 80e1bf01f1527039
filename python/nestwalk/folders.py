# SPDX-License-Identifier: MIT OR Apache-2.0
"""A directory of results: filled file by file, so that what is not ours stays.

``nestwalk-files.json`` in it lists what Nestwalk wrote there, with a checksum of each file. Earlier results that are
still as they were written are replaced; a file that somebody else made or changed is kept under another name. The
directory itself is never replaced: links to it, mount points and its mode stay.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import secrets
import shutil
import signal
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from nestwalk import files, memory, say
from nestwalk.errors import NestwalkError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import polars as pl

MARKER = "results.parquet"
"""The file by which a directory of results is known."""

MANIFEST = "nestwalk-files.json"
"""What Nestwalk wrote there."""

NOT_CONTENTS = {"lost+found"}
"""What an empty file system may hold."""


def check_directory(path: Path) -> None:
    """Refuses early a directory that holds something other than results, or that cannot be filled.

    Raises:
        NestwalkError: When ``path`` is a file or a directory with other contents, or nothing can be made in it.
    """
    memory.check_frames(f"{path}: results.parquet cannot be written", "leave --out out")
    with files.telling(path):
        if path.is_symlink() and not path.exists():
            raise NestwalkError(f"{path}: is a link to {path.readlink()}, which does not exist; make it first")
        if not path.exists():
            files.check_writable(path.absolute().parent, path)
            return
        if not path.is_dir():
            raise NestwalkError(f"{path}: is a file; name a directory that does not exist yet")
        if {entry.name for entry in path.iterdir()} - NOT_CONTENTS and not (path / MARKER).is_file():
            raise NestwalkError(f"{path}: holds files that are not results; name a new or empty directory")
        for folder in (path, path / "scenarios"):
            if folder.is_dir():
                files.check_writable(folder, path)


@contextmanager
def filling(path: Path, *, add: bool = False) -> Iterator[Path]:
    """A new directory to fill, whose files come into ``path`` when the block ends well.

    What Nestwalk wrote to ``path`` earlier goes, unless the new files are an addition to it.

    Raises:
        NestwalkError: When it cannot be written.
    """
    with files.telling(path):
        fresh = _staging(path)
        try:
            fresh.mkdir()
            yield fresh
            with _uninterrupted():
                if path.is_dir():
                    _merge(fresh, path, add=add)
                else:
                    _write_manifest(fresh, {name: _digest(fresh / name) for name in _names(fresh)})
                    fresh.rename(path)
                files.written[:] = [path]
        finally:
            shutil.rmtree(fresh, ignore_errors=True)


def write_frame(frame: pl.DataFrame, path: Path) -> None:
    """Writes a frame as Parquet.

    Raises:
        OSError: When it cannot be written; polars, writing by itself, hides a full disk in an error of its own.
    """
    content = io.BytesIO()
    frame.write_parquet(content)
    path.write_bytes(content.getvalue())


def _staging(path: Path) -> Path:
    """Inside the directory if there is one: it may be a file system of its own."""
    name = f"{files.PREFIX}{secrets.token_hex(4)}.tmp"
    return path / name if path.is_dir() else path.absolute().parent / name


def _merge(fresh: Path, path: Path, *, add: bool) -> None:
    """Moves the files of ``fresh`` into ``path``, and takes away earlier ones that are no longer made."""
    ours = _manifest(path)
    made = {name: _digest(fresh / name) for name in _names(fresh)}
    for name, digest in made.items():
        target = path / name
        for folder in reversed(target.relative_to(path).parents[:-1]):
            if not (path / folder).is_dir():
                _set_aside(path / folder)
                (path / folder).mkdir()
        if not _is(target, ours.get(name)) and not _is(target, digest):
            _set_aside(target)
        _move(fresh / name, target)
    if not add:
        for name in ours.keys() - made.keys():
            if _is(path / name, ours[name]):
                (path / name).unlink()
                with suppress(OSError):  # not empty: it holds something that is not ours
                    (path / name).parent.rmdir() if "/" in name else None
    _write_manifest(path, {**(ours if add else {}), **made})


def _set_aside(target: Path) -> None:
    """Keeps what somebody else made, whatever it is, under a name that is free."""
    if not os.path.lexists(target):
        return
    number = 1
    while os.path.lexists(kept := target.with_name(f"{target.name}.kept-{number}")):
        number += 1
    target.rename(kept)
    say.warn(f"{target}: Nestwalk did not write it, or it was changed since; it is kept as {kept.name}")


def _move(staged: Path, target: Path) -> None:
    try:
        files.install(staged, target)
    except OSError as error:
        if error.errno != errno.EXDEV:  # a folder in it is a link to, or a mount point of, another file system
            raise
        files.write_file(target, staged.read_bytes())


def _names(folder: Path) -> list[str]:
    """The files below ``folder``."""
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _is(file: Path, digest: str | None) -> bool:
    """Whether ``file`` is a regular file with that checksum."""
    return digest is not None and file.is_file() and not file.is_symlink() and _digest(file) == digest


def _manifest(path: Path) -> dict[str, str]:
    """Checksums of what Nestwalk wrote to ``path``, by name; names that lead out of it are no business of ours."""
    try:
        found = json.loads((path / MANIFEST).read_text(encoding="utf-8"))["files"]
        pairs = [(Path(name), digest) for name, digest in found.items() if isinstance(digest, str)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}
    return {str(name): digest for name, digest in pairs if not name.is_absolute() and ".." not in name.parts}


def _write_manifest(path: Path, found: dict[str, str]) -> None:
    text = json.dumps({"schema": 1, "files": dict(sorted(found.items()))}, indent=1) + "\n"
    files.write_file(path / MANIFEST, text)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ctrl-C waits until all files are in place; that is a matter of milliseconds."""
    held = {signal.SIGINT, signal.SIGTERM}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, held)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
