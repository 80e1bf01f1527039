# SPDX-License-Identifier: MIT OR Apache-2.0
"""``nestwalk segments``: recordings with layouts worked out by hand, and a live process."""

from __future__ import annotations

import json
import mmap
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support import Command

from nestwalk.cloud import proc, segments
from nestwalk.errors import NestwalkError

PRESENT = 1 << 63
EXCLUSIVE = 1 << 56
FILE = 1 << 61
GIB_PAGES = 1 << 18
START = 0x7F0000000000


ANONYMOUS = "rw-p 00000000 00:00 0 "


def record(folder: Path, entries: list[list[int]], kinds: list[str] | None = None, **more: str | bytes) -> Path:
    """A recording of mappings whose pagemap entries these are; ``kinds``: what ``maps`` says after the addresses."""
    folder.mkdir()
    lines, at = [], START
    for mapping, kind in zip(entries, kinds or [ANONYMOUS] * len(entries), strict=True):
        lines.append(f"{at:x}-{at + 4096 * len(mapping):x} {kind}")
        at += 4096 * len(mapping) + (1 << 30)
    (folder / "maps").write_text("\n".join(lines) + "\n", encoding="utf-8")
    flat = [entry for mapping in entries for entry in mapping]
    (folder / "pagemap").write_bytes(struct.pack(f"<{len(flat)}Q", *flat))
    for name, content in more.items():
        data = content.encode() if isinstance(content, str) else content
        (folder / name).write_bytes(data)
    return folder


def frames(*pfns: int) -> list[int]:
    return [PRESENT | EXCLUSIVE | pfn for pfn in pfns]


def found(command: Command, folder: Path) -> dict[str, Any]:
    done = command("segments", "--from", folder, "--json")
    assert done.returncode == 0, done.stderr
    value: dict[str, Any] = json.loads(done.stdout)
    return value


BUDDY = "Node 0, zone   Normal      3      0      1      0      0      0      0      0      0      0      2 \n"


def test_a_layout_worked_out_by_hand(command: Command, tmp_path: Path) -> None:
    # Frames 100-103, a page that is absent, 105 (which joins on), 50-51, one swapped out, 200.
    entries = [*frames(100, 101, 102, 103), 0, *frames(105), *frames(50, 51), 1 << 62, *frames(200)]
    value = found(command, record(tmp_path / "r", [entries], buddyinfo=BUDDY, hugepages="1048576 4 2\n2048 512 0\n"))
    assert (value["memory_pages"], value["present_pages"], value["absent_pages"], value["swapped_pages"]) == (
        10,
        8,
        1,
        1,
    )
    layout = value["segments"]
    assert (layout["count"], layout["fewest"], layout["largest_pages"]) == (4, 3, 4)
    assert layout["share_in_largest"] == {"1": 4 / 8, "2": 6 / 8, "3": 7 / 8, "4": 1.0}
    free = value["available_now"]["free_memory"]
    assert free["free_pages"] == 3 + 4 + 2048
    assert free["segments_at_most"] == 1
    assert free["segments"].startswith("unavailable, because there is no kpageflags")
    gib, mib = value["available_now"]["hugetlb"]
    assert (gib["needed"], gib["segments_at_most"]) == (1, 1)
    assert mib["segments_at_most"].startswith("unavailable, because the pool has 0 free pages")


def test_gibibytes_of_hugetlb_are_coalesced(command: Command, tmp_path: Path) -> None:
    # Two pages of 1 GiB next to each other in the right order, and a third elsewhere: longer than what is read at once.
    entries = frames(*range(4 * GIB_PAGES, 6 * GIB_PAGES), *range(GIB_PAGES, 2 * GIB_PAGES))
    layout = found(command, record(tmp_path / "r", [entries]))["segments"]
    assert (layout["count"], layout["largest_pages"], layout["whole_gib"]) == (2, 2 * GIB_PAGES, 3)
    # The other way round, the first two are two.
    swapped = frames(*range(5 * GIB_PAGES, 6 * GIB_PAGES), *range(4 * GIB_PAGES, 5 * GIB_PAGES))
    assert found(command, record(tmp_path / "s", [swapped]))["segments"]["count"] == 2


def test_mappings_do_not_join_and_small_ones_are_no_guest_memory(command: Command, tmp_path: Path) -> None:
    folder = record(tmp_path / "r", [frames(*range(10, 18)), frames(*range(18, 26)), frames(1)])
    value = found(command, folder)
    assert len(value["mappings"]) == 2
    assert value["segments"]["count"] == 2
    everything = command("segments", "--from", folder, "--everything", "--json")
    assert json.loads(everything.stdout)["segments"]["count"] == 3


def test_the_code_of_the_vmm_is_no_guest_memory(command: Command, tmp_path: Path) -> None:
    """As in QEMU with TCG: guest memory, and a buffer of code that is larger than it, in one mapping or in two."""
    guest, buffer = frames(*range(10, 18)), frames(*range(100, 132))
    one = record(tmp_path / "one", [guest, buffer], kinds=[ANONYMOUS, "rwxp 00000000 00:00 0 "])
    value = found(command, one)
    assert [mapping["bytes"] for mapping in value["mappings"]] == [8 * 4096]
    assert value["segments"]["count"] == 1
    split = [f"{way} 00000000 00:01 7 /memfd:tcg-jit (deleted)" for way in ("rw-s", "r-xs")]
    two = record(tmp_path / "two", [guest, buffer, buffer], kinds=[ANONYMOUS, *split])
    assert found(command, two)["memory_pages"] == 8
    everything = command("segments", "--from", one, "--everything", "--json")
    assert json.loads(everything.stdout)["memory_pages"] == 8 + 32


def test_pages_of_zeros_are_no_segments(command: Command, tmp_path: Path) -> None:
    """A page that was read and not written has no frame yet, whatever the kernel maps there."""
    zeros = [PRESENT | 5] * 4  # the page of 4 KiB
    huge = [PRESENT | FILE | pfn for pfn in range(512, 516)]  # part of the huge one, as new kernels show it
    anonymous = record(tmp_path / "a", [[*frames(20, 21), *zeros, *huge, *frames(30, 31)]])
    value = found(command, anonymous)
    assert (value["present_pages"], value["shared_pages"], value["absent_pages"]) == (4, 8, 0)
    assert (value["segments"]["count"], value["segments"]["fewest"]) == (2, 1)
    # Of a file, the same bits are a page of the page cache.
    memfd = record(tmp_path / "f", [huge], kinds=["rw-s 00000000 00:01 9 /memfd:ram (deleted)"])
    value = found(command, memfd)
    assert (value["present_pages"], value["shared_pages"], value["segments"]["count"]) == (4, 0, 1)


def test_free_memory_that_is_next_to_each_other(command: Command, tmp_path: Path) -> None:
    free = proc.KPF_BUDDY
    flags = [0, free, free, free, 0, free, free, 0, free]
    kpageflags = struct.pack(f"<{len(flags)}Q", *flags)

    def segments_of(pages: int, name: str) -> Any:
        folder = record(tmp_path / name, [frames(*range(7, 7 + pages))], buddyinfo=BUDDY, kpageflags=kpageflags)
        return found(command, folder)["available_now"]["free_memory"]

    assert segments_of(3, "a")["segments"] == 1
    assert segments_of(4, "b")["segments"] == 2
    assert segments_of(6, "c")["segments"] == 3
    assert segments_of(6, "c2")["largest_run_pages"] == 3
    assert segments_of(7, "d")["segments"].startswith("unavailable, because")


def test_hidden_frames_are_said_and_no_number(command: Command, tmp_path: Path) -> None:
    layout = found(command, record(tmp_path / "r", [frames(0, 0, 0)]))["segments"]
    assert layout.startswith("unavailable, because ")
    assert "CAP_SYS_ADMIN" in layout
    untouched = found(command, record(tmp_path / "s", [[0, 0]]))["segments"]
    assert untouched.startswith("unavailable, because no page of it has a frame of its own")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "either --pid"),
        (("--pid", "1", "--from", "r"), "either --pid"),
        (("--pid", "4194303"), "there is no process"),
        (("--from", "nowhere"), "error: nowhere/maps: No such file or directory; check its name"),
        (("--from", "cut"), "cut/pagemap: ends within the mapping"),
        (("--from", "odd"), "odd/maps: line 1: is not a mapping"),
        (("--from", "cut", "--record", "cut"), "cut"),
    ],
)
def test_bad_requests_are_one_line(command: Command, tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    cut = record(tmp_path / "cut", [frames(1, 2, 3)])
    (cut / "pagemap").write_bytes((cut / "pagemap").read_bytes()[:-3])
    odd = record(tmp_path / "odd", [frames(1)])
    (odd / "maps").write_text("nonsense\n", encoding="utf-8")
    done = command("segments", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


CHILD = """
import mmap, sys
size = 64 << 20
area = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
area.madvise(mmap.MADV_NOHUGEPAGE)
for at in range(0, size // 2, 4096):
    area[at] = 1
for at in range(size // 2, 3 * size // 4, 4096):
    area[at]
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_live_process_of_known_size(command: Command, tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdout.readline()
        done = command("segments", "--pid", child.pid, "--json", "--record", "kept")
        child.stdin.close()
    assert done.returncode == 0, done.stderr
    value = json.loads(done.stdout)
    half = (32 << 20) // mmap.PAGESIZE
    # The kernel may have joined the mapping with a neighbour.
    assert half <= value["present_pages"] <= value["memory_pages"]
    assert value["memory_pages"] >= 2 * half
    # What was read and not written is the kernel's page of zeros.
    assert half // 2 <= value["shared_pages"] < half
    layout = value["segments"]
    if isinstance(layout, str):
        assert layout == segments.PFN_HIDDEN
        assert os.geteuid() != 0
    else:
        assert 1 <= layout["fewest"] <= layout["count"] <= value["present_pages"]
        assert sum(layout["share_in_largest"].values()) > 0
    again = found(command, tmp_path / "kept")
    assert again["segments"] == layout
    assert again["present_pages"] == value["present_pages"]
    text = command("segments", "--from", tmp_path / "kept").stdout
    assert "What a VM of this size could get now" in text


COUNTS = (b"", b"\n", b"x y z\n", b"\xff\xfe\n", b"\0" * 50)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        *(("buddyinfo", data) for data in COUNTS),
        ("buddyinfo", b"Node 0, zone Normal\n"),
        ("buddyinfo", b"Node 0, zone Normal -1\n"),
        ("buddyinfo", b"Node 0, zone Normal " + b"9" * 5000),
        ("buddyinfo", b"Node 0, zone Normal " + b"1 " * 100_000),
        ("buddyinfo", "Node 0, zone Normal \N{SUPERSCRIPT TWO}\n".encode()),
        *(("hugepages", data) for data in COUNTS[2:]),
        ("hugepages", b"2048 1\n"),
        ("hugepages", b"2048 1 1 1\n"),
        ("hugepages", b"0 1 1\n"),
        ("hugepages", b"3 1 1\n"),
        ("hugepages", b"2 1 1\n"),
        ("hugepages", b"-2048 1 1\n"),
        ("hugepages", b"2048 -5 -5\n"),
        ("hugepages", b"2048 5 9\n"),
        ("hugepages", b"2048 5 " + b"9" * 5000),
    ],
)
def test_damaged_counts_are_unavailable_and_the_rest_goes_on(tmp_path: Path, name: str, data: bytes) -> None:
    sound = {"buddyinfo": BUDDY.encode(), "hugepages": b"2048 5 5\n"}
    folder = record(tmp_path / "r", [frames(*range(10, 18))], None, **{**sound, name: data})
    value, _ = segments.report(proc.Source(recording=folder))
    assert value["segments"]["count"] == 1
    now = value["available_now"]
    damaged, other = (
        (now["free_memory"], now["hugetlb"]) if name == "buddyinfo" else (now["hugetlb"], now["free_memory"])
    )
    assert isinstance(damaged, str)
    assert damaged.startswith("unavailable, because ")
    assert not isinstance(other, str)


def test_free_pages_are_counted_where_they_are_read(tmp_path: Path) -> None:
    """With damaged flags fewer pages look free than buddyinfo has; the reason says how many were found."""
    folder = record(tmp_path / "r", [frames(*range(10, 18))], buddyinfo=BUDDY, kpageflags=b"\xff" * 24 + b"\0" * 3)
    value, _ = segments.report(proc.Source(recording=folder))
    assert value["available_now"]["free_memory"]["segments"] == (
        "unavailable, because 3 pages are free and the VM has 8"
    )


@pytest.mark.parametrize("name", ["maps", "pagemap", "guest", "buddyinfo", "kpageflags", "hugepages"])
def test_a_pipe_in_a_recording_is_refused(tmp_path: Path, name: str) -> None:
    folder = record(tmp_path / "r", [frames(*range(10, 18))], buddyinfo=BUDDY)
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    with pytest.raises(NestwalkError, match=f"{name}: is no regular file"):
        segments.report(proc.Source(recording=folder))


@pytest.mark.parametrize(
    ("maps", "said"),
    [
        ("", "has no memory of its own"),
        ("\n", "line 1: is not a mapping"),
        ("10000000-10008000 rw-p 00000000 00:00 0 \n" * 2, "line 2: begins within the mapping before it"),
        ("10008000-10000000 rw-p 00000000 00:00 0 \n", "line 1: has addresses that no mapping has"),
        ("10000000-10008001 rw-p 00000000 00:00 0 \n", "line 1: has addresses that no mapping has"),
        ("0-1ffffffffffffff000 rw-p 00000000 00:00 0 \n", "line 1: is not a mapping"),
        ("0-100000000000000 rw-p 00000000 00:00 0 \n", "pagemap: ends within the mapping at 0x0"),
        ("10000000-10008000 r--p 00000000 00:00 0 \n", "has no writable memory"),
        # Code alone is nobody's memory.
        ("10000000-10008000 rwxp 00000000 00:00 0 \n", "has no writable memory"),
    ],
)
def test_damaged_maps_are_one_line(tmp_path: Path, maps: str, said: str) -> None:
    folder = record(tmp_path / "r", [frames(*range(10, 18))])
    (folder / "maps").write_text(maps, encoding="utf-8")
    with pytest.raises(NestwalkError, match=said) as caught:
        segments.report(proc.Source(recording=folder))
    assert "\n" not in str(caught.value)


def test_a_recording_that_could_not_be_made_is_refused_before_anything_is_read(
    command: Command, tmp_path: Path
) -> None:
    (tmp_path / "there").mkdir()
    for target, said in (("there", "exists already"), ("none/there", "there is no directory")):
        done = command("segments", "--from", "no/such/recording", "--record", target)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert f"{target}: {said}" in done.stderr
