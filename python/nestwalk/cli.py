# SPDX-License-Identifier: MIT OR Apache-2.0
"""The command ``nestwalk``: options in, tables or JSON out. What works is elsewhere, and imported when it is needed."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nestwalk import _native, file_verbs, output, say, trace_verbs
from nestwalk.advice import commands as advice
from nestwalk.capture import commands as capturing
from nestwalk.cloud import commands as cloud
from nestwalk.errors import (
    CPUS_MAX,
    EXIT_ERROR,
    EXIT_INTERRUPTED,
    JOBS_MAX,
    NODE_MAX,
    SEED_MAX,
    NestwalkError,
    unknown,
)
from nestwalk.live import commands as live
from nestwalk.probe import commands as probe
from nestwalk.sweeps import commands as sweeps
from nestwalk.sweeps.commands import Dask, Results, Workers  # noqa: TC001 (typer reads the annotations)
from nestwalk.timed import commands as timed
from nestwalk.verb import App
from nestwalk.vm import commands as vm

if TYPE_CHECKING:
    from rich.console import RenderableType

app = App(
    help="What page walks cost a program in a virtual machine, and which technique gives that time back.",
    epilog=f"Exit codes: 0 done; {EXIT_ERROR} bad input (one line on standard error says what, where and what to do); "
    f"{EXIT_INTERRUPTED} interrupted. Nothing is left half-written.",
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(trace_verbs.trace_app, name="trace")
app.add_typer(file_verbs.machine_app, name="machine")
cloud.register(app)
live.register(app)
probe.register(app)
sweeps.register(app)
app.add_typer(vm.vm_app, name="vm")
advice.register(app)

MachineName = Annotated[str, typer.Option(metavar="NAME", help="A machine's name or TOML file.")]
MatrixName = Annotated[str, typer.Option(metavar="NAME", help="What is compared: a name or TOML file.")]
Only = Annotated[
    list[str] | None,
    typer.Option(metavar="ROW", help="Make this row only, such as vm-4k; repeatable."),
]
Jobs = Annotated[
    int | None, typer.Option(help="Runs at a time (default: one for each processor).", min=1, max=JOBS_MAX)
]
Seed = Annotated[int, typer.Option(help="Everything random follows from it.", min=0, max=SEED_MAX)]
Csv = Annotated[bool, typer.Option("--csv", help="Print the rows as CSV and nothing else.")]
NoReport = Annotated[bool, typer.Option("--no-report", help="Make no page, and draw no pictures.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Quick = Annotated[bool, typer.Option("--quick", help="Measure less: seconds instead of minutes, wider intervals.")]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out", metavar="DIR", help="Write results.parquet, results.json and scenarios that make each run again."
    ),
]


@app.callback(invoke_without_command=True)
def version(
    *, version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False
) -> None:
    """Handles what concerns no single command."""
    if version:
        typer.echo(f"nestwalk {_native.version()}")
        raise typer.Exit


@app.command()
def compare(
    *,
    trace: Annotated[str, typer.Option(metavar="FILE", help="A trace file, or the name of a bundled trace.")] = "redis",
    machine: MachineName = "broadwell-asap",
    matrix: Annotated[
        str | None, typer.Option(metavar="NAME", help="What is compared: a name or TOML file (default: standard).")
    ] = None,
    tables: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=DUMP", help="Compare dumped page tables of running guests, this one; repeatable."),
    ] = None,
    only: Only = None,
    quick: Quick = False,
    json_: Json = False,
    csv: Csv = False,
    out: Out = None,
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The report, - for standard output (default: report.html, in DIR if given; not with --json, --csv).",
        ),
    ] = None,
    no_report: NoReport = False,
    jobs: Jobs = None,
    dask: Dask = None,
    workers: Workers = None,
    results: Results = None,
    seed: Seed = 1,
) -> None:
    """Compare a program natively and in VMs, with and without huge pages and an SMT co-runner."""
    from nestwalk import comparisons, files
    from nestwalk import matrix as matrices
    from nestwalk.progress import watch

    begun = time.monotonic()
    form, means = output.form(as_json=json_, as_csv=csv), sweeps.means(jobs, results, dask, workers)
    if report is not None and no_report:
        raise NestwalkError("--report and --no-report contradict each other; leave one out")
    if report == files.STDOUT and form != "text":
        raise NestwalkError(f"--report - and --{form} both want standard output; give the report a file")
    if tables and matrix is not None:
        raise NestwalkError("--tables and --matrix both say what is compared; leave one out")
    chosen = matrices.of_tables(tables) if tables else matrices.STANDARD if matrix is None else matrix
    plan = comparisons.plan(trace, machine=machine, seed=seed, quick=quick, configurations=only, matrix_name=chosen)
    wanted = form == "text" and not no_report
    target = Path("report.html") if report is None and out is None and wanted else report
    if out is not None:
        files.check_directory(out)
    if target is not None:
        files.check_file(target)
    with watch([cell.title for cell in plan.matrix.cells]) as watcher:
        done = comparisons.execute(plan, means=means, watcher=watcher)

    def page(width: int) -> list[RenderableType]:
        from nestwalk import tables as pages

        return pages.comparison_page(done, time.monotonic() - begun, width)

    in_out = report is None and wanted
    output.deliver(done, form, page, out=out, report_in_out=in_out, report=target)


@app.command()
def matrix(
    *,
    program: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="A program of the matrix, a bundled trace or a trace file; repeatable (default: all)."
        ),
    ] = None,
    matrix: MatrixName = "everything",
    machine: MachineName = "broadwell-asap",
    only: Only = None,
    quick: Quick = False,
    json_: Json = False,
    csv: Csv = False,
    out: Out = None,
    no_report: NoReport = False,
    jobs: Jobs = None,
    dask: Dask = None,
    workers: Workers = None,
    results: Results = None,
    seed: Seed = 1,
) -> None:
    """Compare every technique and every sensible mix on several programs; with --out, as a page with heat maps."""
    from nestwalk import files, surveys
    from nestwalk.progress import watch

    form, means = output.form(as_json=json_, as_csv=csv), sweeps.means(jobs, results, dask, workers)
    if out is not None:
        files.check_directory(out)
    plan = surveys.plan(program, matrix_name=matrix, machine=machine, seed=seed, quick=quick, configurations=only)
    with watch(plan.titles) as watcher:
        done = surveys.execute(plan, means=means, watcher=watcher)

    def page(width: int) -> list[RenderableType]:
        from nestwalk import tables as pages

        return pages.survey_page(done, width)

    output.deliver(done, form, page, out=out, report_in_out=not no_report)


@app.command()
def run(
    scenario: Annotated[str, typer.Argument(metavar="SCENARIO.toml", help="A scenario file, or a bundled one's name.")],
    *,
    quick: Quick = False,
    json_: Json = False,
    csv: Csv = False,
    out: Out = None,
    seed: Annotated[int | None, typer.Option(help="Instead of the scenario's own.", min=0, max=SEED_MAX)] = None,
) -> None:
    """Run one scenario."""
    from nestwalk import engine, files
    from nestwalk.progress import share, watch

    form = output.form(as_json=json_, as_csv=csv)
    if out is not None:
        files.check_directory(out)
    with watch([scenario]) as watcher:
        done = engine.run(scenario, quick=quick, seed=seed, progress=share(watcher))
    if out is not None:
        done.save(out)
    if form == "csv":
        output.show_csv(done.frame)
    elif form == "json":
        output.show_json({**done.json, "quick": quick})
    else:
        from nestwalk import tables

        output.show(*tables.result_page(done, quick=quick))
    output.wrote(form, out)


@app.command()
def memory(
    scenario: Annotated[
        str,
        typer.Argument(
            metavar="SCENARIO.toml|this-machine|DIR",
            help="A scenario file or a bundled one's name; this machine's memory as it is now (as root); or that of "
            "another one, of whose /proc/zoneinfo, kpageflags and pagetypeinfo DIR has copies.",
        ),
    ],
    file: Annotated[Path, typer.Argument(metavar="FILE.nwm", help="Where to write it.")],
    *,
    kernel: Annotated[
        int | None, typer.Option(help="Which of the [[kernels]], from 0 (the host's; default).", min=0, max=2)
    ] = None,
    node: Annotated[
        int | None, typer.Option(help="Real machines: a NUMA node (default: the largest zone's).", min=0, max=NODE_MAX)
    ] = None,
    cpus: Annotated[
        int | None,
        typer.Option(
            help="Real machines: processors of the simulated kernel (default: this machine's).", min=1, max=CPUS_MAX
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(help="Real machines: chooses the order of free lists, which Linux hides.", min=0, max=SEED_MAX),
    ] = None,
    json_: Json = False,
) -> None:
    """Save the memory with which a scenario's kernel begins, or a real machine's, for the key ``saved`` of others."""
    from nestwalk import engine, files

    files.check_file(file)
    proc = engine.PROC if scenario == "this-machine" else Path(scenario)
    if scenario == "this-machine" or proc.is_dir():
        if kernel is not None:
            raise NestwalkError("a real machine has one kernel; leave out --kernel")
        about, content = engine.save_real_memory(proc, node=node, cpus=cpus, seed=1 if seed is None else seed)
    else:
        for option, value in (("--node", node), ("--cpus", cpus), ("--seed", seed)):
            if value is not None:
                raise NestwalkError(f"{option} is for real machines; a scenario says it itself")
        about, content = engine.save_memory(scenario, kernel or 0)
    files.write_file(file, content)
    if json_:
        output.show_json({"schema": 1, **about, "file": str(file)})
        return
    huge = sum(count << order for order, count in enumerate(about["free_blocks"][9:]))
    say.note(
        f"wrote {file} ({about['bytes']} bytes): memory = {about['frames'] * 4096}, cpus = {about['cpus']}; "
        f"{about['free_frames']} of {about['frames']} frames are free, and {huge} blocks of 2 MiB"
    )
    keys = ", ".join(f"{key} = {json.dumps(value)}" for key, value in about["alike"].items())
    say.note(f"as much is free, in blocks of the same orders, with start = {{ {keys} }}")
    if counted := about.get("pageblocks_counted"):
        told = ", ".join(f"{about['pageblocks'][name]} {name} (the kernel counts {counted[name]})" for name in counted)
        say.note(f"pageblocks of zone {about['zone']}, node {about['node']}, as told from what lies in them: {told}")


@app.command()
def reproduce(
    paper: Annotated[
        str, typer.Argument(metavar="PAPER", help="ptemagnet, hugegpt, asap, compromis-mmu, compromis or quicksilver.")
    ],
    *,
    quick: Quick = False,
    json_: Json = False,
    csv: Csv = False,
    out: Out = None,
    no_report: NoReport = False,
    jobs: Annotated[
        int | None,
        typer.Option(help="Runs at a time (default: 1; with --quick, one for each processor).", min=1, max=JOBS_MAX),
    ] = None,
    dask: Dask = None,
    workers: Workers = None,
    results: Results = None,
    seed: Seed = 1,
    traces: Annotated[
        Path | None, typer.Option(metavar="DIR", help="For compromis: traces of VMs that cannot be shipped.")
    ] = None,
) -> None:
    """Put every figure of a paper beside what the simulator makes of it; with --out, as a page with pictures."""
    from nestwalk import files
    from nestwalk import reproduce as papers
    from nestwalk.progress import watch

    form, means = output.form(as_json=json_, as_csv=csv), sweeps.means(jobs, results, dask, workers)
    if out is not None:
        files.check_directory(out)
    plan = papers.plan(paper, quick=quick, seed=seed, traces=traces)
    with watch(plan.titles) as watcher:
        done = plan.execute(means=means, watcher=watcher)

    def page(_width: int) -> list[RenderableType]:
        from nestwalk.reproduce import text

        return list(text.page(done))

    output.deliver(done, form, page, out=out, report_in_out=not no_report)


@app.command(name="list")
def list_(
    kind: Annotated[
        str | None, typer.Argument(help="machines, managers, workloads, scenarios or costs; all if left out.")
    ] = None,
    *,
    json_: Json = False,
) -> None:
    """List machines, memory managers, workloads and scenarios."""
    from nestwalk import engine

    found = engine.catalog()
    if kind is not None and kind not in found:
        raise unknown("list", kind, engine.KINDS)
    shown = found if kind is None else {kind: found[kind]}
    if json_:
        output.show_json({"schema": 1, **shown})
        return
    for position, (name, entries) in enumerate(shown.items()):
        width = max((len(entry["name"]) for entry in entries), default=0)
        typer.echo(("\n" if position else "") + name)
        for entry in entries:
            typer.echo(f"  {entry['name']:{width}}  {entry['description']}")


@app.command()
def bench(
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME", help="Which; all if none is named.")] = None,
    *,
    quick: Quick = False,
    json_: Json = False,
) -> None:
    """Measure how fast the simulator is here: the best of several runs."""
    from nestwalk import benchmarks

    def progress(name: str) -> None:
        say.note(f"{name} ...")

    results = benchmarks.bench(names or None, quick=quick, progress=progress)
    if json_:
        output.show_json({"schema": 1, "version": _native.version(), "quick": quick, "results": results})
        return
    from nestwalk import tables

    output.show(*tables.bench_page(results, benchmarks.REFERENCES, quick=quick))


app.command()(file_verbs.keys)
app.command(context_settings={"allow_interspersed_args": False})(capturing.capture)
app.command(context_settings={"allow_interspersed_args": False})(timed.time)
