# SPDX-License-Identifier: MIT OR Apache-2.0
"""ASAP: walk latency of seven programs natively and in a VM, alone and beside a co-runner, without and with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import altair as alt

from nestwalk import charts
from nestwalk.cycles import total
from nestwalk.reproduce.plan import (
    Drawing,
    Experiment,
    Panel,
    Results,
    Run,
    Scale,
    Value,
    change_percent,
    extreme,
    mean,
    program,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nestwalk.charts import Layout, Picture
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

LEVELS: dict[str, dict[str, list[int]]] = {
    "P1": {"guest_levels": [1]},
    "P1+P2": {"guest_levels": [1, 2]},
    "P1g": {"guest_levels": [1]},
    "P1g+P2g": {"guest_levels": [1, 2]},
    "P1g+P1h": {"guest_levels": [1], "host_levels": [1]},
    "all": {"guest_levels": [1, 2], "host_levels": [1, 2]},
}
"""What each configuration prefetches. Natively the only table counts as the guest's."""

PREFETCHED = {
    "native-alone": ("P1", "P1+P2"),
    "native-smt": ("P1", "P1+P2"),
    "vm-alone": ("P1g", "P1g+P2g", "P1g+P1h", "all"),
    "vm-smt": ("P1g+P1h", "all"),
}
"""The configurations whose reductions the paper gives, by mode."""

HISTORY = {
    "kind": "aged",
    "used_permille": 1000,
    "kept_permille": 10,
    "kernel_permille": 27,
    "kernel_kept_permille": 240,
}
"""The paper's page tables lie on hundreds to thousands of runs of frames, so its machine had run for a while. The
kernel's shares are those of a VM that had compiled for a day (docs/fidelity.md, "The memory of a used machine").
On a fresh machine arrays that are initialised together get frames by turns, and which sets of a cache they share
with the page tables decides what a walk costs."""

BEST = ("native-alone-P1+P2", "native-smt-P1", "native-smt-P1+P2", "vm-alone-all", "vm-smt-all")
"""Of which the paper gives the best program, too."""

TIMED = ("mcf", "canneal", "bfs-60g", "pagerank-60g", "redis-50g")
"""Programs whose speed-up the paper estimates."""


def experiment(paper: Paper, scale: Scale) -> Experiment:
    """The baselines' runs, those with ASAP, and the paper's values from them."""
    cells = [(mode, label) for mode in MODES for label in ("", *PREFETCHED[mode])]
    runs = [_run(paper, scale, preset, mode, label) for preset in PROGRAMS for mode, label in cells]
    drawings: tuple[Drawing | Panel, ...] = (
        Drawing("baselines", "Nestwalk, by program", "cycles a walk", _latencies),
        Panel("baselines", "who answers for which level, native (the paper's figure 9)", _levels(virtual=False)),
        Panel("baselines", "the same in a VM", _levels(virtual=True)),
        *(
            Drawing("reductions", f"change of the walk latency, {mode.replace('-', ', ')}", "%", _reductions(mode))
            for mode in MODES
        ),
        Drawing("speedup", "share of the estimated time that walks take, native, alone", "%", _shares),
    )
    return Experiment(runs, _measure, drawings, _notes)


def _run(paper: Paper, scale: Scale, preset: str, mode: str, label: str) -> Run:
    virtual, smt = MODES[mode]
    levels = LEVELS.get(label, {})
    more: dict[str, Any] = {"corunner": "random"} if smt else {}
    if levels:
        more["asap"] = levels
    sorted_tables = {"tables": {"kind": "asap"}}
    kernels: list[dict[str, Any]] = [{"start": HISTORY} | (sorted_tables if levels else {})]
    if virtual:
        # "Host page-table pages scattered at random over host memory": the paper's virtualised baseline.
        host = sorted_tables if "host_levels" in levels else {"tables": {"kind": "scattered"}}
        kernels.insert(0, {"start": HISTORY} | host)
    name = _name(preset, mode, label)
    table = program(preset, scale, machine=paper.machine, name=name, kernels=kernels, **more)
    return Run(name, ", ".join(part for part in (PROGRAMS[preset], mode, label) if part), table)


def _name(preset: str, mode: str, label: str = "") -> str:
    return "-".join(part for part in (preset, mode, label) if part)


def _latency(results: Results, preset: str, mode: str) -> float | None:
    latency: float | None = results[_name(preset, mode)].row["walk_latency_cycles"]
    return latency


def _by_program(results: Results, mode: str) -> dict[str, float]:
    found = {preset: _latency(results, preset, mode) for preset in PROGRAMS}
    return {preset: latency for preset, latency in found.items() if latency is not None}


def _changes(results: Results, mode: str, label: str) -> dict[str, float]:
    """By how many per cent each program's walk latency changes."""
    found = {}
    for preset in PROGRAMS:
        after, before = (results[_name(preset, mode, which)].row["walk_latency_cycles"] for which in (label, ""))
        change = change_percent(after, before)
        if change is not None:
            found[preset] = change
    return found


def _measure(results: Results) -> dict[str, Value]:
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
    for mode, labels in PREFETCHED.items():
        for label in labels:
            changes = _changes(results, mode, label)
            values[f"{mode}-{label}"] = mean(list(changes.values()))
            if f"{mode}-{label}" in BEST:
                values[f"{mode}-{label}-best"] = extreme(changes, largest=False)[1]
    gains = {preset: _speedup(results, preset) for preset in TIMED}
    return (
        values
        | {f"speedup-{preset}": gain for preset, gain in gains.items()}
        | {"speedup-average": mean(list(gains.values()))}
    )


def _speedup(results: Results, preset: str) -> float:
    """As the paper estimates it: the share of walks in the time, times their reduction; native, alone."""
    change = _changes(results, "native-alone", "P1+P2")[preset]
    return -change * _share(results[_name(preset, "native-alone")]) / 100


def _share(result: Result) -> float:
    """Per cent of the estimated time."""
    cycles = result.statistics["cycles"]
    share: float = 100 * cycles["walk"] / total(cycles)
    return share


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
    for key in BEST:
        mode = next(mode for mode in MODES if key.startswith(mode))
        changes = _changes(results, mode, key.removeprefix(f"{mode}-"))
        notes[f"{key}-best"] = f"Ours: {PROGRAMS[extreme(changes, largest=False)[0]]}."
    notes["native-alone-longest"] += " The paper's: redis."
    return notes


def _latencies(results: Results) -> Sequence[tuple[str, str, float]]:
    return [
        (PROGRAMS[preset], mode.replace("-", ", "), latency)
        for mode in MODES
        for preset, latency in _by_program(results, mode).items()
    ]


def _levels(*, virtual: bool) -> Callable[[Results, Layout], Picture | None]:
    """Who answers for each level of the tables, a panel for each program, alone and with the co-runner."""

    def draw(results: Results, layout: Layout) -> Picture | None:
        labelled = [
            (title, "with an SMT co-runner" if smt else "alone", results[_name(preset, mode)])
            for preset, title in PROGRAMS.items()
            for mode, (in_vm, smt) in MODES.items()
            if in_vm == virtual
        ]
        if layout.label_width:
            return charts.served(labelled)
        variants = list(dict.fromkeys(variant for _, variant, _ in labelled))
        parts = [charts.served([row for row in labelled if row[1] == variant], layout) for variant in variants]
        titled = [part.properties(title=variant) for part, variant in zip(parts, variants, strict=True)]
        picture: Picture = alt.vconcat(*titled)
        return picture

    return draw


def _shares(results: Results) -> Sequence[tuple[str, str, float]]:
    bars = []
    for preset, title in PROGRAMS.items():
        bars.append((title, "walks", _share(results[_name(preset, "native-alone")])))
    return bars


def _reductions(mode: str) -> Callable[[Results], Sequence[tuple[str, str, float]]]:
    def bars(results: Results) -> Sequence[tuple[str, str, float]]:
        return [
            (PROGRAMS[preset], label, change)
            for label in PREFETCHED[mode]
            for preset, change in _changes(results, mode, label).items()
        ]

    return bars
