# SPDX-License-Identifier: MIT OR Apache-2.0
"""HugeGPT: micro-benchmarks and programs natively, in a stock VM, and with guest page tables on huge host pages."""

from __future__ import annotations

from pathlib import Path
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
    mean,
    program,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nestwalk.reproduce.paper import Paper
    from nestwalk.result import Result

PROGRAMS = {
    "masstree-25g": "Masstree",
    "specjbb-60g": "SPECjbb",
    "shore-30g": "Shore",
    "redis-155g": "Redis",
    "memcached-95g": "Memcached",
    "canneal-62g": "Canneal",
    "graph500-123g": "Graph500",
    "gups-128g": "GUPS",
    "xsbench-84g": "XSBench",
    "btree-125g": "BTree",
}
"""Presets, and what the paper calls them."""

MICRO = {
    f"micro-{order}-{size}g": (kind, f"{size} GB")
    for order, kind in (("random", "no locality"), ("stride", "weak locality"))
    for size in (50, 100, 200)
}
UNPRESSED = {"swaptions": "swaptions", "raytrace": "raytrace"}

HOST_4K = {"manager": {"kind": "thp", "enabled": "madvise"}}
"""4 KiB pages but where the guest's pool asks for more; without HugeGPT nobody asks."""
HOST_THP = {"manager": {"kind": "thp", "enabled": "always"}}
TABLES = {"tables": {"kind": "hugegpt"}}

KERNELS: dict[str, list[dict[str, Any]]] = {
    "native": [{}],
    "stock": [HOST_4K, {}],
    "hugegpt": [HOST_4K, TABLES],
    "thp": [HOST_THP, HOST_THP],
    "thp-hugegpt": [HOST_THP, {**HOST_THP, **TABLES}],
    "thp-5": [{**HOST_THP, "levels": 5}, {**HOST_THP, "levels": 5}],
    "thp-5-hugegpt": [{**HOST_THP, "levels": 5}, {**HOST_THP, **TABLES, "levels": 5}],
    "stock-5": [{**HOST_4K, "levels": 5}, {"levels": 5}],
}
"""Bottom first."""

UNCACHED = str(Path(__file__).with_name("no_walk_caches.toml"))
"""A machine without page-walk caches: every walk makes all its references."""
WORST = {"worst-stock": "stock", "worst-hugegpt": "hugegpt", "worst-5": "stock-5"}
VMS = UNAVAILABLE + "several VMs with a measured program each are not part of this version"
TAILS = UNAVAILABLE + "the model has no queue of requests, so there are no response latencies"
THP = ("thp", "thp-hugegpt", "thp-5", "thp-5-hugegpt")


def experiment(paper: Paper, scale: Scale) -> Experiment:
    """All runs, and the paper's values from them."""
    cells = [(preset, configuration) for preset in PROGRAMS for configuration in ("native", "stock", "hugegpt", *THP)]
    cells += [(preset, configuration) for preset in [*MICRO, *UNPRESSED] for configuration in ("stock", "hugegpt")]
    titles = {**PROGRAMS, **UNPRESSED, **{preset: " ".join(words) for preset, words in MICRO.items()}}

    def run(preset: str, configuration: str) -> Run:
        name = f"{preset}-{configuration}"
        table = program(preset, scale, machine=paper.machine, name=name, kernels=KERNELS[configuration])
        return Run(name, f"{titles[preset]}, {configuration}", table)

    small = Scale(quick=True, seed=scale.seed, divide_footprint=128)
    worst = [
        Run(key, f"worst case, {name}", program("gups-128g", small, machine=UNCACHED, name=key, kernels=KERNELS[name]))
        for key, name in WORST.items()
    ]
    drawings = (
        Drawing("micro", "throughput of HugeGPT against stock", "%", _micro),
        Drawing("programs", "throughput of HugeGPT against stock", "%", _throughputs),
        Drawing("programs", "average walk latency", "cycles a walk", _latencies),
    )
    return Experiment([*worst, *(run(*cell) for cell in cells)], _measure, drawings, _notes)


def _throughput(results: Results, preset: str, after: str, before: str) -> float:
    """By how many per cent the throughput grows."""
    one, two = (results[f"{preset}-{name}"].row["cycles_per_access"] for name in (before, after))
    return change_percent(one, two) or 0.0


def _latency(results: Results, preset: str, after: str, before: str) -> float | None:
    one, two = (results[f"{preset}-{name}"].row["walk_latency_cycles"] for name in (after, before))
    return change_percent(one, two)


def _gains(results: Results, presets: Sequence[str], after: str = "hugegpt", before: str = "stock") -> dict[str, float]:
    return {preset: _throughput(results, preset, after, before) for preset in presets}


def _changes(results: Results, after: str, before: str) -> list[float]:
    found = [_latency(results, preset, after, before) for preset in PROGRAMS]
    return [change for change in found if change is not None]


def _measure(results: Results) -> dict[str, Value]:
    gains = _gains(results, list(PROGRAMS))
    micro = _gains(results, list(MICRO))
    kinds = {
        kind: mean([micro[preset] for preset, words in MICRO.items() if words[0] == kind])
        for kind in ("no locality", "weak locality")
    }
    free = _gains(results, list(UNPRESSED))

    def references(result: Result) -> float | None:
        count: float | None = result.row["references_per_walk"]
        return count

    return {
        **{key: results.value([key], references) for key in WORST},
        "micro-average": mean(list(micro.values())),
        "micro-best": max(micro.values()),
        "micro-weak-more": kinds["weak locality"] - kinds["no locality"],
        "throughput": mean(list(gains.values())),
        "throughput-best": max(gains.values()),
        "throughput-least": min(gains.values()),
        "latency": mean(_changes(results, "hugegpt", "stock")),
        "native": mean(_changes(results, "hugegpt", "native")),
        "thp-4": max(_gains(results, list(PROGRAMS), "thp-hugegpt", "thp").values()),
        "thp-5": max(_gains(results, list(PROGRAMS), "thp-5-hugegpt", "thp-5").values()),
        "two-vms": VMS,
        "six-vms": VMS,
        "response": TAILS,
        "p95": TAILS,
        "p99": TAILS,
        "unpressed": max(free.values(), key=abs),
    }


def _notes(results: Results) -> dict[str, str]:
    gains = _gains(results, list(PROGRAMS))
    return {
        "throughput-best": f"Ours: {PROGRAMS[max(gains, key=lambda preset: gains[preset])]}.",
        "throughput-least": f"Ours: {PROGRAMS[min(gains, key=lambda preset: gains[preset])]}.",
    }


def _micro(results: Results) -> Sequence[tuple[str, str, float]]:
    gains = _gains(results, list(MICRO))
    return [(words[1], words[0], gains[preset]) for preset, words in MICRO.items()]


def _throughputs(results: Results) -> Sequence[tuple[str, str, float]]:
    gains = _gains(results, list(PROGRAMS))
    return [(title, "HugeGPT", gains[preset]) for preset, title in PROGRAMS.items()]


def _latencies(results: Results) -> Sequence[tuple[str, str, float]]:
    return [
        (title, series, results[f"{preset}-{name}"].row["walk_latency_cycles"])
        for name, series in (("native", "native"), ("stock", "stock"), ("hugegpt", "HugeGPT"))
        for preset, title in PROGRAMS.items()
        if results[f"{preset}-{name}"].row["walk_latency_cycles"] is not None
    ]
