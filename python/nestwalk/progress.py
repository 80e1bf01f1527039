# SPDX-License-Identifier: MIT OR Apache-2.0
"""What the command shows while it works, on standard error: bars on a terminal, lines anywhere else."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING

from nestwalk import say
from nestwalk.pool import Silent, Watcher

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.progress import Progress, TaskID


class Lines:
    """A line when a run ends."""

    def __init__(self, names: Sequence[str]) -> None:
        """Watches the runs called ``names``."""
        self._names = names
        self._begun: dict[int, float] = {}
        self._done: set[int] = set()

    def started(self, index: int) -> None:
        """Notes the time."""
        self._begun[index] = time.monotonic()
        self._done.discard(index)

    def advanced(self, index: int, share: float) -> None:
        """Nothing: lines are for logs."""

    def finished(self, index: int) -> None:
        """Says so."""
        self._done.add(index)
        seconds = time.monotonic() - self._begun[index]
        say.note(f"[{len(self._done)}/{len(self._names)}] {self._names[index]}: {seconds:.1f} s")


class Bars:
    """A bar over everything, with the time that is left, and one for each run that is under way."""

    def __init__(self, progress: Progress, names: Sequence[str]) -> None:
        """Watches the runs called ``names``."""
        self._progress = progress
        self._names = names
        self._shares = [0.0] * len(names)
        self._tasks: dict[int, TaskID] = {}
        self._all = progress.add_task("all", total=float(len(names)))

    def started(self, index: int) -> None:
        """Adds its bar; a run may be made once more."""
        self._shares[index] = 0.0
        self._tasks[index] = self._progress.add_task(self._names[index], total=1.0)

    def advanced(self, index: int, share: float) -> None:
        """Moves its bar and the one over everything."""
        self._shares[index] = share
        self._progress.update(self._tasks[index], completed=share)
        self._progress.update(self._all, completed=sum(self._shares))

    def finished(self, index: int) -> None:
        """Takes its bar away."""
        self.advanced(index, 1.0)
        self._progress.remove_task(self._tasks[index])


@contextmanager
def watch(names: Sequence[str], *, quiet: bool = False) -> Iterator[Watcher]:
    """The watcher that fits standard error, for runs called ``names``."""
    if quiet or say.level() is say.Level.QUIET:
        yield Silent()
    elif not sys.stderr.isatty():
        yield Lines(names)
    else:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            yield Bars(progress, names)


class Notebook:
    """One line below a notebook's cell, which is written anew as runs advance and goes when all are done."""

    def __init__(self, show: Callable[[str], None], names: Sequence[str]) -> None:
        """Watches the runs called ``names``; ``show`` writes the line."""
        self._show = show
        self._shares = [0.0] * len(names)
        self._begun = time.monotonic()
        self._shown = 0.0
        self._advance()

    def started(self, index: int) -> None:
        """Nothing is shown, as the line is about all runs; one may be made once more."""
        self._shares[index] = 0.0

    def advanced(self, index: int, share: float) -> None:
        """Writes the line anew, a few times a second at most."""
        self._shares[index] = share
        if time.monotonic() - self._shown >= NOTEBOOK_SECONDS:
            self._advance()

    def finished(self, index: int) -> None:
        """Writes the line anew."""
        self._shares[index] = 1.0
        self._advance()

    def _advance(self) -> None:
        self._shown = time.monotonic()
        count, done, all_of_it = self._shares.count(1.0), sum(self._shares), len(self._shares)
        seconds = self._shown - self._begun
        left = f", about {seconds * (all_of_it - done) / done:.0f} s left" if done > 0 else ""
        self._show(f"{count} of {all_of_it} runs done, {100 * done / max(all_of_it, 1):.0f} %{left}")


NOTEBOOK_SECONDS = 0.3
"""Between two changes of a notebook's line."""


@contextmanager
def of_notebook(names: Sequence[str]) -> Iterator[Watcher]:
    """For runs called ``names`` that Python code asks for: a line below the cell in a notebook, else nothing."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None or getattr(shell, "kernel", None) is None:
        yield Silent()
        return
    display = import_module("IPython.display").display

    def content(text: str) -> dict[str, str]:
        return {"text/plain": text}

    handle = display(content("0 runs done"), raw=True, display_id=True)
    try:
        yield Notebook(lambda text: handle.update(content(text), raw=True), names)
    finally:
        handle.update(content(""), raw=True)


def share(watcher: Watcher) -> Callable[[int, int | None], bool]:
    """What tells ``watcher`` of the one run that it watches, in the form that the engine calls."""
    watcher.started(0)

    def progress(done: int, total: int | None) -> bool:
        watcher.advanced(0, min(done / total, 1.0) if total else 0.0)
        return True

    return progress
