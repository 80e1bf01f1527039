# SPDX-License-Identifier: MIT OR Apache-2.0
"""The user's QEMU command line: what a capture adds to it, and what in it stands in the way."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from nestwalk.errors import NestwalkError, shown

BACKEND = "nestwalk-ram"
"""The name of the memory that is added."""
MEMORY_DEFAULT = 128 << 20
"""Of QEMU's machines for x86-64, in bytes."""
_UNITS = {"": 1 << 20, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"(\d+)([bkmgt]?)b?", re.IGNORECASE)


@dataclass(frozen=True)
class CommandLine:
    """A command line of QEMU that a capture can use."""

    words: tuple[str, ...]
    memory_bytes: int
    """Of the guest."""
    backend: Path | None
    """The user's own memory file, if there is one."""

    def with_capture(self, *, memory: Path, socket: Path, plugin: str | None) -> list[str]:
        """The words to run: memory as the file ``memory``, a QMP socket, and the plugin with its arguments."""
        added = ["-qmp", f"unix:{_escaped(socket)},server=on,wait=off"]
        if self.backend is None:
            size = f"size={self.memory_bytes}"
            added += ["-object", f"memory-backend-file,id={BACKEND},mem-path={_escaped(memory)},{size},share=on"]
            added += ["-machine", f"memory-backend={BACKEND}"]
        if plugin is not None:
            added += ["-plugin", plugin]
        return [*self.words, *added]


def _escaped(path: Path) -> str:
    """``path`` as a value of QEMU's options, in which a comma is written twice."""
    return str(path).replace(",", ",,")


def parse(words: list[str]) -> CommandLine:
    """What the command line ``words`` says of memory and acceleration.

    Raises:
        NestwalkError: When an option keeps the guest from being captured; says which, and what to do.
    """
    if not words:
        raise NestwalkError("no command line of QEMU; give it behind --, as: -- qemu-system-x86_64 -m 2G -kernel ...")
    name = Path(words[0]).name
    if name != "qemu-system-x86_64":
        raise NestwalkError(
            f"{shown(words[0])}: give qemu-system-x86_64 and its options behind --; no other is captured"
        )
    pairs = _options(words[1:])
    _check_accelerator(pairs)
    for option, value in pairs:
        if option == "daemonize":
            raise NestwalkError("-daemonize: the capture needs QEMU in the foreground; leave it out")
        if option == "numa" and "memdev=" in value:
            raise NestwalkError("-numa with memdev=: give the guest one node without memdev; its memory becomes a file")
        if option in ("incoming", "loadvm", "snapshot") and option != "snapshot":
            raise NestwalkError(f"-{option}: a guest that is restored has other memory; start it afresh")
    return CommandLine(tuple(words), _memory(pairs), _backend(pairs))


def _options(words: list[str]) -> list[tuple[str, str]]:
    """Options with their values, as QEMU takes them: one or two dashes, the value in the next word."""
    found = []
    for word, after in zip(words, [*words, ""][1:], strict=True):
        if word.startswith("-") and len(word) > 1:
            found.append((word.lstrip("-"), "" if after.startswith("-") else after))
    return found


def _check_accelerator(pairs: list[tuple[str, str]]) -> None:
    for option, value in pairs:
        accelerators = []
        if option == "enable-kvm":
            accelerators = ["kvm"]
        elif option == "accel":
            accelerators = [value.partition(",")[0]]
        elif option in ("machine", "M"):
            accelerators = [part[6:] for part in value.split(",") if part.startswith("accel=")]
        for accelerator in accelerators:
            if not accelerator.startswith("tcg"):
                place = f"-{option}" + (f" {shown(value)}" if value and option != "enable-kvm" else "")
                raise NestwalkError(
                    f"{place}: accesses are seen under emulation only; use -accel tcg, or take the page tables alone, "
                    "which works with KVM: nestwalk vm tables"
                )


def _memory(pairs: list[tuple[str, str]]) -> int:
    size = MEMORY_DEFAULT
    for option, value in pairs:
        if option != "m":
            continue
        parts = [part.removeprefix("size=") for part in value.split(",") if "=" not in part or part.startswith("size=")]
        match = _SIZE.fullmatch(parts[0]) if parts else None
        if match is None:
            raise NestwalkError(f"-m {shown(value)}: is no size of memory such as 2G")
        size = int(match[1][:9]) * _UNITS[match[2].lower()]
    return size


def _backend(pairs: list[tuple[str, str]]) -> Path | None:
    """The file of the machine's memory, if the user has made it one."""
    chosen = None
    objects = {}
    for option, value in pairs:
        fields = dict(part.partition("=")[::2] for part in value.split(","))
        if option in ("machine", "M"):
            chosen = fields.get("memory-backend", chosen)
        elif option == "object" and value.startswith("memory-backend-"):
            objects[fields.get("id", "")] = (value.partition(",")[0], fields)
    if chosen is None:
        return None
    kind, fields = objects.get(chosen, ("", {}))
    if kind != "memory-backend-file" or fields.get("share") != "on" or not Path(fields.get("mem-path", "")).name:
        raise NestwalkError(
            f"memory-backend={shown(chosen)}: make it memory-backend-file with mem-path= and share=on, or leave it out "
            "for a file of Nestwalk's"
        )
    return Path(fields["mem-path"])
