# SPDX-License-Identifier: MIT OR Apache-2.0
"""Which events of page walks this processor has, and how the kernel wants them written.

``events.toml`` names them by model, with their source. Where the kernel names an event itself, the kernel's encoding is
taken. No encoding is believed: :class:`nestwalk._native.Counters` opens each, and says of what does not open why.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nestwalk import toml_file

if TYPE_CHECKING:
    from collections.abc import Mapping

PMU = Path("sys/bus/event_source/devices/cpu")
TABLE = Path(__file__).parent / "events.toml"
_FORMAT = re.compile(r"config:([0-9]+(?:-[0-9]+)?(?:,[0-9]+(?:-[0-9]+)?)*)")


def of(processor: Mapping[str, Any], root: Path = Path("/")) -> list[dict[str, Any]]:
    """The events of a processor as the kernel wants them: ``name``, ``kind``, ``config``.

    None where this machine has no PMU of that sort, or the processor is none of the table's.

    Args:
        processor: As ``machine detect`` has it: ``vendor``, ``family``, ``model``, ``stepping``.
        root: Where ``/sys`` is.
    """
    folder = root / PMU
    kind = _text(folder / "type")
    if kind is None or not kind.isdecimal():
        return []
    found = []
    for event in table_of(processor)["events"]:
        terms = _text(folder / "events" / event["name"]) or event["terms"]
        config = encoded(terms, folder / "format")
        if config is not None:
            found.append({"name": event["name"], "kind": int(kind), "config": config})
    return found


def table_of(processor: Mapping[str, Any]) -> dict[str, Any]:
    """The entry of ``events.toml`` for a processor; one without events where there is none."""
    for entry in toml_file.parse(TABLE.read_text(encoding="utf-8"), TABLE.name)["processor"]:
        same = (entry["vendor"], entry["family"]) == (processor["vendor"], processor["family"])
        first, last = entry.get("steppings", (0, 15))
        model = any(low <= processor["model"] <= high for low, high in entry["models"])
        if same and model and first <= processor["stepping"] <= last:
            return dict(entry)
    return {"events": []}


def encoded(terms: str, formats: Path) -> int | None:
    """``event=0x08,umask=0x10,cmask=1`` as the number that the kernel's formats make of it; None where they do not."""
    config = 0
    for term in terms.split(","):
        name, _, digits = term.strip().partition("=")
        match = _FORMAT.fullmatch(_text(formats / name) or "") if re.fullmatch(r"[a-z0-9_]+", name) else None
        try:
            value = int(digits or "1", 0)
        except ValueError:
            return None
        if match is None:
            return None
        for part in match[1].split(","):
            low, _, high = part.partition("-")
            width = int(high or low) - int(low) + 1
            config |= (value & ((1 << width) - 1)) << int(low)
            value >>= width
        if value:
            return None
    return config


def _text(path: Path) -> str | None:
    """What a file holds, without its line end; None where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None
