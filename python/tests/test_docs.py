# SPDX-License-Identifier: MIT OR Apache-2.0
"""What the documentation says is true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support import REPOSITORY

BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
PAGES = [*sorted(REPOSITORY.glob("docs/**/*.md")), REPOSITORY / "README.md"]
LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")


def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    text = (REPOSITORY / "docs" / "example.md").read_text(encoding="utf-8")
    names: dict[str, object] = {}
    blocks = BLOCK.findall(text)
    assert len(blocks) > 5
    for block in blocks:
        exec(compile(block, "docs/example.md", "exec"), names)  # noqa: S102
    assert (tmp_path / "redis.html").is_file()
    assert "did you mean 'broadwell-asap'?" in capsys.readouterr().out


@pytest.mark.parametrize(
    "page", [*sorted(REPOSITORY.glob("docs/**/*.md")), REPOSITORY / "README.md"], ids=lambda p: p.name
)
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page}: {target}"
