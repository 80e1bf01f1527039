# SPDX-License-Identifier: MIT OR Apache-2.0
"""Walk latency with other latencies, without another run.

A result counts which level served each step of its walks, and how often each walk cache was asked. The cycles of all
walks are linear in these counts, so they follow exactly for other latencies, as what is in which cache does not depend
on latencies. What does not follow is the distribution of walk latencies, which would need each walk's own steps
together, and anything of a run whose references wait for what is left of a prefetch, or overlap.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from nestwalk import checks
from nestwalk.cycles import total
from nestwalk.errors import NestwalkError

if TYPE_CHECKING:
    from nestwalk.counters import CountersGuestPwc
    from nestwalk.result import Result

LATENCY_MAX = 1_000_000
"""The longest latency that may be asked about, in cycles."""

LIMITS = ("l1d", "no-walk")
"""The least that walks can cost: each reference an L1-D hit; no walk at all."""


@dataclass(frozen=True)
class Latencies:
    """Cycles of what a walk is made of."""

    l1d: int
    """A reference that the L1-D serves; and so on."""
    l2: int
    llc: int
    memory: int
    guest_pwc: int
    """A look-up in the page-walk caches of the guest's table, or of the only one."""
    host_pwc: int
    nested_tlb: int
    segments: int
    """A translation by segment registers (DS-n)."""

    @classmethod
    def of(cls, result: Result) -> Latencies:
        """Those of the machine that ``result`` ran on; 0 for what it does not have."""
        mmu = result.configuration["machine"]["mmu"]
        return cls(
            l1d=mmu["l1d"]["latency_cycles"],
            l2=mmu["l2"]["latency_cycles"],
            llc=mmu["llc"]["latency_cycles"],
            memory=mmu["memory_latency_cycles"],
            guest_pwc=mmu["guest_pwc"]["latency_cycles"],
            host_pwc=mmu["host_pwc"]["latency_cycles"],
            nested_tlb=(mmu["nested_tlb"] or {}).get("latency_cycles", 0),
            segments=mmu["segment_latency_cycles"] or 0,
        )


def walk_cycles(result: Result, latencies: Latencies) -> int:
    """Cycles of all measured walks of ``result`` if latencies were these.

    Raises:
        NestwalkError: When it prefetched page-table lines (ASAP), as what a prefetch hides is not linear in latencies;
            or when it read lines in parallel (elastic cuckoo page tables), as most references took no time of a walk.
    """
    mmu = result.statistics["mmu"]
    if mmu["prefetches"]["issued"]:
        what = f"{result.name}: prefetches overlap with the walk, so other latencies need another run"
        raise NestwalkError(f"{what}; change the machine file and run it again")
    if "cuckoo" in mmu:
        what = f"{result.name}: lines of hashed page tables are read in parallel, so other latencies need another run"
        raise NestwalkError(f"{what}; change the machine file and run it again")
    of_server: dict[str, int] = {server: getattr(latencies, server) for server in ("l1d", "l2", "llc", "memory")}
    references: int = sum(row["count"] * of_server[row["served_by"]] for row in result.statistics["references"])
    lookups = (
        (_lookups(mmu["guest_pwc"]), latencies.guest_pwc),
        (_lookups(mmu["host_pwc"]), latencies.host_pwc),
        (mmu["nested_tlb"]["hits"] + mmu["nested_tlb"]["misses"], latencies.nested_tlb),
        (mmu["segment_translations"], latencies.segments),
    )
    if "pom_tlb" in mmu:
        of_pom = mmu["pom_tlb"]["references"]
        references += of_pom["l1d"] * latencies.l1d + of_pom["l2"] * latencies.l2
        references += of_pom["llc"] * latencies.llc + of_pom["memory"] * latencies.memory
    return references + sum(count * cycles for count, cycles in lookups)


def walk_latency(result: Result, **changes: int) -> float | None:
    """Average cycles of a walk if some of the machine's :class:`Latencies` were others; None without walks.

    Raises:
        NestwalkError: As :func:`walk_cycles`; or when a latency has an unknown name, or is negative.
    """
    known = Latencies.of(result)
    for name, cycles in changes.items():
        if name not in Latencies.__dataclass_fields__:
            raise NestwalkError(f"no latency is called '{name}'; there are {', '.join(Latencies.__dataclass_fields__)}")
        checks.whole(name, cycles, 0, LATENCY_MAX)
    walks = result.statistics["walks"]
    return walk_cycles(result, replace(known, **changes)) / walks if walks else None


def limit_row(result: Result, kind: str) -> dict[str, Any]:
    """The row of ``result`` if its walks cost as little as ``kind`` (one of :data:`LIMITS`) says, all else unchanged.

    Its counts stay; what depends on time is computed anew from them.
    """
    statistics = result.statistics
    accesses, walks = statistics["accesses"], statistics["walks"]
    own = Latencies.of(result)
    least = replace(own, l2=own.l1d, llc=own.l1d, memory=own.l1d)
    cycles = walk_cycles(result, least) if kind == "l1d" else 0
    # Of a program whose waiting was sampled, as much of a shorter walk as of its own ones.
    waiting = statistics.get("waiting") or result.configuration["machine"]["timing"]
    critical = waiting["walk_critical_permille"] or 0
    other = total(statistics["cycles"]) - statistics["cycles"]["walk"]
    row = {key: None if key.endswith("_ci95") else value for key, value in result.row.items()}
    row |= {
        "walk_latency_cycles": cycles / walks if walks else None,
        "walk_cycles_per_access": cycles / accesses if accesses else None,
        "guest_walk_cycles_per_access": None,
        "host_walk_cycles_per_access": None,
        "cycles_per_access": (other + cycles * critical // 1000) / accesses if accesses else None,
        "memory_served_share": 0.0 if walks else None,
    }
    if kind == "no-walk":
        gone = ("walks_per_kiloaccess", "references_per_walk", "guest_references_per_walk", "host_references_per_walk")
        row |= {**dict.fromkeys(gone), "walks_per_kiloaccess": 0.0, "walk_latency_cycles": None}
        row |= {"memory_served_share": None, "host_pt_fragmentation": None}
    return row


def _lookups(pwc: CountersGuestPwc) -> int:
    """How often the page-walk caches of a table were asked."""
    hits = pwc["hits"]
    return pwc["misses"] + hits["pl2_hits"] + hits["pl3_hits"] + hits["pl4_hits"] + hits["pl5_hits"]
