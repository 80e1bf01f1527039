# SPDX-License-Identifier: MIT OR Apache-2.0
"""OpenStack Nova: notifications as JSON (versioned and legacy), and the lines of nova-compute's log."""

from __future__ import annotations

import gzip
import json
import math
import re
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import IO, TYPE_CHECKING, Any

import polars as pl

from nestwalk.cloud import gz
from nestwalk.cloud.loaders import events
from nestwalk.cloud.requests import EXAMPLES_MAX, SECONDS_MAX, Malformed
from nestwalk.errors import unreadable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from nestwalk.cloud.loaders import Options
    from nestwalk.cloud.loaders.head import Head
    from nestwalk.cloud.requests import Requests

MIB = 1 << 20

CREATED = {"instance.create.end", "compute.instance.create.end"}
DELETED = {"instance.delete.end", "compute.instance.delete.end"}
RESIZED = {
    "instance.resize_finish.end",
    "compute.instance.finish_resize.end",
    "instance.resize_revert.end",
    "compute.instance.resize.revert.end",
}
"""Event types: versioned, legacy. Source: Nova's notification reference."""

_INSTANCE = re.compile(r"\[instance: ([0-9a-f]{8}-[0-9a-f-]{27})\]")
_TIME = re.compile(r"\b(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?)\b(?!_)")
_CLAIM = re.compile(r"Attempting claim: memory (\d+) MB, .*?vcpus (\d+) CPU")
_GONE = "Terminating instance"
"""What nova-compute logs (nova/compute/claims.py; nova/compute/manager.py)."""


@dataclass
class _Log:
    """Events as they are found, and lines that are none."""

    rows: list[tuple[int, str, str, float, float | None, float | None]] = field(default_factory=list)
    bad: int = 0
    examples: list[tuple[str, str]] = field(default_factory=list)
    ignored: int = 0
    resized: int = 0
    running: set[str] = field(default_factory=set)
    begin_s: float | None = None
    """The first event; VMs that ran before it are given negative times."""

    def refuse(self, line: int, what: str) -> None:
        self.bad += 1
        if len(self.examples) < EXAMPLES_MAX:
            self.examples.append((f"line {line}", what))

    def add(self, line: int, vm: str, kind: str, time_s: float, size: tuple[float | None, float | None]) -> None:
        """Takes an event: cores and bytes are those of a creation."""
        self.begin_s = time_s if self.begin_s is None else min(self.begin_s, time_s)
        self.rows.append((line, vm, kind, time_s, *size))
        (self.running.add if kind == "create" else self.running.discard)(vm)

    def requests(self, path: Path, name: str, notes: list[str]) -> Requests:
        frame = pl.DataFrame(self.rows, schema=events.SCHEMA, orient="row")
        frame = frame.with_columns(pl.col("time_s") - (self.begin_s or 0.0))
        return events.pair(frame, path=path, name=name, bad=Malformed(self.bad, tuple(self.examples)), notes=notes)


@contextmanager
def _open(path: Path) -> Iterator[IO[str]]:
    """The file as text, unpacked if it is gzip.

    Raises:
        NestwalkError: When it cannot be read.
    """
    try:
        if gz.is_gzip(path):
            with gzip.open(path, "rt", encoding="utf-8-sig", errors="replace") as text:
                yield text
        else:
            with path.open(encoding="utf-8-sig", errors="replace") as text:
                yield text
    except gz.DAMAGED as error:
        raise gz.damaged(path) from error
    except OSError as error:
        raise unreadable(path, error) from error


def is_notifications(head: Head) -> bool:
    """Whether it is JSON."""
    return head.start.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in {b"{", b"["}


def load_notifications(path: Path, options: Options) -> Requests:
    """Notifications: one JSON object a line, several after one another, or an array of them.

    Raises:
        NestwalkError: When the file cannot be read.
    """
    del options
    log = _Log()
    with _open(path) as text:
        for line, value in _values(text, log):
            _notification(line, value, log)
    notes = [f"{log.ignored:,} notifications of other kinds were passed over"] if log.ignored else []
    if log.resized:
        notes.append(f"{log.resized:,} times a VM was resized: it goes, and comes with its new size")
    return log.requests(path, "Nova notifications", notes)


NOT_JSON = "is not JSON"
_NO_JSON = (ValueError, RecursionError)
"""What Python's parser raises: the second one when a value is nested too deeply."""


def _values(text: IO[str], log: _Log) -> Iterator[tuple[int, Any]]:
    """The JSON values of a file with the line on which each begins."""
    first = text.readline()
    try:
        value = json.loads(first)
    except _NO_JSON:
        yield from _documents(first + text.read(), log)
        return
    yield from _flat(1, value)
    for number, line in enumerate(text, 2):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except _NO_JSON:
            log.refuse(number, NOT_JSON)
            continue
        yield from _flat(number, value)


def _documents(whole: str, log: _Log) -> Iterator[tuple[int, Any]]:
    """Values that go over several lines; after a damaged one, those that begin at the start of a later line."""
    decoder = json.JSONDecoder()
    at, line = 0, 1
    while True:
        rest = re.compile(r"[\s,]*").match(whole, at)
        end = rest.end() if rest else at
        line += whole.count("\n", at, end)
        at = end
        if at >= len(whole):
            return
        try:
            value, end = decoder.raw_decode(whole, at)
        except _NO_JSON:
            log.refuse(line, NOT_JSON)
            following = whole.find("\n{", at + 1)
            if following < 0:
                return
            end = following + 1
            line += whole.count("\n", at, end)
            at = end
            continue
        yield from _flat(line, value)
        line += whole.count("\n", at, end)
        at = end


def _flat(line: int, value: Any) -> Iterator[tuple[int, Any]]:
    """The elements of an array, or the value itself."""
    if isinstance(value, list):
        for one in value:
            yield line, one
    else:
        yield line, value


def _notification(line: int, value: Any, log: _Log) -> None:
    """Takes what one notification says into the log."""
    message = _unwrapped(value)
    if message is None:
        log.refuse(line, "is not a notification (no event_type)")
        return
    known = (("create", CREATED), ("delete", DELETED), ("resize", RESIZED))
    kind = next((kind for kind, types in known if message["event_type"] in types), None)
    if kind is None:
        log.ignored += 1
        return
    payload, flavor = _payload(message)
    vm = payload.get("uuid") or payload.get("instance_id")
    if not isinstance(vm, str):
        log.refuse(line, "the instance has no uuid")
        return
    # JSON can name half a surrogate pair, which is no character.
    vm = vm.encode("utf-8", errors="replace").decode("utf-8")
    born = _first_time(payload.get("launched_at"), payload.get("created_at"))
    gone = _first_time(message.get("timestamp"), payload.get("terminated_at"), payload.get("deleted_at"))
    came = _first_time(message.get("timestamp")) or (born if kind == "create" else None)
    time = gone if kind == "delete" else came
    cores, memory = _number(flavor.get("vcpus")), _number(flavor.get("memory_mb"))
    size = (cores, None if memory is None else memory * MIB)
    if time is None:
        log.refuse(line, "the time is missing or not one")
    elif kind != "delete" and None in size:
        log.refuse(line, "the flavor's vcpus or memory_mb is missing or not a number")
    else:
        if kind == "delete" and vm not in log.running and born is not None and None not in size:
            # It was created before the first notification, and its deletion tells all that is needed.
            log.rows.append((line, vm, "create", born, *size))
        if kind == "resize":
            # Its memory is allocated anew, on a host that the scheduler chooses: one VM goes and another comes.
            log.resized += 1
            if vm in log.running:
                log.add(line, vm, "delete", time, (None, None))
        log.add(line, vm, "delete" if kind == "delete" else "create", time, (None, None) if kind == "delete" else size)


def _first_time(*values: Any) -> float | None:
    """The first of several times that is there."""
    return next((found for found in map(_seconds, values) if found is not None), None)


def _unwrapped(value: Any) -> dict[str, Any] | None:
    """The message, out of oslo.messaging's envelope if it is in one."""
    if isinstance(value, dict) and isinstance(value.get("oslo.message"), str):
        try:
            value = json.loads(value["oslo.message"])
        except _NO_JSON:
            return None
    return value if isinstance(value, dict) and isinstance(value.get("event_type"), str) else None


def _payload(message: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The instance, and what tells its size: in versioned notifications an object of its own, in legacy ones itself."""
    payload = _object(message.get("payload"))
    if payload is None:
        return {}, {}
    inner = _object(payload.get("nova_object.data"))
    if inner is None:
        return payload, payload
    flavor = _object((_object(inner.get("flavor")) or {}).get("nova_object.data"))
    return inner, flavor or {}


def _object(value: Any) -> dict[str, Any] | None:
    return value if isinstance(value, dict) else None


def _number(value: Any) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _seconds(value: Any) -> float | None:
    """A time as Nova writes it, in UTC, in seconds since 1970; none before it, which would be a damaged one."""
    if not isinstance(value, str):
        return None
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        return None
    seconds = (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    return seconds if 0 <= seconds <= SECONDS_MAX else None


def is_log(head: Head) -> bool:
    """Whether it is a log of Nova's."""
    return any(" nova." in line and _TIME.search(line) for line in head.lines[:20])


def load_log(path: Path, options: Options) -> Requests:
    """The log of nova-compute: a claim creates a VM, its termination deletes it.

    Raises:
        NestwalkError: When the file cannot be read.
    """
    del options
    log = _Log()
    before = 0
    with _open(path) as text:
        for line, content in enumerate(text, 1):
            instance, time = _INSTANCE.search(content), _TIME.search(content)
            if instance is None:
                continue
            claim = _CLAIM.search(content)
            if claim is None and _GONE not in content:
                continue
            seconds = _seconds(time[1]) if time else None
            if seconds is None:
                log.refuse(line, "the time is missing or not one")
            elif claim is not None:
                log.add(line, instance[1], "create", seconds, (float(claim[2]), float(claim[1]) * MIB))
            elif instance[1] in log.running:
                log.add(line, instance[1], "delete", seconds, (None, None))
            else:
                before += 1
    notes = ["a VM is created when the compute node claims its memory, and deleted when it is terminated"]
    if before:
        notes.append(f"{before:,} VMs that ran before the log began are left out: the log does not tell their size")
    return log.requests(path, "Nova log", notes)
