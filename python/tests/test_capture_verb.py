# SPDX-License-Identifier: MIT OR Apache-2.0
"""``nestwalk capture`` as a user calls it: what ends it, servers, languages with a runtime, what is missing."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from support import EXECUTABLE, Command, run_command

from nestwalk import engine, qemu_plugin
from nestwalk.capture import program, tools, view, when
from nestwalk.errors import NestwalkError

MISSING = [tool for tool in ("qemu-x86_64", "cc") if not shutil.which(tool)]
needs_qemu = pytest.mark.skipif(bool(MISSING), reason=f"not installed (apt install qemu-user gcc): {MISSING}")

BUSY = """
#include <stdlib.h>
#include <sys/prctl.h>
int main(int argc, char **argv)
{
    enum { WORDS = 4 << 20 };
    volatile long *words = calloc(WORDS, sizeof *words);
    unsigned long at = 1, rounds = argc > 1 ? strtoul(argv[1], 0, 10) : -1ul;
    for (long i = 0; i < WORDS; i += 64)
        words[i] = i;
    prctl(0x4e574d4b, 1, 0, 0, 0);
    for (unsigned long n = 0; n < rounds; n++) {
        at = at * 6364136223846793005ul + 1442695040888963407ul;
        words[(at >> 33) % WORDS]++;
        if (n == 3000000)
            prctl(0x4e574d4b, 2, 0, 0, 0);
    }
    if (argc > 2)
        abort();
    return 0;
}
"""

SERVER = """
#include <arpa/inet.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>
int main(int argc, char **argv)
{
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(atoi(argv[argc - 1])) };
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (struct sockaddr *)&at, sizeof at) || listen(fd, 5))
        return 1;
    for (;;) {
        int client = accept(fd, 0, 0);
        char *memory = calloc(1, 1 << 20);
        for (int i = 0; i < 1 << 20; i += 64)
            memory[i] = i;
        write(client, "hello", 5);
        close(client);
        free(memory);
    }
}
"""


def built(directory: Path, text: str) -> Path:
    """A program of C."""
    source, target = directory / "program.c", directory / "program"
    source.write_text(text)
    subprocess.run(["cc", "-O1", "-w", "-o", target, source], check=True)  # noqa: S607
    return target


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that is steady and does not end."""
    return built(tmp_path_factory.mktemp("busy"), BUSY)


def captured(*arguments: str | Path, cwd: Path | None = None) -> dict[str, Any]:
    """What a capture that works says of itself."""
    done = run_command("capture", "--json", *arguments, cwd=cwd)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@needs_qemu
def test_a_program_becomes_a_trace_that_compares(busy: Path, tmp_path: Path) -> None:
    trace = tmp_path / "busy.nwt"
    found = captured("-o", trace, "--", busy, "4000000")
    assert {"schema", "accesses", "bytes", "threads", "warnings"} <= found.keys()
    assert found["accesses"] > 8_000_000
    assert (found["threads"], found["exit_code"], found["warnings"]) == (1, 0, [])
    assert found["bytes"] == trace.stat().st_size < 32_000_000
    assert 60_000 < found["sampled_from"] < 500_000, "touching the pages is the start-up"
    assert found["walk_latency_ci95"] <= 0.02
    assert found["model_off"] is None, "all of it is kept"
    done = run_command("compare", "--trace", trace, "--quick", "--json", "--only", "vm-4k", "--only", "native-4k")
    rows = {row["configuration"]: row for row in json.loads(done.stdout)["rows"]}
    assert rows["vm-4k"]["walks_per_kiloaccess"] == pytest.approx(rows["native-4k"]["walks_per_kiloaccess"], rel=0.1)
    assert rows["vm-4k"]["walk_latency_cycles_ci95"] is not None


@needs_qemu
def test_windows_of_a_small_trace_are_what_the_program_is(busy: Path, tmp_path: Path) -> None:
    trace = tmp_path / "busy.nwt"
    found = captured("--size=14M", "--precision=0.1", "-o", trace, "--", busy, "40000000")
    assert found["bytes"] <= 14_000_000
    assert found["windows"] >= 5
    assert found["model_off"] < 0.02
    scenario = tmp_path / "native.toml"
    scenario.write_text(
        'schema = 1\nname = "native"\nmachine = "broadwell-asap"\n'
        f'[[kernels]]\nmemory = "1 GiB"\nmanager = {{ kind = "linux4k" }}\n[workload]\ntrace = "{trace}"\n'
    )
    result = engine.run(scenario)
    sample, program = result.statistics["modelled"], result.statistics["modelled_program"]
    assert len(result.statistics["windows"]) == found["windows"]
    assert sample is not None
    assert program is not None
    assert sample["accesses"] < program["accesses"] <= found["accesses"]
    assert sample["walks"] / sample["accesses"] == pytest.approx(program["walks"] / program["accesses"], rel=0.02)


@needs_qemu
@pytest.mark.parametrize(
    ("option", "least", "most"),
    [("--until=3M", 3e6, 3.1e6), ("--until=mark:2", 6e6, 7e6), ("--until=2s", 1e6, 1e10)],
    ids=["accesses", "mark", "seconds"],
)
def test_it_ends_when_it_is_told_to(busy: Path, tmp_path: Path, option: str, least: float, most: float) -> None:
    found = captured(option, "-o", tmp_path / "t.nwt", "--", busy)
    assert least <= found["accesses"] <= most
    assert found["warnings"] == []
    assert list(tmp_path.iterdir()) == [tmp_path / "t.nwt"]


@needs_qemu
def test_sampling_begins_at_a_mark(busy: Path, tmp_path: Path) -> None:
    found = captured("--from=mark:2", "-o", tmp_path / "t.nwt", "--", busy, "5000000")
    assert 6e6 < found["sampled_from"] < 7e6
    late = run_command("capture", "--from=mark:9", "-o", tmp_path / "none.nwt", "--", busy, "1000")
    assert late.returncode == 2
    assert "no mark 9" in late.stderr
    assert list(tmp_path.iterdir()) == [tmp_path / "t.nwt"]


@needs_qemu
def test_a_whole_capture_is_from_where_to_where_it_is_told(busy: Path, tmp_path: Path) -> None:
    trace = tmp_path / "t.nwt"
    found = captured("--whole", "--from=mark:1", "--until=mark:2", "-o", trace, "--", busy, "5000000")
    sampled = captured("--from=mark:1", "--until=mark:2", "-o", tmp_path / "s.nwt", "--", busy, "5000000")
    assert found["sampled_from"] == sampled["sampled_from"] > 0
    assert found["accesses"] == pytest.approx(sampled["accesses"], rel=0.05)
    kept = json.loads(run_command("trace", "info", trace, "--json").stdout)["accesses"]
    assert kept == found["accesses"] - found["sampled_from"]


def started(*arguments: str | Path) -> subprocess.Popen[str]:
    """A capture that goes on."""
    return subprocess.Popen(
        [EXECUTABLE, "capture", "--json", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def spool_grows(folder: Path) -> bool:
    """Whether something arrives beside the trace that is to be made, for a minute at most."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if any(path.stat().st_size > 0 for path in folder.glob(".nwt*/**/*") if path.is_file()):
            return True
        if any(path.is_file() for path in folder.glob(".nestwalk-*/*")):
            return True
        time.sleep(0.1)
    return False


@needs_qemu
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_a_signal_ends_it_and_there_is_a_trace(busy: Path, tmp_path: Path, number: signal.Signals) -> None:
    process = started("-o", tmp_path / "t.nwt", "--", busy)
    assert spool_grows(tmp_path)
    time.sleep(1)
    process.send_signal(number)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    found = json.loads(out)
    assert found["accesses"] > 0
    assert "stopped by a signal" in found["warnings"][0]
    assert list(tmp_path.iterdir()) == [tmp_path / "t.nwt"]
    assert run_command("trace", "verify", tmp_path / "t.nwt").returncode == 0


@needs_qemu
def test_a_program_that_dies_leaves_a_trace(busy: Path, tmp_path: Path) -> None:
    found = captured("-o", tmp_path / "t.nwt", "--", busy, "1000000", "abort")
    assert found["exit_code"] == 128 + signal.SIGABRT
    assert "was ended by SIGABRT" in found["warnings"][0]
    assert found["accesses"] > 2_000_000


@needs_qemu
def test_a_server_is_waited_for_driven_and_ended(tmp_path: Path) -> None:
    server = built(tmp_path, SERVER)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    client = f"for i in 1 2 3; do exec 3<>/dev/tcp/127.0.0.1/{port}; cat <&3; done"
    drive = ["--until-ready", port, "--client", f"bash -c '{client}'"]
    found = captured(*drive, "-o", tmp_path / "t.nwt", "--", server, port)
    assert found["warnings"] == []
    assert found["accesses"] > 3 * (1 << 14)
    found = captured("--until-ready", port, "--client", "exit 3", "-o", tmp_path / "t.nwt", "--", server, port)
    assert found["warnings"] == ["the client ended with 3: exit 3"]


@needs_qemu
def test_a_full_disk_ends_it_and_there_is_a_trace(busy: Path, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=44M", "none", str(small)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("no small file system can be mounted here: that needs root")
    try:
        found = captured("--size", "2M", "-o", small / "t.nwt", "--", busy)
        assert found["warnings"][0] == "the disk is nearly full; the trace has all up to there"
        assert [path.name for path in small.iterdir()] == ["t.nwt"]
    finally:
        subprocess.run(["umount", small], check=True)  # noqa: S607


@needs_qemu
def test_a_jvm_is_captured(tmp_path: Path) -> None:
    if not shutil.which("java"):
        pytest.skip("java is not installed (apt install default-jdk-headless)")
    done = captured("-o", tmp_path / "t.nwt", "--", "java", "-XX:+UseSerialGC", "-Xmx64m", "-version")
    assert done["exit_code"] == 0, done
    assert done["threads"] > 3


@needs_qemu
def test_a_program_in_go_is_captured(tmp_path: Path) -> None:
    if not shutil.which("go"):
        pytest.skip("go is not installed (apt install golang-go)")
    source = (
        'package main\nimport "fmt"\nfunc main() { c := make(chan int); go func() { c <- 42 }(); fmt.Println(<-c) }\n'
    )
    (tmp_path / "main.go").write_text(source)
    subprocess.run(["go", "build", "-o", "server", "main.go"], cwd=tmp_path, check=True, timeout=300)  # noqa: S607
    done = captured("-o", tmp_path / "t.nwt", "--", tmp_path / "server")
    assert done["exit_code"] == 0, done
    assert done["threads"] > 1
    assert done["footprint_bytes"] < 1 << 30, "what Go reserves is not what it touches"


@needs_qemu
def test_children_become_traces_of_their_own(busy: Path, tmp_path: Path) -> None:
    work = f"'{busy}' 300000; (i=0; while [ $i -lt 9000 ]; do i=$((i+1)); done); true; '{busy}' 200000"
    found = captured("--children", "-o", tmp_path / "t.nwt", "--", "sh", "-c", work)
    files = [child["file"] for child in found["children"]]
    assert len(files) == 3, "two programs, and the shell's own subshell"
    assert all(child["accesses"] > 100_000 for child in found["children"])
    assert sorted(map(str, tmp_path.iterdir())) == sorted([*files, found["file"]])
    for name in files:
        assert run_command("trace", "verify", name).returncode == 0
    refused = run_command("capture", "--children", "--raw", "-o", tmp_path / "x", "--", "true")
    assert "--children goes with neither" in refused.stderr


@needs_qemu
def test_lackey_makes_a_trace_too(tmp_path: Path) -> None:
    if not shutil.which("valgrind"):
        pytest.skip("valgrind is not installed (apt install valgrind)")
    found = captured("--with", "lackey", "-o", tmp_path / "t.nwt", "--", "true")
    other = captured("-o", tmp_path / "other.nwt", "--", "true")
    assert found["accesses"] == pytest.approx(other["accesses"], rel=0.5), "start-up differs, as the CPUs do"


RANDOM = """
#include <stdlib.h>
int main(void)
{
    unsigned long n = 1ul << 22, at = 1;
    volatile long *words = aligned_alloc(1ul << 21, n * sizeof *words);
    for (unsigned long i = 0; i < n; i += 512)
        words[i] = 1;
    for (long i = 0; i < 4000000; i++) {
        at = at * 6364136223846793005ul + 1442695040888963407ul;
        words[(at >> 33) % n] += i;
        words[i % 512] += i;
    }
}
"""


@needs_qemu
def test_simulations_follow_a_program_and_say_what_its_trace_says(tmp_path: Path) -> None:
    program = built(tmp_path, RANDOM)
    empty = tmp_path / "empty"
    empty.mkdir()
    rows = ("native-4k", "vm-4k")
    only = [f"--only={row}" for row in rows]
    done = run_command("capture", "--live", *only, "--json", "--", program, cwd=empty)
    assert done.returncode == 0, done.stderr
    assert list(empty.iterdir()) == []
    live = {row["configuration"]: row for row in json.loads(done.stdout)["rows"]}
    trace = tmp_path / "random.nwt"
    captured("--whole", "-o", trace, "--", program)
    done = run_command("compare", "--trace", trace, *only, "--json")
    played = {row["configuration"]: row for row in json.loads(done.stdout)["rows"]}
    for row in rows:
        assert live[row]["walks_per_kiloaccess"] > 100
        for key in ("walks_per_kiloaccess", "walk_latency_cycles", "references_per_walk"):
            assert live[row][key] == pytest.approx(played[row][key], rel=0.01), (row, key)


@needs_qemu
def test_simulations_of_a_program_that_ends_too_soon_say_so(tmp_path: Path) -> None:
    done = run_command("capture", "--live", "--only=vm-4k", "--", "true", cwd=tmp_path)
    assert done.returncode == 2
    assert "before the simulated caches and TLBs were warm" in " ".join(done.stderr.split())
    done = run_command("capture", "--live", "--only=vm-4k", "--from=1G", "--", "true", cwd=tmp_path)
    assert done.returncode == 2
    assert "before its simulation was to begin" in " ".join(done.stderr.split())
    done = run_command("capture", "--live", "--only=no-such-row", "--", "true", cwd=tmp_path)
    assert done.returncode == 2
    assert "no-such-row" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("-o x.nwt -- no-such-program", "no such program"),
        ("-o none/x.nwt -- true", "there is no directory"),
        ("-o x.nwt --until 3x -- true", "--until 3x: give end"),
        ("-o x.nwt --from mark: -- true", "--from mark:: give auto"),
        ("-o x.nwt --size 3 -- true", "100k to 1000G"),
        ("-o x.nwt --precision 0 -- true", "0.1 to 100"),
        ("-o x.nwt --until-ready 99999 -- true", "1 to 65535"),
        ("-o - -- true", "standard output"),
        ("-- true", "-o FILE"),
        ("--live -o x.nwt -- true", "--live"),
        ("--live --with lackey -- true", "take --with qemu"),
        ("--machine zen4 -o x.nwt -- true", "--machine goes with --live"),
        ("--only vm-4k -o x.nwt -- true", "--only goes with --live"),
        ("--memory 1G -o x.nwt -- true", "--memory goes with --live"),
        ("--whole --raw -o x.nwt -- true", "contradicts"),
        ("--raw --from mark:1 -o x.nwt -- true", "leave --from out"),
        ("--raw --until mark:1 -o x.nwt -- true", "--until mark:1"),
        ("--follow a,b -o x.nwt -- true", "without a comma"),
        ("--with nothing -o x.nwt -- true", "unknown tool"),
        ("-o x.nwt --qemu no-such-qemu -- true", "no-such-qemu is not here"),
        ("-o x.nwt --cc no-such-cc -- true", "no-such-cc is not here"),
        ("-o x.nwt", "PROGRAM"),
    ],
)
def test_what_cannot_be_is_one_line(tmp_path: Path, arguments: str, words: str) -> None:
    if "no-such-cc" in arguments and MISSING:
        pytest.skip(f"not installed (apt install qemu-user gcc): {MISSING}")
    done = run_command("capture", *arguments.split(), cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("nestwalk: error: ") == 1
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("release", "line"),
    [
        ("ID=debian\n", "apt install qemu-user"),
        ('ID="ubuntu"\nID_LIKE=debian\n', "apt install qemu-user"),
        ("ID=fedora\n", "dnf install qemu-user"),
        ('ID="rocky"\nID_LIKE="rhel centos fedora"\n', "dnf install qemu-user"),
        ("ID=arch\n", "pacman -S qemu-user"),
        ('ID="opensuse-tumbleweed"\nID_LIKE="opensuse suse"\n', "zypper install qemu-linux-user"),
        ("nothing", "apt install qemu-user or dnf install qemu-user or pacman"),
    ],
    ids=["debian", "ubuntu", "fedora", "rocky", "arch", "opensuse", "unknown"],
)
def test_what_is_missing_has_the_distributions_name(tmp_path: Path, release: str, line: str) -> None:
    (tmp_path / "os-release").write_text(release)
    assert tools.how_to_install("qemu", tmp_path / "os-release").startswith(line)


@needs_qemu
def test_the_plugin_is_built_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    qemu = tools.find("qemu", "qemu-x86_64")
    first = tools.plugin(qemu, "cc", cache=tmp_path)
    then = first.stat()
    assert tools.plugin(qemu, "cc", cache=tmp_path).stat().st_ino == then.st_ino
    assert tools.plugin(qemu, "cc -O1", cache=tmp_path) != first
    assert sorted(path.name for path in first.parent.iterdir()) == [tools.LIBRARY]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert qemu_plugin.cache_directory("capture") == tmp_path / "cache" / "nestwalk" / "capture"
    with pytest.raises(NestwalkError, match="does not compile"):
        tools.plugin(qemu, "false", cache=tmp_path)
    with pytest.raises(NestwalkError, match="cannot load the capture plugin"):
        tools.plugin(tools.find("qemu", "true"), "cc", cache=tmp_path)


def test_a_script_is_its_interpreter(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/bin/sh -e\n")
    script.chmod(0o755)
    found = program.find([str(script), "one"])
    assert (found.path, found.arguments, found.title) == ("/bin/sh", ("-e", str(script), "one"), "script")
    script.write_text(f"#!{script}\n")
    with pytest.raises(NestwalkError, match="each other's interpreters"):
        program.find([str(script)])


def test_moments() -> None:
    assert when.parse("--until", "1.5s", "end") == when.When(seconds=1.5)
    assert when.parse("--until", "2G", "end") == when.When(accesses=2 * 10**9)
    assert when.parse("--until", "mark:7", "end") == when.When(mark=7)
    assert when.parse("--until", "signal", "end") == when.When(signal=True)
    assert when.parse("--until", "end", "end") == when.When()


def test_the_line_that_shows_how_far_it_is() -> None:
    line = view.Meter().line(view.State(accesses=2_000_000, footprint_pages=1000, walks=5000, bytes=10**6))
    assert line.startswith("2 M accesses, ")
    assert line.endswith("footprint 4 MB, 2.50 walks/1000, 1.0 MB on disk")
    assert "writing the trace" in view.Meter().line(view.State(completing=True))


def test_bench_says_how_fast_a_capture_is(command: Command) -> None:
    done = command("bench", "capture", "--quick", "--json")
    assert done.returncode == 0, done.stderr
    [result] = json.loads(done.stdout)["results"]
    if MISSING or not shutil.which("redis-server") or not shutil.which("redis-benchmark"):
        assert result["value"] is None
        assert result["unavailable"].startswith("because ")
    else:
        assert result["value"] > 1e6
        assert "unavailable" not in result
