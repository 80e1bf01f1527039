# SPDX-License-Identifier: Apache-2.0
"""How many segments a host would need for a VM, as the scheduler sees the host.

What a host published is decoded, checked, and allocated from by the hosts' own rule. The result is
a rank from 1, the number of segments. All that runs under EPT has the same rank, `max_segments` +
1: a VM that gets more segments than that, one that the free segments cannot hold, and one on a host
whose layout is not known. So where no host's layout is known, all are alike and the scheduler
decides as if nothing was installed.

A request for several instances is scheduled one instance after the other on the same `HostState`
objects. `HostState.consume_from_request` takes CPU, RAM and disk off the chosen one and counts the
instance, but leaves `stats` as they came from the database. So the count is ahead of the one in
`stats` by the instances that this request has put there, and as many allocations are simulated
before the host is asked again. This shadow is nowhere stored: `HostManager` makes new `HostState`
objects for each request.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

from oslo_log import log as logging

from nestwalk_nova import STATS_KEY
from nestwalk_nova.allocation import Runs, allocate, merge, segments_needed
from nestwalk_nova.encoding import Layout, LayoutError, decode

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

LOG = logging.getLogger(__name__)

ABSENT = "it publishes none"

#: `InstanceNUMACell.pagesize` of cells in small pages: none asked for, `hw:mem_page_size` small
#: (nova.virt.hardware.MEMPAGES_SMALL), or 4 KiB. For "large" and "any" Nova takes the largest.
_SMALL_PAGES = (None, -1, 4)


class Demand(NamedTuple):
    """The memory that a request asks for."""

    #: MiB of each guest NUMA node.
    cells: tuple[int, ...]
    #: Whether each cell has to be on a host NUMA node of its own. Else the memory may be anywhere
    #: on the host.
    separate: bool


class Rule(NamedTuple):
    """How hosts allocate, and how many segments count."""

    allocator: str
    max_segments: int

    @property
    def worst(self) -> int:
        """The rank of whatever runs under EPT."""
        return self.max_segments + 1


class _Known(NamedTuple):
    layout: Layout
    nodes: tuple[Runs, ...]
    #: The free segments of all nodes.
    whole: Runs
    free_mib: int


def demand_of(spec: Any, flavors: str = "all") -> Demand | None:
    """What a `RequestSpec` asks for; None if that is not taken from the published segments."""
    topology = spec.numa_topology if "numa_topology" in spec else None
    if topology is None:
        return Demand((spec.memory_mb,), separate=False) if flavors == "all" else None
    if flavors != "all" and any(cell.pagesize in _SMALL_PAGES for cell in topology.cells):
        return None
    return Demand(tuple(cell.memory for cell in topology.cells), separate=True)


def ranks(hosts: Sequence[Any], spec: Any, settings: Any) -> list[int | None] | None:
    """The rank of each `HostState` for the request, and None for those whose layout is not known.

    Args:
        hosts: `HostState` objects.
        spec: the `RequestSpec`.
        settings: the group `[nestwalk]`.

    Returns:
        None if the request takes no memory from the published segments.
    """
    demand = demand_of(spec, settings.flavors)
    if demand is None:
        return None
    rule = Rule(settings.allocator, settings.max_segments)
    now_s = time.time()
    return [_rank(host, demand, rule, now_s, settings.stale_after) for host in hosts]


def _rank(host: Any, demand: Demand, rule: Rule, now_s: float, stale_after_s: int) -> int | None:
    stats = getattr(host, "stats", None) or {}
    known = _known((host.host, host.nodename), stats.get(STATS_KEY))
    if not isinstance(known, str):
        known = _checked(known, host, now_s, stale_after_s)
    if isinstance(known, str):
        _tell(host, known)
        return None
    if _told:
        _tell_recovered(host)
    consumed = host.num_instances - int(stats.get("num_instances", 0))
    unit = known.layout.unit_mib
    cells = tuple(-(-mib // unit) for mib in demand.cells)
    if not demand.separate:
        free = _shadow((known.whole,), cells, rule, consumed)[0] if consumed > 0 else known.whole
        needed = segments_needed(free, sum(cells), rule.allocator, rule.max_segments)
    else:
        nodes = _shadow(known.nodes, cells, rule, consumed)
        needed = _total(_spread(nodes, cells, rule))
    return rule.worst if needed is None else min(needed, rule.worst)


#: What each host and node published last, and what was made of it. By host and not by text: a text
#: has the time in it, so each is another one than a minute ago, and old ones never come back.
_decoded: dict[tuple[str, str], tuple[str | None, _Known | str]] = {}


def _known(name: tuple[str, str], text: str | None) -> _Known | str:
    """What a host published, decoded, or why it is not known."""
    last = _decoded.get(name)
    if last is not None and last[0] == text:
        return last[1]
    known = _decode(text)
    _decoded[name] = (text, known)
    return known


def _decode(text: str | None) -> _Known | str:
    if text is None:
        return ABSENT
    try:
        layout = decode(text)
    except LayoutError as error:
        return f"what it publishes is not readable: {error}"
    nodes = tuple(free for _, free in layout.nodes)
    return _Known(layout, nodes, merge(list(nodes)), layout.free_mib)


def _checked(known: _Known, host: Any, now_s: float, stale_after_s: int) -> _Known | str:
    """A layout that can be believed, or why not."""
    layout = known.layout
    age_s = now_s - layout.taken_s
    if age_s > stale_after_s:
        return "it is stale"
    if age_s < -stale_after_s:
        return "it is from the future: compare the clocks"
    if known.free_mib > host.total_usable_ram_mb:
        return "it has more free memory than the host has memory"
    return known


#: One allocation: the units of a guest's cell, the index of the host's node, and the segments
#: there.
_Share = tuple[int, int, int]


def _spread(nodes: tuple[Runs, ...], cells: tuple[int, ...], rule: Rule) -> list[_Share] | None:
    """The host node for each guest cell: the largest cell first, where it needs fewest segments.

    Nova's `numa_fit_instance_to_host` chooses by CPUs and devices as well, later and on the host,
    so this is what the host can do, not what it will do.
    """
    shares: list[_Share] = []
    left = list(range(len(nodes)))
    for units in sorted(cells, reverse=True):
        needs = (
            (segments_needed(nodes[node], units, rule.allocator, rule.max_segments), node)
            for node in left
        )
        fits = [(needed, node) for needed, node in needs if needed is not None]
        if not fits:
            return None
        needed, node = min(fits)
        left.remove(node)
        shares.append((units, node, needed))
    return shares


def _total(shares: list[_Share] | None) -> int | None:
    return None if shares is None else sum(needed for _, _, needed in shares)


def _shadow(
    nodes: tuple[Runs, ...], cells: tuple[int, ...], rule: Rule, times: int
) -> tuple[Runs, ...]:
    """What is free after `times` allocations. A VM that does not fit leaves nothing."""
    for _ in range(times):
        shares = _spread(nodes, cells, rule)
        if shares is None:
            return ((),) * len(nodes)
        after = list(nodes)
        for units, node, _ in shares:
            allocation = allocate(after[node], units, rule.allocator)
            after[node] = allocation.free if allocation else ()
        nodes = tuple(after)
    return nodes


#: What was last logged of a host's layout: a condition is logged when it begins and when it ends,
#: not at each request.
_told: dict[tuple[str, str], str] = {}


def _tell(host: Any, reason: str) -> None:
    name = (host.host, host.nodename)
    if _told.get(name) == reason:
        return
    _told[name] = reason
    log = LOG.info if reason == ABSENT else LOG.warning
    log("Memory layout of host %s, node %s, is not known: %s. It counts as one that needs too many segments.",
        *name, reason)  # fmt: skip


def _tell_recovered(host: Any) -> None:
    name = (host.host, host.nodename)
    if _told.pop(name, None) is not None:
        LOG.info("Memory layout of host %s, node %s, is known again.", *name)


def forget_what_was_told() -> None:
    """Logs each condition anew."""
    _told.clear()


def forget_what_was_decoded() -> None:
    """Decodes each host's text anew."""
    _decoded.clear()


def known_ranks(found: Iterable[int | None], worst: int) -> list[int]:
    """The ranks, with `worst` for hosts whose layout is not known."""
    return [worst if rank is None else rank for rank in found]
