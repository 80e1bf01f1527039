# SPDX-License-Identifier: MIT OR Apache-2.0
"""A matrix over several programs, through the installed command."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import drawn
import polars as pl
import pytest
from support import Command

from nestwalk import _native, data, pool, surveys
from nestwalk.comparisons import ROW_KEYS

ROWS = ("native-4k", "vm-4k", "vm-ptemagnet-hugegpt", "vm-4k+5-levels", "vm-4k+colocated")


def jobs_of(plan: surveys.Plan) -> list[pool.Job]:
    return [one.job(cell, f"{one.program.name}-") for one in plan.plans for cell in one.matrix.cells]


def test_every_run_of_everything_can_be_made() -> None:
    for quick in (True, False):
        jobs = jobs_of(surveys.plan(quick=quick))
        assert len({job.name for job in jobs}) == len(jobs)
        for job in jobs[:: 7 if quick else 11]:
            _native.check(job.scenario, str(job.path), str(data.TRACES))


def test_a_quick_run_has_the_same_programs() -> None:
    full, quick = (surveys.plan(quick=quick) for quick in (False, True))
    assert [plan.program for plan in quick.plans] == [plan.program for plan in full.plans]
    for plan in quick.plans:
        whole, less = (dict(workload["preset"]) for workload in (plan.program.workload, plan.program.quick))
        assert less.pop("data_accesses") < whole.pop("data_accesses")
        assert less == whole, "no smaller program"
    assert all("sampling" not in tomllib.loads(job.scenario) for job in jobs_of(quick)), "warmed up as in a full run"


def test_a_quick_run_says_which_variants_it_leaves_out() -> None:
    full, quick = (surveys.plan(quick=quick).matrix for quick in (False, True))
    variants = [list(dict.fromkeys(cell.variant.name for cell in plan.cells)) for plan in (full, quick)]
    assert variants == [["", "colocated", "5-levels", "5-levels-colocated"], ["", "colocated"]]
    assert len(quick.left_out) == len(full.left_out) + 2
    assert [mix.what for mix in quick.left_out[-2:]] == ["5 levels, alone", "5 levels, colocated"]
    assert all("a full one" in mix.why for mix in quick.left_out[-2:])
    named = surveys.plan(quick=True, configurations=["vm-4k+5-levels"]).matrix
    assert [cell.name for cell in named.cells] == ["vm-4k+5-levels"], "--only makes it all the same"
    assert named.left_out == full.left_out


def test_programs_side_by_side_against_the_limits(command: Command, tmp_path: Path) -> None:
    only = [word for row in ROWS for word in ("--only", row)]
    done = command("matrix", "--program", "redis", "--program", "mcf", *only, "--quick", "--json", "--out", "made")
    assert done.returncode == 0, done.stderr
    value = json.loads(done.stdout)
    assert [program["name"] for program in value["programs"]] == ["redis", "mcf"]
    assert all(mix["why"] for mix in value["left_out"])
    rows = {(row["program"], row["configuration"]): row for row in value["rows"]}
    # Three limits alone; two of them are of vm-4k, which two variants have besides.
    assert len(rows) == len(value["rows"]) == 2 * (len(ROWS) + 3 + 2 + 2)
    for program in ("redis", "mcf"):
        stock, least, none = (rows[program, name] for name in ("vm-4k", "limit-vm-l1d", "limit-no-walk"))
        assert set(ROW_KEYS) <= set(stock)
        assert (stock["kind"], stock["changes"], stock["against_baseline"]) == ("run", [], 1)
        assert (least["kind"], least["changes"]) == ("limit", None)
        assert none["relative_time"] < least["relative_time"] < stock["relative_time"]
        assert least["walk_latency_cycles"] < rows[program, "native-4k"]["walk_latency_cycles"]
        assert rows[program, "vm-4k+colocated"]["walk_latency_cycles"] > stock["walk_latency_cycles"]
        assert rows[program, "vm-4k+colocated"]["against_baseline"] == 1
    folder = tmp_path / "made"
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert page.count("<script>") == 1
    assert page.count("<svg") == 8  # time, the whole run, latency, walk cycles: for the desktop and for a phone
    assert [label for picture in drawn.drawings(page) for label in picture.cut] == []
    # How long these programs run is not known, so what the kernels did is held against the plain VM.
    names = ("time", "whole-run", "kernel-work", "latency", "walks")
    assert [name for name in re.findall(r'<section id="([^"]*)"', page) if name in names] == [
        *("time", "kernel-work", "latency", "walks")
    ]
    # Colours are centred at 1: the plain VM's fields are as light as can be.
    same = re.findall(r"of the baseline.s \(1: the same\): 1.? [^>]*fill=.(rgb[^)]*\))", page)
    assert len(same) >= 8
    assert set(same) == {"rgb(247, 247, 247)"}
    said = "--program redis --program mcf --machine broadwell-asap --seed 1 --quick --matrix everything"
    assert " ".join(["nestwalk matrix", said, *only]) in page
    frame = pl.read_parquet(folder / "results.parquet")
    assert frame["program"].unique(maintain_order=True).to_list() == ["redis", "mcf"]
    assert frame.height == len(rows)
    assert (folder / "scenarios" / "redis-vm-4k+5-levels.toml").is_file()


@pytest.mark.parametrize(
    ("arguments", "what"),
    [(["--program", "redi"], "did you mean 'redis'?"), (["--matrix", "standard"], "names no [[program]]")],
)
def test_what_is_wrong_is_said(command: Command, arguments: list[str], what: str) -> None:
    done = command("matrix", "--quick", *arguments)
    assert done.returncode == 2
    assert what in done.stderr
