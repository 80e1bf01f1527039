# SPDX-License-Identifier: MIT OR Apache-2.0
"""A folder with all that is known of a process, and a page with the strip of its address space."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any

import markupsafe

from nestwalk import _native, folders
from nestwalk.live import known, strip, text, verdicts
from nestwalk.tables import NOTHING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from nestwalk.live.inspection import Inspection

CAVEATS = (
    "The process ran on while it was looked at: what moved in between may be counted at both places, or at neither.",
    (
        "Whether the host maps 4 KiB or 2 MiB pages cannot be seen from inside a VM. Both values of the metric are "
        "given; nestwalk probe says which of them is likely to count."
    ),
    "The strip leaves out addresses that nothing was touched at. Each field stands for the same number of bytes.",
)


def check(folder: Path) -> None:
    """Refuses early a directory that cannot be filled.

    Raises:
        NestwalkError: When it holds something else, or nothing can be made in it.
    """
    folders.check_directory(folder)


def save(found: Inspection, folder: Path, *, command: Sequence[str] = ()) -> None:
    """Writes ``results.json``, ``results.parquet`` (the strip, a row for each field) and ``report.html``."""
    import polars as pl

    value = found.to_json()
    page = render(value, command)
    schema = {
        "start": pl.String,
        "end": pl.String,
        "bytes": pl.Int64,
        "small_share": pl.Float64,
        "huge_share": pl.Float64,
        "swapped_share": pl.Float64,
        "lines": pl.Float64,
    }
    frame = pl.DataFrame(value["strip"], schema=schema)
    with folders.filling(folder) as fresh:
        folders.write_frame(frame, fresh / folders.MARKER)
        (fresh / "results.json").write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
        (fresh / "report.html").write_text(page, encoding="utf-8")


def render(facts: Mapping[str, Any], command: Sequence[str] = ()) -> str:
    """The page."""
    from nestwalk.report import pages

    cells = facts["strip"]
    drawn = [("wide", strip.WIDTH), ("narrow", strip.NARROW)] if cells else []
    return pages.fill(
        "live/page.html",
        version=_native.version(),
        title=text.title(facts),
        kernel=known.either(facts["settings"]["kernel"], str),
        # Our own drawing: what is in it was escaped when it was drawn.
        strips=[{"layout": name, "svg": markupsafe.Markup(strip.svg(cells, width))} for name, width in drawn],  # noqa: S704
        field=verdicts.size(cells[0]["bytes"]) if cells else "",
        lines=[(line.what, line.value or NOTHING, line.verdict) for line in verdicts.of_process(facts)],
        mappings=[
            (one["start"], one["name"] or "anonymous", verdicts.size(one["present_bytes"]))
            for one in facts["mappings"]["largest"]
        ],
        notes=facts["notes"],
        machine=[],
        caveats=CAVEATS,
        command=shlex.join(["nestwalk", *command]) if command else "nestwalk inspect",
    )
