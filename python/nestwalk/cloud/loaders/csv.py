# SPDX-License-Identifier: MIT OR Apache-2.0
"""CSV files as text columns with the number of each line, so that malformed rows can be told from good ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

EXTRA = "_extra"
"""Holds what stands after the last known field."""


def scan(
    path: Path, fields: Sequence[str], *, header: bool, separator: str = ",", quoted: bool = False
) -> pl.LazyFrame:
    """The lines of a CSV file (plain, gzip or zstd): ``fields`` as text, ``line`` from 1, and :data:`EXTRA`.

    Missing and empty fields are null. Lines with nothing in them are left out. Bytes that are not UTF-8 are replaced.
    Unless ``quoted``, quotes have no meaning, so that one too many cannot swallow the lines after it; :func:`text`
    takes them off.
    """
    skipped = 1 if header else 0
    return pl.scan_csv(
        path,
        has_header=False,
        skip_lines=skipped,
        schema=dict.fromkeys([*fields, EXTRA], pl.String),
        separator=separator,
        quote_char='"' if quoted else None,
        truncate_ragged_lines=True,
        extra_columns="ignore",
        missing_columns="insert",
        encoding="utf8-lossy",
        row_index_name="line",
        row_index_offset=1 + skipped,
        glob=False,
        raise_if_empty=False,
    ).filter(pl.any_horizontal(pl.col(field).is_not_null() for field in fields))


def too_long(fields: Sequence[str]) -> tuple[pl.Expr, str]:
    """The check that a line has no more fields than there should be."""
    return pl.col(EXTRA).is_not_null(), f"more than {len(fields)} fields"


def text(field: str) -> pl.Expr:
    """A field without blanks and quotes around it; null where nothing is left."""
    value = pl.col(field).str.strip_chars(' \t\r"')
    return pl.when(value != "").then(value)
