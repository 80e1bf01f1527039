# SPDX-License-Identifier: MIT OR Apache-2.0
"""The verb ``nestwalk time``: options in, a table or JSON out."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from nestwalk import output
from nestwalk.errors import JOBS_MAX, SEED_MAX

ROUNDS_DEFAULT, ROUNDS_MAX = 7, 1000

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


def _pattern(text: str | re.Pattern[str]) -> re.Pattern[str]:
    """A regular expression with one group."""
    if isinstance(text, re.Pattern):
        return text
    try:
        found = re.compile(text)
    except re.error as error:
        raise typer.BadParameter(f"{text!r}: is no regular expression: {error}") from error
    if found.groups != 1:
        raise typer.BadParameter(f"{text!r}: give one group around the seconds, as 'Runtime: ([0-9.]+)'")
    return found


def time(
    words: Annotated[
        list[str], typer.Argument(metavar="-- PROGRAM [ARGUMENTS]", help="What to run, as on a command line.")
    ],
    *,
    rounds: Annotated[
        int, typer.Option(help="Rounds of two runs each; an interval needs 5.", min=1, max=ROUNDS_MAX)
    ] = ROUNDS_DEFAULT,
    own: Annotated[
        re.Pattern[str] | None,
        typer.Option(
            "--own-time",
            parser=_pattern,
            metavar="REGEX",
            help="The program says itself how many seconds it took: where (one group), as 'Runtime: ([0-9.]+)'.",
        ),
    ] = None,
    trace: Annotated[
        str | None,
        typer.Option(metavar="TRACE", help="A trace of the program (nestwalk capture): what the simulator says."),
    ] = None,
    machine: Annotated[
        str | None, typer.Option(metavar="NAME", help="With --trace: the machine to simulate (default: this one).")
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(help="With --trace: runs at a time (default: one for each processor).", min=1, max=JOBS_MAX),
    ] = None,
    seed: Annotated[int, typer.Option(help="Everything random follows from it.", min=0, max=SEED_MAX)] = 1,
    json_: Json = False,
) -> None:
    """Time a program by turns with 4 KiB and with huge pages; with --trace, hold the simulator against that."""
    from nestwalk.errors import NestwalkError
    from nestwalk.progress import watch
    from nestwalk.timed import held, text, timing

    if trace is not None:
        held.check(trace, machine)
    elif machine is not None or jobs is not None:
        raise NestwalkError("--machine and --jobs are of what is simulated; give --trace, too")
    with watch([words[0]]) as watcher:
        watcher.started(0)
        done = timing.time(words, rounds=rounds, own=own, seed=seed, advanced=lambda share: watcher.advanced(0, share))
        watcher.finished(0)
    ratio = done.ratio(done.judged)
    if trace is not None and ratio is not None:
        done.simulation = held.hold(trace, ratio, machine=machine, seed=seed, jobs=jobs, watch=watch)
    if json_:
        output.show_json(done.to_json())
        return
    output.show(*text.page(done))
