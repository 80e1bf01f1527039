# SPDX-License-Identifier: Apache-2.0
"""Files of Linux hosts below a folder: recorded ones, and ones made up of what is free where."""

from __future__ import annotations

import json
from pathlib import Path

RECORDED = Path(__file__).with_name("recorded")
PAGES_1G = 1 << 18
HUGE_HEAD = 1 << 17 | 1 << 15
HUGE_TAIL = 1 << 17 | 1 << 16
BUDDY = 1 << 10


def write_entries(path: Path, entries: dict[int, int]) -> None:
    """A file of 8 bytes a page frame, with holes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for pfn, entry in entries.items():
            file.seek(pfn * 8)
            file.write(entry.to_bytes(8, "little"))


def recorded(name: str, root: Path) -> Path:
    """A recorded host below `root`."""
    host = json.loads((RECORDED / f"{name}.json").read_text("utf-8"))
    for path, text in host["files"].items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, "ascii")
    for name_ in ("kpageflags", "kpagecount"):
        write_entries(
            root / "proc" / name_, {int(pfn): entry for pfn, entry in host[name_].items()}
        )
    return root


def zoneinfo(nodes: list[tuple[int, int]]) -> str:
    """Nodes of (first GiB, GiB)."""
    return "".join(
        f"Node {node}, zone   Normal\n  pages free     1\n        spanned  {gib * PAGES_1G}\n"
        f"        present  {gib * PAGES_1G}\n  start_pfn:           {first * PAGES_1G}\n"
        for node, (first, gib) in enumerate(nodes)
    )


def gigantic(root: Path, nodes: list[tuple[int, str]], promised: int = 0) -> Path:
    """A host with pools of 1 GiB pages.

    Each node is its first GiB and a character a GiB: `.` a free page, `#` one that a VM has, `f` one that a file
    has and nobody maps, `2` huge pages of 2 MiB, `-` other memory.
    """
    flags: dict[int, int] = {}
    counts: dict[int, int] = {}
    for node, (first, text) in enumerate(nodes):
        for gib, what in enumerate(text, first):
            pfn = gib * PAGES_1G
            if what in ".#f":
                flags |= {pfn: HUGE_HEAD, pfn + 512: HUGE_TAIL}
            if what == "2":
                flags |= {pfn: HUGE_HEAD, pfn + 1: HUGE_TAIL, pfn + 512: HUGE_HEAD}
            counts[pfn] = int(what == "#")
        pool = root / f"sys/devices/system/node/node{node}/hugepages/hugepages-1048576kB"
        pool.mkdir(parents=True)
        (pool / "nr_hugepages").write_text(f"{sum(text.count(what) for what in '.#f')}\n")
        (pool / "free_hugepages").write_text(f"{text.count('.')}\n")
    total = root / "sys/kernel/mm/hugepages/hugepages-1048576kB"
    total.mkdir(parents=True)
    (total / "resv_hugepages").write_text(f"{promised}\n")
    write_entries(root / "proc/kpageflags", flags)
    write_entries(root / "proc/kpagecount", counts)
    (root / "proc/zoneinfo").write_text(zoneinfo([(first, len(text)) for first, text in nodes]))
    return root
