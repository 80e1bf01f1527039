# SPDX-License-Identifier: MIT OR Apache-2.0
"""What the command prints: tables for people, on standard output."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from nestwalk import sections, whole_run
from nestwalk.result import SERVERS, Result

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rich.console import RenderableType

    from nestwalk.benchmarks import Reference
    from nestwalk.comparisons import Comparison
    from nestwalk.surveys import Survey

WIDTH_WITH_INTERVALS = 132
"""Columns that the comparison needs to show intervals, too."""

WIDTH_WITH_CHANGES = 158
"""Columns that it needs to say who must change what."""

PLUS_MINUS = "\N{PLUS-MINUS SIGN}"
NOTHING = "\N{EN DASH}"
MILLION = 1_000_000
QUICK = "Quick: less was measured. Leave out --quick for figures to rely on."
FILTERED_BESIDE = (
    "The trace is filtered: with a co-runner its data accesses, and so the relative time, come out too fast "
    "(docs/fidelity.md)."
)
INTERVALS = f"{PLUS_MINUS}: half of the 95 % interval."
RELATIVE = "Relative time: estimated, against the first row (docs/model.md)."
AGAINST = (
    "Time to plain VM: estimated, against the plain VM of the same section, over the measured part; the same over the "
    "whole run: with first touches, faults and exits (docs/model.md)."
)
AGAINST_COLUMN = ("time to\nplain\nVM", "against_baseline", 3)
"""Takes the place of the last of :data:`COLUMNS` where there is a plain VM."""
WHOLE_RUN_COLUMN = ("same,\nwhole\nrun", "whole_run_against_baseline", 3)
"""Comes after it where the program's length is known."""

NOT_WARM = (
    "Not warm: {names}. When their warm-up ended, what is measured still changed, or the last-level cache was still "
    'filling: their figures may be off (docs/model.md, "Warm-up").'
)

ELSEWHERE = (
    "Warmed up for another length than the plain VM, because one of the two never was warm or may not warm up for so "
    "long, and so measured at another place of the program: {names}. Where a program changes as it runs, a part of the "
    "difference is the program's."
)

COLUMNS = (
    ("walks\nper 1000\naccesses", "walks_per_kiloaccess", 2),
    ("walk\nlatency,\ncycles", "walk_latency_cycles", 1),
    ("refs\na\nwalk", "references_per_walk", 2),
    ("to\nguest\ntable", "guest_references_per_walk", 2),
    ("to\nhost\ntable", "host_references_per_walk", 2),
    ("from\nmemory", "memory_served_share", None),
    ("walk\ncycles/\naccess", "walk_cycles_per_access", 2),
    ("host\nPT\nfragm.", "host_pt_fragmentation", 2),
    ("relative\ntime", "relative_time", 3),
)
"""Headings of the comparison, keys, and decimals (None: a share in per cent)."""


def number(value: float | None, decimals: int | None, ci95: float | None = None) -> str:
    """A value for people, with half of its 95 % interval if there is one."""
    if value is None:
        return NOTHING
    if decimals is None:
        return f"{100 * value:.1f} %"
    text = f"{value:.{decimals}f}"
    return f"{text} {PLUS_MINUS}{ci95:.{decimals}f}" if ci95 is not None else text


def one_line(heading: str) -> str:
    """A heading of several lines, as a page has it."""
    return " ".join(heading.split()).replace("/ ", "/")


def columns(rows: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, str, int | None], ...]:
    """The columns for ``rows``: time is held against the plain VM if there is one, else against the first row."""
    against = any(row.get("against_baseline") is not None for row in rows)
    whole = any(row.get("whole_run_against_baseline") is not None for row in rows)
    return (*COLUMNS[:-1], AGAINST_COLUMN, *([WHOLE_RUN_COLUMN] if whole else [])) if against else COLUMNS


def cells(
    row: Mapping[str, Any],
    wanted: Sequence[tuple[str, str, int | None]] = COLUMNS,
    *,
    intervals: bool = True,
) -> list[str]:
    """A row's values for people, in the order of ``wanted``, with their intervals if there is room."""
    ci95 = {key: row.get(f"{key}_ci95") if intervals else None for _, key, _ in wanted}
    return [number(row.get(key), decimals, ci95[key]) for _, key, decimals in wanted]


def changes(row: Mapping[str, Any]) -> str:
    """Who must change what for a row."""
    if row["changes"] is None:
        return NOTHING
    return ", ".join(row["changes"]) or "nothing"


def comparison(done: Comparison, width: int) -> Table:
    """The main job's table, a section for each variant and for who must act, in so many columns of text."""
    intervals = width >= WIDTH_WITH_INTERVALS
    wanted = columns(done.rows)
    table = new(("configuration", *(heading for heading, _, _ in wanted)), tight=not intervals)
    named = any(row["changes"] is not None for row in done.rows) and width >= WIDTH_WITH_CHANGES
    if named:
        table.add_column("to change")
    for section in sections.of(done):
        if section.title:
            table.add_section()
            table.add_row(Text(section.title, style="italic"))
        for row in section.rows:
            # The verdict has the whole run's intervals.
            values = cells({**row, f"{WHOLE_RUN_COLUMN[1]}_ci95": None}, wanted, intervals=intervals)
            table.add_row(row["title"], *values, *([changes(row)] if named else []))
    return table


def not_warm(runs: Iterable[tuple[str, Result]]) -> str | None:
    """Which of the runs of these names were not warm when they were measured; None if all were, as far as is known."""
    return cold(dict.fromkeys(name for name, run in runs if run.warm_up["reached"] is False))


def cold(names: Iterable[str]) -> str | None:
    """That the runs of these names were not warm; None if there is none."""
    listed = "; ".join(names)
    return NOT_WARM.format(names=listed) if listed else None


def _not_warm(runs: Iterable[tuple[str, Result]]) -> list[RenderableType]:
    said = not_warm(runs)
    return [Text(said)] if said else []


def elsewhere(done: Comparison) -> str | None:
    """Which rows were measured at another place of the program than the plain VM; None if none was."""
    names = done.elsewhere
    return ELSEWHERE.format(names="; ".join(names)) if names else None


def _elsewhere(done: Comparison) -> list[RenderableType]:
    said = elsewhere(done)
    return [Text(said)] if said else []


def comparison_page(done: Comparison, seconds: float, width: int) -> list[RenderableType]:
    """All that ``nestwalk compare`` prints: the verdict first."""
    from nestwalk import answers

    plan = done.plan
    head = f"{plan.program.title} on {plan.machine}, seed {plan.seed}, in {seconds:.1f} s"
    page: list[RenderableType] = [*answers.verdict_of(done), Text(head), Text(), comparison(done, width)]
    if plan.quick:
        page.append(Text(QUICK))
    page += _not_warm((title, result) for title, _, result in done.labelled)
    page += _elsewhere(done)
    page += _left_out(width)
    page.append(Text(RELATIVE if columns(done.rows) is COLUMNS else AGAINST))
    if _filtered_beside_corunner(done):
        page.append(Text(FILTERED_BESIDE))
    page.append(Text())
    return [*page, *answers.whole_run(done), *answers.advice_of(done)]


def _left_out(width: int) -> list[RenderableType]:
    """What the intervals are, or what there is no room for."""
    if width >= WIDTH_WITH_CHANGES:
        return [Text(INTERVALS)]
    if width >= WIDTH_WITH_INTERVALS:
        return [Text(INTERVALS), Text(f"Left out: who must change what (needs {WIDTH_WITH_CHANGES} columns; --csv).")]
    needed = f"{WIDTH_WITH_CHANGES} columns; --csv and --json have them"
    return [Text(f"Left out: half of the 95 % intervals, and who must change what (need {needed}).")]


def _filtered_beside_corunner(done: Comparison) -> bool:
    """Whether the trace leaves out accesses that the co-runner of some row would have made slower."""
    from nestwalk import traces

    trace = done.plan.program.workload.get("trace")
    shared = any(result.configuration["scenario"]["corunner"] != "none" for result in done.results)
    return isinstance(trace, str) and shared and traces.trace_info(trace)["filter"] is not None


def survey_page(done: Survey, width: int) -> list[RenderableType]:
    """All that ``nestwalk matrix`` prints: a table for each program, and what is left out."""
    from nestwalk import answers

    page: list[RenderableType] = []
    for part in done.comparisons:
        plan = part.plan
        head = f"{plan.program.title} on {plan.machine}, seed {plan.seed}"
        page += [Text(head, style="bold"), Text(), *answers.verdict_of(part), comparison(part, width)]
        page += [*_not_warm((title, result) for title, _, result in part.labelled), *_elsewhere(part), Text()]
    page += [Text(f"Left out: {mix.what}: {mix.why}") for mix in done.plan.matrix.left_out]
    if done.plan.plans[0].quick:
        page.append(Text(QUICK))
    page += _left_out(width)
    page.append(Text(AGAINST))
    return page


def result_page(run: Result, *, quick: bool) -> list[RenderableType]:
    """All that ``nestwalk run`` prints."""
    page: list[RenderableType] = [Text(run.name), Text(), row(run), Text(), references(run)]
    page += _not_warm([(run.name, run)])
    return [*page, Text(), Text(QUICK)] if quick else page


def row(run: Result) -> Table:
    """One run's row, a value a line."""
    table = new(("", ""), header=False)
    for (heading, _, _), text in zip(COLUMNS, cells(run.row), strict=True):
        if text != NOTHING:
            table.add_row(heading.replace("\n", " "), text)
    cycles = number(run.row["cycles_per_access"], 2, run.row["cycles_per_access_ci95"])
    table.add_row("estimated cycles an access", cycles)
    whole = whole_run.row(run)
    for heading, key, decimals in (
        ("page faults, whole run", "whole_run_faults", 0),
        ("VM exits, whole run", "whole_run_exits", 0),
        ("kernels' share of the time, whole run", "whole_run_kernel_share", None),
    ):
        table.add_row(heading, f"{whole[key]:,}".replace(",", " ") if decimals == 0 else number(whole[key], decimals))
    return table


def references(run: Result) -> Table:
    """References a walk by level and by what served them."""
    table = new(("references a walk", *SERVERS))
    counts = {(r["table"], r["level"], r["served_by"]): r["count"] for r in run.statistics["references"]}
    places = sorted({(name, level) for name, level, _ in counts}, key=lambda place: (place[0], -place[1]))
    walks = run.statistics["walks"]
    for name, level in places:
        served = [counts.get((name, level, server), 0) for server in SERVERS]
        values = [number(count / walks if walks else None, 3) for count in served]
        whose = f"{name} " if run.virtualised else ""
        table.add_row(f"{whose}{run.level_name(name, level)}", *values)
    return table


def bench_page(
    results: Sequence[Mapping[str, Any]], known: Mapping[str, Reference], *, quick: bool
) -> list[RenderableType]:
    """All that ``nestwalk bench`` prints."""
    table = new(("", "here", "goal", "first engine", "", "cycles", "GHz", "width", "GiB"))
    table.add_column("")
    for found in results:
        memory = found["memory_bytes"]
        reference = known.get(found["name"])
        goal, first = (reference.goal, reference.first_engine) if reference else (None, None)
        table.add_row(
            found["name"],
            _millions(found["value"]),
            _millions(goal),
            _millions(first),
            found["unit"],
            number(found["cycles"], 1),
            number(found["clock_ghz"], 2),
            number(found["width"], 1),
            number(None if memory is None else memory / 2**30, 1),
            found.get("unavailable") or (reference.what if reference else ""),
        )
    page: list[RenderableType] = [
        table,
        Text(),
        Text("here: the best run; cycles of one, and the clock that the processor had in effect: medians of all runs;"),
        Text("width: independent additions a cycle, half as many where another thread of the core is busy;"),
        Text("GiB: memory of this process at the end of a run"),
    ]
    if quick:
        page.append(Text("Quick: each ran once; on a busy machine the best of several is what counts."))
    return page


def _millions(value: float | None) -> str:
    if value is None:
        return NOTHING
    return f"{value / 1e6:.1f} M" if value >= MILLION else f"{value / 1e3:.0f} k"


def facts(found: Mapping[str, Any]) -> Table:
    """Keys and values, a line each; of lists and tables only their length."""
    table = new(("", ""), right=False, header=False)
    for key, value in plain_facts(found):
        table.add_row(key.replace("_", " "), value)
    return table


def localities(found: Mapping[str, Mapping[str, Any]]) -> Table:
    """Localities of programs, a column each."""
    table = new(("", *found))
    every = list(found.values())
    table.add_row("accesses", *(f"{each['accesses']:,}" for each in every))

    def thousandth(counted: float, each: Mapping[str, Any]) -> str:
        return f"{1000 * counted / each['accesses']:.3f}" if each["accesses"] else "-"

    for index, size in enumerate(every[0]["near"]):
        near = [each["near"][index] for each in every]
        cells = (thousandth(one["uses"], each) for one, each in zip(near, every, strict=True))
        table.add_row(f"uses of pages not among the last {size['pages']}, per 1000 accesses", *cells)
        shares = (f"{one['with_neighbour'] / one['uses']:.3f}" if one["uses"] else "-" for one in near)
        table.add_row("  of them with a page of the group of 8 among these", *shares)
    table.add_row("uses a run of neighbouring pages", *(f"{each['run_mean']:.2f}" for each in every))
    for bound in sorted({point["pages_below"] for each in every for point in each["reuse"]}):
        bins = [{point["pages_below"]: point["uses"] for point in each["reuse"]} for each in every]
        cells = (thousandth(one.get(bound, 0), each) for one, each in zip(bins, every, strict=True))
        table.add_row(f"uses after {max(bound // 2, 64):,} to {bound - 1:,} others, per 1000", *cells)
    table.add_row("first uses, per 1000", *(thousandth(each["first_uses"], each) for each in every))
    return table


def plain_facts(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The same as texts; what is empty is left out."""
    return [(key, _plain(value)) for key, value in found.items() if key != "schema" and value not in (None, "", [], {})]


def trace_items(items: Sequence[Mapping[str, Any]]) -> Table:
    """Items of a trace, a line each."""
    table = new(("what", "thread", "address", "bytes", "kind", "instruction"))
    for item in items:
        match item["what"]:
            case "mark":
                cells = ("", "", "", f"{item['phase']} from access {item['access']}", "")
            case "event":
                cells = (str(item["thread"]), f"{item['address']:#x}", str(item["bytes"]), item["event"], "")
            case _:
                kind = "store" if item["store"] else "load"
                left_out = f" +{item['absorbed']}" if item.get("absorbed") else ""
                size, site = str(item.get("bytes", "")), f"{item['site']:#x}" if "site" in item else ""
                cells = (str(item["thread"]), f"{item['address']:#x}", size, kind + left_out, site)
        table.add_row(item["what"], *cells)
    return table


def _plain(value: Any) -> str:
    match value:
        case list():
            return str(len(value))
        case dict():
            return ", ".join(
                f"{key.replace('_', ' ')} {_plain(item)}" for key, item in value.items() if item is not None
            )
        case float():
            return f"{value:.3f}"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}".replace(",", " ")
        case _:
            return str(value)


def new(headings: Sequence[str], *, right: bool = True, header: bool = True, tight: bool = False) -> Table:
    """A table without lines; numbers (all but the first column, if ``right``) are never cut off."""
    table = Table(
        box=None, pad_edge=False, padding=(0, 0, 0, 1 if tight else 2), show_header=header, header_style="bold"
    )
    for position, heading in enumerate(headings):
        is_number = right and position > 0
        table.add_column(
            heading, justify="right" if is_number else "left", no_wrap=is_number, overflow="fold", vertical="top"
        )
    return table
