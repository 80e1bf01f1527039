# SPDX-License-Identifier: MIT OR Apache-2.0
"""The packages: the wheel installed where there is nothing else, and what a source distribution holds."""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import os
import subprocess
import sys
import tarfile
import time
import tomllib
import zipfile
from pathlib import Path

import pytest
from support import EXECUTABLE, REPOSITORY, script

WHEELS = sorted(EXECUTABLE.parents[1].glob("wheels/*.whl"))


@pytest.mark.skipif(not WHEELS, reason="no wheel in .venv/wheels: ./dev build makes one")
def test_the_wheel_installs_and_compares_where_there_is_nothing_else() -> None:
    index = {key: value for key, value in os.environ.items() if key.startswith("PIP_")}
    found = script("try_install").try_install(WHEELS[-1], index)
    assert found["quick"] is True


def test_what_is_tried_has_no_network_and_nothing_of_the_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = script("try_install")
    alone = tried.offline()
    if alone:
        shown = subprocess.run([*alone, "cat", "/proc/net/dev"], capture_output=True, text=True, check=True).stdout
        assert [line.split(":")[0].strip() for line in shown.splitlines()[2:]] == ["lo"]
    monkeypatch.setattr(tried.shutil, "which", lambda _: None)
    assert tried.offline() == []
    inside = Path("/opt/venv/lib/python3.11/site-packages/nestwalk/__init__.py")
    paths = [str(inside), str(REPOSITORY / "python"), sys.base_prefix]
    assert tried._foreign(paths, Path("/opt/venv")) == [str(REPOSITORY / "python")]


def wheel(path: Path, folder: str, seconds: int, *, backwards: bool = False) -> Path:
    """A wheel as maturin makes it in ``folder`` at some time."""
    members = {
        "a/__init__.py": b"x = 1\n",
        "a-1.dist-info/sboms/a.cyclonedx.json": f'{{"bom-ref": "path+file://{folder}/crates/a"}}'.encode(),
        "a-1.dist-info/RECORD": b"",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name in sorted(members, reverse=backwards):
            archive.writestr(zipfile.ZipInfo(name, time.gmtime(seconds)[:6]), members[name])
    return path


def test_a_wheel_is_the_same_wherever_and_whenever_it_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build = script("build_wheel")
    made = []
    for number, folder in enumerate(("/one", "/another/folder")):
        monkeypatch.setattr(build, "NAMES", {"/nestwalk": folder})
        source = wheel(tmp_path / "a-1.whl", folder, 1_700_000_000 + 1000 * number, backwards=bool(number))
        build.rewrite(source, tmp_path / f"{number}.whl", 1_600_000_000)
        made.append((tmp_path / f"{number}.whl").read_bytes())
    assert made[0] == made[1]
    with zipfile.ZipFile(tmp_path / "1.whl") as archive:
        text = archive.read("a-1.dist-info/sboms/a.cyclonedx.json").decode()
        assert text == '{"bom-ref": "path+file:///nestwalk/crates/a"}'
        rows = list(csv.reader(archive.read("a-1.dist-info/RECORD").decode().splitlines()))
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        assert ["a-1.dist-info/sboms/a.cyclonedx.json", f"sha256={digest}", str(len(text))] in rows
        assert rows[0][0] == "a-1.dist-info/RECORD"
        assert {info.date_time for info in archive.infolist()} == {time.gmtime(1_600_000_000)[:6]}


def test_the_build_replaces_the_folders_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    build = script("build_wheel")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "12")
    monkeypatch.setenv("RUSTFLAGS", "-C debuginfo=0")
    assert build.epoch() == 12
    found = build.variables(12)
    assert found["RUSTFLAGS"].startswith(f"-C debuginfo=0 --remap-path-prefix={REPOSITORY}=/nestwalk ")
    assert f"-ffile-prefix-map={REPOSITORY}=/nestwalk" in found["CFLAGS"]
    monkeypatch.delenv("SOURCE_DATE_EPOCH")
    assert build.epoch() > 1_700_000_000


@pytest.mark.skipif(not WHEELS, reason="no wheel in .venv/wheels: ./dev build makes one")
def test_the_wheel_has_a_bill_of_its_materials() -> None:
    with zipfile.ZipFile(WHEELS[-1]) as archive:
        (name,) = (name for name in archive.namelist() if "/sboms/" in name)
        found = json.loads(archive.read(name))
    assert found["bomFormat"] == "CycloneDX"
    lock = tomllib.loads((REPOSITORY / "Cargo.lock").read_text(encoding="utf-8"))
    locked = {(package["name"], package["version"]) for package in lock["package"]}
    listed = {(component["name"], component["version"]) for component in found["components"]}
    assert {"pyo3", "serde", "zstd", "nestwalk-machine"} <= {name for name, _ in listed}
    assert listed <= locked


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
