# SPDX-License-Identifier: MIT OR Apache-2.0
"""The report: one HTML file with its pictures inside, which needs no other file and no network.

Its one script sorts the table; without it the page says the same.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from nestwalk import advice, answers, charts, sections, tables
from nestwalk.report import pages, pictures, words
from nestwalk.verdict import NEEDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from nestwalk.charts import Layout, Picture
    from nestwalk.comparisons import Comparison
    from nestwalk.frames import Labelled

PERCENTILES = (50, 90, 99)
ROWS_DRAWN_MAX = 5
"""Of more rows than this, pictures with a panel or a line for each would show nothing."""


def render(done: Comparison) -> str:
    """The report on a comparison."""
    wanted = tables.columns(done.rows)
    return pages.fill(
        "report/template.html",
        plan=done.plan,
        version=done.results[0].version,
        command=shlex.join(["nestwalk", "compare", "--trace", done.plan.program.title, *done.plan.options]),
        verdict=done.verdict,
        advice=done.verdict.groups[0].advice if done.verdict.groups else [],
        states=advice.STATES,
        caveats=words.caveats(done),
        headings=[tables.one_line(heading) for heading, _, _ in wanted],
        tables=_tables(done, wanted),
        whole_headings=[tables.one_line(heading) for heading, _, _ in answers.WHOLE_COLUMNS],
        whole_notes=_whole_notes(done),
        techniques=answers.used_by(done),
        left_out=done.plan.matrix.left_out,
        figures=_figures(done),
        percentiles=PERCENTILES,
        machine=words.machine(done.results[0]),
    )


def _whole_notes(done: Comparison) -> list[str]:
    reason = next((result.whole_run["unavailable"] for result in done.results if result.whole_run["unavailable"]), None)
    first = answers.WHOLE_RUN if reason is None else f"The time of the whole run is {reason}."
    return [first, *answers.estimated(done)]


def _tables(done: Comparison, wanted: tuple[tuple[str, str, int | None], ...]) -> list[dict[str, Any]]:
    """A table for each variant: its sections, and in these the rows as text and as values to sort by."""
    results = {cell.name: result for cell, result in zip(done.plan.matrix.cells, done.results, strict=True)}
    entries = {cell.configuration.title: cell.configuration for cell in done.plan.matrix.cells}
    limits = {limit.title: limit.description for limit in done.plan.matrix.limits}
    found: dict[str, list[dict[str, Any]]] = {}
    for section in sections.of(done):
        rows = []
        for row in section.rows:
            result, entry = results.get(row["configuration"]), entries.get(row["title"])
            percentiles = [result.latency_percentile(percent) for percent in PERCENTILES] if result else []
            rows.append(
                {
                    "title": row["title"],
                    "description": entry.description if entry else limits[row["title"]],
                    "sources": _sources(entry.techniques if entry else None),
                    "values": list(zip(tables.cells(row, wanted), [row.get(key) for _, key, _ in wanted], strict=True)),
                    "whole": answers.cells(row) if result else None,
                    "changes": tables.changes(row),
                    "how": row["how"] or tables.NOTHING,
                    "percentiles": [tables.NOTHING if cycles is None else str(cycles) for cycles in percentiles],
                }
            )
        found.setdefault(section.variant, []).append({"head": section.head, "rows": rows})
    return [{"variant": variant, "sections": made} for variant, made in found.items()]


def _sources(names: tuple[str, ...] | None) -> list[Any]:
    from nestwalk import techniques

    return [techniques.find(name) for name in names or ()]


def _figures(done: Comparison) -> list[dict[str, Any]]:
    """Pictures that there is something to show in, with titles and what to see in them, for desktop and phone."""
    few = _few(done)
    labelled, colours = done.labelled, done.colours
    time, whole = done.plain_cycles("cycles_per_access"), done.plain_cycles("whole_run_cycles_per_access")
    makers: dict[str, tuple[Labelled, Callable[[Labelled, Layout], Picture]]] = {
        "time": (labelled, lambda rows, layout: charts.time(rows, time, layout, done.time_intervals)),
    }
    if whole:
        makers["whole-run"] = (
            [row for row in labelled if row[1] in whole],
            lambda rows, layout: charts.whole_run(rows, whole, layout, done.whole_run_intervals),
        )
    if any(result.statistics["walks"] for result in done.results):
        makers["latency"] = (labelled, lambda rows, layout: charts.latency(rows, colours, layout))
        makers["distribution"] = (few, lambda rows, layout: charts.latency_distribution(rows, colours, layout))
        makers["references"] = (few, charts.references)
    packed = _most_different(done)
    if packed:
        makers["fragmentation"] = (packed, lambda rows, layout: charts.fragmentation(rows, colours, layout))
    kept = [row for row in labelled if row[2].reserved["maximum_frames"]]
    if 0 < len({title for title, _, _ in kept}) <= ROWS_DRAWN_MAX:
        makers["reserved"] = (kept, lambda rows, layout: charts.reserved(rows, colours, layout))
    return [
        {"name": name, **words.FIGURES[name], "drawn": pictures.both(maker, rows)}
        for name, (rows, maker) in makers.items()
    ]


def _few(done: Comparison) -> Labelled:
    """Few configurations: the plain VM, the best of each class, a limit; the first ones where that is not enough."""
    names = [done.plan.matrix.baseline]
    for group in done.verdict.groups[:1]:
        classes = [[row for row in group.advice if row["who"] == who] for who in NEEDS]
        names += [max(rows, key=lambda row: row["gain"])["configuration"] for rows in classes if rows]
        names += [row.configuration for row in group.having("limit")][:1]
    all_names = list(dict.fromkeys(cell.configuration.name for cell in done.plan.matrix.cells))
    bare = [name.split("+")[0] for name in names]
    chosen = list(dict.fromkeys([name for name in bare if name in all_names] + all_names))[:ROWS_DRAWN_MAX]
    cells = zip(done.plan.matrix.cells, done.labelled, strict=True)
    return [row for cell, row in cells if cell.configuration.name in chosen]


def _most_different(done: Comparison) -> Labelled:
    """Of the configurations that have groups of host PTEs: the plain VM, and those that differ from it most."""
    values = {
        title: result.host_pt_fragmentation["value"]
        for title, _, result in reversed(done.labelled)
        if result.host_pt_fragmentation and result.host_pt_fragmentation["groups"]
    }
    plain = done.plain(done.plan.matrix.cells[0].variant.name)
    title = plain[0].configuration.title if plain else ""
    base = values.get(title, 8.0)
    chosen = sorted(values, key=lambda name: (name != title, -abs(values[name] - base)))[:ROWS_DRAWN_MAX]
    return [row for row in done.labelled if row[0] in chosen]
