# SPDX-License-Identifier: MIT OR Apache-2.0
"""The verb ``nestwalk capture``."""

from __future__ import annotations

import os
import sys
from pathlib import Path  # noqa: TC003 (typer reads the annotations)
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nestwalk import output, say
from nestwalk.errors import NestwalkError, unknown

if TYPE_CHECKING:
    from nestwalk.capture import session
    from nestwalk.capture.program import Program
    from nestwalk.capture.when import When

PORT_MAX = 65535
SIZE_MIN, SIZE_MAX = 100_000, 10**12
MACHINE_DEFAULT, MEMORY_DEFAULT = "broadwell-asap", 4 << 30

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


def _bytes(text: str | int) -> int:
    """A size in bytes, with its suffix."""
    from nestwalk import traces

    if isinstance(text, int):
        return text
    try:
        found = traces.count(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if not SIZE_MIN <= found <= SIZE_MAX:
        raise typer.BadParameter(f"{text}: give a size from 100k to 1000G bytes")
    return found


def capture(
    words: Annotated[
        list[str], typer.Argument(metavar="-- PROGRAM [ARGUMENTS]", help="What to run, as on a command line.")
    ],
    *,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="FILE", help="The trace to write, such as redis.nwt.")
    ] = None,
    size: Annotated[
        int, typer.Option(parser=_bytes, metavar="BYTES", help="The most that the trace may take, such as 8M or 1G.")
    ] = 32_000_000,
    precision: Annotated[
        float,
        typer.Option(
            metavar="PERCENT",
            help="The interval (95 %, half of it) of walk latency and cycles that is enough: no larger trace for more.",
            min=0.1,
            max=100,
        ),
    ] = 2.0,
    whole: Annotated[
        bool, typer.Option("--whole", help="Keep every access, from --from on, whatever the size.")
    ] = False,
    raw: Annotated[bool, typer.Option("--raw", help="Keep the plugin's stream as it is: 16 bytes an access.")] = False,
    from_: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="WHEN",
            help="When sampling begins: auto (after the start-up; of --whole, the first access), 30s, 2G accesses, "
            "mark:N, or signal (SIGUSR2).",
        ),
    ] = "auto",
    until: Annotated[
        str,
        typer.Option(
            metavar="WHEN",
            help="When the program is ended: end (by itself), 30s, 2G accesses, mark:N, or signal (SIGUSR1).",
        ),
    ] = "end",
    until_ready: Annotated[
        int | None,
        typer.Option(metavar="PORT", help="PROGRAM is a server: wait until it answers there.", min=1, max=PORT_MAX),
    ] = None,
    client: Annotated[
        str | None, typer.Option(metavar="COMMAND", help="Run this shell command, and end PROGRAM when it is done.")
    ] = None,
    follow: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="PROGRAM is a driver (sh -c, gcc, make): record the first program NAME that it starts."
        ),
    ] = None,
    children: Annotated[
        bool,
        typer.Option("--children", help="Each process that PROGRAM starts becomes a trace, too: FILE-1, FILE-2, ..."),
    ] = False,
    name: Annotated[str | None, typer.Option(help="What tables call the program (default: PROGRAM's name).")] = None,
    with_: Annotated[
        str, typer.Option("--with", metavar="TOOL", help="qemu, or lackey: valgrind's, a hundred times slower.")
    ] = "qemu",
    live: Annotated[
        bool, typer.Option("--live", help="Compare while the program runs, and keep no trace: -o is left out.")
    ] = False,
    machine: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="With --live: the machine to compare on (default: broadwell-asap)."),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="ROW", help="With --live: this row of compare, such as vm-4k; repeatable."),
    ] = None,
    memory: Annotated[
        int | None,
        typer.Option(
            parser=_bytes, metavar="BYTES", help="With --live: the most that the program may touch (default: 4 GiB)."
        ),
    ] = None,
    qemu: Annotated[
        str | None, typer.Option(metavar="PATH", help="QEMU's user mode (default: qemu-x86_64, or as PROGRAM needs).")
    ] = None,
    cc: Annotated[str | None, typer.Option(metavar="COMMAND", help="The C compiler (default: $CC, or cc).")] = None,
    json_: Json = False,
) -> None:
    """Run a program and make a trace of its accesses, for compare --trace. Numbers may end in k, M or G."""
    from nestwalk import files
    from nestwalk.capture import program, session, when

    if client is not None and not client.strip():
        raise NestwalkError("--client is empty; give a command line, or leave it out")
    if follow is not None and (not follow or "," in follow):
        raise NestwalkError("--follow needs the name of a program, without a comma")
    if children and (follow is not None or raw or live or with_ != "qemu"):
        raise NestwalkError("--children goes with neither --follow, --raw, --live nor --with lackey; leave one out")
    if out == files.STDOUT:
        raise NestwalkError("-o -: standard output is the program's; give the trace a file")
    if (out is None) != live:
        raise NestwalkError("give the trace a file with -o FILE, or --live in its place")
    if live and with_ != "qemu":
        raise NestwalkError("--live needs the memory events that --with lackey does not have; take --with qemu")
    for option, value in (("--machine", machine), ("--only", only), ("--memory", memory)):
        if value not in (None, []) and not live:
            raise NestwalkError(f"{option} goes with --live; a trace is compared by nestwalk compare --trace")
    begin = when.parse("--from", from_, "auto")
    end = when.parse("--until", until, "end")
    if raw:
        _check_raw(begin, end, other=whole or live)
    if out is not None:
        files.check_file(out)
    found = program.find(words)
    emulator, plugin = _emulator(with_, found, qemu=qemu, cc=cc, follow=follow, raw=raw)

    def request(target: Path, following: session.Following | None = None) -> session.Request:
        return session.Request(
            program=found,
            target=target,
            emulator=emulator,
            plugin=plugin,
            size=size,
            precision=precision / 100,
            whole=whole,
            raw=raw,
            begin=begin,
            end=end,
            follow=follow,
            port=until_ready,
            client=client,
            children=children,
            title=name,
            following=following,
            quiet_output=json_ or live,
        )

    if out is None:
        from nestwalk.capture import live as following

        on = MACHINE_DEFAULT if machine is None else machine
        plan = following.plan(name or follow or found.title, on, only)
        following.compare(request, plan, MEMORY_DEFAULT if memory is None else memory, _tell_outcome, as_json=json_)
        return
    done = session.run(request(out))
    facts: dict[str, Any] = {"file": str(out), **done.report, "exit_code": done.exit_code}
    if json_:
        output.show_json({"schema": 1, **facts, "warnings": done.warnings})
        return
    _tell(done.warnings, facts)


def _check_raw(begin: When, end: When, *, other: bool) -> None:
    """Refuses what --raw cannot do; ``other``: another kind of output is asked for, too."""
    if other:
        raise NestwalkError("--raw contradicts --whole and --live; give one")
    if begin.given:
        raise NestwalkError("--raw keeps the stream from its beginning; leave --from out, and give it to trace convert")
    if end.mark is not None:
        raise NestwalkError(f"--until mark:{end.mark}: --raw does not look at marks; give seconds, accesses or signal")


def _tell_outcome(done: session.Outcome) -> None:
    _tell(done.warnings, {**done.report, "exit_code": done.exit_code})


def _tell(warnings: list[str], facts: dict[str, Any]) -> None:
    """Says what came of it on standard error: standard output is the program's."""
    for warning in warnings:
        say.warn(warning)
    if say.level() is not say.Level.QUIET:
        from nestwalk import layout, tables

        layout.console(sys.stderr).print(tables.facts(facts))


def _emulator(
    with_: str, found: Program, *, qemu: str | None, cc: str | None, follow: str | None, raw: bool
) -> tuple[str, Path | None]:
    """What runs the program, and its plugin."""
    from nestwalk.capture import tools

    if with_ not in {"qemu", "lackey"}:
        raise unknown("tool", with_, ("qemu", "lackey"))
    if with_ == "lackey":
        if follow is not None or raw:
            raise NestwalkError("--with lackey has neither --follow nor --raw; leave them out, or take --with qemu")
        return tools.find("valgrind", "valgrind"), None
    emulator = tools.find("qemu", qemu or f"qemu-{found.architecture}")
    return emulator, tools.plugin(emulator, cc or os.environ.get("CC") or "cc")
