# SPDX-License-Identifier: MIT OR Apache-2.0
"""One run in a process of its own: ``python -m nestwalk.worker``.

A job comes in on standard input as one line of JSON, with ``scenario`` (TOML text), ``path`` (its file's, for messages
and relative paths) and ``traces`` (the folder of the bundled traces). What goes out on standard output is JSON too, a
message a line: ``{"progress": [done, total]}`` again and again, and at the end ``{"result": ...}`` or
``{"error": "one line"}``. A worker whose parent is gone stops by itself.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any

from nestwalk import _native
from nestwalk.errors import NestwalkError

SECONDS_BETWEEN_MESSAGES = 0.1


def main() -> int:
    """Does the job on standard input."""
    # Ctrl-C goes to the parent, which then ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = os.getppid()
    job = json.loads(sys.stdin.readline())
    last = time.monotonic()

    def progress(done: int, total: int | None) -> bool:
        nonlocal last
        now = time.monotonic()
        if now - last >= SECONDS_BETWEEN_MESSAGES:
            last = now
            _say({"progress": [done, total]})
        return os.getppid() == parent

    try:
        result = _native.run(job["scenario"], job["path"], job["traces"], progress)
    except NestwalkError as error:
        _say({"error": str(error)})
        return 0
    # The result is JSON already: it is passed on as it is.
    sys.stdout.write(f'{{"result": {result}}}\n')
    sys.stdout.flush()
    return 0


def _say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
