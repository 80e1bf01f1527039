# SPDX-License-Identifier: MIT OR Apache-2.0
"""The whole run beside the steady state: what first touches, faults and exits cost, as values of a row.

The engine counts and costs what the kernels did for the program from its beginning to its end (``whole_run`` of a
result), and estimates what comes between the windows of a sampled trace. The time of the whole run is that work, and
the measured part's other cycles an access for each of the program's accesses: an assumption, as a program that still
fills its memory may run differently.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nestwalk.cycles import total

if TYPE_CHECKING:
    from nestwalk.counters import Window
    from nestwalk.intervals import Estimate
    from nestwalk.result import Result

KEYS = (
    "whole_run_faults",
    "whole_run_exits",
    "whole_run_kernel_cycles",
    "whole_run_kernel_share",
    "whole_run_cycles_per_access",
)
"""What :func:`row` has."""

KINDS = {
    "faults": "page faults",
    "zeroing": "zeroing pages",
    "exits": "VM exits",
    "tables": "page-table pages",
    "copying": "copying and moving pages",
    "huge_pages": "making huge pages",
    "shootdowns": "TLB shootdowns",
    "reclaim": "reclaim and swap",
    "files": "files: reading, mapping and copying their pages",
    "calls": "system calls",
}
"""What kernel work is for, in the order of pictures, by its key in ``whole_run.cycles``."""


def row(result: Result) -> dict[str, Any]:
    """The values of a row: counts of the whole run, the share of its time that is kernel work, its cycles an access.

    The last two are None where the program's length is not known; ``result.whole_run["unavailable"]`` says why.
    """
    whole = result.whole_run
    kernel = sum(whole["cycles"].values()) + whole["estimated_cycles"]
    own = own_cycles_per_access(result)
    accesses = whole["accesses"]
    total = None if own is None or not accesses else own + kernel / accesses
    return {
        "whole_run_faults": whole["faults"],
        "whole_run_exits": whole["exits"],
        "whole_run_kernel_cycles": kernel,
        "whole_run_kernel_share": kernel / accesses / total if total else None,
        "whole_run_cycles_per_access": total,
    }


def gain(run: Result, plain: Result) -> Estimate | None:
    """The share of the whole run of ``plain`` that ``run`` gives back; negative where it takes more.

    Its interval is that of the measured part's cycles; the kernels' work is counted and has none. None where the
    program's length is not known, or nothing was measured.
    """
    from nestwalk import intervals

    before, after = row(plain), row(run)
    stock, total = before["whole_run_cycles_per_access"], after["whole_run_cycles_per_access"]
    if not stock or total is None:
        return None
    if not intervals.match(run, plain):
        return intervals.Estimate(1 - total / stock)
    work = after["whole_run_kernel_cycles"] / run.whole_run["accesses"]
    stock_work = before["whole_run_kernel_cycles"] / plain.whole_run["accesses"]
    windows = [
        (_own(its) - _own(mine) + (stock_work - work) * its["accesses"], _own(its) + stock_work * its["accesses"])
        for mine, its in zip(run.statistics["windows"], plain.statistics["windows"], strict=True)
    ]
    return intervals.ratio([saved for saved, _ in windows], [whole for _, whole in windows], intervals.modelled(plain))


def _own(window: Window) -> int:
    """A window's cycles without kernel work."""
    return total(window["cycles"]) - window["cycles"]["os"]


def own_cycles_per_access(result: Result) -> float | None:
    """Cycles an access of the measured part without kernel work; None if nothing was measured."""
    statistics = result.statistics
    own: int = total(statistics["cycles"]) - statistics["cycles"]["os"]
    accesses: int = statistics["accesses"]
    return own / accesses if accesses else None
