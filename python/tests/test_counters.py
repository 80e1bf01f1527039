# SPDX-License-Identifier: MIT OR Apache-2.0
"""Counters and their types: what a run counts is what the types say, and a name that does not exist is found."""

from __future__ import annotations

import json
import os
import runpy
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mypy import api

from nestwalk import _native, counters, data

GOLDEN = Path(__file__).with_name("golden")

SCENARIO = """
schema = 1
name = "counted"
machine = "broadwell-asap"
[[kernels]]
[[kernels]]
[workload.generator]
kind = "gups"
footprint = "16 MiB"
warm_accesses = 1000
measured_accesses = 5000
[[colocated]]
workload.churn = { size = "4 MiB" }
"""


def disagreements(value: Any, kind: Any, place: str) -> Iterator[str]:
    """Where a value is not of a type."""
    if typing.is_typeddict(kind):
        hints = typing.get_type_hints(kind)
        if not isinstance(value, dict):
            yield f"{place}: {value!r} is no {kind}"
            return
        yield from (f"{place}.{key}: not in the type" for key in value if key not in hints)
        yield from (f"{place}.{key}: not in the result" for key in kind.__required_keys__ if key not in value)
        for key, item in value.items():
            if key in hints:
                yield from disagreements(item, hints[key], f"{place}.{key}")
        return
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is list:
        for number, item in enumerate(value):
            yield from disagreements(item, inner[0], f"{place}.{number}")
    elif origin is dict:
        for key, item in value.items():
            yield from disagreements(item, inner[1], f"{place}.{key}")
    elif origin is None:
        numbers = (int, float) if kind is float else kind
        if not isinstance(value, numbers):
            yield f"{place}: {value!r} is no {kind}"
    elif not any(not list(disagreements(value, option, place)) for option in inner):
        yield f"{place}: {value!r} is no {kind}"


UNSEEN = {
    "no program here forks with memory to share; crates/os holds them": (
        *("kernel.copied_4k", "kernel.entries_copied", "kernel.faults_copied", "kernel.faults_reused"),
        *("kernel.faults_spurious", "manager.faults_from_parents"),
    ),
    "no trace here moves a mapping; crates/os holds it": ("kernel.entries_moved",),
    "a run that does not fit its memory is refused; crates/os holds reclaim": (
        *("kernel.reclaim_scanned", "kernel.reclaimed_clean", "kernel.reclaimed_reserved", "kernel.swapped_out"),
        *("kernel.reclaims_background", "kernel.reclaims_direct", "kernel.faults_swapped_in", "kernel.out_of_memory"),
    ),
    "no golden run with this manager or placement is short of memory; crates/os holds them": (
        *("manager.broken_under_pressure", "manager.returned_under_pressure", "manager.fallbacks"),
        *("manager.promotions_without_block", "table.fallbacks", "table.frames_not_had", "table.holes"),
        *("table.regions_failed", "table.regions_given_back", "table.not_contiguous", "table.pages_moved"),
    ),
    "each store comes before its superpage is full; crates/os holds it": ("manager.promotions_failed_mixed",),
    "no golden run has Ingens, Quicksilver; crates/os holds them": (
        *("manager.requests", "manager.promoted_on_request", "manager.promoted_by_scan"),
        *("manager.completed_64k", "manager.prepared_ahead", "manager.evicted", "manager.evicted_pages"),
        *("manager.hot_pages", "manager.idle_pages", "manager.scans_by_fairness"),
    ),
    "the golden run with HawkEye has one process, and not what is off by default; crates/os holds them": (
        *("manager.rounds_by_overhead", "manager.zeroed_ahead", "manager.faults_zeroed_ahead"),
        *("manager.recovered_pages", "manager.recovered_superpages"),
    ),
    "no golden run maps or writes files; crates/os and crates/machine/tests/build.rs hold them": (
        *("kernel.faults_file", "kernel.faults_file_read", "kernel.pages_mapped_around", "kernel.file_pages_written"),
        *("manager.file_reservations", "manager.file_superpages_mapped"),
    ),
    "kcompactd has nothing to do where each fault compacts": ("kernel.compactions_background",),
    "ASAP's regions are there before their nodes here; crates/os holds them": (
        *("kernel.nodes_moved", "table.nodes_moved", "table.placed_elsewhere"),
    ),
    "no memory manager maps 1 GiB; crates/mmu holds them": (
        *("kernel.faults_1g", "mmu.tlb.l1_hits.1GiB", "mmu.tlb.l2_hits.1GiB", "mmu.tlb.misses.1GiB"),
    ),
    "no bundled machine has a nested TLB; crates/mmu holds it": ("mmu.nested_tlb.hits", "mmu.nested_tlb.misses"),
    "no program with five levels spans so much that the highest page-walk cache but one misses": (
        *("mmu.guest_pwc.hits.pl5_hits", "mmu.host_pwc.hits.pl5_hits"),
    ),
    "all bundled machines have registers for all that ASAP asks for": ("mmu.prefetches.dropped",),
    "the TLBs hold all 2 MiB pages of the golden run with a POM-TLB; crates/mmu holds them": (
        *("mmu.pom_tlb.hits.2MiB", "mmu.pom_tlb.size_mispredicted"),
    ),
    "hashed tables are filled before a golden run is measured, and two entries are enough; crates/mmu holds them": (
        *("mmu.cuckoo.moved", "mmu.cuckoo.resizes", "mmu.cuckoo.walk_table_references.memory"),
        *(f"mmu.cuckoo.walk_cache_misses.{table}_pud" for table in ("guest", "host")),
    ),
    "no golden run splits pages for want of memory, compacts by itself or maps zeroes; crates/os holds them": (
        *("kernel.splits_whole", "kernel.compactions_proactive"),
        *("manager.zero_page_faults", "manager.zero_page_allocations"),
    ),
}
"""Counters that are 0 in all golden runs, by the reason."""


def counted(value: Any, place: str) -> Iterator[tuple[str, int]]:
    """Every number of a result's counters, under its name."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from counted(item, f"{place}.{key}" if place else key)
    elif isinstance(value, int):
        yield place, value


def names(kind: Any, place: str) -> Iterator[str]:
    """Every number of a type of counters."""
    for key, inner in typing.get_type_hints(kind).items():
        if typing.is_typeddict(inner):
            yield from names(inner, f"{place}.{key}")
        else:
            yield f"{place}.{key}"


def test_every_counter_counts_something_in_a_golden_run() -> None:
    seen: set[str] = set()
    for file in sorted(GOLDEN.glob("*.json")):
        if file.name == "models.json":
            continue
        for run in json.loads(file.read_text(encoding="utf-8")).values():
            of_run = list(counted(run["mmu"], "mmu"))
            for group, key in (("kernel", "counters"), ("manager", "manager_counters"), ("table", "table_counters")):
                of_run += [one for kernel in run["kernels"] for one in counted(kernel[key], group)]
            seen |= {name for name, count in of_run if count}
    known = {*names(counters.Counters, "mmu"), *names(counters.OsCounters, "kernel")}
    known |= {*names(counters.ManagerCounters, "manager"), *names(counters.TableCounters, "table")}
    assert known - seen == {name for group in UNSEEN.values() for name in group}


def test_a_run_has_the_counters_that_the_types_have() -> None:
    statistics = json.loads(_native.run(SCENARIO, "t.toml", str(data.TRACES)))["statistics"]
    assert statistics["mmu"]["tlb"]["misses"]["4KiB"] > 0
    assert not list(disagreements(statistics, counters.Statistics, "statistics"))
    statistics["mmu"]["walks"] = statistics["mmu"].pop("walk_cycles")
    statistics["kernels"][0]["counters"]["splits"] = None
    found = sorted(disagreements(statistics, counters.Statistics, "statistics"))
    assert found == [
        "statistics.kernels.0.counters.splits: None is no <class 'int'>",
        "statistics.mmu.walk_cycles: not in the result",
        "statistics.mmu.walks: not in the type",
    ]


NAMES = {
    '["mmu"]["walk_cycles"]': True,
    '["mmu"]["walk_cycle"]': False,
    '["mmu"]["guest_pwc"]["hits"]["pl2_hits"]': True,
    '["mmu"]["guest_pwc"]["hits"]["pl1_hits"]': False,
    '["kernels"][0]["counters"]["faults_4k"]': True,
    '["kernels"][0]["counters"]["faults_4kb"]': False,
    '["kernels"][0]["manager_counters"]["folios"]': True,
    '["kernels"][0]["manager_counters"]["folio"]': False,
    '["kernels"][0]["table_counters"]["holes"]': True,
    '["kernels"][0]["table_counters"]["hole"]': False,
    '["walk"]': False,
}
"""Whether there are such counters."""


def test_a_type_checker_refuses_a_counter_that_does_not_exist(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    lines = ["import nestwalk", "result = nestwalk.Result({})", *(f"print(result.statistics{name})" for name in NAMES)]
    program.write_text("\n".join(lines) + "\n", encoding="utf-8")
    output, _, _ = api.run([f"--config-file={os.devnull}", "--strict", "--no-error-summary", str(program)])
    refused = [line for line in output.splitlines() if "has no key" in line]
    assert [line.split(":")[1] for line in refused] == [
        str(n) for n, there in enumerate(NAMES.values(), 3) if not there
    ]
    assert output.count("error:") == len(refused), output


def test_a_list_of_names_with_a_wrong_one_fails_at_import(tmp_path: Path) -> None:
    module = (
        "from nestwalk.counted import named\nfrom nestwalk.counters import OsCounters\nNAMES = named(OsCounters, {})\n"
    )
    right, wrong = tmp_path / "right.py", tmp_path / "wrong.py"
    right.write_text(module.format('"faults_2m", "splits"'), encoding="utf-8")
    wrong.write_text(module.format('"faults_2m", "split"'), encoding="utf-8")
    assert runpy.run_path(str(right))["NAMES"] == ("faults_2m", "splits")
    with pytest.raises(AttributeError, match="OsCounters has no counter 'split'"):
        runpy.run_path(str(wrong))
