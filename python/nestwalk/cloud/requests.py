# SPDX-License-Identifier: MIT OR Apache-2.0
"""Requests for VMs: the one table that every loader makes, and what was wrong with the rows that are not in it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import polars as pl

from nestwalk.cloud import gz
from nestwalk.errors import NestwalkError
from nestwalk.sizes import PAGE_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SCHEMA = {
    "vm": pl.String,
    "arrive_s": pl.Int64,
    "leave_lo_s": pl.Int64,
    "leave_hi_s": pl.Int64,
    "vcpus": pl.UInt32,
    "memory_pages": pl.UInt64,
}
"""Columns of :attr:`Requests.frame`.

``vm`` is the trace's own name of the VM. Times are whole seconds of the trace's clock; a VM leaves between
``leave_lo_s`` and ``leave_hi_s`` (equal: exactly then; both null: no departure is known, it stays until the end). A
negative ``arrive_s`` means that the VM ran before the trace began. Memory is in pages of 4 KiB.
"""

EXAMPLES_MAX = 5
"""Of more malformed rows than this, only the first ones are shown."""

BYTES_MAX = 1 << 47
CORES_MAX = 1 << 20
SECONDS_MAX = 1 << 34
"""What is larger than these is a damaged number, or has another unit: 128 TiB of memory, a million cores, 540 years."""


@dataclass(frozen=True)
class Malformed:
    """The rows of a trace that could not be used."""

    count: int = 0
    examples: tuple[tuple[str, str], ...] = ()
    """Of the first ones: where (``line 7``, ``3.csv, line 7``), and what is wrong."""

    def __add__(self, other: Malformed) -> Malformed:
        """Both, the first ones kept."""
        return Malformed(self.count + other.count, (self.examples + other.examples)[:EXAMPLES_MAX])

    def sentences(self) -> list[str]:
        """For people: how many, and the first ones."""
        if not self.count:
            return []
        rows = "1 malformed row was" if self.count == 1 else f"{self.count:,} malformed rows were"
        more = ["..."] if self.count > len(self.examples) else []
        return [f"{rows} left out: " + "; ".join([*(f"{where}: {what}" for where, what in self.examples), *more])]

    def to_json(self) -> dict[str, Any]:
        """For ``--json``."""
        return {"count": self.count, "examples": [{"where": where, "what": what} for where, what in self.examples]}


@dataclass(frozen=True)
class Requests:
    """A trace: requests in the order in which they came."""

    path: Path
    format: str
    """Its format's name, as ``nestwalk place`` prints it."""
    frame: pl.DataFrame
    """Columns as in :data:`SCHEMA`, in order of arrival; VMs that arrive together are in the order of the file."""
    malformed: Malformed = Malformed()
    notes: tuple[str, ...] = field(default=())
    """What the loader had to assume, a sentence each."""

    @property
    def span_s(self) -> tuple[int, int]:
        """When the first VM arrives, and the last event that is known."""
        if self.frame.is_empty():
            return (0, 0)
        ends = self.frame.select(
            pl.col("arrive_s").min().alias("first"),
            pl.max_horizontal(pl.col("arrive_s").max(), pl.col("leave_hi_s").max()).alias("last"),
        ).row(0)
        return int(ends[0]), int(ends[1])

    def with_frame(self, frame: pl.DataFrame, *notes: str) -> Requests:
        """The same trace with other requests, and why."""
        return replace(self, frame=frame, notes=(*self.notes, *notes))


def reason(*checks: tuple[pl.Expr, str]) -> pl.Expr:
    """What is wrong with a row: the sentence of the first check that is true, or null. A null check is not true."""
    found = [pl.when(check.fill_null(value=False)).then(pl.lit(what, dtype=pl.String)) for check, what in checks]
    return pl.coalesce([*found, pl.lit(None, dtype=pl.String)]).alias("wrong")


def number(column: str) -> pl.Expr:
    """The text of ``column`` as a number; null where it is none, or not finite."""
    value = pl.col(column).str.strip_chars(' \t\r"').cast(pl.Float64, strict=False)
    return pl.when(value.is_finite()).then(value)


def build(  # one path for all loaders, so that each refuses the same rows
    table: pl.LazyFrame,
    *,
    path: Path,
    name: str,
    checks: Sequence[tuple[pl.Expr, str]] = (),
    notes: Sequence[str] = (),
    where: str = "",
    unique: bool = True,
) -> Requests:
    """Requests from the rows of ``table``, and a count of those that are malformed.

    Args:
        table: Has ``line`` (from 1), ``vm``, ``arrive_s``, ``cores``, ``memory_bytes``, and, each null where it is not
            known, ``leave_lo_s`` and ``leave_hi_s``.
        path: The file, for messages.
        name: Its format's name.
        checks: What the loader checks besides: true means malformed.
        notes: What the loader assumed.
        where: Put before the line's number, such as the name of one file of many.
        unique: Refuse a VM while another one of its name runs; else the table is known to have none.

    Raises:
        NestwalkError: When the file cannot be read.
    """
    finite = [pl.when(pl.col(name).cast(pl.Float64).is_finite()).then(pl.col(name)).alias(name) for name in _NUMBERS]
    judged = table.with_columns(finite).with_columns(reason(*checks, *_CHECKS))
    frame = collect(judged, path)
    bad = frame.filter(pl.col("wrong").is_not_null()).select("line", "wrong")
    good = frame.filter(pl.col("wrong").is_null()).select(
        "line",
        pl.col("vm").cast(pl.String),
        pl.col("arrive_s", "leave_lo_s", "leave_hi_s").floor().cast(pl.Int64),
        pl.col("cores").ceil().cast(pl.UInt32).alias("vcpus"),
        (pl.col("memory_bytes") / PAGE_BYTES).ceil().cast(pl.UInt64).alias("memory_pages"),
    )
    good = good.sort("arrive_s", maintain_order=True)
    if unique and good["vm"].n_unique() < len(good):
        good = good.with_columns(_twice())
        twice = good.filter(pl.col("wrong").is_not_null()).select(bad.columns)
        bad = pl.concat([bad, twice], how="vertical_relaxed")
        good = good.filter(pl.col("wrong").is_null())
    return Requests(path, name, good.select(SCHEMA.keys()), malformed(bad, where), tuple(notes))


def _twice() -> pl.Expr:
    """Of requests in order: what is wrong with those that arrive while another one of their name runs, else null."""
    stays = pl.col("leave_hi_s").fill_null(SECONDS_MAX)
    running = stays.cum_max().shift(1).over("vm") > pl.col("arrive_s")
    at_once = pl.col("arrive_s").shift(1).over("vm") == pl.col("arrive_s")
    return reason((running | at_once, "a VM of this name runs already"))


_NUMBERS = ("arrive_s", "cores", "memory_bytes")
"""What has to be there. (A bound of departure that is not finite is refused as too large, not taken as unknown.)"""


_CHECKS: tuple[tuple[pl.Expr, str], ...] = (
    (pl.col("vm").is_null(), "the VM has no name"),
    (pl.col("arrive_s").is_null(), "the time of arrival is missing or not a number"),
    (pl.col("arrive_s").abs() > SECONDS_MAX, "the time of arrival is too large to be one"),
    (pl.col("memory_bytes").is_null(), "the memory is missing or not a number"),
    (pl.col("memory_bytes") <= 0, "the memory is not more than 0"),
    (pl.col("memory_bytes") > BYTES_MAX, "the memory is above 128 TiB"),
    (pl.col("cores").is_null(), "the number of cores is missing or not a number"),
    (pl.col("cores") <= 0, "the number of cores is not more than 0"),
    (pl.col("cores") > CORES_MAX, "the number of cores is above 1,048,576"),
    (
        pl.col("leave_lo_s").is_null() != pl.col("leave_hi_s").is_null(),
        "only one bound of the time of departure is there",
    ),
    (pl.col("leave_hi_s").abs() > SECONDS_MAX, "the time of departure is too large to be one"),
    (pl.col("leave_hi_s") < pl.col("leave_lo_s"), "the bounds of the time of departure are in the wrong order"),
    (pl.col("leave_lo_s") < pl.col("arrive_s"), "the VM leaves before it arrives"),
)


def malformed(bad: pl.DataFrame, where: str = "") -> Malformed:
    """Counts the rows of ``bad``, which has ``line`` and ``wrong``."""
    first = bad.sort("line").head(EXAMPLES_MAX).select("line", "wrong")
    prefix = f"{where}, " if where else ""
    return Malformed(len(bad), tuple((f"{prefix}line {line}", wrong) for line, wrong in first.iter_rows()))


def collect(table: pl.LazyFrame, path: Path) -> pl.DataFrame:
    """Reads what ``table`` is made from.

    Raises:
        NestwalkError: When the file cannot be read.
    """
    try:
        return table.collect(engine="streaming")
    except (OSError, pl.exceptions.PolarsError) as error:
        with suppress(OSError):
            if gz.is_gzip(path):
                raise gz.damaged(path) from error
        raise NestwalkError(f"{path}: cannot be read: {first_line(error)}") from error


def first_line(error: Exception) -> str:
    """What an exception of another library says, as one line."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(". ")
