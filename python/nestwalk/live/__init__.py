# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a running Linux machine shows: ``nestwalk.live.inspect(pid)`` looks at the memory of a process.

Nothing here writes to what it looks at, and nothing that cannot be known is said as a number: such a value is
``{"unavailable": "unavailable, because ..."}``.
"""

from __future__ import annotations

from nestwalk.live.inspection import Inspection, inspect

__all__ = ["Inspection", "inspect"]
