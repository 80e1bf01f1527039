# SPDX-License-Identifier: MIT OR Apache-2.0
"""What follows from a run's counters without another run: other latencies, limits, who answers for which level."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from support import REPOSITORY

import nestwalk
from nestwalk import matrix, scenario, what_if
from nestwalk.errors import NestwalkError

KERNELS = {
    "native": "[[kernels]]\nlevels = 5",
    "vm": "[[kernels]]\n[[kernels]]",
    "segments": "[[kernels]]\npaging = { kind = 'segments', max = 1 }\n[[kernels]]",
}


def run(folder: Path, kernels: str, *, more: str = "", **latencies: int) -> nestwalk.Result:
    """A run of a second on zen4 with a nested TLB besides, and with these latencies."""
    machine = tomllib.loads((REPOSITORY / "machines" / "zen4.toml").read_text(encoding="utf-8"))
    mmu = machine["mmu"]
    mmu["nested_tlb"] = {"entries": 16, "ways": 4, "latency_cycles": 1}
    for name, cycles in latencies.items():
        match name:
            case "memory":
                mmu["memory_latency_cycles"] = cycles
            case "segments":
                mmu["segment_latency_cycles"] = cycles
            case _:
                mmu[name]["latency_cycles"] = cycles
    (folder / "machine.toml").write_text(scenario.write(machine), encoding="utf-8")
    workload = "kind = 'gups', footprint = '512 MiB', warm_accesses = 20000, measured_accesses = 60000"
    head = f"schema = 1\nname = 'made'\nmachine = 'machine.toml'\nworkload.generator = {{ {workload} }}"
    path = folder / "made.toml"
    path.write_text(f"{head}\n{more}\n{kernels}\n", encoding="utf-8")
    return nestwalk.run(path)


CHANGES = {"l1d": 7, "l2": 19, "llc": 77, "memory": 501, "guest_pwc": 5, "host_pwc": 9, "nested_tlb": 3, "segments": 11}


@pytest.mark.parametrize("name", KERNELS)
def test_other_latencies_are_those_of_another_run(tmp_path: Path, name: str) -> None:
    plain, changed = run(tmp_path, KERNELS[name]), run(tmp_path, KERNELS[name], more="", **CHANGES)
    assert what_if.walk_cycles(plain, what_if.Latencies.of(plain)) == plain.statistics["walk_cycles"]
    assert what_if.Latencies.of(changed) == what_if.Latencies(**CHANGES)
    assert plain.walk_latency(**CHANGES) == changed.row["walk_latency_cycles"] != plain.row["walk_latency_cycles"]


def test_what_a_prefetch_hides_is_not_guessed(tmp_path: Path) -> None:
    tables = "tables = { kind = 'asap' }"
    result = run(tmp_path, f"[[kernels]]\n{tables}", more="asap = { guest_levels = [1] }")
    with pytest.raises(NestwalkError, match="overlap"):
        result.walk_latency(memory=300)
    with pytest.raises(NestwalkError, match="no latency is called 'dram'"):
        result.walk_latency(dram=300)
    result = run(tmp_path, "[[kernels]]", more="accelerator = { kind = 'elastic-cuckoo' }")
    with pytest.raises(NestwalkError, match="in parallel"):
        result.walk_latency(memory=300)


def test_the_levels_of_a_table_are_answered_for_as_often_as_walks_ask(tmp_path: Path) -> None:
    result = run(tmp_path, KERNELS["vm"])
    for table in ("guest", "host"):
        pwc: dict[str, Any] = result.json["statistics"]["mmu"][f"{table}_pwc"]
        lookups = pwc["misses"] + sum(pwc["hits"].values())
        assert lookups > 0
        levels = result.served.filter(result.served["table"] == table)
        counts = levels.group_by("level").agg(pl.col("count").sum())["count"].to_list()
        assert counts == [lookups] * 4
    steps, references = (
        frame.group_by("served_by").agg(pl.col("count").sum()).sort("served_by")
        for frame in (result.steps, result.references)
    )
    assert steps.equals(references)


def test_limits_leave_all_but_the_walks(tmp_path: Path) -> None:
    result = run(tmp_path, KERNELS["vm"])
    least, none = (what_if.limit_row(result, kind) for kind in what_if.LIMITS)
    fast = run(tmp_path, KERNELS["vm"], l2=4, llc=4, memory=4)
    assert what_if.Latencies.of(result).l1d == 4
    assert least["walk_latency_cycles"] == fast.row["walk_latency_cycles"]
    cycles = result.statistics["cycles"]
    without = (cycles["work"] + cycles["data"] + cycles["os"]) / result.statistics["accesses"]
    assert none["cycles_per_access"] == pytest.approx(without)
    assert none["cycles_per_access"] < least["cycles_per_access"] < result.row["cycles_per_access"]


def entry(text: str) -> str:
    """A small matrix file."""
    return f"schema = 1\n[[configuration]]\nname = 'a'\nscenario = {{ kernels = [{{}}, {{}}] }}\n{text}"


def test_a_variant_may_change_every_kernel() -> None:
    made = matrix.parse(entry("[[variant]]\nname = 'five'\nevery_kernel = { levels = 5 }"), "m.toml")
    assert made.cells[0].scenario["kernels"] == [{"levels": 5}, {"levels": 5}]


def test_everything_names_who_must_change_what_and_leaves_out_with_reasons() -> None:
    made = matrix.load("everything")
    configurations: dict[str, Any] = {cell.configuration.name: cell.configuration for cell in made.cells}
    assert all(entry.changes is not None for entry in configurations.values())
    assert configurations["vm-4k"].changes == ()
    assert configurations["vm-ptemagnet"].changes == ("guest kernel",)
    assert configurations["vm-hugegpt"].changes == ("guest kernel", "host kernel")
    assert "hardware" in configurations["vm-asap"].changes
    assert {limit.kind for limit in made.limits} == set(what_if.LIMITS)
    assert all(mix.why.endswith(".") for mix in made.left_out)
