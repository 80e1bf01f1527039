# SPDX-License-Identifier: MIT OR Apache-2.0
"""Guest x host: the matrix ``pairs``, and what rows say of aligned huge pages; saved memories."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

import nestwalk
from nestwalk import engine, matrix
from nestwalk.errors import NestwalkError

if TYPE_CHECKING:
    from pathlib import Path

GUESTS, HOSTS, VARIANTS = 9, 7, 5


def test_each_guest_goes_with_each_host_in_each_variant() -> None:
    pairs = matrix.load(matrix.PAIRS)
    assert len({cell.name for cell in pairs.cells}) == len(pairs.cells) == GUESTS * HOSTS * VARIANTS
    cell = next(cell for cell in pairs.cells if cell.name == "sync64-on-thp+host-frag")
    host, guest = cell.scenario["kernels"]
    assert (host["manager"]["kind"], guest["manager"]["threshold"]) == ("thp", 64)
    assert (host["start"]["kind"], "start" in guest) == ("fragmented", False)
    assert cell.configuration.changes == ("guest kernel", "host setting")
    cell = next(cell for cell in pairs.cells if cell.name == "sync64-on-thp+guest-frag")
    assert ["start" in kernel for kernel in cell.scenario["kernels"]] == [False, True]


def test_aligned_huge_pages_take_walks_away_and_misaligned_ones_do_not() -> None:
    names = ["4k-on-4k", "thp-on-4k", "4k-on-thp", "thp-on-thp", "sync1-on-sync1", "sync1-on-sync1+both-frag"]
    rows = {
        row["configuration"]: row
        for row in nestwalk.compare("bfs", matrix=matrix.PAIRS, configurations=names, quick=True).to_dicts()
    }
    shares = ("huge_on_huge_share", "huge_on_small_share", "small_on_huge_share")
    largest = {name: max(shares, key=lambda share: row[share]) for name, row in rows.items()}
    assert [largest[name] for name in names[1:5]] == [shares[1], shares[2], shares[0], shares[0]]
    assert all(rows[name][largest[name]] > 0.9 for name in names[1:5])
    plain = rows["4k-on-4k"]
    assert [plain[share] for share in shares] == [0, 0, 0]
    for name in ("thp-on-4k", "4k-on-thp"):
        assert rows[name]["walks_per_kiloaccess"] == pytest.approx(plain["walks_per_kiloaccess"], rel=0.01), name
        assert rows[name]["walk_latency_cycles"] < 0.8 * plain["walk_latency_cycles"], name
    for name in ("thp-on-thp", "sync1-on-sync1"):
        assert rows[name]["walks_per_kiloaccess"] < 0.1 * plain["walks_per_kiloaccess"], name
    assert [rows["sync1-on-sync1+both-frag"][share] for share in shares] == [0, 0, 0]


def test_what_is_wrong_with_a_side_is_said_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    head = 'schema = 1\ntitle = "mine"\n'
    guest = '[[guest]]\nname = "a"\nkernel = { manager = { kind = "linux4k" } }\n'
    host = '[[host]]\nname = "b"\nkernel = { manager = { kind = "linux5k" } }\n'
    file.write_text(head + guest, encoding="utf-8")
    with pytest.raises(NestwalkError, match=r"there is no \[\[host\]\]"):
        matrix.load(str(file))
    file.write_text(head + guest + host, encoding="utf-8")
    with pytest.raises(NestwalkError, match=r"mine\.toml:8:.*linux5k"):
        nestwalk.compare("bfs", matrix=str(file), quick=True)


def test_a_saved_memory_gives_the_results_of_what_it_was_saved_of(tmp_path: Path) -> None:
    text = """schema = 1
name = "aged"
machine = "broadwell-asap"
[workload.generator]
kind = "gups"
footprint = "32 MiB"
warm_accesses = 10000
measured_accesses = 20000
[[kernels]]
memory = "128 MiB"
cpus = 1
"""
    start = 'start = { kind = "aged", used_permille = 800, kept_permille = 100 }\n'
    made, saved = tmp_path / "made.toml", tmp_path / "saved.toml"
    made.write_text(text + start, encoding="utf-8")
    about, content = engine.save_memory(made, 0)
    assert (about["frames"], about["cpus"], about["bytes"]) == (1 << 15, 1, len(content))
    (tmp_path / "aged.nwm").write_bytes(content)
    saved.write_text(text + 'saved = "aged.nwm"\n', encoding="utf-8")
    results = [engine.run(file).json for file in (made, saved)]
    for result in results:
        del result["configuration"]
    assert json.dumps(results[0]) == json.dumps(results[1])
    (tmp_path / "aged.nwm").write_bytes(content[:-9])
    with pytest.raises(NestwalkError, match=r"aged\.nwm: .*damaged"):
        engine.run(saved)
    with pytest.raises(NestwalkError, match="there is no kernel 2"):
        engine.save_memory(made, 2)
