# SPDX-License-Identifier: Apache-2.0
"""The text in which a compute node publishes its free segments, and its bounds.

A layout is one line of ASCII, for example::

    1;t=1790000000;s=hugetlb;u=1024;f=0:64,16*3/1:32,1*12;d=5:5

| field | what |
| --- | --- |
| `1` | version of the format; another version is not read |
| `t` | when memory was looked at, in seconds since 1970 |
| `s` | where it was read from (`SOURCES`) |
| `u` | MiB a unit |
| `f` | by NUMA node: free segments in units, descending, `size*count` for equal ones |
| `d` | left out to keep the bound, smallest segments first: how many, and units in all |

Fields that a reader does not know it skips. The text goes into `ComputeNode.stats`, a JSON object
of strings in a column of type TEXT: 65,535 bytes in MySQL, beyond which the compute node's whole
record could not be saved. Nova puts some counters of its own there, one for each project with a VM
on the host among them. So a text is never longer than `LENGTH_MAX`, and by default not longer than
a quarter of that.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from nestwalk_nova.allocation import Runs, units_of

VERSION = "1"
#: Characters. A sixteenth of what the column holds is the default (`[nestwalk] length_max`), a
#: quarter the limit.
LENGTH_MAX = 16384

#: Where a layout comes from: addresses of free 1 GiB or 2 MiB huge pages; how many of them are
#: free, each one taken for a segment of its own; blocks of the buddy allocator by address; how many
#: of the largest blocks are free.
SOURCES = ("hugetlb", "hugetlb-counts", "buddy", "buddy-counts")

_NUMBER_MAX = 1 << 40
_NODES_MAX = 1024
_NUMBER = re.compile(r"[0-9]{1,13}")
_SIZES = re.compile(r"(?:[0-9]{1,13}(?:\*[0-9]{1,13})?,)*[0-9]{1,13}(?:\*[0-9]{1,13})?")


class LayoutError(ValueError):
    """A text is no layout of this version."""


@dataclass(frozen=True, slots=True)
class Layout:
    """A host's free segments at a time."""

    #: Seconds since 1970.
    taken_s: int
    source: str
    #: MiB a unit.
    unit_mib: int
    #: NUMA node and its free segments in units, ascending in the node's number.
    nodes: tuple[tuple[int, Runs], ...]
    #: Free segments that were left out, and their units.
    dropped_segments: int = 0
    dropped_units: int = 0

    @property
    def free_mib(self) -> int:
        """Free memory, in the segments that are listed and in those that were left out."""
        return self.unit_mib * (sum(units_of(free) for _, free in self.nodes) + self.dropped_units)


def encode(layout: Layout, length_max: int = LENGTH_MAX) -> str:
    """The layout as text of at most `length_max` characters; the smallest segments go first.

    Raises:
        LayoutError: not even a layout without segments is that short.
    """
    text = _encode(layout)
    while len(text) > length_max:
        layout = _without_smallest(layout)
        text = _encode(layout)
    return text


def decode(text: str) -> Layout:
    """The layout that a text describes.

    Raises:
        LayoutError: what is wrong with the text.
    """
    if len(text) > LENGTH_MAX:
        raise LayoutError(f"longer than {LENGTH_MAX} characters")
    version, *rest = text.split(";")
    if version != VERSION:
        raise LayoutError(f"version {version[:16]!r} is not known, only {VERSION}")
    fields = dict(field.partition("=")[::2] for field in rest)
    try:
        taken, source, unit, free = fields["t"], fields["s"], fields["u"], fields["f"]
    except KeyError as missing:
        raise LayoutError(f"field {missing.args[0]!r} is missing") from None
    if source not in SOURCES:
        raise LayoutError(f"source {source[:16]!r} is not known")
    dropped_segments, _, dropped_units = fields.get("d", "0:0").partition(":")
    return Layout(
        _number(taken),
        source,
        _positive(unit),
        _nodes(free),
        _number(dropped_segments),
        _number(dropped_units),
    )


def _encode(layout: Layout) -> str:
    def run(size: int, count: int) -> str:
        return f"{size}*{count}" if count > 1 else str(size)

    nodes = "/".join(
        f"{node}:{','.join(run(*pair) for pair in reversed(free))}" for node, free in layout.nodes
    )
    text = f"{VERSION};t={layout.taken_s};s={layout.source};u={layout.unit_mib};f={nodes}"
    if layout.dropped_segments:
        text += f";d={layout.dropped_segments}:{layout.dropped_units}"
    return text


def _without_smallest(layout: Layout) -> Layout:
    """The layout without the segments of the smallest size that it lists."""
    smallest = min((free[0][0] for _, free in layout.nodes if free), default=None)
    if smallest is None:
        raise LayoutError("the bound on its length leaves no room for a layout")
    count = sum(free[0][1] for _, free in layout.nodes if free and free[0][0] == smallest)
    return replace(
        layout,
        nodes=tuple(
            (node, free[1:] if free and free[0][0] == smallest else free)
            for node, free in layout.nodes
        ),
        dropped_segments=layout.dropped_segments + count,
        dropped_units=layout.dropped_units + count * smallest,
    )


def _number(text: str) -> int:
    if not _NUMBER.fullmatch(text) or int(text) > _NUMBER_MAX:
        raise LayoutError(f"{text[:16]!r} is not a number up to 2^40")
    return int(text)


def _positive(text: str) -> int:
    number = _number(text)
    if number == 0:
        raise LayoutError("a size or a count is 0")
    return number


def _nodes(text: str) -> tuple[tuple[int, Runs], ...]:
    nodes: list[tuple[int, Runs]] = []
    for part in text.split("/"):
        number, colon, sizes = part.partition(":")
        if not colon:
            raise LayoutError(f"{part[:16]!r} is not a node with its segments")
        node = _number(number)
        if len(nodes) == _NODES_MAX or (nodes and node <= nodes[-1][0]):
            raise LayoutError("nodes are not ascending, or too many")
        nodes.append((node, _runs(sizes)))
    return tuple(nodes)


def _runs(text: str) -> Runs:
    if not text:
        return ()
    if not _SIZES.fullmatch(text):
        raise LayoutError(f"{text[:16]!r} is not a list of segments")
    runs = []
    larger = _NUMBER_MAX + 1
    for part in text.split(","):
        size, _, count = part.partition("*")
        run = (int(size), int(count or 1))
        if not 0 < run[0] < larger or not 0 < run[1] <= _NUMBER_MAX:
            raise LayoutError("sizes of segments are not descending, too large or 0")
        larger = run[0]
        runs.append(run)
    return tuple(reversed(runs))
