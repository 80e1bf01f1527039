# SPDX-License-Identifier: MIT OR Apache-2.0
"""Quicksilver: superpage managers on fresh and on fragmented memory, natively."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nestwalk.counted import named
from nestwalk.counters import OsCounters
from nestwalk.reproduce import quicksilver_redis
from nestwalk.reproduce.paper import TOLERANCE
from nestwalk.reproduce.plan import Drawing, Experiment, Results, Run, Scale, Value, program

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from nestwalk.reproduce.paper import Paper
    from nestwalk.result import Result

PROGRAMS = {
    "gups-8g": ("GUPS", 8192),
    "graphchi-pagerank": ("PageRank", 3740),
    "blocksvm": ("BlockSVM", 1820),
    "xsbench-large": ("XSBench", 5400),
    "annoy": ("ANN", 1640),
    "canneal-native": ("canneal", 940),
    "freqmine": ("freqmine", 540),
    "gcc": ("gcc", 1331),
    "mcf-2017": ("mcf", 3994),
    "deepsjeng": ("deepsjeng", 6676),
    "xz": ("xz", 674),
}
"""Presets, what the paper calls them, and the MiB that they need (a test holds these to the presets)."""

ENDS = {"graphchi-pagerank", "blocksvm"}
"""Programs that end: all that they do is a run, however long it takes."""

GCC_HEAPS = {"Linux": {"step": "1 MiB", "grows": "below"}, "FreeBSD": {"step": "1 MiB", "grows": "above"}}
"""How the heap of gcc 4.5, that of SPEC CPU2017, grows on either kernel: ``GGC_QUIRE_SIZE`` is 256 pages."""

SUPERPAGES = named(OsCounters, "faults_2m", "promotions", "collapses")
"""What makes a superpage."""

MANAGERS: dict[str, dict[str, Any]] = {
    "Linux": {"kind": "thp", "release": "4.3", "enabled": "always", "defrag": "always"},
    "Ingens": {"kind": "ingens"},
    "HawkEye": {"kind": "hawkeye"},
    "FreeBSD": {"kind": "freebsd"},
    "Sync-1": {"kind": "quicksilver", "threshold": 1},
    "Sync-64": {"kind": "quicksilver", "threshold": 64},
}
"""As the paper ran them."""

ON_FREEBSD = ("FreeBSD", "Sync-1", "Sync-64")
"""Those that are FreeBSD's; the others are Linux's."""

BASE = "Linux"
UNCOMPACTED = "never"
NEVER = {"kind": "thp", "release": "4.3", "enabled": "always", "defrag": "never"}
PERCENTS = (0, 100)
MEMORY_MIB = 32 << 10
"""Of the paper's machine."""
DIVIDED_MIB_MIN = 32
"""No program gets smaller (``PAGES_MIN`` of the presets)."""
RUN_S = 60.0
"""How long a program runs on Linux: an assumption, as the paper does not say."""
LENGTHS = {"gups-8g": 2 * 4_194_304 * 1024}
"""Accesses of a run where the authors' command line says it: so many sets of 1024 updates, each a load and a store."""
WAIT_MS = 60_000
"""Between the fragmenting process's work and the program's start, as in the paper."""
WARM_ACCESSES_MAX = {True: 20_000_000, False: 100_000_000}
"""Of a quick and of a full run. The last-level cache has 131,072 lines."""
NEAR = 0.1
TWICE = 2
REDIS: dict[str, dict[str, Any]] = {"Linux 4 KiB": {"kind": "linux4k"}, **MANAGERS}
"""Managers under which redis ran."""

BUILD_MANAGERS = ("Linux", "FreeBSD", "Sync-1", "Sync-64")
JOBS = 9
BUILD_CPUS = 8
"""Hardware threads of the paper's processor."""
BUILD_UNITS = {True: 12, False: 100}
"""Of each job, in a quick and in a full run."""
BUILD_UNIT_S = 0.426
"""In user mode, of a unit's four processes: the mean of the measured ones (the generator's ``build.rs`` has them)."""
BUILD_ACCESSES = {True: 2_000_000, False: 20_000_000}
BUILD_NEED_MIB = 1024
"""Nine compilers with 90 MiB each, and their files."""
BUILD_LEAD_MS = 500
"""Jobs are not in step."""


def experiment(paper: Paper, scale: Scale) -> Experiment:
    """The two tables' runs, the experiments', and the paper's values from them."""
    runs = [
        _run(paper, scale, preset, percent, manager)
        for preset in PROGRAMS
        for percent in PERCENTS
        for manager in MANAGERS
    ]
    runs += [_run(paper, scale, preset, 100, UNCOMPACTED, manager=NEVER) for preset in PROGRAMS]
    runs += [
        _run(paper, scale, "gups-8g", 0, "4 KiB", manager={"kind": "linux4k"}),
        _run(paper, scale, "gups-8g", 0, "HawkEye", mark="late", lapse_s=600),
        _run(paper, scale, "gups-8g", 100, "Sync-1", mark="nowait", wait_ms=0),
    ]
    runs += [_build(paper, scale, percent, manager) for percent in PERCENTS for manager in BUILD_MANAGERS]
    runs += [
        _redis(paper, scale, percent, manager, warm=warm)
        for warm in (False, True)
        for percent in PERCENTS
        for manager in REDIS
    ]
    runs.append(_redis(paper, scale, 0, BASE, mark="room"))
    drawings = tuple(
        Drawing(f"frag-{percent}", f"speed relative to Linux, Frag-{percent}", "times", _speeds(percent, scale))
        for percent in PERCENTS
    )
    return Experiment(runs, lambda results: _measure(results, paper, scale), drawings, _notes)


def _run(
    paper: Paper,
    scale: Scale,
    preset: str,
    percent: int,
    name: str,
    *,
    manager: Mapping[str, Any] | None = None,
    mark: str = "",
    lapse_s: float = RUN_S / 2,
    wait_ms: int = WAIT_MS,
) -> Run:
    title, mebibytes = PROGRAMS[preset]
    need = max(mebibytes // scale.divide_footprint, DIVIDED_MIB_MIN)
    kernel = {
        "memory": f"{MEMORY_MIB // scale.divide_footprint} MiB",
        "manager": dict(manager or MANAGERS[name]),
        "start": {"kind": "frag", "percent": percent, "need": f"{need} MiB", "wait_ms": wait_ms, "steps": "all"},
    }
    lapse_s = 0 if preset in ENDS else lapse_s
    sampling = {
        "warm_accesses_max": WARM_ACCESSES_MAX[scale.quick],
        "lapse_ms": round(1000 * lapse_s / scale.divide_footprint),
    }
    key = _name(preset, percent, name, mark)
    changes = {"heap": GCC_HEAPS["FreeBSD" if name in ON_FREEBSD else "Linux"]} if preset == "gcc" else {}
    table = program(
        preset, scale, machine=paper.machine, name=key, kernels=[kernel], changes=changes, sampling=sampling
    )
    return Run(key, ", ".join(part for part in (title, f"Frag-{percent}", name, mark) if part), table)


def _build(paper: Paper, scale: Scale, percent: int, manager: str) -> Run:
    """One of nine jobs; of the others only the kernel's work is simulated, until this one has done its units."""
    units = BUILD_UNITS[scale.quick]
    job = {"name": "buildkernel", "units": units}
    kernel = {
        "memory": f"{MEMORY_MIB // scale.divide_footprint} MiB",
        "cpus": BUILD_CPUS,
        "manager": dict(MANAGERS[manager]),
        "start": {
            "kind": "frag",
            "percent": percent,
            "need": f"{BUILD_NEED_MIB} MiB",
            "wait_ms": WAIT_MS,
            "steps": "all",
        },
    }
    others = {
        "workload": {"preset": {**job, "measures": False}},
        "count": JOBS - 1,
        "cores": "none",
        "until": "populated",
    }
    key = _name("buildkernel", percent, manager)
    table = {
        "schema": 1,
        "name": key,
        "machine": paper.machine,
        "seed": scale.seed,
        "workload": {"preset": {**job, "measured_accesses": BUILD_ACCESSES[scale.quick]}},
        "kernels": [kernel],
        "colocated": [others],
        "colocated_lead_ms": BUILD_LEAD_MS,
        "sampling": {"warm_accesses_max": WARM_ACCESSES_MAX[scale.quick]},
    }
    return Run(key, f"buildkernel, Frag-{percent}, {manager}", table)


def _redis(paper: Paper, scale: Scale, percent: int, manager: str, *, warm: bool = False, mark: str = "") -> Run:
    """A redis that clients fill, or one that they have filled; ``room``: all of it finds free blocks on Frag-0."""
    need = quicksilver_redis.FOOTPRINT_MIB if mark == "room" else quicksilver_redis.NEED_MIB
    kernel = {
        "memory": f"{MEMORY_MIB // scale.divide_footprint} MiB",
        "manager": dict(REDIS[manager]),
        "start": {
            "kind": "frag",
            "percent": percent,
            "need": f"{need // scale.divide_footprint} MiB",
            "wait_ms": WAIT_MS,
            "steps": "all",
        },
    }
    start = "warm" if warm else "cold"
    key = _name(quicksilver_redis.WARM_PRESET if warm else quicksilver_redis.PRESET, percent, manager, mark)
    title = ", ".join(part for part in (f"redis, {start}", f"Frag-{percent}", manager, mark) if part)
    make = quicksilver_redis.warm_run if warm else quicksilver_redis.run
    return make(paper.machine, scale, key, title, kernel)


def _name(preset: str, percent: int, manager: str, mark: str = "") -> str:
    return "-".join(part for part in (preset, f"frag{percent}", manager.lower().replace(" ", "-"), mark) if part)


def _access(result: Result) -> float:
    """Cycles an access: the program's work, data and walks.

    What its kernel does is counted over the whole run, as a daemon's work may fall into what is measured, or beside it.
    """
    cycles, accesses = result.statistics["cycles"], result.statistics["accesses"]
    own: float = (cycles["work"] + cycles["data"] + cycles["walk"]) / accesses
    return own


def _kernel(result: Result) -> int:
    """Cycles of the kernel, filling the program's memory and daemons included."""
    return sum(result.whole_run["cycles"].values())


def _length(preset: str, scale: Scale) -> float | int:
    """How long a program that does not end runs: seconds on the base, or accesses if these are known."""
    accesses = LENGTHS.get(preset)
    return RUN_S / scale.divide_footprint if accesses is None else accesses // scale.divide_footprint


def _own(base: Result, length: float | int) -> float:
    """Cycles of the program itself, of all threads: of all its accesses, or so long if it has no end."""
    accesses = base.whole_run["accesses"]
    if accesses is None and isinstance(length, int):
        accesses = length
    if accesses is not None:
        return float(accesses * _access(base))
    chosen = base.configuration
    threads = chosen["scenario"]["workload"]["generator"].get("threads", 1)
    return float(length * threads * chosen["machine"]["frequency_mhz"] * 1e6)


def _speed(base: Result, other: Result, length: float | int) -> float:
    """How many times as fast as ``base``, of a run of so many accesses, or seconds of ``base``."""
    own = _own(base, length)
    speed: float = (own + _kernel(base)) / (own * _access(other) / _access(base) + _kernel(other))
    return speed


def _table(results: Results, percent: int, scale: Scale, against: str = BASE) -> dict[tuple[str, str], Value]:
    """The speed of each manager but Linux with each program, held against Linux, or a Linux of another name."""
    found: dict[tuple[str, str], Value] = {}
    for manager in MANAGERS:
        if manager == BASE:
            continue
        for preset, (title, _) in PROGRAMS.items():
            names = [_name(preset, percent, against), _name(preset, percent, manager)]
            length = _length(preset, scale)
            found[manager, title] = results.value(names, lambda base, other, run=length: _speed(base, other, run))
    return found


def _superpages(result: Result) -> int:
    kernel = result.whole_run["kernels"][-1]["counters"]
    faults, promotions, collapses = (kernel.get(name, 0) for name in SUPERPAGES)
    # A fault that completes a reservation promotes it, and counts as a fault of 2 MiB.
    quicksilver = result.statistics["kernels"][-1]["manager"] == "quicksilver"
    return int(max(faults, promotions) if quicksilver else faults + promotions + collapses)


def _cell(percent: int, manager: str, title: str) -> str:
    """The key of a cell of the two tables."""
    return f"{percent}-{manager.lower()}-{title.lower()}"


def _pairs(paper: Paper, percent: int, table: Mapping[tuple[str, str], Value]) -> list[tuple[float, float]]:
    """The paper's speed and ours, of the cells that have both."""
    claims = [(paper.claims.get(_cell(percent, *place)), speed) for place, speed in table.items()]
    cells = [(claim.paper, speed) for claim, speed in claims if claim is not None]
    return [(said, ours) for said, ours in cells if said is not None and not isinstance(ours, str)]


def _near(pairs: Sequence[tuple[float, float]]) -> int:
    """How many are within :data:`NEAR`; a hundredth of the last digit more, as 1.1 - 1 is more than 0.1 in binary."""
    return sum(abs(said - ours) <= NEAR + 1e-4 for said, ours in pairs)


def _twice(pairs: Sequence[tuple[float, float]]) -> int:
    """How many that are about twice as fast in the paper are so here."""
    return sum(said >= TWICE and abs(said - ours) <= TOLERANCE * said for said, ours in pairs)


def _measure(results: Results, paper: Paper, scale: Scale) -> dict[str, Value]:
    values: dict[str, Value] = {}
    pairs = []
    for percent in PERCENTS:
        table = _table(results, percent, scale)
        values |= {_cell(percent, *place): speed for place, speed in table.items()}
        pairs += _pairs(paper, percent, table)
    values["cells-tenth"] = _near(pairs)
    values["cells-twice"] = _twice(pairs)
    uncompacted = _table(results, 100, scale, UNCOMPACTED)
    held = _pairs(paper, 100, uncompacted)
    values |= {"x-never-tenth": _near(held), "x-never-twice": _twice(held)}
    values |= {
        f"x-never-{title.lower()}": speed for (manager, title), speed in uncompacted.items() if manager == "Sync-1"
    }
    for percent in PERCENTS:
        for manager in MANAGERS:
            made = [results[_name(preset, percent, manager)] for preset in PROGRAMS]
            values[f"made-{percent}-{manager.lower()}"] = sum(map(_superpages, made)) / 1000
            values[f"faults-{percent}-{manager.lower()}"] = sum(one.whole_run["faults"] for one in made) / 1000
    values |= _of_build(results, scale)
    for preset, mark in ((quicksilver_redis.PRESET, ""), (quicksilver_redis.WARM_PRESET, "warm-")):
        redis = {
            f"{percent}-{manager.lower().replace(' ', '-')}": _name(preset, percent, manager)
            for percent in PERCENTS
            for manager in REDIS
        }
        values |= quicksilver_redis.values(results, redis, mark)
    return values | _experiments(results, scale)


def _of_build(results: Results, scale: Scale) -> dict[str, Value]:
    """The build's superpages, and its time by that on Linux and by Sync-1's: that of one job, as all are alike."""
    seconds = BUILD_UNITS[scale.quick] * BUILD_UNIT_S
    both = [_name("buildkernel", 0, manager) for manager in ("Sync-1", "Sync-64")]

    def superpages(one: Result, sixty_four: Result) -> float | None:
        made = _superpages(one)
        return _superpages(sixty_four) / made if made else None

    values: dict[str, Value] = {
        "buildkernel": results.value(both, superpages),
        "buildkernel-time": results.value(both, lambda one, sixty_four: 1 / _speed(one, sixty_four, seconds)),
    }
    for percent in PERCENTS:
        base = results[_name("buildkernel", percent, BASE)]
        for manager in BUILD_MANAGERS:
            made = results[_name("buildkernel", percent, manager)]
            key = f"{percent}-{manager.lower()}"
            values[f"x-build-made-{key}"] = _superpages(made)
            if manager != BASE:
                values[f"x-build-{key}"] = _speed(base, made, seconds)
    return values


def _experiments(results: Results, scale: Scale) -> dict[str, Value]:
    gups, base = "gups-8g", _name("gups-8g", 0, BASE)
    whole = _length(gups, scale)

    def speed(base: str, other: str, length: float | int = whole) -> Value:
        return results.value([base, other], lambda one, two: _speed(one, two, length))

    redis, room = (_name(quicksilver_redis.PRESET, 0, BASE, mark) for mark in ("", "room"))
    return {
        "x-small-gups": speed(base, _name(gups, 0, "4 KiB")),
        "x-late-gups-hawkeye": speed(base, _name(gups, 0, "HawkEye", "late")),
        "x-longest-redis": results.value([redis], quicksilver_redis.longest),
        "x-room-redis-p95": results.value([room], lambda result: quicksilver_redis.latency(result, "p95")),
        "x-room-redis-longest": results.value([room], quicksilver_redis.longest),
        "x-short-gups-freebsd": speed(base, _name(gups, 0, "FreeBSD"), RUN_S / 6 / scale.divide_footprint),
        "x-nowait-gups-sync-1": speed(_name(gups, 100, UNCOMPACTED), _name(gups, 100, "Sync-1", "nowait")),
    }


def _notes(results: Results) -> dict[str, str]:
    """Cells whose runs were not warm when they were measured."""
    notes = {}
    for percent in PERCENTS:
        for manager in MANAGERS:
            for preset, (title, _) in PROGRAMS.items():
                cold = results[_name(preset, percent, manager)].json["warm_up"]["reached"] is False
                if cold and manager != BASE:
                    notes[_cell(percent, manager, title)] = "Measured before all was warm."
    return notes


def _speeds(percent: int, scale: Scale) -> Callable[[Results], Sequence[tuple[str, str, float]]]:
    def bars(results: Results) -> list[tuple[str, str, float]]:
        return [
            (title, manager, speed)
            for (manager, title), speed in _table(results, percent, scale).items()
            if not isinstance(speed, str)
        ]

    return bars
