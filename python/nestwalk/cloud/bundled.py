# SPDX-License-Identifier: MIT OR Apache-2.0
"""The traces of VMs that come with Nestwalk."""

from __future__ import annotations

from pathlib import Path

from nestwalk import checks
from nestwalk.errors import NestwalkError, unknown

FOLDER = Path(__file__).parents[1] / "vm_traces"
SUFFIX = ".parquet"
DAYS_1_20 = "azure-v1-days-1-20"
DAYS_21_30 = "azure-v1-days-21-30"


def names() -> list[str]:
    """Their names."""
    return sorted(path.stem for path in FOLDER.glob(f"*{SUFFIX}"))


def file(name: str) -> Path:
    """The file of a trace, given by the name of a bundled one or by its path.

    Raises:
        NestwalkError: When there is neither.
    """
    path = Path(checks.text("the trace of VMs", name))
    if name in names() and not path.exists():
        return FOLDER / f"{name}{SUFFIX}"
    if path.exists():
        return path
    if "/" in name or path.suffix:
        raise NestwalkError(f"{name}: no such file; give a trace of VMs or one of {', '.join(names())}")
    raise unknown("trace of VMs", name, names())
