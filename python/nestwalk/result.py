# SPDX-License-Identifier: MIT OR Apache-2.0
"""A run's result as an object: its row of the comparison table, its counters, its frames and its pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nestwalk import checks

if TYPE_CHECKING:
    from pathlib import Path

    import polars as pl

    from nestwalk.charts import Picture
    from nestwalk.counters import ColocatedStatistics, Reserved, Statistics

LEVEL_NAMES = {1: "PTE", 2: "PMD", 3: "PUD", 4: "P4D", 5: "PGD"}
"""Names of page-table levels as the kernel has them; the root of a 4-level table is its PGD all the same."""

SERVERS = ("l1d", "l2", "llc", "memory")
"""What can serve a reference, nearest first."""


class Result:
    """What one run returned.

    Attributes are read-only views of the engine's result; ``json`` is all of it, for what has no attribute.
    """

    def __init__(self, json_value: dict[str, Any]) -> None:
        """Wraps the engine's result, parsed."""
        self.json = json_value

    @property
    def name(self) -> str:
        """The scenario's name."""
        return str(self.json["name"])

    @property
    def version(self) -> str:
        """The version of Nestwalk that made it."""
        return str(self.json["version"])

    @property
    def configuration(self) -> dict[str, Any]:
        """Everything needed to make the run again: ``scenario``, ``machine``, ``costs``."""
        value: dict[str, Any] = self.json["configuration"]
        return value

    @property
    def row(self) -> dict[str, Any]:
        """Its row of the comparison table; a value that cannot be known is None. ``*_ci95``: half a 95 % interval."""
        value: dict[str, Any] = self.json["row"]
        return value

    @property
    def statistics(self) -> Statistics:
        """All counters of the measured part; :mod:`nestwalk.counters` says what each one means."""
        value: Statistics = self.json["statistics"]
        return value

    @property
    def warm_up(self) -> dict[str, Any]:
        """How TLBs and caches warmed up before the first measured access.

        ``accesses``; ``accesses_max``, where the warm-up had no length of its own; ``reached``, whether what would be
        measured had ceased to change (None where ``unavailable`` says why that is not known); ``drift``, by how much it
        still changed, as shares.
        """
        value: dict[str, Any] = self.json["warm_up"]
        return value

    @property
    def whole_run(self) -> dict[str, Any]:
        """What the kernels did from beginning to end.

        ``accesses``, ``faults``, ``exits``, ``cycles`` by kind, the same by ``kernels``, and ``boot_cycles``.
        ``unavailable`` says why there are no ``accesses``, or is None. ``estimated_cycles`` are of what is not seen
        between the windows of a sampled trace.
        """
        value: dict[str, Any] = self.json["whole_run"]
        return value

    @property
    def host_pt_fragmentation(self) -> dict[str, Any] | None:
        """``value``, ``distribution`` (groups of 8 pages on 1 to 8 lines) and ``groups``; None without a host table."""
        value: dict[str, Any] | None = self.json["host_pt_fragmentation"]
        return value

    @property
    def reserved(self) -> Reserved:
        """Frames that the program's kernel held in reserve: ``maximum_*``, ``mean_*``, and ``series`` over the run."""
        return self.statistics["reserved"]

    @property
    def colocated(self) -> list[ColocatedStatistics]:
        """What ran beside the program did, by ``[[colocated]]`` entry; empty where nothing did."""
        return self.statistics.get("colocated", [])

    @property
    def references(self) -> pl.DataFrame:
        """References of walks: ``table``, ``level``, ``level_name``, ``served_by``, ``count``, ``per_walk``."""
        walks = self.statistics["walks"]
        rows = [
            {**reference, "per_walk": reference["count"] / walks if walks else 0.0}
            for reference in self.statistics["references"]
        ]
        return self._by_level(rows, "per_walk")

    @property
    def served(self) -> pl.DataFrame:
        """Who answered for each level of a table (as in ASAP's figure 9).

        Columns: ``table``, ``level``, ``level_name``, ``served_by``, ``count``, ``share``. A look-up in the page-walk
        caches that hits at some level answers (``pwc``) for that level and those above it. The shares of a level add up
        to 1, of all walks of that table that went as far down. A walk of the host's table is counted for each guest
        level and for the data; a table that the hardware never walked has no rows.
        """
        rows: list[dict[str, Any]] = []
        walked = {reference["table"] for reference in self.statistics["references"]}
        for table in ("guest", "host"):
            if table not in walked:
                continue
            cached = self._cached(table)
            for level in range(self.levels(table), 0, -1):
                counts = {"pwc": cached[level]} | {
                    reference["served_by"]: reference["count"]
                    for reference in self.statistics["references"]
                    if (reference["table"], reference["level"]) == (table, level)
                }
                total = sum(counts.values())
                rows += [
                    {
                        "table": table,
                        "level": level,
                        "served_by": server,
                        "count": counts.get(server, 0),
                        "share": counts.get(server, 0) / total if total else 0.0,
                    }
                    for server in ("pwc", *SERVERS)
                ]
        return self._by_level(rows, "share")

    def _by_level(self, rows: list[dict[str, Any]], value: str) -> pl.DataFrame:
        """Rows by table, level and server as a frame, with the levels' names."""
        import polars as pl

        named = [{**row, "level_name": self.level_name(row["table"], row["level"])} for row in rows]
        schema = {
            "table": pl.String,
            "level": pl.UInt8,
            "level_name": pl.String,
            "served_by": pl.String,
            "count": pl.UInt64,
            value: pl.Float64,
        }
        return pl.DataFrame(named, schema=schema)

    def _cached(self, table: str) -> dict[int, int]:
        """How often the page-walk caches of ``table`` answered for each level: hits at it or below."""
        mmu = self.statistics["mmu"]
        hits = (mmu["guest_pwc"] if table == "guest" else mmu["host_pwc"])["hits"]
        by_level = {2: hits["pl2_hits"], 3: hits["pl3_hits"], 4: hits["pl4_hits"], 5: hits["pl5_hits"]}
        levels = range(1, self.levels(table) + 1)
        return {level: sum(by_level[lower] for lower in range(2, level + 1)) for level in levels}

    @property
    def steps(self) -> pl.DataFrame:
        """References of walks by step: ``guest_level``, ``host_level``, ``served_by``, ``count``.

        A step of a nested walk is the guest level that is wanted (0: the data page) and the host level that is read on
        the way there (0: the guest's own entry).
        """
        import polars as pl

        schema = {"guest_level": pl.UInt8, "host_level": pl.UInt8, "served_by": pl.String, "count": pl.UInt64}
        return pl.DataFrame(self.statistics["steps"], schema=schema)

    @property
    def latency_histogram(self) -> pl.DataFrame:
        """Walks by latency: ``from_cycles``, ``to_cycles``, ``walks``, ``share``. The last bucket has no upper end."""
        import polars as pl

        histogram = self.statistics["latency_histogram"]
        width, counts = histogram["bucket_cycles"], histogram["counts"]
        total = sum(counts)
        rows = [
            {
                "from_cycles": bucket * width,
                "to_cycles": (bucket + 1) * width,
                "walks": count,
                "share": count / total if total else 0.0,
            }
            for bucket, count in enumerate(counts)
        ]
        schema = {"from_cycles": pl.UInt64, "to_cycles": pl.UInt64, "walks": pl.UInt64, "share": pl.Float64}
        return pl.DataFrame(rows, schema=schema)

    def walk_latency(self, **latencies: int) -> float | None:
        """Average cycles of a walk if these of the machine's latencies were others, without another run.

        See :mod:`nestwalk.what_if`, also for the names: ``result.walk_latency(memory=300, llc=60)``.

        Raises:
            NestwalkError: When page-table lines were prefetched, or a latency has an unknown name.
        """
        from nestwalk import what_if

        return what_if.walk_latency(self, **latencies)

    @property
    def virtualised(self) -> bool:
        """Whether there is a host table below the program's."""
        return len(self.configuration["scenario"]["kernels"]) > 1

    def levels(self, table: str) -> int:
        """Levels of the ``guest`` table (the only one, when native) or the ``host`` table.

        Of a VM in a VM the hardware walks, as the host's, the table that the lowest kernel composes; it has the levels
        of the middle kernel's.
        """
        kernels = self.configuration["scenario"]["kernels"]
        kernel = kernels[-2] if table == "host" and self.virtualised else kernels[-1]
        return int(kernel.get("levels") or 4)

    def level_name(self, table: str, level: int) -> str:
        """``PTE``, ``PMD`` ... of a level of ``table``."""
        return "PGD" if level == self.levels(table) else LEVEL_NAMES[level]

    def latency_percentile(self, percent: float) -> int | None:
        """Cycles (a bucket's upper end) within which ``percent`` of the walks ended.

        None if there were no walks, or if that many ended in the last bucket only, which has no upper end.

        Raises:
            NestwalkError: When ``percent`` is not from 0 to 100.
        """
        percent = checks.share("percent", percent, 100)
        histogram = self.statistics["latency_histogram"]
        total, seen = sum(histogram["counts"]), 0
        for bucket, count in enumerate(histogram["counts"][:-1]):
            seen += count
            if count and seen * 100 >= total * percent:
                return int((bucket + 1) * histogram["bucket_cycles"])
        return None

    def plot_references(self) -> Picture:
        """Where each level's references were served (as in ASAP's figure 9)."""
        from nestwalk import charts

        return charts.references([(self.name, "", self)])

    def plot_latency_distribution(self) -> Picture:
        """Walks by latency."""
        from nestwalk import charts

        return charts.latency_distribution([(self.name, "", self)])

    def plot_time(self) -> Picture:
        """What the program's cycles are spent on."""
        from nestwalk import charts

        return charts.time([(self.name, "", self)])

    def plot_reserved(self) -> Picture:
        """Frames that the memory manager set aside and nobody used, over the time of the run."""
        from nestwalk import charts

        return charts.reserved([(self.name, "", self)])

    @property
    def frame(self) -> pl.DataFrame:
        """The row as a frame."""
        import polars as pl

        schema = {key: pl.String if key == "configuration" else pl.Float64 for key in self.row}
        return pl.DataFrame([self.row], schema=schema)

    def save(self, folder: str | Path) -> Path:
        """Writes ``results.parquet``, ``results.json`` and, under ``scenarios``, what makes the run again.

        Earlier results in ``folder`` are replaced file by file; what is not ours stays.
        """
        from nestwalk import store

        return store.save(checks.path("folder", folder), self.frame, self.json, [self])

    def __repr__(self) -> str:
        """Name and latency, for a notebook."""
        latency = self.row["walk_latency_cycles"]
        cycles = "no walks" if latency is None else f"{latency:.1f} cycles a walk"
        return f"<Result {self.name}: {self.row['walks_per_kiloaccess'] or 0:.2f} walks per 1000 accesses, {cycles}>"
