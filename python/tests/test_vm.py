# SPDX-License-Identifier: MIT OR Apache-2.0
"""The parts of ``nestwalk vm`` that need no guest: QEMU's command lines, moments, the control block, refusals."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from support import Command

from nestwalk.cloud import qemu
from nestwalk.errors import NestwalkError
from nestwalk.vm import command_line, control, guest, session, tools, when

GIB = 1 << 30
QEMU = "qemu-system-x86_64"

TREE = """FlatView #0
 AS "I/O", root: io
  0000000000000000-000000000000ffff (prio 0, i/o): io

FlatView #1
 AS "memory", root: system
 AS "cpu-memory-0", root: system
  0000000000000000-000000000009ffff (prio 0, ram): nestwalk-ram
  00000000000a0000-00000000000bffff (prio 1, i/o): vga-lowmem
  00000000000c0000-00000000000cafff (prio 0, rom): nestwalk-ram @00000000000c0000
  0000000000100000-00000000bfffffff (prio 0, ram): nestwalk-ram @0000000000100000
  00000000fffc0000-00000000ffffffff (prio 0, rom): pc.bios
  0000000100000000-000000013fffffff (prio 0, ram): nestwalk-ram @00000000c0000000
"""


class Recorded:
    """A monitor that answers from a recording."""

    def __init__(self, **answers: str) -> None:
        self.answers = answers

    def human(self, line: str) -> str:
        return self.answers[line.split()[1]]


@pytest.mark.parametrize(
    ("words", "memory"),
    [
        ([QEMU], 128 << 20),
        ([QEMU, "-m", "512"], 512 << 20),
        ([QEMU, "-m", "2G"], 2 * GIB),
        ([QEMU, "-m", "size=3G,slots=2,maxmem=8G"], 3 * GIB),
        ([QEMU, "--m", "2G", "-m", "1024M"], GIB),
    ],
    ids=["default", "number", "suffix", "fields", "last"],
)
def test_memory_of_a_command_line(words: list[str], memory: int) -> None:
    assert command_line.parse(words).memory_bytes == memory


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ([], "no command line"),
        (["qemu-system-aarch64"], "no other is captured"),
        ([QEMU, "-enable-kvm"], "-enable-kvm: accesses are seen under emulation only"),
        ([QEMU, "-accel", "kvm"], "-accel kvm: accesses are seen"),
        ([QEMU, "-machine", "q35,accel=kvm:tcg"], "nestwalk vm tables"),
        ([QEMU, "-daemonize"], "in the foreground"),
        ([QEMU, "-numa", "node,memdev=m0"], "without memdev"),
        ([QEMU, "-loadvm", "x"], "start it afresh"),
        ([QEMU, "-m", "1.5G"], "no size of memory"),
        ([QEMU, "-M", "pc,memory-backend=m"], "mem-path= and share=on"),
        ([QEMU, "-M", "pc,memory-backend=m", "-object", "memory-backend-memfd,id=m,size=1G"], "mem-path= and share=on"),
    ],
    ids=[
        "empty",
        "aarch64",
        "enable-kvm",
        "kvm",
        "machine-kvm",
        "daemonize",
        "numa",
        "loadvm",
        "m",
        "missing",
        "memfd",
    ],
)
def test_options_in_the_way_are_named(words: list[str], what: str) -> None:
    with pytest.raises(NestwalkError, match=re.escape(what)):
        command_line.parse(words)


def test_what_is_added(tmp_path: Path) -> None:
    plain = command_line.parse([QEMU, "-m", "1G"])
    words = plain.with_capture(memory=tmp_path / "a,b", socket=tmp_path / "q", plugin="p.so,x=1")
    assert f"memory-backend-file,id=nestwalk-ram,mem-path={tmp_path}/a,,b,size={GIB},share=on" in words
    assert words[-2:] == ["-plugin", "p.so,x=1"]
    own = ["-object", "memory-backend-file,id=m,mem-path=/ram,size=1G,share=on", "-machine", "memory-backend=m"]
    found = command_line.parse([QEMU, "-M", "pc", *own])
    assert found.backend == Path("/ram")
    assert "-object" not in found.with_capture(memory=tmp_path, socket=tmp_path, plugin=None)[len(found.words) :]


def test_moments() -> None:
    assert when.parse("--from", "auto", "auto", accesses=False) == when.When()
    assert when.parse("--until", "20M", "end", accesses=True).accesses == 20_000_000
    assert when.parse("--until", "1.5s", "end", accesses=True).seconds == 1.5
    assert when.parse("--from", "mark", "auto", accesses=False).mark
    for text in ("", "nans", "-1s", "20M", "marks"):
        with pytest.raises(NestwalkError, match="--from"):
            when.parse("--from", text, "auto", accesses=False)


def test_pieces_of_memory_around_the_hole() -> None:
    found = guest.pieces(Recorded(mtree=TREE), {"nestwalk-ram": Path("/ram")})  # type: ignore[arg-type]
    assert [(one.gpa, one.bytes, one.offset) for one in found] == [
        (0, 0xA0000, 0),
        (0xC0000, 0xB000, 0xC0000),
        (0x100000, 0xBFF00000, 0x100000),
        (4 * GIB, GIB, 3 * GIB),
    ]
    assert [one[2] for one in qemu.ranges(TREE)] == ["nestwalk-ram", "pc.bios", "nestwalk-ram"]


def test_registers() -> None:
    text = "CPU#0\nCPL=3 II=0\nCR0=80050033 CR2=0 CR3=0000000001234005 CR4=001016b0\n"
    text += "CPU#1\nCPL=0\nCR0=60000010 CR3=0 CR4=0\n"
    text += "CPU#2\nCPL=0\nCR0=80050033 CR3=8000000002000000 CR4=000006b0\n"
    assert guest.vcpus(Recorded(registers=text)) == [  # type: ignore[arg-type]
        guest.Vcpu(0x1234000, 5, user=True),
        guest.Vcpu(0x2000000, 4, user=False),
    ]


def test_processes_by_name() -> None:
    found = [guest.Process(0x3000, "/usr/bin/redis-server", 9, 0), guest.Process(0x5000, None, 5, 0)]
    assert guest.choose(found, None) == found[0]
    assert guest.choose(found, "redis-server") == guest.choose(found, "/usr/bin/redis-server") == found[0]
    assert guest.choose(found, "0x5000") == found[1]
    with pytest.raises(NestwalkError, match="did you mean 'redis-server'"):
        guest.choose(found, "redis")
    with pytest.raises(NestwalkError, match="no process yet"):
        guest.choose([], None)


def test_the_busiest_is_busy_for_a_while() -> None:
    busy = session._Busy()

    def spaces(*user: int) -> list[control.Space]:
        return [control.Space(cr3, count, 0) for cr3, count in zip((1, 2), user, strict=True)]

    assert busy.leader(spaces(100, 0), 10) is None
    assert busy.leader(spaces(100, 5), 11) is None, "too early"
    assert busy.leader(spaces(110, 90), 14) is None, "once"
    assert busy.leader(spaces(200, 100), 18) is None, "another"
    assert busy.leader(spaces(300, 110), 22) == 1


def test_the_control_block_is_that_of_the_plugin(tmp_path: Path) -> None:
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("no gcc to ask for the offsets of the plugin's header")
    fields = [*control._FIELDS, "spaces"]
    lines = "".join(f'printf("%zu\\n", offsetof(struct control, {name}));' for name in fields)
    (tmp_path / "o.c").write_text(
        f'#include <stdio.h>\n#include <stddef.h>\n#include "vmtrace.h"\nint main(void) {{ {lines} '
        'printf("%zu\\n", sizeof(struct control)); return 0; }\n',
        encoding="utf-8",
    )
    subprocess.run([compiler, "-I", tools.SOURCES, "-o", tmp_path / "o", tmp_path / "o.c"], check=True)
    said = [int(line) for line in subprocess.run([tmp_path / "o"], capture_output=True, check=True).stdout.split()]
    block = control.Control(tmp_path / "control", 7)
    assert said[:-2] == [control._OFFSET[name] for name in control._FIELDS]
    assert said[-2:] == [control._SPACES_OFFSET, (tmp_path / "control").stat().st_size]
    assert (block.state, block.spaces(), block.accesses) == (control.State.LOADED, [], 0)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--until", "mark"], "needs --from mark"),
        (["--from", "mark", "--process", "x"], "leave --process out"),
        (["--from", "20M"], "--from 20M"),
        (["--kernel-half", "--user-tables-only"], "needs what --user-tables-only leaves out"),
        (["--kernel-half", "--user-code-only"], "needs what --user-code-only leaves out"),
        (["--tables", "g.nwt"], "both the trace and the tables"),
        (["-o", "-"], "standard output is the guest's console"),
    ],
    ids=["until-mark", "mark-process", "from-count", "no-tables", "no-kernel", "same-file", "stdout"],
)
def test_refusals(command: Command, arguments: list[str], what: str) -> None:
    done = command("vm", "capture", "-o", "g.nwt", *arguments, "--", QEMU, "-m", "64")
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert what in " ".join(done.stderr.split())


def test_a_socket_of_nobody(command: Command, tmp_path: Path) -> None:
    done = command("vm", "processes", "--monitor", tmp_path / "none")
    assert done.returncode == 2
    assert "none: No such file or directory" in " ".join(done.stderr.split())
