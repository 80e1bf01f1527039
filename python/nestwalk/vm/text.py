# SPDX-License-Identifier: MIT OR Apache-2.0
"""What the verbs about guests print for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nestwalk import tables

if TYPE_CHECKING:
    from rich.console import RenderableType

MIB = 1 << 20
SIZES = ("4 KiB", "2 MiB", "1 GiB")


def processes(found: list[dict[str, Any]]) -> list[RenderableType]:
    """A row for each process."""
    table = tables.new(("process", "CR3", "mapped,\nMiB", "in huge\npages,\nMiB"))
    for one in found:
        name = one["program"] or "(its stack does not tell)"
        table.add_row(name, one["cr3"], f"{one['mapped_bytes'] / MIB:.1f}", f"{one['huge_bytes'] / MIB:.1f}")
    return [table]


def dumped(found: dict[str, Any]) -> list[RenderableType]:
    """What a dump holds."""
    return [tables.facts(_of_tables(found))]


def captured(found: dict[str, Any]) -> list[RenderableType]:
    """What a capture brought."""
    counts, frames = found["recorded"], found["frames"]
    facts = {
        "trace": found["trace"],
        "process": found["process"]["program"] or found["process"]["name"],
        "ended by": found["ended"],
        "accesses in the trace": found["accesses"],
        "bytes": found["bytes"],
        "footprint, MiB": round(found["footprint_bytes"] / MIB, 1),
        "accesses recorded": counts["recorded"],
        "by user code": counts["by_user"],
        "by the kernel to the process": counts["by_kernel_to_user"],
        "by the kernel to its own half": counts["by_kernel_to_kernel"],
        "recorded a second": found["accesses_per_second"],
    }
    if frames is not None:
        facts |= {
            "to the frame in the tables": frames["same"],
            "to another frame": frames["other"],
            "to a page not in the tables": frames["unmapped"],
            "frame unknown": frames["unknown"],
        }
    if found["page_tables"] is not None:
        facts |= _of_tables(found)
    return [tables.facts(facts)]


def _of_tables(found: dict[str, Any]) -> dict[str, Any]:
    page_tables = found["page_tables"]

    def sizes(kind: str) -> str:
        return ", ".join(f"{count} of {size}" for count, size in zip(page_tables[kind], SIZES, strict=True))

    regions = page_tables["regions"]
    in_regions = (
        {}
        if regions is None
        else {
            "regions of sorted tables": regions["regions"],
            "tables at their place in them": regions["in_place"],
            "tables that lie elsewhere": regions["elsewhere"],
        }
    )
    return {
        "page tables": found["tables"],
        "of": found["process"]["program"] or found["process"]["name"],
        "levels": page_tables["levels"],
        "tables of the user half": page_tables["user_tables"],
        "tables of the kernel half": page_tables["kernel_tables"],
        "user pages": sizes("user_pages"),
        "kernel pages": sizes("kernel_pages"),
        "entries left out (no memory)": page_tables["outside"],
        **in_regions,
    }
