# SPDX-License-Identifier: MIT OR Apache-2.0
"""Compromis' MMU part: three programs natively, under EPT, shadow paging, and DS-n."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nestwalk.cycles import total as total_cycles
from nestwalk.errors import unknown
from nestwalk.reproduce.plan import (
    UNAVAILABLE,
    Drawing,
    Experiment,
    Results,
    Run,
    Scale,
    Value,
    change_percent,
    program,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nestwalk.reproduce.paper import Paper
    from nestwalk.result import Result

PROGRAMS = {"mcf": "mcf", "gcc": "gcc", "redis-trace": "redis"}
"""Presets, and what the paper calls them."""


def _segments(count: int) -> list[dict[str, Any]]:
    return [{"paging": {"kind": "segments", "max": count}}, {}]


KERNELS: dict[str, list[dict[str, Any]]] = {
    "native": [{}],
    "ept": [{"paging": {"kind": "ept"}}, {}],
    "shadow": [{"paging": {"kind": "shadow"}}, {}],
    "ds1": _segments(1),
    "ds2": _segments(2),
    "ds3": _segments(3),
}
"""Bottom first."""

DS_SECONDS = {"redis-trace": 3.0, "gcc": 13.0}
"""The paper's cost of DS-n over a whole run, from which the run's length follows."""

FALLBACKS = ("ept", "shadow")
"""What a VM runs under that lies in more segments than the processor has registers for."""

TITLES = {"ept": "EPT", "shadow": "shadow paging", "ds1": "DS-1", "ds2": "DS-2", "ds3": "DS-3"}
ELASTICSEARCH = UNAVAILABLE + "Elasticsearch has no generator"


def experiment(paper: Paper, scale: Scale) -> Experiment:
    """All runs, and the paper's values from them."""

    def run(preset: str, configuration: str) -> Run:
        name = f"{preset}-{configuration}"
        table = program(preset, scale, machine=paper.machine, name=name, kernels=KERNELS[configuration])
        return Run(name, f"{PROGRAMS[preset]}, {configuration}", table)

    runs = [run(preset, configuration) for preset in PROGRAMS for configuration in KERNELS]
    drawings = (
        Drawing("overhead", "estimated time above native", "%", _overheads),
        Drawing("cost", "walk cycles and kernel work an access", "cycles", _costs),
        Drawing("run", "cycles of filling a page: walks and page-table exits", "cycles", _fills),
    )
    return Experiment(runs, _measure, drawings)


def _cost(result: Result) -> float:
    """Cycles an access of memory virtualisation, as the paper counts them: walks, and what the kernels do (exits)."""
    cycles, accesses = result.statistics["cycles"], result.statistics["accesses"]
    cost: float = (result.statistics["walk_cycles"] + cycles["os"]) / accesses
    return cost


def _exit_cycles(result: Result) -> int:
    """Cycles of all page-table exits since the start: misses of the shadow, and writes of the guest to its table."""
    events = result.configuration["costs"]["events"]
    counters = result.statistics["kernels"][0]["counters"]
    exits = {name: count for name, count in counters.items() if name.startswith("shadow_") and isinstance(count, int)}
    cycles: int = sum(count * events.get(name, {}).get("cycles", 0) for name, count in exits.items())
    return cycles


def mode_of(segments: int, registers: int = 1, fallback: str = "ept") -> str:
    """The mode that a VM runs in, as the end of its run's name.

    Args:
        segments: Of host memory that the VM got.
        registers: n of DS-n; above 3, the runs of DS-3 stand for it (the paper: all are almost the same).
        fallback: ``ept`` or ``shadow``: what a VM gets that lies in more segments.

    Raises:
        NestwalkError: When the fallback is none.
    """
    if fallback not in FALLBACKS:
        raise unknown("mode for VMs in too many segments", fallback, FALLBACKS)
    return f"ds{min(registers, 3)}" if 1 <= segments <= registers else fallback


@dataclass(frozen=True)
class ProgramTime:
    """What a program's time is made of in one mode, once its memory is filled and while it is filled."""

    steady: float
    """Cycles an access once memory is filled: work, data, walks, and exits of that part."""
    walks: float
    """Of these, walk cycles on the critical path."""
    exits: float
    """Of these, cycles of all kernels' work, exits among it."""
    fill: float
    """Cycles of filling memory once: walks, faults, zeroing and exits of all kernels."""
    fill_exits: float
    """Of these, cycles of VM exits."""
    pages: int
    """Pages of the guest that are filled."""

    @classmethod
    def of(cls, result: Result) -> ProgramTime:
        """Of a run."""
        statistics, whole = result.statistics, result.whole_run["cycles"]
        accesses, cycles = statistics["accesses"], statistics["cycles"]
        simulated = accesses + statistics["warm_accesses"]
        kernel = cycles["os"] / accesses
        total = sum(whole.values())
        # What the kernels do in the steady part, they did in the warm-up before it as well.
        fill = max(total - kernel * simulated, 0.0)
        return cls(
            steady=total_cycles(cycles) / accesses,
            walks=cycles["walk"] / accesses,
            exits=kernel,
            fill=fill + _fill_walks(result),
            fill_exits=fill * whole.get("exits", 0) / total if total else 0.0,
            pages=statistics["populated_pages"],
        )

    def run(self, accesses: float) -> float:
        """Cycles of a run of so many accesses that fills its memory once."""
        return self.fill + accesses * self.steady


def run_accesses(results: Results, preset: str) -> float | None:
    """How many accesses a run has: as many as make DS-1 cost what the paper says; None where it does not say."""
    base = results[f"{preset}-ds1"]
    rate = base.statistics["walk_cycles"] / base.statistics["accesses"]
    if preset not in DS_SECONDS or not rate:
        return None
    hertz: float = base.configuration["machine"]["frequency_mhz"] * 1e6
    accesses: float = (DS_SECONDS[preset] * hertz - _fill_walks(base)) / rate
    return accesses


def above_native(results: Results, preset: str, mode: str) -> float:
    """By how many per cent a program takes longer in a mode than natively.

    Over a whole run with one fill of its memory where the run's length is known (:func:`run_accesses`); else once
    memory is filled.
    """
    one, native = (ProgramTime.of(results[f"{preset}-{name}"]) for name in (mode, "native"))
    accesses = run_accesses(results, preset)
    if accesses is None:
        return 100 * (one.steady / native.steady - 1)
    return 100 * (one.run(accesses) / native.run(accesses) - 1)


def even_accesses(results: Results, preset: str) -> float | None:
    """Accesses for each page filled after which shadow paging, whose exits come first, has been no slower than EPT.

    None if it never is.
    """
    shadow, ept = (ProgramTime.of(results[f"{preset}-{name}"]) for name in ("shadow", "ept"))
    gain = ept.steady - shadow.steady
    if gain <= 0 or not shadow.pages:
        return None
    return max(shadow.fill - ept.fill, 0.0) / gain / shadow.pages


def _run_seconds(results: Results, preset: str, one: str) -> float | None:
    """Seconds that a whole run costs, from the program's start, by the paper's model: walks, and page-table exits.

    The run is as long as DS-1's cost says that the paper gives. Filling memory, each page is a walk of average length.
    """
    found, base = results[f"{preset}-{one}"], results[f"{preset}-ds1"]
    accesses = run_accesses(results, preset)
    if accesses is None:
        return None
    hertz: float = found.configuration["machine"]["frequency_mhz"] * 1e6
    statistics = found.statistics
    steady = statistics["walk_cycles"] / statistics["accesses"]
    # What the same program's kernels do is the same; what is more of it under shadow paging are exits.
    exits = (statistics["cycles"]["os"] - base.statistics["cycles"]["os"]) / statistics["accesses"]
    simulated = statistics["accesses"] + statistics["warm_accesses"]
    fill = _fill_walks(found) + max(_exit_cycles(found) - exits * simulated, 0.0)
    seconds: float = (fill + accesses * (steady + exits)) / hertz
    return seconds


def _fill_walks(result: Result) -> float:
    latency = result.row["walk_latency_cycles"] or 0.0
    return float(result.statistics["populated_pages"] * latency)


def _above(results: Results, preset: str, one: str, two: str) -> float:
    """By how many per cent the estimated time of ``one`` is above that of ``two``."""
    times = (results[f"{preset}-{name}"].row["cycles_per_access"] for name in (one, two))
    return change_percent(*times) or 0.0


def _largest(results: Results, one: str, two: str) -> float:
    return max((_above(results, preset, one, two) for preset in PROGRAMS), key=abs)


def _times(results: Results, preset: str, one: str) -> float | None:
    base = _cost(results[f"{preset}-ds1"])
    return _cost(results[f"{preset}-{one}"]) / base if base else None


def _measure(results: Results) -> dict[str, Value]:
    def times(preset: str, one: str) -> Value:
        names = [f"{preset}-{one}", f"{preset}-ds1"]
        return results.value(names, lambda *_: _times(results, preset, one))

    def seconds(preset: str, one: str) -> Value:
        names = [f"{preset}-{one}", f"{preset}-ds1"]
        return results.value(names, lambda *_: _run_seconds(results, preset, one))

    return {
        "ds-native": _largest(results, "ds1", "native"),
        "ds-ept-mcf": _above(results, "mcf", "ept", "ds1"),
        "ds-shadow": _largest(results, "shadow", "ds1"),
        "redis-ept": times("redis-trace", "ept"),
        "gcc-ept": times("gcc", "ept"),
        "elastic-ept": ELASTICSEARCH,
        "run-redis-ept": seconds("redis-trace", "ept"),
        "run-redis-shadow": seconds("redis-trace", "shadow"),
        "run-gcc-ept": seconds("gcc", "ept"),
        "run-gcc-shadow": seconds("gcc", "shadow"),
        "run-elastic-shadow": ELASTICSEARCH,
        "segments": _largest(results, "ds3", "ds1"),
    }


def _overheads(results: Results) -> Sequence[tuple[str, str, float]]:
    return [
        (title, series, _above(results, preset, name, "native"))
        for name, series in TITLES.items()
        for preset, title in PROGRAMS.items()
    ]


def _costs(results: Results) -> Sequence[tuple[str, str, float]]:
    return [
        (title, series, _cost(results[f"{preset}-{name}"]))
        for name, series in TITLES.items()
        for preset, title in PROGRAMS.items()
    ]


def _fills(results: Results) -> Sequence[tuple[str, str, float]]:
    bars = []
    for name in ("ept", "shadow", "ds1"):
        for preset, title in PROGRAMS.items():
            result = results[f"{preset}-{name}"]
            pages = result.statistics["populated_pages"]
            if pages:
                bars.append((title, TITLES[name], (_fill_walks(result) + _exit_cycles(result)) / pages))
    return bars
