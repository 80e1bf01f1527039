# SPDX-License-Identifier: MIT OR Apache-2.0
"""Papers side by side: every value is there or says why not, and the page needs no other file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import Command

from nestwalk import engine
from nestwalk import reproduce as papers
from nestwalk.pool import Silent
from nestwalk.reproduce import compromis_mmu, queueing
from nestwalk.reproduce.plan import execute

MACHINES = {
    "ptemagnet": {"broadwell-asap"},
    "hugegpt": {"skylake-6138", "icelake-6346"},
    "asap": {"broadwell-asap"},
    "compromis-mmu": {"broadwell-asap"},
    "compromis": {"broadwell-asap"},
}
"""The machines of the papers: none is chosen for a figure."""

KEYS = {"figure", "what", "paper", "ours", "unit", "ratio", "note"}


@pytest.mark.parametrize("name", papers.PAPERS)
def test_a_paper_s_claims_are_distinct_and_its_presets_exist(name: str) -> None:
    plan = papers.plan(name, quick=True)
    claims = [claim.key for figure in plan.paper.figures for claim in figure.claims]
    assert len(claims) == len(set(claims)) > 5
    assert len({run.name for run in plan.experiment.runs}) == len(plan.experiment.runs)
    known = {entry["name"] for entry in engine.catalog()["workloads"]}
    for run in plan.experiment.runs:
        assert run.table["workload"]["preset"]["name"] in known
        assert run.table["machine"].endswith(".toml") or run.table["machine"] in MACHINES[name], run.name


def test_a_quick_run_says_its_scale_and_the_full_one_has_the_papers_size() -> None:
    quick, full = (papers.plan("asap", quick=quick) for quick in (True, False))
    assert "divided by 32" in quick.scale.sentence
    assert full.scale.divide_footprint == 1
    assert [run.name for run in quick.experiment.runs] == [run.name for run in full.experiment.runs]
    chosen = full.experiment.runs[0].table["workload"]["preset"]
    assert set(chosen) == {"name", "data_accesses"}, "nothing of the program differs from its preset"


def test_ptemagnet_quickly(command: Command, tmp_path: Path) -> None:
    done = command("reproduce", "ptemagnet", "--quick", "--json", "--out", "made")
    assert done.returncode == 0, done.stderr
    value = json.loads(done.stdout)
    assert (value["schema"], value["paper"], value["quick"]) == (1, "ptemagnet", True)
    assert all(set(row) == KEYS for row in value["rows"])
    by_what = {row["what"]: row for row in value["rows"]}
    for row in value["rows"]:
        ours = row["ours"]
        assert isinstance(ours, int | float) or ours.startswith("unavailable, because "), row
    alone = by_what["pagerank alone: host PT fragmentation"]
    assert alone["paper"] == 2.8
    assert 1 <= alone["ours"] <= 8
    assert alone["ratio"] == pytest.approx(alone["ours"] / 2.8)
    folder = tmp_path / "made"
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "<script" not in page
    assert "src=" not in page
    assert page.count("<svg") >= 3
    for figure in ("alone", "objdet", "programs", "corunners", "unpressed"):
        assert f'<section id="{figure}">' in page
    assert (folder / "results.parquet").is_file()
    assert len(list((folder / "scenarios").glob("*-stock.toml"))) >= 10


def test_hugegpt_s_worst_cases_are_exact() -> None:
    plan = papers.plan("hugegpt", quick=True)
    able = [run for run in plan.able if run.name.startswith("worst-")]
    results = execute(able, {}, 2, Silent())
    counts = [results[run.name].row["references_per_walk"] for run in able]
    assert counts == [24, 20, 35]


def test_an_unknown_paper_is_refused_with_the_nearest(command: Command) -> None:
    done = command("reproduce", "hugegp")
    assert done.returncode == 2
    assert "did you mean 'hugegpt'?" in done.stderr


def test_what_cannot_be_run_is_a_sentence(command: Command) -> None:
    done = command("reproduce", "compromis-mmu", "--quick", "--json")
    assert done.returncode == 0, done.stderr
    for row in json.loads(done.stdout)["rows"]:
        assert isinstance(row["ours"], int | float) or row["ours"].startswith("unavailable, because ")


def test_requests_queue_as_theory_says() -> None:
    seldom = queueing.responses([100] * 1000, 1e9, seed=1)
    assert seldom == queueing.Responses(100, 100, 100), "nobody waits"
    # M/D/1 at load 0.5: the mean wait is half a service time (Pollaczek and Khinchine).
    found = queueing.responses([100] * 400_000, 200, seed=1)
    assert found is not None
    assert found.average == pytest.approx(150, rel=0.02)
    assert found.average < found.p95 < found.p99
    # A server twice as fast under the same clients is more than twice as fast to answer.
    half = queueing.responses([50] * 400_000, 200, seed=1)
    assert half is not None
    assert half.average < found.average / 2
    assert queueing.responses([], 200, seed=1) is None


def test_compromis_counts_the_exits_of_filling_memory() -> None:
    plan = papers.plan("compromis-mmu", quick=True)
    wanted = {"gcc-shadow", "gcc-ds1", "gcc-ept"}
    able = [run for run in plan.able if run.name in wanted]
    results = execute(able, {}, 2, Silent())
    pages = results["gcc-shadow"].statistics["populated_pages"]
    costs = results["gcc-shadow"].configuration["costs"]["events"]
    counters = results["gcc-shadow"].statistics["kernels"][0]["counters"]
    # Each page: the guest's fault is handed on, its kernel zeroes the page, and the program's entry is filled.
    assert counters["shadow_fills"] >= 2 * pages
    assert counters["shadow_reflected"] >= pages
    # A PTE node is written to freely after its first write.
    assert pages / 512 <= counters["shadow_unsyncs"] < pages / 100
    exits = sum(count * costs[name]["cycles"] for name, count in counters.items() if name.startswith("shadow_"))
    seconds = {one: compromis_mmu._run_seconds(results, "gcc", one) for one in ("ds1", "ept", "shadow")}
    assert seconds["ds1"] == pytest.approx(compromis_mmu.DS_SECONDS["gcc"])
    assert seconds["ds1"] is not None
    assert seconds["ept"] is not None
    assert seconds["ept"] > seconds["ds1"]
    hertz = results["gcc-shadow"].configuration["machine"]["frequency_mhz"] * 1e6
    # Beside its exits, shadow paging walks as natively: for a little less than DS-1, whose registers take cycles, too.
    assert seconds["shadow"] is not None
    assert 0.9 * seconds["ds1"] < seconds["shadow"] - exits / hertz < seconds["ds1"]
