# SPDX-License-Identifier: MIT OR Apache-2.0
"""The beginning of a file, by which its format is known."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from nestwalk.cloud import gz
from nestwalk.errors import NestwalkError, unreadable

if TYPE_CHECKING:
    from pathlib import Path

HEAD_BYTES = 1 << 16
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
PARQUET_MAGIC = b"PAR1"
UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
SQLITE_MAGIC = b"SQLite format 3\0"


@dataclass(frozen=True)
class Head:
    """A file's name and its first bytes (decompressed), or a directory."""

    path: Path
    is_directory: bool
    start: bytes
    whole: bool
    """Whether :attr:`start` is all there is."""

    @cached_property
    def lines(self) -> list[str]:
        """Its first whole lines as text, without line ends."""
        lines = self.start.decode("utf-8-sig", errors="replace").splitlines()
        return lines if self.whole else lines[:-1]

    @cached_property
    def header(self) -> tuple[str, ...]:
        """The fields of the first line, without blanks and quotes around them."""
        first = self.lines[0] if self.lines else ""
        return tuple(name.strip(' \t"') for name in first.split(","))


def read(path: Path) -> Head:
    """The head of ``path``.

    Raises:
        NestwalkError: When it cannot be read, or is empty.
    """
    try:
        if path.is_dir():
            return Head(path, is_directory=True, start=b"", whole=True)
        if path.exists() and not path.is_file():
            # A pipe would block, and cannot be read twice.
            raise NestwalkError(f"{path}: is no regular file; write the trace to a file first")
        with path.open("rb") as file:
            start = file.read(HEAD_BYTES)
        if not start:
            raise NestwalkError(f"{path}: is empty; give a trace of VMs")
        if start.startswith(gz.MAGIC):
            with gzip.open(path, "rb") as unpacked:
                start = unpacked.read(HEAD_BYTES)
    except gz.DAMAGED as error:
        raise gz.damaged(path) from error
    except OSError as error:
        raise unreadable(path, error) from error
    if start.startswith(UTF16_MARKS):
        raise NestwalkError(f"{path}: is UTF-16; convert it (iconv -f UTF-16 -t UTF-8)")
    if start.startswith(ZSTD_MAGIC):
        raise NestwalkError(f"{path}: is compressed with zstd; unpack it (zstd -d) or use gzip")
    return Head(path, is_directory=False, start=start, whole=len(start) < HEAD_BYTES)
