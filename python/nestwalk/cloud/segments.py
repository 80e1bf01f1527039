# SPDX-License-Identifier: MIT OR Apache-2.0
"""How contiguous a running VM's memory is, how many segments it would need, and how many it could get now."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import polars as pl

from nestwalk import _native
from nestwalk.cloud import proc, qemu
from nestwalk.errors import NestwalkError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from nestwalk.cloud.proc import Mapping, Pool, Source

UNAVAILABLE = "unavailable, because "
GIB_PAGES = 1 << 18
LARGEST_SHARE = 4
"""Guest memory is every mapping of at least a quarter of the largest: a VM of several NUMA nodes has one each."""

SEGMENTS_MAX = 8
"""Numbers n of segments for which it is said how much of the memory the n largest hold."""

PFN_HIDDEN = (
    UNAVAILABLE + "the kernel shows frame numbers to processes with CAP_SYS_ADMIN only, and as 0 to others: run as root"
)


NO_MONITOR = (
    UNAVAILABLE + "only the VMM knows it: a hole in guest memory (such as that below 4 GiB) within a run makes one "
    "segment more; give --monitor with QEMU's QMP socket"
)


@dataclass(frozen=True)
class Contiguity:
    """How the memory of some mappings lies in physical memory."""

    present: int
    """Pages that have a frame of their own."""
    swapped: int
    absent: int
    """Pages that were never touched, or were given back."""
    shared: int
    """Pages without a frame of their own: the kernel's page of zeros (read, never written), merged by KSM, or shared
    with a child after a fork."""
    hidden: bool
    """Whether the kernel hides the frames."""
    runs: tuple[int, ...]
    """Pages of each run of pages whose frames are next to each other in the same order; the largest first."""
    fewest: int
    """Runs, if every page that is not present got the frame that joins the runs beside it, where one can."""


def guest_memory(mappings: Sequence[Mapping], *, everything: bool = False) -> list[Mapping]:
    """The mappings that are a VM's memory: writable, large, and not the VMM's own code.

    Memory that the VMM maps as executable is code: QEMU's text, and the buffer of up to 1 GiB into which its emulator
    TCG writes machine code. That buffer may be mapped twice (``split-wx``), once to write and once to run; so a file
    that is mapped as executable anywhere is code everywhere.

    Args:
        mappings: All mappings of the process.
        everything: Take all writable mappings, whatever they are.

    Raises:
        NestwalkError: When there is none.
    """
    code = {one.file for one in mappings if one.executable and not one.anonymous}
    writable = [
        one
        for one in mappings
        if one.permissions[1] == "w" and (everything or not (one.executable or one.file in code))
    ]
    if not writable:
        raise NestwalkError(
            "the process has no writable memory; give the pid of a VM's VMM, such as qemu-system-x86_64"
        )
    least = 0 if everything else max(one.pages for one in writable) // LARGEST_SHARE
    return [one for one in writable if one.pages >= least]


def guest_ranges(
    mappings: Sequence[Mapping], placed: Sequence[qemu.Range], *, everything: bool = False
) -> list[Mapping]:
    """The parts of the mappings that QEMU says are the guest's memory, ascending by guest-physical address.

    Args:
        mappings: All mappings of the process.
        placed: What QEMU says.
        everything: Take all of it; else only blocks of at least a quarter of the largest, as without QEMU's help.

    Raises:
        NestwalkError: When QEMU speaks of addresses that the process does not have.
    """
    blocks: dict[str, int] = {}
    for one in placed:
        blocks[one.block] = blocks.get(one.block, 0) + one.length
    least = 0 if everything else max(blocks.values(), default=0) // LARGEST_SHARE
    found = []
    for one in placed:
        if blocks[one.block] < least:
            continue
        behind = [mapping for mapping in mappings if mapping.start < one.end and one.hva < mapping.end]
        if not behind or behind[0].start > one.hva or behind[-1].end < one.end:
            raise NestwalkError(
                f"the process has no memory at {one.hva:#x}, where QEMU says {one.block} is; "
                "give --pid and --monitor of the same VM"
            )
        for mapping in behind:
            start, end = max(one.hva, mapping.start), min(one.end, mapping.end)
            gpa = one.gpa + start - one.hva
            found.append(replace(mapping, start=start, end=end, gpa=gpa, name=mapping.name or one.block))
    return sorted(found, key=lambda mapping: mapping.gpa or 0)


def contiguity(source: Source, chosen: Sequence[Mapping], all_mappings: Sequence[Mapping]) -> Contiguity:
    """Reads how the chosen mappings lie in physical memory.

    Raises:
        NestwalkError: When it cannot be read.
    """
    present = swapped = shared = 0
    hidden = False
    parts = []
    for number, mapping in enumerate(chosen):
        # Mappings are apart, unless it is known where they are in the guest's memory.
        piece, at = (number, 0) if mapping.gpa is None else (0, mapping.gpa // proc.PAGE_BYTES)
        for data in source.entries(mapping, all_mappings):
            frame = proc.words(data).to_frame("entry").with_row_index("page", offset=at)
            swapped += int(frame.select(proc.has("entry", proc.SWAPPED).sum()).item())
            mapped = frame.filter(proc.has("entry", proc.PRESENT))
            own = mapped.filter(_own(mapping))
            shared += len(mapped) - len(own)
            there = own.select(
                pl.lit(piece).alias("mapping"),
                pl.col("page").cast(pl.Int64),
                (pl.col("entry") & pl.lit(proc.PFN_MASK, dtype=pl.UInt64)).cast(pl.Int64).alias("pfn"),
            )
            present += len(there)
            hidden |= len(there) > 0 and there["pfn"].max() == 0
            parts.append(_runs(there))
            at += len(frame)
    runs = _joined(pl.concat(parts)) if parts else pl.DataFrame(schema=_RUN)
    total = sum(one.pages for one in chosen)
    lengths = tuple(runs["pages"].sort(descending=True).to_list())
    absent = total - present - swapped - shared
    return Contiguity(present, swapped, absent, shared, hidden, lengths, _fewest(runs))


def _own(mapping: Mapping) -> pl.Expr:
    """Whether a page that is present has a frame of its own.

    Of anonymous memory: the process has the frame once and alone. (The huge page of zeros has ``FILE_OR_SHARED`` in
    new kernels, so that bit proves nothing there.) Of files: any page of the file, and a copy that a write made.
    """
    alone = proc.has("entry", proc.EXCLUSIVE)
    return alone if mapping.anonymous else alone | proc.has("entry", proc.FILE_OR_SHARED)


_RUN = {"mapping": pl.Int32, "page": pl.Int64, "pfn": pl.Int64, "pages": pl.Int64}


def _runs(there: pl.DataFrame) -> pl.DataFrame:
    """Runs of pages that are next to each other in both memories."""
    starts = (
        (pl.col("page") != pl.col("page").shift(1) + 1) | (pl.col("pfn") != pl.col("pfn").shift(1) + 1)
    ).fill_null(value=True)
    return (
        there.with_columns(starts.cum_sum().alias("run"))
        .group_by("run", maintain_order=True)
        .agg(pl.col("mapping", "page", "pfn").first(), pl.len().cast(pl.Int64).alias("pages"))
        .select(pl.col("mapping").cast(pl.Int32), "page", "pfn", "pages")
    )


def _joined(runs: pl.DataFrame) -> pl.DataFrame:
    """The same runs; those that go on in the next part that was read are one."""
    ends = pl.col("page") + pl.col("pages")
    goes_on = (
        (pl.col("mapping") == pl.col("mapping").shift(1))
        & (pl.col("page") == ends.shift(1))
        & (pl.col("pfn") == (pl.col("pfn") + pl.col("pages")).shift(1))
    ).fill_null(value=False)
    return (
        runs.with_columns((~goes_on).cum_sum().alias("run"))
        .group_by("run", maintain_order=True)
        .agg(pl.col("mapping", "page", "pfn").first(), pl.col("pages").sum())
        .drop("run")
    )


def _fewest(runs: pl.DataFrame) -> int:
    """Runs in order whose distance between the two memories is the same are one, whatever is between them."""
    changes = (
        (pl.col("mapping") != pl.col("mapping").shift(1))
        | ((pl.col("pfn") - pl.col("page")) != (pl.col("pfn") - pl.col("page")).shift(1))
    ).fill_null(value=True)
    return int(runs.select(changes.sum()).item() or 0)


def from_runs(runs: Sequence[int], pages: int) -> int | None:
    """How many of the free runs, the largest first, hold ``pages`` pages: the fewest segments; None if all do not."""
    left, count = pages, 0
    for run in runs:
        if left <= 0:
            break
        left -= run
        count += 1
    return count if left <= 0 else None


def available(source: Source, pages: int) -> dict[str, Any]:
    """How many segments a VM of ``pages`` pages could get now, from free memory and from the hugetlb pools."""
    return {"free_memory": _free_memory(source, pages), "hugetlb": _hugetlb(source.pools(), pages)}


def _free_memory(source: Source, pages: int) -> dict[str, Any] | str:
    """From the buddy allocator. Exactly where adjacency is known, else between bounds."""
    blocks = source.buddyinfo()
    if isinstance(blocks, str):
        return UNAVAILABLE + blocks
    free = sum(count << order for order, count in blocks.items())
    worst = _from_blocks(blocks, pages)
    found: dict[str, Any] = {
        "free_pages": free,
        "largest_block_pages": max((1 << order for order, count in blocks.items() if count), default=0),
        "segments_at_most": worst,
    }
    runs = source.free_runs()
    if isinstance(runs, str):
        why = UNAVAILABLE + runs
        return {**found, "segments": why, "largest_run_pages": why, "runs": why}
    lengths = runs.sort(descending=True).to_list()
    segments = from_runs(lengths, pages)
    not_enough = f"{UNAVAILABLE}{sum(lengths):,} pages are free and the VM has {pages:,}"
    return {
        **found,
        "segments": not_enough if segments is None else segments,
        "largest_run_pages": lengths[0] if lengths else 0,
        "runs": len(lengths),
    }


def _from_blocks(blocks: dict[int, int], pages: int) -> int | str:
    """Segments out of the largest blocks, if none were next to another."""
    left, count = pages, 0
    for order in sorted(blocks, reverse=True):
        used = min(blocks[order], -(-left >> order)) if left > 0 else 0
        left -= used << order
        count += used
    free = sum(many << order for order, many in blocks.items())
    return count if left <= 0 else f"{UNAVAILABLE}{free:,} pages are free and the VM has {pages:,}"


def _hugetlb(pools: list[Pool] | str, pages: int) -> list[dict[str, Any]] | str:
    """From each pool: how many huge pages the VM needs, and at most so many segments."""
    if isinstance(pools, str):
        return UNAVAILABLE + pools
    if not pools:
        return UNAVAILABLE + "the kernel has no hugetlb pages"
    found = []
    for pool in pools:
        size = pool.page_kib // 4
        needed = -(-pages // size)
        enough = pool.free >= needed
        short = (
            f"{UNAVAILABLE}the pool has {pool.free:,} free pages of {pool.page_kib:,} kB and the VM needs {needed:,}"
        )
        found.append(
            {
                "page_kib": pool.page_kib,
                "pool": pool.pages,
                "free": pool.free,
                "needed": needed,
                "segments_at_most": needed if enough else short,
            }
        )
    return found


def report(
    source: Source, *, everything: bool = False, monitor: Path | None = None
) -> tuple[dict[str, Any], list[Mapping]]:
    """What ``nestwalk segments --json`` prints, and the mappings that it is about.

    Raises:
        NestwalkError: When the process or the recording cannot be read.
    """
    mappings = source.mappings()
    if not mappings:
        raise NestwalkError("the process has no memory of its own; give the pid of a VM's VMM, on the host")
    if monitor is not None:
        chosen = guest_ranges(mappings, qemu.layout(monitor), everything=everything)
    elif all(one.gpa is not None for one in mappings):
        chosen = sorted(mappings, key=lambda one: one.gpa or 0)
    else:
        chosen = guest_memory(mappings, everything=everything)
    found = contiguity(source, chosen, mappings)
    pages = sum(one.pages for one in chosen)
    return {
        "schema": 1,
        "version": _native.version(),
        "pid": source.pid,
        "mappings": [
            {"start": f"{one.start:#x}", "end": f"{one.end:#x}", "bytes": one.pages * proc.PAGE_BYTES, "name": one.name}
            for one in chosen
        ],
        "guest_physical": _guest_physical(chosen),
        "memory_pages": pages,
        "present_pages": found.present,
        "swapped_pages": found.swapped,
        "absent_pages": found.absent,
        "shared_pages": found.shared,
        "segments": _layout(found),
        "available_now": available(source, pages),
    }, chosen


def _guest_physical(chosen: Sequence[Mapping]) -> list[dict[str, Any]] | str:
    """Where the guest has the mappings, if that is known."""
    placed = [(one.gpa, one.pages) for one in chosen if one.gpa is not None]
    if len(placed) < len(chosen):
        return NO_MONITOR
    return [{"gpa": f"{gpa:#x}", "bytes": pages * proc.PAGE_BYTES} for gpa, pages in placed]


def _layout(found: Contiguity) -> dict[str, Any] | str:
    """The segments that the memory lies in."""
    if found.hidden:
        return PFN_HIDDEN
    if not found.present:
        return UNAVAILABLE + "no page of it has a frame of its own: the memory was never written, or is swapped out"
    covered, held = {}, 0
    for n, run in enumerate(found.runs[:SEGMENTS_MAX], 1):
        held += run
        covered[str(n)] = held / found.present
    return {
        "count": len(found.runs),
        "fewest": found.fewest,
        "largest_pages": found.runs[0],
        "mean_pages": found.present / len(found.runs),
        "share_in_largest": covered,
        "whole_gib": sum(run // GIB_PAGES for run in found.runs),
    }
