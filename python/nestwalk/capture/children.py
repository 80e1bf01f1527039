# SPDX-License-Identifier: MIT OR Apache-2.0
"""The processes that a captured program starts, each of which becomes a trace (``--children``).

Each makes a FIFO in the capture's directory as soon as it has something to write (``each=`` in ``plugin/capture.c``). A
child that only executes another program has nothing; the program that it executes has.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from nestwalk.errors import printable

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PREFIX = "child-"
"""How the FIFOs are called."""
ACCESSES_MIN = 100_000
"""A process of fewer accesses leaves no trace: shells start many that do next to nothing."""
POLL_SECONDS = 0.05


class Children:
    """Readers of the children's streams."""

    def __init__(self, directory: Path, target: Path, make: Callable[[Path, Path], dict[str, Any]]) -> None:
        """``make`` turns a FIFO into a trace; the traces of ``redis.nwt`` are called ``redis-1.nwt`` and so on."""
        self._directory = directory
        self._target = target
        self._make = make
        self._readers: dict[Path, threading.Thread] = {}
        self._found: dict[Path, dict[str, Any]] = {}
        self._small = 0
        self._failed: list[str] = []

    def look(self) -> None:
        """Begins to read what is new."""
        for fifo in sorted(self._directory.glob(f"{PREFIX}*")):
            if fifo not in self._readers:
                number = len(self._readers) + 1
                target = self._target.with_name(f"{self._target.stem}-{number}{self._target.suffix}")
                self._readers[fifo] = threading.Thread(target=self._read, args=(fifo, target), daemon=True)
                self._readers[fifo].start()

    def _read(self, fifo: Path, target: Path) -> None:
        try:
            report = self._make(fifo, target)
        except Exception as error:  # noqa: BLE001 (one child's trace is not worth the others')
            if "made no access" not in str(error):
                self._failed.append(f"{target.name}: {printable(str(error))}")
            return
        if report["accesses"] < ACCESSES_MIN:
            target.unlink(missing_ok=True)
            self._small += 1
        else:
            self._found[target] = report

    def finish(self, group: int) -> None:
        """Waits for the children, of which some may outlive the program, and their traces."""
        self.look()
        while any(reader.is_alive() for reader in self._readers.values()):
            time.sleep(POLL_SECONDS)
            self.look()
            try:
                os.killpg(group, 0)
            except (ProcessLookupError, PermissionError):
                self._release()

    def _release(self) -> None:
        """Lets readers go on whose writer died before it opened its end."""
        for fifo, reader in self._readers.items():
            if reader.is_alive():
                with suppress(OSError):
                    os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))

    @property
    def reports(self) -> list[dict[str, Any]]:
        """What came of each that has a trace."""
        keys = ("accesses", "bytes", "threads", "instructions", "footprint_bytes", "windows")
        found = sorted(self._found.items(), key=lambda item: item[0].name)
        return [{"file": str(target), **{key: report[key] for key in keys}} for target, report in found]

    @property
    def warnings(self) -> list[str]:
        """What went wrong, and what was left out."""
        left = (
            [f"processes of fewer than {ACCESSES_MIN:,} accesses, which have no trace: {self._small}"]
            if self._small
            else []
        )
        return [*self._failed, *left]
