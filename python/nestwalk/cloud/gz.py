# SPDX-License-Identifier: MIT OR Apache-2.0
"""Files packed with gzip: how they are known, and what is said of a damaged one."""

from __future__ import annotations

import zlib
from gzip import BadGzipFile
from typing import TYPE_CHECKING

from nestwalk.errors import NestwalkError

if TYPE_CHECKING:
    from pathlib import Path

MAGIC = b"\x1f\x8b"
DAMAGED = (EOFError, zlib.error, BadGzipFile)
"""What reading a damaged file raises."""


def is_gzip(path: Path) -> bool:
    """Whether ``path`` begins as a gzip file does.

    Raises:
        OSError: When it cannot be read.
    """
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def damaged(path: Path) -> NestwalkError:
    """The error of a damaged file."""
    return NestwalkError(f"{path}: is a damaged gzip file; fetch it again")
