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


def render(done: Comparison) -> str:
    """The report on a comparison."""
    return pages.fill(
        "report/template.html",
        plan=done.plan,
        version=done.results[0].version,
        command=_command(done),
        findings=words.findings(done),
        caveats=words.caveats(done),
        headings=[heading.replace("\n", " ") for heading, _, _ in tables.COLUMNS],
        sections=_sections(done),
        figures=_figures(done),
        percentiles=PERCENTILES,
        machine=words.machine(done.results[0]),
        scenarios=[(cell.title, cell.configuration.description) for cell in done.plan.matrix.cells],
    )


def _sections(done: Comparison) -> list[dict[str, Any]]:
    """The rows of the table by variant, each with its values and latency percentiles as text."""
    sections: list[dict[str, Any]] = []
    for cell, row, result in zip(done.plan.matrix.cells, done.rows, done.results, strict=True):
        if not sections or sections[-1]["variant"] != cell.variant.title:
            sections.append({"variant": cell.variant.title, "rows": []})
        found = [result.latency_percentile(percent) for percent in PERCENTILES]
        percentiles = [tables.NOTHING if cycles is None else str(cycles) for cycles in found]
        sections[-1]["rows"].append(
            {
                "title": cell.configuration.title,
                "description": cell.configuration.description,
                "values": tables.cells(row),
                "percentiles": percentiles,
            }
        )
    return sections


def _figures(done: Comparison) -> list[dict[str, Any]]:
    """Pictures that there is something to show in, with titles and what to see in them."""
    labelled = done.labelled
    makers = {
        "latency": charts.latency,
        "time": charts.time,
        "references": charts.references,
        "distribution": charts.latency_distribution,
    }
    if any(result.host_pt_fragmentation and result.host_pt_fragmentation["groups"] for result in done.results):
        makers["fragmentation"] = charts.fragmentation
    if any(result.reserved["maximum_frames"] for result in done.results):
        makers["reserved"] = charts.reserved
    return [
        {"name": name, **words.FIGURES[name], "svg": pictures.inline(maker(labelled))} for name, maker in makers.items()
    ]


def _command(done: Comparison) -> str:
    """The command that makes this report again."""
    plan = done.plan
    words_ = ["nestwalk", "compare", "--trace", plan.trace, "--machine", plan.machine, "--seed", str(plan.seed)]
    return shlex.join([*words_, "--quick"] if plan.quick else words_)
