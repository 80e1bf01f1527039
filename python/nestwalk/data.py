# SPDX-License-Identifier: MIT OR Apache-2.0
"""The traces that come with Nestwalk, and the names of all else that does."""

from __future__ import annotations

import json
from pathlib import Path

from nestwalk import _native, checks, files
from nestwalk.errors import NestwalkError, shown, unknown

TRACES = Path(__file__).parent / "traces"
SUFFIX = ".nwt"
DEFAULT_TRACE = "redis"
"""What the main job runs."""


def traces() -> list[str]:
    """Names of the bundled traces."""
    return sorted(path.stem for path in TRACES.glob(f"*{SUFFIX}"))


def catalog() -> dict[str, list[dict[str, str]]]:
    """What comes with Nestwalk: by kind, names and descriptions."""
    found: dict[str, list[dict[str, str]]] = json.loads(_native.catalog(str(TRACES)))
    return found


def reference(name: str) -> str:
    """How a scenario names a trace: a bundled one by its name, a file by its absolute path.

    Raises:
        NestwalkError: When there is neither.
    """
    if checks.text("trace", name) in traces():
        return name
    path = Path(name)
    with files.telling(path, "cannot be read"):
        if path.is_file():
            return str(path.absolute())
        if path.exists():
            what = "is a directory" if path.is_dir() else "is no regular file, and a trace is read more than once"
            raise NestwalkError(f"{shown(path)}: {what}; give a trace file or one of {', '.join(traces())}")
    if "/" in name or path.suffix:
        raise NestwalkError(f"{shown(name)}: no such file; give a trace file or one of {', '.join(traces())}")
    raise unknown("trace", name, traces())


def file(name: str) -> Path:
    """The file of a trace, given by the name of a bundled one or by its path.

    Raises:
        NestwalkError: When there is neither.
    """
    found = reference(name)
    return Path(found) if found.startswith("/") else TRACES / f"{found}{SUFFIX}"
