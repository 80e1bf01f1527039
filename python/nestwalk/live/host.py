# SPDX-License-Identifier: MIT OR Apache-2.0
"""The VMs of a KVM host: ``nestwalk inspect --host``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from nestwalk import _native
from nestwalk.live import known
from nestwalk.live.inspection import SCHEMA
from nestwalk.live.text import lines
from nestwalk.live.verdicts import Line, size
from nestwalk.tables import NOTHING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rich.console import RenderableType


def inspect_host(root: Path | None = None) -> dict[str, Any]:
    """All that ``nestwalk inspect --host --json`` prints.

    Args:
        root: The folder that stands for ``/``, for tests.
    """
    found: dict[str, Any] = json.loads(_native.inspect_host(None if root is None else str(root)))
    return {"schema": SCHEMA, "version": _native.version(), **found}


def page(found: Mapping[str, Any]) -> list[RenderableType]:
    """All that ``nestwalk inspect --host`` prints."""
    vms = found["vms"]
    parts: list[RenderableType] = [Text(f"{len(vms)} VMs of KVM on this host", style="bold"), Text()]
    if vms:
        parts += [_table(vms), Text()]
        for vm in vms:
            parts += [Text(f"{vm['name']} ({vm['pid']})", style="bold"), lines(list(_lines(vm))), Text()]
    parts.append(lines(_settings(found)))
    return [*parts, *(Text(note) for note in found["notes"])]


def _table(vms: list[dict[str, Any]]) -> Table:
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    made.add_column("VMM")
    for heading in (
        "pid",
        "leaves\n4 KiB",
        "leaves\n2 MiB",
        "leaves\n1 GiB",
        "huge, %\nof mapped",
        "memory",
        "huge, %\nof memory",
    ):
        made.add_column(heading, justify="right", no_wrap=True)
    for vm in vms:
        leaves = None if known.reason(vm["leaves"]) else vm["leaves"]
        memory = None if known.reason(vm["memory"]) else vm["memory"]
        sizes = [f"{leaves[key]:,}" if leaves else NOTHING for key in ("pages_4k", "pages_2m", "pages_1g")]
        share = leaves["huge_share"] if leaves else None
        made.add_row(
            vm["name"],
            str(vm["pid"]),
            *sizes,
            NOTHING if share is None else f"{100 * share:.1f}",
            size(memory["present_bytes"]) if memory else NOTHING,
            f"{100 * memory['huge_share']:.1f}" if memory else NOTHING,
        )
    return made


CAUSES = {"dirty_logging": "split by dirty logging", "nx_huge_pages": "split by nx_huge_pages", "ksm": "split by KSM"}


def _lines(vm: Mapping[str, Any]) -> list[Line]:
    found = [
        Line(key, what, "", why)
        for key, what in (("leaves", "leaves"), ("memory", "memory of the VMM"))
        if (why := known.reason(vm[key]))
    ]
    found += [Line("splitting", CAUSES[one["cause"]], one["found"], one["why"]) for one in vm["splitting"]]
    tables = vm["guest_tables"]
    return [*found, Line("guest_tables", "guest tables on huge pages", tables["answer"], tables["why"])]


def _settings(found: Mapping[str, Any]) -> list[Line]:
    kvm, ksm, thp = found["kvm"], found["ksm"], found["thp_enabled"]
    rows = []
    why = known.reason(kvm)
    if why:
        rows.append(Line("kvm", "KVM", "", why))
    else:
        words = (
            ("nested_paging", "nested paging", "without it KVM keeps shadow page tables"),
            ("nx_huge_pages", "nx_huge_pages", "if on, it splits huge pages that the guest runs code from"),
            ("eager_page_split", "eager_page_split", "if on, dirty logging splits all pages when it begins"),
            ("tdp_mmu", "TDP MMU", "KVM's newer page-table code"),
        )
        for key, what, verdict in words:
            reason = known.reason(kvm[key])
            rows.append(Line(f"kvm.{key}", what, "" if reason else kvm[key], reason or verdict))
    why = known.reason(ksm)
    merged = "" if why else f"{size(ksm['sharing_bytes'])} of addresses share a page with others"
    rows.append(Line("ksm", "KSM", "" if why else ("on" if ksm["run"] == 1 else "off"), why or merged))
    why = known.reason(thp)
    rows.append(
        Line("thp_enabled", "transparent huge pages", "" if why else thp, why or "of this host, for its VMMs' memory")
    )
    return rows


def metrics(found: Mapping[str, Any]) -> str:
    """Figures for Prometheus, as :mod:`nestwalk.live.prom` has them for processes."""
    from nestwalk.live import prom

    rows: list[str] = []
    for name, words, section, key in (
        ("vm_leaves_4k", "Leaves of 4 KiB that map guest memory.", "leaves", "pages_4k"),
        ("vm_leaves_2m", "Leaves of 2 MiB.", "leaves", "pages_2m"),
        ("vm_leaves_1g", "Leaves of 1 GiB.", "leaves", "pages_1g"),
        ("vmm_present_bytes", "Memory of the VMM that is present.", "memory", "present_bytes"),
        ("vmm_huge_bytes", "Of it in huge pages.", "memory", "huge_bytes"),
    ):
        values = [(prom.labels(vm), vm[section][key]) for vm in found["vms"] if known.reason(vm[section]) is None]
        rows += prom.series(name, words, values)
    return "".join(f"{row}\n" for row in rows)
