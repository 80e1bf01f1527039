# SPDX-License-Identifier: MIT OR Apache-2.0
"""Hostile surroundings: closed and full streams, no memory, no descriptors, no directory, odd names, odd terminals."""

from __future__ import annotations

import ctypes
import fcntl
import os
import pty
import shlex
import struct
import subprocess
import termios
from collections.abc import Callable
from pathlib import Path

import pytest
from support import EXECUTABLE, GENERATOR

Shell = Callable[[str], subprocess.CompletedProcess[str]]
ROW = "compare --quick --trace bfs --only vm-4k"

CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, PR_CAPBSET_DROP = 1, 2, 24


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """A line of shell in a folder of its own; ``nestwalk`` is the installed command."""

    def run(line: str) -> subprocess.CompletedProcess[str]:
        text = f'nestwalk() {{ {shlex.quote(str(EXECUTABLE))} "$@"; }}\n{line}'
        return subprocess.run(
            ["/bin/bash", "-c", text], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300
        )

    return run


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    """The one line of a refusal."""
    lines = [line for line in done.stderr.splitlines() if line.startswith("nestwalk: error: ")]
    assert done.returncode == 2, done.stderr
    assert len(lines) == 1, done.stderr
    assert "Traceback" not in done.stderr
    return lines[0]


@pytest.mark.parametrize("verb", ["list", f"{ROW} -q --no-report", f"{ROW} -q --json", "--help"])
def test_a_closed_standard_output(shell: Shell, verb: str) -> None:
    assert "standard output is closed" in one_line(shell(f"nestwalk {verb} >&-"))


@pytest.mark.parametrize("verb", ["list", f"{ROW} -q --no-report", f"{ROW} -q --json", f"{ROW} -q --csv"])
def test_a_full_standard_output(shell: Shell, verb: str) -> None:
    assert "standard output: No space left" in one_line(shell(f"nestwalk {verb} >/dev/full"))


def test_results_and_report_are_kept_when_standard_output_is_full(shell: Shell, tmp_path: Path) -> None:
    one_line(shell(f"nestwalk {ROW} -q --out out >/dev/full"))
    assert {"results.parquet", "results.json", "report.html"} <= {path.name for path in (tmp_path / "out").iterdir()}


def test_a_reader_that_has_had_enough(shell: Shell) -> None:
    done = shell("nestwalk list | head -1; exit ${PIPESTATUS[0]}")
    assert (done.stdout, done.stderr) == ("machines\n", "")
    assert done.returncode in {0, 2}  # all of it may fit into the pipe
    done = shell("(sleep 0.2; nestwalk list) | true; exit ${PIPESTATUS[0]}")
    assert (done.returncode, done.stderr) == (2, "")


@pytest.mark.parametrize("stream", ["2>&-", "2>/dev/full", "<&-", "<&- 2>&-"])
def test_other_streams_are_not_needed(shell: Shell, tmp_path: Path, stream: str) -> None:
    done = shell(f"nestwalk {ROW} --report page.html {stream}")
    assert done.returncode == 0, done.stderr
    assert "VM, 4 KiB on both sides" in done.stdout
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<svg" in page
    assert "is unavailable" not in page


def test_pictures_cannot_fail_a_run(shell: Shell, tmp_path: Path) -> None:
    done = shell(f"ulimit -v 2500000; nestwalk {ROW} --out out")
    assert done.returncode == 0, done.stderr
    assert "VM, 4 KiB on both sides" in done.stdout
    assert (tmp_path / "out" / "results.parquet").is_file()
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "This picture is unavailable, because" in page
    assert "a picture is unavailable, because" in done.stderr


def test_too_little_memory_for_a_frame_is_said_before_the_first_run(shell: Shell, tmp_path: Path) -> None:
    assert "ulimit -v" in one_line(shell(f"ulimit -v 500000; nestwalk {ROW} -q --out out"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "verb",
    [
        "place t.csv --columns vm=id,arrive=start,leave=end,memory=ram,cores=cpu",
        "segments --pid $$",
        f"{ROW} -q --csv",
    ],
)
@pytest.mark.parametrize("limit", [400_000, 500_000, 800_000])
def test_too_little_memory_is_said_and_no_process_is_aborted(
    shell: Shell, tmp_path: Path, verb: str, limit: int
) -> None:
    (tmp_path / "t.csv").write_text("id,start,end,ram,cpu\na,0,,1,1\n", encoding="utf-8")
    done = shell(f"ulimit -v {limit}; nestwalk {verb}")
    assert done.returncode or limit > 400_000, "no frame fits into that"
    if done.returncode:
        assert "ulimit -v" in one_line(done)


@pytest.mark.parametrize("files", [6, 8, 10, 12, 14, 16, 20])
def test_few_file_descriptors(shell: Shell, files: int) -> None:
    done = shell(f"ulimit -n {files}; nestwalk {ROW} -q --no-report")
    if done.returncode:
        assert "open files" in one_line(done)
    else:
        assert "VM, 4 KiB on both sides" in done.stdout


def test_a_working_directory_that_is_gone(shell: Shell) -> None:
    gone = "mkdir here; cd here; rmdir ../here;"
    assert "working directory is gone" in one_line(shell(f"{gone} nestwalk {ROW} -q"))
    assert "working directory is gone" in one_line(shell(f"{gone} nestwalk {ROW} -q --out x --machine y.toml"))
    done = shell(f"{gone} nestwalk list machines")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("encoding", ["ascii", "iso-8859-1"])
def test_terminals_without_the_signs_of_unicode(shell: Shell, encoding: str) -> None:
    done = shell(f"PYTHONIOENCODING={encoding} nestwalk {ROW} -q --no-report | iconv -f {encoding} -t utf-8")
    assert done.returncode == 0, done.stderr
    assert ("+-" in done.stdout) == (encoding == "ascii")
    lines = done.stdout.splitlines()
    heading = next(number for number, line in enumerate(lines) if line.startswith("configuration"))
    row = next(line for line in lines[heading:] if "1.000" in line)
    assert len(lines[heading]) == len(row)


LONG = "n" * 300


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (f"run {LONG}.toml", "too long"),
        (f"run {LONG}", "too long"),
        (f"compare --trace ./{LONG}.nwt", "too long"),
        (f"compare --machine {LONG}.toml", "too long"),
        (f"compare --matrix {LONG}.toml", "too long"),
        (f"compare --out {LONG}", "too long"),
        (f"compare --report {LONG}", "too long"),
        (f"trace info ./{LONG}", "too long"),
        (f"trace verify ./{LONG}", "too long"),
        (f"trace convert {LONG} x", "too long"),
        ("run $'\\xff.toml'", "UTF-8"),
        ("compare --trace ./$'\\xff.nwt'", "UTF-8"),
        ("compare --machine $'\\xff.toml'", "UTF-8"),
        ("compare --only $'\\xff'", "UTF-8"),
        ("compare --tables $'\\xff'", "UTF-8"),
        ("reproduce $'\\xff'", "UTF-8"),
        ("list $'\\xff'", "unknown list"),
        ("compare --trace ''", "trace is empty"),
        ("compare --machine ''", "machine is empty"),
        ("compare --matrix ''", "matrix is empty"),
        ("run ''", "scenario is empty"),
    ],
)
def test_odd_names(shell: Shell, tmp_path: Path, arguments: str, said: str) -> None:
    assert said in one_line(shell(f"nestwalk {arguments}"))
    assert not list(tmp_path.iterdir())


def test_files_whose_names_are_no_text(shell: Shell, tmp_path: Path) -> None:
    trace = Path(__file__).parents[2] / "data" / "traces" / "bfs.nwt"
    done = shell(
        f"cp {trace} ./$'\\xff.nwt'; nestwalk trace info ./$'\\xff.nwt'; nestwalk trace verify ./$'\\xff.nwt' --json"
    )
    assert done.returncode == 0, done.stderr
    done = shell(f"nestwalk {ROW} -q --report ./$'\\xfe.html'")
    assert done.returncode == 0, done.stderr
    assert "\udcfe.html" in {path.name for path in tmp_path.iterdir()}


def without_override() -> None:
    """Makes permissions count for root, too."""
    for capability in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
        ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)


@pytest.mark.parametrize(
    "arguments",
    [
        "run shut/x.toml",
        "compare --trace shut/x.nwt",
        "compare --machine shut/x.toml",
        "compare --matrix shut/x.toml",
        "compare --report shut/x.html",
        "compare --out shut",
        "compare --out shut/x",
        "compare --out readonly",
        "trace info shut/x.nwt",
        "trace convert shut/x y",
        "trace convert tiny.toml shut/y",
        "matrix --program shut/x",
    ],
)
def test_folders_without_permission(tmp_path: Path, arguments: str) -> None:
    (tmp_path / "tiny.toml").write_text(GENERATOR.format(accesses=1000), encoding="utf-8")
    for name, mode in (("shut", 0o000), ("readonly", 0o555)):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(mode)
    done = subprocess.run(
        [EXECUTABLE, *arguments.split()],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=without_override,
    )
    assert any(word in one_line(done).lower() for word in ("permission", "not readable"))


def on_terminal(columns: int, *arguments: str) -> str:
    """What the command writes to a terminal so wide."""
    terminal, other_end = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    surroundings = {key: value for key, value in os.environ.items() if key != "COLUMNS"} | {"TERM": "dumb"}
    process = subprocess.Popen([EXECUTABLE, *arguments], stdout=other_end, stderr=other_end, env=surroundings)
    os.close(other_end)
    out = b""
    while True:
        try:
            part = os.read(terminal, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        out += part
    os.close(terminal)
    assert process.wait(60) == 0, out
    return out.decode().replace("\r", "")


@pytest.mark.parametrize("columns", [40, 60, 80, 100, 160])
def test_a_narrow_terminal_shows_every_name_and_every_number(columns: int) -> None:
    arguments = [*ROW.split(), "--only", "vm-thp", "-q", "--no-report"]
    shown = on_terminal(columns, *arguments)
    assert max(map(len, shown.splitlines())) <= columns
    words = " ".join(shown.split())
    frame = on_terminal(400, *arguments, "--csv").splitlines()
    keys = frame[0].split(",")
    for line in frame[1:]:
        row = dict(zip(keys, line.split(","), strict=False))
        assert f"{float(row['walk_latency_cycles']):.1f}" in words
        assert f"{float(row['walk_cycles_per_access']):.2f}" in words
        assert f"{float(row['relative_time']):.3f}" in words
    for name in ("VM, 4 KiB on both sides", "VM, THP in guest and host"):
        assert name in words
    assert "…" not in shown
    assert ("Left out" in words) == (columns < 158)
