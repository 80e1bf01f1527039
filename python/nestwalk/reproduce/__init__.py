# SPDX-License-Identifier: MIT OR Apache-2.0
"""The papers, side by side: every figure that a paper gives beside what the simulator makes of it.

A paper is a TOML file (what it says, with units) and a module of the same name (the runs, and how a value follows from
their results). One model and one set of constants serve all papers; only the machine differs.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module

from nestwalk import checks, pool, progress, scenario
from nestwalk.errors import unknown
from nestwalk.reproduce.paper import Paper, load
from nestwalk.reproduce.plan import DEFAULT_SEED, Experiment, Run, Scale, execute, known
from nestwalk.reproduce.side_by_side import Reproduction

PAPERS = ("ptemagnet", "hugegpt", "asap", "compromis-mmu")
"""Names of the papers."""

__all__ = ["PAPERS", "Plan", "Reproduction", "plan", "reproduce"]


@dataclass(frozen=True)
class Plan:
    """What will be done for a paper."""

    paper: Paper
    scale: Scale
    experiment: Experiment
    able: list[Run]
    """Its runs, as far as this version knows how to make them."""
    refused: dict[str, str]
    """Of the others, by name, why not."""

    def execute(self, *, jobs: int | None = None, watcher: pool.Watcher | None = None) -> Reproduction:
        """Makes the runs and puts the paper's figures beside ours; see :func:`reproduce`."""
        processes = jobs if jobs is not None else (pool.processors() if self.scale.quick else 1)
        results = execute(self.able, self.refused, processes, watcher or pool.Silent())
        return Reproduction(self.paper, self.scale, self.experiment, results)


def plan(name: str, *, quick: bool = False, seed: int = DEFAULT_SEED) -> Plan:
    """What :func:`reproduce` will do.

    Raises:
        NestwalkError: When there is no such paper.
    """
    if checks.text("paper", name) not in PAPERS:
        raise unknown("paper", name, PAPERS)
    checks.whole("seed", seed, 0, scenario.SEED_MAX)
    paper = load(name)
    module = import_module(f"nestwalk.reproduce.{name.replace('-', '_')}")
    scale = Scale(quick=quick, seed=seed, divide_footprint=paper.quick_divisor if quick else 1)
    experiment: Experiment = module.experiment(paper, scale)
    able, refused = known(experiment.runs)
    return Plan(paper, scale, experiment, able, refused)


def reproduce(name: str, *, quick: bool = False, seed: int = DEFAULT_SEED, jobs: int | None = None) -> Reproduction:
    """Makes the runs of a paper and puts its figures beside ours.

    Args:
        name: One of :data:`PAPERS`.
        quick: Footprints divided (by how much the result says), fewer accesses: minutes instead of an hour.
        seed: Everything random follows from it.
        jobs: Runs at a time. If None: one, as the largest take several GiB; with ``quick`` one for each processor.

    Raises:
        NestwalkError: When there is no such paper, or a run fails.
    """
    made = plan(name, quick=quick, seed=seed)
    with progress.of_notebook([run.title for run in made.able]) as watcher:
        return made.execute(jobs=jobs, watcher=watcher)
