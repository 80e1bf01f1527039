# SPDX-License-Identifier: MIT OR Apache-2.0
"""Memories of real machines: what Linux says of its frames, and what a program gets of a memory that is used alike."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from support import run_command

from nestwalk import engine
from nestwalk.errors import NestwalkError

GUEST = Path(__file__).parent / "recorded" / "used-guest"
FRAMES = 260_096
"""Of the guest's zone, in whole blocks of 4 MiB."""
AGED = "start = { kind = 'aged', used_permille = 840, kept_permille = 57 }"
KERNEL_TOO = AGED.replace(" }", ", kernel_permille = 25, kernel_kept_permille = 954 }")


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """What the guest's /proc said, unpacked."""
    folder = tmp_path / "proc"
    shutil.copytree(GUEST, folder)
    packed = folder / "kpageflags.gz"
    (folder / "kpageflags").write_bytes(gzip.decompress(packed.read_bytes()))
    return folder


def of_order(lines: str) -> list[int]:
    """Free blocks of the zone by order, all migrate types, in /proc/pagetypeinfo."""
    rows = [line.split()[-11:] for line in lines.splitlines() if "DMA32, type" in line]
    return [sum(map(int, column)) for column in zip(*rows, strict=True)]


def runs(folder: Path, start: str, mib: int) -> dict[str, Any]:
    """What the kernel has given to a program that writes so much, page after page."""
    scenario = folder / "scenario.toml"
    scenario.write_text(
        f"""schema = 1
name = "used"
machine = "broadwell-asap"
[workload.generator]
kind = "gups"
footprint = "{mib} MiB"
warm_accesses = 100
measured_accesses = 100
[[kernels]]
memory = {FRAMES * 4096}
cpus = 2
{start}
""",
        encoding="utf-8",
    )
    kernel: dict[str, Any] = engine.run(scenario).json["statistics"]["kernels"][0]
    return kernel


def test_free_blocks_are_those_that_the_kernel_counts(proc: Path) -> None:
    about, content = engine.save_real_memory(proc, cpus=2)
    counted = of_order((proc / "pagetypeinfo").read_text())
    assert about["frames"] == FRAMES
    assert (about["bytes"], about["zone"], about["node"]) == (len(content), "DMA32", 0)
    # The two files were read one after the other, and what is above the last whole 4 MiB is left out.
    for order, (ours, theirs) in enumerate(zip(about["free_blocks"], counted, strict=True)):
        assert abs(ours - theirs) <= max(4, 0.01 * theirs), order
    assert about["pageblocks_counted"] == {"unmovable": 13, "movable": 495, "reclaimable": 4}
    assert sum(about["pageblocks"].values()) == FRAMES / 512


def test_a_program_gets_of_it_what_it_got_in_the_guest(proc: Path, tmp_path: Path) -> None:
    (tmp_path / "used.nwm").write_bytes(engine.save_real_memory(proc, cpus=2)[1])
    real = {16: (4096, 3783, 8, 8), 64: (16384, 7069, 32, 30), 256: (65536, 6406, 129, 92)}
    for mib, (pages, page_runs, tables, table_runs) in real.items():
        kernel = runs(tmp_path, "saved = 'used.nwm'", mib)
        assert kernel["mapped_pages"] == pages
        assert kernel["page_runs"] == pytest.approx(page_runs, rel=0.5), mib
        assert kernel["table_nodes"] == pytest.approx(tables, abs=4), mib
        assert kernel["table_runs"] == pytest.approx(table_runs, rel=0.5), mib


def test_a_memory_with_as_many_free_blocks_gives_what_the_guest_gave(proc: Path, tmp_path: Path) -> None:
    about = engine.save_real_memory(proc, cpus=2)[0]
    alike = about["alike"]
    assert (alike["kind"], alike["of"]) == ("buddyinfo", "1016 MiB")
    keys = ", ".join(f"{key} = {json.dumps(value)}" for key, value in alike.items())
    printed = run_command("memory", str(proc), str(tmp_path / "used.nwm"), "--cpus", "2")
    assert f"start = {{ {keys} }}" in printed.stderr
    real = {16: (3783, 8), 64: (7069, 30), 256: (6406, 92)}
    found = {mib: runs(tmp_path, f"start = {{ {keys} }}", mib) for mib in real}
    for mib, (page_runs, table_runs) in real.items():
        assert found[mib]["page_runs"] == pytest.approx(page_runs, rel=0.5), mib
        assert found[mib]["table_runs"] == pytest.approx(table_runs, rel=0.5), mib
    # Of a kernel with half the memory half as many blocks are free, so they last half as long.
    half = runs(tmp_path, f"start = {{ {keys} }}".replace("1016 MiB", "2032 MiB"), 128)
    assert half["page_runs"] == pytest.approx(found[256]["page_runs"] / 2, rel=0.1)


def test_more_free_blocks_than_there_can_be_are_refused(tmp_path: Path) -> None:
    for start, message in {
        "free_blocks = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255]": r"free_blocks`: 255 blocks of order 10 cannot be free",
        "free_blocks = [1, 2]": "free_blocks",
        "free_blocks = [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1], of = 0": r"start.of",
        "free_blocks = [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1], kernel_permille = 1001": r"start.kernel_permille",
    }.items():
        with pytest.raises(NestwalkError, match=message) as caught:
            runs(tmp_path, f"start = {{ kind = 'buddyinfo', {start} }}", 16)
        assert "scenario.toml" in str(caught.value)


def test_tables_of_an_aged_memory_scatter_if_its_kernel_had_memory_too(tmp_path: Path) -> None:
    without, with_kernel = (runs(tmp_path, start, 256) for start in (AGED, KERNEL_TOO))
    assert (without["table_runs"], without["table_nodes"]) == (1, 131)
    assert with_kernel["table_runs"] > 0.9 * with_kernel["table_nodes"]


def test_what_is_wrong_is_said_in_one_line(proc: Path, tmp_path: Path) -> None:
    with pytest.raises(NestwalkError, match=r"zoneinfo: no zone of node 3 .* nodes \[0\]"):
        engine.save_real_memory(proc, node=3)
    zones = (proc / "zoneinfo").read_bytes()
    for other in (b"hello", b"\xff\xfe", b""):
        (proc / "zoneinfo").write_bytes(other)
        with pytest.raises(NestwalkError, match=r"zoneinfo: it names no zone .*; give a copy of /proc/zoneinfo$"):
            engine.save_real_memory(proc)
    (proc / "zoneinfo").write_bytes(zones)
    flags = proc / "kpageflags"
    flags.write_bytes(flags.read_bytes()[:-16384])
    with pytest.raises(NestwalkError, match=r"kpageflags: it ends at frame 260096, and the zone at frame 261120"):
        engine.save_real_memory(proc)
    flags.unlink()
    with pytest.raises(NestwalkError, match=r"kpageflags: No such file"):
        engine.save_real_memory(proc)
    file = str(tmp_path / "x.nwm")
    for arguments, message in {
        (str(proc), "--kernel", "0"): "a real machine has one kernel; leave out --kernel",
        ("colocated-vm", "--node", "0"): "--node is for real machines; a scenario says it itself",
        ("colocated-vm", "--seed", "3"): "--seed is for real machines; a scenario says it itself",
    }.items():
        done = run_command("memory", arguments[0], file, *arguments[1:])
        assert (done.returncode, done.stderr.strip()) == (2, f"nestwalk: error: {message}")
    assert not Path(file).exists()


@pytest.mark.skipif(sys.platform != "linux", reason="Linux only")
def test_this_machine(tmp_path: Path) -> None:
    file = tmp_path / "here.nwm"
    done = run_command("memory", "this-machine", str(file), "--json")
    if done.returncode:
        assert os.geteuid() != 0 or "kpageflags" in done.stderr
        assert done.stderr.count("\n") == 1
        assert not file.exists()
        pytest.skip(done.stderr)
    about = json.loads(done.stdout)
    assert about["bytes"] == file.stat().st_size
    assert 0 < about["free_frames"] < about["frames"] <= about["spanned"]
    assert sum(count << order for order, count in enumerate(about["free_blocks"])) == about["free_frames"]
    blocks = of_zone(about["node"], about["zone"])
    if blocks is not None:
        # Others allocate meanwhile; what is free in large blocks changes little.
        large = [
            sum(count << order for order, count in enumerate(found) if order > 3)
            for found in (about["free_blocks"], blocks)
        ]
        assert large[0] == pytest.approx(large[1], rel=0.2, abs=20_000)


def of_zone(node: int, zone: str) -> list[int] | None:
    """Free blocks of a zone by order, as /proc/buddyinfo has them."""
    for line in Path("/proc/buddyinfo").read_text().splitlines():
        words = line.split()
        if words[1] == f"{node}," and words[3] == zone:
            return [int(word) for word in words[4:]]
    return None
