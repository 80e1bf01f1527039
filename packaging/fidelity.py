# SPDX-License-Identifier: MIT OR Apache-2.0
"""Puts the tables of `nestwalk reproduce PAPER --out DIR` into docs/fidelity.md.

``.venv/bin/python packaging/fidelity.py DIR ...``: each folder is one paper's, in full or ``--quick``. A paper's table
lies between the two marks that have its name; of a paper that the page has no marks for, the marks are to be put there.
What the tables say is told in the text beside them, by hand.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nestwalk.reproduce.pictures import in_paper, number

sys.path.insert(0, str(Path(__file__).parent))
from marks import PAGE, replaced

if TYPE_CHECKING:
    from collections.abc import Iterable

# By the key `quick` of the results.
SIZES = {False: "in full", True: "`--quick`"}


def main() -> None:
    """Reads every folder, and writes the page."""
    if not sys.argv[1:]:
        sys.exit("usage: fidelity.py DIR ..., folders that nestwalk reproduce --out has written")
    text = PAGE.read_text(encoding="utf-8")
    read = [results_in(Path(folder)) for folder in sys.argv[1:]]
    for paper in dict.fromkeys(results["paper"] for results in read):
        text = replaced(
            text, f"fidelity.py, {paper}", table([results for results in read if results["paper"] == paper])
        )
    PAGE.write_text(text, encoding="utf-8")


def results_in(folder: Path) -> dict[str, Any]:
    """What ``nestwalk reproduce --out`` wrote there."""
    file = folder / "results.json"
    try:
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        sys.exit(f"{file}: {error}; give a folder that nestwalk reproduce --out has written")
    if "paper" not in found:
        sys.exit(f"{file}: is not of nestwalk reproduce; give a folder that nestwalk reproduce --out has written")
    return found


def table(read: list[dict[str, Any]]) -> str:
    """The rows of one paper: what it says, and what each of the results has."""
    read = sorted(read, key=lambda results: results["quick"])
    heads = [f"ours, {SIZES[results['quick']]}" for results in read]
    lines = [*row("", "paper", *heads), *row(*["---"] * (2 + len(read)))]
    figure = None
    for same in zip(*(results["rows"] for results in read), strict=True):
        first = same[0]
        if any((other["figure"], other["what"]) != (first["figure"], first["what"]) for other in same):
            sys.exit(f"not of the same version: '{first['what']}' is another row in the other folder")
        if first["figure"] != figure:
            figure = first["figure"]
            lines += row(f"**{figure}**", "", *[""] * len(read))
        unit = f", {first['unit']}" if first["unit"] else ""
        lines += row(f"{first['what']}{unit}", in_paper(first), *map(cell, same))
    return "\n".join([*lines, "", *(summary(results) for results in read)])


def cell(found: dict[str, Any]) -> str:
    """A value, marked where it agrees with the paper."""
    if not isinstance(found["ours"], int | float):
        return "unavailable"
    agrees = found["verdict"] in {"within", "bound kept"}
    return f"**{number(found['ours'])}**" if agrees else number(found["ours"])


def summary(results: dict[str, Any]) -> str:
    """How much of it agrees."""
    figures, verdicts = results["numeric"], results["verdicts"]
    bounds = verdicts["bound kept"] + verdicts["bound broken"]
    kept = f"; {verdicts['bound kept']} of {bounds} bounds are kept" if bounds else ""
    size = SIZES[results["quick"]]
    made = f"{len(results['runs'])} runs, `{results['machine']}`, seed {results['seed']}"
    return f"- {size[0].upper()}{size[1:]} ({made}): {figures['within']} of {figures['all']} figures within 20 %{kept}."


def row(*cells: str) -> Iterable[str]:
    """One row of a Markdown table."""
    yield "| " + " | ".join(text.replace("|", "\\|") for text in cells) + " |"


if __name__ == "__main__":
    main()
