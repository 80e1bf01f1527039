# SPDX-License-Identifier: MIT OR Apache-2.0
"""Holds the quick run of each paper against its full one, and says in quick.toml where they part.

``.venv/bin/python packaging/quick.py [--jobs N] PAPER ...``: makes the runs of both sizes that are not kept from
earlier (``nestwalk results list``), which may take hours. The file's other papers stay as they are. Prints how many
values agree, which docs/fidelity.md tells.
"""

from __future__ import annotations

import argparse
import tomllib
from pathlib import Path

import tomli_w

from nestwalk import _native, reproduce
from nestwalk.conduct import Means
from nestwalk.reproduce import quick

FILE = Path(__file__).parents[1] / "python" / "nestwalk" / "reproduce" / quick.FILE
HEAD = """# SPDX-License-Identifier: MIT OR Apache-2.0
# Made by packaging/quick.py: values of which a quick run is not within a third of a full one.
"""


def main() -> None:
    """Compares each paper named, and writes the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("papers", nargs="+", choices=reproduce.PAPERS, metavar="PAPER")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    given = parser.parse_args()
    papers = tomllib.loads(FILE.read_text(encoding="utf-8"))["paper"]
    for name in given.papers:
        papers[name] = compare(name, Means(jobs=given.jobs))
        made = {"schema": 1, "paper": {name: papers[name] for name in reproduce.PAPERS if name in papers}}
        FILE.write_text(HEAD + tomli_w.dumps(made), encoding="utf-8")


def compare(name: str, means: Means) -> dict[str, object]:
    """The table of a paper."""
    sizes = {size: reproduce.plan(name, quick=size == "quick") for size in ("quick", "full")}
    done = {size: plan.execute(means=means) for size, plan in sizes.items()}
    ours = {size: made.measured for size, made in done.items()}
    claims = sizes["quick"].paper.claims
    parts = {
        key: {size: values[key] for size, values in ours.items()}
        for key, claim in claims.items()
        if not quick.agrees(claim, ours["quick"][key], ours["full"][key])
    }
    print(f"{name}: {len(claims) - len(parts)} of {len(claims)} values agree")
    scale = sizes["quick"].scale
    return {"scale": scale.sentence, "model": _native.model(), "seed": scale.seed, "parts": parts}


if __name__ == "__main__":
    main()
