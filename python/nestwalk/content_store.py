# SPDX-License-Identifier: MIT OR Apache-2.0
"""Results kept by what they depend on: made once, found by whoever needs them again.

An entry is a file named by the key of its order (:mod:`nestwalk.orders`): a line of JSON about it, then the result as
compressed JSON, whose checksum that line has. It is written whole or not at all, and two writers of one key write the
same result, so whoever is last does no harm. An entry whose checksum does not fit is taken away and made again.

Beside the entries, ``kinds/KIND/KEY.MILLISECONDS.MEBIBYTES`` are empty files whose names say what runs of a kind took:
what ``nestwalk sweep --plan`` estimates from, without opening anything.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import time
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from nestwalk import _native, files, say
from nestwalk.errors import NestwalkError, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nestwalk.orders import Order

SCHEMA = 1
VARIABLE = "NESTWALK_RESULTS"
"""The variable of the environment that names the place of results."""
NONE = "none"
"""The place that is none: nothing is kept, nothing found."""
SUFFIX = ".result"
LEVEL = 6
HEAD_BYTES_MAX = 4096
MIB = 1 << 20
WHOLE = {"memory", "s3", "s3a", "gs", "gcs", "abfs", "az", "adl", "oci", "r2"}
"""Protocols whose objects appear when all of them has been written."""


class Corrupt(Exception):  # noqa: N818 (never seen outside)
    """An entry is not what was written."""


@dataclass(frozen=True)
class Entry:
    """A kept result."""

    key: str
    about: dict[str, Any]
    """``model``, ``version``, ``kind``, ``seconds``, ``memory_bytes``, ``made`` (Unix time), ``bytes``, ``sha256``."""
    payload: bytes
    """The result as JSON."""

    @property
    def result(self) -> dict[str, Any]:
        """The result, under the name that every kept run has."""
        found: dict[str, Any] = json.loads(self.payload)
        return found


class Shelf(Protocol):
    """Where files are: a directory, or a place of fsspec. Names have slashes, whatever the system."""

    def read(self, name: str, most: int | None = None) -> bytes:
        """A file's content, or its first ``most`` bytes; FileNotFoundError if there is none."""

    def write(self, name: str, content: bytes) -> None:
        """Makes a file, whole or not at all."""

    def remove(self, name: str) -> None:
        """Takes a file away, if it is there."""

    def names(self, folder: str) -> list[str]:
        """Names of the files anywhere below a folder, from the root of the shelf; none if there is no such folder."""


class Directory:
    """A directory of this machine (or of a network file system that it has mounted)."""

    def __init__(self, root: Path) -> None:
        """It is made when something is written to it."""
        self._root = root

    def read(self, name: str, most: int | None = None) -> bytes:
        """As :class:`Shelf`."""
        with (self._root / name).open("rb") as file:
            return file.read(-1 if most is None else most)

    def write(self, name: str, content: bytes) -> None:
        """As :class:`Shelf`: written under another name and renamed."""
        target = self._root / name
        temporary = target.with_name(f"{files.PREFIX}{secrets.token_hex(6)}.tmp")
        for _ in range(2):  # a folder may be taken away by a clean-up between the two steps
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                temporary.write_bytes(content)
                temporary.replace(target)
            except FileNotFoundError:
                continue
            finally:
                with suppress(OSError):
                    temporary.unlink(missing_ok=True)
            return
        problem = "no folder can be made there, or it is taken away again and again; name another place"
        raise FileNotFoundError(errno.ENOENT, problem, str(target.parent))

    def remove(self, name: str) -> None:
        """As :class:`Shelf`."""
        (self._root / name).unlink(missing_ok=True)

    def names(self, folder: str) -> list[str]:
        """As :class:`Shelf`."""
        found = []
        for path, _, inside in os.walk(self._root / folder):
            head = Path(path).relative_to(self._root).as_posix()
            found += [f"{head}/{name}" for name in inside if not name.startswith(files.PREFIX)]
        return sorted(found)


class Remote:
    """A place that fsspec knows: ``s3://bucket/results``, ``gs://``, ``memory://``, ``sftp://`` ..."""

    def __init__(self, url: str) -> None:
        """Looks up what serves ``url``.

        Raises:
            NestwalkError: When nothing does, or fsspec is not installed.
        """
        try:
            from fsspec.core import url_to_fs
        except ImportError as error:
            raise NestwalkError(f"{url}: results at a URL need fsspec: pip install 'nestwalk[dask]'") from error
        try:
            self._files, self._root = url_to_fs(url)
        except (ImportError, ValueError, OSError) as error:
            raise NestwalkError(f"{url}: {str(error).splitlines()[0]}") from error
        self._whole = not WHOLE.isdisjoint(
            [self._files.protocol] if isinstance(self._files.protocol, str) else self._files.protocol
        )

    def _at(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}"

    def read(self, name: str, most: int | None = None) -> bytes:
        """As :class:`Shelf`."""
        return cast("bytes", self._files.cat_file(self._at(name), start=0, end=most))

    def write(self, name: str, content: bytes) -> None:
        """As :class:`Shelf`: under another name first, where a file is seen while it grows."""
        target = self._at(name)
        if self._whole:
            self._files.pipe_file(target, content)
            return
        folder = target.rpartition("/")[0]
        temporary = f"{folder}/{files.PREFIX}{secrets.token_hex(6)}.tmp"
        self._files.makedirs(folder, exist_ok=True)
        try:
            self._files.pipe_file(temporary, content)
            self._files.mv(temporary, target)
        except BaseException:
            with suppress(OSError):
                self._files.rm_file(temporary)
            raise

    def remove(self, name: str) -> None:
        """As :class:`Shelf`."""
        with suppress(FileNotFoundError):
            self._files.rm_file(self._at(name))

    def names(self, folder: str) -> list[str]:
        """As :class:`Shelf`."""
        self._files.invalidate_cache()
        try:
            found = self._files.find(self._at(folder))
        except FileNotFoundError:
            return []
        root = self._root.rstrip("/") + "/"
        inside = [name[name.index(root) + len(root) :] for name in found if root in name]
        return sorted(name for name in inside if not name.rpartition("/")[2].startswith(files.PREFIX))


class ContentStore:
    """Results by key. What goes wrong with the place is a NestwalkError that names it."""

    def __init__(self, place: str, shelf: Shelf) -> None:
        """On ``shelf``, called ``place`` in messages."""
        self.place = place
        self._shelf = shelf

    def get(self, key: str) -> Entry | None:
        """The entry of a key; None if there is none, or it is corrupt, which is said, and it is taken away."""
        with self._telling("cannot be read"):
            try:
                content = self._shelf.read(_name(key))
            except FileNotFoundError:
                return None
        try:
            return _parse(key, content)
        except Corrupt as error:
            say.warn(f"{self.place}: the result {key[:16]} is corrupt ({error}); it is taken away and made again")
            with self._telling("cannot be written"):
                self._shelf.remove(_name(key))
            return None

    def put(self, order: Order, result: dict[str, Any], *, seconds: float, memory_bytes: int) -> Entry:
        """Keeps what an order came to, and what it took."""
        payload = json.dumps(result, separators=(",", ":"), ensure_ascii=False).encode()
        about = {
            "schema": SCHEMA,
            "key": order.key,
            "sha256": hashlib.sha256(payload).hexdigest(),
            "bytes": len(payload),
            "model": order.model,
            "version": _native.version(),
            "kind": order.kind,
            "seconds": round(seconds, 3),
            "memory_bytes": memory_bytes,
            "made": int(time.time()),
        }
        content = json.dumps(about).encode() + b"\n" + zlib.compress(payload, LEVEL)
        with self._telling("cannot be written"):
            self._shelf.write(_name(order.key), content)
            cost = f"{order.key}.{int(seconds * 1000)}.{memory_bytes // MIB}"
            self._shelf.write(f"kinds/{order.kind}/{cost}", b"")
        files.kept[self.place] = files.kept.get(self.place, 0) + 1
        return Entry(order.key, about, payload)

    def remove(self, entry_key: str, kind: str | None = None) -> None:
        """Takes a result away, with what it took if its kind is given."""
        with self._telling("cannot be written"):
            self._shelf.remove(_name(entry_key))
            for name in self._shelf.names(f"kinds/{kind}") if kind else ():
                if name.rpartition("/")[2].startswith(entry_key):
                    self._shelf.remove(name)

    def costs(self, kind: str) -> list[tuple[float, int]]:
        """Seconds and bytes of memory of the kept runs of a kind."""
        found = []
        with self._telling("cannot be read"):
            names = self._shelf.names(f"kinds/{kind}")
        for name in names:
            _, _, cost = name.rpartition("/")[2].partition(".")
            milliseconds, _, mebibytes = cost.partition(".")
            if milliseconds.isdecimal() and mebibytes.isdecimal():
                found.append((int(milliseconds) / 1000, int(mebibytes) * MIB))
        return found

    def keys(self) -> list[str]:
        """The keys of all results."""
        with self._telling("cannot be read"):
            names = self._shelf.names("entries")
        return [name.rpartition("/")[2].removesuffix(SUFFIX) for name in names if name.endswith(SUFFIX)]

    def heads(self, keys: Sequence[str]) -> Iterator[tuple[str, dict[str, Any] | None]]:
        """What is known about each of ``keys``; None where that cannot be read."""
        for key in keys:
            with self._telling("cannot be read"):
                try:
                    content = self._shelf.read(_name(key), HEAD_BYTES_MAX)
                except FileNotFoundError:  # taken away meanwhile
                    continue
            try:
                yield key, _head(key, content)[0]
            except Corrupt:
                yield key, None

    def find(self, prefix: str) -> str:
        """The one key that begins so.

        Raises:
            NestwalkError: When there is none, or there are several.
        """
        found = [key for key in self.keys() if key.startswith(prefix)]
        if len(found) != 1:
            what = f"{len(found)} results begin with it: give more digits" if found else "there is no such result"
            raise NestwalkError(f"{self.place}: {shown(prefix)}: {what}; `nestwalk results list` lists them")
        return found[0]

    def _telling(self, what: str) -> _Telling:
        return _Telling(self.place, what)


class _Telling:
    """A block whose errors become one line about the place."""

    def __init__(self, place: str, what: str) -> None:
        self._place, self._what = place, what

    def __enter__(self) -> None:
        """Nothing."""

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is None or isinstance(error, NestwalkError | KeyboardInterrupt | SystemExit):
            return
        why = files.reason(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}".splitlines()[0]
        raise NestwalkError(f"{shown(self._place)}: results {self._what}: {why}") from error


def _name(key: str) -> str:
    return f"entries/{key[:2]}/{key}{SUFFIX}"


def _head(key: str, content: bytes) -> tuple[dict[str, Any], bytes]:
    """The line about an entry, and what follows it."""
    line, newline, rest = content.partition(b"\n")
    try:
        about = json.loads(line)
    except ValueError:
        raise Corrupt("its first line is no JSON") from None
    if not newline or not isinstance(about, dict) or about.get("schema") != SCHEMA or about.get("key") != key:
        raise Corrupt("its first line is of another entry")
    return about, rest


def _parse(key: str, content: bytes) -> Entry:
    about, rest = _head(key, content)
    try:
        payload = zlib.decompress(rest)
    except zlib.error:
        raise Corrupt("it cannot be decompressed") from None
    if hashlib.sha256(payload).hexdigest() != about.get("sha256"):
        raise Corrupt("its checksum does not fit")
    return Entry(key, about, payload)


def default() -> str:
    """Where results are kept if nothing is said: ``$NESTWALK_RESULTS``, else a folder of the user's cache."""
    named = os.environ.get(VARIABLE)
    if named:
        return named
    cache = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(cache) if cache.startswith("/") else Path("~/.cache")
    try:
        return str(base.expanduser() / "nestwalk" / "results")
    except RuntimeError:  # a user without a home
        return NONE


def open_store(place: str | None) -> ContentStore | None:
    """The store at a directory or a URL (``file://`` is a directory, too); the default one if None; None for "none".

    Raises:
        NestwalkError: When there can be none.
    """
    named = default() if place is None else place
    if named == NONE:
        return None
    if not named or "\0" in named:
        raise NestwalkError("the place of results is empty; name a directory or a URL, or 'none'")
    if "://" in named and not named.startswith("file://"):
        return ContentStore(named, Remote(named))
    path = Path(named.removeprefix("file://")).absolute()
    if path.exists() and not path.is_dir():
        raise NestwalkError(f"{shown(path)}: is a file; name a directory for results, a URL, or 'none'")
    return ContentStore(named, Directory(path))
