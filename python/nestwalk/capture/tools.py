# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a capture needs of the machine: a QEMU with plugins and, once, a C compiler; as the distribution names them.

The plugin is compiled once for each QEMU, compiler and version of its source, into the user's cache directory
(``$XDG_CACHE_HOME/nestwalk``, ``~/.cache/nestwalk``). It is there whole or not at all, however many builds run at once.
"""

from __future__ import annotations

import os
import shlex
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from nestwalk import qemu_plugin, say
from nestwalk.errors import NestwalkError, shown

SOURCES = Path(__file__).parent / "plugin"
UNITS = ("capture.c", "follow.c")
LIBRARY = "libnestwalk-capture.so"
READY = "nestwalk-capture: plugin interface"
"""What the plugin says when a QEMU has loaded it to try."""

PACKAGES = {
    "qemu": {
        "debian": "apt install qemu-user",
        "fedora": "dnf install qemu-user",
        "arch": "pacman -S qemu-user",
        "suse": "zypper install qemu-linux-user",
    },
    "cc": {
        "debian": "apt install gcc libc6-dev",
        "fedora": "dnf install gcc",
        "arch": "pacman -S gcc",
        "suse": "zypper install gcc",
    },
    "redis": {
        "debian": "apt install redis-server redis-tools",
        "fedora": "dnf install redis",
        "arch": "pacman -S redis",
        "suse": "zypper install redis",
    },
    "valgrind": {
        "debian": "apt install valgrind",
        "fedora": "dnf install valgrind",
        "arch": "pacman -S valgrind",
        "suse": "zypper install valgrind",
    },
}
"""How to install a tool, by family of distributions."""

FAMILIES = {"ubuntu": "debian", "rhel": "fedora", "centos": "fedora", "opensuse": "suse", "sles": "suse"}


def how_to_install(tool: str, release: Path = Path("/etc/os-release")) -> str:
    """The line that installs ``tool`` on this distribution; of an unknown one, the lines of all families."""
    fields: dict[str, str] = {}
    with suppress(OSError, UnicodeError):
        for line in release.read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition("=")
            fields[key] = value.strip("\"'")
    lines = PACKAGES[tool]
    for name in (fields.get("ID", ""), *fields.get("ID_LIKE", "").split()):
        family = name.partition("-")[0]
        family = FAMILIES.get(family, family)
        if family in lines:
            return lines[family]
    return " or ".join(lines.values())


def find(tool: str, name: str) -> str:
    """The path of the program ``name``, of the sort ``tool`` (a key of :data:`PACKAGES`).

    Raises:
        NestwalkError: When it is not there; says how to install it.
    """
    path = shutil.which(name)
    if path is None:
        raise NestwalkError(f"{shown(name)} is not here, and a capture needs it: {how_to_install(tool)}")
    return path


def plugin(qemu: str, compiler: str, *, cache: Path | None = None) -> Path:
    """The plugin for ``qemu``, compiled with the command ``compiler`` unless that has been done before.

    Raises:
        NestwalkError: When there is no compiler, the source does not compile, or QEMU does not load plugins.
    """
    directory = qemu_plugin.cache_directory("capture") if cache is None else cache
    version = qemu_plugin.run([qemu, "--version"]).stdout
    key = qemu_plugin.key(SOURCES, f"{qemu}\n{version}", compiler, os.uname().machine)
    built = directory / key / LIBRARY
    if built.is_file():
        return built
    words = [*_compiler(compiler), f"-DQEMU_PLUGIN_API={qemu_plugin.interface(version)}"]
    try:
        built.parent.mkdir(parents=True, exist_ok=True)
        return _build(qemu, words, built)
    except PermissionError:
        elsewhere = Path(tempfile.mkdtemp(prefix="nestwalk-capture-")) / LIBRARY
        say.detail(f"{shown(directory)} cannot be written; the plugin is built in {elsewhere.parent}")
        return _build(qemu, words, elsewhere)


def _compiler(command: str) -> list[str]:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise NestwalkError(f"--cc {shown(command)}: {error}") from error
    if not words:
        raise NestwalkError("--cc is empty; name a C compiler, such as gcc")
    return [find("cc", words[0]), *words[1:]]


def _build(qemu: str, compiler: list[str], target: Path) -> Path:
    def refused(why: str) -> NestwalkError:
        return NestwalkError(
            f"the capture plugin does not compile with {compiler[0]}: {why}; install the C library's headers "
            f"({how_to_install('cc')}), or name another compiler with --cc"
        )

    sources = [SOURCES / unit for unit in UNITS]
    return qemu_plugin.build(compiler, sources, target, refused, lambda built: _check(qemu, built))


def _check(qemu: str, built: Path) -> None:
    """Asks this QEMU to load the plugin, so that a mismatch is one line and not a lost capture."""
    done = qemu_plugin.run([qemu, "-plugin", f"{built},check=on", "/"])
    if done.stdout.startswith(READY):
        return
    complaint = qemu_plugin.complaint(done)
    if "unknown option" in done.stderr + done.stdout:
        raise NestwalkError(
            f"{shown(qemu)} has no plugins, as every static QEMU (qemu-user-static; Debian 13's qemu-user): name one "
            "with --qemu that was built with --enable-plugins --target-list=x86_64-linux-user, or take --with lackey"
        )
    raise NestwalkError(f"{shown(qemu)} cannot load the capture plugin: {complaint}; name another with --qemu")
