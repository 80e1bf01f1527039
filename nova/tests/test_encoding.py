# SPDX-License-Identifier: Apache-2.0
"""The published text: nothing is lost within its bound; any text is read or refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nestwalk_nova.allocation import runs_of, units_of
from nestwalk_nova.encoding import LENGTH_MAX, SOURCES, Layout, LayoutError, decode, encode

RUNS = st.lists(st.integers(1, 5000), max_size=30).map(runs_of)
NODES = st.dictionaries(st.integers(0, 63), RUNS, min_size=1, max_size=8).map(
    lambda nodes: tuple(sorted(nodes.items()))
)
LAYOUTS = st.builds(
    Layout, st.integers(0, 1 << 33), st.sampled_from(SOURCES), st.sampled_from([2, 4, 1024]), NODES
)
GOOD = "1;t=1790000000;s=hugetlb;u=1024;f=0:64,16*3/1:32,1*12;d=5:5"


def units(layout: Layout) -> int:
    return sum(units_of(free) for _, free in layout.nodes) + layout.dropped_units


@given(LAYOUTS)
def test_what_is_encoded_is_decoded(layout: Layout) -> None:
    assert decode(encode(layout)) == layout


def test_the_text_that_the_documentation_shows() -> None:
    layout = decode(GOOD)
    assert layout.nodes == ((0, ((16, 3), (64, 1))), (1, ((1, 12), (32, 1))))
    assert (layout.taken_s, layout.source, layout.unit_mib) == (1_790_000_000, "hugetlb", 1024)
    assert (layout.dropped_segments, layout.dropped_units) == (5, 5)
    assert encode(layout) == GOOD


@given(LAYOUTS, st.integers(64, 300))
def test_the_bound_holds_and_only_the_smallest_go(layout: Layout, bound: int) -> None:
    try:
        text = encode(layout, bound)
    except LayoutError:
        # Eight node numbers and the head may be longer than the least bound.
        assert (
            len(
                encode(
                    Layout(
                        layout.taken_s,
                        layout.source,
                        layout.unit_mib,
                        tuple((n, ()) for n, _ in layout.nodes),
                    )
                )
            )
            > 40
        )
        return
    assert len(text) <= bound
    kept = decode(text)
    assert units(kept) == units(layout)
    all_sizes = sorted(
        size for _, free in layout.nodes for size, count in free for _ in range(count)
    )
    kept_sizes = sorted(
        size for _, free in kept.nodes for size, count in free for _ in range(count)
    )
    assert kept_sizes == all_sizes[kept.dropped_segments :]


def test_a_host_of_4_tib_with_all_sizes_there_can_be_stays_within_the_limit() -> None:
    # Distinct sizes 1, 2, 3 ... whose sum is 4 TiB in blocks of 4 MiB: no free list of that host has a longer text.
    sizes: list[int] = []
    total = 0
    while total + len(sizes) + 1 <= 1 << 20:
        sizes.append(len(sizes) + 1)
        total += sizes[-1]
    layout = Layout(1 << 31, "buddy", 4, ((0, runs_of(sizes)),))
    assert len(encode(layout)) <= LENGTH_MAX
    assert decode(encode(layout)).dropped_segments == 0
    assert len(encode(layout, 4096)) <= 4096


@pytest.mark.parametrize(
    "text",
    [
        "", "1", "2;t=1;s=hugetlb;u=1;f=0:1",
        "1;t=1;s=hugetlb;u=1", "1;t=1;s=magic;u=1;f=0:1", "1;t=-1;s=buddy;u=1;f=0:1",
        "1;t=1;s=buddy;u=0;f=0:1", "1;t=1;s=buddy;u=1;f=0:0", "1;t=1;s=buddy;u=1;f=0:1*0", "1;t=1;s=buddy;u=1;f=0:1,2",
        "1;t=1;s=buddy;u=1;f=0:2,2", "1;t=1;s=buddy;u=1;f=1:1/0:1", "1;t=1;s=buddy;u=1;f=0", "1;t=1;s=buddy;u=1;f=0:1,",
        "1;t=1e9;s=buddy;u=1;f=0:1", "1;t=1;s=buddy;u=1;f=0:99999999999999", "1;t=\u0661;s=buddy;u=1;f=0:1", GOOD + " ",
        GOOD + ";x" * LENGTH_MAX,
    ],
)  # fmt: skip
def test_bad_texts_are_refused(text: str) -> None:
    with pytest.raises(LayoutError):
        decode(text)


def test_fields_of_later_readers_are_skipped() -> None:
    assert decode(GOOD + ";later=1") == decode(GOOD)


@given(
    st.text(max_size=80)
    | st.text("0123456789;=:*,/dtsufhgelb", max_size=80).map(
        lambda rest: "1;t=1;s=buddy;u=4;f=" + rest
    )
)
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        layout = decode(text)
    except LayoutError:
        return
    assert decode(encode(layout)) == layout
