# SPDX-License-Identifier: MIT OR Apache-2.0
"""Compromis' MMU part. Direct segments and shadow paging are not part of this version, so nothing is run yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nestwalk.reproduce.plan import UNAVAILABLE, Experiment, Scale

if TYPE_CHECKING:
    from nestwalk.reproduce.paper import Paper

NOT_THERE = UNAVAILABLE + "the walkers for direct segments and shadow paging are not part of this version"


def experiment(paper: Paper, scale: Scale) -> Experiment:  # noqa: ARG001
    """No runs: each value of the paper compares with a technique that is not there."""
    return Experiment([], lambda _: dict.fromkeys(paper.claims, NOT_THERE))
