# SPDX-License-Identifier: MIT OR Apache-2.0
"""The same chases in the simulator: the generator ``group_chase`` follows the probe's pattern to the last line.

A chase has nothing to overlap: each load waits for the one before, so a load takes its walk's cycles and its line's
latency, and the time model's shares (``[timing]``) have no part in it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nestwalk import conduct, pool, scenario, toml_file
from nestwalk.conduct import Means
from nestwalk.probe.cells import HUGE, PAGE, Cell

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from nestwalk.machines import Detected
    from nestwalk.pool import Watcher

WARM_ROUNDS = 2
"""Rounds through a chase before one is measured, as the probe has them: building is one, the first run another."""
ACCESSES_MIN = 200_000
LINE = 64
MANAGERS = {"4k": "linux4k", "2m": "thp"}
"""The host's memory manager by the pages that it backs a VM with."""


@dataclass(frozen=True)
class Machine:
    """The simulated machine of a validation."""

    text: str
    """Its file, TOML."""
    ghz: float
    """Its clock, by which cycles become ns."""
    changes: tuple[str, ...]
    """What is not as the machine file has it: a sentence each."""


def machine(
    detected: Detected,
    *,
    ghz: float | None,
    llc_bytes: int | None,
    llc_ns: float | None = None,
    memory_ns: float | None = None,
) -> Machine:
    """The detected machine with the share of the last-level cache, and the latencies, that were measured here.

    Args:
        detected: The file of this processor.
        ghz: The clock that was measured; memory, whose ns the file knows, takes more cycles if it is higher.
        llc_bytes: The share of the last-level cache that this machine really has.
        llc_ns: Instead of the file's latency of the last-level cache.
        memory_ns: Instead of the file's latency of memory.
    """
    table = toml_file.parse(detected.toml(), detected.name)
    mmu, changes = table["mmu"], []
    stated = table["frequency_mhz"] / 1000
    if ghz is not None and abs(ghz / stated - 1) > 0.01:  # noqa: PLR2004 (within the clock's own scatter)
        mmu["memory_latency_cycles"] = round(mmu["memory_latency_cycles"] * ghz / stated)
        table["frequency_mhz"] = round(ghz * 1000)
        changes.append(f"clock {ghz:.2f} GHz, measured, instead of {stated:.2f}; memory keeps its ns")
    clock = table["frequency_mhz"] / 1000
    if llc_bytes is not None:
        set_bytes = mmu["llc"]["ways"] * LINE
        size = prime_below(llc_bytes // set_bytes) * set_bytes
        changes.append(f"last-level cache {size / 2**20:.1f} MiB, measured, instead of {mmu['llc']['size']}")
        mmu["llc"]["size"] = size
    if llc_ns is not None:
        changes.append(f"its latency {llc_ns:.1f} ns, measured, instead of {mmu['llc']['latency_cycles'] / clock:.1f}")
        mmu["llc"]["latency_cycles"] = round(llc_ns * clock)
    if memory_ns is not None:
        changes.append(f"memory {memory_ns:.0f} ns, measured, instead of {mmu['memory_latency_cycles'] / clock:.0f}")
        mmu["memory_latency_cycles"] = round(memory_ns * clock)
    return Machine(scenario.write(table), clock, tuple(changes))


def prime_below(number: int) -> int:
    """The largest prime that is not above ``number``; 2 at least.

    A share of a cache has so many sets. A processor hashes addresses to sets, the simulator takes a remainder. Memory
    that is touched in order has a page of PTEs every 513 frames, so these pages are 513 x 64 lines apart: with
    19 x 256 sets (513 is 27 x 19) all of them would share 256 of the sets.
    """
    found = max(number, 2)
    while any(found % factor == 0 for factor in range(2, math.isqrt(found) + 1)):
        found -= 1
    return found


def kernels(host: str, *, huge: bool) -> list[dict[str, Any]]:
    """A kernel with huge pages or without, on a host that backs VMs with pages of ``host``, or natively (``none``)."""
    guest = {"manager": {"kind": "thp" if huge else "linux4k"}}
    return [guest] if host == "none" else [{"manager": {"kind": MANAGERS[host]}}, guest]


def table_of(cell: Cell, host: str, machine_file: str, seed: int) -> dict[str, Any]:
    """The scenario of a cell."""
    measured = -(-ACCESSES_MIN // cell.pages) * cell.pages
    return {
        "schema": 1,
        "name": f"{cell.layout}-{cell.order}-{cell.footprint_bytes >> 10}k",
        "machine": machine_file,
        "workload": {
            "generator": {
                "kind": "group_chase",
                "footprint": f"{cell.footprint_bytes // PAGE * 4} KiB",
                "warm_accesses": max(WARM_ROUNDS * cell.pages, measured),
                "measured_accesses": measured,
                "seed": seed,
                "layout": "in-order" if cell.layout == HUGE else cell.layout,
                "order": cell.order,
            }
        },
        "kernels": kernels(host, huge=cell.layout == HUGE),
    }


def simulate(
    wanted: Sequence[Cell], machine: Machine, folder: Path, *, host: str, seed: int, jobs: int, watcher: Watcher
) -> dict[Cell, dict[str, float | None]]:
    """Nanoseconds an access, walk cycles and lines a group of all cells; the machine's file is written into ``folder``.

    Raises:
        NestwalkError: When a run fails.
    """
    path = folder / "machine.toml"
    path.write_text(machine.text, encoding="utf-8")
    todo = []
    for cell in wanted:
        table = table_of(cell, host, str(path), seed)
        todo.append(pool.Job(table["name"], scenario.write(table), folder / f"{table['name']}.toml"))
    results = conduct.results(todo, Means(jobs), watcher)
    return {cell: _row(result, machine.ghz) for cell, result in zip(wanted, results, strict=True)}


def _row(result: Mapping[str, Any], ghz: float) -> dict[str, float | None]:
    counted, row = result["statistics"], result["row"]
    cycles = counted["mmu"]["data_cycles"] + counted["walk_cycles"]
    return {
        "ns": cycles / counted["accesses"] / ghz,
        "walk_cycles": row["walk_cycles_per_access"],
        "lines": row["host_pt_fragmentation"],
    }
