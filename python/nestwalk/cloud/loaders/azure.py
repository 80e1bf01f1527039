# SPDX-License-Identifier: MIT OR Apache-2.0
"""Azure's public traces of VMs: V1 and V2 as published (no header), and V1 as reduced to what placement needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from nestwalk.cloud import requests
from nestwalk.cloud.loaders import csv

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from nestwalk.cloud.loaders import Options
    from nestwalk.cloud.loaders.head import Head
    from nestwalk.cloud.requests import Requests

GIB = 1 << 30

VMTABLE = (
    "vmid",
    "subscriptionid",
    "deploymentid",
    "vmcreated",
    "vmdeleted",
    "maxcpu",
    "avgcpu",
    "p95maxcpu",
    "vmcategory",
    "vmcorecount",
    "vmmemory",
)
"""Columns of ``vmtable.csv``; seconds, per cent, GB. Source: Azure/AzurePublicDataset, schema of V1 and V2."""

CATEGORIES = {"Delay-insensitive", "Interactive", "Unknown"}

BUCKETS_MEMORY = {"2", "4", "8", "32", "64", ">64"}
BUCKETS_CORES = {"2", "4", "8", "24", ">24"}
"""V2 gives upper bounds of ranges. Source: AzurePublicDatasetV2.md."""

ABOVE_24_CORES = 32
ABOVE_64_GB = 128
"""Assumption: what ``>24`` cores and ``>64`` GB stand for, the next power of two; the trace does not say."""

REDUCED = ("vm_id", "batch_id", "create_s", "delete_lo_s", "delete_hi_s", "cores", "memory_gb")
ARRIVALS = ("vm_id", "batch_id", "create_s", "cores", "memory_gb")
NO_DEPARTURES = "the trace has no departures: every VM stays until the end, so the fleet must hold all of them at once"
REDUCED_ALL = (*REDUCED, "alive_at_split_end", "split")


def is_vmtable(head: Head) -> bool:
    """Whether it is ``vmtable.csv`` of V1 or V2: eleven fields without a header, the ninth a category."""
    fields = next((line.split(",") for line in head.lines if line.count(",") == len(VMTABLE) - 1), None)
    return fields is not None and fields[8].strip() in CATEGORIES


def load_vmtable(path: Path, options: Options) -> Requests:
    """``vmtable.csv`` as published. V2 is known by the buckets in its last two columns."""
    del options
    scanned = csv.scan(path, VMTABLE, header=False)
    created, deleted = requests.number("vmcreated"), requests.number("vmdeleted")
    facts = requests.collect(
        scanned.select(
            deleted.filter(deleted.abs() <= requests.SECONDS_MAX).max().alias("end"),
            csv.text("vmcorecount").is_in(BUCKETS_CORES).all().alias("cores"),
            csv.text("vmmemory").is_in(BUCKETS_MEMORY).all().alias("memory"),
            (csv.text("vmcorecount").str.starts_with(">") | csv.text("vmmemory").str.starts_with(">"))
            .any()
            .alias("v2"),
        ),
        path,
    ).row(0, named=True)
    buckets = bool(facts["v2"]) or bool(facts["cores"] and facts["memory"])
    end = facts["end"] if facts["end"] is not None else 0.0
    # The last time of the trace stands for every VM that outlived it.
    outlives = deleted >= end
    table = scanned.select(
        "line",
        csv.EXTRA,
        csv.text("vmid").alias("vm"),
        created.alias("arrive_s"),
        pl.when(~outlives).then(deleted).alias("leave_lo_s"),
        pl.when(~outlives).then(deleted).alias("leave_hi_s"),
        deleted.is_null().alias("no_end"),
        (deleted.abs() > requests.SECONDS_MAX).alias("bad_end"),
        (deleted < created).alias("too_early"),
        _bucket("vmcorecount", ABOVE_24_CORES).alias("cores"),
        (_bucket("vmmemory", ABOVE_64_GB) * GIB).alias("memory_bytes"),
    )
    notes = ["a VM that is deleted at the last time of the trace outlives it: it stays until the end"]
    if buckets:
        notes.append(
            "cores and memory are the upper bounds of the trace's buckets; assumed are "
            f"{ABOVE_24_CORES} cores for '>24' and {ABOVE_64_GB} GB for '>64'"
        )
    return requests.build(
        table,
        path=path,
        name="Azure V2 vmtable" if buckets else "Azure V1 vmtable",
        checks=[
            csv.too_long(VMTABLE),
            (pl.col("no_end"), "the time of deletion is missing or not a number"),
            (pl.col("bad_end"), "the time of deletion is too large to be one"),
            (pl.col("too_early"), "the VM leaves before it arrives"),
        ],
        notes=notes,
    )


def _bucket(field: str, above: int) -> pl.Expr:
    """A number, or the one that is assumed for a bucket without an upper bound."""
    is_open = pl.col(field).str.strip_chars(' \t\r"').str.starts_with(">")
    return pl.when(is_open).then(pl.lit(float(above))).otherwise(requests.number(field))


def is_reduced(head: Head) -> bool:
    """Whether it is V1 reduced to arrivals, bounds of departures, and sizes."""
    return head.header[: len(REDUCED)] == REDUCED


def load_reduced(path: Path, options: Options) -> Requests:
    """V1's days 21 to 30, where departures are known exactly or to the hour or day."""
    del options
    lo, hi = requests.number("delete_lo_s"), requests.number("delete_hi_s")
    table = csv.scan(path, REDUCED_ALL, header=True).select(
        "line",
        csv.EXTRA,
        csv.text("vm_id").alias("vm"),
        requests.number("create_s").alias("arrive_s"),
        lo.alias("leave_lo_s"),
        hi.alias("leave_hi_s"),
        (lo.is_null() & csv.text("delete_lo_s").is_not_null()).alias("bad_lo"),
        (hi.is_null() & csv.text("delete_hi_s").is_not_null()).alias("bad_hi"),
        requests.number("cores").alias("cores"),
        (requests.number("memory_gb") * GIB).alias("memory_bytes"),
    )
    checks = [
        csv.too_long(REDUCED_ALL),
        (pl.col("bad_lo"), "delete_lo_s is not a number"),
        (pl.col("bad_hi"), "delete_hi_s is not a number"),
    ]
    return requests.build(table, path=path, name="Azure V1, reduced", checks=checks)


PACKED = ("create_s", "cores", "memory_gb")
PACKED_DEPARTURES = ("delete_lo_s", "delete_hi_s")
"""Columns of the bundled Parquet files; the second ones are there where departures are known."""


def is_packed(names: Sequence[str]) -> bool:
    """Whether these are the columns of a bundled Parquet file."""
    return set(PACKED) <= set(names) <= {*PACKED, *PACKED_DEPARTURES}


def load_packed(path: Path, options: Options) -> Requests:
    """The same as it comes with Nestwalk, in Parquet files."""
    del options
    scanned = pl.scan_parquet(path, row_index_name="line", row_index_offset=1)
    known = PACKED_DEPARTURES[0] in scanned.collect_schema().names()
    none = pl.lit(None, dtype=pl.Float64)
    lo, hi = (_packed(name) if known else none for name in PACKED_DEPARTURES)
    table = scanned.select(
        "line",
        pl.col("line").cast(pl.String).alias("vm"),
        _packed("create_s").alias("arrive_s"),
        lo.alias("leave_lo_s"),
        hi.alias("leave_hi_s"),
        _packed("cores").alias("cores"),
        (_packed("memory_gb") * GIB).alias("memory_bytes"),
        (lo.is_null() & pl.col(PACKED_DEPARTURES[0]).is_not_null() if known else pl.lit(value=False)).alias("bad_end"),
    )
    name = "Azure V1, reduced" if known else "Azure V1, arrivals only"
    bad_end = (pl.col("bad_end"), "the time of departure is not a number")
    return requests.build(table, path=path, name=name, checks=[bad_end], notes=() if known else (NO_DEPARTURES,))


def _packed(name: str) -> pl.Expr:
    """A column as numbers; null where it has none."""
    return pl.col(name).cast(pl.Float64, strict=False)


def is_arrivals(head: Head) -> bool:
    """Whether it is V1 reduced to arrivals and sizes."""
    return head.header == ARRIVALS


def load_arrivals(path: Path, options: Options) -> Requests:
    """V1's days 1 to 20, without departures: every VM stays."""
    del options
    table = csv.scan(path, ARRIVALS, header=True).select(
        "line",
        csv.EXTRA,
        csv.text("vm_id").alias("vm"),
        requests.number("create_s").alias("arrive_s"),
        pl.lit(None, dtype=pl.Float64).alias("leave_lo_s"),
        pl.lit(None, dtype=pl.Float64).alias("leave_hi_s"),
        requests.number("cores").alias("cores"),
        (requests.number("memory_gb") * GIB).alias("memory_bytes"),
    )
    return requests.build(
        table, path=path, name="Azure V1, arrivals only", checks=[csv.too_long(ARRIVALS)], notes=[NO_DEPARTURES]
    )
