# SPDX-License-Identifier: MIT OR Apache-2.0
"""The main job, through the installed command and through the API."""

from __future__ import annotations

import json
import math
import tomllib

import polars as pl
import pytest
from support import REPOSITORY, Command, Made

import nestwalk
from nestwalk.comparisons import ROW_KEYS

NAMES = [
    "native-4k",
    "native-thp",
    "vm-4k",
    "vm-host-2m",
    "vm-thp",
    "vm-ptemagnet",
    "vm-mthp",
    "vm-hugegpt",
    "vm-asap",
    "vm-shadow",
    "vm-ds",
    "vm-in-vm",
    "vm-clustered",
]


def test_rows_are_the_matrix_in_order(made: Made) -> None:
    names = [row["configuration"] for row in made.json["rows"]]
    assert names == [*NAMES, *(f"{name}+smt" for name in NAMES)]


def test_json_has_the_keys_that_scripts_rely_on(made: Made) -> None:
    assert made.json["schema"] == 1
    assert made.json["quick"] is True
    for row in made.json["rows"]:
        assert set(ROW_KEYS) <= set(row)
        for key in ROW_KEYS[1:]:
            assert row[key] is None or math.isfinite(row[key]), (row["configuration"], key)


def test_documented_keys_are_those_of_the_rows() -> None:
    text = (REPOSITORY / "docs" / "commands.md").read_text(encoding="utf-8")
    assert [key for key in ROW_KEYS if f"`{key}`" not in text] == []


def test_what_needs_a_host_table_is_null_without_one(made: Made) -> None:
    for row in made.json["rows"]:
        one_table = row["configuration"].removesuffix("+smt") in ["native-4k", "native-thp", "vm-shadow", "vm-ds"]
        assert (row["host_references_per_walk"] == 0) == one_table or row["host_references_per_walk"] is None
        if one_table:
            assert row["host_pt_fragmentation"] is None


def test_the_first_row_is_what_time_is_relative_to(made: Made) -> None:
    assert made.json["rows"][0]["relative_time"] == 1


def test_references_add_up(made: Made) -> None:
    for row in made.json["rows"]:
        if row["references_per_walk"] is not None:
            parts = (row["guest_references_per_walk"] or 0) + (row["host_references_per_walk"] or 0)
            assert parts == pytest.approx(row["references_per_walk"])


def test_virtualisation_costs_and_huge_pages_give_back(made: Made) -> None:
    rows = {row["configuration"]: row for row in made.json["rows"]}
    assert rows["vm-4k"]["walk_latency_cycles"] > rows["native-4k"]["walk_latency_cycles"]
    assert rows["vm-host-2m"]["references_per_walk"] < rows["vm-4k"]["references_per_walk"]
    assert rows["vm-thp"]["walks_per_kiloaccess"] < rows["vm-4k"]["walks_per_kiloaccess"]
    assert rows["vm-4k+smt"]["walk_latency_cycles"] > rows["vm-4k"]["walk_latency_cycles"]
    assert rows["vm-4k+smt"]["walks_per_kiloaccess"] == rows["vm-4k"]["walks_per_kiloaccess"]


def test_ptemagnet_packs_host_ptes(made: Made) -> None:
    rows = {row["configuration"]: row for row in made.json["rows"]}
    assert rows["vm-ptemagnet"]["host_pt_fragmentation"] < 1.1 < rows["vm-4k"]["host_pt_fragmentation"]


def test_hugegpt_shortens_walks_to_guest_tables(made: Made) -> None:
    rows = {row["configuration"]: row for row in made.json["rows"]}
    assert rows["vm-hugegpt"]["host_references_per_walk"] < rows["vm-4k"]["host_references_per_walk"]


def test_asap_hides_latency_and_leaves_references_alone(made: Made) -> None:
    rows = {row["configuration"]: row for row in made.json["rows"]}
    saved = json.loads((made.folder / "out" / "results.json").read_text(encoding="utf-8"))
    for variant in ["", "+smt"]:
        stock, asap = rows["vm-4k" + variant], rows["vm-asap" + variant]
        assert asap["walk_latency_cycles"] < stock["walk_latency_cycles"]
        assert asap["references_per_walk"] == pytest.approx(stock["references_per_walk"], rel=0.05)
        run = next(run for run in saved["runs"] if run["name"] == "vm-asap" + variant)
        prefetches = run["statistics"]["mmu"]["prefetches"]
        assert min(prefetches["useful"], prefetches["issued"]) > 0
        covered = prefetches["walks_covered_by_registers"]
        assert 0.9 * prefetches["walks"] < covered["16"] <= prefetches["walks"]


def test_no_configuration_silently_runs_another(made: Made) -> None:
    saved = json.loads((made.folder / "out" / "results.json").read_text(encoding="utf-8"))
    statistics = [json.dumps(run["statistics"], sort_keys=True) for run in saved["runs"]]
    assert len(set(statistics)) == len(statistics)


def test_standard_output_is_json_and_progress_goes_to_standard_error(made: Made) -> None:
    assert made.process.stdout.startswith("{")
    assert f"[{2 * len(NAMES)}/{2 * len(NAMES)}]" in made.process.stderr


def test_results_are_kept_as_parquet(made: Made) -> None:
    frame = pl.read_parquet(made.folder / "out" / "results.parquet")
    assert tuple(frame.columns[: len(ROW_KEYS)]) == ROW_KEYS
    assert frame["configuration"].to_list() == [row["configuration"] for row in made.json["rows"]]
    assert frame["relative_time"].to_list() == [row["relative_time"] for row in made.json["rows"]]


def test_a_kept_scenario_makes_its_run_again(made: Made, command: Command) -> None:
    path = made.folder / "out" / "scenarios" / "vm-4k+smt.toml"
    assert tomllib.loads(path.read_text(encoding="utf-8"))["machine"] == "vm-4k+smt.machine.toml"
    again = command("run", path, "--json")
    assert again.returncode == 0, again.stderr
    saved = json.loads((made.folder / "out" / "results.json").read_text(encoding="utf-8"))
    original = next(run for run in saved["runs"] if run["name"] == "vm-4k+smt")
    assert json.loads(again.stdout)["statistics"] == original["statistics"]


def test_the_table_says_what_was_compared(command: Command) -> None:
    done = command("compare", "--quick", "--only", "native-4k", "--only", "vm-4k+smt", "--trace", "bfs", "--seed", "7")
    assert done.returncode == 0, done.stderr
    for text in ("bfs on broadwell-asap, seed 7", "native, 4 KiB", "VM, 4 KiB on both sides", "Quick:", "report.html"):
        assert text in done.stdout


def test_another_machine_gives_other_numbers(made: Made) -> None:
    frame = nestwalk.compare(quick=True, machine="zen4", configurations=["vm-4k"])
    assert frame["walk_latency_cycles"][0] != made.json["rows"][2]["walk_latency_cycles"]


def test_a_machine_file_is_the_same_as_the_machine_of_that_name(made: Made) -> None:
    machine = REPOSITORY / "machines" / "broadwell-asap.toml"
    frame = nestwalk.compare(quick=True, machine=str(machine), configurations=["vm-4k"])
    assert frame["walk_latency_cycles"][0] == made.json["rows"][2]["walk_latency_cycles"]


def test_results_do_not_depend_on_how_many_run_at_once(made: Made) -> None:
    frame = nestwalk.compare(quick=True, jobs=1, configurations=["native-4k", "vm-4k", "vm-4k+smt", "vm-thp+smt"])
    wanted = {row["configuration"]: row for row in made.json["rows"]}
    for row in frame.iter_rows(named=True):
        assert row == {key: wanted[row["configuration"]].get(key) for key in row}


def test_another_seed_gives_other_numbers(made: Made) -> None:
    frame = nestwalk.compare(quick=True, seed=2, configurations=["vm-4k+smt"])
    row = next(row for row in made.json["rows"] if row["configuration"] == "vm-4k+smt")
    assert frame["walk_latency_cycles"][0] != row["walk_latency_cycles"]


def kernel_counters(made: Made, name: str, layer: int) -> dict[str, int]:
    saved = json.loads((made.folder / "out" / "results.json").read_text(encoding="utf-8"))
    run = next(run for run in saved["runs"] if run["name"] == name)
    counters: dict[str, int] = run["statistics"]["kernels"][layer]["counters"]
    return counters


def test_shadow_paging_walks_one_table_and_pays_with_exits(made: Made) -> None:
    rows = {row["configuration"]: row for row in made.json["rows"]}
    assert rows["vm-shadow"]["host_references_per_walk"] == 0
    assert rows["vm-shadow"]["host_pt_fragmentation"] is None
    assert rows["vm-shadow"]["walk_latency_cycles"] < rows["vm-4k"]["walk_latency_cycles"]
    counters = kernel_counters(made, "vm-shadow", 0)
    assert min(counters[name] for name in ["shadow_fills", "shadow_unsyncs", "shadow_reflected"]) > 0
    assert kernel_counters(made, "vm-4k", 0)["shadow_fills"] == 0


def test_segments_walk_one_table_without_exits(made: Made) -> None:
    rows = {row["configuration"]: row for row in made.json["rows"]}
    saved = json.loads((made.folder / "out" / "results.json").read_text(encoding="utf-8"))
    run = next(run for run in saved["runs"] if run["name"] == "vm-ds")
    assert run["statistics"]["kernels"][0]["paging"] == "segments (1)"
    assert run["statistics"]["mmu"]["segment_translations"] > 0
    assert rows["vm-ds"]["host_references_per_walk"] == 0
    assert rows["vm-ds"]["walk_latency_cycles"] < rows["vm-4k"]["walk_latency_cycles"]


def test_a_vm_in_a_vm_walks_as_a_vm_and_exits_more(made: Made) -> None:
    rows = {row["configuration"]: row for row in made.json["rows"]}
    assert rows["vm-in-vm"]["references_per_walk"] == pytest.approx(rows["vm-4k"]["references_per_walk"], rel=0.1)
    counters = kernel_counters(made, "vm-in-vm", 0)
    assert counters["shadow_fills"] > 0
    assert kernel_counters(made, "vm-in-vm", 1)["shadow_fills"] == 0, "only the lowest hypervisor keeps one"


def test_clustered_entries_reach_further(made: Made) -> None:
    rows = {row["configuration"]: row for row in made.json["rows"]}
    assert rows["vm-clustered"]["walks_per_kiloaccess"] < rows["vm-ptemagnet"]["walks_per_kiloaccess"]
