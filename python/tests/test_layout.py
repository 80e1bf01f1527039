# SPDX-License-Identifier: MIT OR Apache-2.0
"""Tables fit into any number of columns without losing a digit."""

from __future__ import annotations

import io
import re

import polars as pl
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.table import Table

from nestwalk import layout

numbers = st.floats(0, 1e6).map(lambda value: f"{value:.2f} ±{value / 7:.2f}")
names = st.text("abcdefg, ", min_size=1, max_size=40).map(str.strip).filter(bool)


def printed(table: Table, width: int, encoding: str = "utf-8") -> str:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(file=stream, width=width, force_terminal=False)
    console.print(layout.fitted(table, console))
    stream.flush()
    stream.seek(0)
    return stream.read()


@given(
    st.lists(st.tuples(names, st.lists(numbers, min_size=5, max_size=5)), min_size=1, max_size=5), st.integers(45, 160)
)
def test_no_number_is_cut_and_no_row_loses_its_name(rows: list[tuple[str, list[str]]], width: int) -> None:
    table = Table("name", *(f"head{number}\nline" for number in range(5)), box=None, padding=(0, 0, 0, 2))
    table.columns[0].overflow = "fold"  # as all our tables are made
    for column in table.columns[1:]:
        column.no_wrap = True
    for name, values in rows:
        table.add_row(name, *values)
    for encoding in ("utf-8", "ascii"):
        text = printed(table, width, encoding)
        assert max(map(len, text.splitlines())) <= width
        found = re.findall(r"\d+\.\d+ (?:±|\+-)\d+\.\d+", text)
        wanted = [value for _, values in rows for value in values]
        assert [value.replace("+-", "±") for value in found] == wanted
        letters = re.sub("name|head|line|[^a-g,]", "", text)  # a folded name has numbers between its parts
        for name, _ in rows:
            assert name.replace(" ", "") in letters


def test_a_column_of_words_is_folded_and_does_not_break_the_rows_apart() -> None:
    table = Table("", "", box=None, show_header=False, padding=(0, 0, 0, 2))
    for column in table.columns:
        column.overflow = "fold"
    table.add_row("windows", "18")
    table.add_row("sampling", "words " * 40)
    lines = printed(table, 80).splitlines()
    assert re.fullmatch(r" *windows +18 *", lines[0])
    assert max(map(len, lines)) <= 80
    assert sum(line.count("words") for line in lines) == 40


def test_csv_has_texts_in_place_of_lists() -> None:
    frame = pl.DataFrame({"a": [1.5, None], "b": [["x", "y"], None]}, schema={"a": pl.Float64, "b": pl.List(pl.String)})
    assert layout.csv(frame) == "a,b\n1.5,x; y\n,\n"
