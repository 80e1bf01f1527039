# SPDX-License-Identifier: MIT OR Apache-2.0
"""``nestwalk inspect`` on processes with a known layout, on recordings, and where it may not look."""

from __future__ import annotations

import ctypes
import json
import os
import re
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from support import Command

import nestwalk
from nestwalk.live import host as hosts
from nestwalk.live import inspect, prom, strip, verdicts

RECORDED = Path(__file__).parent / "recorded" / "inspect"
PAGE = 4096
IS_ROOT = os.geteuid() == 0
needs_frames = pytest.mark.skipif(not IS_ROOT, reason="the kernel shows frames to root only")
NOBODY = 65534

LAYOUT = """
import mmap, sys, time
anonymous = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
small = mmap.mmap(-1, 8 << 20, flags=anonymous)
small.madvise(15)  # MADV_NOHUGEPAGE
for page in range(0, 2048):
    if page % 16 != 3:
        small[page << 12] = 1
zeros = mmap.mmap(-1, 1 << 20, flags=anonymous)
zeros.madvise(15)
for page in range(256):
    zeros[page << 12]
huge = mmap.mmap(-1, 8 << 20, flags=anonymous)
huge.madvise(14)  # MADV_HUGEPAGE
for page in range(0, 2048):
    huge[page << 12] = 1
shared = mmap.mmap(-1, 1 << 20)
for page in range(256):
    shared[page << 12] = 1
file = open(sys.argv[1], "r+b")
mapped = mmap.mmap(file.fileno(), 0)
for page in range(len(mapped) >> 12):
    mapped[page << 12] = 1
print("ready", flush=True)
time.sleep(600)
"""


@contextmanager
def running(text: str, *arguments: str) -> Iterator[int]:
    """A Python process that has said that it is ready."""
    with subprocess.Popen([sys.executable, "-c", text, *arguments], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process.pid
        finally:
            process.kill()


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A process with a known layout."""
    path = tmp_path_factory.mktemp("layout") / "file"
    path.write_bytes(bytes(1 << 20))
    with running(LAYOUT, str(path)) as pid:
        yield pid


def pagemap(pid: int) -> Iterator[tuple[int, list[int]]]:
    """First page and entries of each mapping, read the plain way: what the command is held against."""
    with Path(f"/proc/{pid}/pagemap").open("rb") as file:
        for line in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8").splitlines():
            if re.search(r"\[(vdso|vvar|vvar_vclock|vsyscall)\]", line):
                continue
            start, end = (int(word, 16) // PAGE for word in line.split()[0].split("-"))
            file.seek(start * 8)
            yield start, list(struct.unpack(f"<{end - start}Q", file.read((end - start) * 8)))


def expected_distribution(pid: int, pmd_mapped: range) -> list[int]:
    """Groups on 1 to 8 lines, from the definition; ``pmd_mapped`` are the pages that PMDs map."""
    groups: dict[int, list[int]] = {}
    for start, entries in pagemap(pid):
        for page, entry in enumerate(entries, start):
            if entry >> 63 and page not in pmd_mapped:
                groups.setdefault(page >> 3, []).append((entry & (1 << 55) - 1) >> 3)
    found = [0] * 8
    for lines in groups.values():
        if len(lines) == 8:
            found[len(set(lines)) - 1] += 1
    return found


def huge_range(pid: int) -> range:
    """The pages of the process that PMDs map, of its one mapping with huge pages."""
    start = None
    for line in Path(f"/proc/{pid}/smaps").read_text(encoding="utf-8").splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            start = int(line.split("-")[0], 16) // PAGE
        elif line.startswith("AnonHugePages:") and int(line.split()[1]) > 0:
            assert start is not None
            first = -(-start // 512) * 512
            return range(first, first + int(line.split()[1]) // 4)
    return range(0)


@needs_frames
def test_a_known_layout_gives_the_known_numbers(layout: int) -> None:
    found = inspect(layout).to_json()
    huge = huge_range(layout)
    assert found["schema"] == 1
    assert found["host_pt_fragmentation"]["distribution"] == expected_distribution(layout, huge)
    assert found["huge_pages"]["pmd_mapped_bytes"] == len(huge) * PAGE
    present = sum(entry >> 63 for _, entries in pagemap(layout) for entry in entries)
    memory = found["memory"]
    assert memory["present_bytes"] + memory["zero_bytes"] == present * PAGE
    assert memory["zero_bytes"] >= 256 * PAGE
    # The file, and shared memory without one.
    assert 2 << 20 <= memory["shared_bytes"] < 3 << 20
    runs = found["contiguity"]["virtual_order"]
    assert runs["pages"] * PAGE == memory["present_bytes"]
    # Of each 16 pages of the 8 MiB one was left out: half of these groups, and 7 of 8 pages of the other half.
    assert found["host_pt_fragmentation"]["incomplete_groups"] >= 128


HUGETLB = """
import mmap, sys, time
try:
    # MAP_HUGETLB, 2 MiB
    pages = mmap.mmap(-1, 4 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000 | 21 << 26)
except OSError as error:
    print(error.errno, flush=True)
    sys.exit()
pages[0] = pages[2 << 20] = 1
print("ready", flush=True)
time.sleep(600)
"""


def hugetlb_pages() -> int:
    """Free 2 MiB pages of the hugetlb pool."""
    path = Path("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages")
    return int(path.read_text(encoding="utf-8")) if path.exists() else 0


@pytest.mark.skipif(hugetlb_pages() < 2, reason="fewer than 2 pages of 2 MiB are free in the hugetlb pool")
def test_hugetlb_pages_are_mapped_by_pmds_and_no_groups() -> None:
    with running(HUGETLB) as pid:
        found = inspect(pid).to_json()
    assert found["huge_pages"]["hugetlb_bytes"] == 4 << 20
    assert found["huge_pages"]["pmd_mapped_bytes"] >= 4 << 20
    assert found["memory"]["present_bytes"] >= 4 << 20


SWAPPED = """
import mmap, time
memory = mmap.mmap(-1, 4 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.madvise(15)  # MADV_NOHUGEPAGE
for page in range(1024):
    memory[page << 12] = page % 251 + 1
memory.madvise(21)  # MADV_PAGEOUT
print("ready", flush=True)
time.sleep(600)
"""


def swaps() -> int:
    """Swap areas in use."""
    path = Path("/proc/swaps")
    return len(path.read_text(encoding="utf-8").splitlines()) - 1 if path.exists() else 0


@pytest.mark.skipif(not swaps(), reason="there is no swap")
def test_swapped_pages_are_no_memory_and_no_groups() -> None:
    with running(SWAPPED) as pid:
        found = inspect(pid).to_json()
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    swapped = int(re.search(r"VmSwap:\s+(\d+) kB", status)[1]) << 10  # type: ignore[index]
    if swapped < 4 << 20:
        pytest.skip("the kernel swapped out less than it was asked to")
    assert found["memory"]["swapped_bytes"] == swapped
    assert sum(cell["swapped_share"] * cell["bytes"] for cell in found["strip"]) == pytest.approx(swapped)


@needs_frames
def test_flags_and_contents_are_read_when_asked_for(layout: int) -> None:
    found = inspect(layout, all_flags=True, contents=True).to_json()["huge_pages"]
    folios = found["large_folios"]
    assert folios["sampled"] == folios["pages"]
    assert folios["share_ci95"] == 0
    if len(huge_range(layout)) == 0:
        assert "unavailable" in found["few_used"]
    else:
        # One byte was written in each page of the huge ones: none holds zeros only.
        assert found["few_used"]["few"] == 0
        assert found["few_used"]["zero_share"] < 0.1
    unasked = inspect(layout).to_json()["huge_pages"]["few_used"]
    assert "--contents" in unasked["unavailable"]


def test_a_recording_says_the_same_as_the_process(layout: int, tmp_path: Path, command: Command) -> None:
    file = tmp_path / "layout.rec"
    done = command("inspect", str(layout), "--record", file, "--json")
    assert done.returncode == 0, done.stderr
    live = json.loads(done.stdout)
    again = json.loads(command("inspect", file, "--json").stdout)
    for value in (live, again):
        value.pop("recording")
        value.pop("hypervisor")
    assert again == live


def test_a_name_means_its_process(command: Command, tmp_path: Path) -> None:
    name = "nestwalk-sleeper"
    program = tmp_path / name
    program.symlink_to("/bin/sleep")
    with subprocess.Popen([program, "600"]) as process:
        try:
            value = json.loads(command("inspect", name, "--json").stdout)
            assert value["process"]["pid"] == process.pid
            with subprocess.Popen([program, "600"]) as other:
                try:
                    done = command("inspect", name)
                    assert done.returncode == 2
                    assert f"{process.pid}" in done.stderr
                    assert f"{other.pid}" in done.stderr
                finally:
                    other.kill()
        finally:
            process.kill()


def test_frames_that_are_hidden_are_no_numbers() -> None:
    found = without_privilege(lambda: inspect(os.getpid()).to_json())
    assert "CAP_SYS_ADMIN" in found["host_pt_fragmentation"]["unavailable"]
    assert "CAP_SYS_ADMIN" in found["contiguity"]["unavailable"]
    assert found["memory"]["present_bytes"] > 1 << 20
    assert found["page_tables"]["bytes"] > 0
    assert all(cell["lines"] is None for cell in found["strip"])
    unknown = next(line for line in verdicts.of_process(found) if line.key == "contiguity")
    assert unknown.verdict.startswith("unavailable")
    # What is not known has no line: 0 would be a lie.
    assert "host_pt" not in prom.text([found], found["settings"])


@pytest.mark.skipif(not IS_ROOT, reason="it takes root to become somebody who may not look")
def test_a_process_of_somebody_else_is_refused_with_the_remedy() -> None:
    def refused() -> str:
        try:
            inspect(os.getppid())
        except nestwalk.NestwalkError as error:
            return str(error)
        return "was read"

    assert "run as the owner of the process, or as root" in without_privilege(refused)


def without_privilege(work: Callable[[], Any]) -> Any:
    """What ``work`` gives in a process without root's rights."""
    inspect(os.getpid())  # all modules are loaded while they can be
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            if IS_ROOT:
                os.setgroups([])
                os.setresgid(NOBODY, NOBODY, NOBODY)
                os.setresuid(NOBODY, NOBODY, NOBODY)
                ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: its own files in /proc stay its own
            with os.fdopen(writer, "w") as out:
                json.dump(work(), out)
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as text:
        found = text.read()
    os.waitpid(pid, 0)
    return json.loads(found)


def test_a_process_that_ends_meanwhile_is_no_traceback(command: Command) -> None:
    with subprocess.Popen(["/bin/true"]) as process:
        process.wait()
    done = command("inspect", str(process.pid))
    assert done.returncode == 2
    assert done.stderr.startswith(f"nestwalk: error: there is no process {process.pid}")
    # One that is there and has no memory any more.
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    while Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").split()[2] != "Z":
        time.sleep(0.01)
    try:
        done = command("inspect", str(pid))
        assert done.returncode == 2
        assert re.search(r"has no memory of its own|ended while it was read|no permission", done.stderr), done.stderr
    finally:
        os.waitpid(pid, 0)


def test_threads_of_the_kernel_are_named(command: Command) -> None:
    if not Path("/proc/2/comm").exists() or Path("/proc/2/comm").read_text(encoding="utf-8").strip() != "kthreadd":
        pytest.skip("no thread of the kernel shows in this namespace")
    done = command("inspect", "2")
    assert done.returncode == 2
    assert "nestwalk: error: " in done.stderr


MANY = """
import ctypes, sys, time
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
count = int(sys.argv[1])
start = libc.mmap(None, count * 4096, 3, 0x22, -1, 0)
ctypes.memset(start, 1, count * 4096)
for page in range(0, count, 2):
    if libc.mprotect(start + page * 4096, 4096, 1):
        break
print("ready", flush=True)
time.sleep(600)
"""


def test_as_many_mappings_as_the_kernel_allows() -> None:
    most = int(Path("/proc/sys/vm/max_map_count").read_text(encoding="utf-8"))
    count = min(most - 200, 60_000)
    with running(MANY, str(count)) as pid:
        found = inspect(pid).to_json()
    assert found["mappings"]["count"] > 0.9 * count
    assert found["mappings"]["for_99_percent"] > 0.8 * count
    assert found["memory"]["anonymous_bytes"] >= count * PAGE


def test_all_processes_and_those_that_could_not_be_read(command: Command, layout: int, tmp_path: Path) -> None:
    file = tmp_path / "all.prom"
    done = command("inspect", "--all", "--json", "--prom", file)
    assert done.returncode == 0, done.stderr
    value = json.loads(done.stdout)
    mine = next(one for one in value["processes"] if one["process"]["pid"] == layout)
    assert value["memory"]["present_bytes"] >= mine["memory"]["present_bytes"]
    for one in value["left_out"]:
        assert one["unavailable"].startswith("unavailable, because ")
    if IS_ROOT:
        metric = value["host_pt_fragmentation"]
        assert sum(metric["distribution"]) == metric["groups"]
        assert f'nestwalk_host_pt_fragmentation_lines{{pid="{layout}"' in file.read_text(encoding="utf-8")


def test_a_cgroup_is_its_processes(command: Command, layout: int) -> None:
    lines = Path(f"/proc/{layout}/cgroup").read_text(encoding="utf-8").splitlines()
    folders = [
        root / line.rsplit(":", 1)[1].lstrip("/")
        for line in lines
        for root in (Path("/sys/fs/cgroup"), *Path("/sys/fs/cgroup").glob("*"))
        if (root / line.rsplit(":", 1)[1].lstrip("/") / "cgroup.procs").is_file()
    ]
    holding = [folder for folder in folders if str(layout) in (folder / "cgroup.procs").read_text("utf-8").split()]
    if not holding:
        pytest.skip("no cgroup of this process can be seen from here")
    done = command("inspect", "--cgroup", holding[0], "--json")
    assert done.returncode == 0, done.stderr
    assert layout in [one["process"]["pid"] for one in json.loads(done.stdout)["processes"]]
    done = command("inspect", "--cgroup", "/no/such/group")
    assert done.returncode == 2
    assert "is no cgroup" in done.stderr


def test_the_table_has_a_verdict_in_each_line(command: Command, layout: int) -> None:
    done = command("inspect", str(layout))
    assert done.returncode == 0, done.stderr
    for line in verdicts.of_process(inspect(layout).to_json()):
        assert line.verdict
        assert line.what in done.stdout


def test_watch_looks_again(command: Command, layout: int, tmp_path: Path) -> None:
    file = tmp_path / "nestwalk.prom"
    done = command("inspect", str(layout), "--watch", "0.1", "--looks", "3", "--json", "--prom", file)
    assert done.returncode == 0, done.stderr
    values = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(values) == 3
    text = file.read_text(encoding="utf-8")
    assert re.search(rf'^nestwalk_present_bytes{{pid="{layout}",name="[^"]+"}} \d+$', text, re.MULTILINE)
    assert not list(tmp_path.glob(".nestwalk-*"))
    for line in text.splitlines():
        assert re.fullmatch(r"# (HELP|TYPE) nestwalk_\w+ .+|nestwalk_\w+({[^}]*})? [0-9.e+-]+", line), line


def test_a_page_with_the_strip(command: Command, layout: int, tmp_path: Path) -> None:
    folder = tmp_path / "page"
    done = command("inspect", str(layout), "--out", folder)
    assert done.returncode == 0, done.stderr
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert page.count("<svg") == 2
    widths = [int(width) for width in re.findall(r'<svg viewBox="0 0 (\d+)', page)]
    assert min(widths) <= 347
    value = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    assert len(pl.read_parquet(folder / "results.parquet")) == len(value["strip"])


def test_names_in_the_strip_are_escaped() -> None:
    cell = {"start": "<0x0>", "end": "0x1", "bytes": 1, "small_share": 1.0, "huge_share": 0.0, "swapped_share": 0.0}
    assert "<0x0>" not in strip.svg([{**cell, "lines": None}])
    assert strip.letter({**cell, "lines": None}) == "."
    assert strip.letter({**cell, "lines": 8.0}) == "8"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "give one of"),
        (("1", "--all"), "give one of"),
        (("--all", "--record", "x"), "--record goes with one process"),
        (("1", "--looks", "2"), "--looks goes with --watch"),
        (("no-such-program-here",), "unknown process 'no-such-program-here'"),
        (("0",), "no process has this number"),
        (("99999999999999999999",), "no process has this number"),
        (("./none.rec",), "none.rec: No such file"),
        (("/proc",), "is no file"),
        (("/etc/passwd",), "not a recording of nestwalk inspect"),
        (("--all", "--watch", "0"), "give a number from 0.1"),
    ],
    ids=lambda value: " ".join(value) or "nothing" if isinstance(value, tuple) else "",
)
def test_bad_requests_say_what_to_do(command: Command, arguments: tuple[str, ...], said: str) -> None:
    done = command("inspect", *arguments)
    assert done.returncode == 2
    assert said in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("verb", ["inspect", "advise"])
def test_a_recording_that_is_not_there_is_refused_with_the_remedy(command: Command, verb: str) -> None:
    done = command(verb, "./none.rec")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "none.rec: No such file; give a process's number, its name, or a recording's path" in done.stderr


@pytest.mark.parametrize("option", ["--record", "--prom"])
def test_standard_output_has_the_table_and_no_other_file(command: Command, option: str) -> None:
    done = command("inspect", RECORDED / "frag-0.rec", option, "-", "--json")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert f"give {option} a file" in done.stderr


def test_damaged_recordings_are_refused(command: Command, layout: int, tmp_path: Path) -> None:
    file = tmp_path / "one.rec"
    assert command("inspect", str(layout), "--record", file).returncode == 0
    whole = file.read_bytes()
    damaged = {"cut": whole[: len(whole) // 2]}
    for name, at in (("changed", 30), ("changed-within", len(whole) // 2), ("changed-at-the-end", len(whole) - 9)):
        damaged[name] = whole[:at] + bytes(byte ^ 0x55 for byte in whole[at : at + 8]) + whole[at + 8 :]
    for name, bytes_ in damaged.items():
        bad = tmp_path / f"{name}.rec"
        bad.write_bytes(bytes_)
        done = command("inspect", bad)
        assert done.returncode == 2, name
        assert f"{name}.rec: " in done.stderr
        assert "record it again" in done.stderr


GUESTS = sorted(RECORDED.glob("*.json"))


@pytest.mark.parametrize("said", GUESTS, ids=lambda path: path.stem)
def test_the_numbers_of_a_real_guest_are_its_own(said: Path) -> None:
    guest = json.loads(said.read_text(encoding="utf-8"))
    frag = inspect(said.with_name(f"frag-{said.stem}.rec")).to_json()
    largest = frag["mappings"]["largest"][0]
    assert largest["groups"] == guest["frag"]["groups"]
    assert largest["lines"] == pytest.approx(guest["frag"]["mean"], abs=5e-5)
    # The whole process has a few groups more than the memory that the program measured.
    whole = frag["host_pt_fragmentation"]["distribution"]
    assert all(all_of_it >= own for all_of_it, own in zip(whole, guest["frag"]["distribution"], strict=True))
    sparse = inspect(said.with_name(f"sparse-{said.stem}.rec")).to_json()
    if guest["mode"] == 2:
        # debugfs counts the groups that are reserved and not whole, and their pages that nobody has touched.
        assert sparse["host_pt_fragmentation"]["incomplete_groups"] >= guest["reserved_groups"] >= 128
    assert "PAGEMAP_SCAN" in sparse["huge_pages"]["pmd_mapped_share"]["unavailable"]


def test_guests_were_recorded() -> None:
    assert len(GUESTS) == 3


def kvm_host(root: Path, *, debugfs: bool) -> None:
    """A folder that looks like a KVM host with one VM."""
    files = {
        "proc/812/comm": "qemu-system-x86\n",
        "proc/812/smaps_rollup": "[rollup]\nRss: 4194304 kB\nAnonHugePages: 4194304 kB\n",
        "sys/kernel/mm/ksm/run": "0",
        "sys/kernel/mm/ksm/pages_sharing": "0",
        "sys/kernel/mm/transparent_hugepage/enabled": "[always] madvise never",
        "sys/module/kvm/parameters/nx_huge_pages": "N",
        "sys/module/kvm_amd/parameters/npt": "Y",
    }
    if debugfs:
        folder = "sys/kernel/debug/kvm/812-14"
        files |= {f"{folder}/pages_4k": "512", f"{folder}/pages_2m": "2047", f"{folder}/pages_1g": "0"}
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (root / "proc/812/fd").mkdir()
    (root / "proc/812/fd/14").symlink_to("anon_inode:kvm-vm")


def test_a_host_with_its_vms(tmp_path: Path) -> None:
    kvm_host(tmp_path, debugfs=True)
    found = hosts.inspect_host(tmp_path)
    (vm,) = found["vms"]
    assert vm["leaves"]["huge_share"] == pytest.approx(2047 / 2048)
    assert vm["guest_tables"]["answer"] == "already"
    assert found["kvm"]["nested_paging"] == "npt Y"
    assert {one["cause"]: one["found"] for one in vm["splitting"]} == {
        "dirty_logging": "no",
        "nx_huge_pages": "no",
        "ksm": "no",
    }
    assert 'nestwalk_vm_leaves_2m{pid="812",name="qemu-system-x86"} 2047' in hosts.metrics(found)
    assert len(hosts.page(found)) > 3
    lines = [str(line.verdict) for line in hosts._settings(found)]
    assert any(line.startswith("if on, it splits huge pages") for line in lines), "the value beside it may be N"


def test_a_host_without_debugfs_says_why(tmp_path: Path) -> None:
    kvm_host(tmp_path, debugfs=False)
    found = hosts.inspect_host(tmp_path)
    (vm,) = found["vms"]
    assert vm["leaves"]["unavailable"].startswith("unavailable, because ")
    assert "mount -t debugfs" in found["notes"][0]
    assert vm["memory"]["huge_share"] == 1


KVM = """
import fcntl, os, time
kvm = os.open("/dev/kvm", os.O_RDWR)
vm = fcntl.ioctl(kvm, 0xAE01, 0)  # KVM_CREATE_VM
statistics = fcntl.ioctl(vm, 0xAECE, 0)  # KVM_GET_STATS_FD
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(not os.access("/dev/kvm", os.R_OK | os.W_OK) or not IS_ROOT, reason="there is no KVM here for root")
def test_a_real_vm_shows_its_leaves() -> None:
    with running(KVM) as pid:
        vm = next(one for one in hosts.inspect_host()["vms"] if one["pid"] == pid)
    leaves = vm["leaves"]
    assert (leaves["pages_4k"], leaves["pages_2m"], leaves["huge_share"]) == (0, 0, None)
    assert leaves["source"] in ("debugfs", "statistics file")


def test_the_host_is_printed(command: Command) -> None:
    done = command("inspect", "--host")
    assert done.returncode == 0, done.stderr
    assert "VMs of KVM on this host" in done.stdout
    assert json.loads(command("inspect", "--host", "--json").stdout)["schema"] == 1
