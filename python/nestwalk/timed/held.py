# SPDX-License-Identifier: MIT OR Apache-2.0
"""The simulator's time of a program with either kind of pages, held against what was measured.

A trace of the program is played on a machine with 4 KiB and with 2 MiB pages; the ratio of the two times is what the
simulator says of what was measured. Nothing is fitted: what it would take of the machine's file to agree
(:meth:`Held.critical` with the ratio, :meth:`Held.shares_for` with both times) is told and not used.
"""

from __future__ import annotations

import tempfile
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from nestwalk import comparisons, conduct, intervals, machines, pool, program, scenario, traces
from nestwalk.conduct import Means
from nestwalk.probe import simulated
from nestwalk.result import Result
from nestwalk.timed import pages

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from nestwalk.intervals import Estimate
    from nestwalk.pool import Watcher
    from nestwalk.probe.statistics import Value

Host = Literal["4k", "2m", "none"]
HOSTS: tuple[Host, ...] = ("4k", "2m", "none")
"""Pages with which a host backs a VM; none of bare metal."""

WHOLE = 1000
"""A share in thousandths."""


@dataclass(frozen=True)
class Parts:
    """Cycles an access by what they are spent on, the kernel's left out."""

    work: float
    data: float
    walk: float

    @property
    def total(self) -> float:
        """All of them."""
        return self.work + self.data + self.walk


@dataclass(frozen=True)
class Shares:
    """What a machine's file says of waiting, in thousandths: ``[timing]``."""

    overlap: float
    """``data_overlap_permille``: the share of the data latency beyond L1-D that is hidden."""
    critical: float
    """``walk_critical_permille``: the share of walk cycles that nothing hides."""


@dataclass(frozen=True)
class Held:
    """One simulated host, held against what was measured."""

    host: Host
    small: Parts
    huge: Parts
    ratio: Estimate
    """Time with 4 KiB pages by time with huge ones, simulated."""
    measured: Value
    """The same, measured."""
    shares: Shares
    """The machine file's."""
    huge_bytes: int | None = None
    """Memory in huge pages at the end of the run with huge pages; None where results do not say it (natively)."""

    @property
    def agrees(self) -> bool | None:
        """Whether the intervals of the two ratios meet; None where one of them is not known."""
        if self.measured.low is None or self.measured.high is None:
            return None
        half = self.ratio.ci95 or 0.0
        return self.measured.low <= self.ratio.value + half and self.ratio.value - half <= self.measured.high

    def critical(self, ratio: float) -> float | None:
        """The ``walk_critical_permille`` with which the simulated ratio would be ``ratio``, all else as it is.

        None where none from 0 to 1000 does it.
        """
        if not self.shares.critical:
            return None
        one, two = (parts.walk * WHOLE / self.shares.critical for parts in (self.small, self.huge))
        rest = (self.small.work + self.small.data, self.huge.work + self.huge.data)
        if one <= ratio * two:
            return None
        found = (ratio * rest[1] - rest[0]) / (one - ratio * two) * WHOLE
        return found if 0 <= found <= WHOLE else None

    @property
    def critical_measured(self) -> dict[str, float | None]:
        """:meth:`critical` of the measured ratio (``value``), and of the ends of its interval (``low``, ``high``)."""
        ends = asdict(self.measured)
        return {name: None if end is None else self.critical(end) for name, end in ends.items()}

    def shares_for(self, small: float, huge: float) -> Shares | None:
        """The shares with which the simulated cycles an access would be these two, with 4 KiB and with huge pages.

        Two equations, of which the program's own work is no part. None where no shares from 0 to 1000 do it.
        """
        if not self.shares.critical or self.shares.overlap >= WHOLE:
            return None
        (data, walk), (data_huge, walk_huge) = (
            (parts.data * WHOLE / (WHOLE - self.shares.overlap), parts.walk * WHOLE / self.shares.critical)
            for parts in (self.small, self.huge)
        )
        waits, waits_huge = small - self.small.work, huge - self.huge.work
        determinant = data * walk_huge - data_huge * walk
        if not determinant:
            return None
        seen = (waits * walk_huge - waits_huge * walk) / determinant
        critical = (data * waits_huge - data_huge * waits) / determinant
        if not (0 <= seen <= 1 and 0 <= critical <= 1):
            return None
        return Shares(WHOLE * (1 - seen), WHOLE * critical)

    def to_json(self) -> dict[str, Any]:
        """Everything, for scripts."""
        return {
            "host": self.host,
            "cycles_per_access": {"4k": asdict(self.small), "huge": asdict(self.huge)},
            "ratio": self.ratio.value,
            "ratio_ci95": self.ratio.ci95,
            "agrees": self.agrees,
            "huge_bytes": self.huge_bytes,
            "data_overlap_permille": self.shares.overlap,
            "walk_critical_permille": self.shares.critical,
            "walk_critical_permille_measured": self.critical_measured,
        }


@dataclass(frozen=True)
class Simulation:
    """What a trace of the program gave."""

    machine: str
    """What was simulated."""
    mhz: int
    """Its clock."""
    accesses: int
    """Of the whole program, in and between the trace's windows, as far as it was captured."""
    held: Sequence[Held]
    """By host."""


def hosts(detected: machines.Detected) -> tuple[Host, ...]:
    """What may lie below this machine: in a VM that is not known, so both."""
    return ("4k", "2m") if detected.processor["hypervisor"] else ("none",)


def check(trace: str, machine: str | None) -> None:
    """Refuses what :func:`hold` could not simulate: before a program is run for long, and not afterwards.

    Raises:
        NestwalkError: When the trace cannot be read or has no access, or a run would refuse the machine.
    """
    traces.check_accesses(trace)
    if machine is None:
        machines.detect()
    else:
        machines.check(machine)


def hold(
    trace: str,
    measured: Value,
    *,
    machine: str | None = None,
    seed: int = 1,
    jobs: int | None = None,
    watch: Callable[[Sequence[str]], AbstractContextManager[Watcher]] = lambda _: nullcontext(pool.Silent()),
) -> Simulation:
    """Simulates a trace of the program.

    Args:
        trace: A trace's file, or the name of a bundled one.
        measured: Time with 4 KiB pages by time with huge ones, measured.
        machine: A machine's name or file; this processor as ``nestwalk machine detect`` has it if None.
        seed: Everything random follows from it.
        jobs: Runs at a time.
        watch: Makes a watcher for runs of such names.

    Raises:
        NestwalkError: When the trace or the machine cannot be read, or a run fails.
    """
    detected = machines.detect()
    workload = dict(program.of_trace(trace).workload)
    with tempfile.TemporaryDirectory(prefix="nestwalk-") as folder:
        if machine is None:
            path = Path(folder, "machine.toml")
            path.write_text(detected.toml(), encoding="utf-8")
        name = str(path) if machine is None else comparisons.place_of(machine)
        below = hosts(detected)
        names = {(host, which): f"host-{host}-{which}" for host in below for which in pages.BOTH}
        todo = []
        for (host, which), run in names.items():
            table = {
                "schema": 1,
                "name": run,
                "machine": name,
                "seed": seed,
                "workload": workload,
                "kernels": simulated.kernels(host, huge=which == "huge"),
            }
            todo.append(pool.Job(run, scenario.write(table), Path(folder, f"{run}.toml")))
        with watch([f"simulated: {run}" for run in names.values()]) as watcher:
            found = conduct.results(todo, Means(jobs), watcher)
    results = {key: Result(one) for key, one in zip(names, found, strict=True)}
    info = traces.trace_info(trace)
    held = [
        _held(host, results[host, "4k"], results[host, "huge"], measured, info["footprint_bytes"]) for host in below
    ]
    mhz = results[below[0], "4k"].configuration["machine"]["frequency_mhz"]
    described = detected.description if machine is None else machine
    return Simulation(described, mhz, info["program_accesses"], held)


def _held(host: Host, small: Result, huge: Result, measured: Value, footprint: int) -> Held:
    timing = small.configuration["machine"]["timing"]
    file = Shares(timing["data_overlap_permille"], timing["walk_critical_permille"])
    above, below = ([_own(window["cycles"]) for window in one.statistics["windows"]] for one in (small, huge))
    ratio = intervals.ratio(above, below, intervals.modelled(huge))
    assert ratio is not None, "a run that measured nothing is an error of the engine"  # noqa: S101
    shares = [huge.row[key] for key in ("huge_on_huge_share", "huge_on_small_share")]
    huge_bytes = None if None in shares else round(sum(shares) * footprint)
    return Held(host, _parts(small), _parts(huge), ratio, measured, file, huge_bytes)


def _own(cycles: Mapping[str, Any]) -> int:
    """Of the program's own accesses."""
    return int(cycles["work"] + cycles["data"] + cycles["walk"])


def _parts(result: Result) -> Parts:
    cycles, accesses = result.statistics["cycles"], result.statistics["accesses"]
    return Parts(*(cycles[part] / accesses for part in ("work", "data", "walk")))
