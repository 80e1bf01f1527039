# SPDX-License-Identifier: MIT OR Apache-2.0
"""What to do about page walks, in the order in which a person should act.

A list of entries, one a technique or a row of a comparison. They come from a comparison (:mod:`nestwalk.verdict`), from
what a running process shows (:mod:`nestwalk.advice.process`), or from both. :mod:`nestwalk.advice.text` prints them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nestwalk import techniques
from nestwalk.advice import measured

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

STATES = {
    "do": "do it",
    "weigh": "weigh it: the measured part and the whole run disagree",
    "try": "try it: what it gives back is not known",
    "ask": "find out first",
    "set": "is set already",
    "leave": "leave it",
    "cannot": "not to be had here",
    "unknown": "not known",
}
"""What to do about an entry (``state``), with the words for people."""


def costs(names: Iterable[str], counted: Mapping[str, Any]) -> dict[str, Any]:
    """What the techniques ``names`` cost: ``memory`` and ``latency``, a sentence each, and the counters behind them.

    The sentences are those of the comparison's counters, where there are any; ``documented`` has what the kernel's
    documentation or the paper says: ``of``, ``sentence``, ``source``.
    """
    documented = [
        {"of": cost.of, "sentence": cost.sentence, "source": cost.source}
        for name in names
        for cost in techniques.find(name).costs
    ]
    said = measured.sentences(counted) if counted else {}
    for cost in documented:
        said.setdefault(cost["of"], cost["sentence"])
    none = "unavailable, because neither the counters nor the documentation say it"
    sentences = {of: said.get(of, none) for of in ("memory", "latency")}
    return {**sentences, "documented": documented, **counted}
