# SPDX-License-Identifier: MIT OR Apache-2.0
"""A folder of a replay's results: frames for analysis, everything as JSON, and a page with pictures."""

from __future__ import annotations

import json
import shlex
from functools import partial
from typing import TYPE_CHECKING, Any

import polars as pl

from nestwalk import _native, folders, sizes
from nestwalk.cloud import pictures, text
from nestwalk.report import pages
from nestwalk.report import pictures as inlining

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from nestwalk.cloud.place import Replay

MODEL_CAVEATS = (
    (
        "The scheduler is a model of Nova's filter scheduler: filters for processors and RAM, weighers, and a choice "
        "among the best. Availability zones, affinity, disks and retries are not modelled."
    ),
    (
        "A request that finds no host is unplaced and not tried again. One that is larger than every empty host is "
        "refused."
    ),
    (
        "Memory is allocated at once and whole when a VM starts, and given back whole when it ends, but for VMs that "
        "are resized where that is asked for."
    ),
    "Latencies are those of this implementation on this machine: compare them with each other, not with a real Nova.",
)


def save(done: Replay, folder: Path, *, command: Sequence[str] = ()) -> None:
    """Writes ``results.parquet``, ``vms.parquet``, ``series.parquet``, ``results.json``, a page, ``fleet.toml``."""
    value = done.to_json()
    page = render(done, command)
    series = pl.DataFrame(
        [_plain(one.version.name, point) for one in done.made for point in one.result["series"]],
        infer_schema_length=None,
    )
    with folders.filling(folder) as fresh:
        folders.write_frame(done.frame, fresh / folders.MARKER)
        folders.write_frame(done.vms, fresh / "vms.parquet")
        folders.write_frame(series, fresh / "series.parquet")
        (fresh / "results.json").write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
        (fresh / "fleet.toml").write_text(done.plan.fleet.to_toml(), encoding="utf-8")
        (fresh / "report.html").write_text(page, encoding="utf-8")


def _plain(version: str, point: dict[str, Any]) -> dict[str, Any]:
    """A point of the series as one row: what is nested gets names of its own."""
    row: dict[str, Any] = {"version": version}
    for key, value in point.items():
        if isinstance(value, list):
            row |= {f"{key}_{n}": one for n, one in enumerate(value, 1)}
        else:
            row[key] = value
    return row


def render(done: Replay, command: Sequence[str] = ()) -> str:
    """The page on a replay."""
    plan = done.plan
    return pages.fill(
        "cloud/page.html",
        version=_native.version(),
        trace=plan.trace,
        fleet=plan.fleet,
        groups=[
            {
                "name": group["name"],
                "hosts": f"{group['hosts']:,}",
                "cores": group["vcpus"],
                "memory": sizes.words(group["memory_pages"]),
                "reserved": sizes.words(group["reserved_pages"]) if group["reserved_pages"] else "none",
                "holes": ", ".join(f"{hole['kind']} {sizes.words(hole['pages'])}" for hole in group["holes"]) or "none",
                "numa_nodes": group["numa_nodes"],
            }
            for group in plan.fleet.groups
        ],
        seed=plan.settings.seed,
        vms=f"{len(plan.trace.frame):,}",
        hosts=f"{plan.fleet.hosts:,}",
        headings=[heading.replace("-\n", "").replace("\n", " ") for heading in text.HEADINGS],
        rows=[row for one in done.made for row in (text.cells(one), text.other_rule(one)) if row is not None],
        footnotes=text.footnotes(done),
        figures=_figures(done),
        machine=[],
        caveats=MODEL_CAVEATS,
        command=shlex.join(["nestwalk", *command]) if command else "nestwalk place",
    )


def _figures(done: Replay) -> list[dict[str, Any]]:
    """Those pictures that there is something to show in."""
    found = []
    for name, maker, title, words in (
        (
            "shares",
            pictures.shares,
            "Segments that VMs get",
            "The fewer segments a VM's memory lies in, the more processors can run it by registers alone (DS-n).",
        ),
        (
            "curve",
            pictures.curve,
            "How many segments a processor should have",
            "VMs with more than n segments need EPT or shadow paging. A line ends where none is left.",
        ),
        (
            "sizes",
            pictures.sizes_by_segments,
            "Segments by the size of the VM",
            "VMs of each size by the number of segments that they got.",
        ),
        (
            "fleet",
            pictures.fleet,
            "The fleet over time",
            "Unusable: free memory of a host in which a VM of the trace would fit, but not within n segments.",
        ),
        (
            "map",
            pictures.memory_map,
            f"The memory of host {done.plan.settings.map_host}, before and after",
            "Neighbouring VMs take turns in two blues.",
        ),
    ):
        drawn = inlining.layouts(partial(maker, done))
        if drawn:
            found.append({"name": name, "title": title, "text": words, "drawn": drawn})
    return found
