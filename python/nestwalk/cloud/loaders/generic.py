# SPDX-License-Identifier: MIT OR Apache-2.0
"""Any CSV or Parquet file, by a map from what is needed to the file's columns.

``vm=id,arrive=start:ms,leave=end:ms,cores=vcpu,memory=ram_mb:MiB``: the unit stands after a colon.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import polars as pl

from nestwalk.cloud import requests
from nestwalk.cloud.loaders import csv
from nestwalk.errors import NestwalkError, unknown
from nestwalk.sizes import SIZES

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from nestwalk.cloud.loaders import Options
    from nestwalk.cloud.loaders.head import Head
    from nestwalk.cloud.requests import Requests

ROLES = ("vm", "arrive", "leave", "leave_lo", "leave_hi", "lifetime", "cores", "memory")
"""What a column can be. Needed are ``memory`` and ``cores``."""

TIMES = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "min": 60.0, "h": 3600.0, "d": 86_400.0}
ISO = "iso"
"""The unit of times written as dates, such as 2017-05-16T00:00:04."""
Columns = dict[str, tuple[str, str | None]]
"""The file's column and its unit, by role."""


def parse(text: str) -> Columns:
    """The map that ``--columns`` gives.

    Raises:
        NestwalkError: When it is none.
    """
    found: Columns = {}
    for part in text.split(","):
        role, equals, column = (word.strip() for word in part.partition("="))
        if not equals or not column:
            raise NestwalkError(f"--columns: '{part.strip()}' is not ROLE=COLUMN[:UNIT]; roles are {', '.join(ROLES)}")
        if role not in ROLES:
            raise unknown("role in --columns", role, ROLES)
        if role in found:
            raise NestwalkError(f"--columns: '{role}' is given twice; give it once")
        name, _, unit = column.rpartition(":")
        found[role] = (name, unit) if name else (column, None)
    for role in ("cores", "memory"):
        if role not in found:
            raise NestwalkError(f"--columns: '{role}' is missing; give {role}=COLUMN")
    if "leave" in found and {"leave_lo", "leave_hi", "lifetime"} & set(found):
        raise NestwalkError("--columns: give 'leave', or 'lifetime', or both 'leave_lo' and 'leave_hi'")
    if ("leave_lo" in found) != ("leave_hi" in found):
        raise NestwalkError("--columns: give both 'leave_lo' and 'leave_hi'")
    return found


def is_parquet(head: Head) -> bool:
    """Whether it is a Parquet file."""
    return head.start.startswith(b"PAR1")


def parquet_columns(path: Path) -> list[str]:
    """The columns of a Parquet file.

    Raises:
        NestwalkError: When it is damaged.
    """
    try:
        return pl.scan_parquet(path).collect_schema().names()
    except (OSError, pl.exceptions.PolarsError) as error:
        raise NestwalkError(f"{path}: is not a sound Parquet file: {requests.first_line(error)}") from error


def load(path: Path, options: Options) -> Requests:
    """The file as ``--columns`` says.

    Raises:
        NestwalkError: When a column is not there, or the file cannot be read.
    """
    columns = options.columns
    if columns is None:
        raise NestwalkError(f"{path}: the columns of this file are not known; name them, as in --columns {_EXAMPLE}")
    parquet = _is_parquet_file(path)
    scanned, names, nested = _parquet(path) if parquet else (*_csv(path), ())
    for role, (column, _) in columns.items():
        if column not in names:
            raise unknown(f"column for {role} in {path.name}", column, names)
        if column in nested:
            raise NestwalkError(f"{path}: the column '{column}' for {role} holds lists or structures; name a plain one")
    notes = [] if "arrive" in columns else ["no column tells the arrival: all VMs arrive at once (a boot storm)"]
    if not {"leave", "leave_lo", "lifetime"} & set(columns):
        notes.append("no column tells the departure: every VM stays until the end")
    checks = [(pl.col(csv.EXTRA).is_not_null(), f"more than {len(names)} fields")]
    checks += [(pl.col(f"bad_{role}"), f"'{columns[role][0]}' is not a time") for role in _LEAVES if role in columns]
    return requests.build(
        scanned.select(_expressions(columns)),
        path=path,
        name="Parquet" if parquet else "CSV",
        checks=checks,
        notes=notes,
    )


_EXAMPLE = "vm=id,arrive=start:s,leave=end:s,cores=vcpus,memory=ram:GiB"
_LEAVES = ("leave", "leave_lo", "leave_hi", "lifetime")


def _is_parquet_file(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"PAR1"


def _parquet(path: Path) -> tuple[pl.LazyFrame, list[str], list[str]]:
    """All columns as text, so that both kinds of files go one way; all names, and those that have no text."""
    try:
        scanned = pl.scan_parquet(path, row_index_name="line", row_index_offset=1)
        schema = scanned.collect_schema()
    except (OSError, pl.exceptions.PolarsError) as error:
        raise NestwalkError(f"{path}: is not a sound Parquet file: {requests.first_line(error)}") from error
    names = [name for name in schema.names() if name != "line"]
    nested = [name for name in names if schema[name].is_nested() or schema[name] == pl.Object]
    texts = [
        (pl.col(name).dt.to_string("iso:strict") if schema[name].is_temporal() else pl.col(name)).cast(
            pl.String, strict=False
        )
        for name in names
        if name not in nested
    ]
    return scanned.select("line", *texts, pl.lit(None, dtype=pl.String).alias(csv.EXTRA)), names, nested


def _csv(path: Path) -> tuple[pl.LazyFrame, list[str]]:
    """All columns as text. Quotes count if a field of the first lines has a separator between them."""
    from nestwalk.cloud.loaders import head

    start = head.read(path)
    names = [name for name in start.header if name]
    if not names or len(set(names)) != len(names):
        raise NestwalkError(f"{path}: the first line does not name the columns, each once; put a header there")
    quoted = any(re.search(r'"[^"]*,[^"]*"', line) for line in start.lines)
    return csv.scan(path, names, header=True, quoted=quoted), names


def _expressions(columns: Mapping[str, tuple[str, str | None]]) -> list[pl.Expr]:
    """The columns that :func:`requests.build` needs."""
    none = pl.lit(None, dtype=pl.Float64)
    arrive = _time("arrive", columns) if "arrive" in columns else pl.lit(0.0)
    lo = hi = none
    if "leave" in columns:
        lo = hi = _time("leave", columns)
    elif "lifetime" in columns:
        lo = hi = arrive + _time("lifetime", columns)
    elif "leave_lo" in columns:
        lo, hi = _time("leave_lo", columns), _time("leave_hi", columns)
    bad = [
        (_time(role, columns).is_null() & csv.text(columns[role][0]).is_not_null()).alias(f"bad_{role}")
        for role in _LEAVES
        if role in columns
    ]
    name = csv.text(columns["vm"][0]) if "vm" in columns else pl.col("line").cast(pl.String)
    return [
        pl.col("line").cast(pl.Int64),
        pl.col(csv.EXTRA),
        name.alias("vm"),
        arrive.alias("arrive_s"),
        lo.alias("leave_lo_s"),
        hi.alias("leave_hi_s"),
        requests.number(columns["cores"][0]).alias("cores"),
        (requests.number(columns["memory"][0]) * _unit("memory", columns, SIZES, "GiB")).alias("memory_bytes"),
        *bad,
    ]


def _unit(role: str, columns: Mapping[str, tuple[str, str | None]], known: Mapping[str, float], default: str) -> float:
    unit = columns[role][1] or default
    if unit not in known:
        raise unknown(f"unit of {role} in --columns", unit, known)
    return known[unit]


_DATE = "%Y-%m-%dT%H:%M:%S%.f"


def _time(role: str, columns: Mapping[str, tuple[str, str | None]]) -> pl.Expr:
    """Seconds."""
    column, unit = columns[role]
    if unit == ISO:
        written = csv.text(column).str.replace(" ", "T", literal=True).str.replace("Z$", "+00:00")
        zoned = written.str.to_datetime(f"{_DATE}%:z", strict=False, time_zone="UTC", time_unit="ms")
        # Without a zone it is UTC.
        plain = written.str.to_datetime(_DATE, strict=False, time_unit="ms").dt.replace_time_zone("UTC")
        return pl.coalesce(zoned, plain).dt.epoch("ms") / 1000
    return requests.number(column) * _unit(role, columns, {**TIMES, ISO: 1.0}, "s")
