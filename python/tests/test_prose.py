# SPDX-License-Identifier: MIT OR Apache-2.0
"""Comments stay within 100 columns, and in plain English: what is not yet so can only become less.

`prose.toml` holds, for each crate, for docs/ and for linux/, how many comment lines are wider and how often each word
of the project's old dialect occurs. A count above the stored one fails. So does a stored count far above what is
there: `python python/tests/test_prose.py` stores what is there, and refuses to raise a count.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
STORED = Path(__file__).with_name("prose.toml")
COLUMNS = 100

# Each with what it is called in `prose.toml`. "Stands for" is plain English.
WORDS = {
    "stands": re.compile(r"\b(?:stands?|stood|standing)\b(?! for\b)", re.IGNORECASE),
    "nobody": re.compile(r"\b(?:nobody|somebody|anybody)\b", re.IGNORECASE),
    "said": re.compile(r"\bsaid\b", re.IGNORECASE),
    "whoever": re.compile(r"\bwhoever\b", re.IGNORECASE),
    "guess": re.compile(r"\banyone's guess\b", re.IGNORECASE),
    "names": re.compile(r"\b(?:Oct|Quad|Went|Familiar|Spot|NodePlace)\b"),
}


def comment(line: str) -> str | None:
    """The comment of a line of Rust, from its slashes on."""
    found = re.search(r"(?:^|\s)(//.*)$", line)
    return found[1] if found else None


def count(files: list[Path]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for file in files:
        fenced = False
        for line in file.read_text().splitlines():
            if file.suffix == ".md":
                fenced ^= line.startswith("```")
                # Tables and code cannot be wrapped.
                prose = None if fenced or line.startswith(("|", "```")) else line
            else:
                prose = comment(line)
                counts["names"] += len(WORDS["names"].findall(line))
            if prose is None:
                continue
            counts["wide"] += len(line) > COLUMNS
            for name, word in WORDS.items():
                if name != "names":
                    counts[name] += len(word.findall(prose))
    return {name: number for name, number in sorted(counts.items()) if number}


def rooms() -> dict[str, list[Path]]:
    crates = {f"crates/{crate.name}": sorted(crate.rglob("*.rs")) for crate in sorted((ROOT / "crates").iterdir())}
    # docs/commands.md and the pages of keys are made from the code.
    linux = [ROOT / "linux" / "README.md", *sorted((ROOT / "linux" / "docs").glob("*.md"))]
    return crates | {"docs": sorted((ROOT / "docs").glob("*.md")), "linux": linux}


def stored() -> dict[str, dict[str, int]]:
    return tomllib.loads(STORED.read_text())


@pytest.mark.parametrize("room", rooms())
def test_what_is_not_plain_only_becomes_less(room: str) -> None:
    found, allowed = count(rooms()[room]), stored().get(room, {})
    for name in sorted(found.keys() | allowed.keys()):
        there, most = found.get(name, 0), allowed.get(name, 0)
        assert there <= most, f"{room}: {name}: {there}, at most {most}: wrap at {COLUMNS} columns, or say it plainly"
        slack = max(5, most // 10)
        assert there >= most - slack, f"{room}: {name}: {there} of {most}: store that with python {Path(__file__).name}"


def test_it_counts_what_it_should() -> None:
    assert comment("let a = 1; // nobody") == "// nobody"
    assert comment('    let url = "https://x";') is None
    words = {
        name: word.findall("It stands here; nobody said whoever; it stands for two") for name, word in WORDS.items()
    }
    assert {name: len(found) for name, found in words.items()} == {
        "stands": 1, "nobody": 1, "said": 1, "whoever": 1, "guess": 0, "names": 0,
    }  # fmt: skip


def store() -> None:
    """Stores what is there. A stored count is never raised."""
    before = stored() if STORED.exists() else {}
    lines = ["# SPDX-License-Identifier: MIT OR Apache-2.0", "# Written by test_prose.py. Counts only go down."]
    for room, files in rooms().items():
        found = count(files)
        if room in before:
            found = {name: min(number, before[room].get(name, 0)) for name, number in found.items()}
        lines += ["", f'["{room}"]'] + [f"{name} = {number}" for name, number in found.items() if number]
    STORED.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    store()
    sys.exit(0)
