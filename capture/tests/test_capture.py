# SPDX-License-Identifier: MIT OR Apache-2.0
"""The capture plugin and script, on programs whose accesses are known."""

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import raw_stream as raw

HERE = Path(__file__).resolve().parent
CAPTURE = HERE.parent
PAGE = 4096
PAGES = 8

for tool, package in (("qemu-x86_64", "qemu-user"), ("cc", "gcc")):
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed (apt-get install {package})", allow_module_level=True)


def run(*arguments, **options):
    command = [sys.executable, str(CAPTURE / "nestwalk-capture"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, **options)


def assert_refused(done, *words):
    """One clear line, exit code 2."""
    assert done.returncode == 2
    lines = done.stderr.strip().splitlines()
    assert all(line.startswith("nestwalk-capture: ") for line in lines), done.stderr
    for word in words:
        assert word in done.stderr


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    """The known program, statically linked."""
    program = tmp_path_factory.mktemp("known") / "known"
    source = HERE / "known.c"
    subprocess.run(["cc", "-O1", "-static", "-pthread", "-o", program, source], check=True)
    return program


class Captured:
    def __init__(self, known, directory, *arguments, run_as=(), words=None):
        out = directory / "stream.raw"
        done = run(*run_as, "--out", out, "--", *(words or [known, *arguments]))
        assert done.returncode == 7, done.stderr
        self.names = {name: int(value, 16) for name, value in map(str.split, done.stdout.splitlines())}
        self.summary = done.stderr
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


def test_instructions_add_up(alone):
    counted = sum(a.instructions for a in alone.accesses(0))
    total = alone.blocks[-1].instructions
    assert total * 0.99 <= counted <= total
    assert f"{total} instructions" in alone.summary


def test_summary_counts_the_accesses(alone):
    assert f" {len(alone.accesses(0))} accesses" in alone.summary


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
    assert "warning: 2 child processes were not recorded" in threaded.summary
    assert "warning" not in alone.summary
    done = run("--out", tmp_path / "shell.raw", "--", "/bin/sh", "-c", "exec true")
    assert done.returncode == 0, done.stderr
    assert "replaces itself by another one (exec)" in done.stderr
    assert "--follow" in done.stderr
    assert "--follow" in threaded.summary


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
    assert captured.summary.count("nestwalk-capture: ") == 1, captured.summary


def test_a_compiler_is_recorded_and_not_its_driver(tmp_path):
    (tmp_path / "one.c").write_text("int one(void) { return 1; }\n")
    sizes = []
    for name in ("cc1", "cc"):
        done = run("--follow", name, "-o", f"{name}.raw", "--", "cc", "-S", "one.c", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        sizes.append((tmp_path / f"{name}.raw").stat().st_size)
    assert sizes[0] > 2 * sizes[1], "the compiler does more than its driver"
    assert ".globl\tone" in (tmp_path / "one.s").read_text()


def test_only_the_first_of_a_name_is_recorded(known, tmp_path):
    alone = Captured(known, tmp_path)
    twice = Captured(known, tmp_path, run_as=["--follow", "known"], words=["sh", "-c", f"'{known}' >&2; '{known}'"])
    assert len(twice.accesses(0)) == len(alone.accesses(0))


def test_a_program_that_no_driver_starts(known, tmp_path):
    for where in (["--out", tmp_path / "x"], ["--to", "cat"]):
        done = run("--follow", "nown", *where, "--", "sh", "-c", f"'{known}'; true")
        assert_refused(done, "no program called nown was started", "it started known")
    assert list(tmp_path.iterdir()) == []
    assert_refused(run("--follow", "x", "--out", tmp_path / "x", "--", "true"), "it started none")


def test_a_followed_program_into_a_command(known, tmp_path):
    out = tmp_path / "stream.raw"
    done = run("--follow", "known", "--to", f"cat > '{out}'", "--", "sh", "-c", f"'{known}'; exit 3")
    assert done.returncode == 3, done.stderr
    assert list(raw.blocks(out.read_bytes()))


def test_only_the_file_itself_is_replaced(known, tmp_path):
    (tmp_path / "stream.raw.part").write_text("somebody's own")
    (tmp_path / "link.raw").symlink_to("stream.raw")
    assert run("--out", tmp_path / "link.raw", "--", known).returncode == 7
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
    vaddrs = [a.vaddr for a in alone.accesses(0)]
    # The C library's start-up depends on the environment block; the program's own part does not.
    start = vaddrs.index(alone.names["area"])
    other = [a.vaddr for a in again.accesses(0)]
    assert again.names == alone.names
    assert other[other.index(again.names["area"]) :][:PAGES] == vaddrs[start:][:PAGES]


def test_into_a_command(known, tmp_path):
    out = tmp_path / "stream.raw"
    done = run("--to", f"cat > '{out}'", "--", known)
    assert done.returncode == 7
    assert list(raw.blocks(out.read_bytes()))


def test_into_a_fifo(known, tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    received = []
    reader = threading.Thread(target=lambda: received.append(fifo.read_bytes()))
    reader.start()
    done = run("--out", fifo, "--", known)
    reader.join(60)
    assert done.returncode == 7
    assert list(raw.blocks(received[0]))
    assert fifo.is_fifo()


def test_max_accesses(tmp_path):
    out = tmp_path / "stream.raw"
    done = run("--max-accesses", 5000, "--out", out, "--", sys_true())
    assert done.returncode == 0
    n = sum(len(b.records) for b in raw.blocks(out.read_bytes()) if b.kind == 0)
    assert 5000 <= n < 5000 + 32768


def test_program_that_crashes_keeps_its_stream(tmp_path):
    out = tmp_path / "stream.raw"
    done = run("--out", out, "--", shutil.which("sh"), "-c", "kill -SEGV $$")
    assert done.returncode == 128 + 11
    assert "SIGSEGV" in done.stderr
    assert list(raw.blocks(out.read_bytes()))


def sys_true():
    return shutil.which("true")


def test_missing_qemu(tmp_path):
    done = run("--qemu", "no-such-qemu", "--out", tmp_path / "x", "--", "true")
    assert_refused(done, "no-such-qemu not found", "apt-get install qemu-user")


def test_qemu_that_cannot_load_the_plugin(tmp_path):
    done = run("--qemu", sys_true(), "--out", tmp_path / "x", "--", "true")
    assert_refused(done, "cannot load the plugin")


def test_missing_compiler(tmp_path):
    done = run("--cc", "no-such-cc", "--out", tmp_path / "x", "--", "true")
    assert_refused(done, "C compiler not found")


def test_missing_program(tmp_path):
    assert_refused(run("--out", tmp_path / "x", "--", "no-such-program"), "program not found")


def test_script_is_no_binary(tmp_path):
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    assert_refused(run("--out", tmp_path / "x", "--", script), "not a binary")


def test_program_of_another_machine(known, tmp_path):
    binary = bytearray(known.read_bytes()[:64])
    binary[18:20] = (183).to_bytes(2, "little")  # aarch64
    program = tmp_path / "other"
    program.write_bytes(binary)
    program.chmod(0o755)
    assert_refused(run("--out", tmp_path / "x", "--", program), "not an x86-64 program")


def test_output_directory_missing(tmp_path):
    done = run("--out", tmp_path / "none" / "x", "--", "true")
    assert_refused(done, "no such directory")


def test_full_disk():
    done = run("--out", "/dev/full", "--", "true")
    assert_refused(done, "No space left on device", "incomplete")


def test_reader_that_leaves_early():
    done = run("--to", "head -c 10 >/dev/null", "--", "ls", "-R", "/usr/lib")
    assert_refused(done, "the reader closed the stream")


def test_reader_that_fails(known):
    done = run("--to", "cat >/dev/null; exit 4", "--", known)
    assert_refused(done, "ended with 4")


def test_nothing_half_written(tmp_path):
    out = tmp_path / "stream.raw"
    assert_refused(run("--out", out, "--", "no-such-program"))
    assert list(tmp_path.iterdir()) == []


def test_neither_file_nor_command():
    assert run("--", "true").returncode == 2


@pytest.mark.parametrize("argument", ["out=", "fd=x", "fd=77", "wrong=1", "max=-1", ""])
def test_plugin_arguments_are_checked(argument, tmp_path):
    plugin = build_plugin(tmp_path)
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
    sources = [CAPTURE / "plugin" / name for name in ("capture.c", "follow.c")]
    subprocess.run(
        ["cc", "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", *flags, "-o", plugin, *sources],
        check=True,
    )
    return plugin


def qemu_with(plugin, argument):
    return subprocess.run(
        ["qemu-x86_64", "-plugin", f"{plugin},{argument}", sys_true()],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
