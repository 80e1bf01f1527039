# SPDX-License-Identifier: MIT OR Apache-2.0
"""A page about a trace, and the numbers of its pictures, in a folder."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

import polars as pl

from nestwalk import _native, folders, tables, trace_pictures
from nestwalk.report import pages
from nestwalk.report import pictures as inlining

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FIGURES = (
    (
        "footprint",
        trace_pictures.footprint,
        "Footprint and working set",
        (
            "Memory that the program has touched so far, in pages of 4 KiB, and memory that it touches in each stretch "
            "of the trace (of a sampled trace: in each window)."
        ),
    ),
    (
        "reuse",
        trace_pictures.reuse,
        "Reuse distance by page",
        (
            "The share of accesses that a fully associative LRU TLB of so many entries misses, by the number of other "
            "pages between two accesses to a page. A page's first access in a stretch misses always."
        ),
    ),
    (
        "space",
        trace_pictures.address_space,
        "The address space over time",
        (
            "Accesses in the file by part of the address space, high addresses on top. Gaps of more than 64 MiB are "
            "left out; a label is where a region begins."
        ),
    ),
)
"""Name, what draws it, title, text."""

CAVEATS = (
    (
        "Of skipped stretches of a sampled trace only first touches are known: the footprint is exact, and the working "
        "set and reuse distances are those of its windows."
    ),
    "Accesses that a filter left out are counted with the shortest reuse distance, and are not in the last picture.",
)


def save(info: Mapping[str, Any], profile: Mapping[str, Any], folder: Path) -> None:
    """Writes ``results.parquet`` (footprint over time), ``results.json`` and ``report.html``.

    Raises:
        NestwalkError: When the folder cannot be written.
    """
    page = render(info, profile)
    with folders.filling(folder) as fresh:
        folders.write_frame(pl.DataFrame(profile["footprint"]), fresh / folders.MARKER)
        value = {"schema": 1, "info": info, "profile": profile}
        (fresh / "results.json").write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
        (fresh / "report.html").write_text(page, encoding="utf-8")


def render(info: Mapping[str, Any], profile: Mapping[str, Any]) -> str:
    """The page."""
    figures = []
    for name, draw, title, text in FIGURES:
        drawn = inlining.layouts(partial(draw, profile))
        if drawn:
            figures.append({"name": name, "title": title, "text": text, "drawn": drawn})
    facts = [(key.replace("_", " "), value) for key, value in tables.plain_facts(info)]
    return pages.fill(
        "trace_page.html",
        version=_native.version(),
        program=info["program"] or "a program",
        warning=info["warning"],
        facts=facts,
        figures=figures,
        machine=[],
        caveats=CAVEATS,
        command="nestwalk trace info FILE --out DIR",
    )
