# SPDX-License-Identifier: MIT OR Apache-2.0
"""Makes the page of `nestwalk probe --validate` and puts its tables into docs/fidelity.md.

To be run on an idle machine: ``.venv/bin/python packaging/silicon.py DIR``; more arguments go to the command.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
PAGE = REPOSITORY / "docs" / "fidelity.md"
BEGIN, END = "<!-- made by packaging/silicon.py: begin -->", "<!-- made by packaging/silicon.py: end -->"


def main() -> None:
    """Measures, simulates, and writes."""
    if len(sys.argv) < 2:  # noqa: PLR2004 (the program and a folder)
        sys.exit("usage: silicon.py DIR [OPTIONS of nestwalk probe --validate]")
    folder = Path(sys.argv[1])
    command = [Path(sys.executable).with_name("nestwalk"), "probe", "--validate", "--out", folder, *sys.argv[2:]]
    done = subprocess.run(command, check=False)
    if done.returncode:
        sys.exit(done.returncode)
    replace((folder / "table.md").read_text(encoding="utf-8"))


def replace(tables: str) -> None:
    """Puts ``tables`` between the marks of the page."""
    text = PAGE.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        sys.exit(f"{PAGE}: has no marks '{BEGIN}' and '{END}'; put them where the tables belong")
    PAGE.write_text(f"{before}{BEGIN}\n{tables}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
