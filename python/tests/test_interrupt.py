# SPDX-License-Identifier: MIT OR Apache-2.0
"""Ctrl-C: one line, exit code 130, nothing half-written, no process left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support import EXECUTABLE, GENERATOR

FOR_EVER = 10**13


def children(process: int) -> list[int]:
    """Living processes whose parent is ``process``."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text(encoding="utf-8").rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        if int(fields[1]) == process:
            found.append(int(stat.parent.name))
    return found


def start(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [EXECUTABLE, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cwd, process_group=0
    )


def until(condition: object, process: subprocess.Popen[str]) -> None:
    """Waits for ``condition()``, unless ``process`` ends before."""
    while not condition():  # type: ignore[operator]
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


def busy(process: int) -> bool:
    """Whether it has used a second of processor time, so that it is surely in the middle of its run."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12]) > os.sysconf("SC_CLK_TCK")


def said(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=60)
    assert out == ""
    assert process.returncode == 130
    return err


@pytest.fixture
def endless(tmp_path: Path) -> Path:
    path = tmp_path / "endless.toml"
    path.write_text(GENERATOR.format(accesses=FOR_EVER), encoding="utf-8")
    return path


def test_a_run(tmp_path: Path, endless: Path) -> None:
    process = start("run", str(endless), "--out", "kept", cwd=tmp_path)
    until(lambda: busy(process.pid), process)
    os.killpg(process.pid, signal.SIGINT)
    assert said(process) == "nestwalk: interrupted; nothing was written\n"
    assert list(tmp_path.iterdir()) == [endless]


def test_a_comparison(tmp_path: Path) -> None:
    matrix = tmp_path / "matrix.toml"
    # Ten times the program, one after the other, so that it is surely not done yet.
    entries = "".join(f'[[configuration]]\nname = "{n}"\nscenario = {{ kernels = [{{}}, {{}}] }}\n' for n in range(50))
    matrix.write_text(f"schema = 1\n{entries}", encoding="utf-8")
    arguments = ["--matrix", str(matrix), "--jobs", "2", "--out", "kept", "--report", "report.html"]
    process = start("compare", *arguments, cwd=tmp_path)
    until(lambda: children(process.pid), process)
    workers = children(process.pid)
    os.killpg(process.pid, signal.SIGINT)
    assert said(process).splitlines()[-1] == "nestwalk: interrupted; nothing was written"
    assert list(tmp_path.iterdir()) == [matrix]
    for worker in workers:
        assert not Path(f"/proc/{worker}").exists()


def test_runs_that_are_kept_are_named(tmp_path: Path) -> None:
    spec = tmp_path / "sweep.toml"
    sizes = ((1000, "small"), (FOR_EVER, "endless"))
    programs = "".join(
        f'[[program]]\nname = "{name}"\ntitle = "{name}"\n'
        'workload.generator = { kind = "gups", footprint = "8 MiB", warm_accesses = 0, '
        f"measured_accesses = {accesses} }}\n"
        for accesses, name in sizes
    )
    spec.write_text(f'schema = 1\ntitle = "t"\n{programs}[techniques]\nonly = ["vm-4k"]\n', encoding="utf-8")
    process = start("sweep", str(spec), "--jobs", "2", "--results", "kept", cwd=tmp_path)
    until(lambda: any((tmp_path / "kept").glob("kinds/*/*")), process)
    time.sleep(0.3)
    os.killpg(process.pid, signal.SIGINT)
    told = "nothing was written; 1 of its runs is kept in kept, and the same command goes on"
    assert said(process).splitlines()[-1] == f"nestwalk: interrupted; {told}"


def test_a_worker_whose_parent_is_killed_ends(tmp_path: Path) -> None:
    matrix = tmp_path / "matrix.toml"
    entries = "".join(f'[[configuration]]\nname = "{n}"\nscenario = {{ kernels = [{{}}, {{}}] }}\n' for n in range(50))
    matrix.write_text(f"schema = 1\n{entries}", encoding="utf-8")
    process = start("compare", "--matrix", str(matrix), "--jobs", "1", cwd=tmp_path)
    until(lambda: children(process.pid), process)
    workers = children(process.pid)
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{worker}").exists() for worker in workers):
        assert time.monotonic() < deadline, "a worker goes on without its parent"
        time.sleep(0.05)


def test_nothing_heavy_is_imported_where_ctrl_c_would_be_a_traceback() -> None:
    seen = "import sys, nestwalk.__main__; print('pathlib' in sys.modules, 'nestwalk.completion' in sys.modules)"
    # -S: an environment's own start-up files may import what they like.
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(
        [sys.executable, "-S", "-c", seen], capture_output=True, text=True, check=True, env=paths, timeout=60
    )
    assert done.stdout.split() == ["False", "False"]
