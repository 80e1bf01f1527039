# SPDX-License-Identifier: MIT OR Apache-2.0
"""HugeGPT: micro-benchmarks and programs natively, in a stock VM, and with guest page tables on huge host pages."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from nestwalk.cycles import total
from nestwalk.errors import unknown
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

STRIDDEN = "micro-stride-50g"
STRIDES = {64: "strides of 256 KiB", 512: "strides of 2 MiB", 4096: "strides of 16 MiB"}
"""In pages: as the paper does not give its own, the weak locality of 50 GB is made with these, too."""

THP_MACHINE = "icelake-6346"
"""The paper's second machine, for THP and for 5 levels."""
CORES = {"skylake-6138": 20, THP_MACHINE: 16}
"""Of a socket, which share its last-level cache. The paper's programs have a thread for each of the VM's processors:
one socket's share of them is simulated, so that the last-level cache is shared by as many."""
OF_ONE_THREAD = ("redis-155g", *UNPRESSED)
"""One thread executes all commands of a redis. What has no page-walk pressure works in a few pages of each thread."""

HOST_4K = {"manager": {"kind": "thp", "enabled": "madvise"}}
"""4 KiB pages but where the guest's pool asks for more; without HugeGPT nobody asks."""
THP = {"manager": {"kind": "thp", "enabled": "always"}}
TABLES = {"tables": {"kind": "hugegpt"}}
NO_BLOCK = {"start": {"kind": "fragmented", "blocks_permille": 1000}}
"""A page of the page cache in each 2 MiB, so that no huge page is free. A fault then takes a small one; what asks for
huge pages with `madvise`, as the guest's pool does at the host, gets them by compaction."""


def _thp(levels: int, short: str = "") -> dict[str, list[dict[str, Any]]]:
    """THP on both sides and HugeGPT besides, where ``short`` (host, guest, both) have no free huge page."""
    host, guest = (
        {**THP, "levels": levels, **(NO_BLOCK if short in (who, "both") else {})} for who in ("host", "guest")
    )
    name = f"thp-{levels}-short-{short}" if short else f"thp-{levels}"
    return {name: [host, guest], f"{name}-hugegpt": [host, {**guest, **TABLES}]}


KERNELS: dict[str, list[dict[str, Any]]] = {
    "native": [{}],
    "stock": [HOST_4K, {}],
    "hugegpt": [HOST_4K, TABLES],
    "stock-5": [{**HOST_4K, "levels": 5}, {"levels": 5}],
    **_thp(4),
    **_thp(5),
    **_thp(4, "both"),
    **_thp(5, "both"),
    **_thp(4, "host"),
    **_thp(4, "guest"),
}
"""Bottom first."""
OVER_THP = ("thp-4", "thp-5", "thp-4-short-both", "thp-5-short-both")
"""Run with all programs, with and without HugeGPT."""
SHORT_ON_ONE_SIDE = ("thp-4-short-host", "thp-4-short-guest")
"""Run with those of :data:`VM_GIB`."""

UNCACHED = str(Path(__file__).with_name("no_walk_caches.toml"))
"""A machine without page-walk caches: every walk makes all its references."""
WORST = {"worst-stock": "stock", "worst-hugegpt": "hugegpt", "worst-5": "stock-5"}

VM_GIB = {"memcached-95g": 95, "gups-128g": 128}
"""Whose throughput is measured beside others of its kind, and the paper's size."""
VM_COUNTS = {"two-vms": 2, "six-vms": 6}
VMS_GIB = 216
"""Of 256 GB, what the VMs of one host have together. Where the paper's sizes do not fit, each has its share."""
REST = 255, 256
"""Of the measured program's memory, what each of the others has. Their programs and the measured one fill their memory
in step, so that theirs is filled when it is measured."""

SERVERS = ("masstree-25g", "specjbb-60g", "shore-30g")
"""The latency programs that have generators."""
REQUEST_ACCESSES = 1567
"""Of a request: what redis made for a command (docs/model.md), for want of a capture of these."""
REQUESTS = 4000
LOAD = 0.7
"""The clients ask so often that the stock kernel's server is busy for this share of the time."""


def experiment(paper: Paper, scale: Scale) -> Experiment:
    """All runs, and the paper's values from them."""
    either = ("stock", "hugegpt")
    cells = [(preset, configuration) for preset in PROGRAMS for configuration in ("native", *either)]
    cells += [(preset, configuration) for preset in [*MICRO, *UNPRESSED] for configuration in either]
    for presets, bases in ((PROGRAMS, OVER_THP), (VM_GIB, SHORT_ON_ONE_SIDE)):
        cells += [(preset, f"{base}{more}") for preset in presets for base in bases for more in ("", "-hugegpt")]

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
    strides = [_stride(paper, scale, stride, configuration) for stride in STRIDES for configuration in either]
    several = [
        _several(paper, scale, figure, preset, configuration)
        for figure in VM_COUNTS
        for preset in VM_GIB
        for configuration in either
    ]
    served = [_server(paper, scale, preset, configuration) for preset in SERVERS for configuration in either]
    runs = [*worst, *(_run(paper, scale, *cell) for cell in cells), *strides, *several, *served]
    return Experiment(runs, _measure, drawings, _notes)


def _run(paper: Paper, scale: Scale, preset: str, configuration: str) -> Run:
    """A program alone in its VM."""
    titles = {**PROGRAMS, **UNPRESSED, **{preset: " ".join(words) for preset, words in MICRO.items()}}
    machine = THP_MACHINE if configuration.startswith("thp") else paper.machine
    name = f"{preset}-{configuration}"
    changes = {"threads": _threads(preset, machine)}
    table = program(preset, scale, machine=machine, name=name, kernels=KERNELS[configuration], changes=changes)
    return Run(name, f"{titles[preset]}, {configuration}", table)


def _threads(preset: str, machine: str, vms: int = 1) -> int:
    """Of a program in one of so many VMs, under one last-level cache.

    Raises:
        NestwalkError: When it is not known how many cores share one on that machine.
    """
    if machine not in CORES:
        raise unknown("machine", machine, CORES)
    return 1 if preset in OF_ONE_THREAD else CORES[machine] // vms


def _stride(paper: Paper, scale: Scale, stride: int, configuration: str) -> Run:
    """Weak locality that skips so many pages."""
    name = f"{STRIDDEN}-{stride}-{configuration}"
    changes = {"threads": _threads(STRIDDEN, paper.machine), "stride_pages": stride}
    kernels = KERNELS[configuration]
    table = program(STRIDDEN, scale, machine=paper.machine, name=name, kernels=kernels, changes=changes)
    return Run(name, f"{' '.join(MICRO[STRIDDEN])}, {STRIDES[stride]}, {configuration}", table)


def _several(paper: Paper, scale: Scale, figure: str, preset: str, configuration: str) -> Run:
    """A program in a VM beside others of its kind in VMs of their own, on cores of their own under one LLC.

    They are of one kind because the simulated time by which programs take turns leaves out what they wait for memory:
    another program beside it would run faster, or slower, than it does.
    """
    count = VM_COUNTS[figure]
    mebibytes = 1024 * min(VM_GIB[preset], VMS_GIB // count)
    threads = _threads(preset, paper.machine, count)
    kernels = KERNELS[configuration]
    other = {
        "name": preset,
        "threads": threads,
        "footprint": f"{mebibytes * REST[0] // REST[1]} MiB",
        "warm_accesses": 0,
        "measured_accesses": 1 << 40,
    }
    name = f"{figure}-{preset}-{configuration}"
    table = program(
        preset,
        scale,
        machine=paper.machine,
        name=name,
        kernels=kernels,
        changes={"threads": threads, "footprint": f"{mebibytes} MiB"},
        colocated=[{"workload": {"preset": other}, "count": count - 1, "vm": "own", "kernel": kernels[-1]}],
    )
    return Run(name, f"{PROGRAMS[preset]}, {figure.replace('-', ' ')}, {configuration}", table)


def _server(paper: Paper, scale: Scale, preset: str, configuration: str) -> Run:
    """A latency program whose requests are told apart."""
    name = f"requests-{preset}-{configuration}"
    sampling = {"window": REQUEST_ACCESSES, "measured_accesses_max": REQUEST_ACCESSES * REQUESTS}
    table = program(
        preset,
        scale,
        machine=paper.machine,
        name=name,
        kernels=KERNELS[configuration],
        changes={"threads": _threads(preset, paper.machine)},
        sampling=sampling,
    )
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
    return {preset: _throughput(results, f"{figure}-{preset}", "hugegpt", "stock") for preset in VM_GIB}


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
        **{
            f"micro-stride-{stride}": _throughput(results, f"{STRIDDEN}-{stride}", "hugegpt", "stock")
            for stride in STRIDES
        },
        "throughput": mean(list(gains.values())),
        "throughput-best": max(gains.values()),
        "throughput-least": min(gains.values()),
        "latency": mean(_changes(results, "hugegpt", "stock")),
        "native": mean(_changes(results, "hugegpt", "native")),
        **{base: max(_gains(results, list(PROGRAMS), f"{base}-hugegpt", base).values()) for base in OVER_THP},
        **{base: max(_gains(results, list(VM_GIB), f"{base}-hugegpt", base).values()) for base in SHORT_ON_ONE_SIDE},
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
        for figure in VM_COUNTS
        for preset, gain in _vms(results, figure).items()
    ]


def _over_thp(results: Results) -> Sequence[tuple[str, str, float]]:
    return [
        (title, series, _throughput(results, preset, f"{base}-hugegpt", base))
        for base, series in zip(
            OVER_THP,
            ("4 levels", "5 levels", "4 levels, no free huge page", "5 levels, no free huge page"),
            strict=True,
        )
        for preset, title in PROGRAMS.items()
    ]
