# SPDX-License-Identifier: MIT OR Apache-2.0
"""What ``nestwalk place`` and ``nestwalk segments`` print for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from nestwalk import sizes
from nestwalk.sizes import PAGE_BYTES
from nestwalk.tables import NOTHING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import RenderableType

    from nestwalk.cloud.place import Replay, Replayed

COUNTS = ("1", "2", "3", "more")
LARGEST_SHOWN = 8


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A table without lines: words on the left, numbers on the right."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for position, heading in enumerate(headings):
        made.add_column(heading, justify="right" if position else "left", no_wrap=bool(position), vertical="bottom")
    for row in rows:
        made.add_row(*row)
    return made


def percent(share: float | None) -> str:
    """A share for people; one that is not 0 never looks like it, and one that is not 1 neither."""
    if share is None:
        return NOTHING
    text = f"{100 * share:.2f}"
    if (text == "0.00" and share > 0) or (text == "100.00" and share < 1):
        return f"{100 * share:.4g}" if share < 0.5 else f"{100 * share:.6g}"  # noqa: PLR2004
    return text


def number(value: float | None, digits: int = 3) -> str:
    """A number for people."""
    if value is None:
        return NOTHING
    return f"{value:,.0f}" if abs(value) >= 10**digits else f"{value:.{digits}g}"


def page(done: Replay, seconds: float) -> list[RenderableType]:
    """All that ``nestwalk place`` prints: the table first."""
    plan, trace, fleet = done.plan, done.plan.trace, done.plan.fleet
    head = (
        f"{trace.path.name} ({trace.format}): {len(trace.frame):,} VMs on {fleet.hosts:,} hosts ({fleet.name}), "
        f"seed {plan.settings.seed}, in {seconds:.1f} s"
    )
    parts: list[RenderableType] = [Text(head), Text(), versions(done), Text()]
    parts += [Text(line) for line in footnotes(done)]
    return parts


HEADINGS = (
    "version",
    "in 1 seg-\nment, %",
    "in\n2, %",
    "in\n3, %",
    "in\nmore, %",
    "placed\n",
    "un-\nplaced",
    "re-\nfused",
    "memory\nused, %",
    "free and\nunusable, %",
    "placement, \u00b5s\nmean / p99",
    "allocation, \u00b5s\nmean / p99",
)


def versions(done: Replay) -> Table:
    """A row for each version."""
    rows = []
    for one in done.made:
        rows.append(cells(one))
        other = other_rule(one)
        if other is not None:
            rows.append(other)
    return table(HEADINGS, rows)


def other_rule(one: Replayed) -> list[str] | None:
    """A row with the version's shares by the other rule of counting; None if they are the same."""
    shares, other = one.result["segments"]["shares"], one.result["segments_other_rule"]["shares"]
    if shares == other:
        return None
    rule = "in any order" if one.options["counting"] == "in-order" else "in order only"
    return [f"  pieces {rule}", *(percent(other.get(key)) for key in COUNTS), *[""] * (len(HEADINGS) - 5)]


def cells(one: Replayed) -> list[str]:
    """A version's row."""
    value = one.to_json()
    allocation = value["latency_us"]["allocation"]
    return [
        one.version.title,
        *(percent(value["segments"].get(key)) for key in COUNTS),
        f"{value['placed']:,}",
        f"{value['unplaced']:,}",
        f"{value['refused']:,}",
        percent(mean_share(value["series"], "memory_share")),
        percent(value["unusable"][one.options["ds_segments"] - 1] if value["unusable"] else None),
        f"{number(value['latency_us']['mean'])} / {number(value['latency_us']['p99'])}",
        f"{number(allocation['mean'])} / {number(allocation['p99'])}",
    ]


def mean_share(series: Sequence[Mapping[str, Any]], key: str) -> float | None:
    """The mean of a series over time; its points are equally far apart."""
    values = [point[key] for point in series if point.get(key) is not None]
    return sum(values) / len(values) if values else None


def footnotes(done: Replay) -> list[str]:
    """What to know of the table: the fleet's size, what was assumed, and what was left out."""
    plan = done.plan
    need, settings = plan.demand, plan.settings
    rule = ", in whatever order," if settings.any_order else " in the same order"
    plural = "" if settings.segments == 1 else "s"
    unusable = f"free memory that a VM of the trace cannot have within {settings.segments} segment{plural}, by its size"
    replays = f"{done.jobs} replay{'' if done.jobs == 1 else 's'}"
    lines = [
        f"Fleet: {plan.fleet.description}; {plan.fleet.sizing}.",
        f"Peak: {need.vms:,} VMs with {sizes.words(need.memory_pages)} and {need.vcpus:,} virtual CPUs.",
        f"Segments: what is contiguous in the guest and in the host{rule} is one.",
        f"Unusable: {unusable} (docs/cloud.md), mean over time.",
        f"Latencies are measured on this machine, {replays} at a time; all else repeats to the last bit.",
    ]
    assumed = done.made[0].result["assumed"]
    if assumed["departures_drawn"]:
        lines.append(
            f"{assumed['departures_drawn']:,} departures are known within bounds only: each was drawn between its own, "
            f"by seed {settings.seed}."
        )
    if assumed["departures_unknown"]:
        lines.append(f"{assumed['departures_unknown']:,} departures are not known: these VMs stay until the end.")
    if settings.resize is not None:
        lines += [resized(one, settings.resize["how"]) for one in done.made]
    lines += [f"{note[0].upper()}{note[1:]}." for note in plan.trace.notes]
    lines += [f"{sentence}." for sentence in plan.trace.malformed.sentences()]
    return lines


def resized(one: Replayed, how: str) -> str:
    """What resizing did in one version; the table has segments as VMs had them when they were placed."""
    done, most = one.result["resize"], one.result["modes"][one.options["ds_segments"] - 1]
    return (
        f"{one.version.title}: {done['vms']:,} VMs resized ({how}) by {sizes.words(done['pages'])} together; "
        f"{done['not_done']:,} could not be, {done['undone']:,} had their first size again, {done['not_undone']:,} "
        f"could not. At their worst, {most['ept_vms']:,} VMs had more segments than {most['n']}."
    )


def segments(found: Mapping[str, Any]) -> list[RenderableType]:
    """All that ``nestwalk segments`` prints."""
    layout, now = found["segments"], found["available_now"]
    what = f"process {found['pid']}" if found["pid"] is not None else "the recording"
    rows = [
        ("memory", sizes.words(found["memory_pages"])),
        ("of it present", sizes.words(found["present_pages"])),
        ("never touched or given back", sizes.words(found["absent_pages"])),
        ("read only so far (page of zeros), or merged by KSM", sizes.words(found["shared_pages"])),
        ("swapped out", sizes.words(found["swapped_pages"])),
    ]
    placed = found["guest_physical"]
    if isinstance(placed, str):
        rows.append(("guest-physical layout", placed))
    else:
        ranges = (f"{sizes.words(one['bytes'] // PAGE_BYTES)} at {one['gpa']}" for one in placed)
        rows.append(("guest-physical layout", ", ".join(ranges)))
    if isinstance(layout, str):
        rows.append(("segments", layout))
    else:
        rows += [
            ("segments it lies in", f"{layout['count']:,}"),
            ("at the least, if gaps were filled well", f"{layout['fewest']:,}"),
            ("largest segment", sizes.words(layout["largest_pages"])),
            ("mean segment", sizes.words(layout["mean_pages"])),
        ]
        rows += [
            (f"share in the {n} largest", f"{100 * share:.1f} %") for n, share in layout["share_in_largest"].items()
        ]
    parts: list[RenderableType] = [Text(f"The memory of {what}", style="bold"), _facts(rows), Text()]
    parts += [Text("What a VM of this size could get now", style="bold"), _facts(_now(now))]
    return parts


def _now(now: Mapping[str, Any]) -> list[tuple[str, str]]:
    free, pools = now["free_memory"], now["hugetlb"]
    rows: list[tuple[str, str]] = []
    if isinstance(free, str):
        rows.append(("free memory", free))
    else:
        rows += [
            ("free memory", sizes.words(free["free_pages"])),
            ("segments out of it", _or(free["segments"])),
            ("largest piece of it", _size(free["largest_run_pages"])),
            ("segments, if no free block were beside another", _or(free["segments_at_most"])),
        ]
    if isinstance(pools, str):
        rows.append(("hugetlb pages", pools))
    else:
        rows += [
            (f"segments out of hugetlb pages of {pool['page_kib']:,} kB, at most", _or(pool["segments_at_most"]))
            for pool in pools
        ]
    return rows


def _or(value: int | str) -> str:
    return value if isinstance(value, str) else f"{value:,}"


def _size(value: int | str) -> str:
    return value if isinstance(value, str) else sizes.words(value)


def _facts(rows: Sequence[tuple[str, str]]) -> Table:
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    made.add_column()
    made.add_column(overflow="fold")
    for row in rows:
        made.add_row(*row)
    return made
