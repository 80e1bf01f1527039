# SPDX-License-Identifier: MIT OR Apache-2.0
"""The verbs about files: ``nestwalk machine detect|show|check`` and ``nestwalk keys``."""

from __future__ import annotations

import json
import sys
from pathlib import Path  # noqa: TC003 (typer reads the annotations)
from typing import Annotated

import typer

from nestwalk import output, say
from nestwalk.errors import NestwalkError, shown
from nestwalk.verb import App

machine_app = App(help="Make a machine file from this processor; show and check machine files.")

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="A machine's name or TOML file.")]

_VALUE_WIDTH = 32
"""Columns of a value in ``machine show``; a description is folded."""


@machine_app.command()
def detect(
    *,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="FILE", help="Write the machine file there (default: print it)."),
    ] = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="What to call it (default: as the processor).")
    ] = None,
    cpuid: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Another processor's CPUID, as `cpuid -1 -r` or InstLatx64 writes it."),
    ] = None,
    json_: Json = False,
) -> None:
    """Make a machine file from this processor: what CPUID and Linux say, and the rest marked as assumed."""
    from nestwalk import files, machines

    made = machines.detect(cpuid, name)
    text = machines.checked(made)
    if out is not None and out != files.STDOUT:
        machines.write(made, out)
    if json_:
        output.show_json({**made.to_json(), "file": None if out is None else str(out)})
    elif out is None or out == files.STDOUT:
        sys.stdout.write(text)
    if out is not None and out != files.STDOUT:
        for note in made.notes:
            say.note(note)
        assumed = sum(value.assumed for value in made.values)
        say.note(f"wrote {shown(out)}: {len(made.values) - assumed} values read, {assumed} assumed")


@machine_app.command()
def show(name: Name, *, json_: Json = False) -> None:
    """Show a machine's values with their units and sources."""
    from nestwalk import machines

    found = machines.lines(name)
    if json_:
        output.show_json({"schema": 1, "name": name, "values": found})
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("key", no_wrap=True)
    table.add_column("value", overflow="fold", max_width=_VALUE_WIDTH)
    table.add_column("unit", no_wrap=True)
    table.add_column("source", overflow="fold")
    for line in found:
        value = json.loads(line["value"]) if line["value"].startswith('"') else line["value"]
        if line["key"].endswith(".source"):
            table.add_row(line["key"], "", "", value)
        else:
            table.add_row(line["key"], value, line["unit"], line["source"])
    output.show(table)


@machine_app.command()
def check(name: Name, *, json_: Json = False) -> None:
    """Check a machine file as a run would."""
    from nestwalk import machines

    found = machines.check(name)
    if json_:
        output.show_json({"schema": 1, **found})
        return
    typer.echo(f"{name}: {found['name']}: {found['description']}")


def keys(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="machine, scenario, costs, matrix or sweep.")],
    *,
    schema: Annotated[bool, typer.Option("--schema", help="Print JSON Schema, for editors.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the page of the documentation.")] = False,
    json_: Json = False,
) -> None:
    """Say which keys a sort of file has, with units, ranges and defaults."""
    from nestwalk import keys as reference

    if schema + markdown + json_ > 1:
        raise NestwalkError("--schema, --markdown and --json contradict each other; give one")
    if schema:
        output.show_json(reference.schema(kind))
    elif markdown:
        sys.stdout.write(reference.markdown(kind))
    elif json_:
        output.show_json(reference.to_json(kind))
    else:
        _print_keys(kind)


def _print_keys(kind: str) -> None:
    from nestwalk import keys as reference

    for section in reference.sections(kind):
        if section.path or section.when:
            typer.echo(f"\n{section.path or 'the file'}" + (f" with {section.when}" if section.when else ""))
        for key in section.keys:
            limits = f"{key.range} ({key.upper})" if key.upper else key.range
            facts = [key.type, key.unit, limits, "required" if key.required else ""]
            facts += [f"default {key.default}"] if key.default is not None else []
            typer.echo(f"  {key.path}: {', '.join(fact for fact in facts if fact)}")
            typer.echo(f"      {key.text}")
            for value, about in key.values if len(key.values) > 1 else ():
                typer.echo(f"      {value}" + (f": {about}" if about else ""))
