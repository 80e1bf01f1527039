# SPDX-License-Identifier: MIT OR Apache-2.0
"""A guest that runs in QEMU, seen from outside: where its memory is, what is in CR3, which processes it has.

QEMU is asked over QMP; its guest's memory is read from the file that it is, or from ``/proc/PID/mem`` of QEMU.
The guest is not asked, so that any x86-64 Linux will do.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nestwalk import _native
from nestwalk.cloud import qemu
from nestwalk.errors import NestwalkError, shown, unknown
from nestwalk.vm.control import ADDRESS_MASK, ISOLATION_BIT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LEVELS, LEVELS_WITH_LA57 = 4, 5
_LA57 = 12
"""The bit of CR4 that is five-level paging."""
_USER = 3
"""The privilege level of user mode."""
_REGISTER = re.compile(r"\b(CR[034]|CPL)=([0-9a-f]+)")
_HVA = re.compile(r" is 0x([0-9a-f]+)")


@dataclass(frozen=True)
class Piece:
    """A range of guest-physical memory, and where its bytes are."""

    gpa: int
    bytes: int
    file: str
    offset: int
    """In the file."""
    ram_offset: int
    """In QEMU's RAM."""


@dataclass(frozen=True)
class Vcpu:
    """What a virtual processor has in its registers."""

    cr3: int
    """Without flags."""
    levels: int
    """Of its page tables: 4 or 5."""
    user: bool
    """Whether it runs user code."""


@dataclass(frozen=True)
class Process:
    """A process of the guest."""

    cr3: int
    """Guest-physical address of its root page table."""
    program: str | None
    """The file that it was started as."""
    mapped_bytes: int
    huge_bytes: int
    """Of these, in huge pages."""

    @property
    def name(self) -> str:
        """What people call it."""
        return Path(self.program).name if self.program else f"cr3-{self.cr3:#x}"


def vcpus(monitor: qemu.Monitor) -> list[Vcpu]:
    """The virtual processors that have paging on."""
    found = []
    for text in monitor.human("info registers -a").split("CPU#")[1:]:
        register = {name: int(value, 16) for name, value in _REGISTER.findall(text)}
        if register.get("CR0", 0) >> 31 & 1 and "CR3" in register:
            levels = LEVELS_WITH_LA57 if register.get("CR4", 0) >> _LA57 & 1 else LEVELS
            found.append(Vcpu(register["CR3"] & ADDRESS_MASK, levels, register.get("CPL") == _USER))
    return found


def pieces(monitor: qemu.Monitor, files: Mapping[str, Path] | None = None, pid: int | None = None) -> list[Piece]:
    """The pieces of the guest's memory.

    Args:
        monitor: QEMU's.
        files: Files of memory by the name of QEMU's memory object.
        pid: QEMU's process, whose memory is read where there is no such file.
    """
    named = dict(files or {})
    found = []
    for gpa, length, block, offset in qemu.flat(monitor.human("info mtree -f")):
        name = block.rpartition("/")[2]
        if name in named:
            found.append(Piece(gpa, length, str(named[name]), offset, offset))
        elif pid is not None and (name.endswith(".ram") or name in _backends(monitor)):
            match = _HVA.search(monitor.human(f"gpa2hva {gpa:#x}"))
            if match is not None:
                found.append(Piece(gpa, length, f"/proc/{pid}/mem", int(match[1], 16), offset))
    return found


def _backends(monitor: qemu.Monitor) -> dict[str, str]:
    """The memory objects of a QEMU with their types."""
    objects = monitor.execute("qom-list", {"path": "/objects"})
    return {one["name"]: one["type"] for one in objects if "memory-backend-" in one["type"]}


def memory_files(monitor: qemu.Monitor) -> dict[str, Path]:
    """Files that are the guest's memory, by the name of QEMU's object, as far as this process may read them."""
    found = {}
    for name, kind in _backends(monitor).items():
        if "memory-backend-file" in kind:
            shared = monitor.execute("qom-get", {"path": f"/objects/{name}", "property": "share"})
            path = Path(monitor.execute("qom-get", {"path": f"/objects/{name}", "property": "mem-path"}))
            if shared and path.is_file() and os.access(path, os.R_OK):
                found[name] = path
    return found


def processes(memory: Sequence[Piece], cpus: Sequence[Vcpu]) -> list[Process]:
    """The processes of a guest, largest first.

    With page-table isolation CR3 may hold the user's root, whose neighbour is the kernel's: that is the one that tells.
    """
    text = json.dumps([asdict(piece) for piece in memory])
    for cr3, levels in dict.fromkeys(
        (root, one.levels) for one in cpus for root in (one.cr3 & ~ISOLATION_BIT, one.cr3)
    ):
        found = [Process(**one) for one in json.loads(_native.vm_processes(text, cr3, levels))]
        if found:
            return sorted(found, key=lambda one: (-one.mapped_bytes, one.cr3))
    return []


def named(found: Sequence[Process], name: str) -> list[Process]:
    """Those of ``found`` started as the file ``name`` (a whole path, or its last part), or with the root ``0x...``."""
    if name.startswith("0x"):
        try:
            return [one for one in found if one.cr3 == int(name, 16) & ADDRESS_MASK & ~ISOLATION_BIT] or [
                one for one in found if one.cr3 == int(name, 16) & ADDRESS_MASK
            ]
        except ValueError:
            return []
    return [one for one in found if one.program is not None and name in (one.program, one.name)]


def choose(found: Sequence[Process], name: str | None) -> Process:
    """The process called ``name``, or the one that maps most; of several, the one that maps most.

    Raises:
        NestwalkError: When there is none.
    """
    if not found:
        raise NestwalkError(
            "the guest has no process yet whose page tables can be told; wait until it has started, or is it no Linux?"
        )
    chosen = list(found) if name is None else named(found, name)
    if not chosen:
        raise unknown("process of the guest", name or "", sorted({one.name for one in found}))
    return chosen[0]


def write_tables(
    memory: Sequence[Piece], cr3: int, levels: int, path: Path, *, kernel: bool, regions: str | None = None
) -> dict[str, Any]:
    """Writes the page tables of the root ``cr3`` as the dump ``path``; what it holds.

    Args:
        memory: The guest's.
        cr3: Guest-physical address of the root.
        levels: Of the tables.
        path: The dump to write.
        kernel: Whether the kernel's half is in it.
        regions: What the guest's kernel says of where it sorts the tables of the process, if it is known.
    """
    text = json.dumps([asdict(piece) for piece in memory])
    found: dict[str, Any] = json.loads(_native.vm_tables(text, cr3, levels, kernel, str(path), regions))
    return found


def check_readable(memory: Sequence[Piece], socket: Path) -> None:
    """Says what to do where the guest's memory cannot be read.

    Raises:
        NestwalkError: When it cannot be.
    """
    if not memory:
        raise NestwalkError(f"{shown(socket)}: QEMU names no memory of the guest that can be read")
    for name in dict.fromkeys(piece.file for piece in memory):
        try:
            with Path(name).open("rb"):
                pass
        except OSError as error:
            raise NestwalkError(
                f"{name}: {error.strerror}: the guest's memory cannot be read; run as QEMU's user or as root, or start "
                "QEMU with -object memory-backend-file,id=m,mem-path=FILE,size=SIZE,share=on -machine memory-backend=m"
            ) from error
