# SPDX-License-Identifier: Apache-2.0
"""Writes vectors.json: allocations by Compromis' rule, for every implementation of it.

It shares nothing with the package. Memory is a list of units, one character each; free segments are found by going
through it, and a VM's segments are counted by going through its units in order. Run it to write the file anew; a test
checks that the file is what this writes.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

FILE = Path(__file__).with_name("vectors.json")

ABOUT = (
    "Free segments are [base, size] in units, ascending and never touching. For each option: the VM's segments in the "
    "guest's order as [base, size], how many there are, and the free segments afterwards; null where the request is "
    "refused. Of equally large segments the one with the lowest base is taken; a segment is split from its base on. "
    "Opt1, where the paper is silent: the smallest segment first; before each step one of exactly the missing size."
)

#: Worked out by hand: name, free segments, request, then segments under Opt1 and Opt2.
BY_HAND = [
    ("exact fit is preferred to a larger one", [(0, 10), (100, 30), (200, 20)], 20, [(200, 20)], [(200, 20)]),
    ("else the largest is split, not the best fit", [(0, 10), (100, 30), (200, 20)], 15, [(100, 15)], [(100, 15)]),
    ("of two that fit exactly, the first", [(0, 8), (16, 8), (32, 9)], 8, [(0, 8)], [(0, 8)]),
    ("of two largest, the first", [(0, 4), (8, 9), (32, 9)], 5, [(8, 5)], [(8, 5)]),
    ("larger than any: small ones until the rest fits exactly", [(0, 1), (2, 2), (5, 3), (9, 9)], 12,
     [(0, 1), (2, 2), (9, 9)], [(9, 9), (5, 3)]),
    ("what is missing fits exactly", [(0, 30), (40, 10), (60, 20)], 40, [(40, 10), (0, 30)], [(0, 30), (40, 10)]),
    ("all there is", [(0, 2), (4, 3), (8, 4)], 9, [(0, 2), (4, 3), (8, 4)], [(8, 4), (4, 3), (0, 2)]),
    ("more than there is", [(0, 2), (4, 3)], 6, None, None),
    ("nothing is free", [], 1, None, None),
    ("one unit of one unit", [(7, 1)], 1, [(7, 1)], [(7, 1)]),
    ("equal segments from the first on", [(0, 4), (5, 4), (10, 4)], 10, [(0, 4), (5, 4), (10, 2)],
     [(0, 4), (5, 4), (10, 2)]),
    ("the last small one is split", [(0, 5), (6, 6), (13, 7)], 8, [(0, 5), (6, 3)], [(13, 7), (6, 1)]),
]  # fmt: skip
RANDOM = 300

Segments = list[tuple[int, int]]


def segments(memory: list[str], what: str) -> Segments:
    """The maximal stretches of units that are `what`."""
    found: Segments = []
    for base, unit in enumerate(memory):
        if unit != what:
            continue
        if found and sum(found[-1]) == base:
            found[-1] = (found[-1][0], found[-1][1] + 1)
        else:
            found.append((base, 1))
    return found


def choose(free: Segments, missing: int, option: int, *, first: bool) -> tuple[int, int]:
    """The free segment that is taken from next, by the words of the rule."""
    exact = [segment for segment in free if segment[1] == missing]
    if exact:
        return exact[0]
    larger = [segment for segment in free if segment[1] > missing]
    largest = max(size for _, size in free)
    smallest = min(size for _, size in free)
    if first and larger:
        return next(segment for segment in larger if segment[1] == largest)
    if option == 1:
        return next(segment for segment in free if segment[1] == smallest)
    return next(segment for segment in free if segment[1] == largest)


def allocate(free: Segments, request: int, option: int) -> dict[str, object] | None:
    """The VM's segments and what is free afterwards."""
    memory = ["used"] * (max((base + size for base, size in free), default=0) + 1)
    for base, size in free:
        memory[base : base + size] = ["free"] * size
    if memory.count("free") < request:
        return None
    given: list[int] = []
    while len(given) < request:
        missing = request - len(given)
        base, size = choose(segments(memory, "free"), missing, option, first=not given)
        for unit in range(base, base + min(size, missing)):
            memory[unit] = "given"
            given.append(unit)
    pieces: Segments = []
    for unit in given:
        if pieces and sum(pieces[-1]) == unit:
            pieces[-1] = (pieces[-1][0], pieces[-1][1] + 1)
        else:
            pieces.append((unit, 1))
    return {"segments": len(pieces), "pieces": pieces, "free_after": segments(memory, "free")}


def random_vector(dice: random.Random) -> tuple[Segments, int]:
    """A free list with holes between its segments, and a request of any size that may be refused."""
    free, base = [], dice.randrange(4)
    for _ in range(dice.randrange(1, 9)):
        size = dice.choice([1, 2, 3, 4, 8, dice.randrange(1, 40)])
        free.append((base, size))
        base += size + dice.randrange(1, 6)
    return free, dice.randrange(1, sum(size for _, size in free) + 3)


def vectors() -> list[dict[str, object]]:
    """All vectors; those worked out by hand are checked against the program."""
    result = []
    for name, free, request, opt1, opt2 in BY_HAND:
        both = [allocate(free, request, 1), allocate(free, request, 2)]
        for by_hand, made in zip((opt1, opt2), both, strict=True):
            assert by_hand == (made and made["pieces"]), (name, by_hand, made)
        result.append(
            {"name": name, "free": free, "request": request, "opt1": both[0], "opt2": both[1]}
        )
    dice = random.Random(2021)
    for number in range(RANDOM):
        free, request = random_vector(dice)
        both = [allocate(free, request, 1), allocate(free, request, 2)]
        result.append(
            {
                "name": f"random {number}",
                "free": free,
                "request": request,
                "opt1": both[0],
                "opt2": both[1],
            }
        )
    return result


def text() -> str:
    """The file: one vector a line."""
    lines = ",\n".join(json.dumps(vector) for vector in vectors())
    return f'{{"schema": 1, "about": {json.dumps(ABOUT)}, "vectors": [\n{lines}\n]}}\n'


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
