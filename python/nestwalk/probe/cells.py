# SPDX-License-Identifier: MIT OR Apache-2.0
"""What is measured: cells, each a chase through a layout of so many bytes, all of them once a round.

Within a round, footprints come in random order, and the layouts of one footprint follow each other directly, so that a
neighbour that comes or goes meets all layouts alike. A round is begun again with the clock measured anew.
"""

from __future__ import annotations

import json
import os
import random
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nestwalk import _native
from nestwalk.errors import NestwalkError
from nestwalk.probe import events, statistics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from nestwalk.probe.statistics import Value

PAGE = 4096
SPREADS = ("in-order", "lines-1", "lines-2", "lines-4", "lines-8")
"""Layouts of 4 KiB pages, as the engine names them."""
HUGE = "huge"
"""The layout of a buffer in 2 MiB pages."""
LINES = "lines"
"""The order of a chase through all lines of few pages."""
MICROSECONDS = 8000
"""A chase runs at least so long: several turns of a kernel's scheduler, as what follows a turn finds cold caches."""


@dataclass(frozen=True, order=True)
class Cell:
    """One thing that is measured."""

    footprint_bytes: int
    layout: str
    """:data:`HUGE` or one of :data:`SPREADS`."""
    order: str
    """``grouped``, ``random`` or :data:`LINES`."""

    @property
    def pages(self) -> int:
        """Pages of 4 KiB."""
        return self.footprint_bytes // PAGE

    @property
    def loads(self) -> int:
        """Loads of a round through it."""
        return self.pages * (64 if self.order == LINES else 1)


@dataclass
class Measured:
    """What was measured."""

    samples: dict[Cell, list[float]] = field(default_factory=dict)
    """Nanoseconds a load, one a round."""
    clock_ghz: list[float] = field(default_factory=list)
    """The processor's clock, one a round."""
    stretches: int = 0
    """That were timed."""
    disturbed: int = 0
    """Of these: in which the kernel gave the processor to somebody else."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Of the buffers: how layouts were made, and how sure they are."""
    counters: list[dict[str, Any]] = field(default_factory=list)
    """The processor's own counters over all of it."""

    def value(self, cell: Cell) -> Value:
        """The median of a cell."""
        return statistics.value(self.samples[cell])

    def ratio(self, above: Cell, below: Cell) -> Value:
        """The quotient of two cells, round by round."""
        return statistics.ratio(self.samples[above], self.samples[below])

    def difference(self, one: Cell, other: Cell) -> Value:
        """The difference of two cells, round by round."""
        return statistics.difference(self.samples[one], self.samples[other])

    @property
    def rounds(self) -> int:
        """How many there were."""
        return len(self.clock_ghz) or max((len(found) for found in self.samples.values()), default=0)

    def curve(self) -> list[dict[str, Any]]:
        """Rows for scripts and pictures."""
        rows = []
        for cell in sorted(self.samples):
            found = self.value(cell)
            rows.append(
                {
                    "footprint_bytes": cell.footprint_bytes,
                    "layout": cell.layout,
                    "order": cell.order,
                    "ns_per_access": found.value,
                    "ci95": found.ci95,
                    "low": found.low,
                    "high": found.high,
                    "rounds": len(self.samples[cell]),
                }
            )
        return rows


def measure(
    cells: Sequence[Cell],
    *,
    rounds: int,
    seed: int,
    advanced: Callable[[float], None],
    remap: bool = False,
    huge: _native.Probe | None = None,
) -> Measured:
    """Measures all ``cells`` in each of ``rounds`` rounds; ``advanced`` is told the share that is done.

    Raises:
        NestwalkError: When memory cannot be had, or its pages cannot be moved.
    """
    largest = max(cell.footprint_bytes for cell in cells)
    size = -(-largest // (2 << 20)) * (2 << 20)
    done = Measured()
    with _one_processor():
        arenas = {}
        if any(cell.layout == HUGE for cell in cells):
            arenas[True] = huge or _native.Probe(size, huge=True)
        if any(cell.layout != HUGE for cell in cells):
            arenas[False] = _native.Probe(size, huge=False, remap=remap)
        done.facts = {("huge" if kept else "small"): json.loads(arena.facts()) for kept, arena in arenas.items()}
        processor = json.loads(_native.processor())["processor"]
        counters = _native.Counters(json.dumps(events.of(processor)))
        dice = random.Random(seed)  # noqa: S311 (an order that can be had again)
        whole, spent = rounds * sum(cell.loads for cell in cells), 0
        for round_ in range(rounds):
            clock = _native.clock_ghz()
            done.clock_ghz += [clock] if clock is not None else []
            for cell in _turns(cells, dice):
                arena = arenas[cell.layout == HUGE]
                sample = _sample(arena, cell, seed)
                done.samples.setdefault(cell, []).append(sample["ns"])
                done.stretches += sample["stretches"]
                done.disturbed += sample["disturbed"]
                if round_ == 0 and cell.layout != HUGE:
                    _note_lines(done, arena, cell)
                spent += cell.loads
                advanced(spent / whole)
        done.counters = json.loads(counters.read())
    return done


def _sample(arena: _native.Probe, cell: Cell, seed: int) -> dict[str, Any]:
    if cell.layout != HUGE:
        arena.arrange(cell.pages, cell.layout, seed)
    sample: dict[str, Any] = json.loads(arena.time(cell.pages, cell.order, seed, MICROSECONDS))
    return sample


def _turns(cells: Sequence[Cell], dice: random.Random) -> list[Cell]:
    """The cells of a round: footprints in random order, and within each layouts in random order."""
    footprints = sorted({cell.footprint_bytes for cell in cells})
    dice.shuffle(footprints)
    turns = []
    for footprint in footprints:
        own = [cell for cell in cells if cell.footprint_bytes == footprint]
        # The orders of one layout follow each other: its pages are moved once.
        layouts = sorted({cell.layout for cell in own})
        dice.shuffle(layouts)
        turns += [cell for layout in layouts for cell in own if cell.layout == layout]
    return turns


def _note_lines(done: Measured, arena: _native.Probe, cell: Cell) -> None:
    """Keeps the lines a group that pagemap shows, at the largest footprint of each layout, or why it shows none."""
    seen = done.facts["small"].setdefault("lines_per_group", {})
    if seen.get(cell.layout, {}).get("footprint_bytes", 0) < cell.footprint_bytes:
        found = arena.lines_per_group(cell.pages)
        known = isinstance(found, float)
        seen[cell.layout] = {
            "footprint_bytes": cell.footprint_bytes,
            "value": found if known else None,
            "unavailable": None if known else found,
        }


@contextmanager
def _one_processor() -> Iterator[None]:
    """Stays on one processor meanwhile: another one's TLBs and caches know nothing."""
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {max(allowed)})  # the first one has the interrupts
    except OSError as error:
        raise NestwalkError(f"the probe cannot stay on one processor: {error.strerror}") from error
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)
