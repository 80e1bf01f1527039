# SPDX-License-Identifier: MIT OR Apache-2.0
"""Bitbrains (GWA-T-12): a directory of one file a VM, as published, and tables reduced from it.

The trace has samples of running VMs and no creations or deletions: a VM arrives with its first sample and leaves with
its last one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from nestwalk.cloud import requests
from nestwalk.cloud.loaders import csv
from nestwalk.cloud.requests import Malformed, Requests
from nestwalk.errors import NestwalkError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from nestwalk.cloud.loaders import Options
    from nestwalk.cloud.loaders.head import Head

KIB = 1 << 10

SAMPLES = (
    "timestamp",
    "cores",
    "mhz",
    "mhz_used",
    "percent_used",
    "memory_kb",
    "memory_used",
    "disk_read",
    "disk_write",
    "net_in",
    "net_out",
)
"""Columns of a VM's file. The header says ms; the numbers are seconds. Source: the Grid Workloads Archive, GWA-T-12."""

FIRST_FIELD = "Timestamp [ms]"

VMS = (
    "vm",
    "first_seen_epoch_s",
    "last_seen_epoch_s",
    "seen_late",
    "seen_early_end",
    "samples",
    "cores_mode",
    "cores_max",
    "mem_kb_mode",
    "mem_kb_max",
)
MONTHS = (
    "vm",
    "month",
    "first_seen_epoch_s",
    "last_seen_epoch_s",
    "samples",
    "max_gap_s",
    "cores_mode",
    "mem_kb_mode",
    "mem_kb_max",
    "n_distinct_mem",
)

END_SLACK_S = 3600.0
"""Assumption: a VM seen in the trace's first (last) hour ran before (after) it. Samples are five minutes apart."""

NOTES = (
    "the trace has samples and no creations: a VM arrives with its first sample and leaves with its last one",
    "a VM that is seen in the last hour of the trace outlives it: it stays until the end",
    "memory is what the VM was given most of the time that it was on; changes of it are not replayed",
)


def is_samples(head: Head) -> bool:
    """Whether it is one VM's file, or a directory of them."""
    if head.is_directory:
        return True
    return bool(head.lines) and head.lines[0].startswith(FIRST_FIELD) and ";" in head.lines[0]


def load_samples(path: Path, options: Options) -> Requests:
    """One file a VM; files of one name in several directories (the months of Rnd) are one VM.

    Raises:
        NestwalkError: When a directory has no such files, or a file cannot be read.
    """
    del options
    files = sorted(file for file in path.rglob("*.csv") if file.is_file()) if path.is_dir() else [path]
    if not files:
        raise NestwalkError(f"{path}: holds no .csv files; give a file, or a directory of Bitbrains' VM files")
    parts: list[pl.DataFrame] = []
    bad = Malformed()
    names = ["" if file == path else str(file.relative_to(path)) for file in files]
    for number, (file, name) in enumerate(zip(files, names, strict=True)):
        found, wrong = _summary(file, name)
        parts.append(found.with_columns(pl.lit(number, dtype=pl.UInt32).alias("line")))
        bad += wrong
    made = _build(_vms(pl.concat(parts)), path, "Bitbrains (GWA-T-12)", NOTES)
    # Of what is wrong with a VM as a whole, the file is told.
    whole = tuple(
        (names[int(where.removeprefix("line "))] or "the file", what) for where, what in made.malformed.examples
    )
    bad += Malformed(made.malformed.count, whole)
    return Requests(path, made.format, made.frame, bad, made.notes)


def _summary(file: Path, where: str) -> tuple[pl.DataFrame, Malformed]:
    """One file's first and last sample and its usual size, and its malformed lines."""
    samples = csv.scan(file, SAMPLES, header=True, separator=";").select(
        "line",
        requests.number("timestamp").alias("time_s"),
        requests.number("cores").alias("cores"),
        requests.number("memory_kb").alias("memory_kb"),
    )
    wrong = requests.reason(
        (pl.col("time_s").is_null(), "the timestamp is missing or not a number"),
        (pl.col("time_s").abs() > requests.SECONDS_MAX, "the timestamp is too large to be one"),
        (pl.col("cores").is_null(), "the number of cores is missing or not a number"),
        (pl.col("memory_kb").is_null(), "the memory is missing or not a number"),
    )
    frame = requests.collect(samples.with_columns(wrong), file)
    good = frame.filter(pl.col("wrong").is_null())
    row = good.select(
        pl.lit(file.stem).alias("vm"),
        pl.col("time_s").min().alias("first_s"),
        pl.col("time_s").max().alias("last_s"),
        pl.len().alias("samples"),
        # The largest of equally frequent values, so that the result does not depend on their order.
        _running("cores").mode().max().alias("cores"),
        _running("memory_kb").mode().max().alias("memory_kb"),
    )
    return row.filter(pl.col("samples") > 0), requests.malformed(frame.filter(pl.col("wrong").is_not_null()), where)


def _running(column: str) -> pl.Expr:
    """Its values while the VM runs: samples of a VM that is off say 0."""
    return pl.col(column).filter(pl.col(column) > 0)


def _vms(parts: pl.DataFrame) -> pl.LazyFrame:
    """One row a VM from one row a VM and month: the size it had in the month with most samples."""
    return (
        parts.sort("samples", descending=True, maintain_order=True)
        .group_by("vm", maintain_order=True)
        .agg(
            pl.col("line").min(),
            pl.col("first_s").min(),
            pl.col("last_s").max(),
            pl.col("cores").first(),
            pl.col("memory_kb").first(),
        )
        .sort("line")
        .lazy()
    )


def _build(vms: pl.LazyFrame, path: Path, name: str, notes: Sequence[str]) -> Requests:
    """Requests from ``line``, ``vm``, ``first_s``, ``last_s``, ``cores``, ``memory_kb``."""
    # A damaged time has no part in the trace's begin and end.
    sound = vms.filter(pl.col("first_s") >= 0, pl.col("last_s") <= requests.SECONDS_MAX)
    span = requests.collect(sound.select(pl.col("first_s").min(), pl.col("last_s").max()), path).row(0)
    begin, end = (0.0 if value is None else value for value in span)
    outlives = pl.col("last_s") > end - END_SLACK_S
    leave = pl.when(~outlives).then(pl.col("last_s") - begin)
    table = vms.with_columns(
        (pl.col("first_s") - begin).alias("arrive_s"),
        leave.alias("leave_lo_s"),
        leave.alias("leave_hi_s"),
        (pl.col("memory_kb") * KIB).alias("memory_bytes"),
    )
    return requests.build(table, path=path, name=name, checks=_TIMES, notes=notes)


_TIMES = (
    (pl.col("last_s").is_null(), "the last sample's time is missing or not a number"),
    (pl.col("last_s") > requests.SECONDS_MAX, "the last sample's time is too large to be one"),
    (pl.col("first_s") < 0, "the first sample's time is before 1970"),
    (pl.col("last_s") < pl.col("first_s"), "the last sample is before the first one"),
)


def is_vms(head: Head) -> bool:
    """Whether it is the table of one row a VM."""
    return head.header == VMS


def load_vms(path: Path, options: Options) -> Requests:
    """The table of one row a VM."""
    del options
    return _build(_table(path, VMS), path, "Bitbrains, one row a VM", NOTES)


def is_months(head: Head) -> bool:
    """Whether it is the table of one row a VM and month."""
    return head.header == MONTHS


def load_months(path: Path, options: Options) -> Requests:
    """The table of one row a VM and month: the months of a VM are one VM."""
    del options
    table = requests.collect(_table(path, MONTHS), path)
    wrong = requests.reason(
        (pl.any_horizontal(pl.col("vm", "first_s", "last_s", "cores", "memory_kb").is_null()), "a number is missing"),
        (pl.col(csv.EXTRA).is_not_null(), f"more than {len(MONTHS)} fields"),
        *_TIMES,
        (pl.col("cores") <= 0, "the number of cores is not more than 0"),
        (pl.col("cores") > requests.CORES_MAX, "the number of cores is above 1,048,576"),
        (pl.col("memory_kb") <= 0, "the memory is not more than 0"),
        (pl.col("memory_kb") * KIB > requests.BYTES_MAX, "the memory is above 128 TiB"),
    )
    judged = table.with_columns(wrong)
    good = judged.filter(pl.col("wrong").is_null()).drop("wrong")
    made = _build(_vms(good), path, "Bitbrains, one row a VM and month", NOTES)
    bad = requests.malformed(judged.filter(pl.col("wrong").is_not_null()))
    return Requests(path, made.format, made.frame, bad + made.malformed, made.notes)


def _table(path: Path, fields: Sequence[str]) -> pl.LazyFrame:
    return csv.scan(path, fields, header=True).select(
        "line",
        csv.EXTRA,
        csv.text("vm").alias("vm"),
        requests.number("first_seen_epoch_s").alias("first_s"),
        requests.number("last_seen_epoch_s").alias("last_s"),
        requests.number("samples").fill_null(0).alias("samples"),
        _positive("cores_mode", "cores_max" if "cores_max" in fields else "cores_mode").alias("cores"),
        # A VM that was off most of the time has a mode of 0.
        _positive("mem_kb_mode", "mem_kb_max").alias("memory_kb"),
    )


def _positive(usual: str, largest: str) -> pl.Expr:
    value = requests.number(usual)
    return pl.when(value > 0).then(value).otherwise(requests.number(largest))
