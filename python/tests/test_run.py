# SPDX-License-Identifier: MIT OR Apache-2.0
"""Single runs, lists, traces and benchmarks, through the installed command and through the API."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from support import Command

import nestwalk


def test_run_prints_a_result(command: Command, scenario: Path) -> None:
    done = command("run", scenario, "--json")
    assert done.returncode == 0, done.stderr
    value = json.loads(done.stdout)
    assert value["schema"] == 1
    assert value["quick"] is False
    assert value["name"] == "tiny"
    assert value["statistics"]["accesses"] > 0
    assert value["configuration"]["machine"]["name"] == "broadwell-asap"


def test_run_prints_tables(command: Command, scenario: Path) -> None:
    done = command("run", scenario)
    assert done.returncode == 0, done.stderr
    for text in ("walk latency, cycles", "guest PGD", "host PTE", "memory"):
        assert text in done.stdout


def test_the_api_gives_the_same_to_the_last_bit(command: Command, scenario: Path) -> None:
    value = json.loads(command("run", scenario, "--json").stdout)
    result = nestwalk.run(scenario)
    assert result.row == value["row"]
    assert result.statistics == value["statistics"]


def test_a_result_is_objects(scenario: Path) -> None:
    result = nestwalk.run(scenario)
    assert result.virtualised
    references = result.references
    assert references["count"].sum() == result.statistics["walk_references"]
    assert references["per_walk"].sum() == pytest.approx(result.row["references_per_walk"])
    assert result.latency_histogram["walks"].sum() == result.statistics["walks"]
    for chart in (result.plot_references(), result.plot_latency_distribution(), result.plot_time()):
        assert chart.to_dict()["$schema"]


def test_the_seed_can_be_changed(command: Command, scenario: Path) -> None:
    one, two = (json.loads(command("run", scenario, "--json", "--seed", seed).stdout) for seed in ("1", "2"))
    assert two["configuration"]["scenario"]["seed"] == 2
    assert one["statistics"] != two["statistics"]


def test_quick_is_said(command: Command, scenario: Path) -> None:
    assert json.loads(command("run", scenario, "--json", "--quick").stdout)["quick"] is True
    assert "Quick:" in command("run", scenario, "--quick").stdout


def test_out_keeps_results(command: Command, scenario: Path, tmp_path: Path) -> None:
    for _ in range(2):  # earlier results are replaced
        done = command("run", scenario, "--out", "kept")
        assert done.returncode == 0, done.stderr
    assert pl.read_parquet(tmp_path / "kept" / "results.parquet")["configuration"].to_list() == ["tiny"]
    again = nestwalk.run(tmp_path / "kept" / "scenarios" / "tiny.toml")
    assert again.statistics == nestwalk.run(scenario).statistics
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept", "tiny.toml"]


BESIDE = """
[[colocated]]
workload.churn = { size = "4 MiB" }
count = 2

[[colocated]]
workload.generator = { kind = "gups", footprint = "16 MiB" }
vm = "own"
kernel = { manager = { kind = "thp" } }
"""


def test_programs_run_beside_the_program_and_can_be_run_again(command: Command, scenario: Path, tmp_path: Path) -> None:
    alone = nestwalk.run(scenario)
    scenario.write_text(scenario.read_text(encoding="utf-8") + BESIDE, encoding="utf-8")
    result = nestwalk.run(scenario)
    assert alone.colocated == []
    assert [entry["workload"] for entry in result.colocated] == ["churn", "gups"]
    assert [entry["count"] for entry in result.colocated] == [2, 1]
    assert result.statistics["accesses"] == alone.statistics["accesses"]
    command("run", scenario, "--out", "kept")
    again = nestwalk.run(tmp_path / "kept" / "scenarios" / "tiny.toml")
    assert again.statistics == result.statistics


def test_memory_held_in_reserve_is_a_series_and_a_picture(scenario: Path) -> None:
    text = scenario.read_text(encoding="utf-8").replace('"thp"', '"ptemagnet"')
    scenario.write_text(text, encoding="utf-8")
    result = nestwalk.run(scenario)
    assert result.row["reserved_share_max"] == result.reserved["maximum_share"]
    assert 0 <= result.reserved["mean_frames"] <= result.reserved["maximum_frames"]
    assert result.reserved["series"][-1]["resident_frames"] > 0
    assert result.plot_reserved().to_dict()["$schema"]


def test_bundled_scenarios_run(command: Command) -> None:
    for entry in nestwalk.catalog()["scenarios"]:
        done = command("run", entry["name"], "--quick", "--json")
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("kind", ["machines", "managers", "workloads", "costs"])
def test_list_has_names_and_descriptions(command: Command, kind: str) -> None:
    value = json.loads(command("list", kind, "--json").stdout)
    assert set(value) == {"schema", kind}
    assert value[kind]
    text = command("list", kind).stdout
    for entry in value[kind]:
        assert entry["name"] in text
        assert entry["description"]


def test_list_knows_what_is_bundled() -> None:
    found = {kind: {entry["name"] for entry in entries} for kind, entries in nestwalk.catalog().items()}
    assert {"broadwell-asap", "skylake-6138", "icelake-6346", "sapphire-rapids", "zen4"} <= found["machines"]
    assert {"linux4k", "thp"} <= found["managers"]
    assert {"redis", "bfs", "gups", "stream", "pointer_chase", "key_value"} <= found["workloads"]


def test_list_imports_nothing_heavy() -> None:
    code = "import sys, nestwalk.cli, nestwalk.engine; print({'polars', 'altair', 'rich', 'jinja2'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_trace_locality_counts_traces_and_workloads_alike(command: Command, tmp_path: Path) -> None:
    """GUPS over 256 pages uses any of them at random, so three in four uses are not among the last 64."""
    (tmp_path / "gups.toml").write_text(
        'schema = 1\nname = "small"\ndescription = "small"\n[generator]\nkind = "gups"\nfootprint = "1 MiB"\n'
    )
    done = command("trace", "locality", "redis", "gups.toml", "--accesses", "400k", "--json")
    redis, gups = json.loads(done.stdout)["programs"]
    assert (redis["program"], gups["program"]) == ("redis", "gups.toml")
    for found in (redis, gups):
        assert found["accesses"] >= 400_000
        assert sum(point["uses"] for point in found["reuse"]) + found["first_uses"] == found["uses"] > 0
        assert [near["pages"] for near in found["near"]] == [64, 1536]
        assert found["near"][0]["uses"] == found["uses"]
    # Each update loads and stores the same word.
    assert gups["uses"] / gups["accesses"] == pytest.approx(0.75 / 2, abs=0.01)
    assert gups["near"][1]["uses"] == 0
    assert "not among the last 64" in command("trace", "locality", "redis", "--accesses", "100k").stdout
    assert "did you mean" in command("trace", "locality", "rdis").stderr


@pytest.mark.parametrize("name", ["redis", "bfs"])
def test_trace_info_of_the_bundled_traces(command: Command, name: str) -> None:
    value = json.loads(command("trace", "info", name, "--json").stdout)
    assert value["schema"] == 1
    assert {"accesses", "instructions", "threads", "footprint_bytes", "vmas", "format"} <= set(value)
    assert value["footprint_bytes"] >= 500 << 20
    assert "accesses" in command("trace", "info", name).stdout


# The largest take minutes each: they are for whoever asks for them.
LARGE = {"faults_400_gib", *(f"place_improv_{kind}10k_hosts" for kind in ("", "xen_", "hugetlb_", "numa_"))}
LARGE |= {"place_improv_100k_hosts"}


def test_bench_measures_each_benchmark(command: Command) -> None:
    names = nestwalk._native.bench_names()
    assert set(names) > LARGE
    assert {"nested_all_walks", "faults_two_level", "trace_redis", "trace_decode"} < set(names)
    assert "place_baseline_1k_hosts" in names
    small = [name for name in names if name not in LARGE]
    done = command("bench", "--quick", "--json", *small)
    assert done.returncode == 0, done.stderr
    value = json.loads(done.stdout)
    assert [result["name"] for result in value["results"]] == small
    for result in value["results"]:
        assert result["value"] > 0
        assert result["unit"].endswith("/s")
        if result["name"].startswith(("place_", "inspect_")):  # their engines have no clock of their own
            assert result["cycles"] is None
            continue
        # One run: its clock over its speed.
        assert result["cycles"] == pytest.approx(result["clock_ghz"] * 1e9 / result["value"])
        assert 0.1 < result["clock_ghz"] < 10
        assert 0.5 < result["width"] < 16
        assert 0 < result["memory_bytes"] < 12 << 30


def test_the_benchmark_with_the_most_memory_keeps_to_its_goal(command: Command) -> None:
    done = command("bench", "--quick", "--json", "faults_400_gib")
    assert done.returncode == 0, done.stderr
    [result] = json.loads(done.stdout)["results"]
    assert 0 < result["memory_bytes"] < 12 << 30


def test_one_benchmark_and_one_that_is_not_known(command: Command) -> None:
    done = command("bench", "trace_decode", "--quick")
    assert done.returncode == 0, done.stderr
    assert "trace_decode" in done.stdout
    assert "nested_all_walks" not in done.stdout
    done = command("bench", "trace_decod")
    assert done.returncode == 2
    assert "did you mean 'trace_decode'?" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_help_and_version(command: Command) -> None:
    assert "compare" in command().stdout
    assert command("--version").stdout.startswith("nestwalk ")
    assert command("compare", "--help").returncode == 0


def test_reading_only_the_beginning_of_the_output_is_no_error(tmp_path: Path) -> None:
    code = f"{Path(sys.executable).with_name('nestwalk')} list --json | head -c 1"
    done = subprocess.run(["/bin/sh", "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert done.stdout == "{"
    assert done.stderr == ""


STORE = """
schema = 1
name = "store"
machine = "broadwell-asap"
{sampling}
[workload.generator]
kind = "key_value"
footprint = "256 MiB"
local_permille = 0
measured_accesses = 200000

[[kernels]]
"""


def test_a_run_that_was_not_warm_says_so(command: Command, tmp_path: Path) -> None:
    bounded, open_ended = tmp_path / "bounded.toml", tmp_path / "open.toml"
    bounded.write_text(STORE.format(sampling="sampling = { warm_accesses_max = 300000 }"), encoding="utf-8")
    open_ended.write_text(STORE.format(sampling=""), encoding="utf-8")
    cold, warm = nestwalk.run(bounded), nestwalk.run(open_ended)
    assert (cold.warm_up["reached"], cold.warm_up["accesses_max"]) == (False, 300_000)
    assert warm.warm_up["reached"]
    assert warm.warm_up["accesses"] == warm.statistics["warm_accesses"] > 10 * cold.warm_up["accesses"]
    assert warm.warm_up["accesses"] < warm.warm_up["accesses_max"]
    assert cold.row["walk_latency_cycles"] > 2 * warm.row["walk_latency_cycles"]
    said = "Not warm: store."
    assert said in " ".join(command("run", str(bounded)).stdout.split())
    assert said not in " ".join(command("run", str(open_ended)).stdout.split())
