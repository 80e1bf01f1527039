# SPDX-License-Identifier: Apache-2.0
"""The allocation rule of Compromis' hypervisor (VEE 2021), on sizes alone.

A request takes a free segment of exactly its size. Else the largest of those that are larger is
split. Else

- option 1 (`OPT1`) takes small segments and keeps the large ones for later VMs. The paper does not
  say which small ones: assumed here, as in Nestwalk's simulator, is the smallest first, a segment
  of exactly what is missing before that, and the last one split where it is larger than what is
  missing;
- option 2 (`OPT2`) takes the largest there is and goes on with what is missing.

How many segments a VM gets does not depend on addresses: free segments never touch each other, so
each one taken is one segment of the VM, and what is left of a split one is one free segment again.
Sizes are in units of a layout (1 GiB for a pool of 1 GiB pages).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import NamedTuple

OPT1 = "opt1"
OPT2 = "opt2"
OPTIONS = (OPT1, OPT2)

#: Free segments as (size in units, how many of that size), ascending in size; sizes and counts are
#: positive.
Runs = tuple[tuple[int, int], ...]


class Allocation(NamedTuple):
    """What a request gets, and what is free after it."""

    #: Sizes in units of the VM's segments, in the guest's order.
    pieces: tuple[int, ...]
    free: Runs


def runs_of(sizes: list[int]) -> Runs:
    """The sizes of free segments, in any order, as runs."""
    counts: dict[int, int] = {}
    for size in sizes:
        counts[size] = counts.get(size, 0) + 1
    return tuple(sorted(counts.items()))


def units_of(free: Runs) -> int:
    """How much is free, in units."""
    return sum(size * count for size, count in free)


def merge(lists: list[Runs]) -> Runs:
    """The free segments of several lists as one list."""
    if len(lists) == 1:
        return lists[0]
    counts: dict[int, int] = {}
    for free in lists:
        for size, count in free:
            counts[size] = counts.get(size, 0) + count
    return tuple(sorted(counts.items()))


def allocate(free: Runs, units: int, option: str) -> Allocation | None:
    """Allocates `units` by `option`; None if less than that is free."""
    if units_of(free) < units:
        return None
    sizes, counts = [size for size, _ in free], dict(free)
    pieces: list[int] = []
    missing = units
    while missing > 0:
        beyond = missing - sizes[-1]
        small = option == OPT1 and (beyond > 0 or bool(pieces))
        size = _next(sizes, counts, missing, small=small)
        if beyond > 0:
            # As long as more is missing than the largest has, none fits exactly: the choice stays.
            many = min(counts[size], -(-beyond // size))
            _remove(sizes, counts, size, many)
            pieces += [size] * many
            missing -= many * size
            continue
        taken = min(size, missing)
        _remove(sizes, counts, size)
        if taken < size:
            _add(sizes, counts, size - taken)
        pieces.append(taken)
        missing -= taken
    return Allocation(tuple(pieces), tuple((size, counts[size]) for size in sizes))


def segments_needed(free: Runs, units: int, option: str, limit: int) -> int | None:
    """How many segments `allocate` would give; `limit` + 1 if more; None if it would refuse."""
    if units_of(free) < units:
        return None
    if not free or units <= free[-1][0]:
        return min(1, units)
    sizes, counts = [size for size, _ in free], dict(free)
    missing, pieces = units, 0
    while missing > 0 and pieces <= limit:
        size = _next(sizes, counts, missing, small=option == OPT1)
        _remove(sizes, counts, size)
        missing -= size
        pieces += 1
    return pieces


def _next(sizes: list[int], counts: dict[int, int], missing: int, *, small: bool) -> int:
    """The size of the free segment that is taken from next."""
    if missing in counts:
        return missing
    return sizes[0] if small else sizes[-1]


def _remove(sizes: list[int], counts: dict[int, int], size: int, many: int = 1) -> None:
    counts[size] -= many
    if counts[size] == 0:
        del counts[size], sizes[bisect_left(sizes, size)]


def _add(sizes: list[int], counts: dict[int, int], size: int) -> None:
    if size in counts:
        counts[size] += 1
    else:
        counts[size] = 1
        insort(sizes, size)
