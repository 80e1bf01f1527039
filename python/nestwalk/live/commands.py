# SPDX-License-Identifier: MIT OR Apache-2.0
"""The verb ``nestwalk inspect``: options in, tables or JSON out."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path  # noqa: TC003 (typer reads the annotations)
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nestwalk import output
from nestwalk.errors import NestwalkError, shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import RenderableType

    from nestwalk.live.inspection import Inspection

WATCH_MAX_S = 86_400
LOOKS_MAX = 10**9


def register(app: typer.Typer) -> None:
    """Adds the verb to the command."""
    app.command()(inspect)


def inspect(
    target: Annotated[
        str | None, typer.Argument(metavar="PID|NAME|FILE", help="A process by number or name, or a recording of one.")
    ] = None,
    *,
    cgroup: Annotated[
        Path | None, typer.Option(metavar="PATH", help="All processes of a cgroup: its folder, or its name.")
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="All processes.")] = False,
    host: Annotated[
        bool, typer.Option("--host", help="The VMs of this KVM host, and what splits their pages.")
    ] = False,
    all_flags: Annotated[
        bool, typer.Option("--all-flags", help="Read the flags of every frame, not of one in 64: slower, exact.")
    ] = False,
    contents: Annotated[
        bool,
        typer.Option("--contents", help="Read 2 MiB pages, to tell how much of them is used; marks them as accessed."),
    ] = False,
    record: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Keep what was read; inspect FILE reads it again, anywhere.")
    ] = None,
    prom: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write figures for node_exporter's textfile collector.")
    ] = None,
    watch: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Look again every so many seconds.", min=0.1, max=WATCH_MAX_S),
    ] = None,
    looks: Annotated[
        int | None, typer.Option(metavar="N", help="With --watch: end after N looks.", min=1, max=LOOKS_MAX)
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Write results.json, results.parquet (the strip) and a page."),
    ] = None,
) -> None:
    """Say how a program's memory lies: fragmentation of the host's page table, contiguity, huge pages, settings."""
    from nestwalk import files

    _check(
        [target is not None, cgroup is not None, all_, host],
        watch=watch,
        looks=looks,
        record=record,
        prom=prom,
        out=out,
    )
    for option, given in (("--all-flags", all_flags), ("--contents", contents)):
        if given and host:
            raise NestwalkError(
                f"{option} is about one process's pages or several's, and --host about VMs; leave one out"
            )
    look = _look(target, cgroup, host=host, all_flags=all_flags, contents=contents, keep=record is not None)
    done = 0
    while True:
        begun = time.monotonic()
        found = look()
        if prom is not None:
            files.write_file(prom, found.prom())
        if json_:
            output.show_json(found.json, one_line=watch is not None)
            sys.stdout.flush()
        else:
            _print(found.page, apart=done > 0)
        done += 1
        if watch is None or done == looks:
            break
        time.sleep(max(begun + watch - time.monotonic(), 0.0))
    for path in _written(found.one, record, out):
        typer.echo(f"wrote {shown(path)}", err=json_)


def _check(
    scopes: list[bool],
    *,
    watch: float | None,
    looks: int | None,
    record: Path | None,
    prom: Path | None,
    out: Path | None,
) -> None:
    """Refuses early what does not go together or could not be written."""
    from nestwalk import files

    if sum(scopes) != 1:
        raise NestwalkError("give one of: a process (number or name) or a recording; --cgroup PATH; --all; --host")
    if looks is not None and watch is None:
        raise NestwalkError("--looks goes with --watch SECONDS")
    for option, given in (("--record", record), ("--out", out)):
        if given is not None and (not scopes[0] or watch is not None):
            raise NestwalkError(f"{option} goes with one process or recording, and without --watch")
    for option, path in (("--record", record), ("--prom", prom)):
        if path is not None:
            files.check_apart(option, path)
    if out is not None:
        from nestwalk.live import page

        page.check(out)


@dataclass(frozen=True)
class _Found:
    """What one look came to."""

    json: dict[str, Any]
    page: Callable[[int], list[RenderableType]]
    prom: Callable[[], str]
    one: Inspection | None = None


def _look(
    target: str | None, cgroup: Path | None, *, host: bool, all_flags: bool, contents: bool, keep: bool
) -> Callable[[], _Found]:
    """What looks at what was asked for, once for each call."""
    from nestwalk.live import prom, text

    def of_host() -> _Found:
        from nestwalk.live import host as vms

        value = vms.inspect_host()
        return _Found(value, lambda _: vms.page(value), lambda: vms.metrics(value))

    def one() -> _Found:
        from nestwalk.live.inspection import inspect as inspect_one

        found = inspect_one(target or "", all_flags=all_flags, contents=contents, keep=keep)
        value = found.to_json()
        return _Found(
            value, lambda width: text.process(value, width), lambda: prom.text([value], value["settings"]), found
        )

    def several() -> _Found:
        from nestwalk.live import processes
        from nestwalk.live.survey import survey
        from nestwalk.progress import watch

        scope = "all processes" if cgroup is None else f"cgroup {cgroup}"
        chosen = processes.everyone() if cgroup is None else processes.in_cgroup(cgroup)
        with watch([scope]) as watcher:
            value = survey(chosen, scope, all_flags=all_flags, contents=contents, watcher=watcher).to_json()
        return _Found(value, lambda _: text.several(value), lambda: prom.text(value["processes"], value["settings"]))

    return of_host if host else several if target is None else one


def _written(found: Inspection | None, record: Path | None, out: Path | None) -> list[Path]:
    """Writes what is to be kept of one inspection."""
    if found is None:
        return []
    if record is not None:
        found.save_recording(record)
    if out is not None:
        from nestwalk.live import page

        page.save(found, out, command=sys.argv[1:])
    return [path for path in (record, out) if path is not None]


def _print(page: Callable[[int], list[RenderableType]], *, apart: bool) -> None:
    if apart:
        typer.echo()
    output.show_page(page)
    sys.stdout.flush()
