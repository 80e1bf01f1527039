# SPDX-License-Identifier: MIT OR Apache-2.0
"""How the plugins for QEMU are compiled: once, into the user's cache directory, there whole or not at all."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from nestwalk import say
from nestwalk.errors import NestwalkError, printable, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread")
SECONDS_MAX = 120
FIRST_WITH_INTERFACE_2 = 9
"""This version of QEMU and later ones load plugins of interface 2 and above, those before 1 and below.

QEMU: ``QEMU_PLUGIN_MIN_VERSION`` in ``plugins/plugin.h``. What the plugins call is the same in both.
"""


def interface(version: str) -> int:
    """The plugin interface that a QEMU loads which says ``version`` of itself (``--version``)."""
    major = re.search(r"version (\d+)", version)
    return 2 if major is not None and int(major[1]) >= FIRST_WITH_INTERFACE_2 else 1


def run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Runs a compiler, or a QEMU that has nothing to do.

    Raises:
        NestwalkError: When it gives no answer.
    """
    try:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=SECONDS_MAX,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired as error:
        raise NestwalkError(f"{shown(command[0])} gave no answer for {SECONDS_MAX} s; name another one") from error


def complaint(done: subprocess.CompletedProcess[str]) -> str:
    """The first line that a program that failed has said."""
    return printable(done.stderr.strip().partition("\n")[0]) or f"exit code {done.returncode}"


def cache_directory(name: str) -> Path:
    """Where the built plugins of the sort ``name`` are kept."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base.startswith("/") else Path("~/.cache").expanduser()) / "nestwalk" / name


def key(sources: Path, *others: str) -> str:
    """What a built plugin depends on, in short: its ``sources`` (a folder), and the ``others``."""
    digest = hashlib.sha256()
    for path in sorted(sources.iterdir()):
        digest.update(path.name.encode() + path.read_bytes())
    for text in others:
        digest.update(text.encode())
    return digest.hexdigest()[:16]


def build(
    compiler: Sequence[str],
    sources: Sequence[Path],
    target: Path,
    refused: Callable[[str], NestwalkError],
    check: Callable[[Path], None] = lambda _: None,
) -> Path:
    """Compiles ``sources`` into ``target``, which is there only if that worked and ``check`` raised nothing.

    Raises:
        NestwalkError: What ``refused`` makes of the compiler's complaint, or what ``check`` raises.
    """
    part = target.with_name(f".{secrets.token_hex(4)}.so")
    try:
        say.detail(f"building the plugin: {target}")
        done = run([*compiler, *FLAGS, "-o", str(part), *map(str, sources), "-ldl"])
        if done.returncode != 0:
            raise refused(complaint(done))
        check(part)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    return target
