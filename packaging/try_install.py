# SPDX-License-Identifier: MIT OR Apache-2.0
"""Installs a wheel or a source distribution as a user would who has nothing else, and makes its main job.

``python packaging/try_install.py FOLDER_OR_FILE``: a fresh environment, no variables but PATH, a home of its own, a
working directory in which nothing can be written. Once it is installed, PATH has the system's folders only, and where
``unshare`` can make one, what runs is in a network namespace without a network. Only the standard library is needed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

SYSTEM_PATH = "/usr/bin:/bin"
INTERFACES = "import socket; print(*(name for _, name in socket.if_nameindex() if name != 'lo'))"
WHERE = "import sys, nestwalk; print(nestwalk.__file__, *sys.path, sep='\\n')"
ROWS = ("native-4k", "vm-4k", "vm-thp")


def try_install(package: Path, python_index: dict[str, str] | None = None) -> dict[str, object]:
    """Installs ``package`` and compares the bundled trace; returns what `compare --json` printed.

    Args:
        package: A wheel or a source distribution.
        python_index: Variables that pip needs here, such as ``PIP_INDEX_URL``.

    Raises:
        RuntimeError: When something fails; it has what was printed.
    """
    with tempfile.TemporaryDirectory(prefix="nestwalk-install-") as name:
        folder = Path(name)
        home, cwd = folder / "home", folder / "cwd"
        home.mkdir()
        cwd.mkdir()
        environment = folder / "venv"
        venv.create(environment, with_pip=True)
        variables = {"PATH": os.environ["PATH"], "HOME": str(home), **(python_index or {})}
        if package.suffix != ".whl":  # an sdist is built: cargo needs its home
            variables |= {key: os.environ[key] for key in ("CARGO_HOME", "RUSTUP_HOME") if key in os.environ}
            variables.setdefault("CARGO_HOME", str(Path.home() / ".cargo"))
            variables.setdefault("RUSTUP_HOME", str(Path.home() / ".rustup"))
        pip = [environment / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        _run([*pip, package.absolute()], cwd, variables)
        cwd.chmod(0o555)
        variables = {"PATH": SYSTEM_PATH, "HOME": str(home)}
        alone = offline()
        python = environment / "bin" / "python"
        if alone and _run([*alone, python, "-I", "-c", INTERFACES], cwd, variables).strip():
            raise RuntimeError("there is a network where there should be none")
        foreign = _foreign(_run([python, "-I", "-c", WHERE], cwd, variables).splitlines(), environment)
        if foreign:
            raise RuntimeError(f"the package is found outside its environment: {foreign}")
        only = [word for row in ROWS for word in ("--only", row)]
        command = [*alone, environment / "bin" / "nestwalk", "compare", "--quick", "--json", "--jobs", "1", *only]
        found: dict[str, object] = json.loads(_run(command, cwd, variables))
        rows = found["rows"]
        if not isinstance(rows, list) or [row["configuration"] for row in rows] != list(ROWS):
            raise RuntimeError(f"compare gave other rows: {rows}")
        page = environment / "share" / "man" / "man1" / "nestwalk-compare.1"
        if not page.is_file():
            raise RuntimeError(f"{page.relative_to(environment)}: no man page was installed")
        listed = json.loads(_run([environment / "bin" / "nestwalk", "list", "--json"], cwd, variables))
        for kind in ("machines", "costs", "scenarios"):
            if not listed[kind]:
                raise RuntimeError(f"the package has no {kind}")
        return found


def offline() -> list[str | Path]:
    """What a command is put behind so that it has no network; nothing where this system does not let us."""
    tool = shutil.which("unshare")
    for options in (["-n"], ["-r", "-n"]):
        if tool and subprocess.run([tool, *options, "true"], capture_output=True, check=False).returncode == 0:
            return [tool, *options]
    return []


def _foreign(paths: list[str], environment: Path) -> list[str]:
    """Of the package's place and Python's path, what belongs neither to the environment nor to Python itself."""
    own = [environment.resolve(), Path(sys.base_prefix).resolve(), Path(sys.base_exec_prefix).resolve()]
    return [path for path in paths if not any(Path(path).resolve().is_relative_to(place) for place in own)]


def _run(command: list[str | Path], cwd: Path, variables: dict[str, str]) -> str:
    done = subprocess.run(command, cwd=cwd, env=variables, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}: exit {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def main() -> int:
    """Tries every package of the folder, or the file, named by the first argument."""
    if len(sys.argv) != 2:  # noqa: PLR2004
        sys.stderr.write("usage: try_install.py FOLDER_OR_FILE\n")
        return 2
    path = Path(sys.argv[1])
    packages = sorted([*path.glob("*.whl"), *path.glob("*.tar.gz")]) if path.is_dir() else [path]
    if not packages:
        sys.stderr.write(f"{path}: has no wheel and no source distribution\n")
        return 2
    for package in packages:
        try_install(package, {key: value for key, value in os.environ.items() if key.startswith("PIP_")})
        print(f"{package.name}: installs and compares")
    return 0


if __name__ == "__main__":
    sys.exit(main())
