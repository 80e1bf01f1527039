# SPDX-License-Identifier: MIT OR Apache-2.0
"""Charts as SVG elements of an HTML page."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import markupsafe

from nestwalk import charts

if TYPE_CHECKING:
    from collections.abc import Callable

    from nestwalk.charts import Layout, Picture
    from nestwalk.frames import Labelled


@dataclass(frozen=True)
class Drawn:
    """A picture in a page."""

    layout: str
    """The class that shows and hides it: ``wide`` or ``narrow``."""
    title: str
    """What stands above it; may be empty."""
    svg: markupsafe.Markup


_NAMESPACE = re.compile(r' (?:xmlns|xmlns:xlink|version)="[^"]*"')
_LABELLED_MARK = re.compile(r'<(path|text|line|g)( aria-label="([^"]*)"[^>]*)(?:/>|></\1>)')
_INK = re.compile(r'(fill|stroke)="(?:black|#000|#000000|#333|#333333)"')


def inline(chart: Picture) -> markupsafe.Markup:
    """The chart as an element to put into HTML.

    Its ink takes the colour of the page's text, so that it can be read on light and on dark; what each mark stands for
    shows when the mouse rests on it.
    """
    text = charts.svg(chart)
    text = _NAMESPACE.sub("", text)
    text = _INK.sub(r'\1="currentColor"', text)
    text = _LABELLED_MARK.sub(r"<\1\2><title>\3</title></\1>", text)
    # It is our own drawing: the names in it were escaped when it was drawn.
    return markupsafe.Markup(text)  # noqa: S704


def layouts(draw: Callable[[Layout], Picture | None], wide: Layout = charts.WIDE) -> list[Drawn]:
    """A picture as the page shows it where there is room, and on a phone; nothing if there is nothing to draw."""
    made = {"wide": draw(wide), "narrow": draw(charts.NARROW)}
    return [Drawn(name, "", inline(picture)) for name, picture in made.items() if picture is not None]


def both(draw: Callable[[Labelled, Layout], Picture], rows: Labelled) -> list[Drawn]:
    """A picture as the page shows it where there is room, and on a phone, where each variant has one of its own."""
    variants = list(dict.fromkeys(variant for _, variant, _ in rows))
    wide = Drawn("wide", "", inline(draw(rows, charts.WIDE)))
    parts = {variant: [row for row in rows if row[1] == variant] for variant in variants}
    narrow = [Drawn("narrow", variant, inline(draw(part, charts.NARROW))) for variant, part in parts.items()]
    return [wide, *narrow]
