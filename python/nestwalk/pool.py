# SPDX-License-Identifier: MIT OR Apache-2.0
"""Runs side by side, in worker processes (:mod:`nestwalk.worker`).

Runs that differ in hardware only go one after the other in one worker, which populates their memory once and copies
itself for each (``fork``). They change nothing for each other, so results do not depend on that, on how many go at
once, or on which ends first. A process each, rather than a thread, means that one that is killed for want of memory is
an error message and not the end of the command.
"""

from __future__ import annotations

import json
import os
import queue
import re
import subprocess
import sys
import threading
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Protocol

from nestwalk import _native, data, files
from nestwalk.errors import JOBS_MAX, NestwalkError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from nestwalk.toml_file import KeyPath

WORKER = ["-m", "nestwalk.worker"]
"""What Python is told to run for each group of jobs."""


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

    def explain(self, message: str) -> str:
        """An error of the engine, with the place that the user knows in place of lines that nobody wrote."""
        said = re.match(rf"{re.escape(str(self.path))}(?::(\d+):(\d+))?: ", message)
        if self.origin is None or said is None:
            return message
        line, column = said.groups()
        names = _native.toml_path_at(self.scenario, int(line), int(column)) if line else []
        path = tuple(int(name) if name.isdecimal() else name for name in names)
        return f"{self.origin(path)}: {message[said.end() :]}"

    def message(self) -> dict[str, str]:
        """What a worker is told of it."""
        return {"scenario": self.scenario, "path": str(self.path)}

    @property
    def populated_by(self) -> str | None:
        """What it has in common with jobs whose memory is populated in the same way; None if it cannot be read."""
        try:
            return _native.populated_by(self.scenario, str(self.path))
        except NestwalkError:  # its worker says why
            return None


class Watcher(Protocol):
    """Somebody who is told how the runs get on, in the thread that called :func:`run_all`."""

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


def run_all(jobs: Sequence[Job], processes: int, watcher: Watcher) -> list[dict[str, Any]]:
    """Makes all runs, ``processes`` at a time, and returns their results in the order of ``jobs``.

    Raises:
        NestwalkError: The first run that fails; the others are stopped.
        KeyboardInterrupt: On Ctrl-C, after all workers are gone.
    """
    check_count(processes)
    work = groups([job.populated_by for job in jobs], processes)
    crew = _Crew([[(index, jobs[index]) for index in group] for group in work])
    results: dict[int, dict[str, Any]] = {}
    try:
        crew.start(min(processes, len(work)))
        while len(results) < len(jobs):
            index, message = crew.messages.get()
            if message is None:
                watcher.started(index)
            elif "progress" in message:
                done, total = message["progress"]
                watcher.advanced(index, min(done / total, 1.0) if total else 0.0)
            elif "result" in message:
                results[index] = message["result"]
                watcher.finished(index)
            else:
                said = jobs[index].explain(message["error"])
                raise NestwalkError(said if said != message["error"] else f"{jobs[index].name}: {said}")
    finally:
        crew.stop()
    return [results[index] for index in range(len(jobs))]


def groups(populated_by: Sequence[str | None], processes: int) -> list[list[int]]:
    """Which jobs go together in one worker, largest groups first, of jobs that are populated by so and so.

    Where there are fewer groups than ``processes``, some populate the same memory, so that none of these is idle.
    """
    found: dict[object, list[int]] = {}
    for index, key in enumerate(populated_by):
        found.setdefault(index if key is None else key, []).append(index)
    work = list(found.values())
    while work and len(work) < processes:
        largest = max(work, key=len)
        if len(largest) == 1:
            break
        middle = (len(largest) + 1) // 2
        work.remove(largest)
        work += [largest[:middle], largest[middle:]]
    return sorted(work, key=lambda group: (-len(group), group[0]))


class _Crew:
    """Threads that each look after one worker process at a time."""

    def __init__(self, work: Sequence[Sequence[tuple[int, Job]]]) -> None:
        self.messages: queue.Queue[tuple[int, dict[str, Any] | None]] = queue.Queue()
        self._todo: queue.SimpleQueue[Sequence[tuple[int, Job]]] = queue.SimpleQueue()
        for group in work:
            self._todo.put(group)
        self._lock = threading.Lock()
        self._stopping = False
        self._processes: set[subprocess.Popen[str]] = set()
        self._threads: list[threading.Thread] = []

    def start(self, count: int) -> None:
        for _ in range(count):
            thread = threading.Thread(target=self._work, daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """Ends all workers and waits for them."""
        with self._lock:
            self._stopping = True
            for process in self._processes:
                process.kill()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while True:
            try:
                group = self._todo.get_nowait()
            except queue.Empty:
                return
            try:
                process = self._launch()
            except OSError as error:
                why = f"no process can be started for it: {files.reason(error)}"
                self.messages.put((group[0][0], {"error": why}))
                return
            if process is None:
                return
            try:
                self._follow(process, group)
            except Exception as error:  # noqa: BLE001 (a thread that ends without a word would be waited for for ever)
                why = f"this is a bug in Nestwalk, please report it: {error!r}"
                self.messages.put((group[0][0], {"error": why}))
            finally:
                with self._lock:
                    self._processes.discard(process)

    def _launch(self) -> subprocess.Popen[str] | None:
        """A new worker, unless all are to stop."""
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
            )
            self._processes.add(process)
            return process

    def _follow(self, process: subprocess.Popen[str], group: Sequence[tuple[int, Job]]) -> None:
        """Passes on what a worker says until it ends."""
        order = {"jobs": [job.message() for _, job in group], "traces": str(data.TRACES)}
        index, done = group[0][0], 0
        try:
            with process:
                order_in, messages_out, complaints = _pipes(process)
                order_in.write(json.dumps(order) + "\n")
                order_in.close()
                for line in messages_out:
                    message = json.loads(line)
                    if "job" in message:
                        index = group[message["job"]][0]
                        self.messages.put((index, None))
                        continue
                    done += "progress" not in message
                    self.messages.put((index, message))
                    if "error" in message:
                        return
                complaint = complaints.read()
            if done < len(group):
                self.messages.put((index, {"error": _death(process.returncode, complaint)}))
        except (OSError, ValueError) as error:  # it was killed in the middle of a line, or before it read its job
            self.messages.put((index, {"error": _death(process.wait(), str(error))}))


def _pipes(process: subprocess.Popen[str]) -> tuple[IO[str], IO[str], IO[str]]:
    """Its standard input, output and error, all of which are pipes."""
    if process.stdin is None or process.stdout is None or process.stderr is None:
        raise ValueError("a worker has three pipes")
    return process.stdin, process.stdout, process.stderr


def _death(code: int, complaint: str) -> str:
    """One line about a worker that ended without a result."""
    if code < 0:
        return f"its process was ended by signal {-code}; if memory ran out, run fewer at once (--jobs 1)"
    last = complaint.strip().splitlines()[-1:] or ["it said nothing"]
    return f"its process failed, which is a bug in Nestwalk; please report it with the scenario: {last[0]}"
