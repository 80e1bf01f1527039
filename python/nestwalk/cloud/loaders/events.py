# SPDX-License-Identifier: MIT OR Apache-2.0
"""Traces that are logs of events: each VM's creation is paired with its deletion."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from nestwalk.cloud import requests
from nestwalk.cloud.requests import Malformed, Requests

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SCHEMA = {
    "line": pl.Int64,
    "vm": pl.String,
    "kind": pl.String,
    "time_s": pl.Float64,
    "cores": pl.Float64,
    "memory_bytes": pl.Float64,
}
"""Columns of a log: ``kind`` is ``create`` or ``delete``; cores and memory are those of creations."""


def pair(
    log: pl.DataFrame,
    *,
    path: Path,
    name: str,
    bad: Malformed,
    notes: Sequence[str],
) -> Requests:
    """Requests from a log of events.

    A name may be used again after its VM is gone. A deletion of what does not run is malformed, and so is a creation of
    what runs already.
    """
    before = pl.col("kind").shift(1).over("vm")
    wrong = requests.reason(
        ((pl.col("kind") == "create") & (before == "create"), "a creation of a VM that runs already"),
        ((pl.col("kind") == "delete") & before.ne_missing("create"), "a deletion of a VM that does not run"),
    )
    judged = log.sort("time_s", maintain_order=True).with_columns(wrong)
    # What is left of a name alternates: the event after a creation is its deletion.
    sound = judged.filter(pl.col("wrong").is_null()).with_columns(
        pl.col("time_s").shift(-1).over("vm").alias("leave_s")
    )
    table = sound.filter(pl.col("kind") == "create").select(
        "line", "vm", "cores", "memory_bytes", arrive_s="time_s", leave_lo_s="leave_s", leave_hi_s="leave_s"
    )
    made = requests.build(table.lazy(), path=path, name=name, notes=notes, unique=False)
    bad += requests.malformed(judged.filter(pl.col("wrong").is_not_null()))
    return Requests(path, name, made.frame, bad + made.malformed, tuple(notes))
