# SPDX-License-Identifier: MIT OR Apache-2.0
"""ASAP: walk latency of seven programs natively and in a VM, alone and beside a co-runner."""

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
    extreme,
    mean,
    program,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nestwalk.reproduce.paper import Paper
    from nestwalk.result import Result

PROGRAMS = {
    "mcf": "mcf",
    "canneal": "canneal",
    "bfs-60g": "bfs",
    "pagerank-60g": "pagerank",
    "memcached-80g": "mc80",
    "memcached-400g": "mc400",
    "redis-50g": "redis",
}
"""Presets, and what the paper calls them."""

MODES: dict[str, tuple[bool, bool]] = {
    "native-alone": (False, False),
    "native-smt": (False, True),
    "vm-alone": (True, False),
    "vm-smt": (True, True),
}
"""Whether in a VM, and whether beside an SMT co-runner."""

NOT_THERE = UNAVAILABLE + "ASAP's prefetcher is not part of this version"


def experiment(paper: Paper, scale: Scale) -> Experiment:
    """The baselines' runs, and the paper's values from them."""
    runs = [_run(paper, scale, preset, mode) for preset in PROGRAMS for mode in MODES]
    drawings = (
        Drawing("baselines", "Nestwalk, by program", "cycles a walk", _latencies),
        Drawing("speedup", "share of the estimated time that walks take, native, alone", "%", _shares),
    )
    return Experiment(runs, lambda results: _measure(paper, results), drawings, _notes)


def _run(paper: Paper, scale: Scale, preset: str, mode: str) -> Run:
    virtual, smt = MODES[mode]
    # "Host page-table pages scattered at random over host memory": the paper's virtualised baseline.
    kernels: list[dict[str, Any]] = [{"tables": {"kind": "scattered"}}, {}] if virtual else [{}]
    more = {"corunner": "random"} if smt else {}
    name = _name(preset, mode)
    table = program(preset, scale, machine=paper.machine, name=name, kernels=kernels, **more)
    return Run(name, f"{PROGRAMS[preset]}, {mode}", table)


def _name(preset: str, mode: str) -> str:
    return f"{preset}-{mode}"


def _latency(results: Results, preset: str, mode: str) -> float | None:
    latency: float | None = results[_name(preset, mode)].row["walk_latency_cycles"]
    return latency


def _by_program(results: Results, mode: str) -> dict[str, float]:
    found = {preset: _latency(results, preset, mode) for preset in PROGRAMS}
    return {preset: latency for preset, latency in found.items() if latency is not None}


def _measure(paper: Paper, results: Results) -> dict[str, Value]:
    values: dict[str, Value] = {}
    for mode in MODES:
        latencies = _by_program(results, mode)
        values[f"{mode}-average"] = mean(list(latencies.values()))
        if mode != "vm-smt":
            values[f"{mode}-shortest"] = extreme(latencies, largest=False)[1]
            values[f"{mode}-longest"] = extreme(latencies, largest=True)[1]
    values["vm-smt-mc80"] = _by_program(results, "vm-smt")["memcached-80g"]
    for preset in PROGRAMS:
        values |= _tables(preset, results[_name(preset, "native-alone")])
    missing = {key: NOT_THERE for key in paper.claims if key not in values}
    return values | missing


def _tables(preset: str, result: Result) -> dict[str, Value]:
    kernel = result.statistics["kernels"][-1]
    vmas, largest = kernel["vmas"]
    return {
        f"vmas-{preset}": vmas,
        f"vmas99-{preset}": largest,
        f"runs-{preset}": kernel["table_runs"],
        f"pages-{preset}": kernel["table_nodes"],
    }


def _notes(results: Results) -> dict[str, str]:
    notes = {}
    for mode in MODES:
        if mode == "vm-smt":
            continue
        latencies = _by_program(results, mode)
        for which, largest in (("shortest", False), ("longest", True)):
            notes[f"{mode}-{which}"] = f"Ours: {PROGRAMS[extreme(latencies, largest=largest)[0]]}."
    notes["native-alone-longest"] += " The paper's: redis."
    return notes


def _latencies(results: Results) -> Sequence[tuple[str, str, float]]:
    return [
        (PROGRAMS[preset], mode.replace("-", ", "), latency)
        for mode in MODES
        for preset, latency in _by_program(results, mode).items()
    ]


def _shares(results: Results) -> Sequence[tuple[str, str, float]]:
    bars = []
    for preset, title in PROGRAMS.items():
        cycles = results[_name(preset, "native-alone")].statistics["cycles"]
        bars.append((title, "walks", 100 * cycles["walk"] / sum(cycles.values())))
    return bars
