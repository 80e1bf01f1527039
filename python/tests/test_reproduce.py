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
from nestwalk.reproduce.plan import execute

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
        assert run.table["machine"].endswith(".toml") or run.table["machine"] == plan.paper.machine, (
            "one machine a paper"
        )


def test_a_quick_run_says_its_scale_and_the_full_one_has_the_papers_size() -> None:
    quick, full = (papers.plan("asap", quick=quick) for quick in (True, False))
    assert "divided by 16" in quick.scale.sentence
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
