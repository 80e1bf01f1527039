# SPDX-License-Identifier: MIT OR Apache-2.0
"""Standard output: tables for people, JSON or CSV for programs; in which order results are saved, shown, drawn."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, Literal, Protocol

import typer

from nestwalk import say
from nestwalk.errors import NestwalkError, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import polars as pl
    from rich.console import Console, RenderableType

Form = Literal["text", "json", "csv"]


class Deliverable(Protocol):
    """What several runs came to: a comparison, a survey, a paper's figures."""

    @property
    def frame(self) -> pl.DataFrame:
        """Its rows."""

    def to_json(self) -> dict[str, Any]:
        """All of it."""

    def page(self) -> str:
        """All of it as an HTML page with pictures."""

    def save(self, folder: Path, *, report: bool = True) -> Path:
        """Writes a folder of results."""


def form(*, as_json: bool, as_csv: bool) -> Form:
    """What goes to standard output.

    Raises:
        NestwalkError: When both are wanted, or there is too little memory for CSV.
    """
    if as_json and as_csv:
        raise NestwalkError("--json and --csv both want standard output; give one")
    if as_csv:
        from nestwalk import memory

        memory.check_frames("CSV cannot be written", "take --json")
    return "json" if as_json else "csv" if as_csv else "text"


def deliver(
    done: Deliverable,
    wanted: Form,
    page: Callable[[int], Sequence[RenderableType]],
    *,
    out: Path | None,
    report_in_out: bool,
    report: Path | None = None,
) -> None:
    """Saves the results, prints them, and only then draws pictures: those cannot cost what was computed."""
    from nestwalk import files, layout, store

    if out is not None:
        done.save(out, report=False)
    try:
        if wanted == "json":
            show_json(done.to_json())
        elif wanted == "csv":
            show_csv(done.frame)
        elif report == files.STDOUT:
            _show_on(layout.console(sys.stderr), page)
        else:
            show_page(page)
        sys.stdout.flush()
    finally:  # a reader of standard output that has gone does not keep the report from being written
        if out is not None and report_in_out:
            store.add_page(out, done.page())
        if report is not None:
            files.write_file(report, done.page())
    wrote(wanted, out, report)


def wrote(wanted: Form, *paths: Path | None) -> None:
    """Says where the results are: below the table, or on standard error where standard output is for a program."""
    from nestwalk import files

    for path in paths:
        if path is not None and path != files.STDOUT:
            text = f"wrote {shown(path)}"
            if wanted == "text" and files.STDOUT not in paths:
                typer.echo(text)
            else:
                say.note(text)


def show_csv(frame: pl.DataFrame) -> None:
    """Prints rows as CSV."""
    from nestwalk import layout

    sys.stdout.write(layout.csv(frame))


def show_json(value: Mapping[str, Any], *, one_line: bool = False) -> None:
    """Prints one JSON object."""
    json.dump(value, sys.stdout, indent=None if one_line else 1)
    sys.stdout.write("\n")


def show(*things: RenderableType) -> None:
    """Prints tables and texts so that they fit."""
    show_page(lambda _: things)


def show_page(page: Callable[[int], Sequence[RenderableType]]) -> None:
    """Prints what ``page`` makes for so many columns."""
    from nestwalk import layout

    _show_on(layout.console(), page)


def _show_on(console: Console, page: Callable[[int], Sequence[RenderableType]]) -> None:
    from nestwalk import layout

    for thing in page(console.width):
        console.print(layout.fitted(thing, console))
