# SPDX-License-Identifier: MIT OR Apache-2.0
"""How many runs at a time the memory of this machine holds.

A run takes at most what its order says: what earlier runs of its kind took, or what any run of its size may. Once a run
of the kind has ended here, the others are expected to take at most :data:`ABOVE_MEASURED` times as much. (Of redis
beside neighbours, shadow paging takes 3.6 times what a VM with 4 KiB pages does.)
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from nestwalk import say

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from nestwalk.orders import Order

ABOVE_MEASURED = 4
GIB = 1 << 30
PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")


def free_bytes(proc: Path = PROC, cgroups: Path = CGROUPS) -> int | None:
    """What programs may take now: of the machine, and of the control groups (v2) that this process is in.

    None where the system does not say.
    """
    found = [_of_machine(proc)]
    with suppress(OSError):
        lines = (proc / "self" / "cgroup").read_text(encoding="ascii").splitlines()
        for path in (line.removeprefix("0::/") for line in lines if line.startswith("0::/")):
            own = cgroups / path
            found += [_of_group(folder) for folder in (own, *own.parents) if folder.is_relative_to(cgroups)]
    known = [free for free in found if free is not None]
    return min(known) if known else None


def _of_machine(proc: Path) -> int | None:
    with suppress(OSError, ValueError):
        for line in (proc / "meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    return None


def _of_group(folder: Path) -> int | None:
    """What a control group has left; pages of files that nobody uses can be taken."""
    with suppress(OSError, ValueError):
        # `max`, where there is no limit, is no number.
        limit = int((folder / "memory.max").read_text(encoding="ascii"))
        used = int((folder / "memory.current").read_text(encoding="ascii"))
        stat = dict(line.split() for line in (folder / "memory.stat").read_text(encoding="ascii").splitlines())
        return max(limit - used + int(stat.get("inactive_file", 0)), 0)
    return None


class Room:
    """Memory that groups of runs share."""

    def __init__(self, free: int | None, slots: int = 0) -> None:
        """``free`` bytes for ``slots`` groups at a time; None where it is not known, or somebody else sees to it."""
        self._free, self._slots = free, slots
        self._measured: dict[str, int] = {}
        self._said = False

    def choose(self, waiting: Iterable[Sequence[Order]], others: Collection[Sequence[Order]]) -> int | None:
        """Which of the groups that are ``waiting`` begins beside ``others``: the first that fits, any if alone."""
        if self._free is None or not others:
            return 0
        left = self._free - sum(self._needed(other) for other in others)
        needed = [self._needed(group) for group in waiting]
        for number, memory in enumerate(needed):
            if memory <= left:
                return number
        if len(others) < self._slots and not self._said:
            self._said = True
            sizes = f"the next takes up to {needed[0] / GIB:.1f} GiB, and {self._free / GIB:.1f} GiB are free"
            say.note(f"{len(others)} at a time for now, not {self._slots}: {sizes}")
        return None

    def measured(self, order: Order, memory_bytes: int) -> None:
        """A run has taken so much."""
        self._measured[order.kind] = max(self._measured.get(order.kind, 0), memory_bytes)

    def _needed(self, group: Sequence[Order]) -> int:
        # Its runs go one after the other.
        return max(self._of(order) for order in group)

    def _of(self, order: Order) -> int:
        measured = self._measured.get(order.kind)
        return order.memory_bytes if measured is None else min(order.memory_bytes, ABOVE_MEASURED * measured)
