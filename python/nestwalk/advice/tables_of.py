# SPDX-License-Identifier: MIT OR Apache-2.0
"""The page tables of a running process as a dump that the simulator begins with (format: ``linux/data/README.md``).

Linux shows which pages are present and, to root, in which frames; not where page-table pages are. So frames are the
process's own where they can be read, in address order where not, and page-table pages lie side by side above the data.
"""

from __future__ import annotations

import struct
from array import array
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from nestwalk import _native
from nestwalk.cloud import proc
from nestwalk.errors import NestwalkError, shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

MAGIC = b"NWPT0001"
PAGES = 512
"""Pages of a region of 2 MiB, and entries of a node."""
ROOT = 4
"""Level of the root."""
HUGE = 2
"""Level whose leaves map 2 MiB."""

TABLE, LEAF, LARGE = 0x7, 0x7, 0x87
"""Flags of entries: present, writable, user; and of a 2 MiB page."""

Part = tuple[int, int, bool, "array[int]"]
"""The first page of a mapping, the first page of a part of it, whether PMDs map it, and its pagemap entries: one for
each page, or for each 2 MiB."""

REGIONS_MAX = 1 << 16
"""128 GiB: a dump of more would take half a gigabyte."""


@dataclass(frozen=True)
class Region:
    """What is mapped in 2 MiB of addresses."""

    pages: array[int]
    """Frames + 1 of the 512 pages; 0 where none is present."""
    huge: bool
    """Whether one 2 MiB page maps it."""


@dataclass(frozen=True)
class Layout:
    """The memory of a process, region by region in address order."""

    regions: list[Region]
    frames_known: bool
    """Whether frames are the process's own."""
    pages: int
    """Pages of 4 KiB that are present."""
    notes: list[str] = field(default_factory=list)
    """What to know of it: a sentence each."""


def of_process(pid: int) -> Layout:
    """The anonymous private memory of a process: heaps, stacks, and what programs map for themselves.

    Raises:
        NestwalkError: When it cannot be read, ended meanwhile, or has no such memory.
    """
    known, pieces = _native.anonymous_pages(pid=pid)
    huge = {} if known else huge_regions(Path(f"/proc/{pid}/smaps"))
    return of_entries(_parts(pieces), huge, f"process {pid}")


def of_recording(path: Path) -> Layout:
    """The same of a process that ``nestwalk inspect --record`` recorded.

    Raises:
        NestwalkError: When it cannot be read, or has no such memory.
    """
    known, pieces = _native.anonymous_pages(path=str(path))
    made = of_entries(_parts(pieces), {}, shown(path))
    if known:
        return made
    why = "unavailable, because the kernel that it was recorded on has no PAGEMAP_SCAN (Linux 6.7)"
    return replace(made, notes=[*made.notes, f"Which pages are of 2 MiB is {why}: all are taken for 4 KiB ones."])


def _parts(pieces: Iterable[tuple[int, int, bool, bytes]]) -> Iterator[Part]:
    for mapping, first, huge, data in pieces:
        yield mapping, first, huge, array("Q", data)


def huge_regions(smaps: Path) -> dict[int, int]:
    """2 MiB pages (``AnonHugePages``) by the first page of the mapping; empty where smaps cannot be read."""
    found: dict[int, int] = {}
    first = 0
    try:
        lines = smaps.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return found
    for line in lines:
        words = line.split()
        if not words:
            continue
        if not words[0].endswith(":"):
            first = int(words[0].partition("-")[0], 16) // proc.PAGE_BYTES
        elif words[0] == "AnonHugePages:" and words[1] != "0":
            found[first] = int(words[1]) * 1024 // (PAGES * proc.PAGE_BYTES)
    return found


def of_entries(parts: Iterable[Part], huge: dict[int, int], what: str) -> Layout:
    """The layout that pagemap entries describe.

    Args:
        parts: Ascending.
        huge: How many 2 MiB pages there are in the mapping that begins at a page, where parts do not tell.
        what: For messages.

    Raises:
        NestwalkError: When no page is present, or there are too many.
    """
    filled: dict[int, array[int]] = {}
    begins: dict[int, int] = {}
    pages, hidden = 0, 0
    large = set()
    for mapping, first, in_huge, entries in parts:
        if in_huge:
            for at, entry in enumerate(entries, first // PAGES):
                if entry & proc.PRESENT:
                    frame = entry & proc.PFN_MASK
                    filled[at] = array("Q", range(frame + 1, frame + 1 + PAGES) if frame else [1] * PAGES)
                    large.add(at)
                    pages += PAGES
                    hidden += frame == 0
            continue
        for offset, entry in enumerate(entries):
            if not entry & proc.PRESENT:
                continue
            number, slot = divmod(first + offset, PAGES)
            region = filled.get(number)
            if region is None:
                region = filled[number] = array("Q", bytes(8 * PAGES))
                begins[number] = mapping
            pages += 1
            frame = entry & proc.PFN_MASK
            hidden += frame == 0
            region[slot] = frame + 1
    if not pages:
        raise NestwalkError(f"{what}: no anonymous memory is present; give a process that has touched some")
    if len(filled) > REGIONS_MAX:
        raise NestwalkError(f"{what}: has memory in {len(filled)} regions of 2 MiB; at most {REGIONS_MAX} are imported")
    known = hidden == 0
    ordered = sorted(filled)
    if not known:
        _in_order(filled[number] for number in ordered)
    regions = []
    quota = dict(huge)
    for number in ordered:
        region, mapping = filled[number], begins.get(number, -1)
        counted = quota.get(mapping, 0) > 0 and _whole(region)
        quota[mapping] = quota.get(mapping, 0) - counted
        regions.append(Region(region, counted or number in large))
    return Layout(regions, known, pages, _notes(known))


def _notes(known: bool) -> list[str]:
    if known:
        return [
            "Frames are those of the process; Linux does not show where its page-table pages are: side by side here."
        ]
    why = "frame numbers are shown to root only (CAP_SYS_ADMIN)"
    said = f"Which pages are present is the process's own; in which frames they are is unavailable, because {why}"
    return [f"{said}: they follow each other in address order here, which is the best that could be."]


def _in_order(regions: Iterable[array[int]]) -> None:
    """Gives present pages the frames that a memory without fragments would: one after another, regions aligned."""
    for number, region in enumerate(regions):
        for slot, frame in enumerate(region):
            if frame:
                region[slot] = number * PAGES + slot + 1


def _whole(region: array[int]) -> bool:
    """Whether all pages are present, in one aligned block of frames."""
    base = region[0] - 1
    return base >= 0 and base % PAGES == 0 and all(region[slot] == base + slot + 1 for slot in range(PAGES))


def write(layout: Layout, targets: Sequence[int], path: Path) -> int:
    """Writes the layout, laid under a program, as a dump; returns how often the layout is repeated.

    Args:
        layout: What is laid under it.
        targets: Numbers (address >> 21) of the program's regions of 2 MiB, ascending.
        path: The file.
    """
    dense = _dense(layout.regions)
    blocks = 1 + max(frame >> 9 for region in dense for frame in region.pages if frame)
    copies = -(-len(targets) // len(dense))
    placed = [_source(dense, index, len(targets)) for index in range(len(targets))]
    nodes = _Nodes(copies * blocks * PAGES)
    for number, (region, copy) in zip(targets, placed, strict=True):
        nodes.add(number, region, copy * blocks * PAGES)
    path.write_bytes(nodes.dump())
    return copies


def _source(regions: Sequence[Region], index: int, count: int) -> tuple[Region, int]:
    """The region for the program's ``index``-th of ``count``, and which copy of the layout it is of.

    Of more regions than the program has, some are taken, evenly; of fewer, all are repeated.
    """
    if count <= len(regions):
        return regions[index * len(regions) // count], 0
    return regions[index % len(regions)], index // len(regions)


def _dense(regions: Sequence[Region]) -> list[Region]:
    """The regions with frames renumbered: blocks of 2 MiB keep their order and what is in them, gaps between go."""
    used = sorted({(frame - 1) >> 9 for region in regions for frame in region.pages if frame})
    rank = {block: place for place, block in enumerate(used)}
    made = []
    for region in regions:
        frames = (rank[(frame - 1) >> 9] << 9 | (frame - 1) & 511 if frame else -1 for frame in region.pages)
        made.append(Region(array("Q", (frame + 1 for frame in frames)), region.huge))
    return made


class _Nodes:
    """Nodes of a table, each with its entries; they lie side by side from ``frame`` on."""

    def __init__(self, frame: int) -> None:
        self._frame = frame
        self._nodes: dict[tuple[int, int], tuple[int, array[int]]] = {}
        self._node(ROOT, 0)

    def _node(self, level: int, number: int) -> tuple[int, array[int]]:
        """The ``number``-th node of its level in the address space; made where there is none."""
        found = self._nodes.get((level, number))
        if found is None:
            found = self._nodes[level, number] = (self._frame + len(self._nodes), array("Q", bytes(8 * PAGES)))
            if level < ROOT:
                _, above = self._node(level + 1, number >> 9)
                above[number & 511] = found[0] << 12 | TABLE
        return found

    def add(self, number: int, region: Region, shift: int) -> None:
        """Maps the 2 MiB at ``number`` as ``region``, its frames moved by ``shift``."""
        if region.huge:
            _, entries = self._node(HUGE, number >> 9)
            entries[number & 511] = (region.pages[0] - 1 + shift) << 12 | LARGE
            return
        _, entries = self._node(1, number)
        for slot, frame in enumerate(region.pages):
            if frame:
                entries[slot] = (frame - 1 + shift) << 12 | LEAF

    def dump(self) -> bytes:
        """The file's bytes."""
        parts = [MAGIC, struct.pack("<Q", len(self._nodes))]
        for (level, number), (frame, entries) in sorted(
            self._nodes.items(), key=lambda node: (-node[0][0], node[0][1])
        ):
            parts.append(struct.pack("<3Q", level, number << (12 + 9 * level), frame << 12))
            parts.append(entries.tobytes())
        return b"".join(parts)
