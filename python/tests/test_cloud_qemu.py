# SPDX-License-Identifier: MIT OR Apache-2.0
"""``nestwalk segments`` on VMs of QEMU: a recorded one, a QEMU that answers wrongly, and a real one where installed."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support import Command

from nestwalk.cloud import qemu, segments
from nestwalk.cloud.proc import Source
from nestwalk.errors import NestwalkError

RECORDED = Path(__file__).parent / "recorded"
MIB, GIB, PAGE = 1 << 20, 1 << 30, 4096


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """The recording ``qemu-tcg``, its extents as the kernel's entries."""
    folder = tmp_path / "vm"
    folder.mkdir()
    shutil.copy(RECORDED / "qemu-tcg/maps", folder / "maps")
    with (folder / "pagemap").open("wb") as file:
        for line in (RECORDED / "qemu-tcg/extents").read_text(encoding="utf-8").splitlines():
            pages, flags, frame, way = line.split()
            first = int(flags, 16) << 55 | int(frame, 16)
            count = int(pages)
            rows = range(first, first + count) if way == "+" and first >> 63 else [first] * count
            file.write(struct.pack(f"<{count}Q", *rows))
    return folder


def test_a_recorded_vm(recorded: Path) -> None:
    value, chosen = segments.report(Source(recording=recorded))
    # Not the code buffer of 1 GiB, which is the largest writable mapping.
    assert [one.pages * PAGE for one in chosen] == [192 * MIB]
    assert value["memory_pages"] == 192 * MIB // PAGE
    # Written: 16 to 64 MiB and what the firmware wrote, in huge pages. Read only: 72 to 128 MiB.
    assert value["present_pages"] == 54 * MIB // PAGE
    assert value["shared_pages"] == 56 * MIB // PAGE
    layout = value["segments"]
    assert (layout["count"], layout["fewest"], layout["largest_pages"]) == (27, 27, 512)
    # What QEMU's gpa2hpa said of three pages.
    entries = b"".join(Source(recording=recorded).entries(chosen[0], Source(recording=recorded).mappings()))
    for gpa, hpa in ((16 * MIB, 0x2FB200000), (32 * MIB, 0x361200000), (0x3FFF000, 0x36A1FF000)):
        (entry,) = struct.unpack_from("<Q", entries, gpa // PAGE * 8)
        assert (entry & ((1 << 55) - 1)) * PAGE == hpa


@pytest.mark.parametrize(("machine", "below"), [("pc", 3 * GIB), ("q35", 2 * GIB)])
def test_the_hole_below_4_gib(machine: str, below: int) -> None:
    found = qemu.ranges((RECORDED / "qemu-mtree" / f"{machine}.txt").read_text(encoding="utf-8"))
    ram = [(first, length) for first, length, block in found if block == "pc.ram"]
    assert ram == [(0, below), (4 * GIB, 6 * GIB - below)]


def entries_of(runs: list[tuple[int, int]]) -> bytes:
    flags = 1 << 63 | 1 << 56
    flat = [flags | pfn for first, pages in runs for pfn in range(first, first + pages)]
    return struct.pack(f"<{len(flat)}Q", *flat)


@pytest.mark.parametrize(
    ("guest", "count"),
    [
        # Two mappings that are next to each other in both memories are one segment,
        ("100000\n108000\n", 1),
        # a hole between them makes two of one run of frames,
        ("100000\n140000000\n", 2),
        # and so does the other order.
        ("108000\n100000\n", 2),
    ],
)
def test_guest_physical_addresses_decide(tmp_path: Path, guest: str, count: int) -> None:
    lines = [f"{at:x}-{at + 8 * PAGE:x} rw-p 00000000 00:00 0 \n" for at in (0x10000000, 0x20000000)]
    (tmp_path / "maps").write_text("".join(lines), encoding="utf-8")
    (tmp_path / "pagemap").write_bytes(entries_of([(500, 16)]))
    (tmp_path / "guest").write_text(guest, encoding="utf-8")
    value, _ = segments.report(Source(recording=tmp_path))
    assert (value["segments"]["count"], value["segments"]["fewest"]) == (count, count)
    assert [int(one["gpa"], 16) for one in value["guest_physical"]] == sorted(int(one, 16) for one in guest.split())


@pytest.mark.parametrize("guest", ["", "1000\n", "x\ny\n", "100\n1000\n", "-1000\n1000\n", "\udcff\n0\n"])
def test_damaged_guest_addresses(tmp_path: Path, guest: str) -> None:
    folder = tmp_path / "r"
    folder.mkdir()
    lines = [f"{at:x}-{at + 8 * PAGE:x} rw-p 00000000 00:00 0 \n" for at in (0x10000000, 0x20000000)]
    (folder / "maps").write_text("".join(lines), encoding="utf-8")
    (folder / "pagemap").write_bytes(entries_of([(500, 16)]))
    (folder / "guest").write_bytes(guest.encode(errors="surrogateescape"))
    with pytest.raises(NestwalkError, match="guest: has to have a guest-physical address") as caught:
        segments.report(Source(recording=folder))
    assert "\n" not in str(caught.value)


GREETING = b'{"QMP": {"version": {}}}\n'
TREE = (RECORDED / "qemu-mtree/pc.txt").read_text(encoding="utf-8")


@contextmanager
def answers(path: Path, *lines: bytes) -> Iterator[None]:
    """A socket that says one line when connected to, and then one line for each that it gets."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()

        def serve() -> None:
            connection, _ = server.accept()
            with connection, connection.makefile("rb") as asked:
                for number, line in enumerate(lines):
                    if number:
                        asked.readline()
                    connection.sendall(line)

        thread = threading.Thread(target=serve)
        thread.start()
        yield
        thread.join()


def returned(value: Any) -> bytes:
    return json.dumps({"return": value}).encode() + b"\n"


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ((b"QEMU 7.2.22 monitor\n",), "is no QMP socket"),
        ((b"",), "is no QMP socket"),
        ((b"[1]\n",), "is no QMP socket"),
        ((GREETING, b'{"error": {"desc": "no"}}\n'), "QEMU refuses qmp_capabilities: no"),
        ((GREETING, returned({}), returned({})), "is no QMP socket"),
        ((GREETING, returned({}), returned("FlatView #0\n")), "QEMU names no guest memory"),
    ],
)
def test_a_monitor_that_is_none(tmp_path: Path, lines: tuple[bytes, ...], said: str) -> None:
    path = tmp_path / "s"
    with answers(path, *lines), pytest.raises(NestwalkError, match=said) as caught:
        qemu.layout(path)
    assert str(path) in str(caught.value)


def test_a_monitor_that_is_silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qemu, "TIMEOUT_S", 0.2)
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        with pytest.raises(NestwalkError, match="another program"):
            qemu.layout(path)
    with pytest.raises(NestwalkError, match="s: Connection refused; nothing listens there: name a running QEMU"):
        qemu.layout(path)
    with pytest.raises(NestwalkError, match="No such file"):
        qemu.layout(tmp_path / "nowhere")


def test_a_monitor_of_another_vm(tmp_path: Path) -> None:
    """An event may come between; ROMs have no address; the address is not the process's."""
    path = tmp_path / "s"
    event = b'{"event": "RTC_CHANGE"}\n'
    hva = "Host virtual address for 0x0 (pc.ram) is 0x1000\n"
    nothing = returned("Memory at address 0xc0000 is not RAM\n")
    blocks = len(qemu.ranges(TREE))
    lines = [GREETING, returned({}), event + returned(TREE), returned(hva), *[nothing] * (blocks - 1)]
    with answers(path, *lines), pytest.raises(NestwalkError, match="of the same VM"):
        segments.report(Source(pid=os.getpid()), monitor=path)


QEMU = shutil.which("qemu-system-x86_64")


@pytest.mark.skipif(QEMU is None, reason="qemu-system-x86_64 is not installed")
def test_a_real_vm(command: Command, tmp_path: Path) -> None:
    """4 GiB, of which QEMU fills 12 MiB before the guest's first instruction: held against QEMU's own addresses."""
    assert QEMU is not None
    (tmp_path / "blob").write_bytes(os.urandom(12 * MIB))
    arguments = ["-accel", "tcg", "-m", "4G", "-S", "-display", "none", "-nodefaults"]
    arguments += ["-device", f"loader,file={tmp_path / 'blob'},addr={16 * MIB:#x},force-raw=on"]
    arguments += ["-qmp", f"unix:{tmp_path / 'qmp'},server=on,wait=off"]
    with subprocess.Popen([QEMU, *arguments], stderr=subprocess.DEVNULL) as vm:
        try:
            _wait_for(tmp_path / "qmp", vm)
            done = command("segments", "--pid", vm.pid, "--monitor", "qmp", "--record", "kept", "--json")
            assert done.returncode == 0, done.stderr
            value = json.loads(done.stdout)
            alone = json.loads(command("segments", "--pid", vm.pid, "--json").stdout)
            with qemu.Monitor(tmp_path / "qmp") as monitor:
                said = [monitor.human(f"gpa2hpa {gpa:#x}") for gpa in range(16 * MIB, 28 * MIB, PAGE)]
        finally:
            vm.kill()
    assert value["guest_physical"] == [
        {"gpa": "0x0", "bytes": 3 * GIB},
        {"gpa": hex(4 * GIB), "bytes": GIB},
    ]
    # Without QEMU's help the memory is one mapping, and no code is taken for it.
    assert alone["memory_pages"] == value["memory_pages"] == 4 * GIB // PAGE
    assert len(alone["mappings"]) == 1
    assert alone["guest_physical"].startswith("unavailable, because")
    # The blob, the firmware's few pages, and the rest of huge pages that these are in.
    assert 12 * MIB <= value["present_pages"] * PAGE <= 20 * MIB
    if isinstance(value["segments"], str):
        assert value["segments"] == segments.PFN_HIDDEN
        return
    frames = [int(match[1], 16) // PAGE for match in (re.search(r" is 0x([0-9a-f]+)", one) for one in said) if match]
    assert len(frames) == len(said)
    data = (tmp_path / "kept/pagemap").read_bytes()
    entries = struct.unpack_from(f"<{len(said)}Q", data, 16 * MIB // PAGE * 8)
    assert [entry & ((1 << 55) - 1) for entry in entries] == frames
    breaks = sum(second != first + 1 for first, second in itertools.pairwise(frames))
    assert breaks < value["segments"]["count"] <= breaks + 1 + 8 * MIB // PAGE


def _wait_for(path: Path, vm: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 60
    while not path.exists():
        assert vm.poll() is None, "QEMU ended"
        assert time.monotonic() < end, "QEMU does not open its monitor"
        time.sleep(0.1)
