# SPDX-License-Identifier: MIT OR Apache-2.0
"""The control block: a file that Nestwalk and its plugin both map (``struct control`` in ``vmtrace.h``)."""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

ADDRESS_MASK = 0x000F_FFFF_FFFF_F000
"""The bits of CR3 that are an address."""
ISOLATION_BIT = 1 << 12
"""With page-table isolation a process has two roots, side by side: the user's has this bit of CR3.

Linux: ``PTI_USER_PGTABLE_BIT``.
"""

_MAGIC = b"NWVMCTL1"
_FIELDS = (
    "magic",
    "command",
    "target",
    "target_mask",
    "max",
    "state",
    "accesses",
    "kernel",
    "failure",
    "marks",
    "marked",
    "source",
)
_OFFSET = {name: 8 * index for index, name in enumerate(_FIELDS)}
_SPACES_OFFSET = 128
_SPACES = 4096
_SPACE = struct.Struct("<3Q")


class Command(IntEnum):
    """What Nestwalk asks of the plugin."""

    IDLE = 0
    RECORD = 1
    END = 2


class State(IntEnum):
    """What the plugin does."""

    LOADED = 0
    RUNNING = 1
    RECORDING = 2
    FULL = 3
    FAILED = 4


@dataclass(frozen=True)
class Space:
    """An address space that has been in CR3, and what ran in it."""

    cr3: int
    """Address of its root, without flags."""
    user: int
    """Instructions in user mode; approximate where vCPUs run at once."""
    kernel: int
    """Instructions in the kernel, kernel threads included that borrowed the address space."""


class Control:
    """The block, mapped."""

    def __init__(self, path: Path, accesses_max: int) -> None:
        """Makes the file ``path``; recording ends by itself after about ``accesses_max`` accesses."""
        path.write_bytes(_MAGIC + bytes(_SPACES_OFFSET - len(_MAGIC) + _SPACES * _SPACE.size))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self._put("target_mask", ADDRESS_MASK)
        self._put("max", accesses_max)

    def _put(self, name: str, value: int) -> None:
        struct.pack_into("<Q", self._map, _OFFSET[name], value)

    def _get(self, name: str) -> int:
        value: int = struct.unpack_from("<Q", self._map, _OFFSET[name])[0]
        return value

    def record(self, cr3: int, mask: int) -> None:
        """Asks for the accesses of the process with the root ``cr3``, of which the bits ``mask`` count."""
        self._put("target", cr3)
        self._put("target_mask", mask)
        self._put("command", Command.RECORD)

    def end(self) -> None:
        """Lets vCPUs go on that wait for the guest to be stopped."""
        self._put("command", Command.END)

    @property
    def state(self) -> State:
        """What the plugin does now."""
        return State(self._get("state"))

    @property
    def accesses(self) -> int:
        """Accesses that it has written."""
        return self._get("accesses")

    @property
    def failure(self) -> int:
        """Why it failed, as ``errno``."""
        return self._get("failure")

    @property
    def marks(self) -> int:
        """How often a marker has been executed in user mode."""
        return self._get("marks")

    @property
    def target(self) -> int:
        """The root of the process that is recorded."""
        return self._get("target")

    @property
    def knows_cr3(self) -> bool:
        """Whether this QEMU tells a plugin what is in CR3."""
        return self._get("source") != 0

    def spaces(self) -> list[Space]:
        """All address spaces that have been seen."""
        found = _SPACE.iter_unpack(self._map[_SPACES_OFFSET : _SPACES_OFFSET + _SPACES * _SPACE.size])
        return [Space(*words) for words in found if words[0]]
