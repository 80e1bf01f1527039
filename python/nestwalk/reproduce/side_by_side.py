# SPDX-License-Identifier: MIT OR Apache-2.0
"""A paper's values beside ours: as rows, as a frame, as JSON, as a page."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from nestwalk import _native, checks, store
from nestwalk.reproduce import quick
from nestwalk.reproduce.paper import TOLERANCE, Relation, Verdict

if TYPE_CHECKING:
    from pathlib import Path

    import polars as pl

    from nestwalk.reproduce.paper import Claim, Paper
    from nestwalk.reproduce.plan import Experiment, Results, Scale, Value


@dataclass(frozen=True)
class Reproduction:
    """A paper whose runs were made."""

    paper: Paper
    scale: Scale
    experiment: Experiment
    results: Results

    @cached_property
    def measured(self) -> dict[str, Value]:
        """Our values by key: one for each claim (:func:`nestwalk.reproduce.rehearsal.rehearse` sees to that)."""
        return dict(self.experiment.measure(self.results))

    @cached_property
    def values(self) -> dict[str, Value]:
        """The same without what a quick run cannot tell (:mod:`nestwalk.reproduce.quick`)."""
        return quick.told(self.paper.name, self.scale.sentence, self.measured) if self.scale.quick else self.measured

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """A row a value, with its ``verdict`` (:class:`nestwalk.reproduce.paper.Verdict`).

        The others are ``figure``, ``what``, ``paper``, ``relation`` (what the paper says of the value), ``ours``,
        ``unit``, ``ratio`` (ours by theirs, of figures that are not 0) and ``note``. ``ours`` is a number, or a
        sentence that begins with "unavailable, because".
        """
        notes = self.experiment.notes(self.results)
        return [
            _row(figure.title, claim, self.values[claim.key], notes.get(claim.key, ""))
            for figure in self.paper.figures
            for claim in figure.claims
        ]

    @property
    def verdicts(self) -> dict[str, int]:
        """How many rows there are of each verdict, all of which are named."""
        counts = Counter(row["verdict"] for row in self.rows)
        return {verdict.value: counts[verdict.value] for verdict in Verdict}

    @property
    def numeric(self) -> dict[str, Any]:
        """Of the figures (bounds apart): ``all``, those ``within`` 20 %, and the ``share`` of these.

        A figure that is unavailable is one that is not within.
        """
        figures = [row for row in self.rows if row["relation"] == Relation.EQUALS]
        within = sum(row["verdict"] == Verdict.WITHIN for row in figures)
        return {"all": len(figures), "within": within, "share": within / len(figures) if figures else None}

    @property
    def not_warm(self) -> list[str]:
        """Titles of the runs that were not warm when they were measured."""
        return [run.title for run in self.experiment.runs if self.results[run.name].warm_up["reached"] is False]

    @property
    def summary(self) -> str:
        """The verdicts in a sentence."""
        numeric, verdicts = self.numeric, self.verdicts
        bounds = verdicts[Verdict.KEPT] + verdicts[Verdict.BROKEN]
        share = f" ({100 * numeric['share']:.0f} %)" if numeric["share"] is not None else ""
        remark = f"; {quick.remark(self.paper.name, self.scale.sentence)}" if self.scale.quick else ""
        return (
            f"{numeric['within']} of {numeric['all']} figures are within {100 * TOLERANCE:.0f} % of the paper's"
            f"{share}; "
            f"{verdicts[Verdict.KEPT]} of {bounds} bounds are kept; {verdicts[Verdict.UNAVAILABLE]} values unavailable"
            f"{remark}"
        )

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
            "verdicts": self.verdicts,
            "numeric": self.numeric,
            "not_warm": self.not_warm,
        }

    def page(self) -> str:
        """All of it as one HTML page that needs no other file."""
        from nestwalk.reproduce import page

        return page.render(self)

    def save(self, folder: str | Path, *, report: bool = True) -> Path:
        """Writes ``results.parquet``, ``results.json``, ``report.html``, and ``scenarios`` that make each run again."""
        results = list(self.results.made.values())
        everything = {**self.to_json(), "runs": [result.json for result in results]}
        return store.save(checks.path("folder", folder), self.frame, everything, results, self.page if report else None)


def _row(figure: str, claim: Claim, ours: Value, note: str) -> dict[str, Any]:
    is_figure = claim.relation is Relation.EQUALS
    return {
        "figure": figure,
        "what": claim.what,
        "paper": claim.paper,
        "relation": None if claim.paper is None else claim.relation.value,
        "ours": ours,
        "unit": claim.unit,
        "ratio": ours / claim.paper if is_figure and claim.paper and not isinstance(ours, str) else None,
        "verdict": claim.verdict(ours).value,
        "note": " ".join(part for part in (claim.note, note) if part),
    }
