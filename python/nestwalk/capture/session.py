# SPDX-License-Identifier: MIT OR Apache-2.0
"""One capture: the program under QEMU, a FIFO, and the library that makes a trace of what comes through it.

The program runs in a process group of its own, so that Ctrl-C reaches Nestwalk only, which then ends the program and
completes the trace. Whatever ends the program, the stream ends, and the trace holds all up to there. Only a damaged
stream or a second Ctrl-C leave no trace.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nestwalk import _native, data, files, process_group, say
from nestwalk.capture import children, view
from nestwalk.capture.view import State
from nestwalk.capture.when import When
from nestwalk.errors import NestwalkError, printable, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nestwalk.capture.program import Program

PLUGIN_ENDED = 125
"""Exit code of a program that the plugin ended (``plugin/capture.c``)."""
GRACE_SECONDS = 10.0
"""For a program to end by itself once it has been asked to."""
READY_SECONDS = 300.0
"""For a server to answer: under QEMU it is some ten times slower than otherwise."""
POLL_SECONDS = 0.05
SHOW_SECONDS = 0.5
LACKEY = ("--tool=lackey", "--trace-mem=yes", "--trace-children=no", "--child-silent-after-fork=yes")
"""What makes valgrind write every access, as text: some 0.3 million a second."""
MODEL_OFF_MAX = 0.03
"""As far as what is measured may be from the whole program by the model, without a warning: a share."""
RESERVE_BYTES = 32_000_000
"""Of the disk: what completing the trace takes besides its size, and what arrives meanwhile."""
SUMS = re.compile(
    r"(?P<accesses>\d+) accesses, (?P<instructions>\d+) instructions, (?P<threads>\d+) threads, (?P<events>\d+) events"
)
"""The plugin's line about what it wrote."""
PERSONALITY_ASK, ADDR_NO_RANDOMIZE = 0xFFFF_FFFF, 0x004_0000
"""Of ``personality(2)``; per thread, and inherited."""
ABANDON, GO_ON, SAMPLE = 0, 1, 2
"""What the library's progress callback answers (``crates/python/src/capture.rs``)."""


@dataclass(frozen=True)
class Following:
    """Simulations that follow a program while it runs."""

    runs: list[tuple[str, str]]
    """Scenarios, whose workload is not looked at, and the files that they are said to come from."""
    footprint: int
    """Bytes that the program may touch."""
    threads: int
    """Cores; more threads share them in turn."""


@dataclass(frozen=True)
class Request:
    """What to capture, and how."""

    program: Program
    target: Path
    emulator: str
    """The QEMU to run it under, or valgrind."""
    plugin: Path | None
    """QEMU's plugin; None: the emulator is valgrind."""
    size: int
    """The most bytes of the trace."""
    precision: float
    """Half of the 95 % interval of the walk latency, as a share of it, that is enough."""
    whole: bool = False
    """Keep every access."""
    raw: bool = False
    """Keep the plugin's stream, as it is."""
    begin: When = field(default_factory=When)
    end: When = field(default_factory=When)
    follow: str | None = None
    port: int | None = None
    client: str | None = None
    title: str | None = None
    spool: int | None = None
    """Bytes on disk after which half as much is kept of what follows; the library's own if None."""
    children: bool = False
    """Each process that the program starts becomes a trace, too."""
    following: Following | None = None
    """Simulations that follow the program, in place of a trace."""
    quiet_output: bool = False
    """The program's standard output goes to standard error: standard output is for JSON."""


@dataclass
class Outcome:
    """What came of it."""

    report: dict[str, Any]
    exit_code: int
    """The program's own; above 128 it is the signal that ended it, as shells have it."""
    warnings: list[str]


class Session:
    """A capture that runs."""

    def __init__(self, request: Request, directory: Path) -> None:
        """``directory`` is a new one, for the FIFO and the plugin's messages."""
        self._request = request
        self._directory = directory
        self._fifo = directory / "stream"
        self._log = directory / "log"
        self._state = State()
        self._answer = GO_ON
        self._failure: BaseException | None = None
        self._report: dict[str, Any] = {}
        self._signals = 0
        self._stopped: str | None = None
        self._stop_asked = 0.0
        self._full = False
        self.warnings: list[str] = []
        self._children = children.Children(directory, request.target, self._child)

    def run(self) -> Outcome:
        """Captures, to the end.

        Raises:
            NestwalkError: When there is nothing to capture, or no trace can be made.
        """
        os.mkfifo(self._fifo)
        # Held open for as long as the program runs: the library's reader then waits for it, not for the first writer.
        reading = os.open(self._fifo, os.O_RDONLY | os.O_NONBLOCK)
        writing = os.open(self._fifo, os.O_WRONLY)
        reader = threading.Thread(target=self._read, daemon=True)
        with ExitStack() as stack:
            stack.callback(os.close, reading)
            closing = stack.enter_context(_closing(writing))
            stack.enter_context(self._handlers())
            process = self._start()
            stack.callback(process_group.kill, process)
            show = stack.enter_context(view.watch(self._request.program.title))
            reader.start()
            driver = self._drive(process)
            self._wait(process, driver, reader, show)
            closing()
            self._join(reader, show)
            self._children.finish(process.pid)
        return self._conclude(process.returncode)

    def _start(self) -> subprocess.Popen[bytes]:
        request = self._request
        program = request.program
        out = sys.stderr.fileno() if request.quiet_output else None
        if request.plugin is None:
            before = [request.emulator, *LACKEY, f"--log-file={self._fifo}"]
        else:
            before = [request.emulator, "-0", program.name, "-plugin", self._plugin(request.plugin)]
        with _fixed_addresses():
            return subprocess.Popen(
                [*before, program.path, *program.arguments],
                stdin=subprocess.DEVNULL if sys.stdin is None or sys.stdin.isatty() else None,
                stdout=out,
                process_group=0,
            )

    def _plugin(self, plugin: Path) -> str:
        """QEMU's argument about the plugin; a comma ends a part of it."""
        request = self._request
        parts = [str(plugin), f"out={self._fifo}", f"log={self._log}", "summary=on"]
        if request.children:
            parts.append(f"each={self._directory / children.PREFIX}")
        if request.end.accesses is not None:
            parts.append(f"max={request.end.accesses}")
        if self._follows:
            claim, seen = self._directory / "claim", self._directory / "seen"
            parts += [f"follow={request.follow}", f"claim={claim}", f"seen={seen}"]
        if any("," in part for part in parts):
            text = shown(",".join(parts))
            raise NestwalkError(f"a comma in a path ends it for QEMU: {text}; set TMPDIR or XDG_CACHE_HOME")
        return ",".join(parts)

    @property
    def _follows(self) -> bool:
        """Whether the program is a driver, and not itself the one to be recorded."""
        follow, program = self._request.follow, self._request.program
        return follow is not None and follow not in (program.name, program.title)

    def _read(self) -> None:
        """In a thread of its own: makes the trace of what comes."""
        request = self._request
        try:
            if request.raw:
                self._report = _copy(self._fifo, request.target, self._hear)
                return
            options = {
                **self._options(),
                "whole": request.whole,
                "begin_accesses": request.begin.accesses,
                "begin_mark": request.begin.mark,
                "begin_told": request.begin.signal or request.begin.seconds is not None,
                "end_mark": request.end.mark,
            }
            if request.following is not None:
                following = json.dumps(asdict(request.following))
                traces = str(data.TRACES)
                text = _native.capture_live(str(self._fifo), following, json.dumps(options), traces, self._hear)
            else:
                text = _native.capture(str(self._fifo), os.fspath(request.target), json.dumps(options), self._hear)
            self._report = json.loads(text)
        except BaseException as error:  # noqa: BLE001 (told in the main thread)
            self._failure = error

    def _options(self) -> dict[str, Any]:
        """What the library is to know, but for when sampling begins and ends."""
        request = self._request
        return {
            "program": request.title or (request.follow or request.program.title),
            "command": printable(request.program.command),
            "size": request.size,
            "precision": request.precision,
            "whole": False,
            "begin_accesses": None,
            "begin_mark": None,
            "begin_told": False,
            "end_mark": None,
            "spool": request.spool,
            "seed": 1,
        }

    def _child(self, source: Path, target: Path) -> dict[str, Any]:
        """Makes the trace of a child, in a thread of its own."""
        options = {**self._options(), "program": target.stem}
        found: dict[str, Any] = json.loads(
            _native.capture(str(source), os.fspath(target), json.dumps(options), self._hear_child)
        )
        return found

    def _hear_child(self, *_: object) -> int:
        return ABANDON if self._answer == ABANDON else GO_ON

    def _hear(self, accesses: int, footprint_pages: int, walks: int, size: int, ended: bool = False) -> int:  # noqa: FBT
        """What the library calls, in its thread."""
        self._state = State(accesses, footprint_pages, walks if self._request.following is None else None, size)
        if ended:
            self._stop("the mark that was asked for")
        return self._answer

    @contextmanager
    def _handlers(self) -> Iterator[None]:
        """Ctrl-C and SIGTERM end the capture; a second one gives it up. SIGUSR1 ends, SIGUSR2 begins, if so asked."""
        wanted: dict[int, Callable[..., None]] = {signal.SIGINT: self._interrupt, signal.SIGTERM: self._interrupt}
        if self._request.end.signal:
            wanted[signal.SIGUSR1] = lambda *_: self._stop("the signal SIGUSR1")
        if self._request.begin.signal:
            wanted[signal.SIGUSR2] = lambda *_: self._begin()
        before = {number: signal.signal(number, handler) for number, handler in wanted.items()}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _interrupt(self, *_: object) -> None:
        self._signals += 1
        if self._signals > 1:
            self._answer = ABANDON
        self._stop("Ctrl-C or SIGTERM")

    def _stop(self, why: str) -> None:
        """Asks for the end of the program, and so of the stream."""
        self._stopped = self._stopped or why

    def _begin(self) -> None:
        if self._answer == GO_ON:
            self._answer = SAMPLE

    def _wait(
        self,
        process: subprocess.Popen[bytes],
        driver: threading.Thread | None,
        reader: threading.Thread,
        show: Callable[[State], None],
    ) -> None:
        """Until the program has ended, which it is made to if it is time."""
        begun = shown_at = time.monotonic()
        request = self._request
        begin, end = request.begin, request.end
        while process.poll() is None:
            time.sleep(POLL_SECONDS)
            now = time.monotonic()
            self._children.look()
            if begin.seconds is not None and now - begun >= begin.seconds:
                self._begin()
            if end.seconds is not None and now - begun >= end.seconds:
                self._stop(f"--until {end.seconds:g}s")
            failed = not reader.is_alive() and self._failure is not None
            if failed or self._answer == ABANDON or self._full:
                process_group.kill(process)
            elif self._stopped is not None:
                self._end(process, now)
            if now - shown_at >= SHOW_SECONDS:
                shown_at = now
                show(self._state)
                self._check_disk()
            if end.accesses is not None and request.plugin is None and self._state.accesses >= end.accesses:
                self._stop(f"--until {end.accesses}")
        if driver is not None:
            driver.join(GRACE_SECONDS)

    def _check_disk(self) -> None:
        """Ends the capture while there is room to complete the trace."""
        folder = files.resolve(self._request.target).parent
        with suppress(OSError):
            left = shutil.disk_usage(folder).free
            if left < RESERVE_BYTES + (0 if self._request.raw else self._request.size):
                self._full = True
                self._stop("the disk")

    def _end(self, process: subprocess.Popen[bytes], now: float) -> None:
        """SIGTERM, and a while later SIGKILL."""
        if self._stop_asked == 0:
            self._stop_asked = now
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGTERM)
        elif now - self._stop_asked > GRACE_SECONDS:
            process_group.kill(process)

    def _join(self, reader: threading.Thread, show: Callable[[State], None]) -> None:
        """Until the trace is complete: a followed program may outlive its driver, and the last part takes a while."""
        shown_at = time.monotonic()
        while reader.is_alive():
            reader.join(POLL_SECONDS)
            if time.monotonic() - shown_at >= SHOW_SECONDS:
                shown_at = time.monotonic()
                show(replace(self._state, completing=True))

    def _drive(self, process: subprocess.Popen[bytes]) -> threading.Thread | None:
        """Starts the thread that waits for the server and runs the client, if there is any of it."""
        if self._request.client is None and self._request.port is None:
            return None
        thread = threading.Thread(target=self._serve, args=(process,), daemon=True)
        thread.start()
        return thread

    def _serve(self, process: subprocess.Popen[bytes]) -> None:
        port, client = self._request.port, self._request.client
        if port is not None and not _answers(port, process):
            if process.poll() is None:
                self.warnings.append(
                    f"nothing answered at port {port} within {READY_SECONDS:g} s; the program was ended"
                )
                self._stop("--until-ready")
            return
        if client is None:
            say.note(f"{self._request.program.title}: ready at port {port}")
            return
        done = subprocess.run(
            ["/bin/sh", "-c", client],
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr.fileno() if self._request.quiet_output else None,
            check=False,
        )
        if done.returncode != 0:
            self.warnings.append(f"the client ended with {done.returncode}: {client}")
        self._stop("the client's end")

    def _conclude(self, code: int) -> Outcome:
        if self._signals > 1:
            raise KeyboardInterrupt
        said = self._said()
        self._check_followed()
        if self._failure is not None:
            raise self._failure
        if code == PLUGIN_ENDED and self._stopped is None:
            why = said[-1] if said else "QEMU ended it"
            raise NestwalkError(f"the capture is incomplete and was given up: {why}")
        self.warnings += said
        if self._stopped is None and code < 0:
            name = signal.Signals(-code).name
            self.warnings.append(f"the program was ended by {name}; the trace has all that it did before")
        elif self._stopped is None and code > 0:
            self.warnings.append(f"the program ended with exit code {code}")
        elif self._full:
            self.warnings.append("the disk is nearly full; the trace has all up to there")
        elif self._signals:
            self.warnings.append("the capture was stopped by a signal; the trace has all up to there")
        self.warnings += self._about_trace()
        if self._request.children:
            self._report["children"] = self._children.reports
            self.warnings += self._children.warnings
        return Outcome(self._report, code if code >= 0 else 128 - code, list(dict.fromkeys(self.warnings)))

    def _about_trace(self) -> list[str]:
        """What is to be known of the trace itself."""
        report = self._report
        found = []
        warning = report.pop("warning", None)
        expected = [
            "ends inside a block" if self._stopped else None,
            "the capture lacks" if self._request.children else None,
        ]
        if warning and not any(words in warning for words in expected if words):
            found.append(warning)
        half = report.get("walk_latency_ci95")
        if report.pop("over_size", False):
            found.append(
                f"the trace takes {report['bytes']:,} bytes, more than --size: what is kept in any case (first touches "
                "of pages, memory events, a few windows) needs them"
            )
        if report.pop("short_of_room", False) and half is not None and half > self._request.precision:
            found.append(
                f"the walk latency's interval will be about {100 * half:.1f} % instead of "
                f"{100 * self._request.precision:g} %: give more --size, or a longer load"
            )
        off = report.get("model_off")
        if off is not None and off > max(self._request.precision, MODEL_OFF_MAX):
            found.append(
                f"by the capture's own model what is measured is {100 * off:.0f} % off the program as a whole: "
                "give more --size, or a longer load"
            )
        return found

    def _said(self) -> list[str]:
        """What the plugin had to say, but for its sums."""
        with suppress(OSError):
            lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
            texts = [printable(line.removeprefix("nestwalk-capture: ").removeprefix("warning: ")) for line in lines]
            sums = [found for text in texts if (found := SUMS.fullmatch(text))]
            if self._request.raw:
                self._report |= {key: int(value) for found in sums for key, value in found.groupdict().items()}
            return [text for text in texts if not SUMS.fullmatch(text)]
        return []

    def _check_followed(self) -> None:
        """Refuses a capture of nothing."""
        if not self._follows or (self._directory / "claim").exists():
            return
        seen = self._directory / "seen"
        names = sorted(set(seen.read_text(errors="replace").splitlines())) if seen.exists() else []
        started = f"it started {', '.join(map(printable, names[:20]))}" if names else "it started none"
        raise NestwalkError(
            f"no program called {shown(self._request.follow or '')} was started, so there is no trace; {started}"
        )


def run(request: Request) -> Outcome:
    """Makes the capture that ``request`` describes.

    Raises:
        NestwalkError: When no trace can be made; says why.
    """
    files.check_file(request.target)
    before = _processor_seconds()
    with tempfile.TemporaryDirectory(prefix="nestwalk-capture-") as directory:
        done = Session(request, Path(directory)).run()
    done.report["cpu_seconds"] = round(_processor_seconds() - before, 3)
    return done


def _processor_seconds() -> float:
    """Of this process and of those that it waited for: the program under QEMU, and the client."""
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in usage)


@contextmanager
def _closing(descriptor: int) -> Iterator[Callable[[], None]]:
    """A function that closes ``descriptor`` before the block ends; it is closed there in any case."""
    is_open = True

    def close() -> None:
        nonlocal is_open
        if is_open:
            is_open = False
            os.close(descriptor)

    try:
        yield close
    finally:
        close()


@contextmanager
def _fixed_addresses() -> Iterator[None]:
    """What is started in the block gets the same addresses in each run (``setarch -R``), where that is allowed.

    QEMU 8.1 and later place a program's mappings where the host's kernel does, at random addresses otherwise.
    """
    personality = ctypes.CDLL(None).personality
    before = personality(ctypes.c_ulong(PERSONALITY_ASK))
    if before != -1:
        personality(ctypes.c_ulong(before | ADDR_NO_RANDOMIZE))
    try:
        yield
    finally:
        if before != -1:
            personality(ctypes.c_ulong(before))


def _answers(port: int, process: subprocess.Popen[bytes]) -> bool:
    """Waits until something listens at a port of this machine, or the program has ended, or it takes too long."""
    until = time.monotonic() + READY_SECONDS
    while time.monotonic() < until and process.poll() is None:
        for host in ("127.0.0.1", "::1"):
            with suppress(OSError), socket.create_connection((host, port), 1):
                return True
        time.sleep(POLL_SECONDS)
    return False


COPY_BYTES = 1 << 20


def _copy(source: Path, target: Path, hear: Callable[[int, int, int, int], int]) -> dict[str, Any]:
    """Keeps the stream as it is; through ``target`` where that is a FIFO or a device."""
    with files.telling(target):
        resolved = files.resolve(target)
        special = files.is_special(resolved)
        part = resolved if special else files.neighbour(resolved)
        size = 0
        try:
            with source.open("rb") as stream, part.open("wb") as out:
                while block := stream.read(COPY_BYTES):
                    out.write(block)
                    size += len(block)
                    if hear(size // 16, 0, 0, size) == ABANDON:
                        raise KeyboardInterrupt
            if not special and size > 0:
                files.install(part, resolved)
                files.written.append(target)
        finally:
            if not special:
                part.unlink(missing_ok=True)
    return {"bytes": size}
