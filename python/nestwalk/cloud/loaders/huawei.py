# SPDX-License-Identifier: MIT OR Apache-2.0
"""Huawei's traces: East-1's events (VMAgent), and the requests of the topology-aware data set."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from nestwalk.cloud import requests
from nestwalk.cloud.loaders import csv, events

if TYPE_CHECKING:
    from pathlib import Path

    from nestwalk.cloud.loaders import Options
    from nestwalk.cloud.loaders.head import Head
    from nestwalk.cloud.requests import Requests

GIB = 1 << 30

EAST = ("vmid", "cpu", "memory", "time", "type")
"""GB, seconds; type 0 creates, 1 deletes. Source: VMAgent's data set Huawei-East-1."""

KINDS = {"0": "create", "1": "delete"}

TOPOLOGY = ("flavor_vcpus", "flavor_ram", "numa", "strategy", "group", "domain")
"""Cores and GB. Source: Dataset-for-topology-aware-VM-placement."""


def is_east(head: Head) -> bool:
    """Whether it is Huawei-East-1."""
    return head.header == EAST


def load_east(path: Path, options: Options) -> Requests:
    """Creations and deletions, one a line."""
    del options
    scanned = csv.scan(path, EAST, header=True).select(
        pl.col("line").cast(pl.Int64),
        csv.EXTRA,
        csv.text("vmid").alias("vm"),
        _kind().alias("kind"),
        requests.number("time").alias("time_s"),
        requests.number("cpu").alias("cores"),
        (requests.number("memory") * GIB).alias("memory_bytes"),
    )
    wrong = requests.reason(
        csv.too_long(EAST),
        (pl.col("vm").is_null(), "the VM has no name"),
        (pl.col("kind").is_null(), "the type is neither 0 (create) nor 1 (delete)"),
        (pl.col("time_s").is_null(), "the time is missing or not a number"),
        (pl.col("time_s").abs() > requests.SECONDS_MAX, "the time is too large to be one"),
    )
    log = requests.collect(scanned.with_columns(wrong), path)
    bad = requests.malformed(log.filter(pl.col("wrong").is_not_null()))
    good = log.filter(pl.col("wrong").is_null()).select(list(events.SCHEMA))
    return events.pair(good, path=path, name="Huawei-East-1", bad=bad, notes=())


def _kind() -> pl.Expr:
    code = requests.number("type").cast(pl.Int64, strict=False).cast(pl.String)
    return code.replace_strict(KINDS, default=None, return_dtype=pl.String)


def is_topology(head: Head) -> bool:
    """Whether it is a file of requests of the topology-aware data set."""
    return head.header == TOPOLOGY


def load_topology(path: Path, options: Options) -> Requests:
    """Requests in order, without times: all arrive at once and stay."""
    del options
    table = csv.scan(path, TOPOLOGY, header=True).select(
        "line",
        csv.EXTRA,
        (pl.col("line") - 2).cast(pl.String).alias("vm"),
        pl.lit(0.0).alias("arrive_s"),
        pl.lit(None, dtype=pl.Float64).alias("leave_lo_s"),
        pl.lit(None, dtype=pl.Float64).alias("leave_hi_s"),
        requests.number("flavor_vcpus").alias("cores"),
        (requests.number("flavor_ram") * GIB).alias("memory_bytes"),
    )
    notes = [
        "the trace has no times: all VMs arrive at once, in the order of the file, and stay (a boot storm)",
        "affinity groups and fault domains are not modelled",
    ]
    return requests.build(
        table, path=path, name="Huawei topology-aware requests", checks=[csv.too_long(TOPOLOGY)], notes=notes
    )
