# SPDX-License-Identifier: MIT OR Apache-2.0
"""``nestwalk reproduce compromis``: the paper's tables beside ours, with and without Bitbrains."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from support import REPOSITORY, Command
from test_reproduce import assert_nothing_is_cut

from nestwalk import reproduce as papers
from nestwalk.cloud import bundled, loaders, place, synthetic
from nestwalk.reproduce import compromis

SHARED = REPOSITORY.parent / "shared" / "data" / "vm-traces"


def test_each_share_names_a_replay_that_is_made(tmp_path: Path) -> None:
    (tmp_path / "vms.csv").write_text("", encoding="utf-8")
    plan = papers.plan("compromis", quick=True, traces=tmp_path)
    assert isinstance(plan, compromis.CloudPlan)
    made = {replay.name for replay in plan.replays}
    named = {where[0] for where in map(compromis.replay_of, plan.paper.claims) if where is not None}
    assert named == made
    assert compromis.replay_of("azure-any-more") == ("azure-baseline", "more", True)
    assert compromis.replay_of("exp-bitbrains-no-holes-2") == ("exp-bitbrains-no-holes", "2", True)
    assert compromis.replay_of("exp-azure-cpu") == ("exp-azure-cpu", "1", False)
    assert compromis.replay_of("azure-unplaced") is None
    without = papers.plan("compromis", quick=True)
    assert isinstance(without, compromis.CloudPlan)
    assert {name for name in made if "bitbrains" not in name} == {replay.name for replay in without.replays}


def test_azure_at_full_length_has_the_paper_s_number_of_vms_and_sizes() -> None:
    early, late = (loaders.load(bundled.file(name)) for name in (bundled.DAYS_1_20, bundled.DAYS_21_30))
    made = synthetic.azure(early, late, seed=1)
    frame = made.trace.frame
    assert len(frame) == synthetic.AZURE_VMS
    assert frame["memory_pages"].n_unique() == 14
    assert made.at_start == synthetic.AZURE_VMS - len(early.frame) - len(late.frame)
    # Those that run at the beginning do so at time 0, and the rest of the parts is as it was.
    start = frame.filter(pl.col("arrive_s") < 0)
    assert len(start) == made.at_start
    assert start.filter(pl.col("leave_hi_s") <= 0).is_empty()
    kept = frame.filter(pl.col("vm").str.ends_with("-day21-30"))
    assert kept["leave_hi_s"].equals(late.frame["leave_hi_s"])
    # Lifetimes of the made-up part follow the estimate from the known part, size by size.
    known = synthetic.lifetimes(late.frame, [synthetic.AZURE_SPLIT_S, late.span_s[1]])
    for gib in (1.75, 3.5, 56):
        pages = int(gib * (1 << 18))
        expected = known.filter((pl.col("memory_pages") == pages) & (pl.col("hi") <= 3600))["upto"].max()
        drawn = frame.filter(pl.col("vm").str.ends_with("-day1-20") & (pl.col("memory_pages") == pages))
        short = drawn.select((pl.col("leave_hi_s") - pl.col("arrive_s") <= 3600).fill_null(value=False).mean()).item()
        assert 0.01 < short < 0.99
        assert short == pytest.approx(expected, abs=0.01)
    again = synthetic.azure(early, late, seed=1)
    assert again.trace.frame.equals(frame)


def test_compromis_quickly_without_the_trace_that_is_not_shipped(command: Command, tmp_path: Path) -> None:
    done = command("reproduce", "compromis", "--quick", "--json", "--out", "made")
    assert done.returncode == 0, done.stderr
    value = json.loads(done.stdout)
    assert (value["schema"], value["paper"], value["quick"]) == (1, "compromis", True)
    by_what = {(row["figure"], row["what"]): row for row in value["rows"]}
    bitbrains = [row for row in value["rows"] if "Bitbrains" in row["figure"] or "Bitbrains" in row["what"]]
    assert bitbrains
    assert all(row["ours"].startswith("unavailable, because ") and "--traces DIR" in row["ours"] for row in bitbrains)
    azure = "Azure: VMs by number of segments"
    one = by_what[azure, "DynamicOptionSelec: 1 segment"]
    assert one["paper"] == 99.999
    assert one["ours"] == pytest.approx(99.999, abs=0.1)
    assert by_what[azure, "BaseLine: 1 segment"]["ours"] < one["ours"]
    assert by_what["How often memory is allocated, and in how many sizes", "distinct sizes of VMs: public clouds"][
        "ours"
    ] == pytest.approx(14)
    # A program's mean time follows from the shares: between that of EPT and that of DS-1.
    link = {row["what"]: row["ours"] for row in value["rows"] if row["figure"] == "From placement to program time"}
    for program in compromis.PROGRAMS:
        ept, shadow, ds1 = (
            link[f"{program} under {mode}, against native"] for mode in ("EPT", "shadow paging", "DS-1")
        )
        assert ds1 < ept
        for version in ("BaseLine", "Dynamic"):
            for other, others in ((ept, "EPT"), (shadow, "shadow")):
                mean = link[f"{program}, all VMs: {version}, else {others}"]
                assert min(ds1, other) - 1e-9 <= mean <= max(ds1, other) + 1e-9
        assert link[f"{program}: accesses until shadow paging pays"] > 0
    assert {f"azure-{name}" for name in place.VERSIONS} <= set(value["replays"])
    page = (tmp_path / "made" / "report.html").read_text(encoding="utf-8")
    assert "<script" not in page
    assert page.count("<svg") >= 12
    assert_nothing_is_cut(page)
    for series in ("EPT everywhere", "shadow everywhere", "DS-1 everywhere", "shadow: exits"):
        assert series in page
    assert (tmp_path / "made" / "results.parquet").is_file()


def test_bad_requests(command: Command, tmp_path: Path) -> None:
    assert "is no directory" in command("reproduce", "compromis", "--traces", tmp_path / "nowhere").stderr
    assert "replays no VMs" in command("reproduce", "asap", "--traces", tmp_path).stderr


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared traces are not here")
def test_bitbrains_fits_into_one_segment_each() -> None:
    plan = papers.plan("compromis", quick=True, traces=SHARED)
    assert isinstance(plan, compromis.CloudPlan)
    replays = {replay.name: replay for replay in plan.replays}
    for name in ("opt1", "opt2", "dynamic"):
        assert replays[f"bitbrains-{name}"].run(lambda *_: True).share("1") == 100
    baseline = replays["bitbrains-baseline"].run(lambda *_: True)
    assert baseline.share("1") == 0
    assert baseline.share("1", any_order=True) < baseline.share("2", any_order=True)  # type: ignore[operator]
