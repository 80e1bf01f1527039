# SPDX-License-Identifier: MIT OR Apache-2.0
"""Names of counters that code keeps as data.

A type checker finds a wrong name in ``statistics["walk_cycles"]``, but not one in a list of names. Such a list is
checked when its module is imported.
"""

from __future__ import annotations

from typing import Any


def named(group: Any, *names: str) -> tuple[str, ...]:
    """``names``, each a counter of ``group``, a type of :mod:`nestwalk.counters`.

    Raises:
        AttributeError: ``group`` has no counter of that name.
    """
    for name in names:
        if name not in group.__annotations__:
            raise AttributeError(f"{group.__name__} has no counter {name!r}", name=name, obj=group)
    return names
