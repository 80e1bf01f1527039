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
    )
    return Experiment(runs, _measure, drawings)


def _cost(result: Result) -> float:
    """Cycles an access of memory virtualisation, as the paper counts them: walks, and what the kernels do (exits)."""
    cycles, accesses = result.statistics["cycles"], result.statistics["accesses"]
    cost: float = (result.statistics["walk_cycles"] + cycles["os"]) / accesses
    return cost


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

    return {
        "ds-native": _largest(results, "ds1", "native"),
        "ds-ept-mcf": _above(results, "mcf", "ept", "ds1"),
        "ds-shadow": _largest(results, "shadow", "ds1"),
        "redis-ept": times("redis-trace", "ept"),
        "redis-shadow": times("redis-trace", "shadow"),
        "gcc-ept": times("gcc", "ept"),
        "gcc-shadow": times("gcc", "shadow"),
        "elastic-ept": ELASTICSEARCH,
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
