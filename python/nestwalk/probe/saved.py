# SPDX-License-Identifier: MIT OR Apache-2.0
"""A folder of a probe's results: the curve for analysis, everything as JSON, and a page with pictures."""

from __future__ import annotations

import datetime
import json
import shlex
from functools import partial
from typing import TYPE_CHECKING, Any

import polars as pl

from nestwalk import _native, folders, tables
from nestwalk.probe import pictures, text
from nestwalk.probe.validation import ORDERS, Validated
from nestwalk.report import pages
from nestwalk.report import pictures as inlining

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from nestwalk.probe.probing import Probed

CAVEATS = (
    "Every answer is likely, not certain: it is read from times alone. What noise does not let be told is unknown.",
    "The hypervisor's other guests share the last-level cache, memory and perhaps the core, and change by the hour.",
    "A chase waits for each load. Real programs overlap loads and walks, so they lose less to a walk than its latency.",
)


def save(done: Probed | Validated, folder: Path, *, command: Sequence[str] = ()) -> None:
    """Writes ``results.parquet``, ``results.json``, ``report.html``; of a validation ``table.md``, ``machine.toml``."""
    rows = done.rows() if isinstance(done, Validated) else done.measured.curve()
    page = render(done, command)
    with folders.filling(folder) as fresh:
        folders.write_frame(pl.DataFrame(rows, infer_schema_length=None), fresh / folders.MARKER)
        (fresh / "results.json").write_text(json.dumps(done.to_json(), indent=1) + "\n", encoding="utf-8")
        (fresh / "report.html").write_text(page, encoding="utf-8")
        if isinstance(done, Validated):
            (fresh / "table.md").write_text(text.markdown(done, today()), encoding="utf-8")
            (fresh / "machine.toml").write_text(done.machine.text, encoding="utf-8")


def today() -> str:
    """The date of a measurement."""
    return datetime.datetime.now(tz=datetime.UTC).date().isoformat()


def render(done: Probed | Validated, command: Sequence[str] = ()) -> str:
    """The page."""
    validated = done if isinstance(done, Validated) else None
    probed = done.probed if isinstance(done, Validated) else done
    notes = text.footnotes(probed)
    return pages.fill(
        "probe/page.html",
        version=_native.version(),
        title="the simulator held against this processor" if validated else "page walks on this machine",
        headline=_headline(done),
        processor=probed.processor["brand"],
        date=today(),
        seed=probed.seed,
        answers=text.answers(probed),
        figures=_figures(probed, validated),
        tables=_tables(validated) if validated else [],
        caveats=[*notes, *(text.notes_of(validated) if validated else ()), *CAVEATS],
        command=shlex.join(["nestwalk", *command]),
        machine=None,
    )


def _headline(done: Probed | Validated) -> str:
    if not isinstance(done, Validated):
        return f"What page walks cost here: the host backs this machine with {text.HOST[done.host_pages]}"
    counts = done.counts()
    told = f"{counts['agrees']} agree, {counts['differs']} differ, {counts['not clear']} are not clear"
    return f"Of {len(done.shapes)} shapes, {told}"


def _figures(probed: Probed, validated: Validated | None) -> list[dict[str, Any]]:
    found = [
        {
            "name": "curve",
            "title": "Time of an access by footprint",
            "text": "A chase of pointers, one line a page. Bands are 95 % intervals over rounds.",
            "drawn": inlining.layouts(partial(pictures.curve, probed)),
        },
        {
            "name": "caches",
            "title": "Time of a load by the bytes that are chased through",
            "text": "All lines of few pages: caches show, TLBs hardly. The last-level cache ends where it rises.",
            "drawn": inlining.layouts(partial(pictures.caches, probed)),
        },
    ]
    if validated is not None:
        words = {
            "grouped": "The 8 pages of a group in turn: a line of host PTEs that holds a group is used 8 times.",
            "random": "All pages at random: a line of host PTEs is used once, whatever it holds.",
        }
        found += [
            {
                "name": order,
                "title": f"Measured and simulated, {order}",
                "text": words[order],
                "drawn": inlining.layouts(partial(pictures.side_by_side, validated, order)),
            }
            for order in ORDERS
        ]
    return found


def _tables(done: Validated) -> list[dict[str, Any]]:
    return [
        {
            "name": "shapes",
            "title": "Shapes",
            "text": "The time of one layout divided by that of another. Ratios within 5 % of 1 are called equal.",
            "headings": [tables.one_line(heading) for heading in text.SHAPE_HEADINGS],
            "rows": text.shape_rows(done),
        },
        {
            "name": "times",
            "title": "Times side by side",
            "text": "; ".join(text.crossing_lines(done)) + ".",
            "headings": [tables.one_line(heading) for heading in text.SIDE_HEADINGS],
            "rows": text.side_rows(done),
        },
    ]
