# SPDX-License-Identifier: MIT OR Apache-2.0
"""The runs that a paper's figures need, and making them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nestwalk import _native, data, pool, same_place, scenario
from nestwalk.errors import unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from nestwalk.charts import Layout, Picture
    from nestwalk.conduct import Means
    from nestwalk.result import Result

DEFAULT_SEED = 1
UNAVAILABLE = "unavailable, because "

Value = float | str
"""What a figure comes out as: a number, or a sentence that begins with :data:`UNAVAILABLE`."""


@dataclass(frozen=True)
class Scale:
    """How much is simulated."""

    quick: bool
    seed: int
    divide_footprint: int

    @property
    def data_accesses(self) -> int:
        """Accesses to data structures that are measured, of all threads together."""
        return 500_000 if self.quick else 10_000_000

    @property
    def sentence(self) -> str:
        """It in words."""
        size = f"footprints divided by {self.divide_footprint}" if self.divide_footprint > 1 else "full footprints"
        return (
            f"{size}; {self.data_accesses:,} accesses to data structures measured, and those to locals between them, "
            "of each program, after a warm-up until nothing drifts"
        )


@dataclass(frozen=True)
class Run:
    """A run to be made."""

    name: str
    title: str
    table: Mapping[str, Any]
    """Its scenario."""

    def job(self, warm_accesses_min: int = 0) -> pool.Job:
        """For the pool.

        With ``warm_accesses_min``, a warm-up that has no length of its own lasts at least so many accesses.
        """
        text = scenario.write(same_place.warming(self.table, warm_accesses_min))
        return pool.Job(self.name, text, Path(f"{self.name}.toml"))

    @property
    def program(self) -> str:
        """What it measures, of which size: runs of the same are compared, and so are measured at one place of it."""
        return json.dumps(self.table["workload"], sort_keys=True)


@dataclass(frozen=True)
class Drawing:
    """A picture of ours that shows more than the paper's values: a bar for each program and series."""

    figure: str
    """The figure beside which it stands."""
    title: str
    unit: str
    bars: Callable[[Results], Sequence[tuple[str, str, float]]]
    """Program, series, value."""


@dataclass(frozen=True)
class Panel:
    """A picture of ours that is not grouped columns."""

    figure: str
    """The figure beside which it stands."""
    title: str
    draw: Callable[[Results, Layout], Picture | None]
    """None where there is nothing to draw."""


@dataclass(frozen=True)
class Experiment:
    """A paper's runs, and what follows from their results."""

    runs: Sequence[Run]
    measure: Callable[[Results], Mapping[str, Value]]
    """Our values, by the keys of the paper's claims."""
    drawings: Sequence[Drawing | Panel] = field(default=())
    notes: Callable[[Results], Mapping[str, str]] = field(default=lambda _: {})
    """Where our value parts from the paper's, why; by key."""


class Results:
    """Results by the name of their run."""

    def __init__(self, made: Mapping[str, Result]) -> None:
        """Holds them."""
        self.made = made

    def __getitem__(self, name: str) -> Result:
        """The result of a run.

        Raises:
            NestwalkError: When there is no run of that name, which is a mistake in the paper's module.
        """
        if name not in self.made:
            raise unknown("run", name, self.made)
        return self.made[name]

    def value(self, names: Sequence[str], compute: Callable[..., float | None]) -> Value:
        """What ``compute`` makes of the runs called ``names``, or why there is nothing."""
        found = compute(*(self[name] for name in names))
        return UNAVAILABLE + "there was nothing to count" if found is None else found


def program(
    preset: str,
    scale: Scale,
    *,
    machine: str,
    name: str,
    kernels: Sequence[Mapping[str, Any]],
    changes: Mapping[str, Any] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """The scenario of a preset's run, with ``changes`` to the preset's own keys and ``more`` of the scenario's."""
    chosen: dict[str, Any] = {"name": preset, "data_accesses": [scale.data_accesses], **(changes or {})}
    if scale.divide_footprint > 1:
        chosen["divide_footprint"] = scale.divide_footprint
    if scale.quick:
        more["sampling"] = {"warm_accesses_max": scenario.QUICK_WARM_ACCESSES, **more.get("sampling", {})}
    return {
        "schema": 1,
        "name": name,
        "machine": machine,
        "seed": scale.seed,
        "workload": {"preset": chosen},
        "kernels": [dict(kernel) for kernel in kernels],
        **more,
    }


def check(runs: Sequence[Run]) -> None:
    """Lets the engine look at each scenario before the first run.

    Raises:
        NestwalkError: When the engine does not know what a scenario names.
    """
    for run in runs:
        job = run.job()
        _native.check(job.scenario, str(job.path), str(data.TRACES))


def execute(runs: Sequence[Run], means: Means, watcher: pool.Watcher) -> Results:
    """Makes the runs that are not kept from earlier, those of a program at one place of it."""

    def job(number: int, warm_accesses_min: int) -> pool.Job:
        return runs[number].job(warm_accesses_min)

    made = same_place.results([run.program for run in runs], job, means, watcher)
    return Results({run.name: result for run, result in zip(runs, made, strict=True)})


def mean(values: Sequence[float]) -> float:
    """Their average."""
    return sum(values) / len(values)


def change_percent(ours: float | None, base: float | None) -> float | None:
    """By how many per cent ``ours`` is above ``base``."""
    return 100 * (ours / base - 1) if ours is not None and base else None


def extreme(values: Mapping[str, float], *, largest: bool) -> tuple[str, float]:
    """The name and value of the largest, or the smallest; the first of several."""
    name = (max if largest else min)(values, key=lambda key: values[key])
    return name, values[name]
