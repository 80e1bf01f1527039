# SPDX-License-Identifier: MIT OR Apache-2.0
"""Rows that are compared are measured at the same access of their program."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from nestwalk import comparisons, pool, same_place, surveys
from nestwalk.conduct import Means
from nestwalk.reproduce.plan import Run, execute
from nestwalk.result import Result

if TYPE_CHECKING:
    from pathlib import Path

MATRIX = """
schema = 1
title = "warm at different times"
baseline = "plain"

[[variant]]
name = ""
title = "alone"

[[variant]]
name = "late"
title = "never warm"
scenario = { sampling = { warm_accesses_max = 20000 } }

[[configuration]]
name = "plain"
title = "plain"
description = "as it is"
scenario = { kernels = [{ manager = { kind = "linux4k" } }] }

[[configuration]]
name = "lapse"
title = "with a lapse"
description = "warm when the lapse is over: after the check at 1,048,576 accesses, not after the first"
scenario = { sampling = { lapse_ms = 1 }, kernels = [{ manager = { kind = "linux4k" } }] }

[[program]]
name = "gups"
title = "GUPS"
workload.generator = { kind = "gups", footprint = "512 KiB", measured_accesses = 50000 }
"""
FIRST_CHECK, LAPSE_OVER = 262_144, 1 << 20


class Told:
    """A watcher that remembers which runs ended."""

    def __init__(self) -> None:
        self.ended: list[int] = []

    def started(self, index: int) -> None:
        pass

    def advanced(self, index: int, share: float) -> None:
        pass

    def finished(self, index: int) -> None:
        self.ended.append(index)


@pytest.fixture
def plan(tmp_path: Path) -> surveys.Plan:
    path = tmp_path / "late.toml"
    path.write_text(MATRIX, encoding="utf-8")
    return surveys.plan(matrix_name=str(path))


def ends(done: comparisons.Comparison, variant: str) -> list[int]:
    cells = done.plan.matrix.cells
    return [
        result.statistics["warm_accesses"]
        for cell, result in zip(cells, done.results, strict=True)
        if cell.variant.name == variant
    ]


def test_rows_are_measured_where_the_last_of_them_is_warm(plan: surveys.Plan) -> None:
    alone = comparisons.Plan(plan.matrix.only(["plain"]), *_rest(plan.plans[0]))
    assert ends(comparisons.execute(alone, means=Means(results="none")), "")[0] < LAPSE_OVER

    told = Told()
    done = surveys.execute(plan, means=Means(results="none"), watcher=told).comparisons[0]
    plain, lapse = ends(done, "")
    assert plain == lapse >= LAPSE_OVER
    assert all(row["warm_up_reached"] for row in done.rows if row["variant"] == "alone")
    assert done.elsewhere == []
    assert sorted(told.ended) == [0, 0, 1, 2, 3], "the plain one was made twice"
    again = done.results[0].configuration["scenario"]["sampling"]
    assert again["warm_accesses_min"] == lapse, "its scenario makes it again"
    assert max(ends(done, "late")) < FIRST_CHECK, "what never is warm ends as it did"


def _rest(one: comparisons.Plan) -> tuple[Any, ...]:
    return one.program, one.machine, one.seed, one.quick


def run(accesses: int, *, reached: bool = True, length: bool = False, most: int = 600_000_000) -> Result:
    maximum = None if length else most
    warm_up = {"reached": reached, "accesses_max": maximum}
    return Result({"warm_up": warm_up, "statistics": {"warm_accesses": accesses}})


def test_the_longest_warm_up_decides() -> None:
    runs = [run(1000), run(2010), run(500), run(500, length=True)]
    assert same_place.warm_accesses_min(runs) == {0: 2010, 2: 2010}
    assert same_place.warm_accesses_min([run(1000), run(1010)]) == {}, "batches end a step a little later"
    assert same_place.warm_accesses_min([run(1000, reached=False), run(1000, reached=False)]) == {}
    assert same_place.warm_accesses_min([run(1000, most=1300), run(2000)]) == {}, "it may not warm up for so long"
    assert same_place.warm_accesses_min([run(1000, most=1500), run(2000)]) == {0: 1500}, "that is as near as 1010 is"
    assert same_place.warm_accesses_min([run(1000, most=2000), run(2000)]) == {0: 2000}
    assert same_place.differ(run(1000), run(2000))
    assert not same_place.differ(run(1000), run(1010))
    assert not same_place.differ(run(1000), run(2000, length=True))


def test_a_run_that_never_was_warm_is_compared_where_it_ended() -> None:
    never = run(9010, reached=False, most=9000)
    assert same_place.warm_accesses_min([run(1000, most=9000), never]) == {0: 9000}, "what the engine allows"


def test_some_runs_of_a_watcher() -> None:
    told = Told()
    part = pool.Part(told, [4, 7])
    for index in (1, 0):
        part.started(index)
        part.advanced(index, 0.5)
        part.finished(index)
    assert told.ended == [7, 4]


def test_a_papers_runs_of_a_program_are_measured_at_one_place() -> None:
    """A program of another size is another one, and runs that are warm later do not hold it up."""

    def made(name: str, footprint: str, **sampling: int) -> Run:
        generator = {"kind": "gups", "footprint": footprint, "measured_accesses": 50000}
        table = {"schema": 1, "name": name, "machine": "broadwell-asap", "kernels": [{}], "sampling": sampling}
        return Run(name, name, {**table, "workload": {"generator": generator}})

    runs = [made("plain", "512 KiB"), made("lapse", "512 KiB", lapse_ms=1), made("other", "256 KiB")]
    results = execute(runs, Means(jobs=1, results="none"), pool.Silent())
    assert [run.name for run in runs] == list(results.made)
    ends = [result.statistics["warm_accesses"] for result in results.made.values()]
    assert ends[0] == ends[1] >= LAPSE_OVER > ends[2]
    assert "warm_accesses_min" not in results["lapse"].configuration["scenario"]["sampling"]
