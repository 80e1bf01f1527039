# SPDX-License-Identifier: MIT OR Apache-2.0
"""A folder with advice: all of it as JSON, a row for each technique for analysis, and a page."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any

from nestwalk import _native, advice, folders
from nestwalk.advice import text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

CAVEATS = (text.EACH, text.SETTINGS)
AGAIN = {
    "process": "A live process changes; what was seen of it (--record FILE) gives the same advice again, anywhere.",
    "trace": "The same version, trace and seed give the same numbers to the last bit.",
}
"""What the page says about making it again, by what was advised on."""


def save(value: Mapping[str, Any], folder: Path, *, command: Sequence[str] = ()) -> None:
    """Writes ``results.json``, ``results.parquet`` (a row for each technique) and ``report.html``.

    Args:
        value: What ``--json`` prints.
        folder: A new folder, or one that was written so before.
        command: Words of the command line behind ``nestwalk``.
    """
    import polars as pl

    page = render(value, command)
    texts = ("configuration", "technique", "title", "who", "state", "reason", "how")
    numbers = ("gain", "gain_ci95", "whole_run_gain", "whole_run_gain_ci95")
    schema = {"step": pl.Int64, **dict.fromkeys(texts, pl.String), **dict.fromkeys(numbers, pl.Float64)}
    rows = [
        # A number that is not known is a sentence in JSON, and null in a column of numbers.
        # Advice on a trace names rows of a matrix, advice on a process techniques.
        {key: None if key in numbers and isinstance(entry.get(key), str) else entry.get(key) for key in schema}
        for entry in value["advice"]
    ]
    with folders.filling(folder) as fresh:
        folders.write_frame(pl.DataFrame(rows, schema=schema), fresh / folders.MARKER)
        (fresh / "results.json").write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
        (fresh / "report.html").write_text(page, encoding="utf-8")


def render(value: Mapping[str, Any], command: Sequence[str] = ()) -> str:
    """The page."""
    from nestwalk.report import pages

    entries = [
        {
            "title": entry["title"],
            "words": text.words(entry),
            "gain": text.signed(entry),
            "who": ", ".join(entry["changes"]),
            "lines": list(dict.fromkeys([entry["how"], *entry.get("commands", ())]))
            if entry["state"] in text.ACTS
            else [],
            "behind": text.behind(entry),
            "state": advice.STATES[entry["state"]],
        }
        for entry in value["advice"]
    ]
    about = value.get("trace") or (value.get("subject") or {}).get("process", {}).get("name") or "a process"
    return pages.fill(
        "advice/page.html",
        version=_native.version(),
        title=f"what to do about page walks: {about}",
        about=about,
        sentence=value["sentence"] or value["unavailable"],
        unavailable=value["unavailable"] if value["sentence"] else None,
        notes=value.get("notes", []),
        entries=entries,
        gains=any(not isinstance(entry["gain"], str) for entry in value["advice"]),
        machine=[],
        caveats=CAVEATS,
        again=AGAIN["trace" if "trace" in value else "process"],
        command=shlex.join(["nestwalk", *command]) if command else "nestwalk advise",
    )
