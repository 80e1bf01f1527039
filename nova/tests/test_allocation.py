# SPDX-License-Identifier: Apache-2.0
"""The allocation rule, against the shared vectors and against its own promises."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import make_vectors
from nestwalk_nova.allocation import (
    OPT1,
    OPT2,
    OPTIONS,
    allocate,
    merge,
    runs_of,
    segments_needed,
    units_of,
)

VECTORS = json.loads(Path(make_vectors.FILE).read_text("utf-8"))["vectors"]
SIZES = st.lists(st.integers(1, 60), max_size=20)
OPTION = st.sampled_from(OPTIONS)


def test_the_file_is_what_the_naive_program_writes() -> None:
    assert make_vectors.FILE.read_text("utf-8") == make_vectors.text()
    assert len(VECTORS) == len(make_vectors.BY_HAND) + make_vectors.RANDOM


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_vector(vector: dict[str, object], option: str) -> None:
    free = runs_of([size for _, size in vector["free"]])  # type: ignore[attr-defined]
    request: int = vector["request"]  # type: ignore[assignment]
    expected = vector[option]
    made = allocate(free, request, option)
    if not isinstance(expected, dict):
        assert made is None
        assert segments_needed(free, request, option, 99) is None
        return
    assert made is not None
    assert list(made.pieces) == [size for _, size in expected["pieces"]]
    assert made.free == runs_of([size for _, size in expected["free_after"]])
    assert segments_needed(free, request, option, 99) == expected["segments"]


@given(SIZES, st.integers(0, 1300), OPTION)
def test_memory_is_conserved(sizes: list[int], units: int, option: str) -> None:
    free = runs_of(sizes)
    made = allocate(free, units, option)
    if made is None:
        assert sum(sizes) < units
        return
    assert sum(made.pieces) == units
    assert units_of(made.free) == sum(sizes) - units
    assert all(size > 0 and count > 0 for size, count in made.free)
    assert list(made.free) == sorted(made.free)


@given(SIZES, st.integers(1, 60), OPTION)
def test_one_segment_wherever_one_is_large_enough(
    sizes: list[int], units: int, option: str
) -> None:
    made = allocate(runs_of(sizes), units, option)
    fits = any(size >= units for size in sizes)
    assert fits == (made is not None and made.pieces == (units,))
    if made is not None and units in sizes:
        rest = list(sizes)
        rest.remove(units)
        assert made.free == runs_of(rest)


@given(SIZES, st.integers(1, 1300))
def test_option_2_needs_the_fewest_segments_there_can_be(sizes: list[int], units: int) -> None:
    made = allocate(runs_of(sizes), units, OPT2)
    if made is None:
        return
    total, fewest = 0, 0
    for size in sorted(sizes, reverse=True):
        if total >= units:
            break
        total, fewest = total + size, fewest + 1
    assert len(made.pieces) == fewest


@given(SIZES, st.integers(1, 1300))
def test_option_1_keeps_the_largest_segment_if_it_can(sizes: list[int], units: int) -> None:
    made = allocate(runs_of(sizes), units, OPT1)
    if made is None or units <= max(sizes):
        return
    largest = max(sizes)
    # It is only touched where the others do not suffice, or where it is exactly what is missing.
    if largest in made.pieces[:-1]:
        assert sum(sizes) - sizes.count(largest) * largest < units


@given(st.lists(st.integers(1, 6), min_size=1, max_size=60), st.integers(1, 200), OPTION)
def test_many_equal_segments_are_taken_as_the_naive_program_takes_them(
    sizes: list[int], units: int, option: str
) -> None:
    free, base = [], 0
    for size in sizes:
        free.append((base, size))
        base += size + 1
    expected = make_vectors.allocate(free, units, OPTIONS.index(option) + 1)
    made = allocate(runs_of(sizes), units, option)
    if expected is None or made is None:
        assert expected is None
        assert made is None
        return
    pieces: list[tuple[int, int]] = expected["pieces"]  # type: ignore[assignment]
    assert list(made.pieces) == [size for _, size in pieces]


def test_a_layout_of_a_million_segments_is_allocated_at_once() -> None:
    begun = time.process_time()
    for option in OPTIONS:
        made = allocate(((1, 1 << 20),), (1 << 20) - 5, option)
        assert made is not None
        assert made.free == ((1, 5),)
    assert time.process_time() - begun < 2


@given(SIZES, st.integers(0, 1300), OPTION, st.integers(1, 8))
def test_the_count_is_that_of_the_allocation(
    sizes: list[int], units: int, option: str, limit: int
) -> None:
    free = runs_of(sizes)
    made = allocate(free, units, option)
    needed = segments_needed(free, units, option, limit)
    if made is None:
        assert needed is None
    else:
        assert needed == min(len(made.pieces), limit + 1)


@given(st.lists(SIZES, min_size=1, max_size=4))
def test_lists_are_merged_to_one(lists: list[list[int]]) -> None:
    assert merge([runs_of(sizes) for sizes in lists]) == runs_of(
        [size for sizes in lists for size in sizes]
    )
