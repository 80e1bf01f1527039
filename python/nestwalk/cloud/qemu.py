# SPDX-License-Identifier: MIT OR Apache-2.0
"""Where QEMU puts a guest's memory: guest-physical ranges and the addresses of QEMU that are behind them.

QEMU is asked over its QMP socket (``-qmp unix:PATH,server=on,wait=off``) with two commands of its human monitor:
``info mtree -f`` for the ranges, ``gpa2hva`` for the address of each. Both only read.
"""

from __future__ import annotations

import json
import re
import socket
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nestwalk.errors import NestwalkError, unreadable

if TYPE_CHECKING:
    from pathlib import Path

TIMEOUT_S = 10.0
LINE_BYTES_MAX = 1 << 24
"""A longer answer is not QEMU's."""

_VIEW = re.compile(r'^ AS "memory"', re.MULTILINE)
_RANGE = re.compile(
    r"^ +([0-9a-f]{16})-([0-9a-f]{16}) \(prio -?\d+, (?:nv-)?(?:ram|rom|romd)\): (\S+)(?: @([0-9a-f]{16}))?",
    re.MULTILINE,
)
_HVA = re.compile(r" is 0x([0-9a-f]+)")


@dataclass(frozen=True)
class Range:
    """A range of guest-physical addresses that one piece of QEMU's memory is behind."""

    gpa: int
    """Guest-physical address of its first byte."""
    hva: int
    """Address in QEMU of the same byte."""
    length: int
    """Bytes."""
    block: str
    """Name of QEMU's memory, such as ``pc.ram``: RAM above and below a hole is one block."""

    @property
    def end(self) -> int:
        """Address in QEMU behind its last byte."""
        return self.hva + self.length


def flat(tree: str) -> list[tuple[int, int, str, int]]:
    """First address, length and block of each range of guest-physical memory, and where in the block it begins.

    Args:
        tree: What ``info mtree -f`` prints.
    """
    views = [part for part in tree.split("FlatView") if _VIEW.search(part)]
    found = []
    for match in _RANGE.finditer(views[0] if views else ""):
        first, last, offset = int(match[1], 16), int(match[2], 16), int(match[4] or "0", 16)
        found.append((first, last + 1 - first, match[3], offset))
    return found


def ranges(tree: str) -> list[tuple[int, int, str]]:
    """First address, length and block of each range of guest-physical memory, from ``info mtree -f``.

    Ranges of one block that are at the same distance from it are one, whatever is between them (VGA memory at 640 KiB,
    ROMs): one segment register maps them. The RAM above the hole below 4 GiB is at another distance.

    Args:
        tree: What QEMU prints.

    Returns:
        Ascending by address.
    """
    found: dict[tuple[str, int], tuple[int, int]] = {}
    for first, length, block, offset in flat(tree):
        key = (block, first - offset)
        low, high = found.get(key, (first, first + length))
        found[key] = (min(low, first), max(high, first + length))
    return sorted((low, high - low, block) for (block, _), (low, high) in found.items())


def layout(path: Path) -> list[Range]:
    """Asks a QEMU where its guest's memory is.

    Args:
        path: QEMU's QMP socket.

    Raises:
        NestwalkError: When it cannot be asked, or answers something else.
    """
    with Monitor(path) as monitor:
        found = []
        for gpa, length, block in ranges(monitor.human("info mtree -f")):
            answer = monitor.human(f"gpa2hva {gpa:#x}")
            match = _HVA.search(answer)
            # Memory of devices has none: it is not RAM that the guest may use.
            if match is not None:
                found.append(Range(gpa, int(match[1], 16), length, block))
    if not found:
        raise NestwalkError(f"{path}: QEMU names no guest memory; its monitor's `info mtree -f` has no range of RAM")
    return found


class Monitor:
    """A connection to a QMP socket, as a context manager."""

    def __init__(self, path: Path) -> None:
        """Names the socket ``path``."""
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(TIMEOUT_S)
        self._file = self._socket.makefile("rb")

    def __enter__(self) -> Monitor:
        """Connects."""
        try:
            self._socket.connect(str(self._path))
            self._greet()
        except TimeoutError as error:
            self._close()
            raise self._silent() from error
        except OSError as error:
            self._close()
            raise unreadable(self._path, error) from error
        except NestwalkError:
            self._close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Lets go of the socket."""
        self._close()

    def _close(self) -> None:
        self._file.close()
        self._socket.close()

    def _greet(self) -> None:
        if "QMP" not in self._line():
            raise self._other()
        self.execute("qmp_capabilities")

    def human(self, line: str) -> str:
        """What a command of the human monitor prints."""
        try:
            value = self.execute("human-monitor-command", {"command-line": line})
        except TimeoutError as error:
            raise self._silent() from error
        except OSError as error:
            raise unreadable(self._path, error) from error
        if not isinstance(value, str):
            raise self._other()
        return value

    def peer(self) -> int:
        """The process at the other end: QEMU, unless another program has made the socket for it."""
        credentials = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        pid: int = struct.unpack("3i", credentials)[0]
        return pid

    def execute(self, command: str, arguments: dict[str, str] | None = None) -> Any:
        """What QEMU returns for a command of QMP."""
        request = {"execute": command, **({"arguments": arguments} if arguments else {})}
        self._socket.sendall(json.dumps(request).encode() + b"\n")
        while True:
            answer = self._line()
            if "error" in answer:
                raise NestwalkError(f"{self._path}: QEMU refuses {command}: {answer['error'].get('desc', '')}")
            if "return" in answer:
                return answer["return"]
            if "event" not in answer:
                raise self._other()

    def _line(self) -> dict[str, Any]:
        data = self._file.readline(LINE_BYTES_MAX)
        try:
            value = json.loads(data)
        except ValueError as error:
            raise self._other() from error
        if not isinstance(value, dict):
            raise self._other()
        return value

    def _other(self) -> NestwalkError:
        return NestwalkError(f"{self._path}: is no QMP socket; start QEMU with -qmp unix:PATH,server=on,wait=off")

    def _silent(self) -> NestwalkError:
        return NestwalkError(
            f"{self._path}: no answer within {TIMEOUT_S:.0f} s; another program (libvirt?) has the socket: "
            "give QEMU a second -qmp"
        )
