# SPDX-License-Identifier: MIT OR Apache-2.0
"""The page on a survey: heat maps of walk latency and time, who must change what, what is left out, all values."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import polars as pl

from nestwalk import charts, comparisons, tables, techniques
from nestwalk.report import pages, pictures, words

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nestwalk.surveys import Survey


def render(done: Survey) -> str:
    """The page on a survey."""
    first, rows = done.plan.plans[0], done.rows
    chosen = done.plan.matrix
    baseline = next(cell.configuration.title for cell in chosen.cells if cell.configuration.name == chosen.baseline)
    programs = [word for plan in done.plan.plans for word in ("--program", plan.program.name)]
    return pages.fill(
        "report/survey.html",
        matrix=chosen,
        baseline=baseline,
        plan=first,
        version=done.results[0].version,
        programs=done.to_json()["programs"],
        figures=[
            {"drawn": _heat(_fields(rows, chosen.baseline, value, decimals)), **text}
            for value, decimals, text in _FIGURES
            if any(row[value] is not None for row in rows)
            and not (value == _KERNEL_WORK and any(row[_WHOLE_RUN] is not None for row in rows))
        ],
        headings=[tables.one_line(heading) for heading, _, _ in tables.columns(rows)],
        verdicts=[(one.plan.program.name, one.verdict) for one in done.comparisons],
        sections=_sections(rows),
        entries=_entries(done),
        left_out=chosen.left_out,
        command=shlex.join(["nestwalk", "matrix", *programs, *first.options]),
        machine=words.machine(done.results[0]),
        caveats=words.model_caveats(done.results),
    )


_WHOLE_RUN, _KERNEL_WORK = "whole_run_against_baseline", "whole_run_kernel_cycles"
_FIGURES: tuple[tuple[str, int, dict[str, str]], ...] = (
    (
        "against_baseline",
        2,
        {
            "name": "time",
            "title": "Estimated time against the baseline",
            "text": "Walks, and the program's own work, its data, and the kernels' work (faults, zeroing, exits).",
        },
    ),
    (
        _WHOLE_RUN,
        2,
        {
            "name": "whole-run",
            "title": "The same over the whole run",
            "text": "With first touches, page faults, zeroing and VM exits from the program's beginning on: what looks "
            "free above may have been paid for here.",
        },
    ),
    (
        _KERNEL_WORK,
        2,
        {
            "name": "kernel-work",
            "title": "Kernel work over the whole run",
            "text": "First touches, page faults, zeroing and VM exits from the program's beginning on, against the "
            "baseline's. How long these programs run is not known, and so not what share of the time that is: what "
            "looks free above may have been paid for here.",
        },
    ),
    (
        "walk_latency_cycles",
        0,
        {
            "name": "latency",
            "title": "Average walk latency, cycles",
            "text": "The number is cycles a walk, the colour the same against the baseline: blue is shorter. How many "
            "walks there are is not in it: huge pages and clustered entries leave those that are long.",
        },
    ),
    (
        "walk_cycles_per_access",
        2,
        {
            "name": "walks",
            "title": "Walk cycles an access",
            "text": "How many walks there are times how long they take, the colour against the baseline.",
        },
    ),
)
"""A key of the rows, its decimals, and what stands above the picture."""


def _heat(fields: pl.DataFrame) -> list[pictures.Drawn]:
    """The heat map as the page shows it where there is room, and on a phone."""
    return pictures.layouts(lambda layout: charts.heat(fields, layout))


def _fields(rows: Sequence[Mapping[str, Any]], baseline: str, value: str, decimals: int) -> pl.DataFrame:
    """What the heat map of ``value`` shows."""
    base = {
        (row["program"], row["variant"]): row[value] for row in rows if row["configuration"].split("+")[0] == baseline
    }
    fields = []
    for row in rows:
        stock = base.get((row["program"], row["variant"]))
        if row[value] is not None and stock:
            shown = row[value] / stock if value == _KERNEL_WORK else row[value]
            label = f"{shown:.{decimals}f}"
            fields.append(
                {key: row[key] for key in ("title", "program", "variant")}
                | {"label": label, "against": row[value] / stock}
            )
    return pl.DataFrame(fields)


def _sections(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The table, a section for each program and variant."""
    sections: list[dict[str, Any]] = []
    wanted = tables.columns(rows)
    for row in rows:
        head = ", ".join(text for text in (row["program"], row["variant"]) if text)
        if not sections or sections[-1]["head"] != head:
            sections.append({"head": head, "rows": []})
        values = zip(tables.cells(row, wanted), [row.get(key) for _, key, _ in wanted], strict=True)
        sections[-1]["rows"].append({"title": row["title"], "values": list(values)})
    return sections


def _entries(done: Survey) -> list[dict[str, Any]]:
    """Each configuration and limit once: what it is, who must change what, and how to get it."""
    matrix = done.plan.matrix
    configurations = {cell.configuration.name: cell.configuration for cell in matrix.cells}.values()
    known = [
        {
            "title": entry.title,
            "description": entry.description,
            "changes": ", ".join(entry.changes or ()) or "nothing",
            "how": comparisons.how_to_get(entry) or tables.NOTHING,
            "sources": [techniques.find(name) for name in entry.techniques or ()],
        }
        for entry in configurations
    ]
    limits: list[dict[str, Any]] = [
        {
            "title": limit.title,
            "description": limit.description,
            "changes": tables.NOTHING,
            "how": comparisons.how_to_get(limit),
            "sources": [],
        }
        for limit in matrix.limits
    ]
    return [*known, *limits]
