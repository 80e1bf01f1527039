# SPDX-License-Identifier: MIT OR Apache-2.0
"""Programs that are started in a process group of their own, so that what they start ends with them."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import subprocess


def kill(process: subprocess.Popen[bytes]) -> None:
    """Ends the program's process group, if any of it is left."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    if process.poll() is None:
        process.wait()
