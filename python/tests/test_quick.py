# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a quick run of a paper leaves to a full one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

import nestwalk.reproduce as papers
from nestwalk.errors import NestwalkError
from nestwalk.reproduce import paper, quick
from nestwalk.reproduce.plan import UNAVAILABLE


def claim(**more: Any) -> paper.Claim:
    return paper.Claim.model_validate({"key": "k", "what": "w", "unit": "%", **more})


@pytest.mark.parametrize(
    ("ours", "full", "same"),
    [
        (4.0, 3.0, True),
        (4.1, 3.0, False),
        (2.0, 3.0, True),
        (-0.1, 0.1, False),
        (0.0, 0.0, True),
        (-20.0, -30.0, True),
        ("unavailable, because it is", 3.0, False),
        (3.0, "unavailable, because it is", False),
        ("unavailable, because it is", "unavailable, because it is", True),
    ],
)
def test_a_figure_agrees_in_sign_and_within_a_third(ours: float | str, full: float | str, *, same: bool) -> None:
    assert quick.agrees(claim(paper=3.0), ours, full) is same
    assert quick.agrees(claim(), ours, full) is same


def test_a_bound_agrees_if_it_is_kept_in_both() -> None:
    below = claim(paper=1.0, relation="below")
    assert quick.agrees(below, 0.1, 0.9)
    assert not quick.agrees(below, 0.9, 1.1)


@pytest.mark.parametrize("name", papers.PAPERS)
def test_what_was_compared_is_of_the_present_scale_and_claims(name: str) -> None:
    found = quick.known().get(name)
    plan = papers.plan(name, quick=True)
    if found is None:
        assert "not measured" in quick.remark(name, plan.scale.sentence)
        return
    assert found.scale == plan.scale.sentence, "make it again: packaging/quick.py"
    assert set(found.parts) <= set(plan.paper.claims)
    for key, part in found.parts.items():
        assert not quick.agrees(plan.paper.claims[key], part.quick, part.full), key


def test_a_quick_run_leaves_to_a_full_one_what_parts_from_it() -> None:
    found = quick.known().get("hugegpt")
    assert found is not None
    key = next(iter(found.parts))
    made = quick.told("hugegpt", found.scale, {key: 1.0, "other": 2.0})
    assert made["other"] == 2.0
    assert str(made[key]).startswith(UNAVAILABLE)
    assert "--quick" in str(made[key])
    assert quick.told("hugegpt", "another scale", {key: 1.0}) == {key: 1.0}


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda text: text[: len(text) // 2] + "[", "quick.toml: .*make it again"),
        (lambda text: text.replace("objdet-time", "objdet-thyme"), "has no value 'objdet-thyme'"),
    ],
)
def test_what_is_kept_is_refused_before_the_first_run(
    damage: Callable[[str], str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(quick.__file__).parent
    for file in folder.glob("*.toml"):
        shutil.copy(file, tmp_path)
    (tmp_path / quick.FILE).write_text(damage((folder / quick.FILE).read_text(encoding="utf-8")), encoding="utf-8")
    monkeypatch.setattr(resources, "files", lambda _: tmp_path)
    quick.known.cache_clear()
    try:
        with pytest.raises(NestwalkError, match=said):
            papers.plan("ptemagnet", quick=True)
        assert papers.plan("ptemagnet").scale.quick is False, "a full run does not ask"
    finally:
        quick.known.cache_clear()
