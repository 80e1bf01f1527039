# SPDX-License-Identifier: MIT OR Apache-2.0
"""A capture: start the user's QEMU, choose the process, record it, look at its page tables, end.

QEMU writes accesses into a FIFO, which a thread turns into the trace. Guest memory is a file, so that page tables
can be read even when QEMU has ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from nestwalk import _native, files, say
from nestwalk.cloud import qemu
from nestwalk.errors import NestwalkError
from nestwalk.vm import guest
from nestwalk.vm.command_line import BACKEND, CommandLine
from nestwalk.vm.control import ADDRESS_MASK, ISOLATION_BIT, Control, Space, State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nestwalk.vm.when import When

POLL_S = 0.05
START_S = 60.0
"""QEMU has so long to start."""
END_S = 20.0
"""QEMU has so long to quit before it is killed."""
LOOK_S = 1.0
"""Between two looks for the process."""
BUSY_S = 3.0
BUSY_SHARE = 0.5
"""A process is busy that executes this share of all user instructions twice for so long."""
SHOW_S = 5.0
"""Between two lines about how far the capture is."""
RESERVE_BYTES = 32_000_000
"""Of the trace's disk: what completing it takes, the page tables included, and what arrives meanwhile."""
FULL = "the disk is nearly full"
MARGIN_BYTES = 64 << 20
"""Beside the guest's memory, in shared memory."""


Kept = Literal["user-code", "user-half", "both-halves"]
"""What the trace gets of what is recorded; kernel code accesses the user half, too."""


@dataclass(frozen=True)
class Request:
    """What to capture."""

    command: CommandLine
    plugin: Path
    trace: Path
    tables: Path
    process: str | None
    """A name, or None for the busiest."""
    begin: When
    end: When
    accesses_max: int
    kept: Kept
    kernel_tables: bool
    title: str | None


@dataclass
class Chosen:
    """The process that is recorded."""

    name: str
    program: str | None
    cr3: int
    mask: int
    """The bits of CR3 that tell it from others."""
    levels: int


@dataclass
class Dump:
    """What was read of the page tables, and when."""

    summary: dict[str, Any] | None = None
    at: str = ""
    why_not: str = ""


@dataclass
class Session:
    """A capture under way."""

    request: Request
    folder: Path
    control: Control
    qemu: subprocess.Popen[bytes]
    memory: list[guest.Piece] = field(default_factory=list)
    part: Path = Path()
    """The trace while it is written."""
    socket: Path = Path()
    wanted: set[str] = field(default_factory=set)
    """Signals that came: ``begin``, ``end``, ``interrupt``."""
    report: dict[str, Any] | None = None
    failure: BaseException | None = None
    reader: threading.Thread | None = None
    last_shown: float = 0.0

    @property
    def alive(self) -> bool:
        """Whether QEMU runs."""
        return self.qemu.poll() is None


def run(request: Request) -> dict[str, Any]:
    """Captures; the trace and the dump are there whole, or not at all.

    Raises:
        NestwalkError: When the guest did not start, the process never appeared, or a file cannot be written.
        KeyboardInterrupt: When that came before anything was recorded.
    """
    with _folders(request.command.memory_bytes) as (folder, memory):
        control = Control(folder / "control", request.accesses_max)
        stream, socket = folder / "stream", folder / "qmp"
        os.mkfifo(stream)
        always = ",always=on" if request.begin.mark else ""
        plugin = f"{request.plugin},control={folder / 'control'},out={stream}{always}"
        words = request.command.with_capture(memory=memory, socket=socket, plugin=plugin)
        say.detail("running " + " ".join(words))
        process = subprocess.Popen(words)
        target = files.resolve(request.trace)
        part = target if files.is_special(target) else files.neighbour(target)
        session = Session(request, folder, control, process, part=part, socket=socket)
        session.reader = threading.Thread(target=_read, args=(session, stream), daemon=True)
        session.reader.start()
        try:
            with _signals(session):
                return _capture(session, {BACKEND: memory})
        finally:
            _end_qemu(session)
            _release(stream, session.reader)
            if part != target:
                part.unlink(missing_ok=True)


@contextlib.contextmanager
def _folders(memory_bytes: int) -> Iterator[tuple[Path, Path]]:
    """A folder for the session, and the path of the guest's memory: shared memory if there is room, else on disk."""
    with tempfile.TemporaryDirectory(prefix="nestwalk-vm-") as name:
        folder = Path(name)
        shared = Path("/dev/shm")  # noqa: S108 (a file of its own name, readable by this user only)
        if shared.is_dir() and shutil.disk_usage(shared).free > memory_bytes + MARGIN_BYTES:
            handle, path = tempfile.mkstemp(prefix="nestwalk-vm-", dir=shared)
            os.close(handle)
            memory = Path(path)
        else:
            memory = folder / "memory"
        try:
            yield folder, memory
        finally:
            memory.unlink(missing_ok=True)


@contextlib.contextmanager
def _signals(session: Session) -> Iterator[None]:
    """SIGUSR2 begins the recording, SIGUSR1 ends it, and so does Ctrl-C once it has begun."""

    def heard(number: int, _frame: object) -> None:
        names = {signal.SIGUSR2: "begin", signal.SIGUSR1: "end", signal.SIGTERM: "interrupt"}
        session.wanted.add(names.get(signal.Signals(number), "interrupt"))

    before = {one: signal.signal(one, heard) for one in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _read(session: Session, stream: Path) -> None:
    """Turns the stream into the trace; the work of a thread."""
    request = session.request
    about = (
        request.title or request.process or "guest",
        " ".join(request.command.words),
        datetime.now(UTC).date().isoformat(),
    )
    paths = (str(stream), str(session.part), str(session.folder / "tables"), str(session.folder / "pieces"))
    try:
        session.report = json.loads(_native.vm_record(*paths, about, request.kept))
    except BaseException as error:  # noqa: BLE001 (the main thread raises it)
        session.failure = error


def _capture(session: Session, backends: dict[str, Path]) -> dict[str, Any]:
    _started(session, backends)
    chosen = _begun(session)
    began = time.monotonic()
    first = _dump(session, chosen, "when recording began")
    ended = _recorded(session, began)
    seconds = time.monotonic() - began
    last = _final_dump(session, chosen)
    dump = last if last.summary is not None else first
    _end_qemu(session)
    if session.reader is not None:
        session.reader.join()
    if session.failure is not None:
        raise _named(session, session.failure)
    return _result(session, chosen, dump, ended, seconds)


def _named(session: Session, failure: BaseException) -> BaseException:
    """The failure in words about the file that the user named, not about the one that is written until all is well."""
    text, part = str(failure), f"{session.part}: "
    if not isinstance(failure, NestwalkError) or not text.startswith(part):
        return failure
    reason = text.removeprefix(part).partition(" at path ")[0]
    return NestwalkError(f"{session.request.trace}: {reason}; nothing was kept, make room or name another file")


def _started(session: Session, backends: dict[str, Path]) -> None:
    """Waits until the guest runs under the plugin, and asks where its memory is."""
    limit = time.monotonic() + START_S
    while session.control.state == State.LOADED or not session.socket.exists():
        _check(session, "QEMU ended before the guest began; its own message says why")
        if time.monotonic() > limit:
            raise NestwalkError(f"QEMU did not start within {START_S:.0f} s")
        time.sleep(POLL_S)
    if not session.control.knows_cr3:
        raise NestwalkError(
            "this QEMU cannot tell a plugin what is in CR3: take QEMU 9.0 or later, or a build with loadable modules "
            "(Debian's and Fedora's are), or take the page tables alone: nestwalk vm tables"
        )
    with qemu.Monitor(session.socket) as monitor:
        found = backends if session.request.command.backend is None else guest.memory_files(monitor)
        session.memory = guest.pieces(monitor, found)
    guest.check_readable(session.memory, session.socket)
    (session.folder / "pieces").write_text(json.dumps([asdict(piece) for piece in session.memory]), encoding="utf-8")


def _check(session: Session, why: str) -> None:
    """Ends the wait for something that will not come.

    Raises:
        NestwalkError: When QEMU has ended or the trace cannot be written.
        KeyboardInterrupt: After Ctrl-C.
    """
    if "interrupt" in session.wanted:
        raise KeyboardInterrupt
    if session.failure is not None and session.alive:
        raise _named(session, session.failure)
    if not session.alive:
        raise NestwalkError(f"{why} (exit code {session.qemu.returncode})")


def _begun(session: Session) -> Chosen:
    """Waits for the moment to begin, chooses the process, and begins."""
    if session.request.begin.mark:
        return _begun_at_mark(session)
    begun = time.monotonic()
    chosen: Chosen | None = None
    busy = _Busy()
    while True:
        _check(session, "the guest ended before there was anything to record")
        waited = time.monotonic() - begun
        due = session.request.begin.seconds is None or waited >= session.request.begin.seconds
        if session.request.begin.signal:
            due = "begin" in session.wanted
        if due:
            chosen = _look(session, busy)
        if chosen is not None:
            session.control.record(chosen.cr3, chosen.mask)
            say.note(f"recording {chosen.name}, {waited:.0f} s after the start")
            return chosen
        _show(session, f"waiting for {session.request.process or 'a busy process'}")
        _nap(session, LOOK_S if due else POLL_S)


def _nap(session: Session, seconds: float) -> None:
    limit = time.monotonic() + seconds
    while time.monotonic() < limit and session.alive and not session.wanted:
        time.sleep(POLL_S)


class _Busy:
    """Finds out which process executes most of the user instructions, and for a while."""

    def __init__(self) -> None:
        self._before: dict[int, int] = {}
        self._since = 0.0
        self._leader: int | None = None

    def leader(self, spaces: list[Space], now: float) -> int | None:
        """The CR3 that had :data:`BUSY_SHARE` of user mode in two stretches of :data:`BUSY_S`, one after the other."""
        if now - self._since < BUSY_S:
            return None
        counts = {one.cr3: one.user for one in spaces}
        grown = {cr3: count - self._before.get(cr3, 0) for cr3, count in counts.items()}
        first, self._before, self._since = not self._before, counts, now
        total = sum(grown.values())
        top = max(grown, key=lambda cr3: grown[cr3], default=None)
        before, self._leader = self._leader, None
        if first or top is None or total == 0 or grown[top] < BUSY_SHARE * total:
            return None
        self._leader = top
        return top if top == before else None


def _look(session: Session, busy: _Busy) -> Chosen | None:
    """The process, if it is there."""
    spaces = session.control.spaces()
    active = {one.cr3: one.user for one in spaces if one.user}
    if session.request.process is None:
        leader = busy.leader(spaces, time.monotonic())
        if leader is None:
            return None
        return _chosen(session, leader, active)
    try:
        with qemu.Monitor(session.socket) as monitor:
            cpus = guest.vcpus(monitor)
    except NestwalkError:
        if session.alive:
            raise
        return None
    found = guest.named(guest.processes(session.memory, cpus), session.request.process)
    ran = [one for one in found if active.get(one.cr3) or active.get(one.cr3 | ISOLATION_BIT)]
    if not ran:
        return None
    busiest = max(ran, key=lambda one: active.get(one.cr3, 0) + active.get(one.cr3 | ISOLATION_BIT, 0))
    return _chosen(session, busiest.cr3, active)


def _chosen(session: Session, cr3: int, active: dict[int, int]) -> Chosen:
    """The process with the root ``cr3``, which may be the user's of two."""
    with qemu.Monitor(session.socket) as monitor:
        cpus = guest.vcpus(monitor)
    levels = cpus[0].levels if cpus else guest.LEVELS
    roots = guest.processes(session.memory, cpus)
    one = next((one for one in roots if one.cr3 == cr3), None)
    if one is None and cr3 & ISOLATION_BIT:
        one = next((one for one in roots if one.cr3 == cr3 & ~ISOLATION_BIT), None)
    root = cr3 if one is None else one.cr3
    isolated = not root & ISOLATION_BIT and active.get(root | ISOLATION_BIT, 0) > 0 and not active.get(root)
    mask = ADDRESS_MASK & ~ISOLATION_BIT if isolated else ADDRESS_MASK
    name = one.name if one is not None else f"cr3-{root:#x}"
    return Chosen(name, None if one is None else one.program, root, mask, levels)


def _begun_at_mark(session: Session) -> Chosen:
    while session.control.state == State.RUNNING:
        _check(session, "the guest ended and no marker was executed in it")
        _show(session, "waiting for a marker")
        time.sleep(POLL_S)
    cr3 = session.control.target
    try:
        return _chosen(session, cr3, {one.cr3: one.user for one in session.control.spaces()})
    except NestwalkError:
        if session.alive:
            raise
        return Chosen(f"cr3-{cr3:#x}", None, cr3, ADDRESS_MASK, guest.LEVELS)


def _recorded(session: Session, began: float) -> str:
    """Waits for the end of the recording; what ended it."""
    while True:
        if asked := _asked_to_end(session, began):
            return asked
        if session.control.state == State.FAILED or session.failure is not None:
            return "failure"
        if session.control.state == State.FULL:
            return "accesses" if session.control.accesses >= session.request.accesses_max else "marker"
        if not session.alive:
            return "the guest ended"
        if not files.is_special(session.part) and shutil.disk_usage(session.part.parent).free < RESERVE_BYTES:
            return FULL
        _show(session, f"{session.control.accesses / 1e6:.1f} M accesses")
        time.sleep(POLL_S)


def _asked_to_end(session: Session, began: float) -> str | None:
    """What the user said or did that ends the recording now, if anything."""
    end = session.request.end
    if "interrupt" in session.wanted:
        return "interrupted"
    if end.signal and "end" in session.wanted:
        return "signal"
    if end.seconds is not None and time.monotonic() - began >= end.seconds:
        return "time"
    return None


def _show(session: Session, text: str) -> None:
    now = time.monotonic()
    if now - session.last_shown >= SHOW_S:
        if session.last_shown:
            say.note(text)
        session.last_shown = now


def _dump(session: Session, chosen: Chosen, at: str) -> Dump:
    """Reads the page tables as they are now."""
    path = session.folder / "tables"
    part = session.folder / "tables.part"
    try:
        kernel = session.request.kernel_tables
        summary = guest.write_tables(session.memory, chosen.cr3, chosen.levels, part, kernel=kernel)
    except NestwalkError as error:
        return Dump(why_not=str(error))
    if not summary["user_pages"][0] and not any(summary["user_pages"]):
        return Dump(why_not="the process had ended, its page tables were empty")
    part.replace(path)
    return Dump(summary, at)


def _final_dump(session: Session, chosen: Chosen) -> Dump:
    """Stops the guest where it runs, and reads the page tables as they are then."""
    if not session.alive:
        return _dump(session, chosen, "when the guest had ended")
    session.control.end()
    try:
        with qemu.Monitor(session.socket) as monitor:
            monitor.execute("stop")
            return _dump(session, chosen, "when recording ended")
    except NestwalkError as error:
        return Dump(why_not=str(error)) if session.alive else _dump(session, chosen, "when the guest had ended")


def _end_qemu(session: Session) -> None:
    session.control.end()
    if session.alive:
        with contextlib.suppress(NestwalkError, OSError), qemu.Monitor(session.socket) as monitor:
            monitor.execute("quit")
    try:
        session.qemu.wait(END_S)
    except subprocess.TimeoutExpired:
        session.qemu.kill()
        session.qemu.wait()


def _release(stream: Path, reader: threading.Thread) -> None:
    """Lets a reader go that waits for a QEMU which never opened the stream."""
    if reader.is_alive():
        with contextlib.suppress(OSError):
            os.close(os.open(stream, os.O_WRONLY | os.O_NONBLOCK))
        reader.join(END_S)


def _result(session: Session, chosen: Chosen, dump: Dump, ended: str, seconds: float) -> dict[str, Any]:
    request, report = session.request, session.report or {}
    warnings = [report["warning"]] if report.get("warning") else []
    if ended == FULL:
        warnings.append(f"{FULL}; the trace has all up to there")
    if not report.get("accesses"):
        raise NestwalkError(
            f"{chosen.name} made no access in {seconds:.0f} s of recording; record longer, or name another process"
        )
    if dump.summary is None:
        warnings.append(f"no page tables were written: {dump.why_not}")
    else:
        files.write_file(request.tables, (session.folder / "tables").read_bytes())
        if not dump.at.endswith("recording ended"):
            warnings.append(f"the page tables are as they were {dump.at}")
    target = files.resolve(request.trace)
    if session.part != target:
        files.install(session.part, target)
        files.written.append(request.trace)
    recorded = report["counts"]["recorded"]
    return {
        "trace": str(request.trace),
        "tables": str(request.tables) if dump.summary is not None else None,
        "process": {"name": chosen.name, "program": chosen.program, "cr3": f"{chosen.cr3:#x}"},
        "ended": ended,
        "seconds": round(seconds, 3),
        "accesses_per_second": round(recorded / seconds) if seconds > 0 else None,
        "accesses": report["accesses"],
        "bytes": report["bytes"],
        "footprint_bytes": report["footprint_pages"] * 4096,
        "vcpus": report["vcpus"],
        "recorded": report["counts"],
        "frames": report["frames"] if dump.summary is not None else None,
        "page_tables": {"at": dump.at, **dump.summary} if dump.summary is not None else None,
        "warnings": warnings,
    }
