# SPDX-License-Identifier: Apache-2.0
"""Which memory a Linux host has free for VMs, and in which segments.

A pool of huge pages: `/sys/devices/system/node/node*/hugepages` says how many are free, not where.
`/proc/kpageflags` and `/proc/kpagecount` (root only) have 8 bytes a page frame: a free page of the
pool is a head of that size that nobody maps. One look at each frame number that is a multiple of
the page size finds them all. A page that is in use but not mapped (a file in hugetlbfs that no
process has open) looks free there, so the two must agree, page for page; else only the counts are
used, and each page is a segment of its own: never fewer segments than there would be.

The buddy allocator: `/proc/buddyinfo` counts free blocks by order. With `/proc/kpageflags` adjacent
blocks of the largest order are joined.

The flags are those of `include/uapi/linux/kernel-page-flags.h`; files are described in the kernel's
Documentation/admin-guide/mm/pagemap.rst and Documentation/filesystems/proc.rst.
"""

from __future__ import annotations

import os
import re
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from nestwalk_nova.allocation import Runs, runs_of

if TYPE_CHECKING:
    from pathlib import Path

PAGE_KIB = 4
#: Bits of an entry of kpageflags.
KPF_BUDDY = 1 << 10
KPF_COMPOUND_HEAD = 1 << 15
KPF_COMPOUND_TAIL = 1 << 16
KPF_HUGE = 1 << 17

_ENTRY_BYTES = 8
_PAGES_2M = 512
PAGE_SIZES_KIB = {"1G": 1 << 20, "2M": 1 << 11}


class HostError(Exception):
    """The host's memory cannot be read; the text says which file and what to do."""


@dataclass(frozen=True, slots=True)
class Free:
    """Free segments of a host."""

    #: One of `encoding.SOURCES`.
    source: str
    unit_mib: int
    #: NUMA node and its free segments, ascending in the node's number.
    nodes: tuple[tuple[int, Runs], ...]
    #: Why it is less exact than it could be; empty if it is not.
    notes: tuple[str, ...] = ()


class _Zone(NamedTuple):
    node: int
    name: str
    start_pfn: int
    end_pfn: int


def hugetlb(root: Path, page_size: str, reserved: dict[int, int] | None = None) -> Free:
    """Free huge pages.

    Args:
        root: `/`, or a copy of its files.
        page_size: a key of `PAGE_SIZES_KIB`.
        reserved: pages of each node that no VM gets.

    Raises:
        HostError: there is no pool of such pages, or its files cannot be read.
    """
    kib = PAGE_SIZES_KIB[page_size]
    counts = _free_counts(root, kib)
    notes: list[str] = []
    runs = _huge_runs(root, kib, counts, notes)
    exact = runs is not None
    sizes = runs if runs is not None else {node: [1] * count for node, count in counts.items()}
    for node, pages in sorted((reserved or {}).items()):
        _take_from_largest(sizes.get(node, []), pages)
    # Pages promised to a process that has not touched them yet are counted as free, and of no node
    # in particular.
    promised = _read_number(root / f"sys/kernel/mm/hugepages/hugepages-{kib}kB/resv_hugepages")
    for _ in range(promised):
        _take_from_largest(max(sizes.values(), key=lambda free: max(free, default=0)), 1)
    nodes = tuple((node, runs_of(free)) for node, free in sorted(sizes.items()))
    return Free("hugetlb" if exact else "hugetlb-counts", kib >> 10, nodes, tuple(notes))


def buddy(root: Path) -> Free:
    """Free blocks of the buddy allocator's largest order.

    Zone DMA is left out: its 16 MiB are not for VMs.

    Raises:
        HostError: buddyinfo or zoneinfo cannot be read.
    """
    counts: dict[int, int] = {}
    orders = 0
    for line in _read(root / "proc/buddyinfo").splitlines():
        match = re.fullmatch(r"Node +(\d+), zone +(\S+)((?: +\d+)+) *", line)
        if not match:
            raise HostError(f"{root / 'proc/buddyinfo'}: {line[:60]!r} is not a line of buddyinfo")
        blocks = [int(count) for count in match[3].split()]
        orders = len(blocks)
        if match[2] != "DMA":
            counts[int(match[1])] = counts.get(int(match[1]), 0) + blocks[-1]
    if not counts:
        raise HostError(f"{root / 'proc/buddyinfo'}: it names no zone")
    pages = 1 << (orders - 1)
    unit_mib = (PAGE_KIB << (orders - 1)) >> 10
    notes: list[str] = []
    sizes = _buddy_runs(root, pages, notes)
    source = "buddy" if sizes is not None else "buddy-counts"
    if sizes is None:
        sizes = {node: [1] * count for node, count in counts.items()}
    nodes = tuple((node, runs_of(sizes.get(node, []))) for node in sorted(counts))
    return Free(source, max(unit_mib, 1), nodes, tuple(notes))


def _free_counts(root: Path, kib: int) -> dict[int, int]:
    """Free pages of the pool by node."""
    folders = root.glob(f"sys/devices/system/node/node[0-9]*/hugepages/hugepages-{kib}kB")
    counts = {int(folder.parts[-3].removeprefix("node")): folder for folder in folders}
    pools = root / "sys/devices/system/node"
    size = f"huge pages of {kib >> 10} MiB"
    remedy = (
        "reserve a pool of them on the kernel's command line (hugepagesz=, hugepages=), "
        "or set page_size or source in [nestwalk]"
    )
    if not counts:
        raise HostError(f"{pools}: no node has {size}; {remedy}")
    if sum(_read_number(folder / "nr_hugepages") for folder in counts.values()) == 0:
        raise HostError(f"{pools}: the pool of {size} is empty; {remedy}")
    return {
        node: _read_number(folder / "free_hugepages") for node, folder in sorted(counts.items())
    }


def _take_from_largest(sizes: list[int], pages: int) -> None:
    """Takes pages off the largest segment, so that what is left is not better than it will be."""
    for _ in range(pages):
        if not sizes:
            return
        largest = sizes.index(max(sizes))
        sizes[largest] -= 1
        if sizes[largest] == 0:
            del sizes[largest]


def _huge_runs(
    root: Path, kib: int, counts: dict[int, int], notes: list[str]
) -> dict[int, list[int]] | None:
    """Sizes of runs of adjacent free huge pages by node; None and a note if unknown."""
    pages = kib // PAGE_KIB
    with ExitStack() as files:
        try:
            flags, mapped = (
                _Entries(root / "proc" / name, files) for name in ("kpageflags", "kpagecount")
            )
        except OSError as error:
            notes.append(
                f"{error.filename}: {error.strerror}; each free page counts as a segment of its own"
            )
            return None
        # Where a page is looked at as well, to tell it from one of the next smaller size.
        inner = _PAGES_2M if pages > _PAGES_2M else 1

        def is_free(pfn: int) -> bool:
            head = flags.at(pfn)
            return (
                head & (KPF_HUGE | KPF_COMPOUND_HEAD) == KPF_HUGE | KPF_COMPOUND_HEAD
                and flags.at(pfn + inner) & (KPF_HUGE | KPF_COMPOUND_TAIL)
                == KPF_HUGE | KPF_COMPOUND_TAIL
                and not flags.at(pfn + pages) & KPF_COMPOUND_TAIL
                and mapped.at(pfn) == 0
            )

        found: dict[int, set[int]] = {node: set() for node in counts}
        for zone in _zones(root):
            first = -(-zone.start_pfn // pages) * pages
            # A gigantic page may begin in one zone and end in the next, so only its head is looked
            # for in this one.
            heads = (pfn for pfn in range(first, zone.end_pfn, pages) if is_free(pfn))
            found.setdefault(zone.node, set()).update(heads)
    wrong = [node for node, heads in sorted(found.items()) if len(heads) != counts.get(node, 0)]
    if wrong:
        notes.append(
            f"node {wrong[0]} has {counts.get(wrong[0], 0)} free huge pages, "
            f"but {len(found[wrong[0]])} look free in kpageflags; each free page counts as a segment of its own"
        )
        return None
    return {node: _runs(heads, pages) for node, heads in found.items() if node in counts}


def _buddy_runs(root: Path, pages: int, notes: list[str]) -> dict[int, list[int]] | None:
    """As `_huge_runs`, of the buddy allocator's blocks of `pages` pages."""
    found: dict[int, set[int]] = {}
    with ExitStack() as files:
        try:
            flags = _Entries(root / "proc/kpageflags", files)
        except OSError as error:
            notes.append(
                f"{error.filename}: {error.strerror}; each free block counts as a segment of its own"
            )
            return None
        for zone in _zones(root):
            if zone.name == "DMA":
                continue
            first = -(-zone.start_pfn // pages) * pages
            for pfn in range(first, zone.end_pfn - pages + 1, pages):
                if flags.at(pfn) & KPF_BUDDY and flags.all_have(pfn, pages, KPF_BUDDY):
                    found.setdefault(zone.node, set()).add(pfn)
    return {node: _runs(blocks, pages) for node, blocks in found.items()}


def _runs(starts: set[int], pages: int) -> list[int]:
    """Sizes of runs of adjacent blocks of `pages` frames, in blocks."""
    sizes: list[int] = []
    before = -1
    for start in sorted(starts):
        if sizes and start == before + pages:
            sizes[-1] += 1
        else:
            sizes.append(1)
        before = start
    return sizes


class _Entries:
    """A file of 8-byte entries, one a page frame. Beyond its end they are 0."""

    def __init__(self, path: Path, files: ExitStack) -> None:
        self._file = os.open(path, os.O_RDONLY)
        files.callback(os.close, self._file)

    def at(self, pfn: int) -> int:
        return int.from_bytes(os.pread(self._file, _ENTRY_BYTES, pfn * _ENTRY_BYTES), "little")

    def all_have(self, pfn: int, count: int, bit: int) -> bool:
        data = os.pread(self._file, count * _ENTRY_BYTES, pfn * _ENTRY_BYTES)
        entries = memoryview(data).cast("Q") if len(data) % _ENTRY_BYTES == 0 else ()
        return len(entries) == count and all(entry & bit for entry in entries)


def _zones(root: Path) -> list[_Zone]:
    """The zones of all nodes that have memory."""
    zones = []
    path = root / "proc/zoneinfo"
    for block in re.split(r"(?m)^(?=Node )", _read(path)):
        head = re.match(r"Node +(\d+), zone +(\S+)", block)
        spanned = re.search(r"(?m)^ +spanned +(\d+)", block)
        start = re.search(r"(?m)^ +start_pfn: +(\d+)", block)
        if head and spanned and start and int(spanned[1]):
            zones.append(
                _Zone(int(head[1]), head[2], int(start[1]), int(start[1]) + int(spanned[1]))
            )
    if not zones:
        raise HostError(f"{path}: it names no zone with memory")
    return zones


def _read(path: Path) -> str:
    try:
        return path.read_text("ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise HostError(
            f"{path}: {getattr(error, 'strerror', None) or 'not text'}; this host cannot be read"
        ) from None


def _read_number(path: Path) -> int:
    text = _read(path).strip()
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise HostError(f"{path}: {text[:40]!r} is not a number")
    return int(text)
