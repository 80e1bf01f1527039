# SPDX-License-Identifier: MIT OR Apache-2.0
"""Values that a machine may keep to itself: the value, or ``{"unavailable": "unavailable, because ..."}``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

T = TypeVar("T")

KEY = "unavailable"


def unavailable(reason: str) -> dict[str, str]:
    """No value, because of ``reason``, which continues the words "unavailable, because"."""
    return {KEY: f"unavailable, because {reason}"}


def reason(value: Any) -> str | None:
    """Why there is no value; None if there is one."""
    found = value.get(KEY) if isinstance(value, dict) else None
    return found if isinstance(found, str) else None


def first_reason(values: Iterable[Any]) -> str | None:
    """Why the first value that there is not is not known; None if there are all."""
    return next((found for value in values if (found := reason(value)) is not None), None)


def either(value: Any, shown: Callable[[Any], str]) -> str:
    """``value`` as ``shown`` words it, or the sentence that says why there is none."""
    return reason(value) or shown(value)
