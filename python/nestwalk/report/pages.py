# SPDX-License-Identifier: MIT OR Apache-2.0
"""Fills in the package's HTML templates, each of which extends ``report/base.html``."""

from __future__ import annotations

from functools import cache
from typing import Any

import jinja2


@cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.PackageLoader("nestwalk", "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )


def fill(template: str, **values: Any) -> str:
    """The page that ``template``, by its path in the package, makes of ``values``."""
    page: str = _environment().get_template(template).render(**values)
    return page
