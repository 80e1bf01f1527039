# SPDX-License-Identifier: MIT OR Apache-2.0
"""A folder of results: a frame for analysis, everything as JSON, and the files that make each run again."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from nestwalk import folders, scenario

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import polars as pl

    from nestwalk.result import Result

PAGE = "report.html"
"""The page with the pictures, of folders that have one."""


def save(
    folder: Path,
    frame: pl.DataFrame,
    everything: Mapping[str, Any],
    results: Sequence[Result],
    page: Callable[[], str] | None = None,
) -> Path:
    """Writes a folder of results; earlier results there are replaced file by file, and what is not ours stays.

    The page comes last, so that whatever becomes of its pictures, the results are there.
    """
    folders.check_directory(folder)
    with folders.filling(folder) as fresh:
        (fresh / "results.json").write_text(json.dumps(everything, indent=1) + "\n", encoding="utf-8")
        folders.write_frame(frame, fresh / folders.MARKER)
        scenarios = fresh / "scenarios"
        scenarios.mkdir()
        for result in results:
            _save_scenario(result, scenarios)
    if page is not None:
        add_page(folder, page())
    return folder


def add_page(folder: Path, page: str) -> None:
    """Writes the page beside the results in ``folder``."""
    with folders.filling(folder, add=True) as fresh:
        (fresh / PAGE).write_text(page, encoding="utf-8")


def _save_scenario(result: Result, folder: Path) -> None:
    """Writes what ``result`` was made from as files that ``nestwalk run`` takes.

    The machine and the costs go into files of their own beside the scenario, so that the run stays what it was when the
    bundled ones change.
    """
    name, configuration = result.name.replace("/", "-"), result.configuration
    machine, costs = f"{name}.machine.toml", f"{name}.costs.toml"
    table = {**configuration["scenario"], "machine": machine, "costs": costs}
    head = f"# Written by nestwalk {result.version}. Run it again: nestwalk run {name}.toml\n"
    (folder / f"{name}.toml").write_text(head + scenario.write(table), encoding="utf-8")
    (folder / machine).write_text(scenario.write(configuration["machine"]), encoding="utf-8")
    (folder / costs).write_text(scenario.write(configuration["costs"]), encoding="utf-8")
