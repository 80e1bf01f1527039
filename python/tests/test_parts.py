# SPDX-License-Identifier: MIT OR Apache-2.0
"""Parts by themselves: matrices, files, frames of results, and the pool."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nestwalk import _native, conduct, data, files, folders, matrix, orders, pool, scenario
from nestwalk.conduct import Means
from nestwalk.errors import NestwalkError, unknown
from nestwalk.result import Result

if TYPE_CHECKING:
    from collections.abc import Mapping

tables = st.recursive(
    st.dictionaries(st.sampled_from("abc"), st.integers()),
    lambda inner: st.dictionaries(st.sampled_from("abc"), st.one_of(st.integers(), inner)),
)


@given(tables, tables)
def test_the_second_table_wins_where_both_say_something(one: dict[str, Any], two: dict[str, Any]) -> None:
    merged = matrix.merge(one, two)
    assert set(merged) == set(one) | set(two)
    for key, value in merged.items():
        if key not in two:
            assert value == one[key]
        elif not (isinstance(one.get(key), dict) and isinstance(two[key], dict)):
            assert value == two[key]
        else:
            assert value == matrix.merge(one[key], two[key])


@given(st.dictionaries(st.text(), st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1), st.text(), st.booleans())))
def test_what_is_written_as_toml_is_read_the_same(table: dict[str, Any]) -> None:
    wanted = {key: value for key, value in table.items() if value is not None}
    assert tomllib.loads(scenario.write(table)) == wanted


@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=40), st.integers(0, 9), st.integers(1, 100), st.integers(0, 100)
)
def test_percentiles_are_those_of_the_sorted_walks(counts: list[int], longer: int, width: int, percent: int) -> None:
    histogram = {"bucket_cycles": width, "counts": [*counts, longer]}
    result = Result({"statistics": {"latency_histogram": histogram}})
    walks: list[int | None] = [(bucket + 1) * width for bucket, count in enumerate(counts) for _ in range(count)]
    walks += [None] * longer  # of these it is known only that they took longer than all others
    wanted = max((len(walks) * percent + 99) // 100, 1)
    assert result.latency_percentile(percent) == (walks[wanted - 1] if walks else None)


@pytest.mark.parametrize("percent", [-1, 100.5, float("nan"), True, "99", None])
def test_a_percentile_is_from_0_to_100(percent: Any) -> None:
    result = Result({"statistics": {"latency_histogram": {"bucket_cycles": 8, "counts": [1, 0]}}})
    with pytest.raises(NestwalkError, match="give a number from 0 to 100"):
        result.latency_percentile(percent)


def test_every_name_of_the_standard_matrix_is_its_own() -> None:
    cells = matrix.load("standard").cells
    assert len({cell.name for cell in cells}) == len(cells) == 26
    assert all(cell.configuration.description for cell in cells)


def test_a_file_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "x"
    files.write_file(path, "one")
    with pytest.raises(NestwalkError):
        files.write_file(tmp_path / "no" / "x", "two")
    files.write_file(path, b"three")
    assert path.read_text(encoding="utf-8") == "three"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_fails_in_the_middle_leaves_the_earlier_one(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    with folders.filling(folder) as fresh:
        (fresh / folders.MARKER).write_text("one", encoding="utf-8")
    with pytest.raises(RuntimeError), folders.filling(folder) as fresh:
        (fresh / folders.MARKER).write_text("two", encoding="utf-8")
        raise RuntimeError
    assert (folder / folders.MARKER).read_text(encoding="utf-8") == "one"
    assert list(tmp_path.iterdir()) == [folder]


def test_the_nearest_name_is_suggested() -> None:
    assert str(unknown("row", "vm4k", ["native-4k", "vm-4k"])) == (
        "unknown row 'vm4k', did you mean 'vm-4k'?; there are native-4k, vm-4k"
    )
    assert "did you mean" not in str(unknown("row", "qqq", ["native-4k"]))


def test_a_failing_run_names_itself_and_ends_the_others() -> None:
    jobs = [pool.Job(name, "schema = 1", Path(f"{name}.toml")) for name in ("first", "second")]
    with pytest.raises(NestwalkError, match=r"^(first|second): (first|second)\.toml"):
        conduct.results(jobs, Means(jobs=2), pool.Silent())


def test_a_killed_worker_is_an_error_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "WORKER", ["-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"])
    with pytest.raises(NestwalkError, match="ended by signal 9; if memory ran out"):
        conduct.results(sharing()[:1], Means(jobs=1), pool.Silent())


def test_a_worker_that_breaks_is_a_bug_to_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "WORKER", ["-c", "raise SystemExit('what a pity')"])
    with pytest.raises(NestwalkError, match="please report it with the scenario: what a pity"):
        conduct.results(sharing()[:1], Means(jobs=1), pool.Silent())


SHARED = {
    "workload": {"generator": {"kind": "key_value", "footprint": "64 MiB", "measured_accesses": 100_000}},
    "kernels": [{"manager": {"kind": "thp"}}, {}],
}
HARDWARE: dict[str, dict[str, Any]] = {"plain": {}, "smt": {"corunner": "random"}, "clustered": {"clustered_tlb": True}}


def sharing(**others: Mapping[str, Any]) -> list[pool.Job]:
    """Jobs that populate memory in the same way, and ``others``."""
    tables = {**{name: {**SHARED, **more} for name, more in HARDWARE.items()}, **others}
    common = {"schema": 1, "machine": "broadwell-asap"}
    return [
        pool.Job(name, scenario.write({"name": name, **common, **table}), Path(f"{name}.toml"))
        for name, table in tables.items()
    ]


class Order:
    """A watcher that remembers when runs began and ended."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, int]] = []

    def started(self, index: int) -> None:
        self.steps.append(("started", index))

    def advanced(self, index: int, share: float) -> None:
        assert 0 <= share <= 1, index

    def finished(self, index: int) -> None:
        self.steps.append(("finished", index))


@pytest.mark.parametrize("processes", [1, 2, 8])
def test_runs_on_memory_that_was_populated_once_are_the_same_to_the_last_bit(processes: int) -> None:
    jobs = sharing(native={**SHARED, "kernels": [{}]})
    alone = [json.loads(_native.run(job.scenario, str(job.path), str(data.TRACES))) for job in jobs]
    watcher = Order()
    assert conduct.results(jobs, Means(jobs=processes), watcher) == alone
    assert len({json.dumps(result["row"]) for result in alone}) == len(jobs)
    for index in range(len(jobs)):
        assert watcher.steps.index(("started", index)) < watcher.steps.index(("finished", index))


def test_runs_that_differ_in_hardware_only_go_together() -> None:
    jobs = sharing(native={**SHARED, "kernels": [{}]}, reseeded={**SHARED, "seed": 2})
    keys = [orders.of(job).populated_by for job in jobs]
    assert pool.groups(keys, 1) == [[0, 1, 2], [3], [4]]
    assert pool.groups(keys, 4) == [[0, 1], [2], [3], [4]], "no processor is idle"
    assert pool.groups(keys, 99) == [[0], [1], [2], [3], [4]]
    assert pool.groups(keys, 1, 2) == [[0, 1], [2], [3], [4]], "no more is lost with a worker"
    assert pool.groups([], 2) == []


def test_a_copy_that_fails_names_its_run() -> None:
    # The second one's levels are impossible, which shows when its hardware is built: on the machine of the first.
    jobs = sharing()[:1]
    text = jobs[0].scenario.replace('"plain"', '"bad"') + "\n[asap]\nregisters = 0\nguest_levels = [1]\n"
    with pytest.raises(NestwalkError, match=r"^bad: bad\.toml"):
        conduct.results([*jobs, pool.Job("bad", text, Path("bad.toml"))], Means(jobs=1), pool.Silent())


def test_a_copy_that_is_killed_is_an_error_message(monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import os, signal, sys; from nestwalk import worker; "
        "worker._tell = lambda *_: os.kill(os.getpid(), signal.SIGKILL); sys.exit(worker.main())"
    )
    monkeypatch.setattr(pool, "WORKER", ["-c", code])
    with pytest.raises(NestwalkError, match=r"^plain: its process was ended by signal 9; if memory ran out"):
        conduct.results(sharing(), Means(jobs=1), pool.Silent())
