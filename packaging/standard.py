# SPDX-License-Identifier: MIT OR Apache-2.0
"""Writes what the standard comparison says of each bundled trace on each bundled machine: ``advice/standard.json``.

``nestwalk advise PID`` names these figures where the process itself has not been simulated. Takes about ten minutes;
make it anew when results change (``python/tests/test_advise.py`` makes two rows again and says when that is).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nestwalk
from nestwalk import comparisons, data, engine, matrix

if TYPE_CHECKING:
    from nestwalk.comparisons import Comparison

FILE = Path(__file__).parents[1] / "python" / "nestwalk" / "advice" / "standard.json"
KEYS = ("gain", "gain_ci95", "whole_run_gain", "whole_run_gain_ci95")
DIGITS = 6
EXPLAINS_ONLY = "asap-simulator"
"""A simulator's rules, no machine to buy; its TLBs take no clusters, as a row of the comparison does."""


def main() -> None:
    """Makes all comparisons, and writes the file."""
    found: dict[str, Any] = {}
    names = [entry["name"] for entry in engine.catalog()["machines"]]
    for machine in (name for name in names if name != EXPLAINS_ONLY):
        for trace in data.traces():
            found.setdefault(machine, {})[trace] = one(trace, machine)
            print(f"{trace} on {machine}", flush=True)
    value = {"schema": 1, "version": nestwalk.__version__, "seed": comparisons.DEFAULT_SEED, "machines": found}
    FILE.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def one(trace: str, machine: str) -> dict[str, Any]:
    """What is kept of one comparison: the rows of the first variant that are advice, by name."""
    cells = matrix.load(matrix.STANDARD).cells
    names = [cell.name for cell in cells if cell.configuration.role == "advice" and not cell.variant.name]
    done = comparisons.execute(comparisons.plan(trace, machine=machine, configurations=names))
    return kept(done)


def kept(done: Comparison) -> dict[str, Any]:
    """The share of the walks, and each row's gains."""
    (group,) = done.verdict.groups
    share = group.walk_share
    rows = {entry["configuration"]: {key: _rounded(entry[key]) for key in KEYS} for entry in group.advice}
    return {
        "walk_share": _rounded(share.value if share else None),
        "walk_share_ci95": _rounded(share.ci95 if share else None),
        "rows": rows,
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, DIGITS)


if __name__ == "__main__":
    main()
