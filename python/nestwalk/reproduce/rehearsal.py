# SPDX-License-Identifier: MIT OR Apache-2.0
"""A paper's arithmetic, tried out on a stand-in before hours of runs are made.

Every run's result has the same shape. So one tiny run, taken for all of a paper's, shows whether its module asks for
runs and counters that exist, and makes exactly the values that the paper's file names.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

from nestwalk import _native, data
from nestwalk.errors import NestwalkError, unknown
from nestwalk.reproduce.plan import Drawing, Results
from nestwalk.result import Result

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from nestwalk.reproduce.paper import Paper
    from nestwalk.reproduce.plan import Experiment

STAND_IN = """
schema = 1
name = "stand-in"
machine = "broadwell-asap"
kernels = [{}, {}]

[workload.generator]
kind = "gups"
footprint = "32 MiB"
warm_accesses = 0
measured_accesses = 20000
"""
"""A VM that walks: no quotient of its counters is a division by zero."""


@cache
def stand_in() -> Result:
    """The result that is taken for each of a paper's."""
    return Result(json.loads(_native.run(STAND_IN, "stand-in.toml", str(data.TRACES))))


@contextmanager
def naming(paper: Paper) -> Iterator[None]:
    """Turns a name that the module of ``paper`` gets wrong into one line that says which.

    Raises:
        NestwalkError: When something asks for what there is not.
    """
    try:
        yield
    except KeyError as error:
        raise NestwalkError(f"{paper.name}: its module asks for {error}, which there is not") from error
    except NestwalkError as error:
        raise NestwalkError(f"{paper.name}: {error}") from error


def rehearse(paper: Paper, experiment: Experiment) -> None:
    """Makes a paper's values of a stand-in's results.

    Raises:
        NestwalkError: When the paper's module asks for a run or a counter that there is not, or makes other values,
            notes or drawings than the paper's file has.
    """
    results = Results({run.name: stand_in() for run in experiment.runs})
    if len(results.made) < len(experiment.runs):
        raise NestwalkError(f"{paper.name}: two of its runs have one name")
    with naming(paper):
        made, notes = experiment.measure(results), experiment.notes(results)
        for drawing in experiment.drawings:
            _among("figure of a drawing", [drawing.figure], [figure.name for figure in paper.figures])
            if isinstance(drawing, Drawing):
                drawing.bars(results)
        _among("value in the module", made, paper.claims)
        _among("note in the module", notes, paper.claims)
        _among("claim in the file", paper.claims, made)


def _among(kind: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Refuses the first of ``names`` that is not ``known``."""
    there = list(known)
    for name in names:
        if name not in there:
            raise unknown(kind, name, there)
