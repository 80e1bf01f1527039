# SPDX-License-Identifier: MIT OR Apache-2.0
"""One run of a program from its start to its end, timed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
import threading
import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from nestwalk import process_group
from nestwalk.errors import NestwalkError, printable, shown
from nestwalk.timed import pages

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nestwalk.timed.pages import Means, Pages

OUTPUT_SHOWN = 300
"""Characters of a failed program's last words."""
LOOK_SECONDS = 0.1
"""Between two looks at how much memory lies in huge pages; a look takes the kernel 9 ms a GiB."""
LOOKS_MIN = 10
"""With fewer looks, none of which saw a huge page, it is not known whether there was one."""


@dataclass(frozen=True)
class Trial:
    """What a run took. Times of a program that starts others are of all of them."""

    own_s: float | None
    """Seconds, as the program itself says; None if it is not asked."""
    user_s: float
    """Processor time of its own code, in seconds."""
    kernel_s: float
    """Processor time of the kernel for it."""
    elapsed_s: float
    """Time by the clock."""
    faults: int
    """Page faults without reading from a disk."""


def run(words: Sequence[str], which: Pages, how: Means, own: re.Pattern[str] | None) -> Trial:
    """Runs a program to its end with such pages.

    Raises:
        NestwalkError: When it cannot be started, fails, or does not say its own time.
    """
    return _run(words, which, how, own)[0]


def huge_bytes(words: Sequence[str], which: Pages, how: Means) -> int | None:
    """The most memory of the program that lay in huge pages at a time; None where that is not known.

    It is not where the kernel does not say it, and where the program ends too soon. A run of its own: looking takes the
    program's memory lock, so such a run is not timed.

    Raises:
        NestwalkError: As :func:`run`.
    """
    return _run(words, which, how, None, look=True)[1]


def _run(
    words: Sequence[str], which: Pages, how: Means, own: re.Pattern[str] | None, *, look: bool = False
) -> tuple[Trial, int | None]:
    with tempfile.TemporaryFile() as output:
        with pages.started_with(which):
            begun = time.monotonic()
            started = _start(words, pages.environment(which, how), output)
        watch = _Watch(started.pid) if look else None
        try:
            with watch or nullcontext():
                _, status, used = os.wait4(started.pid, 0)
        except BaseException:
            process_group.kill(started)
            raise
        elapsed = time.monotonic() - begun
        started.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        said = output.read().decode(errors="replace")
    if started.returncode:
        raise NestwalkError(_failed(words[0], started.returncode, said))
    return Trial(
        _own(own, said, words[0]), used.ru_utime, used.ru_stime, elapsed, used.ru_minflt
    ), watch.most if watch else None


def _start(words: Sequence[str], environment: dict[str, str], output: IO[bytes]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            list(words),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
    except OSError as error:
        raise NestwalkError(f"{shown(words[0])}: cannot be started: {error.strerror}") from error


def _failed(name: str, code: int, said: str) -> str:
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    last = printable(" ".join(said.split())[-OUTPUT_SHOWN:])
    return f"{shown(name)}: {how}; it said: {last}" if last else f"{shown(name)}: {how}, and said nothing"


def _own(pattern: re.Pattern[str] | None, said: str, name: str) -> float | None:
    """The seconds that the program says it took: the last match."""
    if pattern is None:
        return None
    found = pattern.findall(said)
    if not found:
        raise NestwalkError(f"{shown(name)}: nothing that it says matches '{shown(pattern.pattern)}'")
    try:
        seconds = float(found[-1])
    except ValueError as error:
        raise NestwalkError(
            f"{shown(name)}: '{shown(found[-1])}' matches '{shown(pattern.pattern)}' and is no number of seconds"
        ) from error
    if not seconds > 0:
        raise NestwalkError(f"{shown(name)}: says that it took {seconds:g} seconds, which is nothing to compare")
    return seconds


class _Watch:
    """Looks at a process and at those that it started, from a thread."""

    def __init__(self, pid: int) -> None:
        self._most = self._looks = 0
        self._pid = pid
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    @property
    def most(self) -> int | None:
        """Of what was seen in huge pages, in bytes; None if that is not known."""
        return self._most if self._most or self._looks >= LOOKS_MIN else None

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(LOOK_SECONDS):
            found = _huge_now(self._pid)
            if found is not None:
                self._looks += 1
                self._most = max(self._most, found)


def _huge_now(pid: int, proc: Path = Path("/proc")) -> int | None:
    """Bytes in huge pages of a process and its descendants; None if the kernel does not say."""
    own = proc / str(pid)
    try:
        text = (own / "smaps_rollup").read_text(encoding="ascii")
        children = [
            int(child)
            for task in (own / "task").iterdir()
            for child in (task / "children").read_text(encoding="ascii").split()
        ]
    except (OSError, ValueError):
        return None
    found = re.findall(r"^(?:AnonHugePages|ShmemPmdMapped|FilePmdMapped): *(\d+) kB", text, re.MULTILINE)
    if not found:
        return None
    return sum(map(int, found)) * 1024 + sum(_huge_now(child, proc) or 0 for child in children)
