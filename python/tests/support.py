# SPDX-License-Identifier: MIT OR Apache-2.0
"""What the tests share: the installed command, and what it makes."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

Command = Callable[..., subprocess.CompletedProcess[str]]

EXECUTABLE = Path(sys.executable).with_name("nestwalk")
REPOSITORY = Path(__file__).parents[2]

GENERATOR = """
schema = 1
name = "tiny"
machine = "broadwell-asap"

[workload.generator]
kind = "gups"
footprint = "64 MiB"
warm_accesses = 0
measured_accesses = {accesses}

[[kernels]]
manager = {{ kind = "linux4k" }}

[[kernels]]
manager = {{ kind = "thp" }}
"""


def script(name: str) -> ModuleType:
    """A script of packaging/ as a module."""
    path = REPOSITORY / "packaging" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_command(*arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Runs the installed ``nestwalk`` as a user would."""
    assert EXECUTABLE.exists(), f"{EXECUTABLE}: the package is not installed beside this Python; ./dev test does that"
    return subprocess.run(
        [EXECUTABLE, *map(str, arguments)], capture_output=True, text=True, cwd=cwd, check=False, timeout=600
    )


@dataclass(frozen=True)
class Made:
    """A comparison that the command made."""

    json: dict[str, Any]
    folder: Path
    process: subprocess.CompletedProcess[str]
