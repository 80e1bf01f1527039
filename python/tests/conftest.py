# SPDX-License-Identifier: MIT OR Apache-2.0
"""The fixtures: the installed command, a small scenario, and one quick comparison of everything."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from support import GENERATOR, Command, Made, run_command

# What a test finds was made by this test: it keeps no results, unless it says where.
os.environ["NESTWALK_RESULTS"] = "none"


@pytest.fixture
def command(tmp_path: Path) -> Command:
    """The installed command, run in a folder of its own."""

    def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return run_command(*arguments, cwd=tmp_path)

    return run


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    """A scenario file that takes a moment."""
    path = tmp_path / "tiny.toml"
    path.write_text(GENERATOR.format(accesses=300_000), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """The whole standard matrix on the bundled redis, quickly: as JSON, and in a folder with a report."""
    folder = tmp_path_factory.mktemp("compare")
    arguments = ["--quick", "--jobs", "2", "--json", "--out", "out", "--report", "report.html"]
    process = run_command("compare", *arguments, cwd=folder)
    assert process.returncode == 0, process.stderr
    return Made(json.loads(process.stdout), folder, process)
