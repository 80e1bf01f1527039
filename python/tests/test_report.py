# SPDX-License-Identifier: MIT OR Apache-2.0
"""The report needs nothing but itself."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from support import Made

BYTES_MAX = 2_000_000
LOADING = {"src", "srcset", "data", "poster", "action", "background", "xlink:href"}


class Page(HTMLParser):
    """Collects what a page loads, its headings and its pictures."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name in LOADING or (name == "href" and not (value or "").startswith("#")):
                self.loads.append(f"{tag} {name}={value}")


@pytest.fixture(scope="module")
def text(made: Made) -> str:
    return (made.folder / "report.html").read_text(encoding="utf-8")


def test_it_loads_nothing(text: str) -> None:
    page = Page(text)
    assert page.loads == []
    assert not {"script", "link", "iframe", "img", "object", "embed"} & set(page.tags)
    assert re.findall(r"url\((?!#)|@import", text) == []
    assert "http" not in text


def test_it_is_small(text: str) -> None:
    assert len(text.encode()) < BYTES_MAX


def test_it_has_all_pictures_and_rows(made: Made, text: str) -> None:
    assert Page(text).tags.count("svg") == 6
    for row in made.json["rows"]:
        assert row["title"] in text
    for section in ("latency", "time", "references", "distribution", "fragmentation", "reserved"):
        assert f'<section id="{section}">' in text


def test_it_says_how_it_was_made(text: str) -> None:
    assert "nestwalk compare --trace redis --machine broadwell-asap --seed 1 --quick --matrix standard" in text
    assert "This was a quick run" in text
    assert "What to keep in mind" in text


def test_marks_say_what_they_stand_for(text: str) -> None:
    assert re.search(r"<title>average walk latency, cycles: [\d.]+", text)
