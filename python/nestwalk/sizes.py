# SPDX-License-Identifier: MIT OR Apache-2.0
"""Sizes of memory in words: ``128 GiB`` to pages and back."""

from __future__ import annotations

import re

PAGE_BYTES = 4096
SIZES = {"B": 1.0} | {
    f"{prefix}{suffix}": float(base**power)
    for suffix, base in (("iB", 1024), ("B", 1000))
    for power, prefix in enumerate(("K", "M", "G", "T"), 1)
}
"""Bytes of each unit."""

_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]+)\s*")


def size_bytes(text: str) -> int:
    """The bytes of a size such as ``128 GiB``.

    Raises:
        ValueError: When it is none; the text says what would be.
    """
    found = _SIZE.fullmatch(text)
    unit = SIZES.get(found[2]) if found else None
    if found is None or unit is None:
        raise ValueError(f"'{text}' is no size; write a number and one of {', '.join(SIZES)}, such as '128 GiB'")
    return round(float(found[1]) * unit)


def pages(text: str) -> int:
    """The pages of 4 KiB of a size such as ``128 GiB``.

    Raises:
        ValueError: When it is no size, or no whole number of pages.
    """
    found = size_bytes(text)
    if found % PAGE_BYTES:
        raise ValueError(f"'{text}' is no whole number of pages of 4 KiB")
    return found // PAGE_BYTES


def words(pages_: float) -> str:
    """A number of pages for people."""
    size = pages_ * PAGE_BYTES
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size >= SIZES[unit]:
            return f"{size / SIZES[unit]:.4g} {unit}"
    return f"{size:.0f} B"
