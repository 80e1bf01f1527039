# SPDX-License-Identifier: MIT OR Apache-2.0
"""When a capture begins to sample, and when it ends: ``30s``, ``2G`` accesses, ``mark:1``, ``signal``."""

from __future__ import annotations

from dataclasses import dataclass

from nestwalk.errors import NestwalkError, shown

SECONDS_MAX = 10 * 24 * 3600
MARK_MAX = 2**64 - 1


@dataclass(frozen=True)
class When:
    """A moment of a capture: exactly one of these, or none for what the option says by itself."""

    seconds: float | None = None
    """So long after the program was started."""
    accesses: int | None = None
    """After so many accesses."""
    mark: int | None = None
    """At the program's mark with this number: ``prctl(0x4e574d4b, number, 0, 0, 0)``."""
    signal: bool = False
    """When Nestwalk gets the signal."""

    @property
    def given(self) -> bool:
        """Whether it is any of these."""
        return self != When()


def parse(option: str, text: str, word: str) -> When:
    """What ``text`` says; ``word`` is the option's own default, such as ``end``.

    Raises:
        NestwalkError: When it says nothing of the kind.
    """
    from nestwalk import traces

    if text == word:
        return When()
    if text == "signal":
        return When(signal=True)
    kind, _, number = text.partition(":")
    if kind == "mark" and number.isascii() and number.isdecimal() and int(number[:20]) <= MARK_MAX:
        return When(mark=int(number[:20]))
    after = seconds(text)
    if after is not None:
        return When(seconds=after)
    try:
        return When(accesses=traces.count(text))
    except ValueError:
        raise NestwalkError(
            f"{option} {shown(text)}: give {word}, seconds such as 30s, accesses such as 2G, mark:NUMBER, or signal"
        ) from None


def seconds(text: str) -> float | None:
    """The seconds of ``30s``; None if it is nothing of the kind, or more than ten days."""
    if not text.endswith("s"):
        return None
    try:
        found = float(text[:-1])
    except ValueError:
        return None
    return found if 0 <= found <= SECONDS_MAX else None
