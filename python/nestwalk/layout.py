# SPDX-License-Identifier: MIT OR Apache-2.0
"""How tables are laid out in the columns that there are, with the characters that the terminal has.

A table that does not fit is folded: each row takes two lines, its name and its numbers below; where even that is too
wide, each number gets its heading beside it. No number is ever cut, and no column goes without a word.
"""

from __future__ import annotations

import shutil
import sys
from typing import IO, TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from nestwalk import streams

if TYPE_CHECKING:
    import polars as pl
    from rich.console import RenderableType

WIDTH_OF_A_FILE = 158
"""Columns of the output where it goes to no terminal."""

NAME_WIDTH_MIN = 24
"""Columns within which the names of a table's rows can be read, folded at spaces."""

INDENT = 2
"""Columns before what belongs to the line above."""


def console(stream: IO[str] | None = None) -> Console:
    """Standard output (or ``stream``), wide enough for a table where it is a file."""
    stream = stream or sys.stdout
    if not stream.isatty():
        return Console(file=stream, width=WIDTH_OF_A_FILE, soft_wrap=False)
    size = shutil.get_terminal_size()  # rich itself takes every dumb terminal for one of 80 columns
    return Console(file=stream, width=size.columns, height=size.lines)


def fitted(thing: RenderableType, console: Console) -> RenderableType:
    """``thing``, for ``console``: tables in a form that fits, and texts in the characters that it has."""
    encoding = getattr(console.file, "encoding", None) or "utf-8"
    if isinstance(thing, Text):
        found = streams.plain(thing.plain, encoding)
        return thing if found == thing.plain else Text(found, style=thing.style)
    if not isinstance(thing, Table) or not thing.columns:
        return thing
    headings, rows = _contents(thing, encoding)
    widths = [max(_width(row[column]) for row in (headings, *rows)) for column in range(len(headings))]
    gap = _gap(thing)
    numbers = sum(width + gap for width in widths[1:])
    # Columns of words are folded like names.
    words = [not column.no_wrap and column.justify == "left" for column in thing.columns]
    least = [min(width, NAME_WIDTH_MIN) if folds else width for width, folds in zip(widths, words, strict=True)]
    edge = gap if thing.pad_edge else 0
    if least[0] + sum(width + gap for width in least[1:]) + edge <= console.width:
        return _rewritten(thing, headings, rows)
    if INDENT + numbers - gap <= console.width:
        return _in_two_lines(thing, headings, rows, widths, gap)
    return _in_pairs(headings, rows, console.width)


def _contents(table: Table, encoding: str) -> tuple[list[str], list[list[str]]]:
    """Headings and rows as text."""

    def text(cell: RenderableType) -> str:
        return streams.plain(cell.plain if isinstance(cell, Text) else str(cell), encoding)

    columns = [[text(cell) for cell in column.cells] for column in table.columns]
    headings = [text(column.header) if table.show_header else "" for column in table.columns]
    # A row may have fewer cells than the table has columns.
    return headings, [[*row] for row in zip(*columns, strict=True)]


def _width(text: str) -> int:
    return max((cell_len(line) for line in text.split("\n")), default=0)


def _gap(table: Table) -> int:
    _, right, _, left = table.padding
    return left + right


def _rewritten(table: Table, headings: list[str], rows: list[list[str]]) -> Table:
    """The table itself, if all its characters can be shown; else one like it."""
    if all(
        heading == str(column.header) and [row[number] for row in rows] == [_plain(cell) for cell in column.cells]
        for number, (heading, column) in enumerate(zip(headings, table.columns, strict=True))
        if table.show_header or not heading
    ):
        return table
    other = Table(box=None, pad_edge=False, padding=table.padding, show_header=table.show_header, header_style="bold")
    for heading, column in zip(headings, table.columns, strict=True):
        other.add_column(heading, justify=column.justify, no_wrap=column.no_wrap, overflow="fold", vertical="top")
    for row, style in zip(rows, table.rows, strict=True):
        other.add_row(*row, style=style.style, end_section=style.end_section)
    return other


def _plain(cell: RenderableType) -> str:
    return cell.plain if isinstance(cell, Text) else str(cell)


def _in_two_lines(table: Table, headings: list[str], rows: list[list[str]], widths: list[int], gap: int) -> Text:
    """Each row's name in a line of its own, and its numbers below, in columns."""

    def cells(values: list[str]) -> str:
        columns = zip(values[1:], widths[1:], table.columns[1:], strict=True)
        parts = [_padded(value, width, column.justify) for value, width, column in columns]
        return (" " * INDENT + (" " * gap).join(parts)).rstrip()

    lines = Text(no_wrap=False)
    if any(headings):
        high = max(heading.count("\n") for heading in headings) + 1
        split = [heading.split("\n") for heading in headings]
        raised = [[*([""] * (high - len(parts))), *parts] for parts in split]
        if headings[0]:
            lines.append(headings[0].replace("\n", " ") + "\n", style="bold")
        for line in range(high):
            lines.append(cells([parts[line] for parts in raised]) + "\n", style="bold")
    for row in rows:
        numbers = cells(row)
        lines.append(row[0].replace("\n", " ") + "\n", style="" if numbers else "italic")
        if numbers:
            lines.append(numbers + "\n")
    lines.rstrip()
    return lines


def _padded(value: str, width: int, justify: str) -> str:
    """One line of text in so many columns."""
    blank = " " * (width - cell_len(value))
    return blank + value if justify == "right" else value + blank


def _in_pairs(headings: list[str], rows: list[list[str]], width: int) -> Text:
    """Each row's name, and below it each number with its heading, as many to a line as fit."""
    lines = Text(no_wrap=False)
    names = [heading.replace("\n", " ") for heading in headings[1:]]
    for row in rows:
        pairs = [
            f"{heading}: {value}" if heading else value for heading, value in zip(names, row[1:], strict=True) if value
        ]
        lines.append(row[0].replace("\n", " ") + "\n", style="bold" if pairs else "italic")
        for line in _flowed(pairs, width - INDENT):
            lines.append(" " * INDENT + line + "\n")
    lines.rstrip()
    return lines


def _flowed(pairs: list[str], width: int) -> list[str]:
    """``pairs`` in lines of at most ``width`` columns, where no pair alone is wider."""
    lines: list[str] = []
    for pair in pairs:
        joined = f"{lines[-1]}; {pair}" if lines else pair
        if lines and cell_len(joined) <= width:
            lines[-1] = joined
        else:
            lines.append(pair)
    return lines


def csv(frame: pl.DataFrame) -> str:
    """The frame as CSV; lists become texts, with semicolons between their items."""
    import polars as pl

    lists = [name for name, kind in frame.schema.items() if isinstance(kind, pl.List)]
    text: str = frame.with_columns(pl.col(name).cast(pl.List(pl.String)).list.join("; ") for name in lists).write_csv()
    return text
