# SPDX-License-Identifier: MIT OR Apache-2.0
"""Runs at a time that the memory of a machine holds."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from test_parts import SHARED, Order, sharing

from nestwalk import conduct, orders, room
from nestwalk.conduct import Means

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20


def test_free_memory_is_that_of_the_machine_and_of_each_control_group(tmp_path: Path) -> None:
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    inner = groups / "outer" / "inner"
    inner.mkdir(parents=True)
    (proc / "self").mkdir(parents=True)
    assert room.free_bytes(proc, groups) is None
    (proc / "meminfo").write_text("MemTotal:  9000 kB\nMemAvailable:  8192 kB\n")
    assert room.free_bytes(proc, groups) == 8 * MIB
    (proc / "self" / "cgroup").write_text("0::/outer/inner\n")
    (inner / "memory.max").write_text("max\n")
    assert room.free_bytes(proc, groups) == 8 * MIB, "no limit"
    for name, text in {"max": 6 * MIB, "current": 5 * MIB, "stat": f"anon 7\ninactive_file {MIB}\n"}.items():
        (inner.parent / f"memory.{name}").write_text(f"{text}")
    assert room.free_bytes(proc, groups) == 2 * MIB, "the outer group's limit, less what is in use"


def test_a_group_begins_when_there_is_memory_for_it(capsys: pytest.CaptureFixture[str]) -> None:
    order = replace(orders.of(sharing()[0]).order, memory_bytes=600 * MIB)
    held = room.Room(1000 * MIB, slots=2)
    assert held.choose([[order]], []) == 0, "alone always"
    assert held.choose([[order]], [[order]]) is None
    assert held.choose([[order], [order, order]], [[order]]) is None
    assert capsys.readouterr().err == "1 at a time for now, not 2: the next takes up to 0.6 GiB, and 1.0 GiB are free\n"
    other = replace(order, kind="another", memory_bytes=400 * MIB)
    assert held.choose([[order], [other, order], [other]], [[order]]) == 2, "the first that fits"
    held.measured(order, 100 * MIB)
    assert held.choose([[order]], [[order]]) == 0, "four times 100 MiB each"
    assert held.choose([[order]], [[order], [order]]) is None
    small = replace(order, memory_bytes=100 * MIB)
    assert held.choose([[small]], [[order], [small]]) == 0, "never more than its order says"
    assert room.Room(None, slots=2).choose([[order]], [[order]] * 9) == 0, "not known, or somebody else's"


def test_runs_go_one_after_the_other_where_memory_holds_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = [job for job in sharing(native={**SHARED, "kernels": [{}]}) if job.name in ("plain", "native")]
    monkeypatch.setattr(room, "free_bytes", lambda: 1)
    watcher = Order()
    conduct.results(jobs, Means(jobs=2, results="none"), watcher)
    assert [step for step, _ in watcher.steps] == ["started", "finished"] * 2
    assert capsys.readouterr().err.count("1 at a time for now, not 2") == 1
