# SPDX-License-Identifier: MIT OR Apache-2.0
"""The process that advice is for, and the machine around it: what is known, and why the rest is not.

It is made of what ``nestwalk inspect`` says of the process (its JSON), of ``surroundings`` that are read here, and of
what ``nestwalk probe`` measured, if that is given. A file with all of it (``nestwalk advise --record``) gives the same
advice on another machine.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nestwalk.errors import NestwalkError, shown, unreadable

if TYPE_CHECKING:
    from collections.abc import Mapping

SCHEMA = 1
PROC = Path("/proc")
FILE_BYTES_MAX = 64 << 20
"""Of a recorded inspection; an assumption: those of the largest processes have a few megabytes."""

HOST_PAGES = ("4k", "2m", "mixed", "unknown")
"""What ``nestwalk probe`` may say of the host's pages."""

FOLIO_KIB = 32
"""Of 8 pages: their PTEs share a line."""

VMMS = re.compile(r"qemu-system-.*|qemu-kvm|cloud-hyperviso.*|firecracker|crosvm|kvm")
"""Programs whose memory is that of a VM."""


@dataclass(frozen=True)
class Subject:
    """A process and its machine. What is not known is None here, and :meth:`why` has the reason."""

    facts: Mapping[str, Any]
    """As ``nestwalk inspect --json`` has them."""
    surroundings: Mapping[str, Any]
    """``container``, ``ptemagnet``, ``vcpus``: see :func:`surroundings`."""
    probe: Mapping[str, Any] | None = None
    """As ``nestwalk probe --json`` has it; None if it was not given."""

    def value(self, *path: str) -> Any:
        """What is at ``path`` of the facts; None where it is not known."""
        found: Any = self.facts
        for key in path:
            if not isinstance(found, dict) or "unavailable" in found or key not in found:
                return None
            found = found[key]
        return None if isinstance(found, dict) and "unavailable" in found else found

    def why(self, *path: str) -> str:
        """Why what is at ``path`` is not known: a sentence."""
        found: Any = self.facts
        for key in path:
            if isinstance(found, dict) and "unavailable" in found:
                break
            found = found.get(key) if isinstance(found, dict) else None
        if isinstance(found, dict) and isinstance(found.get("unavailable"), str):
            return str(found["unavailable"])
        return "unavailable, because the inspection does not have it"

    @property
    def name(self) -> str:
        """The process's name."""
        return str(self.value("process", "name") or "the process")

    @property
    def where(self) -> str:
        """``vm``, ``bare metal`` or ``unknown``."""
        if "hypervisor" not in self.facts:
            return "unknown"
        found = self.facts["hypervisor"]
        if isinstance(found, dict):
            return "unknown"
        return "bare metal" if found is None else "vm"

    @property
    def is_vmm(self) -> bool:
        """Whether its memory is that of a VM, so that this machine is the VM's host."""
        return VMMS.fullmatch(self.name) is not None

    @property
    def container(self) -> str | None:
        """The sort of container that it runs in; None if in none, or if that is not known."""
        found = self.surroundings.get("container")
        return found if isinstance(found, str) else None

    @property
    def host_pages(self) -> str:
        """One of :data:`HOST_PAGES`."""
        return str((self.probe or {}).get("host_pages", "unknown"))

    @property
    def thp_for_it(self) -> bool | None:
        """Whether a page fault of this process may map 2 MiB without its asking; None if not known."""
        enabled = self.value("settings", "thp_enabled")
        if enabled is None:
            return None
        return enabled == "always" and self.value("process", "thp_allowed") is not False

    @property
    def pmd_share(self) -> float | None:
        """The share of its memory that is mapped by 2 MiB pages."""
        found = self.value("huge_pages", "pmd_mapped_share")
        return None if found is None else float(found)

    @property
    def fragmentation(self) -> float | None:
        """Lines of host PTEs a group of 8 pages, 1 to 8, by the frames that the guest has given it."""
        found = self.value("host_pt_fragmentation", "value")
        return None if found is None else float(found)

    @property
    def mthp_32(self) -> str | None:
        """The setting of 32 KiB folios, ``inherit`` resolved; None where the kernel has none, or it is not known."""
        sizes = self.value("settings", "mthp") or []
        found = next((str(size["enabled"]) for size in sizes if size.get("kib") == FOLIO_KIB), None)
        return self.value("settings", "thp_enabled") if found == "inherit" else found

    def to_json(self) -> dict[str, Any]:
        """What ``--record`` writes."""
        kept = {"schema": SCHEMA, **self.facts, "surroundings": dict(self.surroundings)}
        return kept if self.probe is None else {**kept, "probe": dict(self.probe)}


def of_target(target: str, pid: int | None, probe: Mapping[str, Any] | None = None) -> Subject:
    """The process ``pid``; or, without one, what the file ``target`` keeps of one: JSON, or a recording.

    Raises:
        NestwalkError: As :func:`of_process` and :func:`of_file`.
    """
    from nestwalk.live import processes

    if pid is not None:
        return of_process(pid, probe)
    if processes.is_json(target):
        return of_file(Path(target), probe)
    from nestwalk.live import inspect

    return Subject(inspect(Path(target)).to_json(), dict(_NOT_RECORDED), probe)


_NOT_RECORDED = {
    key: {"unavailable": "unavailable, because the recorded inspection does not say it"}
    for key in ("container", "ptemagnet")
}


def of_process(pid: int, probe: Mapping[str, Any] | None = None) -> Subject:
    """The process ``pid``.

    Raises:
        NestwalkError: When there is no such process, it ended meanwhile, or it may not be read.
    """
    from nestwalk.live import inspect

    facts = inspect(pid).to_json()
    around = surroundings(pid)
    if not (PROC / str(pid)).exists():
        raise NestwalkError(f"process {pid} ended while it was looked at; give the pid of one that runs on")
    return Subject(facts, around, probe)


def of_file(path: Path, probe: Mapping[str, Any] | None = None) -> Subject:
    """What ``nestwalk inspect --json`` or ``nestwalk advise --record`` wrote.

    Raises:
        NestwalkError: When it cannot be read, or is something else.
    """
    facts = read_json(path, "the output of `nestwalk inspect PID --json`")
    if not isinstance(facts.get("settings"), dict) or not isinstance(facts.get("process"), dict):
        what = "is no inspection of one process (it has no 'process' and 'settings')"
        raise NestwalkError(f"{shown(path)}: {what}; give the output of `nestwalk inspect PID --json`")
    around = facts.get("surroundings", _NOT_RECORDED)
    own_probe = facts.get("probe")
    if not isinstance(around, dict) or not isinstance(own_probe, dict | None):
        raise NestwalkError(f"{shown(path)}: 'surroundings' or 'probe' is no object; record it again")
    subject = Subject(facts, around, probe if probe is not None else own_probe)
    _check(subject, path)
    return subject


_NUMBERS = {
    "huge_pages.pmd_mapped_share": (0.0, 1.0),
    "host_pt_fragmentation.value": (0.0, 8.0),
    "page_tables.bytes": (0.0, 2.0**63),
    "settings.buddyinfo.order9_bytes": (0.0, 2.0**64),
}
_KINDS = {
    "process.name": str,
    "process.thp_allowed": bool,
    "settings.kernel": str,
    "settings.mthp": list,
    "hypervisor": str,
}
"""What the values that advice goes by have to be, where they are known."""


def _check(subject: Subject, path: Path) -> None:
    """Refuses a file whose values are not of the sort that they should be."""
    for key, (least, most) in _NUMBERS.items():
        found = subject.value(*key.split("."))
        good = isinstance(found, int | float) and not isinstance(found, bool) and least <= found <= most
        if found is not None and not good:
            raise NestwalkError(f"{shown(path)}: {key} has to be a number from {least:g} to {most:g}; record it again")
    for key, kind in _KINDS.items():
        found = subject.value(*key.split("."))
        if found is not None and not isinstance(found, kind):
            raise NestwalkError(f"{shown(path)}: {key} has to be of type {kind.__name__}; record it again")
    enabled = subject.value("settings", "thp_enabled")
    if enabled not in (None, "always", "madvise", "never"):
        raise NestwalkError(f"{shown(path)}: settings.thp_enabled is none of always, madvise, never; record it again")
    sizes = subject.value("settings", "mthp") or []
    if not all(isinstance(size, dict) and isinstance(size.get("enabled"), str) for size in sizes):
        raise NestwalkError(f"{shown(path)}: settings.mthp has to be a list of sizes; record it again")
    if subject.host_pages not in HOST_PAGES:
        raise NestwalkError(f"{shown(path)}: host_pages is none of {', '.join(HOST_PAGES)}; probe again")


def read_probe(path: Path) -> dict[str, Any]:
    """What ``nestwalk probe --json`` wrote.

    Raises:
        NestwalkError: When it cannot be read, or is something else.
    """
    found = read_json(path, "the output of `nestwalk probe --json`")
    if found.get("host_pages") not in HOST_PAGES:
        what = f"has no host_pages of {', '.join(HOST_PAGES)}"
        raise NestwalkError(f"{shown(path)}: {what}; give the output of `nestwalk probe --json`")
    return found


def read_json(path: Path, wanted: str) -> dict[str, Any]:
    """The object in the JSON file ``path``.

    Raises:
        NestwalkError: When it cannot be read, or is none; with what was wanted.
    """
    try:
        if path.exists() and not path.is_file():
            raise NestwalkError(f"{shown(path)}: is no regular file; give {wanted}")
        if path.stat().st_size > FILE_BYTES_MAX:
            raise NestwalkError(f"{shown(path)}: is larger than {FILE_BYTES_MAX >> 20} MiB; give {wanted}")
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise unreadable(path, error) from error
    except (ValueError, RecursionError) as error:
        raise NestwalkError(f"{shown(path)}: is no JSON; give {wanted}") from error
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        raise NestwalkError(f'{shown(path)}: is no object with "schema": {SCHEMA}; give {wanted}')
    return found


def surroundings(pid: int) -> dict[str, Any]:
    """What inspections leave out: ``container`` (its sort, or None) and ``ptemagnet`` (the sysctl, or None).

    What may not be read is ``{"unavailable": ...}``.
    """
    return {"container": container(pid), "ptemagnet": _ptemagnet()}


_CONTAINERS = (
    ("docker", re.compile(r"docker|moby")),
    ("Kubernetes", re.compile(r"kubepods")),
    ("podman", re.compile(r"libpod")),
    ("LXC", re.compile(r"/lxc[./]")),
    ("containerd", re.compile(r"containerd")),
)
"""Sorts of containers, by what their runtimes call cgroups."""


def container(pid: int) -> str | dict[str, str] | None:
    """The sort of container that a process runs in; None if in none.

    By its cgroup's name, by the PID namespace (`/proc/PID/status`, `NSpid`), and by the files that runtimes leave.
    """
    try:
        cgroup = (PROC / str(pid) / "cgroup").read_text(encoding="utf-8", errors="replace")
        status = (PROC / str(pid) / "status").read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        return {"unavailable": f"unavailable, because /proc/{pid}/cgroup cannot be read ({error.strerror})"}
    for name, pattern in _CONTAINERS:
        if pattern.search(cgroup):
            return name
    spaces = re.search(r"^NSpid:\s+(.*)$", status, re.MULTILINE)
    if spaces and len(spaces[1].split()) > 1:
        return "a PID namespace of its own"
    marks = {"docker": Path("/.dockerenv"), "podman": Path("/run/.containerenv")}
    return next((name for name, mark in marks.items() if mark.exists()), None)


def _ptemagnet() -> int | dict[str, str] | None:
    path = PROC / "sys" / "vm" / "ptemagnet"
    try:
        return int(path.read_text(encoding="utf-8")) if path.exists() else None
    except (OSError, ValueError):
        return {"unavailable": f"unavailable, because {path} cannot be read"}
