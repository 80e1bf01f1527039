# SPDX-License-Identifier: MIT OR Apache-2.0
"""One process, or the recording of one, as :func:`nestwalk.live.inspect` sees it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nestwalk import _native, files
from nestwalk.errors import NestwalkError, shown
from nestwalk.live import known, processes

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = 1


@dataclass(frozen=True)
class Inspection:
    """What is known of a process's memory. ``docs/inspect.md`` says what each key means."""

    facts: dict[str, Any]
    """All of it, as in :meth:`to_json`."""
    recording: bytes | None = None
    """What was read, in the form of a recording, if that was asked for."""

    def to_json(self) -> dict[str, Any]:
        """All of it, with the schema's number."""
        return {"schema": SCHEMA, "version": _native.version(), **self.facts}

    @property
    def host_pt_fragmentation(self) -> dict[str, Any]:
        """``value``, ``distribution`` and ``groups``; or ``unavailable`` with the reason."""
        found: dict[str, Any] = self.facts["host_pt_fragmentation"]
        return found

    def save_recording(self, path: Path) -> None:
        """Writes what was read to a file that :func:`inspect` reads again.

        Raises:
            NestwalkError: When it was not asked for (``keep=True``), or the file cannot be written.
        """
        if self.recording is None:
            raise NestwalkError("nothing was kept for a recording; inspect with keep=True")
        files.write_file(path, self.recording)


def inspect(
    target: int | str | Path, *, all_flags: bool = False, contents: bool = False, keep: bool = False
) -> Inspection:
    """Looks at the memory of a process: contiguity, fragmentation of the host's page table, large pages, settings.

    Args:
        target: The number of a process, its name, or the path of a recording.
        all_flags: Read the flags of every frame and not of one in 64: exact shares of large folios, at the cost of 12
            to 31 ms a GiB.
        contents: Read the contents of 2 MiB pages, to tell how much of them is used. The pages count as accessed then.
        keep: Keep what is read, for :meth:`Inspection.save_recording`.

    Returns:
        What is known; what is not known says why.

    Raises:
        NestwalkError: There is no such process, it ended meanwhile, it may not be read, or the recording is damaged.
    """
    pid, recording = processes.resolve(target)
    path = None if recording is None else str(recording)
    if path is not None and recording is not None and recording.is_file() and processes.is_json(path):
        what = "is JSON, and not a recording of nestwalk inspect"
        raise NestwalkError(f"{shown(path)}: {what}; `nestwalk advise` reads what it or `inspect --json` wrote")
    text, kept = _native.inspect_process(pid=pid, path=path, all_flags=all_flags, contents=contents, keep=keep)
    facts: dict[str, Any] = json.loads(text)
    return Inspection({"recording": path, "hypervisor": hypervisor(path), **facts}, kept)


def hypervisor(recording: str | None) -> str | dict[str, str] | None:
    """The signature of the hypervisor under this machine, such as ``KVMKVMKVM``; None if CPUID shows none."""
    if recording is not None:
        return known.unavailable("a recording does not say on which machine it was made")
    found: str | None = json.loads(_native.processor())["processor"]["hypervisor"]
    return found
