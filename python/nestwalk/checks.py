# SPDX-License-Identifier: MIT OR Apache-2.0
"""Arguments of the Python interface, checked where they come in: clear errors instead of what would come of them."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from nestwalk.errors import NestwalkError, shown

PATH_BYTES_MAX = 4095
"""The longest path that Linux takes (PATH_MAX without the null at its end)."""


def text(what: str, value: Any) -> str:
    """``value``, which must be a name or a path; as text.

    Raises:
        NestwalkError: When it is neither, or empty, or no UTF-8, which is what files are written in.
    """
    if not isinstance(value, str | Path):
        raise NestwalkError(f"{what} must be a name or the path of a file, not {value!r}")
    found = os.fspath(value)
    if not found:
        raise NestwalkError(f"{what} is empty; give a name or the path of a file, or leave it out")
    if len(os.fsencode(found)) > PATH_BYTES_MAX:
        raise NestwalkError(f"{what} {shown(found)} has {len(found)} characters; give a shorter name")
    if "\0" in found:
        raise NestwalkError(f"{what} {found!r} has a null character, which no name has")
    try:
        found.encode()
    except UnicodeEncodeError as error:
        raise NestwalkError(f"{what} {found!r} is no UTF-8 text; give the file another name, or a link") from error
    return found


def path(what: str, value: Any) -> Path:
    """``value``, which must be a path, whatever bytes are in it.

    Raises:
        NestwalkError: When it is something else, or empty: Python takes that for the working directory.
    """
    if not isinstance(value, str | Path) or not os.fspath(value) or "\0" in os.fspath(value):
        raise NestwalkError(f"{what} = {value!r}: give a path")
    return Path(value)


def names(what: str, value: Any) -> list[str] | None:
    """``value``, which must be several names, or None for all there are.

    Raises:
        NestwalkError: When it is one name, or there is none in it.
    """
    if value is None:
        return None
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise NestwalkError(f"{what} must be a list of names, such as ['vm-4k'], not {value!r}")
    found = list(value)
    if not found:
        raise NestwalkError(f"{what} is an empty list, so there is nothing to run; name some, or leave it out for all")
    return [text(f"a name in {what}", one) for one in found]


def whole(what: str, value: Any, least: int, most: int) -> int:
    """``value``, which must be a whole number from ``least`` to ``most``.

    Raises:
        NestwalkError: When it is something else.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise NestwalkError(f"{what} = {value!r}: give a whole number from {least} to {most}")
    return value


def share(what: str, value: Any, most: float) -> float:
    """``value``, which must be a number from 0 to ``most``.

    Raises:
        NestwalkError: When it is something else.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value) or not 0 <= value <= most:
        raise NestwalkError(f"{what} = {value!r}: give a number from 0 to {most:g}")
    return value
