# SPDX-License-Identifier: MIT OR Apache-2.0
"""What is to be captured: an ELF program of one of three architectures, or a script, whose interpreter is one."""

from __future__ import annotations

import os
import shutil
import struct
from dataclasses import dataclass
from pathlib import Path

from nestwalk import files
from nestwalk.errors import NestwalkError, shown

ELF = b"\x7fELF"
MACHINES = {62: "x86_64", 183: "aarch64", 243: "riscv64"}
"""By ELF's ``e_machine``: what QEMU calls the architecture."""
HEAD_BYTES = 256
"""Bytes of a file that tell what it is: as many as the kernel reads (``BINPRM_BUF_SIZE``)."""
SCRIPTS_MAX = 4
"""Interpreters that are scripts themselves, in a row; the kernel's own limit (``fs/exec.c``)."""


@dataclass(frozen=True)
class Program:
    """A program with its arguments, ready to be run under QEMU."""

    path: str
    """The ELF file."""
    name: str
    """What it finds as its own name (``argv[0]``)."""
    arguments: tuple[str, ...]
    architecture: str
    """As QEMU calls it."""
    title: str
    """For tables: the last part of what the user named."""

    @property
    def command(self) -> str:
        """The command line, for the trace."""
        return " ".join((self.name, *self.arguments))


def find(words: list[str]) -> Program:
    """The program that a command line names.

    Raises:
        NestwalkError: When there is none, or it is of another kind.
    """
    name, arguments = words[0], tuple(words[1:])
    title = Path(name).name
    for _ in range(SCRIPTS_MAX + 1):
        path = shutil.which(name)
        if path is None:
            raise NestwalkError(f"{shown(name)}: no such program; name a program file, or one on the PATH")
        head = _head(Path(path))
        if head.startswith(ELF):
            return Program(path, name, arguments, _architecture(path, head), title)
        interpreter, *first = _interpreter(path, head)
        name, arguments = interpreter, (*first, path, *arguments)
    raise NestwalkError(f"{shown(words[0])}: more than {SCRIPTS_MAX} scripts are each other's interpreters")


def _head(path: Path) -> bytes:
    with files.telling(path, "cannot be read"), path.open("rb") as file:
        return file.read(HEAD_BYTES)


def _architecture(path: str, head: bytes) -> str:
    is_64 = len(head) >= 20 and head[4] == 2  # noqa: PLR2004 (ELFCLASS64)
    machine = struct.unpack_from("<H", head, 18)[0] if is_64 else None
    found = MACHINES.get(machine) if machine is not None else None
    if found is None:
        raise NestwalkError(
            f"{shown(path)}: is for another machine; a capture takes 64-bit {', '.join(MACHINES.values())}"
        )
    return found


def _interpreter(path: str, head: bytes) -> list[str]:
    """The interpreter of a script, and its one argument if there is one (``fs/binfmt_script.c``)."""
    line = head.split(b"\n", 1)[0]
    words = os.fsdecode(line[2:]).strip(" \t").split(None, 1) if line.startswith(b"#!") else []
    if not words:
        raise NestwalkError(f"{shown(path)}: is neither an ELF program nor a script with #!; name a program")
    return words
