# SPDX-License-Identifier: MIT OR Apache-2.0
"""The verbs ``nestwalk vm capture|tables|processes``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nestwalk import output, say
from nestwalk.errors import NestwalkError
from nestwalk.verb import App

if TYPE_CHECKING:
    from nestwalk.vm.guest import Piece, Process, Vcpu

vm_app = App(help="Whole guests in QEMU: record a process, take its page tables, list processes.")

PID_MAX = 2**22
"""Linux's PID_MAX_LIMIT."""
ACCESSES_DEFAULT = 50_000_000
ACCESSES_MAX = 10**12
"""An assumption: more takes days."""

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Monitor = Annotated[
    Path,
    typer.Option(metavar="SOCKET", help="QEMU's QMP socket, of -qmp unix:SOCKET,server=on,wait=off."),
]
Pid = Annotated[
    int | None,
    typer.Option(metavar="PID", help="QEMU's process, where another program made the socket.", min=1, max=PID_MAX),
]
ProcessName = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="The guest's process: a file name, a path, or a root as 0x1234000."),
]


@vm_app.command()
def capture(
    words: Annotated[
        list[str], typer.Argument(metavar="-- QEMU [OPTIONS]", help="Your command line of qemu-system-x86_64.")
    ],
    *,
    out: Annotated[Path, typer.Option("-o", "--out", metavar="FILE", help="The trace to write, such as guest.nwt.")],
    tables: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The page tables to write (default: beside the trace, .tables).")
    ] = None,
    process: ProcessName = None,
    from_: Annotated[
        str,
        typer.Option(
            "--from", metavar="WHEN", help="Begin at: auto (once the process runs), 30s, mark, or signal (SIGUSR2)."
        ),
    ] = "auto",
    until: Annotated[
        str,
        typer.Option(metavar="WHEN", help="End at: 50M accesses, 30s, mark, end (of the guest), or signal (SIGUSR1)."),
    ] = "50M",
    user_code_only: Annotated[
        bool, typer.Option("--user-code-only", help="Leave out what the kernel copies from and to the process.")
    ] = False,
    kernel_half: Annotated[
        bool,
        typer.Option("--kernel-half", help="Put the kernel's accesses to its own half in; for compare --tables only."),
    ] = False,
    user_tables_only: Annotated[
        bool, typer.Option("--user-tables-only", help="Leave the kernel's half of the page tables out.")
    ] = False,
    name: Annotated[str | None, typer.Option(help="What tables call the program (default: the process).")] = None,
    cc: Annotated[str | None, typer.Option(metavar="COMMAND", help="The C compiler (default: $CC, or cc).")] = None,
    json_: Json = False,
) -> None:
    """Run a guest in QEMU; record a process of it, by user and kernel code, and the page tables its kernel made."""
    from nestwalk import files
    from nestwalk.vm import command_line, session, tools, when

    target = out.with_suffix(".tables") if tables is None else tables
    if files.STDOUT in (out, target):
        raise NestwalkError("standard output is the guest's console; give the trace and the tables files")
    if out.absolute() == target.absolute():
        raise NestwalkError(f"{out}: is both the trace and the tables; give them two names")
    begin = when.parse("--from", from_, "auto", accesses=False)
    end = when.parse("--until", until, "end", accesses=True)
    if end.mark and not begin.mark:
        raise NestwalkError("--until mark needs --from mark: the first marker begins, the second ends")
    if begin.mark and process is not None:
        raise NestwalkError("--from mark takes the process that executes the marker; leave --process out")
    if kernel_half and (user_code_only or user_tables_only):
        other = "--user-code-only" if user_code_only else "--user-tables-only"
        raise NestwalkError(f"--kernel-half needs what {other} leaves out; give one of the two")
    command = command_line.parse(words)
    for path in (out, target):
        files.check_file(path)
    emulator = tools.qemu(words[0])
    plugin = tools.plugin(emulator, cc or os.environ.get("CC") or "cc")
    request = session.Request(
        command=command,
        plugin=plugin,
        trace=out,
        tables=target,
        process=process,
        begin=begin,
        end=end,
        accesses_max=end.accesses or ACCESSES_MAX,
        kept="both-halves" if kernel_half else "user-code" if user_code_only else "user-half",
        kernel_tables=not user_tables_only,
        title=name,
    )
    found = session.run(request)
    if json_:
        output.show_json({"schema": 1, **found})
        return
    for warning in found["warnings"]:
        say.warn(warning)
    from nestwalk.vm import text

    output.show(*text.captured(found))


@vm_app.command(name="tables")
def tables_(
    *,
    out: Annotated[Path, typer.Option("-o", "--out", metavar="FILE", help="The dump to write.")],
    monitor: Monitor,
    process: ProcessName = None,
    user_tables_only: Annotated[
        bool, typer.Option("--user-tables-only", help="Leave the kernel's half of the page tables out.")
    ] = False,
    regions: Annotated[
        Path | None,
        typer.Option(
            metavar="RECORDING",
            help="A recording of the process, made in the guest (inspect --record): its regions of sorted tables.",
        ),
    ] = None,
    pid: Pid = None,
    json_: Json = False,
) -> None:
    """Write the page tables of a process in a guest that runs, under KVM or not, for compare --tables."""
    from nestwalk import _native, files
    from nestwalk.cloud import qemu
    from nestwalk.vm import guest

    if out == files.STDOUT:
        raise NestwalkError("-o -: give the dump a file")
    files.check_file(out)
    lines = None if regions is None else _native.recorded_regions(str(regions))
    with qemu.Monitor(monitor) as connection:
        memory, cpus = _guest(connection, monitor, pid)
        chosen = guest.choose(guest.processes(memory, cpus), process)
        running = connection.execute("query-status")["running"]
        if running:
            connection.execute("stop")
        temporary = files.neighbour(files.resolve(out))
        try:
            kernel = not user_tables_only
            levels = cpus[0].levels
            summary = guest.write_tables(memory, chosen.cr3, levels, temporary, kernel=kernel, regions=lines)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        finally:
            if running:
                connection.execute("cont")
    files.install(temporary, files.resolve(out))
    files.written.append(out)
    found = {"tables": str(out), "process": _process(chosen), "page_tables": summary}
    sorted_ = summary["regions"]
    if sorted_ is not None and sorted_["elsewhere"] > sorted_["in_place"]:
        say.warn(
            f"{regions}: of the page tables of {chosen.name} that have a place in its regions, "
            f"{sorted_['in_place']} lie there and {sorted_['elsewhere']} elsewhere: "
            "is it a recording of this process, of this boot?"
        )
    if json_:
        output.show_json({"schema": 1, **found})
        return
    from nestwalk.vm import text

    output.show(*text.dumped(found))


@vm_app.command()
def processes(*, monitor: Monitor, pid: Pid = None, json_: Json = False) -> None:
    """List the processes of a guest that runs, by what its memory says."""
    from nestwalk.cloud import qemu
    from nestwalk.vm import guest

    with qemu.Monitor(monitor) as connection:
        memory, cpus = _guest(connection, monitor, pid)
        found = [_process(one) for one in guest.processes(memory, cpus)]
    if json_:
        output.show_json({"schema": 1, "processes": found})
        return
    from nestwalk.vm import text

    output.show(*text.processes(found))


def _guest(connection: Any, socket: Path, pid: int | None) -> tuple[list[Piece], list[Vcpu]]:
    """Where the memory of a guest is, and its processors."""
    from nestwalk.vm import guest

    known = guest.memory_files(connection)
    memory = guest.pieces(connection, known, connection.peer() if pid is None else pid)
    guest.check_readable(memory, socket)
    cpus = guest.vcpus(connection)
    if not cpus:
        raise NestwalkError(f"{socket}: no processor of the guest has paging on; wait until its kernel has started")
    return memory, cpus


def _process(one: Process) -> dict[str, Any]:
    return {
        "name": one.name,
        "program": one.program,
        "cr3": f"{one.cr3:#x}",
        "mapped_bytes": one.mapped_bytes,
        "huge_bytes": one.huge_bytes,
    }
