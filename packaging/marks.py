# SPDX-License-Identifier: MIT OR Apache-2.0
"""The parts of docs/fidelity.md that scripts of this folder make, each between two marks of its own."""

from __future__ import annotations

import sys
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "fidelity.md"


def replaced(text: str, maker: str, made: str) -> str:
    """The page's ``text`` with what ``maker`` made between its marks; ends the program where it has none."""
    begin, end = (f"<!-- made by packaging/{maker}: {place} -->" for place in ("begin", "end"))
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        sys.exit(f"{PAGE}: has no marks '{begin}' and '{end}'; put them where it belongs")
    return f"{before}{begin}\n{made}\n{end}{after}"
