# SPDX-License-Identifier: MIT OR Apache-2.0
"""The verb ``nestwalk probe``: options in, tables or JSON out."""

from __future__ import annotations

import sys
from pathlib import Path  # noqa: TC003 (typer reads the annotations)
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nestwalk import output
from nestwalk.errors import JOBS_MAX, SEED_MAX, NestwalkError, shown

if TYPE_CHECKING:
    from nestwalk.probe.probing import Probed
    from nestwalk.probe.validation import Validated

ROUNDS_MAX = 1000
"""More take hours."""
FOOTPRINT_MIN, FOOTPRINT_MAX = 64 << 20, 1 << 40
"""Bytes: below, no TLB of today is left; above, no machine of today has the memory."""

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


def register(app: typer.Typer) -> None:
    """Adds the verb to the command."""
    app.command()(probe)


def _size(text: str | int) -> int:
    """Bytes, as ``1GiB``."""
    from nestwalk import sizes

    if isinstance(text, int):
        return text
    try:
        found = sizes.size_bytes(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r}: give a size, as 512MiB or 2GiB") from error
    if not FOOTPRINT_MIN <= found <= FOOTPRINT_MAX:
        raise typer.BadParameter(f"{text!r}: give a size from 64MiB to 1TiB")
    return found


def probe(
    *,
    validate: Annotated[
        bool, typer.Option("--validate", help="Hold the simulator against this processor, layout by layout.")
    ] = False,
    footprint_max: Annotated[
        int | None,
        typer.Option(
            parser=_size,
            metavar="SIZE",
            help="The largest footprint, taken twice (default: 1GiB, --validate 2GiB; less of small memory).",
        ),
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(help="Rounds, of which medians are taken (default: 9, 7 with --validate).", min=1, max=ROUNDS_MAX),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Five rounds and smaller footprints: seconds, wider intervals.")
    ] = False,
    jobs: Annotated[
        int | None,
        typer.Option(help="With --validate: runs at a time (default: one for each processor).", min=1, max=JOBS_MAX),
    ] = None,
    seed: Annotated[int, typer.Option(help="Everything random follows from it.", min=0, max=SEED_MAX)] = 1,
    json_: Json = False,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Write results.parquet, results.json and a page.")
    ] = None,
) -> None:
    """Measure what page walks cost on this machine, and what backs its memory; needs no privilege."""
    from nestwalk import files

    if jobs is not None and not validate:
        raise NestwalkError("--jobs is of what is simulated; give --validate, too, or leave it out")
    if out is not None:
        files.check_directory(out)
    done: Probed | Validated
    if validate:
        done = _validated(footprint_max, rounds, quick=quick, jobs=jobs, seed=seed)
    else:
        done = _probed(footprint_max, rounds, quick=quick, seed=seed)
    if out is not None:
        from nestwalk.probe import saved

        saved.save(done, out, command=sys.argv[1:])
    if json_:
        output.show_json({**done.to_json(), "quick": quick})
        return
    _print(done)
    if out is not None:
        typer.echo(f"wrote {shown(out)}")


def _probed(footprint_max: int | None, rounds: int | None, *, quick: bool, seed: int) -> Probed:
    from nestwalk.probe import probing
    from nestwalk.progress import watch

    size = probing.FOOTPRINT_QUICK if quick and footprint_max is None else footprint_max
    with watch(["probe"]) as watcher:
        watcher.started(0)
        done = probing.probe(
            footprint_max=size,
            rounds=rounds or (probing.ROUNDS_QUICK if quick else probing.ROUNDS),
            seed=seed,
            advanced=lambda share: watcher.advanced(0, share),
        )
        watcher.finished(0)
    return done


def _validated(footprint_max: int | None, rounds: int | None, *, quick: bool, jobs: int | None, seed: int) -> Validated:
    from nestwalk.probe import validation
    from nestwalk.progress import watch

    return validation.validate(
        footprint_max=footprint_max,
        rounds=rounds or (validation.ROUNDS_QUICK if quick else validation.ROUNDS),
        seed=seed,
        quick=quick,
        jobs=jobs,
        watch=watch,
    )


def _print(done: Any) -> None:
    from nestwalk.probe import text
    from nestwalk.probe.validation import Validated

    output.show(*(text.validated_page(done) if isinstance(done, Validated) else text.page(done)))
