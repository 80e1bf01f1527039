# SPDX-License-Identifier: MIT OR Apache-2.0
"""Other traces from a trace: boot storms from a snapshot."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from nestwalk.errors import NestwalkError

if TYPE_CHECKING:
    from nestwalk.cloud.requests import Requests


def boot_storm(trace: Requests, at_s: int | None) -> Requests:
    """The VMs that run at second ``at_s`` (all VMs, if None), all at once at time 0, and never gone.

    The order is the trace's. A VM whose departure has bounds runs until the later one.

    Raises:
        NestwalkError: When no VM runs then.
    """
    if at_s is None:
        running, note = trace.frame, "a boot storm of all VMs: they arrive at once and stay"
    else:
        there = (pl.col("arrive_s") <= at_s) & (pl.col("leave_hi_s").is_null() | (pl.col("leave_hi_s") > at_s))
        running = trace.frame.filter(there)
        note = f"a boot storm of the VMs that run at second {at_s}: they arrive at once and stay"
    if running.is_empty():
        first, last = trace.span_s
        raise NestwalkError(f"{trace.path}: no VM runs at second {at_s}; the trace goes from {first} to {last}")
    never = pl.lit(None, dtype=pl.Int64)
    frame = running.with_columns(
        pl.lit(0, dtype=pl.Int64).alias("arrive_s"), never.alias("leave_lo_s"), never.alias("leave_hi_s")
    )
    return trace.with_frame(frame, note)


QUICK_ONE_IN = 10
"""Of a trace's VMs, a quick replay keeps one in so many."""


def thinned(trace: Requests, one_in: int = QUICK_ONE_IN) -> Requests:
    """One VM in ``one_in``, in the order of arrival: a smaller cloud with the same sizes and lifetimes."""
    return trace.with_frame(trace.frame.gather_every(one_in), f"quick: one VM in {one_in} of the trace is kept")
