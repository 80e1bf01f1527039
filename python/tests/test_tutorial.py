# SPDX-License-Identifier: MIT OR Apache-2.0
"""The tutorial's lines, from the capture to the answer, with a redis-server and a tenth of the load."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from pathlib import Path

import pytest
from support import EXECUTABLE, REPOSITORY
from test_docs_blocks import blocks

BLOCKS = [block.text for block in blocks(REPOSITORY / "docs" / "tutorial.md") if block.mark.startswith("run by ")]
TOOLS = ("qemu-x86_64", "redis-server", "redis-benchmark", "redis-cli", "cc")
MISSING = [tool for tool in TOOLS if not shutil.which(tool)]
SMALLER = {"-r 300000": "-r 30000", "-n 300000": "-n 30000", "-n 500000": "-n 40000"}
SECONDS_MAX = 300
SHELL = shutil.which("sh") or "/bin/sh"
ANSWER = r"In a plain VM \(4 KiB on both sides\), page walks take [\d.]+ ±[\d.]+ % of redis-mine's time"


def free_port() -> int:
    """A port of 127.0.0.1 that nothing listens at."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def one_block(begin: str) -> str:
    """The block that begins so."""
    (found,) = (text for text in BLOCKS if text.startswith(begin))
    return found


@pytest.mark.skipif(bool(MISSING), reason=f"the tutorial's tools are not here: {', '.join(MISSING)}")
def test_the_tutorial_leads_from_a_server_to_an_answer(tmp_path: Path) -> None:
    port = free_port()
    path = f"{EXECUTABLE.parent}:{os.environ['PATH']}"
    cache = os.environ.get("XDG_CACHE_HOME", str(Path("~/.cache").expanduser()))

    def run(text: str) -> str:
        for large, small in {**SMALLER, "7399": str(port)}.items():
            text = text.replace(large, small)
        done = subprocess.run(
            [SHELL, "-eu", "-c", text],
            cwd=tmp_path,
            env={"PATH": path, "HOME": str(tmp_path), "XDG_CACHE_HOME": cache},
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS_MAX,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "per second" in run(one_block("nestwalk capture"))
    info = run(one_block("nestwalk trace info"))
    windows = re.search(r"^windows +(\d+) *$", info, re.MULTILINE)
    assert windows, info
    assert int(windows[1]) >= 3
    only = " --quick --jobs 1 --only vm-4k --only vm-thp --only vm-shadow"
    out = run(one_block("nestwalk compare").rstrip() + only)
    assert re.match(ANSWER, out)
    assert "transparent_hugepage" in (tmp_path / "redis-mine" / "report.html").read_text(encoding="utf-8")


def test_what_it_reads_in_the_end_is_in_this_kernel(tmp_path: Path) -> None:
    text = one_block("grep -E 'Rss|AnonHugePages'").replace("$(pidof -s redis-server)", "self")
    if not Path("/sys/kernel/mm/transparent_hugepage").exists():
        pytest.skip("this kernel has no transparent huge pages")
    done = subprocess.run([SHELL, "-eu", "-c", text], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for word in ("Rss:", "AnonHugePages:", "thp_fault_alloc ", "thp_fault_fallback "):
        assert word in done.stdout


def test_advice_for_a_running_process_ends_it(tmp_path: Path) -> None:
    text = one_block("nestwalk advise").replace("redis-server", str(os.getpid()))
    path = f"{EXECUTABLE.parent}:{os.environ['PATH']}"
    done = subprocess.run(
        [SHELL, "-eu", "-c", text],
        cwd=tmp_path,
        env={"PATH": path, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "What to do, in this order" in done.stdout
