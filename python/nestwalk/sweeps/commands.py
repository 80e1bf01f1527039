# SPDX-License-Identifier: MIT OR Apache-2.0
"""The verbs ``nestwalk sweep`` and ``nestwalk results``: options in, tables or JSON out."""

from __future__ import annotations

import time
from pathlib import Path  # noqa: TC003 (typer reads the annotations)
from typing import TYPE_CHECKING, Annotated

import typer

from nestwalk import checks, output, say
from nestwalk.errors import EXIT_ERROR, JOBS_MAX, NestwalkError, shown
from nestwalk.verb import App

if TYPE_CHECKING:
    from rich.console import RenderableType

    from nestwalk.conduct import Means
    from nestwalk.content_store import ContentStore

results_app = App(help="The store of results: what is in it, and what may go.")

DAYS_MAX = 36_500
"""An assumption: a century."""
WORKERS_MAX = 100_000
"""Of a cluster that is started; an assumption."""

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Results = Annotated[
    str | None,
    typer.Option(
        "--results",
        metavar="PLACE",
        help="Where results are kept: a directory, a URL such as s3://bucket/results, or none "
        "(default: $NESTWALK_RESULTS, else ~/.cache/nestwalk/results).",
    ),
]
Dask = Annotated[
    str | None,
    typer.Option(
        metavar="CLUSTER",
        help="Make runs on a Dask cluster: tcp://HOST:PORT of a scheduler, or slurm, kubernetes or ssh:HOST,HOST to "
        "start one (docs/sweeps.md).",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(help="With --dask slurm, kubernetes or ssh: workers to start.", min=1, max=WORKERS_MAX),
]


def means(jobs: int | None, results: str | None, dask: str | None, workers: int | None) -> Means:
    """The options about how runs are made.

    Raises:
        NestwalkError: When they contradict each other.
    """
    from nestwalk.conduct import Means

    if dask is not None and jobs is not None:
        raise NestwalkError("--jobs is for this machine and --dask for a cluster; give one")
    if workers is not None and dask is None:
        raise NestwalkError("--workers goes with --dask slurm, kubernetes or ssh; for this machine give --jobs")
    return Means(jobs, results, dask, workers)


def sweep(
    spec: Annotated[str, typer.Argument(metavar="SPEC.toml", help="What to sweep (docs/sweeps.md).")],
    *,
    plan: Annotated[
        bool, typer.Option("--plan", help="Say what would be run, and what it would take, and run nothing.")
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Measure less: seconds instead of minutes, wider intervals.")
    ] = False,
    json_: Json = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print the rows as CSV and nothing else.")] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Write results.parquet, results.json and report.html."),
    ] = None,
    no_report: Annotated[bool, typer.Option("--no-report", help="Make no page, and draw no pictures.")] = False,
    jobs: Annotated[
        int | None, typer.Option(help="Runs at a time (default: one for each processor).", min=1, max=JOBS_MAX)
    ] = None,
    dask: Dask = None,
    workers: Workers = None,
    results: Results = None,
) -> None:
    """Make every run of a grid of programs, machines, techniques, seeds and other keys; only what is missing."""
    from nestwalk import files
    from nestwalk.progress import watch
    from nestwalk.sweeps import sweep as sweeps
    from nestwalk.sweeps import text

    form = output.form(as_json=json_, as_csv=csv)
    if plan and csv:
        raise NestwalkError("--plan has no rows, so --csv has nothing to print; take --json")
    if plan and (out is not None or no_report):
        option = "--no-report" if out is None else "--out"
        raise NestwalkError(f"--plan runs nothing and writes nothing; leave {option} out, or --plan")
    if out is not None:
        files.check_directory(out)
    made = sweeps.plan(spec, quick=quick, means=means(jobs, results, dask, workers))
    if plan:
        if form == "json":
            output.show_json(made.to_json())
        else:
            output.show(*text.plan_page(made))
        return
    with watch(made.titles) as watcher:
        done = sweeps.execute(made, watcher=watcher)

    def page(width: int) -> list[RenderableType]:
        return text.sweep_page(done, width)

    output.deliver(done, form, page, out=out, report_in_out=not no_report)
    if done.failures:
        first = done.failures[0]
        say.error(f"{len(done.failures)} of {len(made.points)} runs failed; the first one: {first.message}")
        raise typer.Exit(EXIT_ERROR)


@results_app.command(name="list")
def list_(
    *,
    results: Results = None,
    program: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only results with this in the column program.")
    ] = None,
    json_: Json = False,
) -> None:
    """List the results that are kept, newest first."""
    from nestwalk.sweeps import kept, text

    store = _store(results)
    found = kept.listed(store, program)
    if json_:
        output.show_json({"schema": 1, "results": found})
    elif found:
        output.show(*text.results_page(found))
    else:
        typer.echo(f"{shown(store.place)}: {kept.none(store, program)}.")


@results_app.command()
def show(
    key: Annotated[str, typer.Argument(metavar="KEY", help="The first digits of a result's key.")],
    *,
    results: Results = None,
    json_: Json = False,
) -> None:
    """Show one result: its table, or with --json all of it."""
    from nestwalk.sweeps import kept

    checks.text("key", key)
    about, result = kept.one(_store(results), key)
    if json_:
        output.show_json({"schema": 1, **about, "result": result.json})
    else:
        from nestwalk import tables

        output.show(*tables.result_page(result, quick=False))


@results_app.command()
def export(
    file: Annotated[Path, typer.Argument(metavar="FILE.parquet", help="The Parquet file to write.")],
    *,
    results: Results = None,
    program: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only results with this in the column program.")
    ] = None,
    json_: Json = False,
) -> None:
    """Write the rows of all results as one Parquet file, with what each was made from."""
    from nestwalk import files
    from nestwalk.sweeps import kept

    files.check_file(file)
    if file == files.STDOUT and json_:
        raise NestwalkError("the Parquet file and --json both want standard output; give the file a name")
    if file.suffix != ".parquet" and file != files.STDOUT and not files.is_special(files.resolve(file)):
        raise NestwalkError(f"{shown(file)}: a Parquet file is written, and nothing else; give a name in .parquet")
    count = kept.export(_store(results), file, program)
    if json_:
        output.show_json({"schema": 1, "file": str(file), "results": count})
    elif file == files.STDOUT:
        say.note(f"wrote {count} results")
    else:
        typer.echo(f"wrote {shown(file)}: {count} results")


@results_app.command()
def gc(
    *,
    results: Results = None,
    older_than: Annotated[
        int | None, typer.Option(metavar="DAYS", help="Results made so many days ago or more.", min=0, max=DAYS_MAX)
    ] = None,
    other_models: Annotated[
        bool, typer.Option("--other-models", help="Results of other models of the engine than this one's.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    json_: Json = False,
) -> None:
    """Take results away: those that are corrupt, and those that the options name."""
    from nestwalk.sweeps import kept

    before = None if older_than is None else int(time.time()) - older_than * 86_400
    done = kept.collect(_store(results), before=before, other_models=other_models, dry_run=dry_run)
    if json_:
        output.show_json({"schema": 1, "dry_run": dry_run, **done})
        return
    word = "would take" if dry_run else "took"
    typer.echo(f"{word} {done['removed']} of {done['looked_at']} results away, {done['corrupt']} of them corrupt")


def _store(place: str | None) -> ContentStore:
    """The store.

    Raises:
        NestwalkError: When there is none.
    """
    from nestwalk import content_store

    store = content_store.open_store(place)
    if store is None:
        raise NestwalkError("no results are kept (--results none, or $NESTWALK_RESULTS); name a directory or a URL")
    return store


def register(app: typer.Typer) -> None:
    """Adds the verbs to the command."""
    app.command()(sweep)
    app.add_typer(results_app, name="results")
