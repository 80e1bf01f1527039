# SPDX-License-Identifier: MIT OR Apache-2.0
"""Fleets of hosts: TOML files with units, sized for a trace if they say shares instead of numbers."""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import tomli_w

from nestwalk.cloud import requests, sizes
from nestwalk.cloud.loaders import csv
from nestwalk.errors import NestwalkError, unknown, unreadable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nestwalk.cloud.requests import Requests

FOLDER = Path(__file__).parents[1] / "fleets"
SUFFIX = ".toml"
SCHEMA = 1
TARGET_UTILISATION = 0.75
"""Assumption: the share of the fleet's memory or processors, whichever is scarcer, that is in use at the peak."""

HOSTS_MAX = 1_000_000

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
    path = Path(name)
    if not path.suffix and not path.exists():
        if name not in names():
            raise unknown("fleet", name, names())
        path = FOLDER / f"{name}{SUFFIX}"
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise unreadable(path, error) from error
    except UnicodeDecodeError as error:
        raise NestwalkError(f"{path}: byte {error.start}: is no UTF-8 text") from error
    if tuple(text.partition("\n")[0].strip().split(",")) == PM_COLUMNS:
        return _servers(path)
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise NestwalkError(f"{path}: {error}") from error
    try:
        return _fleet(table, path.stem)
    except ValueError as error:
        raise NestwalkError(f"{path}: {error}") from error


def _fleet(table: dict[str, Any], name: str) -> Fleet:
    _known("the file", table, _KEYS)
    if table.get("schema") != SCHEMA:
        raise ValueError(f"schema is {table.get('schema')!r}; this version reads schema = {SCHEMA}")
    defaults = _table(table.get("defaults", {}), "[defaults]")
    _known("[defaults]", defaults, _GROUP_DEFAULTS)
    found = table.get("group", [])
    if not _list(found, "group"):
        raise ValueError("has no [[group]]; give at least one")
    pairs = [_group({**defaults, **_table(group, "[[group]]")}) for group in found]
    shares = tuple(share for _, share in pairs)
    if any(share is not None for share in shares) and any(share is None for share in shares):
        raise ValueError("some groups have hosts and some a share; give all of them the same")
    labels = [group["name"] for group, _ in pairs]
    if len(set(labels)) != len(labels):
        raise ValueError("two groups have the same name")
    scheduler = _table(table.get("scheduler", {}), "[scheduler]")
    _known("[scheduler]", scheduler, SCHEDULER)
    for key, value in scheduler.items():
        if isinstance(value, bool) or not isinstance(value, int if SCHEDULER[key] is int else (int, float)):
            raise ValueError(f"[scheduler]: {key} is {value!r}; give a number")  # noqa: TRY004 (as below)
    text = table.get("description", name)
    return Fleet(name, str(text), tuple(group for group, _ in pairs), shares, scheduler, "as the file says")


def _table(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{where} is no table")  # noqa: TRY004 (one kind of error for a bad file)
    return value


def _known(where: str, table: Mapping[str, Any], keys: Any) -> None:
    for key in table:
        if key not in keys:
            raise ValueError(f"{where}: {unknown('key', key, keys)}")


def _group(table: dict[str, Any]) -> tuple[dict[str, Any], float | None]:
    """A group as the engine takes it, and its share."""
    where = f"group '{table.get('name')}'"
    _known(where, table, _GROUP)
    for key in ("name", "cores", "memory"):
        if key not in table:
            raise ValueError(f"{where}: {key} is missing")
    if ("hosts" in table) == ("share" in table):
        raise ValueError(f"{where}: give either hosts (a number) or share (of all hosts)")
    group: dict[str, Any] = {
        "name": str(table["name"]),
        "hosts": _whole(table["hosts"], f"{where}: hosts", HOSTS_MAX) if "hosts" in table else None,
        "vcpus": _whole(table["cores"], f"{where}: cores", 1 << 16),
        "memory_pages": _pages(table["memory"], f"{where}: memory"),
        "reserved_pages": _pages(table.get("reserved", "0 B"), f"{where}: reserved"),
        "holes": [_hole(hole, where) for hole in _list(table.get("holes", []), f"{where}: holes")],
        "numa_nodes": _whole(table.get("numa_nodes", 1), f"{where}: numa_nodes", 64),
        "numa": table.get("numa", _NUMA[0]),
    }
    if group["numa"] not in _NUMA:
        raise ValueError(f"{where}: numa is {group['numa']!r}; give one of {', '.join(_NUMA)}")
    if "nova_reserved" in table:
        group["nova_reserved_pages"] = _pages(table["nova_reserved"], f"{where}: nova_reserved")
    share = table.get("share")
    if share is not None and (isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1):
        raise ValueError(f"{where}: share is {share!r}; give a number above 0, at most 1")
    return group, share


def _size(pages: int) -> str:
    """A number of pages as :func:`_pages` reads it, in the largest unit that holds it exactly."""
    size = pages * requests.PAGE_BYTES
    unit = next((unit for unit in ("GiB", "MiB", "KiB") if size and size % sizes.SIZES[unit] == 0), "B")
    return f"{round(size / sizes.SIZES[unit])} {unit}"


def _hole(value: Any, where: str) -> dict[str, Any]:
    hole = _table(value, f"{where}: a hole")
    _known(f"{where}: a hole", hole, _HOLE)
    for key in _HOLE:
        if key not in hole:
            raise ValueError(f"{where}: a hole has no {key}; give kind, start and size")
    if hole["kind"] not in _HOLE_KINDS:
        raise ValueError(f"{where}: a hole's kind is {hole['kind']!r}; give one of {', '.join(_HOLE_KINDS)}")
    return {
        "kind": hole["kind"],
        "start_page": _pages(hole["start"], f"{where}: a hole's start"),
        "pages": _pages(hole["size"], f"{where}: a hole's size"),
    }


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{where} is no list")  # noqa: TRY004 (as above)
    return value


def _whole(value: Any, where: str, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise ValueError(f"{where} is {value!r}; give a whole number from 1 to {most:,}")
    return value


def _pages(value: Any, where: str) -> int:
    if not isinstance(value, str):
        raise ValueError(f"{where} is {value!r}; give a size with its unit, such as '128 GiB'")  # noqa: TRY004
    try:
        return sizes.pages(value)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


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
            ((pl.col("RAM1") + pl.col("RAM2")) * (1 << 30) / requests.PAGE_BYTES).cast(pl.Int64).alias("pages"),
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
