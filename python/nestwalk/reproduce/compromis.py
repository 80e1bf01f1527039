# SPDX-License-Identifier: MIT OR Apache-2.0
"""Compromis' hypervisor and scheduler: traces of VMs on the paper's hosts, and what follows for a program's time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from nestwalk import pool
from nestwalk.cloud import bundled, fleets, loaders, place, synthetic
from nestwalk.cloud.pictures import SEGMENT_COLOURS, curve_of, shares_of
from nestwalk.errors import NestwalkError
from nestwalk.reproduce import Plan, compromis_mmu
from nestwalk.reproduce.plan import UNAVAILABLE, Drawing, Experiment, Panel, Results, Run, Scale, Value, check, execute
from nestwalk.reproduce.rehearsal import naming, rehearse
from nestwalk.reproduce.side_by_side import Reproduction

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from nestwalk.charts import Layout, Picture
    from nestwalk.cloud.requests import Requests
    from nestwalk.conduct import Means
    from nestwalk.reproduce.paper import Paper

QUICK_ONE_IN = 20
"""Of Azure's VMs, a quick run and the experiments keep one in so many."""
QUICK_CLOUDS = 30
"""Of the private clouds, a quick run replays about so many."""

FULL_UTILISATION = 0.95
HALF_UTILISATION = 0.5
"""Of the experiments with a fuller or an emptier fleet."""

BITBRAINS = ("bitbrains_rnd/vms.csv", "vms.csv", "rnd", "fastStorage")
"""Where Bitbrains is looked for in the folder of traces: as reduced, or as published."""

NO_BITBRAINS = UNAVAILABLE + "the Bitbrains trace may not be shipped; give --traces DIR with it (docs/cloud.md)"
PROGRAMS = {"redis": "redis-trace", "gcc": "gcc", "mcf": "mcf"}
"""What the MMU part runs, and its presets."""
MODES = ("native", "ept", "shadow", "ds1")
DAY_HOURS = 24
DAYS = 30


@dataclass(frozen=True)
class CloudScale(Scale):
    """How much is replayed."""

    traces: Path | None = None

    @property
    def sentence(self) -> str:
        """It in words."""
        azure = f"one VM in {QUICK_ONE_IN} of Azure's" if self.quick else "all of Azure's VMs"
        clouds = f"about {QUICK_CLOUDS} of {synthetic.CLOUDS}" if self.quick else f"{synthetic.CLOUDS}"
        return (
            f"{azure}; {clouds} private clouds; experiments on one Azure VM in {QUICK_ONE_IN}; MMU: {super().sentence}"
        )


@dataclass(frozen=True)
class Replaying:
    """Replays to be made under one version: of one trace, or of several on a fleet each."""

    name: str
    title: str
    traces: Callable[[], Sequence[Requests]]
    version: place.Version
    settings: place.Settings
    hosts: str = "paper"
    utilisation: float = fleets.TARGET_UTILISATION

    def run(self, progress: Callable[[int, int | None], bool]) -> Summary:
        """Makes them."""
        traces = self.traces()
        total = sum(len(trace.frame) for trace in traces)
        done = 0
        parts = []
        for trace in traces:
            weight = len(trace.frame)

            def advanced(now: int, of: int | None, done: int = done, weight: int = weight) -> bool:
                return progress(done + round(weight * now / of) if of else done, total)

            plan = place.plan(
                trace, fleets.load(self.hosts), [self.version], self.settings, target_utilisation=self.utilisation
            )
            made = place.run(place.columns(trace.frame), plan.fleet, self.version, plan.settings, advanced)
            parts.append((plan.fleet.hosts, made))
            done += weight
        return Summary.of(parts)


@dataclass(frozen=True)
class Summary:
    """What replays made: of several, the sum."""

    hosts: int
    vms: Mapping[str, int]
    histogram: Mapping[int, int]
    any_order: Mapping[int, int]
    """The histogram, if what is contiguous in the host is one segment in whatever order."""
    modes: Sequence[Mapping[str, int]]
    allocation: Mapping[str, float] | None
    """Latency as the engine has it, in ns; None of several replays."""
    steps: Mapping[str, float] | None
    """Free lists and segments looked at for one allocation; None of several replays."""

    @classmethod
    def of(cls, parts: Sequence[tuple[int, place.Replayed]]) -> Summary:
        """The sum of replays, each with its number of hosts."""
        histogram: dict[int, int] = {}
        any_order: dict[int, int] = {}
        vms: dict[str, int] = {}
        modes = [{"n": n, "ds_vms": 0, "ept_vms": 0} for n in range(1, 9)]
        for _, made in parts:
            for total, key in ((histogram, "segments"), (any_order, "segments_other_rule")):
                for count, number in made.result[key]["histogram"].items():
                    total[int(count)] = total.get(int(count), 0) + number
            for key, number in made.result["vms"].items():
                vms[key] = vms.get(key, 0) + number
            for both, mode in zip(modes, made.modes, strict=True):
                both["ds_vms"] += mode["ds_vms"]
                both["ept_vms"] += mode["ept_vms"]
        latency = parts[0][1].timing["allocation_ns"] if len(parts) == 1 else None
        steps = parts[0][1].result["allocation_steps"] if len(parts) == 1 else None
        both_rules = (dict(sorted(histogram.items())), dict(sorted(any_order.items())))
        return cls(sum(hosts for hosts, _ in parts), vms, both_rules[0], both_rules[1], modes, latency, steps)

    def share(self, key: str, *, any_order: bool = False) -> float | None:
        """Per cent of the placed VMs with ``1``, ``2``, ``3`` or ``more`` segments."""
        total = sum(self.histogram.values())
        return 100 * self.count(key, any_order=any_order) / total if total else None

    def count(self, key: str, *, any_order: bool = False) -> int:
        """Placed VMs with ``1``, ``2``, ``3`` or ``more`` segments."""
        histogram = self.any_order if any_order else self.histogram
        few = {name: histogram.get(int(name), 0) for name in ("1", "2", "3")}
        return few[key] if key in few else sum(histogram.values()) - sum(few.values())

    def to_json(self) -> dict[str, Any]:
        """For ``results.json``. Latencies are measured; all else repeats."""
        return {
            "hosts": self.hosts,
            "vms": dict(self.vms),
            "histogram": {str(count): number for count, number in self.histogram.items()},
            "histogram_any_order": {str(count): number for count, number in self.any_order.items()},
            "modes": [dict(mode) for mode in self.modes],
            "allocation_ns": dict(self.allocation) if self.allocation else None,
            "allocation_steps": dict(self.steps) if self.steps else None,
        }


STAND_IN = Summary(
    hosts=1,
    vms={"requests": 1, "placed": 1, "unplaced": 0, "refused": 0},
    histogram={1: 1},
    any_order={1: 1},
    modes=[{"n": n, "ds_vms": 1, "ept_vms": 0} for n in range(1, 9)],
    allocation={"mean": 1.0, "stdev": 1.0},
    steps={"mean": 1.0, "stdev": 1.0},
)
"""What is taken for each replay when the paper's arithmetic is tried out."""


class Traces:
    """The traces, each made when it is first wanted."""

    def __init__(self, scale: CloudScale) -> None:
        """For runs of this scale."""
        self._scale = scale

    @cached_property
    def bitbrains_path(self) -> Path | None:
        """Where Bitbrains is, if it is anywhere."""
        folder = self._scale.traces
        return None if folder is None else next((folder / name for name in BITBRAINS if (folder / name).exists()), None)

    @cached_property
    def bitbrains(self) -> Requests:
        """Bitbrains.

        Raises:
            NestwalkError: When it is not there.
        """
        if self.bitbrains_path is None:
            raise NestwalkError("Bitbrains: no trace; give --traces DIR")
        return loaders.load(self.bitbrains_path)

    @cached_property
    def _azure(self) -> synthetic.Azure:
        early, late = (loaders.load(bundled.file(name)) for name in (bundled.DAYS_1_20, bundled.DAYS_21_30))
        return synthetic.azure(early, late, seed=self._scale.seed)

    @cached_property
    def azure(self) -> Requests:
        """Azure at full length, or thinned for a quick run."""
        return self.azure_thinned if self._scale.quick else self._azure.trace

    @cached_property
    def azure_thinned(self) -> Requests:
        """One VM in so many."""
        whole = self._azure.trace
        return whole.with_frame(whole.frame.gather_every(QUICK_ONE_IN), f"one VM in {QUICK_ONE_IN} is kept")

    @cached_property
    def private(self) -> list[Requests]:
        """The private clouds."""
        clouds = synthetic.private_clouds(seed=self._scale.seed)
        return clouds[:: len(clouds) // QUICK_CLOUDS] if self._scale.quick else clouds


@dataclass(frozen=True)
class CloudPlan(Plan):
    """What will be done: replays, then the MMU's runs."""

    traces: Traces
    replays: Sequence[Replaying]

    @property
    def titles(self) -> list[str]:
        """Of everything that will be run."""
        return [replay.title for replay in self.replays] + super().titles

    def execute(self, *, means: Means | None = None, watcher: pool.Watcher | None = None) -> CloudReproduction:
        """Makes the replays and the runs, and puts the paper's figures beside ours."""
        told = watcher or pool.Silent()
        chosen = self.means(means)
        processes = chosen.jobs or pool.processors()

        def one(index: int, progress: Callable[[int, int | None], bool]) -> Summary:
            return self.replays[index].run(progress)

        # The traces are made in this thread, once.
        for replay in self.replays:
            replay.traces()
        made = place.all_of(one, len(self.replays), min(processes, len(self.replays)), told)
        replays = {replay.name: found for replay, found in zip(self.replays, made, strict=True)}
        later = range(len(self.replays), len(self.replays) + len(self.experiment.runs))
        results = execute(self.experiment.runs, chosen, pool.Part(told, later))
        experiment = _experiment(self.paper, self.traces, self.experiment.runs, replays)
        return CloudReproduction(self.paper, self.scale, experiment, results, replays)


@dataclass(frozen=True)
class CloudReproduction(Reproduction):
    """The paper's values beside ours, and the replays that they come from."""

    replays: Mapping[str, Summary]

    def to_json(self) -> dict[str, Any]:
        """What ``nestwalk reproduce compromis --json`` prints."""
        return {**super().to_json(), "replays": {name: found.to_json() for name, found in self.replays.items()}}


def plan(paper: Paper, *, quick: bool, seed: int, traces: Path | None) -> CloudPlan:
    """What will be done.

    Raises:
        NestwalkError: When the folder of traces is none.
    """
    if traces is not None and not traces.is_dir():
        raise NestwalkError(f"{traces}: is no directory; give the folder that holds the traces")
    scale = CloudScale(quick, seed, paper.quick_divisor if quick else 1, traces)
    inputs = Traces(scale)
    runs = _mmu_runs(paper, scale)
    with naming(paper):
        check(runs)
    replays = _replays(inputs, scale)
    rehearse(paper, _experiment(paper, inputs, runs, {replay.name: STAND_IN for replay in replays}))
    return CloudPlan(paper, scale, _experiment(paper, inputs, runs, {}), inputs, replays)


def _mmu_runs(paper: Paper, scale: Scale) -> list[Run]:
    wanted = {f"{preset}-{mode}" for preset in PROGRAMS.values() for mode in MODES}
    return [run for run in compromis_mmu.experiment(paper, scale).runs if run.name in wanted]


def _replays(inputs: Traces, scale: CloudScale) -> list[Replaying]:
    """All replays: those of the figures, then the experiments."""
    settings = place.Settings(seed=scale.seed, samples=0)
    sources: dict[str, tuple[str, Callable[[], Sequence[Requests]]]] = {
        "azure": ("Azure", lambda: [inputs.azure]),
        "private": ("private clouds", lambda: inputs.private),
    }
    if inputs.bitbrains_path is not None:
        sources = {"bitbrains": ("Bitbrains", lambda: [inputs.bitbrains]), **sources}
    found = [
        Replaying(f"{name}-{version.name}", f"{title}, {version.title}", traces, version, settings)
        for name, (title, traces) in sources.items()
        for version in place.VERSIONS.values()
    ]
    return found + _experiments(inputs, settings, with_bitbrains=inputs.bitbrains_path is not None)


def _experiments(inputs: Traces, settings: place.Settings, *, with_bitbrains: bool) -> list[Replaying]:
    """The replays that change one thing each."""
    base, opt2, dynamic = (place.VERSIONS[name] for name in ("baseline", "opt2", "dynamic"))

    def changed(**more: Any) -> place.Settings:
        return place.Settings(seed=settings.seed, samples=settings.samples, **more)

    def bitbrains(name: str, version: place.Version, chosen: place.Settings, **more: Any) -> Replaying:
        title = f"experiment: Bitbrains, {name}"
        return Replaying(f"exp-bitbrains-{name}", title, lambda: [inputs.bitbrains], version, chosen, **more)

    def azure(name: str, chosen: place.Settings, **more: Any) -> Replaying:
        title = f"experiment: Azure, {name}"
        return Replaying(f"exp-azure-{name}", title, lambda: [inputs.azure_thinned], dynamic, chosen, **more)

    baselines: dict[str, dict[str, Any]] = {
        "pvh": {"chosen": changed(engine={"xen": {"vga_hole": False}})},
        "no-holes": {"chosen": changed(engine={"xen": {"vga_hole": False, "mmio_hole": False}})},
        "lower": {"chosen": changed(engine={"xen": {"split": "lower"}})},
        "small": {"chosen": changed(engine={"xen": {"extents_1g": False}})},
        "half": {"chosen": settings, "utilisation": HALF_UTILISATION},
        "crowded": {"chosen": settings, "utilisation": FULL_UTILISATION},
    }
    first = [bitbrains(name, base, **options) for name, options in baselines.items()]
    first += [
        bitbrains("full", opt2, settings, utilisation=FULL_UTILISATION),
        bitbrains("holes", opt2, settings, hosts="paper-holes"),
    ]
    second = [
        azure("cpu", changed(scheduler={"cpu_allocation_ratio": 1.0})),
        azure("full", settings, utilisation=FULL_UTILISATION),
        azure("holes", settings, hosts="paper-holes"),
    ]
    return [*(first if with_bitbrains else []), *second]


def _experiment(paper: Paper, traces: Traces, runs: Sequence[Run], replays: Mapping[str, Summary]) -> Experiment:
    def measure(results: Results) -> Mapping[str, Value]:
        return _measure(paper, traces, replays, results)

    def notes(results: Results) -> Mapping[str, str]:
        del results
        return _notes(paper, replays)

    titles = {"bitbrains": "Bitbrains", "azure": "Azure", "private": "private clouds"}
    panels = [
        Panel(name, "VMs by number of segments", _drawn(_draw_shares, replays, name))
        for name in titles
        if f"{name}-baseline" in replays
    ]
    panels += [
        Panel(
            name,
            "VMs that a processor with n segments leaves to EPT (a line ends where none is left)",
            _drawn(_draw_curve, replays, name),
        )
        for name in titles
        if f"{name}-baseline" in replays
    ]

    def bars(results: Results) -> Sequence[tuple[str, str, float]]:
        return _bars(_link(replays, results)) if replays else []

    links = [
        Drawing("link", "a program's time in every VM of the trace, above native", "%", bars),
        Drawing("link", "walks and exits over a whole run", "cycles an access", _parts),
    ]
    return Experiment(runs, measure, [*panels, *links], notes)


def _drawn(
    draw: Callable[[Mapping[str, Summary], str, Layout], Picture | None], replays: Mapping[str, Summary], name: str
) -> Callable[[Results, Layout], Picture | None]:
    return lambda _, layout: draw(replays, name, layout)


def _measure(paper: Paper, traces: Traces, replays: Mapping[str, Summary], results: Results) -> dict[str, Value]:
    """Our values by the paper's keys."""
    values: dict[str, Value] = {}
    for key in paper.claims:
        where = replay_of(key)
        if where is not None:
            name, count, any_order = where
            found = replays[name].share(count, any_order=any_order) if name in replays else NO_BITBRAINS
            values[key] = UNAVAILABLE + "no VM was placed" if found is None else found
    whole = replays["azure-dynamic"]
    values["azure-unplaced"] = 100 * whole.vms["unplaced"] / whole.vms["requests"]
    return {**values, **_rates(traces, replays), **_latency(replays), **_link(replays, results)}


def replay_of(key: str) -> tuple[str, str, bool] | None:
    """The replay whose share a claim is, the number of segments, and whether they count in any order."""
    parts = key.split("-")
    count = parts.pop() if parts[-1] in SEGMENT_COLOURS else "1"
    if parts[0] == "exp":
        return "-".join(parts), count, key.endswith(("-1", "-2"))
    if parts[0] not in {"bitbrains", "azure", "private"} or len(parts) != 2 or parts[1] == "unplaced":  # noqa: PLR2004
        return None
    return ("-".join([parts[0], "baseline"]), count, True) if parts[1] == "any" else ("-".join(parts), count, False)


def _rates(traces: Traces, replays: Mapping[str, Summary]) -> dict[str, Value]:
    azure = replays["azure-dynamic"]
    return {
        "rate-native": UNAVAILABLE + "it takes a count of the page allocations of a live server over hours",
        "rate-private": UNAVAILABLE + "snapshots have no times",
        "rate-azure": azure.vms["placed"] / (azure.hosts * DAYS * DAY_HOURS),
        "sizes-azure": float(traces.azure.frame["memory_pages"].n_unique()),
        "sizes-private": UNAVAILABLE + "the snapshots are not public; the set that is made up has the paper's number",
        "sizes-native": UNAVAILABLE + "it takes a trace of the allocations of a live server",
    }


def _latency(replays: Mapping[str, Summary]) -> dict[str, Value]:
    xen, opt2 = replays["azure-baseline"], replays["azure-opt2"]
    none = UNAVAILABLE + "there was nothing to measure"
    found: dict[str, Value] = dict.fromkeys(("latency-mean", "latency-stdev"), none)
    if xen.allocation and opt2.allocation and xen.allocation["mean"] and opt2.allocation["stdev"]:
        found["latency-mean"] = 100 * (1 - opt2.allocation["mean"] / xen.allocation["mean"])
        found["latency-stdev"] = xen.allocation["stdev"] / opt2.allocation["stdev"]
    for name, replay in (("xen", xen), ("opt2", opt2)):
        for key in ("mean", "stdev"):
            found[f"steps-{name}-{key}"] = replay.steps[key] if replay.steps else none
    return found


def _link(replays: Mapping[str, Summary], results: Results) -> dict[str, Value]:
    """What a program's time is above native: in each mode, and on average over the VMs of a replay."""

    def link(preset: str, key: str) -> float | None:
        if key == "even":
            return compromis_mmu.even_accesses(results, preset)
        if key in MODES:
            return compromis_mmu.above_native(results, preset, key)
        version, _, fallback = key.partition("-")
        return mean_above(results, preset, replays[f"azure-{version}"].histogram, fallback or "ept")

    values: dict[str, Value] = {}
    for program, preset in PROGRAMS.items():
        names = [f"{preset}-{mode}" for mode in MODES]
        for key in (*LINKS, "even"):
            found = results.value(names, lambda *_, preset=preset, key=key: link(preset, key))
            if key == "even" and isinstance(found, str):
                found = UNAVAILABLE + "shadow paging is not faster than EPT once memory is filled"
            values[f"link-{program}-{key}"] = found
    return values


def mean_above(results: Results, preset: str, histogram: Mapping[int, int], fallback: str) -> float | None:
    """By how many per cent a program takes longer than natively, on average over VMs, one run of it in each.

    Args:
        results: Of the MMU part.
        preset: The program.
        histogram: VMs by the number of segments that they got; the processor has one segment.
        fallback: What VMs with more segments run under, ``ept`` or ``shadow``.

    Returns:
        None if there are no VMs.
    """
    vms: dict[str, int] = {}
    for segments, count in histogram.items():
        mode = compromis_mmu.mode_of(segments, fallback=fallback)
        vms[mode] = vms.get(mode, 0) + count
    total = sum(vms.values())
    if not total:
        return None
    return sum(count * compromis_mmu.above_native(results, preset, mode) for mode, count in vms.items()) / total


LINKS = {
    "ept": "EPT everywhere",
    "shadow": "shadow everywhere",
    "baseline": "BaseLine, EPT",
    "baseline-shadow": "BaseLine, shadow",
    "dynamic": "Dynamic, EPT",
    "dynamic-shadow": "Dynamic, shadow",
    "ds1": "DS-1 everywhere",
}
"""Series by the end of their claims' keys."""


def _parts(results: Results) -> list[tuple[str, str, float]]:
    """What the time of a whole run is made of that memory virtualisation adds: cycles an access, by mode and part."""
    found = []
    for program, preset in PROGRAMS.items():
        accesses = compromis_mmu.run_accesses(results, preset)
        if accesses is None:
            continue
        for mode in MODES:
            time = compromis_mmu.ProgramTime.of(results[f"{preset}-{mode}"])
            title = compromis_mmu.TITLES.get(mode, mode).removesuffix(" paging")
            found.append((program, f"{title}: walks", time.walks))
            found.append((program, f"{title}: exits", time.exits + time.fill_exits / accesses))
    return found


def _bars(values: Mapping[str, Value]) -> list[tuple[str, str, float]]:
    """Program, series, per cent."""
    found = []
    for program in PROGRAMS:
        for key, title in LINKS.items():
            value = values[f"link-{program}-{key}"]
            if isinstance(value, float):
                found.append((program, title, value))
    return found


def _notes(paper: Paper, replays: Mapping[str, Summary]) -> dict[str, str]:
    """What a row's value stands on: VMs in whole numbers, hosts, and VMs that were left out."""
    found: dict[str, str] = {}
    for key in paper.claims:
        where = replay_of(key)
        summary = replays.get(where[0]) if where else None
        if where is None or summary is None:
            continue
        lost = summary.vms["unplaced"] + summary.vms["refused"]
        count = summary.count(where[1], any_order=where[2])
        text = f"{count:,} of {summary.vms['placed']:,} VMs on {summary.hosts:,} hosts"
        found[key] = f"{text}, {lost:,} VMs not placed." if lost else f"{text}."
    return found


def _draw_shares(replays: Mapping[str, Summary], name: str, layout: Layout) -> Picture | None:
    rows = [
        {
            "title": version.title,
            "count": key,
            "rank": rank,
            "share": (replays[f"{name}-{version.name}"].share(key) or 0.0) / 100,
        }
        for version in place.VERSIONS.values()
        for rank, key in enumerate(SEGMENT_COLOURS)
    ]
    return shares_of(rows, _titles(), layout)


def _draw_curve(replays: Mapping[str, Summary], name: str, layout: Layout) -> Picture | None:
    versions = place.VERSIONS.values()
    return curve_of([(version.title, replays[f"{name}-{version.name}"].modes) for version in versions], layout)


def _titles() -> list[str]:
    return [version.title for version in place.VERSIONS.values()]
