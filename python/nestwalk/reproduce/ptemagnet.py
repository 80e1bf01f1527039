# SPDX-License-Identifier: MIT OR Apache-2.0
"""PTEMagnet: eight programs in a VM, alone and beside co-runners, with the stock guest kernel and with PTEMagnet's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nestwalk.reproduce.plan import Drawing, Experiment, Results, Run, Scale, Value, change_percent, mean, program

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nestwalk.reproduce.paper import Paper
    from nestwalk.result import Result

PROGRAMS = {
    "mcf-2017": "mcf",
    "gcc": "gcc",
    "xz": "xz",
    "omnetpp": "omnetpp",
    "cc-16g": "cc",
    "bfs-16g": "bfs",
    "nibble-16g": "nibble",
    "pagerank-16g": "pagerank",
}
"""Presets, and what the paper calls them."""

UNPRESSED = {"swaptions": "swaptions", "raytrace": "raytrace"}
PAGERANK = "pagerank-16g"
GUEST_CPUS = 20

NEIGHBOURS: dict[str, list[dict[str, Any]]] = {
    "alone": [],
    # stress-ng: 12 workers, 256 MB between them (its default), "stopped once pagerank has its memory"; they do what the
    # co-runner does that was run on a real Linux 6.1 as well (linux/data).
    "stress": [{"workload": {"churn": {"size": "21 MiB"}}, "count": 12, "until": "populated"}],
    "objdet": [{"workload": {"preset": "objdet"}, "cores": "none"}],
    "all": [{"workload": {"preset": "all-corunners"}, "cores": "none"}],
}
"""What runs beside the program, in the same guest, pinned to other cores."""

LEAD_MS = 500
"""How long they have been running when the program begins, simulated: they were there first."""

MANAGERS = {"stock": "linux4k", "magnet": "ptemagnet"}


def experiment(paper: Paper, scale: Scale) -> Experiment:
    """All runs, and the paper's values from them."""
    cells = [(preset, beside) for preset in PROGRAMS for beside in ("alone", "objdet", "all")]
    cells += [(preset, "alone") for preset in UNPRESSED]
    runs = [_run(paper, scale, preset, beside, manager) for preset, beside in cells for manager in MANAGERS]
    runs.append(_run(paper, scale, PAGERANK, "stress", "stock"))
    drawings = (
        Drawing("programs", "host PT fragmentation, beside objdet", "lines", _fragmentation("objdet")),
        Drawing("programs", "speed-up by PTEMagnet, beside objdet", "%", _speedups("objdet")),
        Drawing("programs", "host PT fragmentation, alone", "lines", _fragmentation("alone")),
        Drawing("programs", "speed-up by PTEMagnet, alone", "%", _speedups("alone")),
        Drawing("corunners", "speed-up by PTEMagnet, beside all co-runners", "%", _speedups("all")),
    )
    return Experiment(runs, _measure, drawings, _notes)


def _run(paper: Paper, scale: Scale, preset: str, beside: str, manager: str) -> Run:
    name = _name(preset, beside, manager)
    kernels = [{}, {"manager": {"kind": MANAGERS[manager]}, "cpus": GUEST_CPUS}]
    neighbours = NEIGHBOURS[beside]
    more: dict[str, Any] = {"colocated": neighbours, "colocated_lead_ms": LEAD_MS} if neighbours else {}
    table = program(preset, scale, machine=paper.machine, name=name, kernels=kernels, **more)
    title = {**PROGRAMS, **UNPRESSED}[preset]
    return Run(name, f"{title}, {beside}, {manager}", table)


def _name(preset: str, beside: str, manager: str) -> str:
    return f"{preset}-{beside}-{manager}"


def _time(result: Result) -> float:
    cycles: float = result.row["cycles_per_access"]
    return cycles


def _walk(result: Result) -> float:
    cycles: float = result.statistics["walk_cycles"] / result.statistics["accesses"]
    return cycles


def _host(result: Result) -> float:
    cycles: float = result.statistics["mmu"]["host_walk_cycles"] / result.statistics["accesses"]
    return cycles


def _lines(result: Result) -> float | None:
    lines: float | None = result.row["host_pt_fragmentation"]
    return lines


def _on_8(result: Result) -> float | None:
    metric = result.host_pt_fragmentation
    return 100 * metric["distribution"][7] / metric["groups"] if metric and metric["groups"] else None


def _change(results: Results, after: str, before: str, of: Callable[[Result], float]) -> Value:
    return results.value([after, before], lambda one, two: change_percent(of(one), of(two)))


def _speedup(results: Results, preset: str, beside: str) -> Value:
    names = [_name(preset, beside, manager) for manager in MANAGERS]
    return results.value(names, lambda stock, magnet: change_percent(_time(stock), _time(magnet)))


def _over(values: Sequence[Value], combine: Callable[[list[float]], float]) -> Value:
    """What ``combine`` makes of the values, or the first reason why one is not available."""
    missing = [value for value in values if isinstance(value, str)]
    return missing[0] if missing else combine([value for value in values if not isinstance(value, str)])


def _measure(results: Results) -> dict[str, Value]:
    alone, stress = (_name(PAGERANK, beside, "stock") for beside in ("alone", "stress"))
    stock, magnet = (_name(PAGERANK, "objdet", manager) for manager in MANAGERS)
    beside = {key: [_speedup(results, preset, key) for preset in PROGRAMS] for key in ("objdet", "all")}
    left = [results.value([_name(preset, "objdet", "magnet")], _lines) for preset in PROGRAMS]
    free = [_speedup(results, preset, "alone") for preset in UNPRESSED]
    return {
        "fragmentation-alone": results.value([alone], _lines),
        "fragmentation-stress": results.value([stress], _lines),
        "groups-on-8": results.value([stress], _on_8),
        "stress-time": _change(results, stress, alone, _time),
        "stress-walk": _change(results, stress, alone, _walk),
        "stress-host": _change(results, stress, alone, _host),
        "stress-tlb": _change(results, stress, alone, lambda result: result.row["walks_per_kiloaccess"]),
        "objdet-stock": results.value([stock], _lines),
        "objdet-magnet": results.value([magnet], _lines),
        "objdet-time": _change(results, magnet, stock, _time),
        "objdet-walk": _change(results, magnet, stock, _walk),
        "objdet-host": _change(results, magnet, stock, _host),
        "all-fragmentation": _over(left, mean),
        "all-speedup": _over(beside["objdet"], mean),
        "all-speedup-best": _over(beside["objdet"], max),
        "all-speedup-worst": _over(beside["objdet"], min),
        "mix-speedup": _over(beside["all"], mean),
        "mix-speedup-best": _over(beside["all"], max),
        "unpressed-worst": _over(free, min),
        "unpressed-best": _over(free, max),
    }


def _notes(results: Results) -> dict[str, str]:
    notes = {}
    for key, beside, best in (
        ("all-speedup-best", "objdet", max),
        ("all-speedup-worst", "objdet", min),
        ("mix-speedup-best", "all", max),
    ):
        found = {preset: _speedup(results, preset, beside) for preset in PROGRAMS}
        numbers = {preset: value for preset, value in found.items() if not isinstance(value, str)}
        if numbers:
            notes[key] = f"Ours: {PROGRAMS[best(numbers, key=lambda preset: numbers[preset])]}."
    return notes


def _fragmentation(beside: str) -> Callable[[Results], Sequence[tuple[str, str, float]]]:
    def bars(results: Results) -> list[tuple[str, str, float]]:
        found = []
        for manager, title in (("stock", "stock"), ("magnet", "PTEMagnet")):
            for preset, name in PROGRAMS.items():
                lines = results.value([_name(preset, beside, manager)], _lines)
                if not isinstance(lines, str):
                    found.append((name, title, lines))
        return found

    return bars


def _speedups(beside: str) -> Callable[[Results], Sequence[tuple[str, str, float]]]:
    def bars(results: Results) -> list[tuple[str, str, float]]:
        values = [(PROGRAMS[preset], _speedup(results, preset, beside)) for preset in PROGRAMS]
        return [(title, "PTEMagnet", value) for title, value in values if not isinstance(value, str)]

    return bars
