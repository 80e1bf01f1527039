# SPDX-License-Identifier: MIT OR Apache-2.0
"""Runs in a process of their own: ``python -m nestwalk.worker``.

What to do comes in on standard input as one line of JSON, with ``jobs``, each of which has ``scenario`` (TOML text) and
``path`` (its file's, for messages and relative paths), and ``traces`` (the folder of the bundled traces). Several jobs
are populated in the same way (:func:`nestwalk._native.populated_by`): their memory is populated once, and each goes on
from there in a copy of the process (``fork``), one after the other. The kernel copies pages of it only when they are
written to.

What goes out on standard output is JSON too, a message a line: ``{"job": number}`` when one begins,
``{"progress": [done, total]}`` again and again, and at its end ``{"result": ...}`` or ``{"error": "one line"}``, after
which no other job begins. A worker whose parent is gone stops by itself.
"""

from __future__ import annotations

import json
import os
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


def main() -> int:
    """Does the jobs on standard input."""
    # Ctrl-C goes to the parent, which then ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    order = json.loads(sys.stdin.readline())
    jobs, traces = order["jobs"], order["traces"]
    _say({"job": 0})
    first = jobs[0]
    if len(jobs) == 1:
        return _tell(lambda: _native.run(first["scenario"], first["path"], traces, _Progress()))
    try:
        machine = _native.Populated(first["scenario"], first["path"], traces, _Progress())
    except NestwalkError as error:
        _say({"error": str(error)})
        return 0
    for number, job in enumerate(jobs):
        if number:
            _say({"job": number})
        _run_in_copy(machine, job)
    return 0


def _run_in_copy(machine: _native.Populated, job: dict[str, str]) -> None:
    """Makes one run on a copy of the populated machine, and passes on what it says.

    A copy that dies takes this process with it, in the same way, so that who waits for it sees what has happened.
    """
    messages, said = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(messages)
            os.dup2(said, sys.stdout.fileno())
            os.close(said)
            code = _tell(lambda: machine.run(job["scenario"], job["path"], _Progress()))
        except BaseException:  # noqa: BLE001 (whatever it is, this copy must not go on with its parent's work)
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    os.close(said)
    with os.fdopen(messages, "rb") as lines:
        for line in lines:
            sys.stdout.buffer.write(line)
            sys.stdout.flush()
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        os.kill(os.getpid(), -code)
    elif code > 0:
        sys.exit(code)


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


def _tell(run: Callable[[], str]) -> int:
    """Says what ``run`` comes to: a result, which is JSON already, is passed on as it is."""
    try:
        result = run()
    except NestwalkError as error:
        _say({"error": str(error)})
        return 0
    sys.stdout.write(f'{{"result": {result}}}\n')
    sys.stdout.flush()
    return 0


def _say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
