# SPDX-License-Identifier: MIT OR Apache-2.0
"""``nestwalk capture --raw`` and its plugin, on programs whose accesses are known."""

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import raw_stream as raw

from nestwalk import qemu_plugin

HERE = Path(__file__).resolve().parent
PLUGIN = HERE.parents[1] / "python" / "nestwalk" / "capture" / "plugin"
NESTWALK = Path(sys.executable).with_name("nestwalk")
PAGE = 4096
PAGES = 8

for tool, package in (("qemu-x86_64", "qemu-user"), ("cc", "gcc")):
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed (apt-get install {package})", allow_module_level=True)


def run(*arguments, **options):
    command = [NESTWALK, "capture", "--raw", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, **options)


def assert_refused(done, *words):
    """One clear line, exit code 2."""
    assert done.returncode == 2, done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("nestwalk: error: ")]
    assert len(errors) == 1, done.stderr
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr


def build_known(directory, compiler="cc", name="known"):
    """A program whose accesses and events are known, statically linked."""
    program = directory / name
    source = HERE / f"{name}.c"
    subprocess.run([compiler, "-O1", "-static", "-pthread", f"-I{PLUGIN}", "-o", program, source], check=True)
    return program


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    return build_known(tmp_path_factory.mktemp("known"))


class Captured:
    def __init__(self, known, directory, *arguments, run_as=(), words=None):
        out = directory / "stream.raw"
        done = run(*run_as, "-q", "--json", "--out", out, "--", *(words or [known, *arguments]))
        assert done.returncode == 0, done.stderr
        self.report = json.loads(done.stdout)
        assert self.report["exit_code"] == 7
        # The program's output goes to standard error, as standard output is for JSON.
        pairs = [line.split() for line in done.stderr.splitlines()]
        self.names = {pair[0]: int(pair[1], 16) for pair in pairs if len(pair) == 2}
        self.warnings = self.report["warnings"]
        self.blocks = list(raw.blocks(out.read_bytes()))

    def accesses(self, tid):
        return [a for b in self.blocks if b.tid == tid and b.kind == 0 for a in b.records]

    def events(self, tid=None):
        return [e for b in self.blocks if tid in (None, b.tid) and b.kind == 1 for e in b.records]

    def one_event(self, op, addr):
        (event,) = [e for e in self.events() if e.op == op and e.addr == addr]
        return event


@pytest.fixture(scope="module")
def alone(known, tmp_path_factory):
    return Captured(known, tmp_path_factory.mktemp("alone"))


@pytest.fixture(scope="module")
def threaded(known, tmp_path_factory):
    return Captured(known, tmp_path_factory.mktemp("threaded"), "threads")


def test_every_store_and_load_is_there_in_order(alone):
    area = alone.names["area"]
    seen = [a for a in alone.accesses(0) if area <= a.vaddr < area + PAGES * PAGE]
    stores = [(area + i * PAGE, 8, True) for i in range(PAGES)]
    loads = [(area + i * PAGE + 17, 1, False) for i in reversed(range(PAGES))]
    assert [(a.vaddr, a.size, a.store) for a in seen] == stores + loads
    assert len({a.site for a in seen}) == 2


@pytest.mark.parametrize("architecture", ["aarch64", "riscv64"])
def test_programs_of_other_machines(architecture, tmp_path):
    for tool in (f"{architecture}-linux-gnu-gcc", f"qemu-{architecture}"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed (apt-get install gcc-{architecture}-linux-gnu qemu-user)")
    program = build_known(tmp_path, f"{architecture}-linux-gnu-gcc")
    there = Captured(program, tmp_path, "threads")
    test_every_store_and_load_is_there_in_order(there)
    test_memory_events(there)
    test_failed_calls_are_no_events(there)
    test_initial_mappings_come_first_and_hold_the_first_accesses(there)
    assert [e.arg for e in there.events() if e.op == raw.MARK] == [42]
    # The C library asks for vfork or for a plain clone, as it likes: two processes and a thread in any case.
    assert sorted(e.flags for e in there.events(0) if e.op == raw.CLONE) == [0, 1, 1]
    words = there.names["words"]
    seen = [a.vaddr for a in there.accesses(1) if words <= a.vaddr < words + 8000]
    assert seen == [words + 8 * i for i in range(1000)]
    assert copies_of(build_known(tmp_path, f"{architecture}-linux-gnu-gcc", "copies"), tmp_path) == KNOWN_COPIES


def in_valgrind(program, tmp_path):
    """What the program printed, and lackey's loads and stores: address, size, store."""
    if shutil.which("valgrind") is None:
        pytest.skip("valgrind is not installed (apt-get install valgrind)")
    log = tmp_path / "lackey"
    command = ["valgrind", "--tool=lackey", "--trace-mem=yes", f"--log-file={log}", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    seen = []
    for line in log.read_text().splitlines():
        if line[:3] in (" L ", " S ", " M "):
            address, size = line[3:].split(",")
            kinds = {" L ": [False], " S ": [True], " M ": [False, True]}[line[:3]]
            seen += [(int(address, 16), int(size), store) for store in kinds]
    return done.stdout, seen


def test_valgrind_sees_the_same_known_accesses(known, tmp_path):
    said, seen = in_valgrind(known, tmp_path)
    area = next(int(line.split()[1], 16) for line in said.splitlines() if line.startswith("area "))
    stores = [(area + i * PAGE, 8, True) for i in range(PAGES)]
    loads = [(area + i * PAGE + 17, 1, False) for i in reversed(range(PAGES))]
    assert [one for one in seen if area <= one[0] < area + PAGES * PAGE] == stores + loads


STEADY = """
static volatile long words[1 << 16];
int main(void) { for (long i = 0; i < 500000; i++) words[i * 7919 % (1 << 16)] += i; return 7; }
"""


def test_valgrind_counts_as_many_accesses(tmp_path):
    """Of a whole program, within 1 %: libc chooses other string functions for valgrind's processor than for QEMU's."""
    (tmp_path / "steady.c").write_text(STEADY)
    subprocess.run(["cc", "-O1", "-o", tmp_path / "steady", tmp_path / "steady.c"], check=True)
    seen = in_valgrind(tmp_path / "steady", tmp_path)[1]
    assert len(seen) > 1_000_000
    ours = Captured(tmp_path / "steady", tmp_path)
    assert len(ours.accesses(0)) == pytest.approx(len(seen), rel=0.01)


def test_instructions_add_up(alone):
    counted = sum(a.instructions for a in alone.accesses(0))
    total = alone.blocks[-1].instructions
    assert total * 0.99 <= counted <= total
    assert total == alone.report["instructions"]


def test_summary_counts_the_accesses(alone):
    assert len(alone.accesses(0)) == alone.report["accesses"]


def test_memory_events(alone):
    area, moved, size = alone.names["area"], alone.names["moved"], PAGES * PAGE
    (mapped,) = [e for e in alone.events() if e.op == raw.MMAP and e.result == area]
    assert (mapped.addr, mapped.len) == (0, size)
    assert (mapped.arg & 0xFFFFFFFF, mapped.arg >> 32) == (3, 0x22)
    assert alone.one_event(raw.MADVISE, area).arg == 4
    assert alone.one_event(raw.MPROTECT, area).arg == 1
    remapped = alone.one_event(raw.MREMAP, area)
    assert (remapped.len, remapped.arg, remapped.flags) == (size, 4 * size, 1)
    assert remapped.result == moved
    assert alone.one_event(raw.MUNMAP, moved).len == 4 * size
    grown = alone.one_event(raw.BRK, alone.names["break"] + 3 * PAGE)
    assert (grown.arg, grown.result) == (alone.names["break"], grown.addr)


def test_mark_of_the_program(alone):
    (mark,) = [e for e in alone.events() if e.op == raw.MARK]
    assert mark.arg == 42
    (mapped,) = [e for e in alone.events() if e.op == raw.MMAP and e.result == alone.names["area"]]
    assert mark.accesses_before <= mapped.accesses_before


def test_failed_calls_are_no_events(alone):
    assert not [e for e in alone.events() if e.addr == 1]


def test_events_stand_in_their_place(alone):
    """Between the accesses before and after them, which is also what accesses_before says."""
    area = alone.names["area"]
    written = 0
    for block in alone.blocks:
        if block.kind == 0:
            written += len(block.records)
        else:
            assert {e.accesses_before for e in block.records} == {written}
    accesses = alone.accesses(0)
    (mapped,) = [e for e in alone.events() if e.op == raw.MMAP and e.result == area]
    advised = alone.one_event(raw.MADVISE, area)
    inside = [i for i, a in enumerate(accesses) if area <= a.vaddr < area + PAGES * PAGE]
    assert mapped.accesses_before <= inside[0]
    assert inside[-1] < advised.accesses_before


def test_initial_mappings_come_first_and_hold_the_first_accesses(alone):
    first = alone.blocks[0]
    assert (first.tid, first.kind) == (0, 1)
    assert {e.op for e in first.records} == {raw.VMA}
    assert any(e.arg & 4 for e in first.records), "nothing executable"
    before_any_call = min(e.accesses_before for e in alone.events() if e.op in (raw.MMAP, raw.BRK))
    for access in alone.accesses(0)[:before_any_call]:
        assert any(e.addr <= access.vaddr < e.addr + e.len and e.arg & 1 for e in first.records)


def copies_of(program, directory):
    """What the kernel copied or filled for copies.c: whose 16 pages, offset there, length, whether it stored."""
    seen = Captured(program, directory)
    area = seen.names["area"]
    copies = [e for e in seen.events() if e.op == raw.COPY and area <= e.addr < area + 16 * 16 * PAGE]
    touched = [a for a in seen.accesses(0) if area <= a.vaddr < area + 160 * PAGE]
    assert not touched, "the program itself touches nothing there"
    return [(*divmod(e.addr - area, 16 * PAGE), e.len, e.flags) for e in copies]


KNOWN_COPIES = [
    (0, 100, 2 * PAGE, 1),
    (0, 0, 10, 1),
    (1, 0, 10, 1),
    (1, 4 * PAGE, PAGE, 1),
    (2, 0, 3 * PAGE, 0),
    (2, 0, PAGE, 1),
    (3, 0, PAGE, 0),
    (3, 2 * PAGE, 1, 0),
    (4, 0, 2 * PAGE, 0),
    (5, 0, PAGE, 1),
    (6, 0, PAGE, 0),
    (7, 0, PAGE, 1),
    (8, 0, 100, 1),
    (10, 0, 16 * PAGE, 1),
    (11, 0, 16 * PAGE, 0),
    (12, 0, 3 * PAGE, 0),
    (15, 0, 2 * PAGE, 1),
]


def test_what_the_kernel_copies(tmp_path):
    assert copies_of(build_known(tmp_path, name="copies"), tmp_path) == KNOWN_COPIES


def test_program_exit_is_the_last_event(alone):
    last = alone.events()[-1]
    assert (last.op, last.flags, last.arg) == (raw.EXIT, 1, 7)


def test_two_threads(threaded):
    assert {b.tid for b in threaded.blocks} == {0, 1}
    words = threaded.names["words"]
    seen = [a.vaddr for a in threaded.accesses(1) if words <= a.vaddr < words + 8000]
    assert seen == [words + 8 * i for i in range(1000)]
    assert not [a for a in threaded.accesses(0) if words <= a.vaddr < words + 8000]
    assert [e.flags for e in threaded.events(1) if e.op == raw.EXIT] == [0]


def test_fork_and_thread_are_told_apart_and_the_child_is_not_recorded(threaded):
    assert [e.flags for e in threaded.events(0) if e.op == raw.CLONE] == [1, 1, 0]
    assert [e.arg for e in threaded.events() if e.op == raw.EXIT] == [0, 7]
    ended = [e.result for e in threaded.events(0) if e.op == raw.CHILD_EXIT]
    assert ended == [e.result for e in threaded.events(0) if e.op == raw.CLONE and e.flags == 1]


def test_children_and_exec_are_warned_of(threaded, alone, tmp_path):
    assert [w for w in threaded.warnings if "2 child processes were not recorded" in w and "--follow" in w]
    assert alone.warnings == ["the program ended with exit code 7"]
    done = run("--out", tmp_path / "shell.raw", "--", "/bin/sh", "-c", "exec true")
    assert done.returncode == 0, done.stderr
    assert "replaces itself by another one (exec)" in done.stderr
    assert "--follow" in done.stderr


@pytest.mark.parametrize(
    "driver",
    [
        ["sh", "-c", "'{known}'; exit 7"],
        ["sh", "-c", "exec '{known}'"],
        ["sh", "-c", "sh -c \"'{known}'\" & wait $!"],
        ["env", "-u", "NOTHING", "{known}"],
        ["sh", "-c", "'{script}' one"],
        ["{known}"],
    ],
)
def test_a_driver_is_followed_to_its_program(known, tmp_path, driver):
    script = tmp_path / "script"
    script.write_text(f"#! /bin/sh -e \n[ $# = 1 ] && '{known}'\n")
    script.chmod(0o755)
    words = [word.format(known=known, script=script) for word in driver]
    captured = Captured(known, tmp_path, run_as=["--follow", "known"], words=words)
    area = captured.names["area"]
    assert [a.vaddr for a in captured.accesses(0) if area <= a.vaddr < area + PAGES * PAGE][:PAGES]
    assert captured.warnings == ["the program ended with exit code 7"]


def test_a_compiler_is_recorded_and_not_its_driver(tmp_path):
    (tmp_path / "one.c").write_text("int one(void) { return 1; }\n")
    sizes = []
    for name in ("cc1", "cc"):
        done = run("--follow", name, "-o", f"{name}.raw", "--", "cc", "-S", "one.c", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        sizes.append((tmp_path / f"{name}.raw").stat().st_size)
    assert sizes[0] > 2 * sizes[1], "the compiler does more than its driver"
    assert ".globl\tone" in (tmp_path / "one.s").read_text()


def own_part(captured):
    """The addresses from the program's first own one on: the C library's start-up depends on the environment block."""
    vaddrs = [a.vaddr for a in captured.accesses(0)]
    return vaddrs[vaddrs.index(captured.names["area"]) :]


def test_only_the_first_of_a_name_is_recorded(known, tmp_path):
    alone = Captured(known, tmp_path)
    twice = Captured(known, tmp_path, run_as=["--follow", "known"], words=["sh", "-c", f"'{known}' >&2; '{known}'"])
    assert len(own_part(twice)) == len(own_part(alone))


def test_a_program_that_no_driver_starts(known, tmp_path):
    done = run("--follow", "nown", "--out", tmp_path / "x", "--", "sh", "-c", f"'{known}'; true")
    assert_refused(done, "no program called nown was started", "it started known")
    assert list(tmp_path.iterdir()) == []
    assert_refused(run("--follow", "x", "--out", tmp_path / "x", "--", "true"), "it started none")


def test_only_the_file_itself_is_replaced(known, tmp_path):
    (tmp_path / "stream.raw.part").write_text("somebody's own")
    (tmp_path / "link.raw").symlink_to("stream.raw")
    assert run("--out", tmp_path / "link.raw", "--", known).returncode == 0
    assert (tmp_path / "link.raw").is_symlink()
    assert (tmp_path / "stream.raw").stat().st_size > 0
    assert {path.name for path in tmp_path.iterdir()} == {"link.raw", "stream.raw", "stream.raw.part"}
    assert (tmp_path / "stream.raw.part").read_text() == "somebody's own"


def test_instructions_of_a_thread_never_go_back(threaded):
    for tid in (0, 1):
        counts = [b.instructions for b in threaded.blocks if b.tid == tid]
        assert counts == sorted(counts)


def test_captures_repeat_exactly(alone, known, tmp_path):
    again = Captured(known, tmp_path)
    assert again.names == alone.names
    assert own_part(again)[:PAGES] == own_part(alone)[:PAGES]


def test_into_a_fifo(known, tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    received = []
    reader = threading.Thread(target=lambda: received.append(fifo.read_bytes()))
    reader.start()
    done = run("--out", fifo, "--", known)
    reader.join(60)
    assert done.returncode == 0, done.stderr
    assert list(raw.blocks(received[0]))
    assert fifo.is_fifo()


def test_max_accesses(tmp_path):
    out = tmp_path / "stream.raw"
    done = run("--until", 5000, "--out", out, "--", sys_true())
    assert done.returncode == 0
    n = sum(len(b.records) for b in raw.blocks(out.read_bytes()) if b.kind == 0)
    assert 5000 <= n < 5000 + 32768


def test_program_that_crashes_keeps_its_stream(tmp_path):
    out = tmp_path / "stream.raw"
    done = run("--out", out, "--", shutil.which("sh"), "-c", "kill -SEGV $$")
    assert done.returncode == 0
    assert "was ended by SIGSEGV" in done.stderr
    assert list(raw.blocks(out.read_bytes()))


def sys_true():
    return shutil.which("true")


def test_missing_qemu(tmp_path):
    done = run("--qemu", "no-such-qemu", "--out", tmp_path / "x", "--", "true")
    assert_refused(done, "no-such-qemu is not here", "install")


def test_qemu_that_cannot_load_the_plugin(tmp_path):
    done = run("--qemu", sys_true(), "--out", tmp_path / "x", "--", "true")
    assert_refused(done, "cannot load the capture plugin")


def test_missing_compiler(tmp_path):
    done = run("--cc", "no-such-cc", "--out", tmp_path / "x", "--", "true")
    assert_refused(done, "no-such-cc is not here", "install")


def test_missing_program(tmp_path):
    assert_refused(run("--out", tmp_path / "x", "--", "no-such-program"), "no such program")


def test_a_script_is_run_by_its_interpreter(tmp_path):
    script = tmp_path / "script"
    script.write_text('#!/bin/sh -e\necho "$0 $*" >&2\n')
    script.chmod(0o755)
    done = run("--out", tmp_path / "x", "--", script, "one", "two")
    assert done.returncode == 0, done.stderr
    assert f"{script} one two" in done.stderr
    script.write_text("neither\n")
    assert_refused(run("--out", tmp_path / "x", "--", script), "neither an ELF program nor a script")


def test_program_of_another_machine(known, tmp_path):
    binary = bytearray(known.read_bytes()[:64])
    binary[18:20] = (21).to_bytes(2, "little")  # powerpc64
    program = tmp_path / "other"
    program.write_bytes(binary)
    program.chmod(0o755)
    assert_refused(run("--out", tmp_path / "x", "--", program), "is for another machine", "x86_64, aarch64, riscv64")


def test_output_directory_missing(tmp_path):
    done = run("--out", tmp_path / "none" / "x", "--", "true")
    assert_refused(done, "there is no directory")


def test_full_disk():
    done = run("--out", "/dev/full", "--", "true")
    assert_refused(done, "No space left on device")


def test_nothing_half_written(tmp_path):
    out = tmp_path / "stream.raw"
    assert_refused(run("--out", out, "--", "no-such-program"))
    assert list(tmp_path.iterdir()) == []


def test_no_file():
    assert run("--", "true").returncode == 2


@pytest.mark.parametrize("argument", ["out=", "fd=x", "fd=77", "wrong=1", "max=-1", ""])
def test_plugin_arguments_are_checked(argument, tmp_path):
    plugin = build_plugin(tmp_path, interface())
    done = qemu_with(plugin, argument)
    assert done.returncode != 0
    assert "nestwalk-capture: " in done.stderr


def test_plugin_of_another_interface_version(tmp_path):
    plugin = build_plugin(tmp_path, "-DQEMU_PLUGIN_API=99")
    done = qemu_with(plugin, "check=on")
    assert done.returncode != 0
    assert "99" in done.stderr


def build_plugin(directory, *flags):
    plugin = directory / "plugin.so"
    sources = [PLUGIN / name for name in ("capture.c", "follow.c")]
    subprocess.run(
        ["cc", "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", *flags, "-o", plugin, *sources],
        check=True,
    )
    return plugin


def interface():
    """The plugin interface of the QEMU on the PATH, as a compiler's argument."""
    version = subprocess.run(["qemu-x86_64", "--version"], capture_output=True, text=True, check=True).stdout
    return f"-DQEMU_PLUGIN_API={qemu_plugin.interface(version)}"


def qemu_with(plugin, argument):
    return subprocess.run(
        ["qemu-x86_64", "-plugin", f"{plugin},{argument}", sys_true()],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
