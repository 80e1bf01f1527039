# SPDX-License-Identifier: MIT OR Apache-2.0
"""The verbs ``nestwalk trace info|locality|head|verify|cut|sample|filter|convert``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from nestwalk import output, say
from nestwalk.errors import SEED_MAX, NestwalkError, shown
from nestwalk.verb import App

trace_app = App(help="Traces: what is in them, parts and samples of them, and conversion from other tools' formats.")

HEAD_MAX = 1_000_000
"""Items that ``trace head`` shows at most: an assumption about what fits into memory as a table."""


def count(text: str | int) -> int:
    """A number with its suffix; the defaults, which are numbers already, come through here as well."""
    from nestwalk import traces

    if isinstance(text, int):
        return text
    try:
        return traces.count(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Trace = Annotated[str, typer.Argument(metavar="FILE", help="A trace file, or the name of a bundled trace.")]
Source = Annotated[str, typer.Argument(metavar="SRC", help="A capture or another tool's trace (- is standard input).")]
Whole = Annotated[str, typer.Argument(metavar="SRC", help="A trace of every access, or another tool's trace.")]
Destination = Annotated[Path, typer.Argument(metavar="DST", help="The trace to write.")]
Level = Annotated[int | None, typer.Option(help="zstd's level.", min=1, max=22)]
Total = Annotated[
    int | None, typer.Option(parser=count, metavar="N", help="Accesses of SRC, where it cannot be read twice.")
]
SampleWindows = Annotated[
    int | None, typer.Option(parser=count, metavar="N", help="Keep N windows of accesses, and all first touches.")
]
Period = Annotated[int | None, typer.Option(parser=count, metavar="N", help="Or: keep a window in every N accesses.")]
WindowsMax = Annotated[int | None, typer.Option(parser=count, metavar="N", help="With --period: at most N windows.")]
Collapse = Annotated[
    int,
    typer.Option(parser=count, metavar="N", help="With --filter: of so many before a window, each line's last access."),
]
Warm = Annotated[
    int | None, typer.Option(parser=count, metavar="N", help="Accesses of a window that warm up (default: 1M).")
]
Window = Annotated[
    int | None, typer.Option(parser=count, metavar="N", help="Accesses of a window that are measured (default: 200k).")
]
SkipStart = Annotated[
    int | None,
    typer.Option(parser=count, metavar="N", help="The steady phase, where windows are, begins at access N."),
]
SteadyFrom = Annotated[
    int | None, typer.Option(metavar="MARK", help="Or: at this mark of the capture.", min=0, max=2**64 - 1)
]
Budget = Annotated[int | None, typer.Option(parser=count, metavar="BYTES", help="About how large DST may become.")]
WindowSeed = Annotated[
    int | None, typer.Option(help="What the places of the windows follow from (default: 1).", min=0, max=SEED_MAX)
]
Filter = Annotated[
    str | None,
    typer.Option(
        "--filter",
        metavar="SIZES",
        help="Leave out and count what small filters hold: default, exact, or sizes (docs/trace-format.md).",
    ),
]
From = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="FORMAT",
        help="SRC's format, where its content does not tell: drmemtrace, champsim, lackey, pin, addresses, numpy, raw, "
        "system.",
    ),
]


@trace_app.command()
def convert(
    source: Source,
    destination: Destination,
    *,
    program: Annotated[str | None, typer.Option(help="What to call the program (default: SRC's name).")] = None,
    command: Annotated[str | None, typer.Option(help="The command line that ran, to keep with the trace.")] = None,
    tool: Annotated[str | None, typer.Option(help="What captured it, to keep with the trace.")] = None,
    date: Annotated[str | None, typer.Option(help="When it was captured, to keep with the trace.")] = None,
    level: Level = None,
    total: Total = None,
    sample_windows: SampleWindows = None,
    period: Period = None,
    windows_max: WindowsMax = None,
    collapse: Collapse = 0,
    warm: Warm = None,
    window: Window = None,
    skip_start: SkipStart = None,
    steady_from: SteadyFrom = None,
    budget: Budget = None,
    seed: WindowSeed = None,
    filter_: Filter = None,
    from_: From = None,
    process: Annotated[
        int | None,
        typer.Option(
            metavar="PID",
            help="Of a drmemtrace trace of several processes: the one to convert.",
            min=0,
            max=2**32 - 1,
        ),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(
            metavar="MAP",
            help="Columns of a Parquet file, as address=va,store=is_write,bytes=size,thread=tid,instruction=pc.",
        ),
    ] = None,
    json_: Json = False,
) -> None:
    """Convert a capture, or another tool's trace, to a trace, whole or sampled. Numbers may end in k, M or G."""
    from nestwalk import traces

    sample = traces.sample_of(
        windows=sample_windows,
        period=period,
        windows_max=windows_max,
        collapse=collapse,
        warm=warm,
        window=window,
        seed=seed,
        skip_start=skip_start,
        steady_from=steady_from,
        budget=budget,
    )
    texts = {"program": program, "command": command, "tool": tool, "date": date}
    _make(
        source,
        destination,
        json_,
        sample=sample,
        level=level,
        total=total,
        filter_=filter_,
        from_=from_,
        process=process,
        columns=columns,
        **texts,
    )


@trace_app.command()
def cut(
    source: Annotated[str, typer.Argument(metavar="SRC", help="A trace of every access.")],
    destination: Destination,
    *,
    skip: Annotated[int, typer.Option(parser=count, metavar="N", help="Accesses before the part.")] = 0,
    keep: Annotated[
        int | None, typer.Option("--count", parser=count, metavar="N", help="Accesses of the part (default: the rest).")
    ] = None,
    level: Level = None,
    json_: Json = False,
) -> None:
    """Cut a part out of a trace. What the program touched and mapped before it is kept, without the accesses."""
    from nestwalk import traces

    there = traces.trace_info(source)["accesses"]
    until = there if keep is None else skip + keep
    if skip >= until or until > there:
        options = f"--skip {skip}" + ("" if keep is None else f" --count {keep}")
        most = "give less of either" if keep else "give a --count of 1 or more" if keep == 0 else "give less"
        raise NestwalkError(f"{source}: has {there} accesses, so that {options} names no part of it: {most}")
    sample = None if skip == 0 else traces.Sample(windows=1, warm=0, window=until - skip, steady_access=skip)
    _make(source, destination, json_, sample=sample, level=level, until=until)


@trace_app.command()
def sample(
    source: Whole,
    destination: Destination,
    *,
    sample_windows: SampleWindows = None,
    period: Period = None,
    windows_max: WindowsMax = None,
    collapse: Collapse = 0,
    warm: Warm = None,
    window: Window = None,
    skip_start: SkipStart = None,
    steady_from: SteadyFrom = None,
    budget: Budget = None,
    seed: WindowSeed = None,
    filter_: Filter = None,
    level: Level = None,
    total: Total = None,
    json_: Json = False,
) -> None:
    """Keep windows of a trace, and every first touch and memory event between them."""
    from nestwalk import traces

    chosen = traces.sample_of(
        windows=sample_windows,
        period=period,
        windows_max=windows_max,
        collapse=collapse,
        warm=warm,
        window=window,
        seed=seed,
        skip_start=skip_start,
        steady_from=steady_from,
        budget=budget,
    )
    if chosen is None:
        raise NestwalkError("how many windows? give --sample-windows N, or --period N")
    _make(source, destination, json_, sample=chosen, level=level, total=total, filter_=filter_)


@trace_app.command("filter")
def filter_command(
    source: Whole,
    destination: Destination,
    *,
    sizes: Annotated[
        str, typer.Option(metavar="SIZES", help="The filter: default, exact, or sizes (docs/trace-format.md).")
    ] = "default",
    level: Level = None,
    json_: Json = False,
) -> None:
    """Leave out and count the accesses that a small first-level TLB and L1-D would have had."""
    _make(source, destination, json_, level=level, filter_=sizes)


@trace_app.command()
def verify(trace: Trace, *, json_: Json = False) -> None:
    """Read a whole trace and check every checksum, every record and all totals."""
    from nestwalk import traces

    _print_facts({"trace": trace, "whole": True, **traces.trace_verify(trace)}, as_json=json_)


@trace_app.command()
def info(
    trace: Trace,
    *,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Read all of it, and write a page with pictures and their numbers."),
    ] = None,
    json_: Json = False,
) -> None:
    """Say what is in a trace, and draw how the program uses its memory."""
    from nestwalk import folders, traces

    if out is not None:
        folders.check_directory(out)
    found = traces.trace_info(trace)
    _print_facts(found, as_json=json_)
    if out is None:
        return
    from nestwalk import trace_page
    from nestwalk.progress import share, watch

    with watch([f"reading {trace}"]) as watcher:
        profile = traces.trace_profile(trace, progress=share(watcher))
    trace_page.save(found, profile, out)
    say.note(f"wrote {shown(out)}")


@trace_app.command()
def locality(
    programs: Annotated[
        list[str],
        typer.Argument(metavar="PROGRAM...", help="Traces (file or bundled name) and workloads (name or TOML file)."),
    ],
    *,
    accesses: Annotated[
        int, typer.Option(parser=count, metavar="N", help="Count so many accesses; a workload warms up for as many.")
    ] = 20_000_000,
    json_: Json = False,
) -> None:
    """Compare how near each other, in memory and in time, programs use their pages."""
    from nestwalk import traces
    from nestwalk.progress import share, watch

    found = {}
    for program in programs:
        with watch([f"reading {program}"]) as watcher:
            found[program] = traces.locality(program, accesses=accesses, progress=share(watcher))
    if json_:
        output.show_json({"schema": 1, "programs": [{"program": name, **value} for name, value in found.items()]})
        return
    from nestwalk import tables

    output.show(tables.localities(found))


@trace_app.command()
def head(
    trace: Trace,
    *,
    items: Annotated[
        int, typer.Option("-n", "--count", parser=count, metavar="N", help="Accesses, touches and events to show.")
    ] = 20,
    skip: Annotated[int, typer.Option(parser=count, metavar="N", help="Items before them.")] = 0,
    json_: Json = False,
) -> None:
    """Show a trace's accesses, first touches, memory events and marks, in order."""
    from nestwalk import traces

    if not 1 <= items <= HEAD_MAX:
        raise NestwalkError(f"--count {items}: give 1 to {HEAD_MAX}")
    found = traces.trace_head(trace, items, skip=skip)
    if json_:
        output.show_json({"schema": 1, "trace": trace, "skip": skip, "items": found})
        return
    if not found and skip:
        raise NestwalkError(f"{trace}: has no item {skip} (from 0 on): give a smaller --skip, or leave it out")
    if not found:
        typer.echo(f"{trace}: has no items")
        return
    from nestwalk import tables

    output.show(tables.trace_items(found))


def _make(source: str, destination: Path, as_json: bool, **options: Any) -> None:
    """Converts, and says what came of it."""
    from nestwalk import files, traces
    from nestwalk.progress import share, watch

    if destination == files.STDOUT and as_json:
        raise NestwalkError("the trace and --json both want standard output; give the trace a file")
    with watch([str(destination)]) as watcher:
        found = traces.trace_convert(source, destination, progress=share(watcher), **options)
    if found.get("warning"):
        say.warn(f"{source}: {found['warning']}")
    if destination != files.STDOUT:  # otherwise the trace is what standard output is for
        _print_facts(found, as_json=as_json)


def _print_facts(found: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        output.show_json({"schema": 1, **found})
        return
    from nestwalk import tables

    output.show(tables.facts(found))
