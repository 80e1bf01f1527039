# SPDX-License-Identifier: MIT OR Apache-2.0
"""Writes what is made from the code and lies in the source tree: ``./dev generated``.

The pages about keys, the JSON Schemas that are packaged, the types of a run's statistics and the page about them, the
table that shells complete from, and the man pages. A test says when one is out of date.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from nestwalk import completion, keys, manual

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(Path(__file__).parent))
import counters  # noqa: E402


def files() -> dict[Path, str]:
    """All of it: paths in the source tree, and texts."""
    found: dict[Path, str] = {}
    for kind in keys.KINDS:
        found[ROOT / "docs" / "reference" / f"{kind}.md"] = keys.markdown(kind)
        schema = json.dumps(keys.schema(kind), indent=1, ensure_ascii=False) + "\n"
        found[ROOT / "python" / "nestwalk" / "schemas" / f"{kind}.schema.json"] = schema
    found[ROOT / "python" / "nestwalk" / "counters.py"] = counters.module()
    found[ROOT / "docs" / "reference" / "counters.md"] = counters.page()
    table = json.dumps(completion.table(), indent=1, ensure_ascii=False) + "\n"
    found[ROOT / "python" / "nestwalk" / "completion.json"] = table
    folder = ROOT / "packaging" / "wheel.data" / "data" / "share" / "man" / "man1"
    return {**found, **{folder / name: text for name, text in manual.pages().items()}}


def main() -> None:
    """Writes what differs, and removes man pages of verbs that are gone."""
    wanted = files()
    for path, text in wanted.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path.relative_to(ROOT)}")
    for path in (ROOT / "packaging").rglob("*.1"):
        if path not in wanted:
            path.unlink()
            print(f"removed {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
