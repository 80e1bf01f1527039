# SPDX-License-Identifier: MIT OR Apache-2.0
"""Single runs and the catalogue."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

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


def save_memory(name: str | Path, kernel: int) -> tuple[dict[str, Any], bytes]:
    """The memory with which a kernel of a scenario begins, as the key ``saved`` of another scenario's kernel reads it.

    Args:
        name: A scenario file, or the name of a bundled scenario.
        kernel: Which of the ``[[kernels]]``, from 0, the host's.

    Returns:
        ``frames``, ``cpus``, ``free_frames``, ``free_blocks`` (by order) and ``bytes``; and the content of the file.

    Raises:
        NestwalkError: When something is wrong with the scenario, or it has no such kernel.
    """
    written = scenario.read(checks.text("scenario", name))
    layer = checks.whole("kernel", kernel, 0, 2)
    about, content = _native.save_memory(written.scenario, str(written.path), str(data.TRACES), layer)
    return json.loads(about), content


def catalog() -> dict[str, list[dict[str, str]]]:
    """What comes with Nestwalk: for each of :data:`KINDS`, names and descriptions."""
    found = data.catalog()
    return {kind: found[kind] for kind in KINDS}
