# SPDX-License-Identifier: MIT OR Apache-2.0
"""The packages: the wheel installed where there is nothing else, and what a source distribution holds."""

from __future__ import annotations

import os
import subprocess
import tarfile
from pathlib import Path

import pytest
from support import EXECUTABLE, REPOSITORY
from test_generated import script

WHEELS = sorted(EXECUTABLE.parents[1].glob("wheels/*.whl"))


@pytest.mark.skipif(not WHEELS, reason="no wheel in .venv/wheels: ./dev build makes one")
def test_the_wheel_installs_and_compares_where_there_is_nothing_else() -> None:
    index = {key: value for key, value in os.environ.items() if key.startswith("PIP_")}
    found = script("try_install").try_install(WHEELS[-1], index)
    assert found["quick"] is True


def test_a_source_distribution_holds_all_that_is_compiled_in(tmp_path: Path) -> None:
    maturin = EXECUTABLE.with_name("maturin")
    assert maturin.exists()
    subprocess.run([maturin, "sdist", "--out", tmp_path], cwd=REPOSITORY, check=True, capture_output=True, timeout=300)
    (made,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(made) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    for pattern in ("machines/*.toml", "costs/*.toml", "scenarios/**/*.toml", "crates/*/src/*.rs", "LICENSE-*"):
        wanted = {path.relative_to(REPOSITORY).as_posix() for path in REPOSITORY.glob(pattern)}
        # A crate that the package does not need is left out.
        wanted -= {path for path in wanted if path.startswith("crates/cloud/")}
        assert wanted, pattern
        assert wanted <= held, sorted(wanted - held)
    for name in ("python/nestwalk/traces/redis.nwt", "python/nestwalk/schemas/machine.schema.json", "Cargo.lock"):
        assert name in held
