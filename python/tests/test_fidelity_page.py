# SPDX-License-Identifier: MIT OR Apache-2.0
"""The tables of docs/fidelity.md that packaging/fidelity.py makes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from support import REPOSITORY, script

from nestwalk.reproduce.paper import load

PAGE = REPOSITORY / "docs" / "fidelity.md"
MARKS = re.compile(
    r"<!-- made by packaging/fidelity.py, (?P<paper>\S+): begin -->\n(?P<table>.*?)\n<!-- .*?: end -->", re.DOTALL
)
MADE = {found["paper"]: found["table"] for found in MARKS.finditer(PAGE.read_text(encoding="utf-8"))}


FIDELITY = script("fidelity")


def results(*, quick: bool = False, ours: float | str = 60.0) -> dict[str, Any]:
    """As ``reproduce --out`` writes them: a bound and a figure."""
    rows = [
        {"figure": "A", "what": "walk | cycles", "paper": 61.0, "relation": "equals", "ours": ours, "unit": "%"},
        {"figure": "A", "what": "misses", "paper": 1.0, "relation": "below", "ours": 2.0, "unit": ""},
    ]
    for row, verdict in zip(rows, ["within" if ours == 60.0 else "off", "bound broken"], strict=True):
        row["verdict"] = verdict
    return {
        "paper": "ptemagnet",
        "machine": "m",
        "seed": 1,
        "quick": quick,
        "rows": rows,
        "runs": [{}, {}],
        "verdicts": {"bound kept": 0, "bound broken": 1},
        "numeric": {"within": 1, "all": 1},
    }


def test_a_table_has_what_the_results_have() -> None:
    made = FIDELITY.table([results(quick=True, ours="unavailable, because it is"), results()]).splitlines()
    assert made[0] == "|  | paper | ours, in full | ours, `--quick` |"
    assert made[2] == "| **A** |  |  |  |"
    assert made[3] == "| walk \\| cycles, % | 61 | **60** | unavailable |"
    assert made[4] == "| misses | below 1 | 2 | 2 |"
    assert made[6] == "- In full (2 runs, `m`, seed 1): 1 of 1 figures within 20 %; 0 of 1 bounds are kept."


def test_folders_of_different_versions_are_refused() -> None:
    other = results()
    other["rows"][0]["what"] = "something else"
    with pytest.raises(SystemExit, match="another row"):
        FIDELITY.table([results(), other])


def test_a_page_without_marks_is_left_alone() -> None:
    with pytest.raises(SystemExit, match="has no marks"):
        FIDELITY.replaced("nothing", "fidelity.py, ptemagnet", "table")
    begin, end = (f"<!-- made by packaging/fidelity.py, ptemagnet: {place} -->" for place in ("begin", "end"))
    assert (
        FIDELITY.replaced(f"a\n{begin}\nold\n{end}\nb", "fidelity.py, ptemagnet", "new") == f"a\n{begin}\nnew\n{end}\nb"
    )


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="give a folder"):
        FIDELITY.results_in(tmp_path)
    for text in ("{", '{"rows": []}'):
        (tmp_path / "results.json").write_text(text)
        with pytest.raises(SystemExit, match="give a folder"):
            FIDELITY.results_in(tmp_path)


def test_some_tables_are_made() -> None:
    assert {"ptemagnet", "hugegpt", "asap", "compromis-mmu"} <= set(MADE)


@pytest.mark.parametrize("paper", sorted(MADE))
def test_the_page_has_the_rows_that_reproduce_has(paper: str) -> None:
    """A row that came, went or was renamed since the table was made."""
    rows = [line.split(" | ")[:2] for line in MADE[paper].splitlines()[2:] if line.startswith("| ")]
    found = [(what.removeprefix("| "), value) for what, value in rows if not what.startswith("| **")]
    wanted = []
    for claim in load(paper).claims.values():
        as_row = {"relation": claim.relation, "paper": claim.paper}
        wanted.append((f"{claim.what}, {claim.unit}" if claim.unit else claim.what, FIDELITY.in_paper(as_row)))
    assert found == wanted
