# SPDX-License-Identifier: MIT OR Apache-2.0
"""Figures for Prometheus: a text file that node_exporter's textfile collector reads.

The format is Prometheus' text exposition format. What is not known has no line: a missing series is what monitoring
takes for unknown, and 0 would be a lie.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nestwalk.live import known

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

METRICS = (
    (
        "host_pt_fragmentation_lines",
        "Lines of host PTEs a group of eight pages, mean (1 to 8).",
        "host_pt_fragmentation",
        "value",
    ),
    ("host_pt_groups", "Groups of eight pages wholly mapped by PTEs.", "host_pt_fragmentation", "groups"),
    ("present_bytes", "Memory of the process that is present.", "memory", "present_bytes"),
    ("anonymous_bytes", "Of it anonymous.", "memory", "anonymous_bytes"),
    ("swapped_bytes", "Memory of the process that is swapped out.", "memory", "swapped_bytes"),
    ("pmd_mapped_bytes", "Memory mapped by 2 MiB pages.", "huge_pages", "pmd_mapped_bytes"),
    ("page_table_bytes", "Page tables of the process.", "page_tables", "bytes"),
    ("vmas", "Mappings of the process.", "mappings", "count"),
    ("vmas_for_99_percent", "Mappings that hold 99 % of its memory.", "mappings", "for_99_percent"),
    ("pages_per_clustered_entry", "Pages an entry of a Clustered TLB.", "coalescing", "pages_per_clustered_entry"),
    ("folio_32k_share", "Share of the pages that lie as in 32 KiB folios.", "coalescing", "folio_32k_share"),
)
"""Name, help, section and key."""

MACHINE = (
    ("free_order3_bytes", "Free memory in blocks of 32 KiB and more.", "order3_bytes"),
    ("free_order9_bytes", "Free memory in blocks of 2 MiB and more.", "order9_bytes"),
)


def text(processes: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]) -> str:
    """All figures of some processes and of the machine."""
    lines: list[str] = []
    named = [labels(one["process"]) for one in processes]
    for name, words, section, key in METRICS:
        values = [(label, _value(one[section], key)) for label, one in zip(named, processes, strict=True)]
        lines += series(name, words, ((label, value) for label, value in values if value is not None))
    distributions = [
        (f'{label},lines="{count}"', groups)
        for label, one in zip(named, processes, strict=True)
        for count, groups in enumerate(_value(one["host_pt_fragmentation"], "distribution") or (), 1)
    ]
    lines += series("host_pt_groups_on_lines", "Groups on exactly so many lines.", distributions)
    buddy = settings if known.reason(settings) else settings["buddyinfo"]
    for name, words, key in MACHINE:
        value = _value(buddy, key)
        lines += series(name, words, () if value is None else [("", value)])
    return "".join(f"{line}\n" for line in lines)


def _value(section: Any, key: str) -> Any:
    """A value, or None where it is not known."""
    if known.reason(section) is not None:
        return None
    value = section[key]
    return None if known.reason(value) is not None else value


def series(name: str, words: str, values: Iterable[tuple[str, Any]]) -> list[str]:
    """A metric with its values, each with its labels; nothing if there is none."""
    full = f"nestwalk_{name}"
    lines = [f"{full}{{{label}}} {value}" if label else f"{full} {value}" for label, value in values]
    return [f"# HELP {full} {words}", f"# TYPE {full} gauge", *lines] if lines else []


def labels(process: Mapping[str, Any]) -> str:
    """The labels of a process: its ``pid`` and ``name``, as far as they are known."""
    pairs = [(key, process[key]) for key in ("pid", "name") if known.reason(process[key]) is None]
    return ",".join(f'{key}="{_escaped(str(value))}"' for key, value in pairs)


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
