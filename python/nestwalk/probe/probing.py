# SPDX-License-Identifier: MIT OR Apache-2.0
"""``nestwalk probe``: what page walks cost on this machine, from chases alone.

Beside each chase of one line a page there is a control: as many lines, all those of few pages, which caches
treat alike and the TLB hardly notices. What a chase takes more than its control is what translation costs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nestwalk.errors import NestwalkError
from nestwalk.probe import cells, knees, limits, statistics
from nestwalk.probe.cells import HUGE, LINES, PAGE, Cell
from nestwalk.probe.knees import Point

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nestwalk.probe.cells import Measured
    from nestwalk.probe.knees import Capacity, Knee
    from nestwalk.probe.statistics import Value

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
FOOTPRINT_USUAL = 1 * GIB
SMALLEST = 64 * KIB
LINES_OF_A_PAGE = 64
FOOTPRINT_QUICK = 256 * MIB
ROUNDS, ROUNDS_QUICK = 9, 5
LLC_BEYOND = 4
"""The chase for the last-level cache goes up to so many times what CPUID says of it."""
L1_STEP_CYCLES = 3
"""A rise that counts as the end of the first-level TLB's reach, cycles: a hit in the second level costs 7 or 8 more
(docs/machines.md)."""
WALK_STEP_CYCLES = 12
"""The same of the second level's: a walk costs more than any hit there."""


@dataclass
class Probed:
    """What a probe found."""

    measured: Measured
    footprint_max: int
    seed: int
    processor: Mapping[str, Any]
    virtual: str | None
    """The hypervisor, or None on bare metal."""
    reach: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Of ``l1_tlb`` and ``l2_tlb``."""
    walk_cost: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By what serves the PTEs, ns a walk."""
    host_pages: str = "unknown"
    host_pages_why: str = ""
    llc: dict[str, Any] = field(default_factory=dict)
    capacity: Capacity | None = None

    def to_json(self) -> dict[str, Any]:
        """Everything, for scripts."""
        from nestwalk import _native

        measured = self.measured
        return {
            "schema": 1,
            "version": _native.version(),
            "host_pages": self.host_pages,
            "host_pages_why": self.host_pages_why,
            "virtual_machine": self.virtual,
            "processor": self.processor["brand"],
            "clock_ghz": clock(measured),
            "reach": self.reach,
            "walk_cost": self.walk_cost,
            "llc": self.llc,
            "rounds": measured.rounds,
            "footprint_max_bytes": self.footprint_max,
            "seed": self.seed,
            "noise": {"stretches": measured.stretches, "disturbed": measured.disturbed},
            "layouts": measured.facts,
            "counters": measured.counters,
            "curve": measured.curve(),
        }


def clock(measured: Measured) -> float | None:
    """The processor's clock, GHz: the best round's, as what disturbs can only make it look slower."""
    return max(measured.clock_ghz, default=None)


def steps(least: int, most: int, octave: int) -> list[int]:
    """Footprints from ``least`` to ``most`` bytes, ``octave`` in each doubling, multiples of 8 groups of pages."""
    count = math.floor(math.log2(most / least) * octave + 1e-9)
    wanted = [least * 2 ** (index / octave) for index in range(count + 1)]
    unit = 8 * 8 * PAGE
    return sorted(
        {max(round(size / unit) * unit, unit) if size > unit else round(size / 32768) * 32768 for size in wanted}
    )


def plan(footprint_max: int, llc_bytes: int | None) -> list[Cell]:
    """The cells of a probe."""
    found = []
    fine = steps(SMALLEST, min(32 * MIB, footprint_max), 2)
    coarse = steps(64 * MIB, footprint_max, 1) if footprint_max >= 64 * MIB else []
    for footprint in fine + coarse:
        found += [Cell(footprint, "lines-1", "random"), Cell(footprint, HUGE, "random")]
        control = footprint // LINES_OF_A_PAGE
        if control >= 8 * PAGE:
            found.append(Cell(control // (8 * PAGE) * 8 * PAGE, HUGE, LINES))
        if footprint >= MIB:
            whole = footprint // (64 * PAGE) * 64 * PAGE
            found += [Cell(whole, layout, "grouped") for layout in ("lines-1", "lines-8")]
    return sorted(set(found) | set(llc_cells(footprint_max, llc_bytes)))


def llc_cells(footprint_max: int, llc_bytes: int | None) -> list[Cell]:
    """The chase for the share of the last-level cache."""
    most = min(LLC_BEYOND * (llc_bytes or 64 * MIB), footprint_max)
    return [Cell(size, HUGE, LINES) for size in steps(128 * KIB, most, 2)]


def probe(
    *,
    footprint_max: int | None = None,
    rounds: int = ROUNDS,
    seed: int = 1,
    remap: bool = False,
    advanced: Callable[[float], None] = lambda _: None,
) -> Probed:
    """Measures, and says what is likely.

    Raises:
        NestwalkError: When there is too little memory, or this is no Linux.
    """
    processor = here()
    size = limits.footprint(footprint_max, FOOTPRINT_USUAL)
    wanted = plan(size, cache_bytes(processor, 3))
    measured = cells.measure(wanted, rounds=rounds, seed=seed, advanced=advanced, remap=remap)
    return judged(measured, size, seed, processor)


def here() -> dict[str, Any]:
    """This processor, as ``machine detect`` has it.

    Raises:
        NestwalkError: Where the probe cannot work at all.
    """
    import json
    import sys

    from nestwalk import _native

    if sys.platform != "linux":
        raise NestwalkError(
            f"the probe moves pages by Linux's system calls, and this is {sys.platform}; run it on Linux"
        )
    found: dict[str, Any] = json.loads(_native.processor())["processor"]
    return found


def cache_bytes(processor: Mapping[str, Any], level: int) -> int | None:
    """The size of a cache, as CPUID says it."""
    return next((cache["bytes"] for cache in processor["caches"] if cache["level"] == level), None)


def judged(measured: Measured, footprint_max: int, seed: int, processor: Mapping[str, Any]) -> Probed:
    """What the measurement says."""
    done = Probed(measured, footprint_max, seed, processor, processor.get("hypervisor"))
    ghz = clock(measured) or 1.0
    _judge_reach(done, ghz)
    _judge_host(done)
    _judge_llc(done)
    _judge_walks(done, ghz)
    return done


def cost(measured: Measured, footprint: int, layout: str, order: str) -> Value | None:
    """What translation costs an access, ns: the chase less its control; None where one of them was not measured."""
    found = _costs(measured, footprint, layout, order)
    return None if found is None else statistics.value(found)


def _costs(measured: Measured, footprint: int, layout: str, order: str) -> list[float] | None:
    """The same, one a round."""
    cell = Cell(footprint, layout, order)
    control = Cell(footprint // LINES_OF_A_PAGE // (8 * PAGE) * 8 * PAGE, HUGE, LINES)
    if cell not in measured.samples or control not in measured.samples:
        return None
    return [a - b for a, b in zip(measured.samples[cell], measured.samples[control], strict=True)]


def _points(measured: Measured, layout: str, order: str, *, net: bool = True) -> list[Point]:
    found = []
    for cell in measured.samples:
        if (cell.layout, cell.order) == (layout, order):
            own = cost(measured, cell.footprint_bytes, layout, order) if net else measured.value(cell)
            if own is not None:
                found.append(Point(cell.footprint_bytes, own))
    return sorted(found, key=lambda point: point.at)


def _judge_reach(done: Probed, ghz: float) -> None:
    first = [point for point in _points(done.measured, "lines-1", "random", net=False) if point.at <= 2 * MIB]
    found = {
        "l1_tlb": (knees.knee(first, L1_STEP_CYCLES / ghz), PAGE),
        "l2_tlb": (knees.knee(_points(done.measured, "lines-1", "random"), WALK_STEP_CYCLES / ghz), PAGE),
    }
    for name, (knee, page) in found.items():
        done.reach[name] = _reach(knee, page)


def _reach(knee: Knee | None, page: int) -> dict[str, Any]:
    if knee is None:
        why = "unavailable, because the curve has no step that is clear of its noise"
        return {"footprint_bytes": None, "entries": None, "low_bytes": None, "high_bytes": None, "unavailable": why}
    return {
        "footprint_bytes": round(knee.middle),
        "entries": round(knee.middle / page),
        "low_bytes": round(knee.last_flat),
        "high_bytes": round(knee.first_above),
        "unavailable": None,
    }


def _judge_host(done: Probed) -> None:
    """A buffer in 2 MiB pages, where a level of the TLB holds it in 2 MiB pages and not in 4 KiB pages.

    First where the first level does not and the second does: a miss costs little there, but all lines are in the L1-D
    and the L2, so there is hardly any noise. Then where the second level does not, and walks come.
    """
    if done.virtual is None:
        done.host_pages_why = "this is no virtual machine: nothing translates below its own tables"
        return
    facts = done.measured.facts["huge"]
    if facts["huge_bytes"] < facts["bytes"]:
        done.host_pages_why = (
            f"of {facts['bytes'] // MIB} MiB, only {facts['huge_bytes'] // MIB} came in 2 MiB pages "
            "(/sys/kernel/mm/transparent_hugepage/enabled must be madvise or always)"
        )
        return
    first, second = (_entries(done.processor, level, usual) * PAGE for level, usual in ((1, 64), (2, 2048)))
    answers = [
        knees.host_pages(*_host_costs(done.measured, least, most), what)
        for least, most, what in (
            (2 * first, second // 2, "a miss of the first-level TLB costs"),
            (3 * second, 32 * second, "walks cost"),
        )
    ]
    done.host_pages, done.host_pages_why = next((one for one in answers if one[0] != "unknown"), answers[-1])


def _entries(processor: Mapping[str, Any], level: int, usual: int) -> int:
    """Entries of the largest array of a level of the TLB, which is the one for 4 KiB pages."""
    found: int = max((tlb["entries"] for tlb in processor["tlbs"] if tlb["level"] == level), default=usual)
    return found


def _host_costs(measured: Measured, least: float, most: float) -> tuple[list[list[float]], list[list[float]]]:
    """What translation costs in 2 MiB and in 4 KiB pages, one a round, at each footprint from ``least`` to ``most``."""
    huge, small = [], []
    for cell in measured.samples:
        if (cell.layout, cell.order) == (HUGE, "random") and least <= cell.footprint_bytes <= most:
            pair = [_costs(measured, cell.footprint_bytes, layout, "random") for layout in (HUGE, "lines-1")]
            if pair[0] is not None and pair[1] is not None:
                huge.append(pair[0])
                small.append(pair[1])
    return huge, small


def _judge_llc(done: Probed) -> None:
    stated = cache_bytes(done.processor, 3)
    before = cache_bytes(done.processor, 2) or MIB
    points = [
        Point(cell.footprint_bytes, done.measured.value(cell))
        for cell in done.measured.samples
        if cell.layout == HUGE and cell.order == LINES
    ]
    done.capacity = knees.capacity(points, 1.5 * before, (stated or 64 * MIB) / 2)
    found = done.capacity
    if found is None:
        why = "unavailable, because the chase does not reach a level that is clear of its noise"
        done.llc = {"stated_bytes": stated, "bytes": None, "low_bytes": None, "high_bytes": None, "unavailable": why}
        return
    done.llc = {
        "stated_bytes": stated,
        "bytes": round(found.bytes),
        "low_bytes": round(found.low),
        "high_bytes": round(found.high),
        "hit_ns": found.plateau_ns.value,
        "hit_ns_ci95": found.plateau_ns.ci95,
        "memory_ns": found.beyond_ns.value,
        "memory_ns_ci95": found.beyond_ns.ci95,
        "unavailable": None,
    }


def _judge_walks(done: Probed, ghz: float) -> None:
    """The cost of a walk by what likely serves its PTEs.

    A page of the chase takes a line of data and, in each of two tables, 8 bytes: 80 bytes a page in all. While that
    fits into a cache, PTEs come from there; once the PTEs alone (16 bytes a page) do not fit, from beyond.
    """
    l2 = cache_bytes(done.processor, 2) or MIB
    llc = done.llc["bytes"] or cache_bytes(done.processor, 3) or 32 * MIB
    reach = done.reach["l2_tlb"]["high_bytes"] or 16 * MIB
    fits, only_entries = PAGE / 80, PAGE / 16
    ranges = {
        "l2": (2 * reach, l2 * only_entries),
        "llc": (l2 * only_entries, llc * fits),
        "memory": (llc * only_entries, math.inf),
    }
    for name, (least, most) in ranges.items():
        inside = [point for point in _points(done.measured, "lines-1", "random") if least <= point.at <= most]
        if not inside:
            where = f"({_size(least)} to {_size(most)})"
            if least >= most:
                where = (
                    f"(up to {_size(least)} something nearer serves them, and from {_size(most)} on they do not fit)"
                )
            why = f"unavailable, because no footprint has all its PTEs there {where}"
            done.walk_cost[name] = {
                "ns": None,
                "ci95": None,
                "cycles": None,
                "footprint_bytes": None,
                "unavailable": why,
            }
            continue
        point = inside[-1] if name == "memory" else inside[len(inside) // 2]
        done.walk_cost[name] = {
            "ns": point.value.value,
            "ci95": point.value.ci95,
            "cycles": point.value.value * ghz,
            "footprint_bytes": round(point.at),
            "unavailable": None,
        }


def _size(number: float) -> str:
    if number == math.inf:
        return "more"
    return f"{number / MIB:.0f} MiB" if number < GIB else f"{number / GIB:.1f} GiB"
