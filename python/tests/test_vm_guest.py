# SPDX-License-Identifier: MIT OR Apache-2.0
"""``nestwalk vm`` on a guest with a stock kernel whose one program makes known accesses (``guest/known.c``)."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import struct
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import guests
import pytest
from support import EXECUTABLE, run_command

from nestwalk import _native
from nestwalk.vm import command_line, session, tools, when

PAGE = 4096
BOOT_S = 150
"""On a machine with much else to do; 10 to 40 s otherwise."""


@dataclass(frozen=True)
class Captured:
    """A capture, with the stream that the trace was made from."""

    report: dict[str, Any]
    stream: Path
    trace: Path
    tables: Path


class Keeping:
    """The engine, but that the stream is kept in a file."""

    def __init__(self, keep: Path) -> None:
        self.keep = keep

    def __getattr__(self, name: str) -> Any:
        return getattr(_native, name)

    def vm_record(self, source: str, *rest: Any) -> str:
        with Path(source).open("rb") as stream, self.keep.open("wb") as kept:
            shutil.copyfileobj(stream, kept)
        return _native.vm_record(str(self.keep), *rest)


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Captured:
    """What the program does between its markers."""
    folder = tmp_path_factory.mktemp("guest")
    words = guests.command_line(folder)
    request = session.Request(
        command=command_line.parse(words),
        plugin=tools.plugin(tools.qemu(words[0]), "gcc"),
        trace=folder / "known.nwt",
        tables=folder / "known.tables",
        process=None,
        begin=when.When(mark=True),
        end=when.When(mark=True),
        accesses_max=10**9,
        kept="user-code",
        kernel_tables=True,
        title=None,
    )
    keep = folder / "stream"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "_native", Keeping(keep))
        report = session.run(request)
    return Captured(report, keep, request.trace, request.tables)


def records(stream: Path) -> Iterator[tuple[int, int]]:
    """The two words of each record."""
    data = stream.read_bytes()
    assert data.startswith(b"NWSM0003")
    at = 16
    while at < len(data):
        count = struct.unpack_from("<4s3I", data, at)[2]
        at += 32
        yield from struct.iter_unpack("<2Q", data[at : at + 16 * count])
        at += 16 * count


def test_the_accesses_of_user_code_are_the_known_ones(captured: Captured) -> None:
    user = [(word & (1 << 57) - 1, bool(word >> 58 & 1)) for word, _ in records(captured.stream) if not word >> 57 & 1]
    assert user == list(guests.known())
    assert captured.report["recorded"]["by_user"] == captured.report["accesses"] == len(user)
    assert {word >> 59 & 3 for word, _ in records(captured.stream) if not word >> 57 & 1} == {3}, "eight bytes each"


def test_accesses_of_the_kernel_are_flagged(captured: Captured) -> None:
    # Interrupts, at least: the guest's clock goes on.
    counts = captured.report["recorded"]
    assert counts["by_kernel_to_kernel"] > 0
    assert counts["kernel_instructions"] > 0
    upper = [word for word, _ in records(captured.stream) if word >> 56 & 1]
    assert upper
    assert all(word >> 57 & 1 for word in upper)


def test_each_frame_is_that_of_the_dumped_tables(captured: Captured) -> None:
    frames, recorded = captured.report["frames"], captured.report["recorded"]["recorded"]
    assert frames["same"] + frames["other"] + frames["unmapped"] + frames["unknown"] <= recorded
    # None differs; the kernel's temporary mappings may be gone, and ROM is no memory of the guest.
    assert frames["other"] == 0, frames
    assert frames["same"] >= 0.999 * recorded - captured.report["recorded"]["to_devices"], frames
    assert captured.report["page_tables"]["at"] == "when recording ended"
    assert captured.report["warnings"] == []


def test_huge_pages_and_both_halves_are_there(captured: Captured) -> None:
    tables = captured.report["page_tables"]
    assert tables["user_pages"][1] == 1
    assert tables["user_pages"][0] >= guests.SMALL_PAGES
    assert tables["kernel_tables"] > 10
    assert sum(tables["kernel_pages"][1:]) > 0, "the kernel maps all memory in large pages"
    assert captured.report["process"]["program"] == "/known"
    assert captured.report["ended"] == "marker"


def test_the_simulator_runs_it_on_these_tables(captured: Captured) -> None:
    tables = f"stock={captured.tables}"
    done = run_command("compare", "--trace", captured.trace, "--tables", tables, "--json", "--quick")
    assert done.returncode == 0, done.stderr
    row = json.loads(done.stdout)["rows"][0]
    # Random accesses to 2,048 pages: more than the TLBs hold.
    assert row["walks_per_kiloaccess"] > 10
    assert 1 <= row["host_pt_fragmentation"] <= 8


def test_the_simulator_runs_both_halves_on_the_tables(captured: Captured, tmp_path: Path) -> None:
    both = tmp_path / "both.nwt"
    about = ("known", "", None)
    pieces = tmp_path / "pieces"
    pieces.write_text("[]")
    report = json.loads(
        _native.vm_record(str(captured.stream), str(both), str(captured.tables), str(pieces), about, "both-halves")
    )
    counts = report["counts"]
    assert report["accesses"] == counts["recorded"] - counts["to_devices"] > captured.report["accesses"]
    scenario = tmp_path / "both.toml"
    scenario.write_text(
        f"schema = 1\nname = 'both'\nmachine = 'broadwell-asap'\nworkload = {{ trace = '{both}' }}\n"
        f"[[kernels]]\n[[kernels]]\ndump = '{captured.tables}'\n"
    )
    done = run_command("run", scenario, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    # What the dump does not map: given up by the kernel since, and not many.
    assert found["statistics"]["adopted_pages"] * 50 < report["footprint_pages"]
    row = found["row"]
    assert row["accesses"] if "accesses" in row else row["walks_per_kiloaccess"] > 0

    done = run_command("compare", "--trace", both, "--json", "--quick")
    assert done.returncode == 2
    assert "accesses to the kernel's half" in " ".join(done.stderr.split())


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A guest with four-level tables and memory above the hole below 4 GiB, whose memory is no file; its QMP socket."""
    folder = tmp_path_factory.mktemp("running")
    words = guests.command_line(folder, memory="4608M", cpus=2, cpu="max,la57=off")
    socket = folder / "qmp"
    process = subprocess.Popen([*words, "-qmp", f"unix:{socket},server=on,wait=off"], stdin=subprocess.DEVNULL)
    try:
        limit = time.monotonic() + BOOT_S
        console = folder / "console"
        while not console.exists() or b"KNOWN DONE" not in console.read_bytes():
            assert process.poll() is None
            assert time.monotonic() < limit, console.read_bytes()[-2000:]
            time.sleep(0.2)
        yield socket
    finally:
        process.kill()
        process.wait()


def test_processes_and_tables_of_a_guest_that_runs(running: Path, tmp_path: Path) -> None:
    done = run_command("vm", "processes", "--monitor", running, "--json")
    assert done.returncode == 0, done.stderr
    found = {one["program"]: one for one in json.loads(done.stdout)["processes"]}
    assert found.keys() >= {"/init", "/known"}
    assert found["/known"]["huge_bytes"] == guests.LARGE_BYTES
    dump = tmp_path / "known.tables"
    done = run_command("vm", "tables", "-o", dump, "--process", "known", "--monitor", running, "--json")
    assert done.returncode == 0, done.stderr
    tables = json.loads(done.stdout)["page_tables"]
    assert tables["levels"] == 4
    assert tables["user_pages"][1] == 1
    assert tables["user_pages"][0] >= guests.SMALL_PAGES
    done = run_command("vm", "tables", "-o", dump, "--process", "unknown", "--monitor", running)
    assert done.returncode == 2
    assert "unknown process of the guest 'unknown'" in " ".join(done.stderr.split())


def capturing(folder: Path, *options: str, out: Path = Path("g.nwt")) -> subprocess.Popen[str]:
    """A capture by the command of a guest whose program runs for ever."""
    words = guests.command_line(folder, forever=True)
    words = [str(EXECUTABLE), "vm", "capture", "-o", str(out), "--json", *options, "--", *words]
    return subprocess.Popen(words, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_the_busiest_process_until_so_many_accesses(tmp_path: Path) -> None:
    process = capturing(tmp_path, "--until", "1M")
    out, err = process.communicate(timeout=BOOT_S)
    assert process.returncode == 0, err
    report = json.loads(out)
    assert (report["ended"], report["process"]["program"]) == ("accesses", "/known")
    assert 1_000_000 <= report["recorded"]["recorded"] < 1_100_000
    assert report["recorded"]["by_user"] > 500_000
    assert report["frames"]["same"] > 0.99 * report["recorded"]["recorded"], report["frames"]
    assert sorted(path.suffix for path in tmp_path.glob("g.*")) == [".nwt", ".tables"]


def test_ctrl_c_ends_a_recording_and_keeps_it(tmp_path: Path) -> None:
    process = capturing(tmp_path, "--process", "known", "--until", "end")
    assert process.stderr is not None
    assert any(line.startswith("recording known") for line in process.stderr)
    time.sleep(2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=BOOT_S)
    assert process.returncode == 0, err
    report = json.loads(out)
    assert report["ended"] == "interrupted"
    assert (tmp_path / "g.nwt").stat().st_size == report["bytes"]
    assert report["frames"]["other"] == 0


def recording(process: subprocess.Popen[str]) -> None:
    """Waits until a capture records, and for a second more."""
    assert process.stderr is not None
    assert any(line.startswith("recording known") for line in process.stderr)
    time.sleep(1)


def qemu_of(process: subprocess.Popen[str]) -> int:
    """The process id of the capture's QEMU."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="ascii").split()
    [qemu] = [int(pid) for pid in children if "qemu" in Path(f"/proc/{pid}/comm").read_text(encoding="ascii")]
    return qemu


def test_a_guest_that_is_killed_leaves_a_trace(tmp_path: Path) -> None:
    process = capturing(tmp_path, "--process", "known", "--until", "end")
    recording(process)
    os.kill(qemu_of(process), signal.SIGKILL)
    out, err = process.communicate(timeout=BOOT_S)
    assert process.returncode == 0, err
    report = json.loads(out)
    assert report["ended"] == "the guest ended"
    assert report["accesses"] > 100_000
    done = run_command("trace", "verify", tmp_path / "g.nwt")
    assert done.returncode == 0, done.stderr
    assert sorted(path.suffix for path in tmp_path.glob("g.*")) == [".nwt", ".tables"]


def test_a_capture_that_is_killed_leaves_no_half_trace_and_no_guest(tmp_path: Path) -> None:
    process = capturing(tmp_path, "--process", "known", "--until", "end")
    recording(process)
    qemu = Path(f"/proc/{qemu_of(process)}")
    process.kill()
    process.communicate(timeout=BOOT_S)
    assert not list(tmp_path.glob("g.*"))
    limit = time.monotonic() + BOOT_S
    while qemu.exists() and qemu.joinpath("stat").read_text(encoding="ascii").split()[2] != "Z":
        assert time.monotonic() < limit, "the guest goes on though nothing records it"
        time.sleep(0.1)


def test_a_full_disk_ends_a_capture_and_there_is_a_trace(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=40M", "none", str(small)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("no small file system can be mounted here: that needs root")
    try:
        process = capturing(tmp_path, "--process", "known", "--until", "end", out=small / "g.nwt")
        out, err = process.communicate(timeout=2 * BOOT_S)
        assert process.returncode == 0, err
        report = json.loads(out)
        assert report["ended"] == session.FULL
        assert report["warnings"][0] == f"{session.FULL}; the trace has all up to there"
        assert run_command("trace", "verify", small / "g.nwt").returncode == 0
        assert sorted(path.suffix for path in small.iterdir()) == [".nwt", ".tables"]
    finally:
        subprocess.run(["umount", small], check=True)  # noqa: S607


def test_a_trace_that_cannot_grow_is_one_error_and_leaves_nothing(tmp_path: Path) -> None:
    """A limit of the user is met (ulimit -f); QEMU runs by then, and keeps its own."""
    process = capturing(tmp_path, "--process", "known", "--until", "end")
    recording(process)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
    _, err = process.communicate(timeout=BOOT_S)
    assert process.returncode == 2
    errors = [line for line in err.splitlines() if "error" in line]
    assert len(errors) == 1
    assert "g.nwt" in errors[0]
    assert "File too large" in errors[0]
    assert not list(tmp_path.glob("*g.*"))
