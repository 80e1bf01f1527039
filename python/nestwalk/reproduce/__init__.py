# SPDX-License-Identifier: MIT OR Apache-2.0
"""The papers, side by side: every figure that a paper gives beside what the simulator makes of it.

A paper is a TOML file (what it says, with units) and a module of the same name (the runs, and how a value follows from
their results). One model and one set of constants serve all papers; only the machine differs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING

from nestwalk import checks, pool, progress
from nestwalk.conduct import Means
from nestwalk.errors import SEED_MAX, NestwalkError, unknown
from nestwalk.reproduce import quick as quick_runs
from nestwalk.reproduce.paper import Paper, load
from nestwalk.reproduce.plan import DEFAULT_SEED, Experiment, Scale, check, execute
from nestwalk.reproduce.rehearsal import naming, rehearse
from nestwalk.reproduce.side_by_side import Reproduction

if TYPE_CHECKING:
    from pathlib import Path

PAPERS = ("ptemagnet", "hugegpt", "asap", "compromis-mmu", "compromis", "quicksilver")
"""Names of the papers."""

__all__ = ["PAPERS", "Plan", "Reproduction", "plan", "reproduce"]


@dataclass(frozen=True)
class Plan:
    """What will be done for a paper."""

    paper: Paper
    scale: Scale
    experiment: Experiment

    @property
    def titles(self) -> list[str]:
        """Of everything that will be run, for progress."""
        return [run.title for run in self.experiment.runs]

    def execute(self, *, means: Means | None = None, watcher: pool.Watcher | None = None) -> Reproduction:
        """Makes the runs and puts the paper's figures beside ours; see :func:`reproduce`."""
        results = execute(self.experiment.runs, self.means(means), watcher or pool.Silent())
        return Reproduction(self.paper, self.scale, self.experiment, results)

    def means(self, given: Means | None) -> Means:
        """``given``, or how runs are made if nothing is said: full ones, which need much memory, one at a time."""
        chosen = given or Means()
        chosen.check()
        return replace(chosen, jobs=1) if chosen.jobs is None and not self.scale.quick else chosen


def plan(name: str, *, quick: bool = False, seed: int = DEFAULT_SEED, traces: Path | None = None) -> Plan:
    """What :func:`reproduce` will do.

    Raises:
        NestwalkError: When there is no such paper.
    """
    if checks.text("paper", name) not in PAPERS:
        raise unknown("paper", name, PAPERS)
    checks.whole("seed", seed, 0, SEED_MAX)
    return prepare(load(name), quick=quick, seed=seed, traces=traces)


def prepare(paper: Paper, *, quick: bool = False, seed: int = DEFAULT_SEED, traces: Path | None = None) -> Plan:
    """What will be done for ``paper``, refused at once if anything in it has an unknown name.

    Raises:
        NestwalkError: When a run names something that the engine does not know, or the paper's module does not make
            exactly the values that the paper's file asks for.
    """
    if quick:
        quick_runs.check(paper)
    if paper.name == "compromis":
        from nestwalk.reproduce import compromis

        return compromis.plan(paper, quick=quick, seed=seed, traces=traces)
    if traces is not None:
        raise NestwalkError(f"--traces is for the paper compromis; {paper.name} replays no VMs")
    module = import_module(f"nestwalk.reproduce.{paper.name.replace('-', '_')}")
    scale = Scale(quick=quick, seed=seed, divide_footprint=paper.quick_divisor if quick else 1)
    with naming(paper):
        experiment: Experiment = module.experiment(paper, scale)
        check(experiment.runs)
    rehearse(paper, experiment)
    return Plan(paper, scale, experiment)


def reproduce(
    name: str,
    *,
    quick: bool = False,
    seed: int = DEFAULT_SEED,
    jobs: int | None = None,
    dask: str | None = None,
    results: str | None = None,
    traces: Path | None = None,
) -> Reproduction:
    """Makes the runs of a paper and puts its figures beside ours.

    Args:
        name: One of :data:`PAPERS`.
        quick: Fewer accesses, and of some papers smaller footprints (the result says so). Values that such a run was
            measured not to tell are unavailable.
        seed: Everything random follows from it.
        jobs: Runs at a time. If None: one, as the largest take several GiB; with ``quick`` one for each processor.
        dask: A Dask cluster that makes the runs (docs/sweeps.md); this machine if None.
        results: Where results are kept, as of :func:`nestwalk.sweep`.
        traces: Of the paper compromis: a folder with traces of VMs that cannot be shipped.

    Raises:
        NestwalkError: When there is no such paper, or a run fails.
    """
    made = plan(name, quick=quick, seed=seed, traces=traces)
    with progress.of_notebook(made.titles) as watcher:
        return made.execute(means=Means(jobs, results, dask), watcher=watcher)
