# SPDX-License-Identifier: MIT OR Apache-2.0
"""The verb ``nestwalk advise``: options in, a list or JSON out."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nestwalk import output
from nestwalk.errors import JOBS_MAX, SEED_MAX, NestwalkError, shown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import RenderableType

    from nestwalk.advice.subject import Subject
    from nestwalk.advice.what_if import Request, WhatIf
    from nestwalk.comparisons import Comparison, Plan

DEFAULT_MACHINE = "broadwell-asap"
DEFAULT_SEED = 1


def register(app: typer.Typer) -> None:
    """Adds the verb to the command."""
    app.command()(advise)


def advise(
    target: Annotated[
        str,
        typer.Argument(
            metavar="PID|TRACE|FILE",
            help="A process by number or name; a trace, or a bundled one's name; or a recorded inspection.",
        ),
    ],
    *,
    what_if: Annotated[
        bool, typer.Option("--what-if", help="Simulate the process on its own page tables, with every technique.")
    ] = False,
    trace: Annotated[
        str | None, typer.Option(metavar="FILE", help="With --what-if: a trace of the process, for its accesses.")
    ] = None,
    as_: Annotated[
        str | None, typer.Option("--as", metavar="WORKLOAD", help="With --what-if: or a workload like the process.")
    ] = None,
    probe: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What `nestwalk probe --json` said of the host's pages.")
    ] = None,
    record: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Keep what was seen of a process; advise FILE reads it again.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write results.json, results.parquet (a row a technique) and a page."),
    ] = None,
    machine: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="A machine's name or TOML file (default: broadwell-asap; of a process, the nearest one).",
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Measure less: seconds instead of minutes.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
    jobs: Annotated[
        int | None, typer.Option(help="Runs at a time (default: one for each processor).", min=1, max=JOBS_MAX)
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Everything random follows from it (default: 1).", min=0, max=SEED_MAX)
    ] = None,
) -> None:
    """Say what to do about page walks, in the order to act: why, what it gives back, who acts, how, what it costs."""
    from nestwalk import files, folders
    from nestwalk.advice import text
    from nestwalk.advice.what_if import Request

    if record is not None:
        files.check_apart("--record", record)
    if out is not None:
        folders.check_directory(out)
    if (trace is not None or as_ is not None) and not what_if:
        raise NestwalkError(f"{'--trace' if trace is not None else '--as'} goes with --what-if")
    chosen_seed = DEFAULT_SEED if seed is None else seed
    if _is_trace(target):
        for option, given in (("--what-if", what_if), ("--probe", probe is not None), ("--record", record is not None)):
            if given:
                raise NestwalkError(f"{option} goes with a process; '{shown(target)}' is a trace, which is simulated")
        on = DEFAULT_MACHINE if machine is None else machine
        done = _compared(target, on, quick=quick, jobs=jobs, seed=chosen_seed)
        _deliver(of_trace(done), text.of_comparison(done), as_json=json_, out=out)
        return
    from nestwalk.advice import process, subject

    if not what_if:
        _refuse_simulating({"--machine": machine, "--quick": quick or None, "--jobs": jobs, "--seed": seed})
    measured = None if probe is None else subject.read_probe(probe)
    pid, recording = _resolved(target)
    seen = subject.of_target(target, pid, measured)
    simulated = None
    if what_if:
        if pid is None and recording is None:
            what = f"--what-if imports page tables, and '{shown(target)}' has none"
            raise NestwalkError(f"{what}: give a running process, or a recording (nestwalk inspect PID --record FILE)")
        simulated = _simulated(seen, pid or recording, Request(trace, as_, machine, chosen_seed, quick), jobs)
    advice = process.Advice(seen, simulated)
    if record is not None:
        files.write_file(record, json.dumps(seen.to_json(), indent=1) + "\n")
    _deliver(advice.to_json(), text.of_process(advice), as_json=json_, out=out)
    if record is not None:
        typer.echo(f"wrote {shown(record)}", err=json_)


def _refuse_simulating(given: Mapping[str, object]) -> None:
    """Refuses options of a simulation where there is none."""
    for option, value in given.items():
        if value is not None:
            what = "is of what is simulated, and of a process nothing is without --what-if"
            raise NestwalkError(f"{option} {what}: give that, too, or leave {option} out")


def _simulated(seen: Subject, memory: int | Path | None, request: Request, jobs: int | None) -> WhatIf:
    """What each technique would give back to a process whose page tables are those of a pid, or of a recording."""
    from nestwalk.advice import tables_of
    from nestwalk.advice.what_if import WhatIf, planned

    layout = tables_of.of_recording(memory) if isinstance(memory, Path) else tables_of.of_process(memory or 0)
    with planned(seen, layout, request) as (plan, notes):
        if isinstance(memory, Path) and request.machine is None:
            notes.append(f"A recording names no processor: {plan.machine} is the nearest to the one here (--machine).")
        return WhatIf(_run(plan, jobs), notes)


def of_trace(done: Comparison) -> dict[str, Any]:
    """What ``nestwalk advise TRACE --json`` prints: the verdict, and of what it is."""
    plan = done.plan
    return {
        "schema": 1,
        "version": done.results[0].version,
        "target": "trace",
        "trace": plan.program.title,
        "machine": plan.machine,
        "seed": plan.seed,
        "quick": plan.quick,
        **done.verdict.to_json(),
    }


def _is_trace(target: str) -> bool:
    """Whether ``target`` is the name of a bundled trace, or a trace file."""
    from nestwalk import data

    return target in data.traces() or target.endswith(data.SUFFIX)


def _resolved(target: str) -> tuple[int | None, Path | None]:
    """The number of the process ``target``, or the path of the recording; neither for JSON, whatever it is called."""
    from nestwalk.live import processes

    return (None, None) if processes.is_json(target) else processes.resolve(target)


def _compared(trace: str, machine: str, *, quick: bool, jobs: int | None, seed: int) -> Comparison:
    from nestwalk import comparisons, matrix, traces

    traces.check_accesses(trace)
    whole = matrix.load(matrix.STANDARD)
    alone = [cell.name for cell in whole.cells if not cell.variant.name]
    plan = comparisons.plan(trace, machine=machine, seed=seed, quick=quick, configurations=alone)
    return _run(plan, jobs)


def _run(plan: Plan, jobs: int | None) -> Comparison:
    from nestwalk import comparisons
    from nestwalk.conduct import Means
    from nestwalk.progress import watch

    with watch([cell.title for cell in plan.matrix.cells]) as watcher:
        return comparisons.execute(plan, means=Means(jobs), watcher=watcher)


def _deliver(value: Mapping[str, Any], shown_: Sequence[RenderableType], *, as_json: bool, out: Path | None) -> None:
    """Prints advice, and writes a folder of it if that is asked for."""
    from nestwalk.advice import page

    if as_json:
        output.show_json(value)
    else:
        output.show(*shown_)
    if out is not None:
        page.save(value, out, command=sys.argv[1:])
        typer.echo(f"wrote {shown(out)}", err=as_json)
