# SPDX-License-Identifier: MIT OR Apache-2.0
"""Single runs and the catalogue."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nestwalk import _native, checks, data, scenario
from nestwalk.errors import CPUS_MAX, NODE_MAX, SEED_MAX
from nestwalk.result import Result

if TYPE_CHECKING:
    from collections.abc import Callable

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


PROC = Path("/proc")


def save_real_memory(
    proc: str | Path = PROC, *, node: int | None = None, cpus: int | None = None, seed: int = 1
) -> tuple[dict[str, Any], bytes]:
    """The memory of a real machine's largest zone as it is now, as the key ``saved`` of a kernel reads it.

    Of each frame it is known whether it is free, a user's or the kernel's; not in which order the kernel's free
    lists are. To be read by root, outside of containers.

    Args:
        proc: This machine's ``/proc``, or a folder with copies of another one's ``zoneinfo``, ``kpageflags`` and, if
            it is to be held against that, ``pagetypeinfo``.
        node: A NUMA node; if left out, the zone may be of any.
        cpus: Processors of the kernel that is to begin with it; if left out, as many as this machine has.
        seed: Chooses the order of the free lists.

    Returns:
        What :func:`save_memory` returns, and besides: ``node``, ``zone``, ``start_pfn``, ``spanned``, ``present``
        (frames), ``pageblocks`` by migrate type, as told from what lies in them, and ``pageblocks_counted``, as the
        kernel counts them.

    Raises:
        NestwalkError: Without the privilege, when a file is missing or ends early, or there is no such node.
    """
    processors = checks.whole("cpus", os.cpu_count() or 1 if cpus is None else cpus, 1, CPUS_MAX)
    order = checks.whole("seed", seed, 0, SEED_MAX)
    where = None if node is None else checks.whole("node", node, 0, NODE_MAX)
    about, content = _native.save_real_memory(str(checks.path("proc", proc)), where, processors, order)
    return json.loads(about), content


def catalog() -> dict[str, list[dict[str, str]]]:
    """What comes with Nestwalk: for each of :data:`KINDS`, names and descriptions."""
    found = data.catalog()
    return {kind: found[kind] for kind in KINDS}
