# SPDX-License-Identifier: MIT OR Apache-2.0
"""The pages of papers say why a figure is off."""

from __future__ import annotations

import pytest

from nestwalk.reproduce import PAPERS, paper, why


@pytest.mark.parametrize("name", PAPERS)
def test_every_figure_has_an_explanation_and_none_is_left_over(name: str) -> None:
    figures = {figure.name for figure in paper.load(name).figures}
    assert set(why.known()[name]) == figures


def test_what_is_off_is_explained_and_nothing_else() -> None:
    near, far, none = {"ratio": 1.1}, {"ratio": 0.5}, {"ratio": None}
    assert why.explanation("asap", "baselines", [near, none], divided=False) is None
    assert str(why.explanation("asap", "baselines", [near, far], divided=False)).startswith("Native walks")
    assert str(why.explanation("asap", "baselines", [far], divided=True)).endswith(why.DIVIDED)
    assert why.explanation("asap", "nothing", [far], divided=False) == why.UNKNOWN


def test_a_verdict_decides_where_there_is_one() -> None:
    assert why.is_off({"ratio": 1.0, "verdict": "off"})
    assert why.is_off({"ratio": None, "verdict": "bound broken"})
    assert not why.is_off({"ratio": 5.0, "verdict": "bound kept"})
