# SPDX-License-Identifier: MIT OR Apache-2.0
"""``nestwalk probe --validate``: the simulator held against the processor that it runs on.

Nothing is fitted. What the simulated machine takes from here is measured by chases of their own, which the comparison
does not use: the clock, the share of the last-level cache, and, in a second column, the latencies of that cache and of
memory.
"""

from __future__ import annotations

import tempfile
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nestwalk import machines, pool
from nestwalk.probe import cells, limits, probing, simulated
from nestwalk.probe.cells import HUGE, Cell

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from nestwalk.pool import Watcher
    from nestwalk.probe.probing import Probed
    from nestwalk.probe.simulated import Machine
    from nestwalk.probe.statistics import Value

MIB, GIB = 1 << 20, 1 << 30
FOOTPRINT_USUAL = 2 * GIB
FOOTPRINT_USUAL_QUICK = 256 * MIB
SMALLEST = 4 * MIB
LAYOUTS = (HUGE, *cells.SPREADS)
ORDERS = ("grouped", "random")
ROUNDS, ROUNDS_QUICK = 7, 5
EQUAL = 0.05
"""Ratios nearer to 1 than this are called equal, on both sides."""

QUESTIONS = {
    "scattered": ("lines-8", "lines-1", "Do groups on 8 lines cost more than groups on 1?"),
    "four": ("lines-4", "lines-1", "Do groups on 4 lines cost more than groups on 1?"),
    "two": ("lines-2", "lines-1", "Do groups on 2 lines cost more than groups on 1?"),
    "coalescing": ("in-order", "lines-1", "Does the order of frames within a line matter (a TLB that coalesces)?"),
    "huge": (HUGE, "lines-1", "What do 2 MiB pages in the guest save?"),
}
"""Pairs of layouts whose times are compared, and what is asked by it."""


@dataclass(frozen=True)
class Shape:
    """One comparison of two layouts, on the machine and in the simulator."""

    question: str
    order: str
    footprint_bytes: int
    measured: Value
    simulated: float
    verdict: str
    """``agrees``, ``differs`` or ``not clear``."""
    within: bool
    """Whether the simulated ratio lies in the measured one's interval."""

    @property
    def off(self) -> float:
        """By how much of the measured ratio the simulated one is off."""
        return self.simulated / self.measured.value - 1


@dataclass
class Validated:
    """A validation."""

    probed: Probed
    """The probe before it: clock, share of the last-level cache, what the host backs us with."""
    measured: cells.Measured
    machine: Machine
    host: str
    """Pages of the simulated host: ``4k``, ``2m``, or ``none`` on bare metal."""
    simulated: dict[Cell, dict[str, float | None]]
    as_measured: dict[Cell, dict[str, float | None]] | None
    """With the latencies that were measured here; None where they could not be."""
    machine_as_measured: Machine | None
    name: str
    """Of the machine file."""
    shapes: list[Shape] = field(default_factory=list)

    def rows(self) -> list[dict[str, Any]]:
        """A row for each cell, measured and simulated side by side."""
        found = []
        for row in self.measured.curve():
            cell = Cell(row["footprint_bytes"], row["layout"], row["order"])
            mine = self.simulated[cell]
            other = self.as_measured[cell]["ns"] if self.as_measured else None
            found.append(
                {
                    **row,
                    "simulated_ns": mine["ns"],
                    "simulated_ns_as_measured": other,
                    "simulated_walk_cycles": mine["walk_cycles"],
                    "simulated_lines_per_group": mine["lines"],
                    "simulated_to_measured": (mine["ns"] or 0.0) / row["ns_per_access"],
                }
            )
        return found

    def counts(self) -> dict[str, int]:
        """How many shapes have which verdict."""
        return {
            name: sum(shape.verdict == name for shape in self.shapes) for name in ("agrees", "differs", "not clear")
        }

    def to_json(self) -> dict[str, Any]:
        """Everything, for scripts."""
        return {
            **self.probed.to_json(),
            "validation": {
                "machine": self.name,
                "machine_toml": self.machine.text,
                "changes": list(self.machine.changes),
                "changes_as_measured": list(self.machine_as_measured.changes) if self.machine_as_measured else None,
                "host_pages": self.host,
                "rounds": self.measured.rounds,
                "layouts": self.measured.facts,
                "noise": {"stretches": self.measured.stretches, "disturbed": self.measured.disturbed},
                "rows": self.rows(),
                "shapes": [
                    {
                        **{key: value for key, value in asdict(shape).items() if key != "measured"},
                        "measured": shape.measured.value,
                        "low": shape.measured.low,
                        "high": shape.measured.high,
                        "off": shape.off,
                    }
                    for shape in self.shapes
                ],
                "verdicts": self.counts(),
            },
        }


def footprints(largest: int) -> list[int]:
    """From TLB reach on, a factor of four apart, and the largest."""
    found = []
    size = SMALLEST
    while size < largest:
        found.append(size)
        size *= 4
    return [*found, largest]


def plan(largest: int) -> list[Cell]:
    """The cells of a validation."""
    return [Cell(size, layout, order) for size in footprints(largest) for layout in LAYOUTS for order in ORDERS]


def validate(
    *,
    footprint_max: int | None = None,
    rounds: int = ROUNDS,
    seed: int = 1,
    quick: bool = False,
    jobs: int | None = None,
    watch: Callable[[Sequence[str]], AbstractContextManager[Watcher]] = lambda _: nullcontext(pool.Silent()),
) -> Validated:
    """Measures and simulates.

    Raises:
        NestwalkError: When there is too little memory, this is no Linux, or a run fails.
    """
    processor = probing.here()
    largest = limits.footprint(footprint_max, FOOTPRINT_USUAL_QUICK if quick else FOOTPRINT_USUAL)
    detected = machines.detect()
    size = min(largest, probing.FOOTPRINT_USUAL if not quick else FOOTPRINT_USUAL_QUICK)
    wanted = plan(largest)
    with watch(["this machine: TLBs and caches", "this machine: layouts"]) as watcher:
        own = probing.plan(size, probing.cache_bytes(processor, 3))
        found = _watched(watcher, 0, own, rounds, seed)
        probed = probing.judged(found, size, seed, processor)
        measured = _watched(watcher, 1, wanted, rounds, seed)
    host = "none" if probed.virtual is None else probed.host_pages if probed.host_pages in simulated.MANAGERS else "4k"
    ghz, llc = probing.clock(measured), probed.llc
    machine = simulated.machine(detected, ghz=ghz, llc_bytes=llc["bytes"])
    second = None
    if llc["bytes"] is not None:
        second = simulated.machine(
            detected, ghz=ghz, llc_bytes=llc["bytes"], llc_ns=llc["hit_ns"], memory_ns=llc["memory_ns"]
        )
    runs = []
    with tempfile.TemporaryDirectory(prefix="nestwalk-") as folder:
        for one in (machine, second):
            if one is None:
                continue
            with watch(
                [f"simulated: {cell.layout} {cell.order} {cell.footprint_bytes // MIB} MiB" for cell in wanted]
            ) as seen:
                count = jobs or pool.processors()
                runs.append(
                    simulated.simulate(wanted, one, Path(folder), host=host, seed=seed, jobs=count, watcher=seen)
                )
    done = Validated(
        probed, measured, machine, host, runs[0], runs[1] if len(runs) > 1 else None, second, detected.name
    )
    done.shapes = shapes(measured, done.simulated, footprints(largest))
    return done


def _watched(watcher: Watcher, index: int, wanted: Sequence[Cell], rounds: int, seed: int) -> cells.Measured:
    watcher.started(index)
    found = cells.measure(wanted, rounds=rounds, seed=seed, advanced=lambda share: watcher.advanced(index, share))
    watcher.finished(index)
    return found


def shapes(
    measured: cells.Measured, simulated_rows: Mapping[Cell, Mapping[str, float | None]], sizes: Sequence[int]
) -> list[Shape]:
    """Each question at each footprint and in each order, with its verdict."""
    found = []
    for name, (above, below, _) in QUESTIONS.items():
        for order in ORDERS:
            for size in sizes:
                one, other = Cell(size, above, order), Cell(size, below, order)
                seen = measured.ratio(one, other)
                ours = (simulated_rows[one]["ns"] or 0.0) / (simulated_rows[other]["ns"] or 1.0)
                within = seen.low is not None and seen.high is not None and seen.low <= ours <= seen.high
                found.append(Shape(name, order, size, seen, ours, verdict(seen, ours), within))
    return found


def verdict(measured: Value, simulated_ratio: float) -> str:
    """Whether both sides say the same of a pair: more, less, or equal (within 5 %).

    ``not clear``: the measured interval allows for more than one of these, the simulated one among them.
    """
    if measured.low is None or measured.high is None:
        return "not clear"
    kinds = ("less", "equal", "more")
    possible = kinds[kinds.index(kind(measured.low)) : kinds.index(kind(measured.high)) + 1]
    if kind(simulated_ratio) not in possible:
        return "differs"
    return "agrees" if len(possible) == 1 else "not clear"


def kind(ratio: float) -> str:
    """``more``, ``less`` or ``equal``."""
    return "more" if ratio > 1 + EQUAL else "less" if ratio < 1 - EQUAL else "equal"


def crossing(shapes_: Sequence[Shape], question: str, order: str) -> tuple[int | None, int | None]:
    """The first footprint at which a layout costs more, measured (surely) and simulated; None where there is none."""
    own = sorted(
        (shape for shape in shapes_ if (shape.question, shape.order) == (question, order)),
        key=lambda shape: shape.footprint_bytes,
    )
    seen = [shape.footprint_bytes for shape in own if shape.measured.surely_above(1 + EQUAL)]
    ours = [shape.footprint_bytes for shape in own if shape.simulated > 1 + EQUAL]
    return min(seen, default=None), min(ours, default=None)
