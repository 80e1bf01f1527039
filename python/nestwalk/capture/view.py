# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a capture shows while it runs, on standard error: a line that changes on a terminal, else one now and then."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nestwalk import say

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LINES_SECONDS = 10.0
"""Between two lines where there is no terminal."""
MILLION = 1e6


@dataclass
class State:
    """How far a capture is."""

    accesses: int = 0
    footprint_pages: int = 0
    walks: int | None = 0
    """Misses of a model of a second-level TLB, over the whole stream (docs/capture.md); None without a trace."""
    bytes: int = 0
    """Of disk, taken by what may become part of the trace."""
    completing: bool = False
    """The program has ended; what is left is to choose windows and to write the trace."""


class Meter:
    """Turns states into lines."""

    def __init__(self) -> None:
        """Begins now."""
        self._before = State()
        self._then = time.monotonic()

    def line(self, now: State) -> str:
        """What there is to say; the rate and the walks are those since the last line."""
        if now.completing and now.walks is None:
            return f"{now.accesses / MILLION:,.0f} M accesses; the simulations are at the last of them"
        if now.completing:
            return f"{now.accesses / MILLION:,.0f} M accesses; choosing windows and writing the trace"
        seconds = max(time.monotonic() - self._then, 1e-9)
        accesses = now.accesses - self._before.accesses
        walks = (now.walks or 0) - (self._before.walks or 0)
        self._before, self._then = State(**vars(now)), time.monotonic()
        common = (
            f"{now.accesses / MILLION:,.0f} M accesses, {accesses / seconds / MILLION:.0f} M/s, "
            f"footprint {now.footprint_pages * 4096 / MILLION:,.0f} MB"
        )
        if now.walks is None:
            return common
        rate = f"{1000 * walks / accesses:.2f}" if accesses > 0 else "-"
        return f"{common}, {rate} walks/1000, {now.bytes / MILLION:,.1f} MB on disk"


@contextmanager
def watch(name: str) -> Iterator[Callable[[State], None]]:
    """What is to be called with each new state of the capture of ``name``, a few times a second."""
    meter = Meter()
    if say.level() is say.Level.QUIET:
        yield lambda _: None
    elif sys.stderr.isatty():
        from rich.console import Console
        from rich.status import Status

        with Status(f"{name}: starting", console=Console(stderr=True)) as status:
            yield lambda now: status.update(f"{name}: {meter.line(now)}")
    else:
        last = time.monotonic()

        def show(now: State) -> None:
            nonlocal last
            if time.monotonic() - last >= LINES_SECONDS:
                last = time.monotonic()
                say.note(f"{name}: {meter.line(now)}")

        yield show
