# SPDX-License-Identifier: MIT OR Apache-2.0
"""The plugin, compiled once for each version of its source and of QEMU into the user's cache directory."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

from nestwalk import files, qemu_plugin
from nestwalk.errors import NestwalkError, shown

SOURCES = Path(__file__).parent / "plugin"
UNITS = ("vmtrace.c", "cr3.c")
LIBRARY = "libnestwalk-vmtrace.so"


def qemu(name: str) -> str:
    """The path of the program ``name``.

    Raises:
        NestwalkError: When it is not there.
    """
    path = shutil.which(name)
    if path is None:
        raise NestwalkError(f"{shown(name)} is not here; install it (on Debian: apt install qemu-system-x86)")
    return path


def plugin(emulator: str, compiler: str) -> Path:
    """The plugin for the QEMU ``emulator``, compiled with the command ``compiler`` unless that has been done before.

    Raises:
        NestwalkError: When there is no compiler, or the source does not compile.
    """
    version = qemu_plugin.run([emulator, "--version"]).stdout
    cache = qemu_plugin.cache_directory("vm")
    built = cache / qemu_plugin.key(SOURCES, emulator, version, compiler) / LIBRARY
    if not built.is_file():
        with files.telling(cache, "the plugin cannot be kept there"):
            built.parent.mkdir(parents=True, exist_ok=True)
            _build(compiler, version, built)
    return built


def _build(compiler: str, version: str, target: Path) -> None:
    words = shlex.split(compiler)
    if not words or shutil.which(words[0]) is None:
        raise NestwalkError(
            f"no C compiler {shown(compiler)}, which is needed once; on Debian: apt install gcc libc6-dev"
        )

    def refused(why: str) -> NestwalkError:
        return NestwalkError(
            f"the plugin does not compile with {words[0]}: {why}; on Debian: apt install gcc libc6-dev"
        )

    sources = [SOURCES / unit for unit in UNITS]
    qemu_plugin.build([*words, f"-DPLUGIN_VERSION={qemu_plugin.interface(version)}"], sources, target, refused)
