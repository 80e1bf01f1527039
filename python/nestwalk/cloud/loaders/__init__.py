# SPDX-License-Identifier: MIT OR Apache-2.0
"""Loaders: traces of VMs in the formats in which they are published, known by their content."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nestwalk.cloud.loaders import azure, bitbrains, generic, head, huawei, nova, packing
from nestwalk.errors import NestwalkError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from nestwalk.cloud.loaders.generic import Columns
    from nestwalk.cloud.loaders.head import Head
    from nestwalk.cloud.requests import Requests


@dataclass(frozen=True)
class Options:
    """What a file cannot tell of itself."""

    columns: Columns | None = None
    """The columns of a generic file."""
    machine: tuple[float, float] | None = None
    """Cores and bytes of one machine of Azure's packing trace; those of :mod:`.packing` if None."""


@dataclass(frozen=True)
class Format:
    """A format, how it is known, and how it is read."""

    name: str
    is_it: Callable[[Head], bool]
    load: Callable[[Path, Options], Requests]


FORMATS = (
    Format("Azure packing 2020 (SQLite)", packing.is_packing, packing.load),
    Format("Azure V1, reduced", azure.is_reduced, azure.load_reduced),
    Format("Azure V1, arrivals only", azure.is_arrivals, azure.load_arrivals),
    Format("Huawei-East-1", huawei.is_east, huawei.load_east),
    Format("Huawei topology-aware requests", huawei.is_topology, huawei.load_topology),
    Format("Bitbrains, one row a VM", bitbrains.is_vms, bitbrains.load_vms),
    Format("Bitbrains, one row a VM and month", bitbrains.is_months, bitbrains.load_months),
    Format("Bitbrains (a VM's file, or a directory of them)", bitbrains.is_samples, bitbrains.load_samples),
    Format("Azure V1 or V2 vmtable", azure.is_vmtable, azure.load_vmtable),
    Format("Nova notifications (JSON)", nova.is_notifications, nova.load_notifications),
    Format("Nova log", nova.is_log, nova.load_log),
)
"""In the order in which they are tried; the surest signs first."""


def load(path: Path, options: Options | None = None) -> Requests:
    """The requests of a trace, in any known format.

    Raises:
        NestwalkError: When the file cannot be read, its format is not known, or no row of it can be used.
    """
    chosen = options or Options()
    start = head.read(path)
    if chosen.columns is not None:
        if start.is_directory:
            raise NestwalkError(f"{path}: is a directory; --columns is for one CSV or Parquet file")
        made = generic.load(path, chosen)
    elif generic.is_parquet(start):
        packed = azure.is_packed(generic.parquet_columns(path))
        made = (azure.load_packed if packed else generic.load)(path, chosen)
    else:
        found = next((one for one in FORMATS if one.is_it(start)), None)
        if found is None:
            raise NestwalkError(
                f"{path}: its format is not known; name its columns (--columns vm=..,arrive=..,leave=..,cores=..,"
                f"memory=..), or give one of: {', '.join(one.name for one in FORMATS)}"
            )
        made = found.load(path, chosen)
    if chosen.machine is not None and made.format != packing.NAME:
        raise NestwalkError(f"{path}: --machine is for Azure's packing trace, and this is read as {made.format}")
    if made.frame.is_empty():
        why = f"; {made.malformed.sentences()[0]}" if made.malformed.count else ""
        if b"\r" in start.start and b"\n" not in start.start:
            why = "; its lines end in carriage returns alone: convert them (tr '\\r' '\\n')"
        raise NestwalkError(f"{path}: holds no request for a VM that can be used (read as {made.format}){why}")
    return made
