# SPDX-License-Identifier: MIT OR Apache-2.0
"""Comparing the page tables of running guests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import REPOSITORY, Command

from nestwalk import matrix
from nestwalk.errors import NestwalkError

DATA = REPOSITORY / "linux" / "data"


def test_dumps_stand_side_by_side(command: Command) -> None:
    converted = command("trace", "convert", DATA / "stock-trace.zst", "real.nwt", "--json")
    assert converted.returncode == 0, converted.stderr
    assert json.loads(converted.stdout)["accesses"] == 50_000
    tables = [
        f"--tables={name}={DATA / file}"
        for name, file in (("stock", "stock-tables.zst"), ("ptemagnet", "nestwalk-tables.zst"))
    ]
    done = command("compare", "--trace", "real.nwt", *tables, "--json")
    assert done.returncode == 0, done.stderr
    stock, packed = json.loads(done.stdout)["rows"]
    assert [stock["configuration"], packed["configuration"]] == ["stock", "ptemagnet"]
    assert packed["host_pt_fragmentation"] < 1.05
    assert stock["host_pt_fragmentation"] > 4
    assert packed["walk_latency_cycles"] < stock["walk_latency_cycles"]


def test_a_dump_that_is_none_is_said_to_be_so(command: Command, tmp_path: Path) -> None:
    (tmp_path / "no.dump").write_bytes(b"something else")
    done = command("compare", "--tables", "no.dump")
    assert done.returncode == 2
    assert "no.dump: not a dump of page tables" in done.stderr


def test_names_and_files_are_checked(tmp_path: Path) -> None:
    file = tmp_path / "a.zst"
    file.touch()
    assert [cell.name for cell in matrix.of_tables([str(file), f"b={file}"]).cells] == ["a", "b"]
    for dumps, what in (([str(tmp_path / "none")], "no such file"), ([str(file), str(file)], "one name")):
        with pytest.raises(NestwalkError, match=what):
            matrix.of_tables(dumps)
