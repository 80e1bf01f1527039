# SPDX-License-Identifier: MIT OR Apache-2.0
"""The report: one HTML file with its pictures inside, which needs no other file, no script and no network."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from nestwalk import charts, tables
from nestwalk.report import pages, pictures, words

if TYPE_CHECKING:
    from nestwalk.comparisons import Comparison

PERCENTILES = (50, 90, 99)
CONFIGURATIONS_DRAWN_MAX = 16
"""Of more configurations than this, pictures with a panel or a colour for each would show nothing."""


def render(done: Comparison) -> str:
    """The report on a comparison."""
    return pages.fill(
        "report/template.html",
        plan=done.plan,
        version=done.results[0].version,
        command=shlex.join(["nestwalk", "compare", "--trace", done.plan.program.title, *done.plan.options]),
        findings=words.findings(done),
        caveats=words.caveats(done),
        headings=[heading.replace("\n", " ") for heading, _, _ in tables.COLUMNS],
        sections=_sections(done),
        changes=any(row["changes"] is not None for row in done.rows),
        left_out=done.plan.matrix.left_out,
        figures=_figures(done),
        percentiles=PERCENTILES,
        machine=words.machine(done.results[0]),
        scenarios=[(cell.title, cell.configuration.description) for cell in done.plan.matrix.cells],
    )


def _sections(done: Comparison) -> list[dict[str, Any]]:
    """The rows of the table by variant, each with its values and (but for limits) latency percentiles as text."""
    results = {cell.name: result for cell, result in zip(done.plan.matrix.cells, done.results, strict=True)}
    descriptions = {cell.configuration.title: cell.configuration.description for cell in done.plan.matrix.cells}
    descriptions |= {limit.title: limit.description for limit in done.plan.matrix.limits}
    sections: list[dict[str, Any]] = []
    for row in done.rows:
        if not sections or sections[-1]["variant"] != row["variant"]:
            sections.append({"variant": row["variant"], "rows": []})
        result = results.get(row["configuration"])
        found = [result.latency_percentile(percent) for percent in PERCENTILES] if result else []
        sections[-1]["rows"].append(
            {
                "title": row["title"],
                "description": descriptions[row["title"]],
                "values": tables.cells(row),
                "changes": tables.changes(row),
                "percentiles": [tables.NOTHING if cycles is None else str(cycles) for cycles in found],
            }
        )
    return sections


def _figures(done: Comparison) -> list[dict[str, Any]]:
    """Pictures that there is something to show in, with titles and what to see in them."""
    labelled = done.labelled
    makers = {"latency": charts.latency, "time": charts.time}
    if len({title for title, _, _ in labelled}) <= CONFIGURATIONS_DRAWN_MAX:
        makers |= {"references": charts.references, "distribution": charts.latency_distribution}
        if any(result.host_pt_fragmentation and result.host_pt_fragmentation["groups"] for result in done.results):
            makers["fragmentation"] = charts.fragmentation
        if any(result.reserved["maximum_frames"] for result in done.results):
            makers["reserved"] = charts.reserved
    return [
        {"name": name, **words.FIGURES[name], "svg": pictures.inline(maker(labelled))} for name, maker in makers.items()
    ]
