# SPDX-License-Identifier: MIT OR Apache-2.0
"""Pins the newest versions that pyproject.toml allows, with hashes, for every platform: ``./dev lock``.

Needs uv, which it installs into the environment that it runs in.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
HEAD = """\
# SPDX-License-Identifier: MIT OR Apache-2.0
# Written by `./dev lock` from pyproject.toml. Exact versions, so that every machine installs the same.
"""
OPTIONS = [
    "--quiet",
    "--universal",
    "--python-version",
    "3.11",
    "--generate-hashes",
    "--no-header",
    "--no-annotate",
    "--upgrade",
]
SAME = ["--constraint", str(HERE / "dev.txt")]
"""All are installed into one environment, so the others have the developers' versions."""
SOURCES = {
    "dev": ["pyproject.toml", "--extra", "dask", "--group", "pyproject.toml:build", "--group", "pyproject.toml:dev"],
    "run": [*SAME, "pyproject.toml", "--group", "pyproject.toml:build"],
    "docs": [*SAME, "--group", "pyproject.toml:docs"],
}
"""Of each file, the developers' first."""


def main() -> None:
    """Writes the files."""
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "uv"], check=True)
    for name, sources in SOURCES.items():
        command = [sys.executable, "-m", "uv", "pip", "compile", *OPTIONS, *sources]
        pinned = subprocess.run(command, check=True, cwd=ROOT, capture_output=True, text=True).stdout
        (HERE / f"{name}.txt").write_text(HEAD + pinned, encoding="utf-8")


if __name__ == "__main__":
    main()
