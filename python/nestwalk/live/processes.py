# SPDX-License-Identifier: MIT OR Apache-2.0
"""Which processes there are: by number, by name, in a cgroup, all."""

from __future__ import annotations

import errno
from pathlib import Path

from nestwalk import _native
from nestwalk.errors import NestwalkError, printable, shown, unknown

PROC = Path("/proc")
PID_MAX = 2**22
"""Linux's PID_MAX_LIMIT."""

LISTED_MAX = 8
"""Processes of one name that an error lists."""

_CGROUP_ROOT = Path("/sys/fs/cgroup")


def resolve(target: int | str | Path) -> tuple[int | None, Path | None]:
    """A process's number, or a recording's path.

    Raises:
        NestwalkError: When ``target`` is neither, nor the name of exactly one process.
    """
    if isinstance(target, bool) or not isinstance(target, int | str | Path):
        raise NestwalkError(f"{target!r}: give a process's number, its name, or the path of a recording")
    text = str(target)
    if not text:
        raise NestwalkError("the process is empty; give its number, its name, or the path of a recording")
    digits = text.removeprefix("-")
    if digits.isascii() and digits.isdecimal() and not isinstance(target, Path):
        pid = int(text) if len(text) <= len(str(PID_MAX)) else 0
        if not 0 < pid <= PID_MAX:
            raise NestwalkError(f"{shown(text)}: no process has this number; give one from 1 to {PID_MAX}")
        return pid, None
    path = Path(text)
    if isinstance(target, Path) or "/" in text or _native.inspect_is_recording(text):
        return None, _recording(path)
    found = named(text)
    if not found and path.exists():
        return None, _recording(path)
    if not found:
        raise unknown("process", text, (name for _, name in everyone()))
    if len(found) > 1:
        more = f" and {len(found) - LISTED_MAX} more" if len(found) > LISTED_MAX else ""
        pids = ", ".join(map(str, found[:LISTED_MAX]))
        raise NestwalkError(
            f"{len(found)} processes are called '{shown(text)}': {pids}{more}; give one of these numbers"
        )
    return found[0], None


def is_json(target: str) -> bool:
    """Whether ``target`` is a file of JSON: by its name, or by what it begins with."""
    if target.endswith(".json"):
        return True
    path = Path(target)
    try:
        if not target or not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(64).lstrip().startswith(b"{")
    except (OSError, ValueError):  # a name that no file can have, too
        return False


def _recording(path: Path) -> Path:
    if not path.exists():
        raise NestwalkError(f"{shown(path)}: No such file; give a process's number, its name, or a recording's path")
    if path.exists() and not path.is_file():
        raise NestwalkError(f"{shown(path)}: is no file; give a process's number, its name, or a recording's path")
    return path


def everyone() -> list[tuple[int, str]]:
    """All processes but the kernel's own threads, ascending, with their names.

    Raises:
        NestwalkError: When there is no ``/proc``.
    """
    found = []
    try:
        numbers = sorted(int(entry.name) for entry in PROC.iterdir() if entry.name.isdecimal())
    except OSError as error:
        raise NestwalkError(f"{PROC}: {error.strerror or error}; mount it, or inspect a recording") from error
    for pid in numbers:
        name = name_of(pid)
        if name is not None:
            found.append((pid, name))
    return found


def name_of(pid: int) -> str | None:
    """A process's name (its program's file name, if it tells); None if it has ended or is a thread of the kernel."""
    try:
        words = (PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
        comm = (PROC / str(pid) / "comm").read_text(encoding="utf-8", errors="replace").strip()
        kernel = "Kthread:\t1" in (PROC / str(pid) / "status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    if kernel or (words == [b""] and not _has_memory(pid)):
        return None
    program = words[0].decode("utf-8", "replace").rsplit("/", 1)[-1]
    return printable(program.split(" ", 1)[0].removesuffix(":") or comm)


def _has_memory(pid: int) -> bool:
    """Whether a process without a command line is one: kernels before 6.8 do not say what is a thread of theirs."""
    try:
        return bool((PROC / str(pid) / "statm").read_text(encoding="utf-8").split()[0] != "0")
    except OSError:
        return False


def named(name: str) -> list[int]:
    """Numbers of the processes whose program or thread has this name, this process left out."""
    import os

    found = []
    for pid, program in everyone():
        try:
            comm = (PROC / str(pid) / "comm").read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            continue
        if name in (program, comm) and pid != os.getpid():
            found.append(pid)
    return found


def in_cgroup(path: Path) -> list[tuple[int, str]]:
    """The processes of a cgroup and of those below it: its folder, or its name below ``/sys/fs/cgroup``.

    Raises:
        NestwalkError: When it is none.
    """
    folder = path if path.is_absolute() and path.is_dir() else _CGROUP_ROOT / str(path).lstrip("/")
    if not (folder / "cgroup.procs").is_file():
        raise NestwalkError(
            f"{shown(path)}: is no cgroup; give its folder, or its name below {_CGROUP_ROOT} "
            "(/proc/PID/cgroup has that of a process)"
        )
    pids: set[int] = set()
    for file in [folder / "cgroup.procs", *folder.glob("**/cgroup.procs")]:
        try:
            pids.update(map(int, file.read_text(encoding="utf-8").split()))
        except OSError as error:
            # A threaded cgroup has no processes of its own; one that went away has none any more.
            if error.errno not in (errno.EOPNOTSUPP, errno.ENOENT, errno.ENODEV):
                raise NestwalkError(f"{shown(file)}: {error.strerror or error}") from error
    named_ = ((pid, name_of(pid)) for pid in sorted(pids) if pid > 0)
    return [(pid, name) for pid, name in named_ if name is not None]
