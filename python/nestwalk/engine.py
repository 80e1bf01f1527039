# SPDX-License-Identifier: MIT OR Apache-2.0
"""Single runs and the catalogue."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from nestwalk import _native, checks, data, scenario
from nestwalk.result import Result

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

KINDS = ("machines", "managers", "workloads", "scenarios", "costs")
"""What the catalogue lists."""


def run(
    name: str | Path,
    *,
    quick: bool = False,
    seed: int | None = None,
    progress: Callable[[int, int | None], bool] | None = None,
) -> Result:
    """Runs a scenario.

    Args:
        name: A scenario file, or the name of a bundled scenario (``nestwalk list scenarios``).
        quick: Measure less.
        seed: Instead of the scenario's own.
        progress: Told of accesses done and to be done (if known); ends the run by returning False.

    Raises:
        NestwalkError: When something is wrong with the input; one line says what, where, and what to do.
    """
    written = scenario.read(checks.text("scenario", name))
    _native.check(written.scenario, str(written.path), str(data.TRACES))  # its messages name the lines of the file
    job = scenario.adapt(written, quick=quick, seed=seed)
    return Result(json.loads(_native.run(job.scenario, str(job.path), str(data.TRACES), progress)))


def catalog() -> dict[str, list[dict[str, str]]]:
    """What comes with Nestwalk: for each of :data:`KINDS`, names and descriptions."""
    found: dict[str, list[dict[str, str]]] = json.loads(_native.catalog(str(data.TRACES)))
    return {kind: found[kind] for kind in KINDS}
