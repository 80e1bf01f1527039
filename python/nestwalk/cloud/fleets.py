# SPDX-License-Identifier: MIT OR Apache-2.0
"""Fleets of hosts: TOML files with units, sized for a trace if they say shares instead of numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import tomli_w

from nestwalk import checks, scenario, sizes, toml_file
from nestwalk.cloud import requests
from nestwalk.cloud.loaders import csv
from nestwalk.errors import NestwalkError, shown, unknown
from nestwalk.toml_file import Source, Table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nestwalk.cloud.requests import Requests

FOLDER = Path(__file__).parents[1] / "fleets"
SUFFIX = ".toml"
SCHEMA = 1
TARGET_UTILISATION = 0.75
"""Assumption: the share of the fleet's memory or processors, whichever is scarcer, that is in use at the peak."""

HOSTS_MAX = 1_000_000
PAGES_MAX = (1 << 32) - 1
"""Of a host (the engine's ``MAX_HOST_PAGES``)."""

_KEYS = ("schema", "description", "defaults", "group", "scheduler")
_SIZES = ("memory", "reserved", "nova_reserved")
_GROUP_DEFAULTS = ("cores", "memory", "reserved", "nova_reserved", "holes", "numa_nodes", "numa")
_GROUP = ("name", "hosts", "share", *_GROUP_DEFAULTS)
_HOLE = ("kind", "start", "size")
_HOLE_KINDS = ("mmio", "firmware", "bad")
_NUMA = ("preferred", "strict")
SCHEDULER = {
    "cpu_allocation_ratio": float,
    "ram_allocation_ratio": float,
    "host_subset_size": int,
    "ram_weight_multiplier": float,
    "cpu_weight_multiplier": float,
}
"""Nova's own options, which a fleet file may set."""
SCHEDULER_MAX = 1_000_000
"""The most that one of them may be."""

PM_COLUMNS = ("CPU1", "RAM1", "CPU2", "RAM2")
"""Huawei's table of servers: cores and GB of each of two NUMA nodes."""


@dataclass(frozen=True)
class Fleet:
    """Hosts, in groups of equal ones."""

    name: str
    description: str
    groups: tuple[Mapping[str, Any], ...]
    """As the engine takes them; ``hosts`` is None in a group that has a ``share`` instead."""
    shares: tuple[float | None, ...]
    scheduler: Mapping[str, Any]
    """Nova's options, as far as the file sets them."""
    sizing: str
    """How the number of hosts came about, a sentence."""

    @property
    def hosts(self) -> int:
        """How many hosts there are."""
        return sum(group["hosts"] for group in self.groups)

    @property
    def largest_host(self) -> int:
        """The number of the first host with most memory."""
        first = 0
        found, most = 0, -1
        for group in self.groups:
            if group["hosts"] and group["memory_pages"] > most:
                found, most = first, group["memory_pages"]
            first += group["hosts"]
        return found

    @property
    def needs_size(self) -> bool:
        """Whether groups have shares, not numbers."""
        return any(share is not None for share in self.shares)

    def engine(self) -> dict[str, Any]:
        """What the engine takes."""
        return {"groups": [dict(group) for group in self.groups if group["hosts"]]}

    def to_toml(self) -> str:
        """A file that makes this fleet again, with as many hosts."""
        groups = []
        for group in self.groups:
            table = {"name": group["name"], "hosts": group["hosts"], "cores": group["vcpus"]}
            table["memory"] = _size(group["memory_pages"])
            table["reserved"] = _size(group["reserved_pages"])
            if group.get("nova_reserved_pages") is not None:
                table["nova_reserved"] = _size(group["nova_reserved_pages"])
            table["numa_nodes"], table["numa"] = group["numa_nodes"], group["numa"]
            table["holes"] = [
                {"kind": hole["kind"], "start": _size(hole["start_page"]), "size": _size(hole["pages"])}
                for hole in group["holes"]
            ]
            groups.append(table)
        whole: dict[str, Any] = {"schema": SCHEMA, "description": self.description}
        if self.scheduler:
            whole["scheduler"] = dict(self.scheduler)
        return tomli_w.dumps({**whole, "group": groups})

    def with_hosts(self, hosts: int, why: str) -> Fleet:
        """So many hosts by the groups' shares; what the division leaves over goes to the first groups."""
        weights = [share or 0.0 for share in self.shares]
        whole = [math.floor(hosts * weight / sum(weights) + 1e-9) for weight in weights]
        for at in range(hosts - sum(whole)):
            whole[at % len(whole)] += 1
        groups = tuple({**group, "hosts": count} for group, count in zip(self.groups, whole, strict=True))
        return replace(self, groups=groups, shares=(None,) * len(groups), sizing=why)


@dataclass(frozen=True)
class Demand:
    """The most that the VMs of a trace have at one time."""

    memory_pages: int
    vcpus: int
    vms: int
    largest_pages: int
    """Memory of the largest VM."""


def names() -> list[str]:
    """The fleets that come with Nestwalk."""
    return sorted(path.stem for path in FOLDER.glob(f"*{SUFFIX}"))


def load(name: str) -> Fleet:
    """The fleet in a file (TOML, or Huawei's table of servers), or the bundled one of that name.

    Raises:
        NestwalkError: When there is none, or it is not what it should be.
    """
    path = Path(checks.text("the fleet", name))
    if not path.suffix and not path.exists():
        if name not in names():
            raise unknown("fleet", name, names())
        path = FOLDER / f"{name}{SUFFIX}"
    text = scenario.read_text(path)
    if tuple(text.partition("\n")[0].strip().split(",")) == PM_COLUMNS:
        return _servers(path)
    file = Table(Source(str(path), text), (), toml_file.parse(text, str(path)))
    return _fleet(file, path.stem)


def _fleet(file: Table, name: str) -> Fleet:
    file.only(_KEYS)
    file.schema(SCHEMA)
    defaults = file.inner("defaults")
    defaults.only(_GROUP_DEFAULTS)
    found = file.tables("group")
    if not found:
        raise file.refused("group", "there is no [[group]]; give at least one")
    first: dict[str, Table] = {}
    pairs: list[tuple[dict[str, Any], float | None]] = []
    for entry in found:
        group, share = _group(entry.over(defaults))
        if group["name"] in first:
            raise entry.refused("name", f"the name '{group['name']}' is taken; give each group a name of its own")
        if pairs and (share is None) != (pairs[0][1] is None):
            key = "hosts" if share is None else "share"
            raise entry.refused(key, "some groups have hosts and some a share; give all of them the same")
        first[group["name"]] = entry
        pairs.append((group, share))
    scheduler = file.inner("scheduler")
    scheduler.only(SCHEDULER)
    for key in scheduler.value:
        if SCHEDULER[key] is int:
            scheduler.whole(key, 1, SCHEDULER_MAX)
        else:
            scheduler.number(key, *scheduler_range(key))
    text, groups, shares = file.text("description", name), (group for group, _ in pairs), (share for _, share in pairs)
    return Fleet(name, text, tuple(groups), tuple(shares), scheduler.value, "as the file says")


def scheduler_range(key: str) -> tuple[float, float]:
    """Between which values one of Nova's options may be; a weigher's multiplier below 0 turns its order round."""
    return (-SCHEDULER_MAX, SCHEDULER_MAX) if key.endswith("_multiplier") else (0, SCHEDULER_MAX)


def _group(entry: Table) -> tuple[dict[str, Any], float | None]:
    """A group as the engine takes it, and its share."""
    name = entry.text("name")
    entry = entry.titled(f"group '{shown(name)}'")
    entry.only(_GROUP)
    if ("hosts" in entry.value) == ("share" in entry.value):
        raise entry.refused("share", "give either hosts (a number) or share (of all hosts)")
    group: dict[str, Any] = {
        "name": name,
        "hosts": entry.whole("hosts", 1, HOSTS_MAX) if "hosts" in entry.value else None,
        "vcpus": entry.whole("cores", 1, 1 << 16),
        "memory_pages": _pages(entry, "memory"),
        "reserved_pages": _pages(entry, "reserved", "0 B"),
        "holes": [_hole(hole) for hole in entry.tables("holes")],
        "numa_nodes": entry.whole("numa_nodes", 1, 64, 1),
        "numa": entry.one_of("numa", _NUMA, _NUMA[0]),
    }
    if "nova_reserved" in entry.value:
        group["nova_reserved_pages"] = _pages(entry, "nova_reserved")
    return group, entry.number("share", 0, 1) if "share" in entry.value else None


def _size(pages: int) -> str:
    """A number of pages as :func:`_pages` reads it, in the largest unit that holds it exactly."""
    size = pages * sizes.PAGE_BYTES
    unit = next((unit for unit in ("GiB", "MiB", "KiB") if size and size % sizes.SIZES[unit] == 0), "B")
    return f"{round(size / sizes.SIZES[unit])} {unit}"


def _hole(hole: Table) -> dict[str, Any]:
    hole.only(_HOLE)
    kind = hole.one_of("kind", _HOLE_KINDS)
    return {"kind": kind, "start_page": _pages(hole, "start"), "pages": _pages(hole, "size")}


def _pages(table: Table, key: str, default: str | None = None) -> int:
    """A size in pages, at most what the engine's 32 bits for a host's pages hold."""
    value = table.value.get(key, default)
    if value is None:
        raise table.refused("", f'{key} is missing; give a size, such as {key} = "128 GiB"')
    if not isinstance(value, str):
        raise table.wrong(key, value, "a size with its unit, such as '128 GiB'")
    try:
        found = sizes.pages(value)
    except (ValueError, OverflowError) as error:
        raise table.refused(key, f"{key}: {error}") from error
    if found > PAGES_MAX:
        raise table.refused(key, f"{key} = {value!r}: give less than 16 TiB, the most that a host has here")
    return found


def _servers(path: Path) -> Fleet:
    """Huawei's servers: each line one host with two NUMA nodes, of which the free cores and GB are given.

    Equal hosts make a group. The engine's nodes are equal parts of a host: a host whose nodes differ is halved.
    """
    table = csv.scan(path, PM_COLUMNS, header=True).with_columns(requests.number(name) for name in PM_COLUMNS)
    wrong = requests.reason(
        *((pl.col(name).is_null(), f"{name} is missing or not a number") for name in PM_COLUMNS),
        (pl.min_horizontal(PM_COLUMNS) < 0, "a number is below 0"),
        (pl.max_horizontal(PM_COLUMNS) > 1 << 16, "a number is too large"),
    )
    frame = requests.collect(table.with_columns(wrong), path)
    bad = requests.malformed(frame.filter(pl.col("wrong").is_not_null()))
    if bad.count:
        raise NestwalkError(f"{path}: {bad.examples[0][0]}: {bad.examples[0][1]}")
    counted = (
        frame.select(
            (pl.col("CPU1") + pl.col("CPU2")).cast(pl.Int64).alias("cores"),
            ((pl.col("RAM1") + pl.col("RAM2")) * (1 << 30) / sizes.PAGE_BYTES).cast(pl.Int64).alias("pages"),
        )
        .filter((pl.col("cores") > 0) & (pl.col("pages") > 0))
        .group_by("cores", "pages")
        .len()
        .sort("cores", "pages")
    )
    groups = tuple(
        {
            "name": f"{cores}c-{sizes.words(pages).replace(' ', '')}",
            "hosts": hosts,
            "vcpus": cores,
            "memory_pages": pages,
            "reserved_pages": 0,
            "holes": [],
            "numa_nodes": 2,
            "numa": _NUMA[0],
        }
        for cores, pages, hosts in counted.iter_rows()
    )
    if not groups:
        raise NestwalkError(f"{path}: no server has anything free; give one that has")
    text = f"{sum(group['hosts'] for group in groups):,} servers of {path.name}, by what they have free"
    return Fleet(path.stem, text, groups, (None,) * len(groups), {}, "as the file says")


def demand(trace: Requests) -> Demand:
    """The most that the VMs of a trace have at one time; one that leaves between two bounds leaves in their middle."""
    frame = trace.frame
    leave = (pl.col("leave_lo_s") + pl.col("leave_hi_s")) // 2
    memory, vcpus = pl.col("memory_pages").cast(pl.Int64), pl.col("vcpus").cast(pl.Int64)
    arrivals = frame.select(pl.col("arrive_s").alias("time"), memory, vcpus, pl.lit(1).alias("vms"))
    departures = frame.filter(pl.col("leave_lo_s").is_not_null()).select(
        leave.alias("time"), -memory, -vcpus, pl.lit(-1).alias("vms")
    )
    # At equal times departures are first: their numbers are below 0.
    peak = (
        pl.concat([arrivals, departures])
        .sort("time", "vms")
        .select(pl.col("memory_pages", "vcpus", "vms").cum_sum().max())
        .row(0, named=True)
    )
    largest = int(frame.select(pl.col("memory_pages").max().fill_null(0)).item())
    return Demand(
        memory_pages=int(peak["memory_pages"] or 0),
        vcpus=int(peak["vcpus"] or 0),
        vms=int(peak["vms"] or 0),
        largest_pages=largest,
    )


def sized(fleet: Fleet, need: Demand, utilisation: float, cpu_allocation_ratio: float) -> Fleet:
    """The fleet with as many hosts as the demand fills to ``utilisation`` at its peak.

    Raises:
        NestwalkError: When the utilisation is none, or the hosts would be too many.
    """
    if not 0 < utilisation <= 1:
        raise NestwalkError(f"a target utilisation of {utilisation:g} cannot be; give a number above 0, at most 1")
    if not fleet.needs_size:
        return fleet
    weights = [share or 0.0 for share in fleet.shares]
    mean_pages = _mean(weights, [group["memory_pages"] - group["reserved_pages"] for group in fleet.groups])
    mean_vcpus = _mean(weights, [group["vcpus"] for group in fleet.groups]) * cpu_allocation_ratio
    by_memory, by_cpu = (need.memory_pages / (mean_pages * utilisation), need.vcpus / (mean_vcpus * utilisation))
    hosts = max(math.ceil(by_memory), math.ceil(by_cpu), len(fleet.groups))
    if hosts > HOSTS_MAX:
        raise NestwalkError(f"{hosts:,} hosts would be needed, above {HOSTS_MAX:,}; give larger hosts or fewer VMs")
    scarce = "memory (not processors)" if by_memory >= by_cpu else "processors (not memory)"
    why = f"so many that {scarce} would be {100 * utilisation:g} % in use at the peak"
    return fleet.with_hosts(hosts, why)


def _mean(weights: list[float], values: list[float]) -> float:
    return sum(weight * value for weight, value in zip(weights, values, strict=True)) / sum(weights)
