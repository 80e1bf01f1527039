# SPDX-License-Identifier: MIT OR Apache-2.0
"""The report needs nothing but itself."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import drawn
import pytest
from support import Made

import nestwalk
from nestwalk.report import words

BYTES_MAX = 2_000_000
LOADING = {"src", "srcset", "data", "poster", "action", "background", "xlink:href"}


class Page(HTMLParser):
    """Collects what a page loads, its headings and its pictures."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loads: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name in LOADING or (name == "href" and tag != "a"):
                self.loads.append(f"{tag} {name}={value}")
            if name == "href" and tag == "a":
                self.links.append(value or "")
            if name == "id":
                self.ids.append(value or "")


@pytest.fixture(scope="module")
def text(made: Made) -> str:
    return (made.folder / "report.html").read_text(encoding="utf-8")


def test_it_loads_nothing(text: str) -> None:
    page = Page(text)
    assert page.loads == []
    assert not {"link", "iframe", "img", "object", "embed"} & set(page.tags)
    assert re.findall(r"url\((?!#)|@import", text) == []


def test_its_one_script_is_in_it_and_asks_for_nothing(text: str) -> None:
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    assert Page(text).tags.count("script") == 1
    assert not re.findall(r"fetch|XMLHttp|import|http|eval|innerHTML", script)


def test_what_it_links_to_is_a_section_of_its_own_or_a_source(text: str) -> None:
    page = Page(text)
    assert page.links
    for link in page.links:
        assert link.startswith("https://") or link.removeprefix("#") in page.ids
    assert len(re.findall("http", text)) == sum(link.startswith("https://") for link in page.links)


def test_it_is_small(text: str) -> None:
    assert len(text.encode()) < BYTES_MAX


def test_it_has_all_pictures_and_rows(made: Made, text: str) -> None:
    page = Page(text)
    sections = ("time", "whole-run", "latency", "distribution", "references", "fragmentation", "reserved")
    # Each once for the desktop and, for each of two variants, once for the phone.
    assert page.tags.count("svg") == 3 * len(sections)
    for row in made.json["rows"]:
        assert row["title"] in text
    assert [name for name in page.ids if name in sections] == list(sections)


def test_the_verdict_leads_and_time_comes_next(made: Made, text: str) -> None:
    places = [text.index(f'id="{name}"') for name in ("verdict", "time", "whole-run", "latency", "get", "comparison")]
    assert places == sorted(places)
    assert made.json["verdict"]["groups"][0]["lines"][0].replace(" %", "\N{NO-BREAK SPACE}%")[:40] in text


def test_every_row_says_what_it_is_and_how_to_get_it(text: str) -> None:
    rows = re.findall(r'<tr><td data-value="([^"]*)"><details>.*?</details></td>(.*?)</tr>', text)
    assert len(rows) == 26
    for title, cells in rows:
        how = re.search(r'data-label="how to get it" data-value="([^"]*)"', cells)
        assert how, title
        assert len(how[1]) > 5, title
    for line in ("transparent_hugepage/enabled", "ptemagnet=2", "kvm_intel ept=0", "no processor has"):
        assert line in text


def test_one_colour_a_technique_in_every_picture(text: str) -> None:
    """Bars of latency and lines of the distribution, by the labels that say what they stand for."""
    marks = re.findall(r'aria-label="([^"]*)"[^>]*? (?:fill|stroke)="(#[0-9a-f]{6})"', text)
    colours: dict[str, set[str]] = {}
    for label, colour in marks:
        title = re.search(r"title: ([^;]*)", label)
        if title and ("walk latency, cycles" in label):
            colours.setdefault(title[1], set()).add(colour)
    assert len(colours) >= 10
    assert all(len(found) == 1 for found in colours.values()), colours


def test_no_picture_is_wider_than_its_page(text: str) -> None:
    for layout, width_max in (("wide", 1184), ("narrow", 347)):
        widths = re.findall(rf'<figure class="{layout}"><svg class="marks" width="([\d.]+)"', text)
        assert widths
        assert all(float(width) <= width_max for width in widths), (layout, widths)


def test_caveats_stand_only_where_they_apply() -> None:
    alone = nestwalk.comparison("bfs", quick=True, configurations=["native-4k"])
    said = " ".join(words.caveats(alone))
    assert "co-runner" not in said
    assert "ASAP" not in said
    assert "user-mode capture" in said


def test_every_bar_of_time_has_its_interval(text: str) -> None:
    for name in ("time", "whole-run", "latency"):
        section = text.partition(f'<section id="{name}">')[2].partition("</section>")[0]
        bars = re.findall(r">(\d+(?:\.\d+)?)( ±[\d.]+)?</text>", section)
        with_interval = [value for value, interval in bars if interval]
        # All rows of two variants, for desktop and phone, but the plain VM's own time, which is 100 by definition.
        assert len(with_interval) >= 4 * 12, name


def test_it_says_how_it_was_made(text: str) -> None:
    assert "nestwalk compare --trace redis --machine broadwell-asap --seed 1 --quick --matrix standard" in text
    assert "This was a quick run" in text
    assert "What to keep in mind" in text


def test_marks_say_what_they_stand_for(text: str) -> None:
    assert re.search(r"<title>average walk latency, cycles: [\d.]+", text)


def test_no_label_is_cut_and_none_runs_into_another(text: str) -> None:
    """Also where the browser has none of the page's fonts and takes a wider one."""
    pictures = drawn.drawings(text)
    assert sum(len(picture.labels) for picture in pictures) > 500
    assert [label for picture in pictures for label in picture.cut] == []
    assert [pair for picture in pictures for pair in picture.overlapping] == []


def test_a_cut_label_and_an_overlap_are_found() -> None:
    label = '<g transform="translate({x},5)"><text font-size="10px">{text}</text></g>'
    page = f'<svg width="100">{label.format(x=0, text="waiting for data")}{label.format(x=60, text="page walks")}</svg>'
    (picture,) = drawn.drawings(page)
    assert picture.overlapping == [("waiting for data", "page walks")]
    assert picture.cut == ["page walks"]
