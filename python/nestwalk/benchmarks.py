# SPDX-License-Identifier: MIT OR Apache-2.0
"""How fast the simulator is on this machine, beside what it is held to."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nestwalk import _native, checks, data, errors
from nestwalk.capture import speed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

REPETITIONS = 5
QUICK_REPETITIONS = 1


@dataclass(frozen=True)
class Reference:
    """What a benchmark's figure is held against."""

    what: str
    """What the benchmark does."""
    goal: float | None
    """The least that this project wants, if it wants any."""
    first_engine: float | None = None
    """A throw-away engine of 150 lines without tuning: the floor."""


REFERENCES = {
    "nested_all_walks": Reference("nested walks, 16 GiB guest, every access walks", 4e6, 1.7e6),
    "nested_tenth_walks": Reference("the same, one access in ten walks", 25e6, 11e6),
    "nested_all_walks_sapphire_rapids": Reference("every access walks, on sapphire-rapids", 4e6),
    "nested_all_walks_zen4": Reference("every access walks, on zen4", 4e6),
    "nested_all_walks_shadow": Reference("every access walks, shadow table", None),
    "nested_sequential": Reference("the same, sequential accesses", 250e6, 122e6),
    "faults_two_level": Reference("page faults through guest and host kernel", 10e6),
    "faults_colocated": Reference("the same, two programs of one guest in turn", 4e6),
    "trace_decode": Reference("decoding the bundled traces", 150e6),
    "trace_redis": Reference("a run of the bundled trace of redis in a VM, once its memory is populated", None),
    "trace_redis_native": Reference("the same without a VM", None),
    "trace_xz": Reference("a run of 524,288 accesses of xz in a VM, with all page faults", None),
    "trace_xz_native": Reference("the same without a VM", None),
    "trace_bfs": Reference("a run of the bundled trace of BFS in a VM, once its memory is populated", None),
    "trace_bfs_native": Reference("the same without a VM", None),
    "import_champsim": Reference("records of ChampSim, to a trace", 50e6),
    "import_drmemtrace": Reference("records of drmemtrace, to a trace", 50e6),
    "import_addresses": Reference("u64 addresses, to a trace", 50e6),
    "import_raw": Reference("records of our capture, to a trace", 50e6),
    "import_raw_missed": Reference("the same, of misses only: the hardest input", None),
    "capture": Reference("capturing redis, a second of processor time (needs qemu-user and redis)", 30e6),
    "nested_tenth_walks_asap": Reference("one access in ten walks, with ASAP in guest and host", 21e6),
    "nested_tenth_walks_clustered": Reference("one access in ten walks, Clustered TLB", 21e6),
    "nested_tenth_walks_hugegpt": Reference("one access in ten walks, guest tables on huge pages of the host", 21e6),
    "nested_tenth_walks_segments": Reference("one access in ten walks, DS-1", 21e6),
    "nested_tenth_walks_shadow": Reference("one access in ten walks, shadow table", 21e6),
    "faults_ptemagnet": Reference("page faults of guest and host, PTEMagnet in the guest", 8.5e6),
    "faults_freebsd": Reference("the same, FreeBSD's reservations in the guest", 5e6),
    "faults_quicksilver": Reference("the same, Quicksilver with a threshold of 512 pages", 5e6),
    "faults_ingens": Reference("the same, Ingens in the guest", 5e6),
    "faults_hawkeye": Reference("the same, HawkEye in the guest", 5e6),
    "generate_graph": Reference("accesses of PageRank over a graph of 16 GiB, not simulated", None),
    "generate_shards": Reference("accesses of GraphChi's PageRank, 16 GiB, not simulated", None),
    "generate_lonestar": Reference("accesses of Galois' search of a graph of 16 GiB, not simulated", None),
    "sampled_waiting": Reference("accesses that pass through a model of the core, three times each", None),
    "aged_memory": Reference("frames of a memory that was used before, 16 GiB", None),
    "place_improv_1k_hosts": Reference("VMs' arrivals and departures, ImprovPlacement, 1,000 hosts", 4e6 / 60),
    "place_improv_10k_hosts": Reference("the same, 10,000 hosts, 2 M VMs (goal: 60 s)", 4e6 / 60),
    "place_improv_100k_hosts": Reference("the same, 100,000 hosts, 4 M VMs", 4e6 / 60),
    "place_baseline_1k_hosts": Reference("the same, Xen's allocator and no ImprovPlacement, 1,000 hosts", 4e6 / 60),
    "place_improv_xen_10k_hosts": Reference("ImprovPlacement with Xen's allocator, 10,000 hosts", 4e6 / 60),
    "place_improv_hugetlb_10k_hosts": Reference("ImprovPlacement on Linux with 1 GiB pages, 10,000 hosts", 4e6 / 60),
    "place_improv_numa_10k_hosts": Reference("ImprovPlacement on hosts of two NUMA nodes, 10,000 hosts", 4e6 / 60),
    "inspect_gib": Reference("pages of a process that inspect looks at (goal: 30 ms of CPU a GiB)", (1 << 18) / 0.03),
    "faults_400_gib": Reference("populating a guest of 400 GiB (goals: 2 minutes, 12 GiB)", (400 << 18) / 120),
}


def known_names() -> list[str]:
    """All benchmarks."""
    return [*_native.bench_names(), speed.NAME]


def bench(
    names: Sequence[str] | None = None, *, quick: bool = False, progress: Callable[[str], None] | None = None
) -> list[dict[str, Any]]:
    """Runs benchmarks, several times each.

    Args:
        names: Which; all if None.
        quick: Once each.
        progress: Told the name of each when it begins.

    Returns:
        Of each its ``name``, its ``value`` (the best, in ``unit``), ``clock_ghz`` (the clock that the processor had in
        effect), ``cycles`` of that clock for one of what is counted, and ``width`` (additions that it did in a
        cycle when they needed nothing of each other: half as many as it can say that another thread of its core was
        busy). These are medians, and ``None`` where the clock cannot be measured. ``memory_bytes`` is the most that
        the process had in memory at the end of a run, or ``None`` where the system does not tell. What cannot be
        measured here has no ``value``, but says why under ``unavailable``.

    Raises:
        NestwalkError: A name is not known, or ``names`` is no list of names.
    """
    repetitions = QUICK_REPETITIONS if quick else REPETITIONS
    known = known_names()
    wanted = checks.names("names", names)
    for name in wanted or ():
        if name not in known:
            raise errors.unknown("benchmark", name, known)
    results = []
    for name in wanted or known:
        if progress is not None:
            progress(name)
        if name == speed.NAME:
            results.append(speed.measure(repetitions))
        else:
            results.append(json.loads(_native.bench(name, repetitions, str(data.TRACES))))
    return results
