# SPDX-License-Identifier: MIT OR Apache-2.0
"""The verbs ``nestwalk place`` and ``nestwalk segments``: options in, tables or JSON out."""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path  # noqa: TC003 (typer reads the annotations)
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nestwalk import output
from nestwalk.errors import JOBS_MAX, SEED_MAX, NestwalkError, unknown

if TYPE_CHECKING:
    from nestwalk.cloud.place import Version
    from nestwalk.cloud.requests import Requests

PID_MAX = 2**22
"""Linux's PID_MAX_LIMIT."""
CORES_MAX = 2**16
"""Of a host: the engine's limit."""
MEMORY_MAX = 2**44
"""Bytes of a host: the engine's limit."""
SECONDS_MAX = 10**12
"""Of a trace's times; an assumption: 30,000 years."""

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


def register(app: typer.Typer) -> None:
    """Adds the verbs to the command."""
    app.command()(place)
    app.command()(segments)


def place(
    trace: Annotated[
        str,
        typer.Argument(metavar="TRACE", help="A trace of VMs in any format of docs/cloud.md, or a bundled one's name."),
    ],
    *,
    hosts: Annotated[str, typer.Option(metavar="NAME", help="A fleet's name or TOML file.")] = "paper",
    target_utilisation: Annotated[
        float,
        typer.Option(help="Size a fleet of shares so that so much of it is in use at the peak.", min=0.001, max=1),
    ] = 0.75,
    versions: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Versions side by side (default: baseline,opt1,opt2,dynamic)."),
    ] = None,
    scheduler: Annotated[
        str | None, typer.Option(metavar="NAME", help="One version with this scheduler instead.")
    ] = None,
    allocator: Annotated[
        str | None, typer.Option(metavar="NAME", help="One version with this allocator of segments instead.")
    ] = None,
    segments: Annotated[
        int, typer.Option(metavar="N", help="n of DS-n: segments that a processor has.", min=1, max=8)
    ] = 1,
    migration: Annotated[
        bool, typer.Option("--migration", help="Defragment by live migration when a VM needs more segments.")
    ] = False,
    resize: Annotated[
        str | None,
        typer.Option(
            metavar="HOW:VMS:MEMORY",
            help="Share of VMs that grow, shrink, unplug or balloon a share of their memory, as unplug:0.1:0.25.",
        ),
    ] = None,
    resize_stays: Annotated[
        bool,
        typer.Option("--resize-stays", help="Resized VMs keep their new size (default: for a part of their life)."),
    ] = False,
    ept_takes_small: Annotated[
        bool, typer.Option("--ept-takes-small", help="VMs with more than N segments (EPT) take the smallest free ones.")
    ] = False,
    any_order: Annotated[
        bool, typer.Option("--any-order", help="Pieces next to each other are one segment in whatever order they are.")
    ] = False,
    measure_from: Annotated[
        int | None,
        typer.Option(
            metavar="SECONDS", help="VMs that arrive earlier are placed and not counted.", min=0, max=SECONDS_MAX
        ),
    ] = None,
    boot_storm: Annotated[
        str | None,
        typer.Option(metavar="WHEN", help="All VMs that run at this second at once, and no others; or: all."),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(metavar="MAP", help="Columns of another CSV or Parquet file: vm=..,arrive=..:ms,memory=..:MiB"),
    ] = None,
    machine: Annotated[
        str | None,
        typer.Option(metavar="CORES:SIZE", help="The machine of Azure's packing trace (default: 40:256GiB)."),
    ] = None,
    nova: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE", help="An option of Nova's scheduler, such as host_subset_size=5; repeatable."
        ),
    ] = None,
    map_host: Annotated[
        int | None,
        typer.Option(
            metavar="HOST",
            help="The host whose memory is drawn (default: the first of the largest).",
            min=0,
            max=2**32 - 1,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Everything random follows from it.", min=0, max=SEED_MAX)] = 1,
    jobs: Annotated[
        int | None, typer.Option(help="Versions at a time (default: one for each processor).", min=1, max=JOBS_MAX)
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="One VM in ten, on a smaller fleet: seconds instead of minutes.")
    ] = False,
    json_: Json = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Write results.parquet, vms.parquet, results.json and a page."),
    ] = None,
) -> None:
    """Replay a trace of VMs on a fleet: how many segments of memory each VM gets, and what that takes."""
    from nestwalk import files, memory

    memory.check_frames("a trace of VMs cannot be replayed", "use another machine", "nestwalk.cloud.place")
    from nestwalk.cloud import bundled, fleets, loaders, transform
    from nestwalk.cloud import place as replays
    from nestwalk.progress import watch

    begun = time.monotonic()
    chosen = _versions(versions, scheduler, allocator)
    settings = replays.Settings(
        seed=seed,
        segments=segments,
        measure_from_s=measure_from,
        migration=migration,
        resize=_resize(resize, stays=resize_stays),
        ept_takes_small=ept_takes_small,
        any_order=any_order,
        scheduler=_nova(nova or ()),
        map_host=map_host,
    )
    options = _loader_options(columns, machine)
    if out is not None:
        files.check_directory(out)
    fleet = fleets.load(hosts)
    requests = loaders.load(bundled.file(trace), options)
    if boot_storm is not None:
        requests = _storm(requests, boot_storm)
    if quick:
        requests = transform.thinned(requests)
    plan = replays.plan(requests, fleet, chosen, settings, target_utilisation=target_utilisation)
    with watch(plan.titles) as watcher:
        done = replays.execute(plan, jobs=jobs, watcher=watcher)
    if out is not None:
        from nestwalk.cloud import results

        results.save(done, out, command=sys.argv[1:])
    if json_:
        output.show_json({**done.to_json(), "quick": quick})
        return
    from nestwalk.cloud import text

    output.show(*text.page(done, time.monotonic() - begun))
    if out is not None:
        typer.echo(f"wrote {out}")


def segments(
    pid: Annotated[
        int | None,
        typer.Option(metavar="PID", help="The VMM of a running VM on this host, or any process.", min=1, max=PID_MAX),
    ] = None,
    *,
    from_: Annotated[
        Path | None, typer.Option("--from", metavar="DIR", help="Read a recording instead (docs/cloud.md).")
    ] = None,
    monitor: Annotated[
        Path | None,
        typer.Option(metavar="SOCKET", help="QEMU's QMP socket: tells which memory is the guest's, and its holes."),
    ] = None,
    record: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep what was read as a recording, for --from.")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--everything", help="All writable memory, not only what looks like a VM's.")
    ] = False,
    json_: Json = False,
) -> None:
    """Say how contiguous the memory of a running VM is, and how many segments it could get now."""
    from nestwalk import memory

    memory.check_frames("segments cannot be counted", "read a recording elsewhere (--from)", "nestwalk.cloud.segments")
    from nestwalk.cloud import proc, text
    from nestwalk.cloud import segments as segment

    if (pid is None) == (from_ is None):
        raise NestwalkError("give either --pid PID (a VM's VMM on this host) or --from DIR (a recording)")
    if monitor is not None and pid is None:
        raise NestwalkError("--monitor goes with --pid; a recording made with it has what QEMU said")
    source = proc.Source(pid=pid, recording=from_)
    if record is not None:
        proc.check_new(record)
    found, chosen = segment.report(source, everything=everything, monitor=monitor)
    if record is not None:
        source.record(record, chosen)
    if json_:
        output.show_json(found)
        return
    output.show(*text.segments(found))
    if record is not None:
        typer.echo(f"wrote {record}")


def _versions(versions: str | None, scheduler: str | None, allocator: str | None) -> list[Version]:
    from nestwalk.cloud import place as replays

    if scheduler is None and allocator is None:
        return replays.versions(",".join(replays.VERSIONS) if versions is None else versions)
    if versions is not None:
        raise NestwalkError("--versions goes without --scheduler and --allocator, which make one version of their own")
    return [replays.custom(scheduler, allocator)]


def _resize(text: str | None, *, stays: bool) -> dict[str, Any] | None:
    from nestwalk.cloud.place import RESIZES

    if text is None:
        if stays:
            raise NestwalkError("--resize-stays goes with --resize HOW:VMS:MEMORY")
        return None
    how, _, shares = text.partition(":")
    if how not in RESIZES:
        raise unknown("way to resize", how, RESIZES)
    vms, _, memory = shares.partition(":")
    try:
        pair = float(vms), float(memory)
    except ValueError:
        pair = (-1.0, -1.0)
    if not all(0 < share < math.inf for share in pair) or pair[0] > 1:
        raise NestwalkError(f"--resize: '{text}' is not HOW:VMS:MEMORY; give two shares above 0, as {how}:0.1:0.25")
    if pair[1] >= 1 and how != "grow":
        raise NestwalkError(f"--resize: '{text}' takes all of a VM's memory; give a share below 1")
    return {"how": how, "vm_share": pair[0], "memory_share": pair[1], "undone": not stays}


def _nova(pairs: list[str] | tuple[()]) -> dict[str, float | int]:
    from nestwalk.cloud.fleets import SCHEDULER, SCHEDULER_MAX, scheduler_range

    found: dict[str, float | int] = {}
    for pair in pairs:
        key, _, value = pair.partition("=")
        if key not in SCHEDULER:
            raise unknown("option in --nova", key, SCHEDULER)
        try:
            found[key] = SCHEDULER[key](value)
        except ValueError as error:
            kind = "whole number" if SCHEDULER[key] is int else "number"
            raise NestwalkError(f"--nova: {key}={value}: is no {kind}") from error
        least, most = (0, SCHEDULER_MAX) if SCHEDULER[key] is int else scheduler_range(key)
        if not least < found[key] <= most:
            raise NestwalkError(f"--nova: {key}={value}: give a number above {least:g}, at most {most:g}")
    return found


def _loader_options(columns: str | None, machine: str | None) -> Any:
    from nestwalk import sizes
    from nestwalk.cloud import loaders
    from nestwalk.cloud.loaders import generic

    size = None
    if machine is not None:
        cores, _, memory = machine.partition(":")
        try:
            size = (float(cores), float(sizes.size_bytes(memory)))
        except (ValueError, OverflowError) as error:
            raise NestwalkError(f"--machine: '{machine}' is not CORES:SIZE, such as 40:256GiB") from error
        if not 0 < size[0] <= CORES_MAX or not 0 < size[1] <= MEMORY_MAX:
            raise NestwalkError(f"--machine: '{machine}': give above 0 and at most {CORES_MAX} cores and 16 TiB")
    return loaders.Options(columns=None if columns is None else generic.parse(columns), machine=size)


def _storm(requests: Requests, when: str) -> Requests:
    from nestwalk.cloud import transform

    if when == "all":
        return transform.boot_storm(requests, None)
    try:
        second = int(when)
        if not 0 <= second <= SECONDS_MAX:
            raise ValueError(when)  # noqa: TRY301 (one message for both)
        return transform.boot_storm(requests, second)
    except ValueError as error:
        raise NestwalkError(f"--boot-storm: '{when}' is neither a second of the trace nor 'all'") from error
