# SPDX-License-Identifier: MIT OR Apache-2.0
"""The papers, side by side: every figure that a paper gives beside what the simulator makes of it.

A paper is a TOML file (what it says, with units) and a module of the same name (the runs, and how a value follows from
their results). One model and one set of constants serve all papers; only the machine differs.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from nestwalk import pool
from nestwalk.errors import NestwalkError, unknown
from nestwalk.reproduce.paper import Paper, load
from nestwalk.reproduce.plan import DEFAULT_SEED, Experiment, Run, Scale, execute, known
from nestwalk.reproduce.side_by_side import Reproduction

if TYPE_CHECKING:
    from pathlib import Path

PAPERS = ("ptemagnet", "hugegpt", "asap", "compromis-mmu", "compromis")
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

    @property
    def titles(self) -> list[str]:
        """Of everything that will be run, for progress."""
        return [run.title for run in self.able]

    def execute(self, *, jobs: int | None = None, watcher: pool.Watcher | None = None) -> Reproduction:
        """Makes the runs and puts the paper's figures beside ours; see :func:`reproduce`."""
        processes = jobs if jobs is not None else (pool.processors() if self.scale.quick else 1)
        results = execute(self.able, self.refused, processes, watcher or pool.Silent())
        return Reproduction(self.paper, self.scale, self.experiment, results)


def plan(name: str, *, quick: bool = False, seed: int = DEFAULT_SEED, traces: Path | None = None) -> Plan:
    """What :func:`reproduce` will do.

    Raises:
        NestwalkError: When there is no such paper.
    """
    if name not in PAPERS:
        raise unknown("paper", name, PAPERS)
    paper = load(name)
    if name == "compromis":
        from nestwalk.reproduce import compromis

        return compromis.plan(paper, quick=quick, seed=seed, traces=traces)
    if traces is not None:
        raise NestwalkError(f"--traces is for the paper compromis; {name} replays no VMs")
    module = import_module(f"nestwalk.reproduce.{name.replace('-', '_')}")
    scale = Scale(quick=quick, seed=seed, divide_footprint=paper.quick_divisor if quick else 1)
    experiment: Experiment = module.experiment(paper, scale)
    able, refused = known(experiment.runs)
    return Plan(paper, scale, experiment, able, refused)


def reproduce(
    name: str,
    *,
    quick: bool = False,
    seed: int = DEFAULT_SEED,
    jobs: int | None = None,
    traces: Path | None = None,
) -> Reproduction:
    """Makes the runs of a paper and puts its figures beside ours.

    Args:
        name: One of :data:`PAPERS`.
        quick: Footprints divided (by how much the result says), fewer accesses: minutes instead of an hour.
        seed: Everything random follows from it.
        jobs: Runs at a time. If None: one, as the largest take several GiB; with ``quick`` one for each processor.
        traces: Of the paper compromis: a folder with traces of VMs that cannot be shipped.

    Raises:
        NestwalkError: When there is no such paper, or a run fails.
    """
    return plan(name, quick=quick, seed=seed, traces=traces).execute(jobs=jobs)
