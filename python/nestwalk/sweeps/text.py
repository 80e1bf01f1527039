# SPDX-License-Identifier: MIT OR Apache-2.0
"""What ``nestwalk sweep`` and ``nestwalk results`` print."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from rich.text import Text

from nestwalk import tables
from nestwalk.sweeps.spec import AS_WRITTEN, FIXED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import RenderableType
    from rich.table import Table

    from nestwalk.sweeps.sweep import Plan, Sweep

VALUES_SHOWN = 6
"""Of an axis with more values, the ends are shown."""
ROWS_SHOWN = 60
"""Of more rows, the first are printed."""
COLUMNS = (
    ("walks\nper 1000\naccesses", "walks_per_kiloaccess", 2),
    ("walk\nlatency,\ncycles", "walk_latency_cycles", 1),
    ("walk\ncycles/\naccess", "walk_cycles_per_access", 2),
    ("cycles/\naccess", "cycles_per_access", 2),
)
MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86_400
GIB = 1 << 30


def plan_page(plan: Plan) -> list[RenderableType]:
    """What a sweep would do."""
    about = plan.to_json()
    axes = tables.new(("axis", "values", ""))
    for name in plan.spec.columns:
        values = about["axes"][name]
        if name not in FIXED or values != [AS_WRITTEN]:
            axes.add_row(name, str(len(values)), _listed(values))
    facts = tables.new(("", ""), header=False)
    skipped = f" of a grid of {about['grid']:,}" if about["grid"] != about["runs"] else ""
    facts.add_row("runs", f"{about['runs']:,}{skipped}")
    facts.add_row("the same as another", f"{about['duplicates']:,}")
    facts.add_row("kept from earlier", f"{about['kept']:,}")
    facts.add_row("to be made", f"{about['to_make']:,}")
    facts.add_row("memories to populate", f"{about['populations']:,}")
    estimate = about["estimate"]
    if isinstance(estimate["cpu_seconds"], str):
        facts.add_row("time", estimate["cpu_seconds"])
        if estimate["known_runs"]:
            known = (
                f"{estimate['known_runs']:,} of them: {duration(estimate['cpu_seconds_of_known_runs'])} of a processor"
            )
            facts.add_row("time, as far as known", known)
    else:
        facts.add_row("time of one processor", duration(estimate["cpu_seconds"]))
        facts.add_row(f"time, {plan.slots()} runs at a time", duration(estimate["seconds"]))
    memory = estimate["memory_bytes_a_run"]
    facts.add_row("memory of the largest run", memory if isinstance(memory, str) else f"{memory / GIB:.2f} GiB")
    facts.add_row("results", about["results"])
    return [Text(plan.spec.title, style="bold"), Text(), axes, Text(), facts, Text(), Text("Nothing was run.")]


def sweep_page(done: Sweep, _width: int) -> list[RenderableType]:
    """What a sweep came to."""
    tally = done.tally
    head = f"{len(done.rows):,} runs: {tally.made:,} made, {tally.reused:,} found, {tally.failed:,} failed"
    page: list[RenderableType] = [Text(done.plan.spec.title, style="bold"), Text(), rows(done), Text(), Text(head)]
    if len(done.rows) > ROWS_SHOWN:
        page.append(Text(f"The first {ROWS_SHOWN} rows; --csv, --json and --out have all of them."))
    if done.plan.quick:
        page.append(Text(tables.QUICK))
    return [*page, Text(tables.INTERVALS)]


def rows(done: Sweep) -> Table:
    """The rows, without axes that have one value."""
    several = [name for name in done.plan.spec.columns if len(done.plan.values(name)) > 1] or [FIXED[0]]
    table = tables.new(("run", *several, *(heading for heading, _, _ in COLUMNS)))
    for row in done.rows[:ROWS_SHOWN]:
        values = ["" if row.get(name) is None else str(row[name]) for name in several]
        if "error" in row:
            table.add_row(str(row["run"]), *values, "failed", *[tables.NOTHING] * (len(COLUMNS) - 1))
        else:
            table.add_row(str(row["run"]), *values, *tables.cells(row, COLUMNS))
    return table


def results_page(found: Sequence[Mapping[str, Any]]) -> list[RenderableType]:
    """What is kept."""
    table = tables.new(("key", "program", "machine", "kernels", "model", "seconds", "made"))
    for one in found:
        made = time.strftime("%Y-%m-%d %H:%M", time.gmtime(one["made"]))
        table.add_row(
            one["key"][:16],
            str(one["program"]),
            str(one["machine"]),
            str(one["kernels"]),
            str(one["model"]),
            f"{one['seconds']:.1f}",
            made,
        )
    return [table, Text(), Text(f"{len(found)} results. Times are UTC.")]


def duration(seconds: float) -> str:
    """A time for people."""
    if seconds < MINUTE_S:
        return f"{seconds:.1f} s"
    if seconds < HOUR_S:
        return f"{seconds / MINUTE_S:.1f} min"
    return f"{seconds / HOUR_S:.1f} h" if seconds < DAY_S else f"{seconds / DAY_S:.1f} days"


def _listed(values: Sequence[Any]) -> str:
    if len(values) <= VALUES_SHOWN:
        return ", ".join(map(str, values))
    return f"{', '.join(map(str, values[: VALUES_SHOWN - 2]))} ... {values[-1]}"
