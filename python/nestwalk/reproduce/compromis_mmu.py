# SPDX-License-Identifier: MIT OR Apache-2.0
"""Compromis' MMU part: three programs natively, under EPT, shadow paging, and DS-n."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
    exits = [name for name in counters if name.startswith("shadow_")]
    cycles: int = sum(counters[name] * events.get(name, {}).get("cycles", 0) for name in exits)
    return cycles


def _run_seconds(results: Results, preset: str, one: str) -> float | None:
    """Seconds that a whole run costs, from the program's start, by the paper's model: walks, and page-table exits.

    The run is as long as DS-1's cost says that the paper gives. Filling memory, each page is a walk of average length.
    """
    found, base = results[f"{preset}-{one}"], results[f"{preset}-ds1"]
    rate = base.statistics["walk_cycles"] / base.statistics["accesses"]
    if not rate:
        return None
    hertz: float = found.configuration["machine"]["frequency_mhz"] * 1e6
    accesses = (DS_SECONDS[preset] * hertz - _fill_walks(base)) / rate
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
