# SPDX-License-Identifier: MIT OR Apache-2.0
"""Why a technique gives back what it does, and what it costs: from the counters of two runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nestwalk import whole_run

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nestwalk.result import Result

REASONS = (
    ("walks per 1000 accesses", "walks_per_kiloaccess", 2),
    ("cycles a walk", "walk_latency_cycles", 0),
    ("references a walk", "references_per_walk", 2),
    ("host PT fragmentation", "host_pt_fragmentation", 2),
)
"""What a reason may name: words, the row's key, and decimals."""

FRAME_BYTES = 4096
GIB = 1 << 30
SAID = 0.05
"""Changes of memory below this are none, in per cent: they would be shown as 0.0."""


def reason(run: Result, plain: Result) -> str:
    """What changes in the walks from ``plain`` to ``run``: a sentence."""
    before, after = plain.row, run.row
    changed = [
        f"{words} from {before[key]:.{decimals}f} to {after[key]:.{decimals}f}"
        for words, key, decimals in REASONS
        if None not in (before.get(key), after.get(key))
        and f"{before[key]:.{decimals}f}" != f"{after[key]:.{decimals}f}"
    ]
    return f"Measured: {', '.join(changed)}." if changed else "Measured: walks are those of the plain VM."


def costs(run: Result, plain: Result) -> dict[str, Any]:
    """What ``run`` takes besides, against ``plain``: guest memory in use, and kernel work of a guest's page fault.

    ``guest_memory_bytes`` and ``guest_memory_ratio`` (at the end of the run); ``fault_cycles`` and
    ``plain_fault_cycles`` (kernel work of the guest's kernel a page fault, over the whole run), ``faults`` and
    ``plain_faults``; ``kernel_work_ratio`` (of all kernels, over the whole run). None where a run does not have it.
    """
    memory, stock = _memory(run), _memory(plain)
    faults, stock_faults = _faults(run), _faults(plain)
    work, stock_work = (whole_run.row(one)["whole_run_kernel_cycles"] for one in (run, plain))
    return {
        "guest_memory_bytes": memory,
        "guest_memory_ratio": memory / stock if memory and stock else None,
        "faults": faults[0],
        "plain_faults": stock_faults[0],
        "fault_cycles": faults[1],
        "plain_fault_cycles": stock_faults[1],
        "kernel_work_ratio": work / stock_work if stock_work else None,
    }


def sentences(found: Mapping[str, Any]) -> dict[str, str]:
    """The counters of :func:`costs` in words: ``memory`` and ``latency``, those that are known."""
    said = {}
    if found["guest_memory_ratio"] is not None:
        more = 100 * (found["guest_memory_ratio"] - 1)
        size = found["guest_memory_bytes"] / GIB
        change = "as much as" if abs(more) < SAID else f"{abs(more):.1f} % {'more' if more > 0 else 'less'} than"
        said["memory"] = f"{size:.2f} GiB of guest memory in use, {change} in the plain VM."
    if found["fault_cycles"] is not None and found["plain_fault_cycles"] is not None:
        said["latency"] = (
            f"{found['faults']} page faults of {found['fault_cycles']:.0f} cycles each in the guest, in place of "
            f"{found['plain_faults']} of {found['plain_fault_cycles']:.0f}"
        )
        work = found["kernel_work_ratio"]
        said["latency"] += (
            f"; kernel work of the whole run {work:.2f} times the plain VM's." if work is not None else "."
        )
    return said


def _memory(run: Result) -> int | None:
    """Bytes in use in the topmost kernel at the end, reserved ones included."""
    kernels = run.statistics.get("kernels")
    return (kernels[-1]["frames"] - kernels[-1]["free_frames"]) * FRAME_BYTES if kernels else None


def _faults(run: Result) -> tuple[int | None, float | None]:
    """Page faults of the topmost kernel over the whole run, and its work for each, in cycles.

    Of its work, what faults are made of: entry and exit, zeroing, page-table pages.
    """
    kernels = run.whole_run.get("kernels")
    if not kernels or not kernels[-1]["faults"]:
        return None, None
    faults, cycles = kernels[-1]["faults"], kernels[-1]["cycles"]
    work = sum(cycles.get(kind, 0) for kind in ("faults", "zeroing", "tables"))
    return faults, work / faults
