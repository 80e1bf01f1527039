# SPDX-License-Identifier: MIT OR Apache-2.0
"""Runs in worker processes (:mod:`nestwalk.worker`).

:func:`carry_out` is what every executor calls, here or on another machine: it makes the runs of one group in a process
apart, so that one that is killed for want of memory is an outcome and not the end of its caller. Runs that differ in
hardware only go one after the other in one group, which populates their memory once. They change nothing for each
other, so results do not depend on that, on how many go at once, or on which ends first.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol

from nestwalk import _native, data, files, orders
from nestwalk.errors import JOBS_MAX, NestwalkError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from nestwalk.orders import Blob, Order
    from nestwalk.toml_file import KeyPath

WORKER = ["-m", "nestwalk.worker"]
"""What Python is told to run."""


SECONDS_TO_END = 10
"""That a worker has to end when its standard input does."""


@dataclass(frozen=True)
class Job:
    """A run to be made."""

    name: str
    """Its name in tables and messages."""
    scenario: str
    """TOML text."""
    path: Path
    """Its file's, for messages and relative paths; the file need not exist."""
    origin: Callable[[KeyPath], str] | None = None
    """Where a user finds what is at a path of keys of the scenario, if not in a file of that name."""
    parts: Mapping[str, tuple[str, Callable[[KeyPath], str]]] = field(default_factory=dict)
    """Text and origin of machine and cost files that were made for it, by the name that the scenario has for them."""

    def explain(self, message: str) -> str:
        """An error of the engine, with the place that the user knows in place of lines that nobody wrote."""
        if self.origin is None:
            return message
        for file, (text, origin) in {str(self.path): (self.scenario, self.origin), **self.parts}.items():
            said = re.match(rf"{re.escape(file)}(?::(\d+):(\d+))?: ", message)
            if said is not None:
                line, column = said.groups()
                names = _native.toml_path_at(text, int(line), int(column)) if line else []
                path = tuple(int(name) if name.isdecimal() else name for name in names)
                return f"{origin(path)}: {message[said.end() :]}"
        return message


@dataclass(frozen=True)
class Outcome:
    """What became of a run."""

    result: dict[str, Any] | None = None
    """None where it failed."""
    error: str = ""
    """One line, which may name places in the scenario as it was written for the engine."""
    died: bool = False
    """Whether its process was killed, so that another try may go better."""
    seconds: float = 0.0
    """That it took."""
    memory_bytes: int = 0
    """That its process had at most."""
    written: tuple[str, str] = ("", "")
    """Path and text of the scenario that the engine read, for places in :attr:`error`."""


class Watcher(Protocol):
    """Somebody who is told how the runs get on, in the thread that asked for them."""

    def started(self, index: int) -> None:
        """Run ``index`` begins."""

    def advanced(self, index: int, share: float) -> None:
        """``share`` of run ``index``, from 0 to 1, is done."""

    def finished(self, index: int) -> None:
        """Run ``index`` is done."""


class Silent:
    """A watcher that says nothing."""

    def started(self, index: int) -> None:
        """Nothing."""

    def advanced(self, index: int, share: float) -> None:
        """Nothing."""

    def finished(self, index: int) -> None:
        """Nothing."""


class Part:
    """A watcher of some of the runs that another one watches."""

    def __init__(self, whole: Watcher, indices: Sequence[int]) -> None:
        """Of those of ``indices``."""
        self._whole, self._indices = whole, indices

    def started(self, index: int) -> None:
        """Tells the other one."""
        self._whole.started(self._indices[index])

    def advanced(self, index: int, share: float) -> None:
        """Tells the other one."""
        self._whole.advanced(self._indices[index], share)

    def finished(self, index: int) -> None:
        """Tells the other one."""
        self._whole.finished(self._indices[index])


def processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0))


def check_count(processes: object) -> int:
    """``processes``, which must be a number of runs at a time.

    Raises:
        NestwalkError: When it is something else.
    """
    if isinstance(processes, bool) or not isinstance(processes, int) or not 1 <= processes <= JOBS_MAX:
        raise NestwalkError(f"{processes!r} jobs at a time: give a whole number from 1 to {JOBS_MAX}")
    return processes


def groups(populated_by: Sequence[object], processes: int, largest: int | None = None) -> list[list[int]]:
    """Which jobs go together in one worker, largest groups first, of jobs that are populated by so and so.

    Where there are fewer groups than ``processes``, some populate the same memory, so that none of these is idle. No
    group has more than ``largest`` jobs: what is lost with a machine is a group at most.
    """
    found: dict[object, list[int]] = {}
    for index, key in enumerate(populated_by):
        found.setdefault(key, []).append(index)
    work = [
        group[start : start + size]
        for group in found.values()
        for size in [largest or len(group)]
        for start in range(0, len(group), size)
    ]
    while work and len(work) < processes:
        longest = max(work, key=len)
        if len(longest) == 1:
            break
        middle = (len(longest) + 1) // 2
        work.remove(longest)
        work += [longest[:middle], longest[middle:]]
    return sorted(work, key=lambda group: (-len(group), group[0]))


class LocalExecutor(ThreadPoolExecutor):
    """Threads of this process, each of which keeps a worker process: the executor that needs nothing installed."""

    def __init__(self, processes: int) -> None:
        """For so many runs at a time."""
        super().__init__(processes, thread_name_prefix="nestwalk")
        self.workers = Workers()

    def stop(self) -> None:
        """Ends all workers, what is under way is lost, and waits for the threads."""
        self.workers.stop()
        self.shutdown(wait=True, cancel_futures=True)
        self.workers.close()


class Workers:
    """The worker processes of some threads, one each."""

    def __init__(self) -> None:
        """None yet: each thread starts its own when it has something to do."""
        self._lock = threading.Lock()
        self._stopping = False
        self._all: set[subprocess.Popen[str]] = set()
        self._own = threading.local()
        self._left: list[subprocess.Popen[str]] = []

    def mine(self) -> subprocess.Popen[str] | None:
        """This thread's worker, a new one if there is none; None when all are to stop."""
        process: subprocess.Popen[str] | None = getattr(self._own, "process", None)
        if process is not None and process.poll() is None:
            return process
        with self._lock:
            if self._stopping:
                return None
            process = subprocess.Popen(
                [sys.executable, *WORKER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                process_group=0,  # so that a worker is ended with all its copies
            )
            self._all.add(process)
        self._own.process = process
        return process

    def end(self, process: subprocess.Popen[str]) -> None:
        """Forgets a worker that has ended, or is of no use any more."""
        _kill(process)
        _close(process)
        with self._lock:
            self._all.discard(process)
        self._own.process = None

    def stop(self) -> None:
        """Ends all workers, and starts no other."""
        with self._lock:
            self._stopping = True
            everyone, self._all = self._all, set()
        for process in everyone:
            _kill(process)
        for process in everyone:
            process.wait()
            self._left.append(process)

    def close(self) -> None:
        """Closes the pipes of the workers that were ended, when no thread reads them any more."""
        while self._left:
            _close(self._left.pop())


def _kill(process: subprocess.Popen[str]) -> None:
    """Ends a worker with all its copies."""
    try:
        os.killpg(process.pid, 9)
    except ProcessLookupError:
        process.kill()


def _close(process: subprocess.Popen[str]) -> None:
    """Closes the pipes of a worker that has ended."""
    process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        with suppress(OSError, ValueError):
            _pipe(stream).close()


HERE = Workers()
"""The workers of threads that no :class:`LocalExecutor` has made, such as those of a cluster's worker."""


def carry_out(
    group: Sequence[Order],
    tell: Callable[[int, Outcome | float | None], None] | None = None,
    find: Callable[[Blob], Path] | None = None,
    workers: Workers | None = None,
) -> list[Outcome]:
    """Makes the runs of a group, one after the other, in this thread's worker process.

    Args:
        group: Orders that are populated in the same way.
        tell: Is told the number of a run in the group and: None when it begins, the share that is done, its outcome.
        find: Where files that the orders name are, if not where they were on the machine that wrote them.
        workers: Whose the process is.
    """
    crew = HERE if workers is None else workers
    told = tell or (lambda _number, _what: None)
    with tempfile.TemporaryDirectory(prefix="nestwalk-") as name:
        texts = [order.written(Path(name), find or (lambda blob: Path(blob.path))) for order in group]
        paths = [str(Path(name) / f"{orders.NAME}{orders.SUFFIX}")] * len(group)
        if group[0].model != _native.model():
            what = f"this machine has model {_native.model()} of the engine, and the order is for {group[0].model}"
            return [Outcome(error=f"{what}; install the same version of nestwalk on both")] * len(group)
        return _follow(crew, list(zip(group, texts, paths, strict=True)), told)


def _follow(
    crew: Workers,
    work: Sequence[tuple[Order, str, str]],
    tell: Callable[[int, Outcome | float | None], None],
) -> list[Outcome]:
    """Hands ``work`` to a worker and collects what it says, until it has ended all of it."""
    made: list[Outcome] = []

    def end(outcome: Outcome) -> None:
        tell(len(made), outcome)
        made.append(outcome)

    try:
        process = crew.mine()
    except OSError as error:
        for _ in work:
            end(Outcome(error=f"no process can be started for it: {files.reason(error)}"))
        return made
    if process is None:
        return made
    code: int | None = None
    complaint = ""
    try:
        _hand_over(process, work)
        for message in _messages(process):
            if "ended" in message:
                code = message["ended"]
                break
            outcome = _understood(message, *work[len(made)])
            if isinstance(outcome, Outcome):
                end(outcome)
            else:
                tell(len(made), outcome)
    except (OSError, ValueError) as error:  # it was killed in the middle of a line, or before it read its order
        complaint = str(error)
    if code != 0:
        if code is None or code > 0:
            complaint = _last_words(process, crew) or complaint
        code = process.wait() if code is None else code
    for _ in range(len(made), len(work)):
        end(Outcome(error=_death(code, complaint), died=code < 0))
    return made


def _hand_over(process: subprocess.Popen[str], work: Sequence[tuple[Order, str, str]]) -> None:
    """Writes an order to a worker."""
    jobs = [{"scenario": text, "path": path} for _, text, path in work]
    order_in = _pipe(process.stdin)
    order_in.write(json.dumps({"jobs": jobs, "traces": str(data.TRACES)}) + "\n")
    order_in.flush()


def _messages(process: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    """What a worker says."""
    for line in _pipe(process.stdout):
        message: dict[str, Any] = json.loads(line)
        yield message


def _understood(message: Mapping[str, Any], order: Order, text: str, path: str) -> Outcome | float | None:
    """A message about a run: None when it begins, the share that is done, or its outcome."""
    if "job" in message:
        return None
    if "progress" in message:
        done, total = message["progress"]
        return min(done / total, 1.0) if total else 0.0
    if "result" in message:
        result = orders.plain(message["result"], order)
        return Outcome(result, seconds=message["seconds"], memory_bytes=message["memory_bytes"])
    return Outcome(error=message["error"], written=(path, text))


def _last_words(process: subprocess.Popen[str], crew: Workers) -> str:
    """What a worker that is given up wrote to standard error."""
    said = ""
    with suppress(OSError, ValueError):
        _pipe(process.stdin).close()  # it ends, if it has not
    with suppress(OSError, ValueError):
        said = _pipe(process.stderr).read()
    with suppress(subprocess.TimeoutExpired):
        process.wait(SECONDS_TO_END)
    crew.end(process)
    return said


def _pipe(stream: IO[str] | None) -> IO[str]:
    """A stream of a worker, which is a pipe."""
    if stream is None:
        raise ValueError("a worker has three pipes")
    return stream


def _death(code: int, complaint: str) -> str:
    """One line about a worker that ended without a result."""
    if code < 0:
        return f"its process was ended by signal {-code}; if memory ran out, run fewer at once (--jobs 1)"
    last = complaint.strip().splitlines()[-1:] or ["it said nothing"]
    return f"its process failed, which is a bug in Nestwalk; please report it with the scenario: {last[0]}"
