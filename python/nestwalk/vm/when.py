# SPDX-License-Identifier: MIT OR Apache-2.0
"""When the capture of a guest begins and ends: ``30s``, ``20M`` accesses, ``mark``, ``signal``."""

from __future__ import annotations

from dataclasses import dataclass

from nestwalk import traces
from nestwalk.capture.when import seconds
from nestwalk.errors import NestwalkError, shown


@dataclass(frozen=True)
class When:
    """A moment of a capture: one of these, or none for what the option says by itself."""

    seconds: float | None = None
    accesses: int | None = None
    mark: bool = False
    """When a marker is executed in user mode."""
    signal: bool = False
    """When Nestwalk gets the signal."""


def parse(option: str, text: str, word: str, *, accesses: bool) -> When:
    """What ``text`` says; ``word`` is the option's own default. Numbers of accesses are taken if ``accesses``.

    Raises:
        NestwalkError: When it says nothing of the kind.
    """
    if text == word:
        return When()
    if text in ("mark", "signal"):
        return When(mark=text == "mark", signal=text == "signal")
    after = seconds(text)
    if after is not None:
        return When(seconds=after)
    if accesses:
        try:
            found = traces.count(text)
        except ValueError:
            found = 0
        if found > 0:
            return When(accesses=found)
    more = ", accesses such as 20M" if accesses else ""
    raise NestwalkError(f"{option} {shown(text)}: give {word}, seconds such as 30s{more}, mark, or signal")
