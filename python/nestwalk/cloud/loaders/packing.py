# SPDX-License-Identifier: MIT OR Apache-2.0
"""Azure's packing trace of 2020: an SQLite file with VMs and the fractions of machines that their types need."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING
from urllib.parse import quote

import polars as pl

from nestwalk.cloud import requests
from nestwalk.cloud.requests import Malformed, Requests
from nestwalk.errors import NestwalkError

if TYPE_CHECKING:
    from pathlib import Path

    from nestwalk.cloud.loaders import Options
    from nestwalk.cloud.loaders.head import Head

DAY_S = 86_400
NAME = "Azure packing 2020"
"""What results call the format."""
MACHINE = (40.0, float(256 << 30))
"""Assumption: cores and bytes of the machine that the packing trace counts in, which does not say; the paper's Gen5."""

TABLES = {"vm": ("vmId", "vmTypeId", "starttime", "endtime"), "vmType": ("vmTypeId", "machineId", "core", "memory")}
"""Tables and the columns that are used. Source: Azure/AzurePublicDataset, AzureTracesForPacking2020."""


def is_packing(head: Head) -> bool:
    """Whether it is an SQLite file."""
    return head.start.startswith(b"SQLite format 3\0")


def load(path: Path, options: Options) -> Requests:
    """VMs in fractions of a machine, which :attr:`Options.machine` sizes.

    A type may fit several machines; it is taken as it is on the machine with the smallest number that it fits.

    Raises:
        NestwalkError: When the file is damaged, or is another database.
    """
    try:
        # Opened read-only, so that a look at a file leaves no journal beside it.
        connection = sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)
        try:
            _check_length(connection, path)
            _check_tables(connection, path)
            types = _read(connection, "SELECT vmTypeId, machineId, core, memory FROM vmType", 4)
            rows = _read(connection, "SELECT rowid, vmId, vmTypeId, starttime, endtime FROM vm", 5)
        finally:
            connection.close()
    except (sqlite3.Error, UnicodeDecodeError, OverflowError) as error:
        raise NestwalkError(f"{path}: is not a sound SQLite file: {requests.first_line(error)}") from error
    return _requests(path, options, types, rows)


def _check_length(connection: sqlite3.Connection, path: Path) -> None:
    """SQLite reads what is missing at the end of a file's last page as zeros."""
    (size,) = connection.execute("PRAGMA page_size").fetchone()
    (count,) = connection.execute("PRAGMA page_count").fetchone()
    if path.stat().st_size < size * count or path.stat().st_size % size:
        raise NestwalkError(f"{path}: is not a sound SQLite file: its end is missing; fetch it again")


def _check_tables(connection: sqlite3.Connection, path: Path) -> None:
    for table, columns in TABLES.items():
        found = {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}
        missing = [column for column in columns if column not in found]
        if missing:
            raise NestwalkError(
                f"{path}: has no column {table}.{missing[0]}; give Azure's packing trace (tables vm and vmType)"
            )


def _read(connection: sqlite3.Connection, query: str, columns: int) -> list[pl.Series]:
    """The columns of a query as text: SQLite does not hold a column to its type."""
    rows = connection.execute(query).fetchall()
    return [pl.Series(str(at), [_text(row[at]) for row in rows], dtype=pl.String) for at in range(columns)]


def _text(value: object) -> str | None:
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="replace")
    return None if value is None else str(value)


def _requests(path: Path, options: Options, types: list[pl.Series], rows: list[pl.Series]) -> Requests:
    kinds = (
        pl.DataFrame([column.alias(name) for column, name in zip(types, TABLES["vmType"], strict=True)])
        .with_columns(requests.number("machineId").alias("machine"))
        .sort("machine", nulls_last=True, maintain_order=True)
        .unique("vmTypeId", keep="first", maintain_order=True)
    )
    vms = pl.DataFrame([column.alias(name) for column, name in zip(rows, ("line", *TABLES["vm"]), strict=True)])
    cores, memory = options.machine or MACHINE
    end = requests.number("endtime")
    table = vms.join(kinds, on="vmTypeId", how="left", maintain_order="left").select(
        pl.col("line").cast(pl.Int64),
        pl.col("vmId").alias("vm"),
        (requests.number("starttime") * DAY_S).alias("arrive_s"),
        (end * DAY_S).alias("leave_lo_s"),
        (end * DAY_S).alias("leave_hi_s"),
        (requests.number("core") * cores).alias("cores"),
        (requests.number("memory") * memory).round().alias("memory_bytes"),
        (end.is_null() & pl.col("endtime").is_not_null()).alias("bad_end"),
        (pl.col("machine").is_null()).alias("no_type"),
    )
    checks = [
        (pl.col("no_type"), "its type is not in the table vmType"),
        (pl.col("bad_end"), "endtime is not a number"),
    ]
    notes = [
        f"a machine is taken to have {cores:g} cores and {memory / 2**30:g} GiB (--machine says otherwise)",
        "sizes are rounded up to whole cores and pages",
        "a type that fits several machines is taken as on the first; priorities are not modelled",
        "a VM with a negative start runs before the trace begins, one without an end stays until the end",
    ]
    made = requests.build(table.lazy(), path=path, name=NAME, checks=checks, notes=notes)
    bad = Malformed(
        made.malformed.count,
        tuple((where.replace("line", "vm row"), what) for where, what in made.malformed.examples),
    )
    return Requests(path, made.format, made.frame, bad, made.notes)
