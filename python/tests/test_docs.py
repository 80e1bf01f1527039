# SPDX-License-Identifier: MIT OR Apache-2.0
"""What the documentation says is true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support import REPOSITORY

from nestwalk import techniques

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


def test_settings_have_every_file_that_the_techniques_name() -> None:
    text = (REPOSITORY / "docs" / "settings.md").read_text(encoding="utf-8")
    for technique in techniques.known().values():
        for step in (*technique.get, *technique.check):
            for file in re.findall(r"/(?:sys|proc)/[\w/.-]+", step.line):
                assert file in text or Path(file).name in text, (technique.name, file)
        if "hardware" not in technique.who:
            assert technique.short.split(":")[0] in ("guest", "host", "guest and host", "guest, Linux 6.8+")
