# SPDX-License-Identifier: MIT OR Apache-2.0
"""What Linux tells of the physical memory behind a process, and of what is free: read live, or from recorded files.

A recording is a directory with files of the kernel's own contents:

==================  =====================================================================================
``maps``            ``/proc/PID/maps``
``pagemap``         the entries of ``/proc/PID/pagemap`` for the mappings in ``maps``, one mapping after another
``buddyinfo``       ``/proc/buddyinfo``
``kpageflags``      ``/proc/kpageflags`` (optional; with it, adjacency of free memory is known)
``guest``           per mapping: the guest-physical address of its first byte, in hexadecimal (optional)
``hugepages``       per line: page size in kB, pages of the pool, free ones (``/sys/kernel/mm/hugepages``)
==================  =====================================================================================
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from nestwalk import _native, files, folders
from nestwalk.errors import NestwalkError, shown, unreadable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PAGE_BYTES = 4096
ENTRY_BYTES = 8
CHUNK_PAGES = 1 << 18
"""Pages whose entries are read at once: 1 GiB of memory, 2 MiB of entries."""

PRESENT = 1 << 63
SWAPPED = 1 << 62
FILE_OR_SHARED = 1 << 61
"""The page is not anonymous: it belongs to a file, to shared memory, or to a memfd or hugetlbfs file."""
EXCLUSIVE = 1 << 56
"""One process has the page, and has it once. The kernel's page of zeros never has this bit."""
PFN_MASK = (1 << 55) - 1
"""Bits of a pagemap entry. Source: Documentation/admin-guide/mm/pagemap.rst."""

KPF_BUDDY = 1 << 10
"""Flag of a page of a free block of the buddy allocator. Source: the same."""

_COUNT = re.compile(r"[0-9]{1,18}")

HUGEPAGES = Path("/sys/kernel/mm/hugepages")
ADDRESS_MAX = 1 << 57


NO_FILE = "00:00 0"
"""Device and inode of anonymous memory in ``/proc/PID/maps``."""


@dataclass(frozen=True)
class Mapping:
    """A range of a process's addresses."""

    start: int
    end: int
    permissions: str
    name: str
    file: str = NO_FILE
    """Device and inode, as in ``/proc/PID/maps``; those of anonymous memory are 0."""
    gpa: int | None = None
    """Guest-physical address of its first byte, where it is known."""

    @property
    def executable(self) -> bool:
        """Whether the processor may run code from it."""
        return self.permissions[2] == "x"

    @property
    def anonymous(self) -> bool:
        """Whether it is memory of the process alone, without a file."""
        return self.file.endswith(" 0")

    @property
    def pages(self) -> int:
        """How many pages of 4 KiB it has."""
        return (self.end - self.start) // PAGE_BYTES


@dataclass(frozen=True)
class Pool:
    """The hugetlb pool of one page size."""

    page_kib: int
    pages: int
    free: int


class Source:
    """Where the files are: ``/proc`` of a process, or a recording."""

    def __init__(self, *, pid: int | None = None, recording: Path | None = None) -> None:
        """Of a process, or of a recording."""
        self.pid = pid
        self.recording = recording
        base = recording if recording is not None else Path("/proc") / str(pid)
        self._maps = base / "maps"
        self._pagemap = base / "pagemap"
        shared = recording if recording is not None else Path("/proc")
        self._buddyinfo = shared / "buddyinfo"
        self._kpageflags = shared / "kpageflags"

    def mappings(self) -> list[Mapping]:
        """All mappings but the kernel's own.

        Raises:
            NestwalkError: When they cannot be read.
        """
        if self.pid is not None and not self._maps.exists():
            raise NestwalkError(
                f"there is no process {self.pid}; give the pid of a running VM (of its VMM, on the host)"
            )
        self._check_recording()
        text = _text(self._maps)
        try:
            rows = _native.proc_mappings(text)
        except NestwalkError as error:
            raise NestwalkError(f"{self._maps.parent}/{error}") from error
        return self._placed(
            [Mapping(start, end, permissions, name, file or NO_FILE) for start, end, permissions, file, name in rows]
        )

    def _check_recording(self) -> None:
        """A pipe would block."""
        if self.recording is None:
            return
        for name in ("maps", "pagemap", "guest", "buddyinfo", "kpageflags", "hugepages"):
            path = self.recording / name
            if path.exists() and not path.is_file():
                raise NestwalkError(f"{path}: is no regular file; record it again")

    def _placed(self, found: list[Mapping]) -> list[Mapping]:
        """The mappings of a recording with the guest-physical addresses that it has."""
        if self.recording is None or not (path := self.recording / "guest").exists():
            return found
        lines = _text(path).split()
        try:
            gpas = [int(line, 16) for line in lines]
        except ValueError:
            gpas = []
        if len(gpas) != len(found) or any(gpa % PAGE_BYTES or not 0 <= gpa < ADDRESS_MAX for gpa in gpas):
            raise NestwalkError(
                f"{path}: has to have a guest-physical address (hexadecimal) for each of the {len(found)} mappings"
            )
        return [replace(one, gpa=gpa) for one, gpa in zip(found, gpas, strict=True)]

    def entries(self, mapping: Mapping, all_mappings: Sequence[Mapping]) -> Iterator[bytes]:
        """The pagemap entries of a mapping, 8 bytes each, so many at a time.

        Raises:
            NestwalkError: When they cannot be read, or end too early.
        """
        if self.recording is None:
            first = mapping.start // PAGE_BYTES
        else:
            first = sum(one.pages for one in all_mappings[: all_mappings.index(mapping)])
        try:
            for at in range(first, first + mapping.pages, CHUNK_PAGES):
                count = min(first + mapping.pages - at, CHUNK_PAGES)
                data = _native.proc_words(str(self._pagemap), at, count)
                if len(data) < count * ENTRY_BYTES:
                    raise NestwalkError(
                        f"{self._pagemap}: ends within the mapping at {mapping.start:#x}; "
                        + ("record it again" if self.recording else "the mapping is gone; try again")
                    )
                yield data
        except PermissionError as error:
            raise NestwalkError(
                f"{self._pagemap}: no permission; run as the owner of the process, or as root"
            ) from error
        except OSError as error:
            raise unreadable(self._pagemap, error) from error

    def buddyinfo(self) -> dict[int, int] | str:
        """Free blocks by order (pages are 4 KiB << order), of all nodes and zones; or why they are not known."""
        try:
            text = self._buddyinfo.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            return f"{self._buddyinfo} cannot be read ({error.strerror or error})"
        try:
            return dict(enumerate(_native.proc_buddyinfo(text)))
        except NestwalkError:
            return f"{self._buddyinfo} is not a buddyinfo of Linux"

    def pools(self) -> list[Pool] | str:
        """The hugetlb pools, the largest pages first; or why they are not known."""
        try:
            found = self._recorded_pools() if self.recording is not None else _live_pools()
        except OSError as error:
            return f"{error.filename} cannot be read ({error.strerror or error})"
        except ValueError:
            return "the sizes of the hugetlb pools cannot be read"
        return sorted(found, key=lambda pool: -pool.page_kib)

    def _recorded_pools(self) -> list[Pool]:
        text = (self._buddyinfo.parent / "hugepages").read_text(encoding="utf-8")
        found = []
        for line in filter(str.strip, text.splitlines()):
            fields = line.split()
            if len(fields) != len(Pool.__dataclass_fields__) or not all(map(_COUNT.fullmatch, fields)):
                raise ValueError(line)
            size, pages, free = map(int, fields)
            if not size or size % (PAGE_BYTES // 1024) or free > pages:
                raise ValueError(line)
            found.append(Pool(size, pages, free))
        return found

    def free_runs(self) -> pl.Series | str:
        """Lengths in pages of all runs of free memory of the buddy allocator; or why they are not known."""
        if not self._kpageflags.exists():
            return "there is no kpageflags, which alone tells which free blocks are next to each other"
        try:
            return _free_runs(self._kpageflags)
        except PermissionError:
            return "/proc/kpageflags, which tells which free blocks are next to each other, can be read by root only"
        except OSError as error:
            return f"{self._kpageflags} cannot be read ({error.strerror or error})"

    def record(self, folder: Path, chosen: Sequence[Mapping]) -> None:
        """Writes what was read of the mappings ``chosen`` as a recording, whole or not at all.

        Raises:
            NestwalkError: When it cannot be read or written.
        """
        check_new(folder)
        maps = [f"{one.start:x}-{one.end:x} {one.permissions} 00000000 {one.file} {one.name}" for one in chosen]
        pools = self.pools()
        with folders.filling(folder) as fresh:
            (fresh / "maps").write_text("\n".join(maps) + "\n", encoding="utf-8")
            if all(one.gpa is not None for one in chosen):
                (fresh / "guest").write_text("".join(f"{one.gpa:x}\n" for one in chosen), encoding="utf-8")
            with (fresh / "pagemap").open("wb") as file:
                for one in chosen:
                    for part in self.entries(one, chosen):
                        file.write(part)
            if isinstance(pools, list):
                text = "".join(f"{pool.page_kib} {pool.pages} {pool.free}\n" for pool in pools)
                (fresh / "hugepages").write_text(text, encoding="utf-8")
            if self._buddyinfo.exists():
                (fresh / "buddyinfo").write_text(_text(self._buddyinfo), encoding="utf-8")


def check_new(folder: Path) -> None:
    """Refuses a folder of a recording that could not be made.

    Raises:
        NestwalkError: When it is there already, or nothing can be made in the folder that it would be in.
    """
    if folder.exists():
        raise NestwalkError(f"{shown(folder)}: exists already; name a new directory")
    files.check_writable(folder.absolute().parent, folder)


def has(column: str, bits: int) -> pl.Expr:
    """Whether a number of 64 bits has all of these bits."""
    mask = pl.lit(bits, dtype=pl.UInt64)
    return (pl.col(column) & mask) == mask


def words(data: bytes) -> pl.Series:
    """Bytes as numbers of 64 bits."""
    count = len(data) // ENTRY_BYTES
    if not count:
        return pl.Series("entry", [], dtype=pl.UInt64)
    array = pl.Array(pl.UInt64, count)
    return pl.Series("entry", [data]).bin.reinterpret(dtype=array, endianness="little").explode()


def _free_runs(path: Path) -> pl.Series:
    """Lengths of runs of pages that have :data:`KPF_BUDDY`."""
    parts: list[pl.DataFrame] = []
    at = 0
    while data := _native.proc_words(str(path), at, CHUNK_PAGES):
        flags = words(data)
        free = flags.to_frame().select(has("entry", KPF_BUDDY)).to_series()
        runs = free.rle().struct.unnest()
        begins = runs["len"].cum_sum() - runs["len"] + at
        parts.append(runs.select("len", "value").with_columns(begins.alias("at")).filter(pl.col("value")))
        at += len(flags)
    if not parts:
        return pl.Series("len", [], dtype=pl.Int64)
    runs = pl.concat(parts).with_columns(pl.col("len", "at").cast(pl.Int64))
    # A run that goes on in the next chunk is one.
    fresh = (pl.col("at") != (pl.col("at") + pl.col("len")).shift(1)).fill_null(value=True)
    return (
        runs.with_columns(fresh.cum_sum().alias("run"))
        .group_by("run", maintain_order=True)
        .agg(pl.col("len").sum())["len"]
    )


def _live_pools() -> list[Pool]:
    found = []
    for folder in HUGEPAGES.glob("hugepages-*kB"):
        size = int(folder.name.removeprefix("hugepages-").removesuffix("kB"))
        numbers = [int((folder / name).read_text(encoding="utf-8")) for name in ("nr_hugepages", "free_hugepages")]
        found.append(Pool(size, *numbers))
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except PermissionError as error:
        raise NestwalkError(f"{path}: no permission; run as the owner of the process, or as root") from error
    except OSError as error:
        raise unreadable(path, error) from error
