# SPDX-License-Identifier: MIT OR Apache-2.0
"""``nestwalk capture --live``: simulations that follow a program while it runs. No trace is made."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from nestwalk import comparisons, matrix, output
from nestwalk.capture import session
from nestwalk.errors import NestwalkError
from nestwalk.program import Program
from nestwalk.result import Result

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import RenderableType

THREADS = 8
"""Cores of the simulated machines: how many threads a program will have is not known when they are made."""


def plan(title: str, machine: str, only: Sequence[str] | None) -> comparisons.Plan:
    """The rows of ``compare`` without a co-runner, or those named."""
    known = matrix.load(matrix.STANDARD)
    alone = [cell.name for cell in known.cells if not cell.variant.name]
    followed = Program(title, title, {"trace": title}, {"trace": title})
    chosen = comparisons.choose(known, list(only or alone))
    return comparisons.Plan(chosen, followed, comparisons.place_of(machine), comparisons.DEFAULT_SEED, quick=False)


def compare(
    request: Callable[[Path, session.Following], session.Request],
    plan: comparisons.Plan,
    memory: int,
    tell: Callable[[session.Outcome], None],
    *,
    as_json: bool,
) -> None:
    """Runs the program with every row of ``plan`` behind it, each in ``memory`` bytes, and prints what they measured.

    Raises:
        NestwalkError: When the program cannot be run or followed, or ended too soon.
    """
    begun = time.monotonic()
    jobs = [plan.job(cell) for cell in plan.matrix.cells]
    following = session.Following([(job.scenario, str(job.path)) for job in jobs], memory, THREADS)
    with tempfile.TemporaryDirectory(prefix="nestwalk-capture-") as folder:
        done = session.run(request(Path(folder) / "none", following))
    results = tuple(Result(value) for value in done.report.pop("results"))
    tell(done)
    if all(result.row["walks_per_kiloaccess"] is None for result in results):
        raise NestwalkError(
            f"the program ended after {done.report['accesses']:,} accesses, before the simulated caches and TLBs were "
            "warm, so nothing was measured; let it run longer, or make a trace of it with -o FILE"
        )
    made = comparisons.Comparison(plan, results)

    def page(width: int) -> list[RenderableType]:
        from nestwalk import tables

        return tables.comparison_page(made, time.monotonic() - begun, width)

    output.deliver(made, "json" if as_json else "text", page, out=None, report_in_out=False)
