# SPDX-License-Identifier: MIT OR Apache-2.0
"""Makes the page of `nestwalk probe --validate` and puts its tables into docs/fidelity.md.

To be run on an idle machine: ``.venv/bin/python packaging/silicon.py DIR``; more arguments go to the command.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from marks import PAGE, replaced


def main() -> None:
    """Measures, simulates, and writes."""
    if len(sys.argv) < 2:  # noqa: PLR2004 (the program and a folder)
        sys.exit("usage: silicon.py DIR [OPTIONS of nestwalk probe --validate]")
    folder = Path(sys.argv[1])
    command = [Path(sys.executable).with_name("nestwalk"), "probe", "--validate", "--out", folder, *sys.argv[2:]]
    done = subprocess.run(command, check=False)
    if done.returncode:
        sys.exit(done.returncode)
    made = (folder / "table.md").read_text(encoding="utf-8")
    PAGE.write_text(replaced(PAGE.read_text(encoding="utf-8"), "silicon.py", made), encoding="utf-8")


if __name__ == "__main__":
    main()
