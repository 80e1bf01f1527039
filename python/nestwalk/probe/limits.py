# SPDX-License-Identifier: MIT OR Apache-2.0
"""How much memory a probe may take: what is free here, in this container, and of that a quarter."""

from __future__ import annotations

import re
from pathlib import Path

from nestwalk.errors import NestwalkError

SHARE = 4
"""By default one part in so many of what is available."""
ARENAS = 2
"""Buffers of the largest footprint: one in 2 MiB pages, one in 4 KiB pages."""
MIB = 1 << 20
SMALLEST = 64 * MIB
"""Below, nothing can be said about any TLB of today."""
UNLIMITED = 1 << 60
"""cgroup v1 writes a number of this order where there is no limit."""


def available(root: Path = Path("/")) -> int:
    """Bytes that could be taken now: ``MemAvailable``, or less where a cgroup of this process says so.

    Raises:
        NestwalkError: When Linux does not say.
    """
    try:
        text = (root / "proc/meminfo").read_text(encoding="utf-8")
    except OSError as error:
        raise NestwalkError(f"/proc/meminfo: {error.strerror}; the probe needs Linux with /proc mounted") from error
    found = re.search(r"^MemAvailable:\s+(\d+) kB", text, re.MULTILINE)
    if found is None:
        raise NestwalkError("/proc/meminfo: has no MemAvailable; the probe needs Linux 3.14 or later")
    return min([int(found[1]) << 10, *_cgroups(root)])


def _cgroups(root: Path) -> list[int]:
    """What the memory cgroups of this process have left, v1 and v2, each with its parents."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    left: list[int] = []
    for line in lines:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers == "":
            top, limit, usage = root / "sys/fs/cgroup", "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            top, limit, usage = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        folder = top / path.lstrip("/")
        for place in [folder, *folder.parents]:
            left += _left(place / limit, place / usage)
            if place == top:
                break
    return left


def _left(limit: Path, usage: Path) -> list[int]:
    """A limit less what is in use of it; nothing where there is no limit."""
    try:
        most, used = limit.read_text(encoding="utf-8").strip(), usage.read_text(encoding="utf-8").strip()
    except OSError:
        return []
    if not most.isdecimal() or not used.isdecimal() or int(most) >= UNLIMITED:
        return []
    return [max(int(most) - int(used), 0)]


def footprint(wanted: int | None, usual: int, root: Path = Path("/")) -> int:
    """The largest footprint, a multiple of 2 MiB: ``wanted``, or up to ``usual`` as far as a quarter of memory goes.

    Raises:
        NestwalkError: When it does not fit.
    """
    free = available(root)
    if wanted is not None:
        if ARENAS * wanted > free:
            raise NestwalkError(
                f"--footprint-max {wanted // MIB}MiB: takes {ARENAS * wanted // MIB} MiB (two buffers), and "
                f"{free // MIB} MiB are available; give at most {free // ARENAS // MIB}MiB"
            )
        return wanted // (2 * MIB) * 2 * MIB
    size = usual
    while size * ARENAS * SHARE > free and size > SMALLEST:
        size //= 2
    if size * ARENAS > free:
        raise NestwalkError(
            f"the probe needs {ARENAS * SMALLEST // MIB} MiB of memory, and {free // MIB} MiB are available; "
            "free some, or allow this container more"
        )
    return size
