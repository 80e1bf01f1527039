# SPDX-License-Identifier: MIT OR Apache-2.0
"""Where the texts of a page's pictures lie, with a font as wide as the widest that browsers fall back on."""

from __future__ import annotations

import re
from dataclasses import dataclass
from xml.etree import ElementTree

SAME_LINE = 3.0
SYMBOL = 12.0
"""Pixels before a legend's text that its symbol takes."""


def _em(letter: str) -> float:
    """How wide a letter is in DejaVu Sans, about; pictures are laid out for Arial, which is narrower."""
    if letter in "iljI.,:;'|!()[] ":
        return 0.34
    return 0.69 if letter.isupper() else 0.62


@dataclass(frozen=True)
class Label:
    """A text of a picture, without those that are turned."""

    text: str
    left: float
    right: float
    y: float


@dataclass(frozen=True)
class Drawing:
    """A picture: its width and its texts."""

    width: float
    labels: tuple[Label, ...]

    @property
    def cut(self) -> list[str]:
        """Texts that reach over an edge, or that were shortened."""
        over = [label.text for label in self.labels if label.left < -1 or label.right > self.width + 1]
        return over + [label.text for label in self.labels if "\N{HORIZONTAL ELLIPSIS}" in label.text]

    @property
    def overlapping(self) -> list[tuple[str, str]]:
        """Texts of a line that run into each other."""
        return [
            (one.text, two.text)
            for one in self.labels
            for two in self.labels
            if one.left < two.left and abs(one.y - two.y) < SAME_LINE and one.right > two.left + 1
        ]


def drawings(page: str) -> list[Drawing]:
    """The pictures of a page."""
    return [_drawing(match) for match in re.findall(r"<svg.*?</svg>", page, re.DOTALL)]


def _drawing(text: str) -> Drawing:
    root = ElementTree.fromstring(re.sub(r"xlink:href", "href", text))  # noqa: S314
    found: list[Label] = []
    _collect(root, 0.0, 0.0, found)
    return Drawing(float(root.attrib["width"]), tuple(found))


def _collect(element: ElementTree.Element, x: float, y: float, found: list[Label], *, legend: bool = False) -> None:
    transform = element.get("transform", "")
    if "rotate" in transform:
        return
    moved = re.match(r"translate\(([-\d.e]+),\s*([-\d.e]+)\)", transform)
    if moved:
        x, y = x + float(moved[1]), y + float(moved[2])
    if element.tag == "text" and (element.text or "").strip() and element.get("opacity") != "0":
        size = float(element.attrib["font-size"].removesuffix("px"))
        width = size * sum(map(_em, element.text or ""))
        left = x - {"start": 0.0, "middle": 0.5, "end": 1.0}[element.get("text-anchor", "start")] * width
        found.append(Label(element.text or "", left - (SYMBOL if legend else 0.0), left + width, y))
    legend = legend or "role-legend-label" in element.get("class", "")
    for child in element:
        _collect(child, x, y, found, legend=legend)
