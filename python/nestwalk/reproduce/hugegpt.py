# SPDX-License-Identifier: MIT OR Apache-2.0
"""HugeGPT: micro-benchmarks and programs natively, in a stock VM, and with guest page tables on huge host pages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nestwalk.cycles import total
from nestwalk.reproduce import queueing
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
THP = ("thp", "thp-hugegpt", "thp-5", "thp-5-hugegpt")
THP_MACHINE = "icelake-6346"
"""The paper's second machine, for THP and for 5 levels."""

VM_PROGRAMS = ("memcached-95g", "gups-128g", "graph500-123g", "canneal-62g", "xsbench-84g", "btree-125g")
"""What runs in six VMs on one host; in two VMs, one of them and the next."""
MEASURED = {"two-vms": VM_PROGRAMS[:2], "six-vms": VM_PROGRAMS[:1]}
"""Of which programs the throughput is measured, each beside the others."""
VM_MIB = {True: 256, False: 4096}
"""Of the measured program in a quick and in a full run; the others have a sixteenth less, so that all have filled their
memory, in step, when it is measured. Six VMs of the papers' sizes would not fit the paper's host of 256 GB."""

SERVERS = ("masstree-25g", "specjbb-60g", "shore-30g")
"""The latency programs that have generators."""
REQUEST_ACCESSES = 1567
"""Of a request: what redis made for a command (docs/model.md), for want of a capture of these."""
REQUESTS = 4000
LOAD = 0.7
"""The clients ask so often that the stock kernel's server is busy for this share of the time."""


def experiment(paper: Paper, scale: Scale) -> Experiment:
    """All runs, and the paper's values from them."""
    cells = [(preset, configuration) for preset in PROGRAMS for configuration in ("native", "stock", "hugegpt", *THP)]
    cells += [(preset, configuration) for preset in [*MICRO, *UNPRESSED] for configuration in ("stock", "hugegpt")]
    titles = {**PROGRAMS, **UNPRESSED, **{preset: " ".join(words) for preset, words in MICRO.items()}}

    def run(preset: str, configuration: str) -> Run:
        name = f"{preset}-{configuration}"
        machine = THP_MACHINE if configuration in THP else paper.machine
        table = program(preset, scale, machine=machine, name=name, kernels=KERNELS[configuration])
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
        Drawing("vms", "throughput of HugeGPT against stock", "%", _several_bars),
        Drawing("thp", "throughput over THP", "%", _over_thp),
    )
    several = [
        _several(paper, scale, figure, preset, configuration)
        for figure, presets in MEASURED.items()
        for preset in presets
        for configuration in ("stock", "hugegpt")
    ]
    served = [_server(paper, scale, preset, name) for preset in SERVERS for name in ("stock", "hugegpt")]
    runs = [*worst, *(run(*cell) for cell in cells), *several, *served]
    return Experiment(runs, _measure, drawings, _notes)


def _several(paper: Paper, scale: Scale, figure: str, preset: str, configuration: str) -> Run:
    """A program in a VM beside others in VMs of their own, all of one kind, on cores of their own under one LLC."""
    own, mebibytes = VM_PROGRAMS.index(preset), VM_MIB[scale.quick]
    count = {"two-vms": 1, "six-vms": len(VM_PROGRAMS) - 1}[figure]
    others = [VM_PROGRAMS[(own + step) % len(VM_PROGRAMS)] for step in range(1, count + 1)]
    host, guest = KERNELS[configuration]
    endless = {"footprint": f"{mebibytes * 15 // 16} MiB", "warm_accesses": 0, "measured_accesses": 1 << 40}
    colocated = [{"workload": {"preset": {"name": other, **endless}}, "vm": "own", "kernel": guest} for other in others]
    name = f"{figure}-{preset}-{configuration}"
    table = program(
        preset,
        replace(scale, divide_footprint=1),
        machine=paper.machine,
        name=name,
        kernels=[host, guest],
        colocated=colocated,
    )
    table["workload"]["preset"]["footprint"] = f"{mebibytes} MiB"
    return Run(name, f"{PROGRAMS[preset]}, {figure.replace('-', ' ')}, {configuration}", table)


def _server(paper: Paper, scale: Scale, preset: str, configuration: str) -> Run:
    """A latency program whose requests are told apart."""
    name = f"requests-{preset}-{configuration}"
    sampling = {"window": REQUEST_ACCESSES, "measured_accesses_max": REQUEST_ACCESSES * REQUESTS}
    kernels = KERNELS[configuration]
    table = program(preset, scale, machine=paper.machine, name=name, kernels=kernels, sampling=sampling)
    return Run(name, f"{PROGRAMS[preset]}, requests, {configuration}", table)


def _tails(results: Results) -> dict[str, Value]:
    """By how many per cent the average, p95 and p99 response latencies change, on average over the servers."""
    changes: dict[str, list[float]] = {"average": [], "p95": [], "p99": []}
    for preset in SERVERS:
        service = {
            name: [
                total(window["cycles"])
                for window in results[f"requests-{preset}-{name}"].statistics["windows"]
                if window["accesses"] == REQUEST_ACCESSES
            ]
            for name in ("stock", "hugegpt")
        }
        if not all(service.values()):
            return dict.fromkeys(("response", "p95", "p99"), UNAVAILABLE + "no request was measured")
        interval = mean([float(cycles) for cycles in service["stock"]]) / LOAD
        before, after = (queueing.responses(service[name], interval, seed=1) for name in ("stock", "hugegpt"))
        if before is None or after is None:
            return dict.fromkeys(("response", "p95", "p99"), UNAVAILABLE + "no request was measured")
        for key, found in changes.items():
            found.append(100 * (getattr(after, key) / getattr(before, key) - 1))
    return {"response": mean(changes["average"]), "p95": mean(changes["p95"]), "p99": mean(changes["p99"])}


def _vms(results: Results, figure: str) -> dict[str, float]:
    """By how many per cent the throughput of each measured program grows."""
    return {preset: _throughput(results, f"{figure}-{preset}", "hugegpt", "stock") for preset in MEASURED[figure]}


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
        "two-vms": mean(list(_vms(results, "two-vms").values())),
        "six-vms": mean(list(_vms(results, "six-vms").values())),
        **_tails(results),
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


def _several_bars(results: Results) -> Sequence[tuple[str, str, float]]:
    return [
        (PROGRAMS[preset], figure.replace("-", " "), gain)
        for figure in MEASURED
        for preset, gain in _vms(results, figure).items()
    ]


def _over_thp(results: Results) -> Sequence[tuple[str, str, float]]:
    return [
        (title, series, _throughput(results, preset, f"{base}-hugegpt", base))
        for base, series in (("thp", "4 levels"), ("thp-5", "5 levels"))
        for preset, title in PROGRAMS.items()
    ]
