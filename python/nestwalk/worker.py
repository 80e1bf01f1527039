# SPDX-License-Identifier: MIT OR Apache-2.0
"""A process that makes runs: ``python -m nestwalk.worker``.

What to do comes in on standard input, an order a line of JSON, with ``jobs``, each of which has ``scenario`` (TOML
text) and ``path`` (its file's, for messages and relative paths), and ``traces`` (the folder of the bundled traces).
Each order is carried out in a copy of this process (``fork``), so that all its memory is given back, and a run that
dies leaves this process alive for the next one. Several jobs of an order are populated in the same way
(:func:`nestwalk._native.populated_by`): their memory is populated once, and each goes on from there in a copy of that
copy, one after the other. The kernel copies pages of it only when they are written to.

What goes out on standard output is JSON too, a message a line: ``{"job": number}`` when one begins,
``{"progress": [done, total]}`` again and again, and at its end ``{"result": ...}`` or ``{"error": "one line"}``, with
``seconds`` and ``memory_bytes``. An error of one job does not keep the next ones from being made. ``{"ended": code}``
comes last, with the exit code of the copy (negative: the signal that ended it). A worker whose parent is gone stops by
itself.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import sys
import time
import traceback
from typing import TYPE_CHECKING, Any

from nestwalk import _native
from nestwalk.errors import NestwalkError

if TYPE_CHECKING:
    from collections.abc import Callable

SECONDS_BETWEEN_MESSAGES = 0.1
RSS_UNIT = 1 if sys.platform == "darwin" else 1024
"""Bytes of a unit of ``ru_maxrss``."""
STDIN = 0


def main() -> int:
    """Carries out orders until standard input ends."""
    # Ctrl-C goes to the parent, which then ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    orders = _Orders()
    while (order := orders.next()) is not None:
        child = os.fork()
        if child == 0:
            _leave(lambda: _carry_out(order))
        _say({"ended": os.waitstatus_to_exitcode(orders.wait(child))})
    return 0


class _Orders:
    """Lines of standard input, which is looked at while a copy works, too: its end means that the parent is gone."""

    def __init__(self) -> None:
        self._rest = b""
        self._child_ended, said = os.pipe()
        os.set_blocking(said, False)
        signal.set_wakeup_fd(said, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def next(self) -> dict[str, Any] | None:
        """The next order; None when there will be no other."""
        while b"\n" not in self._rest:
            chunk = os.read(STDIN, 1 << 20)
            if not chunk:
                return None
            self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\n")
        order: dict[str, Any] = json.loads(line)
        return order

    def wait(self, child: int) -> int:
        """Waits for the end of ``child``, or ends it, and this process, when the parent is gone."""
        while True:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return status
            for ready in select.select([STDIN, self._child_ended], [], [])[0]:
                chunk = os.read(ready, 1 << 20)
                if ready == STDIN and not chunk:
                    os.kill(child, signal.SIGKILL)
                    sys.exit(1)
                self._rest += chunk if ready == STDIN else b""


def _carry_out(order: dict[str, Any]) -> int:
    """Makes the runs of an order, in a copy of the worker that ends with them."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    jobs, traces = order["jobs"], order["traces"]
    _say({"job": 0})
    first, begun = jobs[0], time.monotonic()
    if len(jobs) == 1:
        return _tell(begun, lambda: _native.run(first["scenario"], first["path"], traces, _Progress()))
    try:
        machine = _native.Populated(first["scenario"], first["path"], traces, _Progress())
    except NestwalkError as error:
        for number in range(len(jobs)):
            if number:
                _say({"job": number})
            _say({"error": str(error)})
        return 0
    for number, job in enumerate(jobs):
        if number:
            _say({"job": number})
            begun = time.monotonic()
        _run_in_copy(machine, job, begun)
    return 0


def _run_in_copy(machine: _native.Populated, job: dict[str, str], begun: float) -> None:
    """Makes one run on a copy of the populated machine.

    A copy that dies takes this process with it, in the same way, so that who waits for it sees what has happened.
    """
    child = os.fork()
    if child == 0:
        _leave(lambda: _tell(begun, lambda: machine.run(job["scenario"], job["path"], _Progress())))
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        os.kill(os.getpid(), -code)
    elif code > 0:
        sys.exit(code)


def _leave(work: Callable[[], int]) -> None:
    """Does ``work`` in a copy of a process, which must not go on with its parent's work, whatever happens."""
    code = 1
    try:
        code = work()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


class _Progress:
    """Says how far a run is; ends it when nobody listens any more."""

    def __init__(self) -> None:
        self._parent = os.getppid()
        self._last = time.monotonic()

    def __call__(self, done: int, total: int | None) -> bool:
        now = time.monotonic()
        if now - self._last >= SECONDS_BETWEEN_MESSAGES:
            self._last = now
            _say({"progress": [done, total]})
        return os.getppid() == self._parent


def _tell(begun: float, run: Callable[[], str]) -> int:
    """Says what ``run`` comes to: a result, which is JSON already, is passed on as it is."""
    try:
        result = run()
    except NestwalkError as error:
        _say({"error": str(error)})
        return 0
    seconds = time.monotonic() - begun
    memory_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * RSS_UNIT
    sys.stdout.write(f'{{"result": {result}, "seconds": {seconds:.3f}, "memory_bytes": {memory_bytes}}}\n')
    sys.stdout.flush()
    return 0


def _say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
