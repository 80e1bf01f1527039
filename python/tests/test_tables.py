# SPDX-License-Identifier: MIT OR Apache-2.0
"""Comparing the page tables of running guests."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
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


def with_regions(source: Path, target: Path, lines: str) -> Path:
    """A copy of a stock guest's dump with the section ``regions``: synthetic, as is what it says."""
    zstd = shutil.which("zstd")
    if zstd is None:
        pytest.skip("zstd is not installed")
    packed = subprocess.run([zstd, "-dc", source], check=True, capture_output=True).stdout
    root = 16 + 3 * 8
    whole = bytearray(packed)
    whole[:8] = b"NWPT0003"
    # The dump does not follow the root's upper half.
    whole[root + 256 * 8 : root + 512 * 8] = bytes(256 * 8)
    body = f"tgid level start end first_pfn used idle holes\n{lines}".encode()
    target.write_bytes(whole + struct.pack("<2Q", len(b"regions"), len(body)) + b"regions" + body)
    return target


def test_a_dump_with_regions_has_rows_of_asap(command: Command, tmp_path: Path) -> None:
    """The tables of a real guest that sorts them; and a region that is not true, which changes time only."""
    converted = command("trace", "convert", DATA / "stock-trace.zst", "real.nwt", "--json")
    assert converted.returncode == 0, converted.stderr
    # One table, in the last frame of the guest: nothing lies there.
    line = "9 1 7ffff0000000 7ffff0200000 2ffff 1 0 0\n"
    wrong = with_regions(DATA / "stock-tables.zst", tmp_path / "wrong.tables", line)
    tables = [f"--tables=sorted={DATA / 'sorted-tables.zst'}", f"--tables=wrong={wrong}"]
    done = command("compare", "--trace", "real.nwt", *tables, "--quick", "--json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    names = ["sorted", "sorted-asap-p1", "sorted-asap-p1-p2", "wrong", "wrong-asap-p1", "wrong-asap-p1-p2"]
    assert [row["configuration"] for row in rows] == names
    for plain, *prefetched in (rows[:3], rows[3:]):
        for row in prefetched:
            assert row["walks_per_kiloaccess"] == plain["walks_per_kiloaccess"]
            assert row["references_per_walk"] == plain["references_per_walk"]
    assert rows[1]["walk_latency_cycles"] < rows[0]["walk_latency_cycles"]
    assert rows[4]["walk_latency_cycles"] >= rows[3]["walk_latency_cycles"]


def test_regions_that_cannot_be_are_refused(command: Command, tmp_path: Path) -> None:
    for lines, what in (
        ("9 1 7ffff0000000 7ffff0200000 2ffff 1 1 0\n", "line 2: used, idle and holes are 1, 1 and 0, of 1 places"),
        ("9 1 0 200000 5 1 0 0\n7 1 0 200000 6 1 0 0\n", "processes 9 and 7: keep the lines of the one"),
    ):
        dump = with_regions(DATA / "stock-tables.zst", tmp_path / "some.tables", lines)
        done = command("compare", f"--tables=some={dump}")
        assert done.returncode == 2
        assert "some.tables" in done.stderr
        assert what in done.stderr


RECORDED = REPOSITORY / "python" / "tests" / "recorded" / "inspect"


def test_the_regions_of_a_recorded_process_are_its_own(command: Command) -> None:
    """Recorded in a guest that sorts page tables; what its debugfs said of the process is kept beside the recording."""
    lines = [line.split() for line in json.loads((RECORDED / "sorted.json").read_text())["regions"]]
    done = command("inspect", RECORDED / "frag-sorted.rec", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["sorted_tables"]
    sums = {key: sum(int(line[column]) for line in lines) for column, key in ((5, "used"), (6, "idle"), (7, "holes"))}
    assert found == {"regions": len(lines), **sums}
    done = command("inspect", RECORDED / "frag-sorted.rec")
    assert "regions of sorted page tables" in " ".join(done.stdout.split())


def test_a_recording_without_regions_is_said_to_have_none(command: Command) -> None:
    recording = RECORDED / "frag-0.rec"
    done = command("inspect", recording, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["sorted_tables"]
    why = "unavailable, because /sys/kernel/debug/sorted_tables/regions cannot be read"
    assert found["unavailable"].startswith(why)
    done = command("vm", "tables", "-o", "x.tables", "--monitor", "none.qmp", "--regions", recording)
    assert done.returncode == 2
    assert "frag-0.rec: regions are unavailable, because" in done.stderr
