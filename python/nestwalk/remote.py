# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a worker of a cluster does: carries out groups of orders, and keeps the traces that they need.

Traces are known by their checksum. A worker takes the one that comes with its own package, or one at the path of the
order's machine if it is there and has that checksum (a shared file system), or a copy in its node's cache, which each
node gets once, from the process that wants the runs or from the place of results.
"""

from __future__ import annotations

import hashlib
import os
import socket
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nestwalk import data, orders, pool
from nestwalk.errors import NestwalkError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nestwalk.orders import Blob, Order
    from nestwalk.pool import Outcome

VARIABLE = "NESTWALK_TRACES"
"""The variable of the environment that names a node's cache of traces."""


@dataclass(frozen=True)
class Missing:
    """What a node lacks before it can carry out a group."""

    host: str
    cache: str
    blobs: tuple[Blob, ...]


class _Absent(Exception):  # noqa: N818 (never seen outside)
    """A file is nowhere on this node."""


def carry_out(group: Sequence[Order], source: str | None = None) -> list[Outcome] | Missing:
    """Makes the runs of a group here; or says which files are missing.

    Args:
        group: Orders that are populated in the same way.
        source: A URL of results, in whose ``traces`` missing files are looked for.
    """
    blobs = {blob.sha256: blob for order in group for _, blob in order.blobs}
    places: dict[str, Path] = {}
    absent = []
    for blob in blobs.values():
        try:
            places[blob.sha256] = find(blob, source)
        except _Absent:
            absent.append(blob)
    if absent:
        return Missing(socket.gethostname(), str(cache()), tuple(absent))
    return pool.carry_out(group, None, lambda blob: places[blob.sha256])


def find(blob: Blob, source: str | None = None) -> Path:
    """Where a file is on this node; brought from ``source`` if it is nowhere else."""
    for place in (data.TRACES / f"{blob.bundled}{data.SUFFIX}" if blob.bundled else None, Path(blob.path)):
        if place is not None and _is(place, blob.sha256):
            return place
    kept = cache() / blob.sha256
    if not kept.is_file() and source is not None:
        _bring(blob, source)
    if kept.is_file():
        return kept
    raise _Absent


def _is(place: Path, sha256: str) -> bool:
    try:
        return place.is_file() and orders.checksum(place)[0] == sha256
    except (OSError, NestwalkError):
        return False


def cache() -> Path:
    """This node's folder of traces: ``$NESTWALK_TRACES``, else one of the user's in the folder for temporary files."""
    named = os.environ.get(VARIABLE)
    folder = Path(named) if named else Path(tempfile.gettempdir()) / f"nestwalk-traces-{os.getuid()}"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


def has(sha256: str) -> bool:
    """Whether this node's cache has a file."""
    return (cache() / sha256).is_file()


def receive(sha256: str, sender: str, chunk: bytes, *, first: bool, last: bool) -> None:
    """Takes a piece of a file. The last one puts it in place, if its checksum fits.

    Raises:
        NestwalkError: When it does not.
    """
    part = cache() / f"{sha256}.{sender}.part"
    with part.open("wb" if first else "ab") as file:
        file.write(chunk)
    if last:
        _accept(part, sha256)


def _bring(blob: Blob, source: str) -> None:
    """Copies a file from the place of results into the cache, if it is there."""
    from fsspec.core import url_to_fs

    store, root = url_to_fs(source)
    part = cache() / f"{blob.sha256}.{os.getpid()}.part"
    try:
        store.get_file(f"{root.rstrip('/')}/traces/{blob.sha256}", str(part))
    except FileNotFoundError:
        part.unlink(missing_ok=True)
        return
    _accept(part, blob.sha256)


def _accept(part: Path, sha256: str) -> None:
    digest = hashlib.sha256()
    with part.open("rb") as file:
        while chunk := file.read(orders.CHUNK_BYTES):
            digest.update(chunk)
    if digest.hexdigest() != sha256:
        part.unlink()
        raise NestwalkError(f"a trace came over damaged: its checksum is {digest.hexdigest()[:16]}, not {sha256[:16]}")
    part.replace(part.with_name(sha256))
