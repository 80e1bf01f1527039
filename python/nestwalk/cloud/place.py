# SPDX-License-Identifier: MIT OR Apache-2.0
"""Replays: a trace of VMs on a fleet, under one or several versions of scheduler and allocator side by side."""

from __future__ import annotations

import array
import json
import sys
import threading
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import polars as pl

from nestwalk import _native, pool
from nestwalk.cloud import fleets
from nestwalk.errors import NestwalkError, unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Future
    from pathlib import Path

    from nestwalk.cloud.fleets import Demand, Fleet
    from nestwalk.cloud.requests import Requests

WEEK_S = 7 * 86_400
UNKNOWN = (1 << 63) - 1
"""Stands for "no departure is known" in the column of earliest departures."""

ALLOCATORS = ("compromis-opt1", "compromis-opt2", "xen", "linux-hugetlb", "best-fit", "first-fit")
SCHEDULERS = ("filter-scheduler", "improv-placement", "first-fit", "best-fit", "worst-fit")
"""``improv-placement`` is the filter scheduler with Compromis' filter after its own."""

OUTCOMES = ("refused", "unplaced", "placed")
MEASURED = ("latency_us", "timing")
"""Keys of a version's JSON that are measured and differ from run to run; all others repeat to the last bit."""


@dataclass(frozen=True)
class Version:
    """A scheduler and an allocator."""

    name: str
    title: str
    options: Mapping[str, Any]
    """What differs from the engine's defaults."""


VERSIONS = {
    version.name: version
    for version in (
        Version("baseline", "BaseLine", {"allocator": "xen"}),
        Version(
            "opt1", "ImprovPlacement+Opt1", {"allocator": "compromis-opt1", "scheduler": {"improv_placement": True}}
        ),
        Version(
            "opt2", "ImprovPlacement+Opt2", {"allocator": "compromis-opt2", "scheduler": {"improv_placement": True}}
        ),
        Version(
            "dynamic",
            "DynamicOptionSelec",
            {
                "allocator": "compromis-opt2",
                "scheduler": {"improv_placement": True},
                "dynamic": {"period_s": WEEK_S},
            },
        ),
    )
}
"""The paper's versions."""


def versions(text: str) -> list[Version]:
    """The versions that ``--versions`` names.

    Raises:
        NestwalkError: When there is no such version, or one is named twice.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in VERSIONS:
            raise unknown("version", name, VERSIONS)
    if not names or len(set(names)) != len(names):
        raise NestwalkError(f"--versions: name one or several of {', '.join(VERSIONS)}, each once")
    return [VERSIONS[name] for name in names]


def custom(scheduler: str | None, allocator: str | None) -> Version:
    """The version of a scheduler and an allocator; the filter scheduler and Opt2 where nothing is chosen.

    Raises:
        NestwalkError: When there is no such scheduler or allocator.
    """
    policy = "filter-scheduler" if scheduler is None else scheduler
    memory = "compromis-opt2" if allocator is None else allocator
    if policy not in SCHEDULERS:
        raise unknown("scheduler", policy, SCHEDULERS)
    if memory not in ALLOCATORS:
        raise unknown("allocator", memory, ALLOCATORS)
    chosen = {"improv_placement": True} if policy == "improv-placement" else {"policy": policy}
    return Version("custom", f"{policy}, {memory}", {"allocator": memory, "scheduler": chosen})


RESIZES = ("grow", "shrink", "unplug", "balloon")
"""How a VM's memory may change while it runs."""


@dataclass(frozen=True)
class Settings:
    """What holds for all versions of a replay."""

    seed: int = 1
    segments: int = 1
    """n of DS-n: the segments that a processor has."""
    measure_from_s: int | None = None
    """VMs that arrive earlier are placed and not counted."""
    dynamic_period_s: int = WEEK_S
    migration: bool = False
    resize: Mapping[str, Any] | None = None
    """VMs whose memory changes while they run, as the engine takes it."""
    ept_takes_small: bool = False
    any_order: bool = False
    """The other counting rule: pieces that are next to each other are one segment in whatever order."""
    scheduler: Mapping[str, Any] = field(default_factory=dict)
    """Nova's options."""
    samples: int = 200
    map_host: int | None = None
    """The host whose memory map is kept; if None, the first of those with most memory."""
    engine: Mapping[str, Any] = field(default_factory=dict)
    """More options, as the engine takes them."""

    def options(self, version: Version) -> dict[str, Any]:
        """The engine's options for a version."""
        found: dict[str, Any] = {
            "seed": self.seed,
            "ds_segments": self.segments,
            "measure_from_s": self.measure_from_s,
            "samples": self.samples,
            "map_host": self.map_host,
            "counting": "any-order" if self.any_order else "in-order",
            **self.engine,
            **version.options,
        }
        found["scheduler"] = {**self.scheduler, **version.options.get("scheduler", {})}
        if found.get("dynamic"):
            found["dynamic"] = {"period_s": self.dynamic_period_s}
        if self.migration:
            found["migration"] = {}
        if self.resize is not None:
            found["resize"] = dict(self.resize)
        if self.ept_takes_small:
            found["ept_takes_small"] = True
        return found


@dataclass(frozen=True)
class Plan:
    """What will be replayed."""

    trace: Requests
    fleet: Fleet
    demand: Demand
    versions: Sequence[Version]
    settings: Settings

    @property
    def titles(self) -> list[str]:
        """Of the versions."""
        return [version.title for version in self.versions]


@dataclass(frozen=True)
class Replayed:
    """What one version made of the trace."""

    version: Version
    options: Mapping[str, Any]
    result: Mapping[str, Any]
    """The deterministic part, as the engine has it."""
    work: Mapping[str, int]
    """Candidates and list entries that were looked at: the same in every run."""
    timing: Mapping[str, Any]
    """The measured part."""
    vms: pl.DataFrame
    """For each request, in the trace's order: ``outcome``, ``host``, ``segments``."""

    @cached_property
    def modes(self) -> list[dict[str, int]]:
        """For n = 1 to 8: VMs that a DS-n processor runs by segments, and those that need EPT or shadow paging."""
        found: list[dict[str, int]] = list(self.result["modes"])
        return found

    def to_json(self) -> dict[str, Any]:
        """A version's part of ``--json``. Keys other than :data:`MEASURED` are the same in every run."""
        result = dict(self.result)
        counts, shares = result.pop("vms"), result.pop("segments")
        return {
            "version": self.version.name,
            "title": self.version.title,
            "vms": counts["requests"],
            "placed": counts["placed"],
            "unplaced": counts["unplaced"],
            "refused": counts["refused"],
            "segments": shares["shares"],
            "histogram": shares["histogram"],
            **result,
            "work": dict(self.work),
            "options": dict(self.options),
            "latency_us": {
                **microseconds(self.timing["placement_ns"]),
                "allocation": microseconds(self.timing["allocation_ns"]),
            },
            "timing": {key: self.timing[key] for key in ("wall_s", "events_per_s")},
        }


def microseconds(latency: Mapping[str, float]) -> dict[str, float]:
    """The engine's nanoseconds as ``mean``, ``stdev``, ``p50`` and ``p99`` in microseconds."""
    return {key: latency[key] / 1000 for key in ("mean", "stdev", "p50", "p99")}


@dataclass(frozen=True)
class Replay:
    """What all versions made of the trace."""

    plan: Plan
    made: Sequence[Replayed]
    jobs: int
    """How many ran side by side."""

    def to_json(self) -> dict[str, Any]:
        """What ``nestwalk place --json`` prints: the last version's keys, and all of them in ``versions``."""
        trace, fleet, need = self.plan.trace, self.plan.fleet, self.plan.demand
        each = [one.to_json() for one in self.made]
        last = each[-1]
        head = {key: last[key] for key in ("vms", "placed", "unplaced", "refused", "segments", "latency_us")}
        return {
            "schema": 1,
            "release": _native.version(),
            "trace": {
                "path": trace.path.name,
                "format": trace.format,
                "requests": len(trace.frame),
                "sizes": trace.frame["memory_pages"].n_unique(),
                "span_s": list(trace.span_s),
                "malformed": trace.malformed.to_json(),
                "notes": list(trace.notes),
            },
            "fleet": {
                "name": fleet.name,
                "description": fleet.description,
                "hosts": fleet.hosts,
                "sizing": fleet.sizing,
                "groups": [dict(group) for group in fleet.groups],
                "peak": {"memory_pages": need.memory_pages, "vcpus": need.vcpus, "vms": need.vms},
            },
            "seed": self.plan.settings.seed,
            "version": last["version"],
            **head,
            "versions": each,
        }

    @property
    def frame(self) -> pl.DataFrame:
        """For each version and VM size (and for all sizes): VMs by number of segments."""
        rows = []
        for one in self.made:
            whole = {"memory_pages": None, "vms": one.result["vms"], "segments": one.result["segments"]}
            for size in (whole, *one.result["by_size"]):
                shares = size["segments"]["shares"]
                rows.append(
                    {
                        "version": one.version.name,
                        "memory_pages": size["memory_pages"],
                        "vms": size["vms"]["placed"],
                        **{f"segments_{key}": shares.get(key) for key in ("1", "2", "3", "more")},
                    }
                )
        shares_schema = dict.fromkeys((f"segments_{key}" for key in ("1", "2", "3", "more")), pl.Float64)
        schema = {"version": pl.String, "memory_pages": pl.Int64, "vms": pl.Int64, **shares_schema}
        return pl.DataFrame(rows, schema=schema)

    @property
    def vms(self) -> pl.DataFrame:
        """For each request its row of the trace, and for each version its outcome, host and segments."""
        parts = [one.vms.rename({name: f"{name}_{one.version.name}" for name in one.vms.columns}) for one in self.made]
        return pl.concat([self.plan.trace.frame, *parts], how="horizontal")


def columns(frame: pl.DataFrame) -> tuple[bytes, bytes, bytes, bytes, bytes]:
    """The requests as the engine takes them."""
    lo = frame["leave_lo_s"].fill_null(UNKNOWN)
    hi = frame["leave_hi_s"].fill_null(UNKNOWN)
    return (
        _flat("q", frame["arrive_s"]),
        _flat("q", lo),
        _flat("q", hi),
        _flat("I", frame["vcpus"]),
        _flat("Q", frame["memory_pages"]),
    )


def _flat(kind: str, series: pl.Series) -> bytes:
    values = array.array(kind, series.to_list())
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


def unflatten(data: bytes, kind: type[pl.DataType], size: int) -> pl.Series:
    """A column that the engine gave."""
    count = len(data) // size
    if not count:
        return pl.Series([], dtype=kind)
    return pl.Series([data]).bin.reinterpret(dtype=pl.Array(kind, count), endianness="little").explode()


def plan(
    trace: Requests,
    fleet: Fleet,
    chosen: Sequence[Version],
    settings: Settings,
    *,
    target_utilisation: float = fleets.TARGET_UTILISATION,
) -> Plan:
    """What :func:`execute` will do.

    Raises:
        NestwalkError: When the fleet cannot be sized, or has no such host as is to be drawn.
    """
    nova = {**fleet.scheduler, **settings.scheduler}
    need = fleets.demand(trace)
    ratio = float(nova.get("cpu_allocation_ratio", CPU_ALLOCATION_RATIO))
    sized = fleets.sized(fleet, need, target_utilisation, ratio)
    drawn = sized.largest_host if settings.map_host is None else settings.map_host
    if drawn >= sized.hosts:
        raise NestwalkError(f"--map-host {drawn}: the fleet has {sized.hosts} hosts; give 0 to {sized.hosts - 1}")
    return Plan(trace, sized, need, chosen, replace(settings, scheduler=nova, map_host=drawn))


CPU_ALLOCATION_RATIO = 16.0
"""The engine's default: Nova's of the paper's time."""


def execute(plan_: Plan, *, jobs: int | None = None, watcher: pool.Watcher | None = None) -> Replay:
    """Replays the trace under every version, ``jobs`` at a time.

    Raises:
        NestwalkError: When the engine refuses something.
        KeyboardInterrupt: On Ctrl-C, when all have stopped.
    """
    limit = pool.check_count(pool.processors() if jobs is None else jobs)
    side_by_side = min(limit, len(plan_.versions))
    data = columns(plan_.trace.frame)

    def one(index: int, progress: Callable[[int, int | None], bool]) -> Replayed:
        return run(data, plan_.fleet, plan_.versions[index], plan_.settings, progress)

    made = all_of(one, len(plan_.versions), side_by_side, watcher or pool.Silent())
    return Replay(plan_, made, side_by_side)


def run(
    data: tuple[bytes, bytes, bytes, bytes, bytes],
    fleet: Fleet,
    version: Version,
    settings: Settings,
    progress: Callable[[int, int | None], bool] | None = None,
) -> Replayed:
    """Replays the requests ``data`` (:func:`columns`) under one version.

    Raises:
        NestwalkError: When the engine refuses something, or ``progress`` returned False.
    """
    options = settings.options(version)
    text, outcomes, hosts, segments = _native.cloud_replay(
        data, json.dumps(fleet.engine()), json.dumps(options), progress
    )
    found = json.loads(text)
    outcome = unflatten(outcomes, pl.UInt8, 1)
    vms = pl.DataFrame(
        {
            "outcome": outcome.replace_strict(dict(enumerate(OUTCOMES)), return_dtype=pl.Categorical),
            "host": unflatten(hosts, pl.UInt32, 4),
            "segments": unflatten(segments, pl.UInt32, 4),
        }
    ).with_columns(pl.when(outcome == OUTCOMES.index("placed")).then(pl.col("host", "segments")))
    return Replayed(version, options, found["result"], found["work"], found["timing"], vms)


def all_of(
    one: Callable[[int, Callable[[int, int | None], bool]], Any], count: int, jobs: int, watcher: pool.Watcher
) -> list[Any]:
    """Calls ``one`` for each index, ``jobs`` at a time, each in a thread: the engine works without the GIL.

    What goes on in the threads is told to ``watcher`` in this one, and Ctrl-C ends them all.
    """
    stop = threading.Event()
    shares = [0.0] * count
    begun = [False] * count

    def task(index: int) -> Any:
        def progress(done: int, total: int | None) -> bool:
            shares[index] = done / total if total else 0.0
            return not stop.is_set()

        begun[index] = True
        return one(index, progress)

    with ThreadPoolExecutor(jobs) as executor:
        tasks = [executor.submit(task, index) for index in range(count)]
        try:
            _watch(tasks, begun, shares, watcher)
        except BaseException:
            stop.set()
            executor.shutdown(cancel_futures=True)
            raise
    return [task_.result() for task_ in tasks]


def _watch(tasks: Sequence[Future[Any]], begun: list[bool], shares: list[float], watcher: pool.Watcher) -> None:
    """Tells ``watcher`` how the tasks get on until all are done, or one has failed."""
    told: set[int] = set()
    pending = set(tasks)
    while pending:
        done, pending = wait(pending, timeout=_LOOK_S, return_when=FIRST_COMPLETED)
        for index in range(len(tasks)):
            if begun[index] and index not in told:
                told.add(index)
                watcher.started(index)
            if begun[index] and tasks[index] in pending:
                watcher.advanced(index, shares[index])
        for index, task in enumerate(tasks):
            if task in done:
                task.result()
                watcher.finished(index)


_LOOK_S = 0.1


def describe(path: Path) -> str:
    """A file's name for titles."""
    return path.name
