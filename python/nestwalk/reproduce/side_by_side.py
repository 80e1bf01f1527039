# SPDX-License-Identifier: MIT OR Apache-2.0
"""A paper's values beside ours: as rows, as a frame, as JSON, as a page."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nestwalk import _native, store
from nestwalk.errors import NestwalkError

if TYPE_CHECKING:
    import polars as pl

    from nestwalk.reproduce.paper import Paper
    from nestwalk.reproduce.plan import Experiment, Results, Scale, Value


@dataclass(frozen=True)
class Reproduction:
    """A paper whose runs were made."""

    paper: Paper
    scale: Scale
    experiment: Experiment
    results: Results

    @cached_property
    def values(self) -> dict[str, Value]:
        """Our values by key.

        Raises:
            NestwalkError: When a claim of the paper has none, which is a mistake in its module.
        """
        found = dict(self.experiment.measure(self.results))
        claims = self.paper.claims
        if set(found) != set(claims):
            odd = sorted(set(found) ^ set(claims))
            raise NestwalkError(f"{self.paper.name}: claims and measured values differ in {', '.join(odd)}")
        return found

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """A row a value: ``figure``, ``what``, ``paper``, ``ours``, ``unit``, ``ratio`` (ours by theirs), ``note``.

        ``ours`` is a number, or a sentence that begins with "unavailable, because".
        """
        notes = self.experiment.notes(self.results)
        rows = []
        for figure in self.paper.figures:
            for claim in figure.claims:
                ours = self.values[claim.key]
                ratio = ours / claim.paper if isinstance(ours, float | int) and claim.paper else None
                note = " ".join(part for part in (claim.note, notes.get(claim.key, "")) if part)
                rows.append(
                    {
                        "figure": figure.title,
                        "what": claim.what,
                        "paper": claim.paper,
                        "ours": ours,
                        "unit": claim.unit,
                        "ratio": ratio,
                        "note": note,
                    }
                )
        return rows

    @property
    def frame(self) -> pl.DataFrame:
        """The rows as a frame; where there is no value of ours, ``ours`` is null and ``note`` says why."""
        import polars as pl

        def plain(row: dict[str, Any]) -> dict[str, Any]:
            ours = row["ours"]
            if isinstance(ours, str):
                return {**row, "ours": None, "note": " ".join(part for part in (ours, row["note"]) if part)}
            return row

        numbers = {"paper", "ours", "ratio"}
        schema = {key: pl.Float64 if key in numbers else pl.String for key in self.rows[0]}
        return pl.DataFrame([plain(row) for row in self.rows], schema=schema)

    def to_json(self) -> dict[str, Any]:
        """What ``nestwalk reproduce --json`` prints."""
        return {
            "schema": 1,
            "version": _native.version(),
            "paper": self.paper.name,
            "title": self.paper.title,
            "machine": self.paper.machine,
            "seed": self.scale.seed,
            "quick": self.scale.quick,
            "scale": self.scale.sentence,
            "rows": self.rows,
        }

    def page(self) -> str:
        """All of it as one HTML page that needs no other file."""
        from nestwalk.reproduce import page

        return page.render(self)

    def save(self, folder: str | Path, *, report: bool = True) -> Path:
        """Writes ``results.parquet``, ``results.json``, ``report.html``, and ``scenarios`` that make each run again."""
        results = list(self.results.made.values())
        everything = {**self.to_json(), "runs": [result.json for result in results]}
        return store.save(Path(folder), self.frame, everything, results, self.page if report else None)
