# SPDX-License-Identifier: MIT OR Apache-2.0
"""Builds the wheel so that whoever builds it again, in whatever folder, gets the same bytes.

``python packaging/build_wheel.py [MATURIN'S ARGUMENTS]``: times in the archive are the commit's
(``SOURCE_DATE_EPOCH``), paths of this machine (the sources' folder, cargo's home) are replaced in what is compiled and
in the SBOM, and the archive is written anew, its members in order. Needs maturin and cargo; the same compiler and the
same platform tag make the same wheel. Prints the wheel's SHA-256. ``--rewrite FOLDER`` does the last of it with wheels
that were built elsewhere (in a container, say), in their place.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NAMES = {"/nestwalk": str(ROOT), "/cargo": os.environ.get("CARGO_HOME", str(Path.home() / ".cargo"))}
"""What stands for folders of this machine."""
ZIP_EPOCH = 315_532_800
"""The archive's first second, 1980-01-01."""


def epoch() -> int:
    """The time that everything in the archive has: ``SOURCE_DATE_EPOCH``, else the commit's, else 1980."""
    if "SOURCE_DATE_EPOCH" in os.environ:
        return int(os.environ["SOURCE_DATE_EPOCH"])
    git = shutil.which("git")
    command = [git, "-C", str(ROOT), "log", "-1", "--format=%ct"] if git else ["false"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return int(done.stdout) if done.returncode == 0 else ZIP_EPOCH


def variables(seconds: int) -> dict[str, str]:
    """The surroundings of the build."""
    rust = [f"--remap-path-prefix={path}={name}" for name, path in NAMES.items()]
    c = [f"-ffile-prefix-map={path}={name}" for name, path in NAMES.items()]
    return {
        **os.environ,
        "SOURCE_DATE_EPOCH": str(seconds),
        "NESTWALK_RELEASE": "1",
        "RUSTFLAGS": " ".join([os.environ.get("RUSTFLAGS", ""), *rust]).strip(),
        "CFLAGS": " ".join([os.environ.get("CFLAGS", ""), *c]).strip(),
    }


def without_paths(name: str, content: bytes) -> bytes:
    """A member of the wheel; its SBOM without the folders of this machine."""
    if ".dist-info/sboms/" in name:
        for stands_for, path in NAMES.items():
            content = content.replace(path.encode(), stands_for.encode())
    return content


def rewrite(wheel: Path, target: Path, seconds: int) -> None:
    """Writes ``wheel`` to ``target``: members in order, all of one time, with a fitting RECORD."""
    with zipfile.ZipFile(wheel) as archive:
        modes = {info.filename: info.external_attr for info in archive.infolist()}
        members = {name: without_paths(name, archive.read(name)) for name in sorted(modes)}
    (record,) = (name for name in members if name.endswith(".dist-info/RECORD"))
    lines = io.StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    for name, content in members.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        writer.writerow([name, "", ""] if name == record else [name, f"sha256={digest}", len(content)])
    members[record] = lines.getvalue().encode()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, content in members.items():
            info = zipfile.ZipInfo(name, time.gmtime(max(seconds, ZIP_EPOCH))[:6])
            info.create_system, info.external_attr, info.compress_type = 3, modes[name], zipfile.ZIP_DEFLATED
            archive.writestr(info, content)


def rewrite_all(source: Path, target: Path, seconds: int) -> None:
    """Rewrites every wheel of a folder into another (or the same) one, and prints their sums."""
    for wheel in sorted(source.glob("*.whl")):
        new = target / f"{wheel.name}.new"
        rewrite(wheel, new, seconds)
        new.replace(target / wheel.name)
        print(f"{hashlib.sha256((target / wheel.name).read_bytes()).hexdigest()}  {wheel.name}")


def main() -> int:
    """Builds with the arguments given to maturin; ``--out`` is where the wheel goes (``dist``)."""
    arguments, out = sys.argv[1:], "dist"
    if arguments[:1] == ["--rewrite"]:
        if len(arguments) != 2 or not list(Path(arguments[1]).glob("*.whl")):  # noqa: PLR2004
            sys.stderr.write("build_wheel.py: --rewrite needs a folder with wheels\n")
            return 2
        rewrite_all(Path(arguments[1]), Path(arguments[1]), epoch())
        return 0
    if "--out" in arguments:
        place = arguments.index("--out")
        if place + 1 == len(arguments):
            sys.stderr.write("build_wheel.py: --out needs a folder\n")
            return 2
        out = arguments[place + 1]
        del arguments[place : place + 2]
    seconds = epoch()
    maturin = shutil.which("maturin", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if maturin is None:
        sys.stderr.write("build_wheel.py: needs maturin: python -m pip install maturin\n")
        return 2
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="nestwalk-wheel-") as name:
        command = [maturin, "build", "--release", "--locked", "--out", name, *arguments]
        done = subprocess.run(command, cwd=ROOT, env=variables(seconds), check=False)
        if done.returncode != 0:
            return done.returncode
        rewrite_all(Path(name), folder, seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
