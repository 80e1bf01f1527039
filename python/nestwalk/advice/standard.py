# SPDX-License-Identifier: MIT OR Apache-2.0
"""What the standard comparison says of a program like a process: figures that were computed beforehand, named as such.

``standard.json`` is made by ``packaging/standard.py``; ``kinds.toml`` says which trace is of which kind of program.
"""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from typing import Any

SCHEMA = 1
CONFIGURATIONS = {
    "thp-host": "vm-host-2m",
    "thp-guest": "vm-thp",
    "mthp": "vm-mthp",
    "ptemagnet": "vm-ptemagnet",
    "hugegpt": "vm-hugegpt",
    "asap": "vm-asap",
    "ds": "vm-ds",
    "clustered": "vm-clustered",
}
"""The row of the standard comparison that shows what a technique does, by technique."""


@dataclass(frozen=True)
class Kind:
    """A kind of programs."""

    kind: str
    trace: str | None
    """The bundled trace of such a program."""
    workload: str
    """A workload like it."""


@dataclass(frozen=True)
class Standard:
    """The standard comparison of one trace on one machine."""

    trace: str
    machine: str
    why: str
    """Why this trace: a part of a sentence."""
    found: dict[str, Any]
    """``walk_share``, ``walk_share_ci95``, ``rows``."""

    def entry(self, technique: str) -> dict[str, Any] | None:
        """What it says of a technique: ``trace``, ``machine``, ``configuration``, gains, and a sentence."""
        from nestwalk import verdict
        from nestwalk.intervals import Estimate

        name = CONFIGURATIONS[technique]
        row = self.found["rows"].get(name)
        if row is None:
            return None
        gain = Estimate(row["gain"], row["gain_ci95"])
        against = "against a plain VM with 4 KiB pages on both sides"
        sentence = (
            f"The standard comparison of {self.trace} ({self.why}) on {self.machine}: {_titles()[name]} ({name}) gives "
            f"back {verdict.given(gain)}, {against}."
        )
        return {"trace": self.trace, "machine": self.machine, "configuration": name, **row, "sentence": sentence}


def kind_of(name: str) -> Kind | None:
    """The kind of programs that a process called ``name`` is of; None if that is not known."""
    for entry in _read("kinds.toml")["kind"]:
        if any(fnmatchcase(name, pattern) for pattern in entry["names"]):
            return Kind(entry["kind"], entry.get("trace"), entry["workload"])
    return None


def of(name: str) -> list[Standard]:
    """The comparisons to name for a process: that of its kind; those of all traces where its kind is not known."""
    kind = kind_of(name)
    if kind is not None and kind.trace is None:
        return []
    machine = nearest_machine()
    found = _read("standard.json")["machines"].get(machine, {})
    if kind is not None and kind.trace is not None:
        return [Standard(kind.trace, machine, f"{kind.kind}, as {name} is", found[kind.trace])]
    why = "which may be quite another program"
    return [Standard(trace, machine, why, one) for trace, one in sorted(found.items(), reverse=True)]


@cache
def nearest_machine() -> str:
    """The bundled machine that is nearest to this processor."""
    from nestwalk import _native

    return str(json.loads(_native.processor())["nearest"]["machine"])


@cache
def _titles() -> dict[str, str]:
    """What the standard comparison calls its rows, by name."""
    from nestwalk import matrix, verdict

    cells = matrix.load(matrix.STANDARD).cells
    return {cell.configuration.name: verdict.short(cell.configuration.title) for cell in cells}


@cache
def _read(file: str) -> dict[str, Any]:
    text = resources.files("nestwalk").joinpath("advice", file).read_text(encoding="utf-8")
    found = tomllib.loads(text) if file.endswith(".toml") else json.loads(text)
    if found["schema"] != SCHEMA:
        raise ValueError(f"{file}: schema is {found['schema']!r}; this version reads {SCHEMA}")
    return dict(found)
