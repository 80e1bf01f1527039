#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Hold a sampled trace against an unfiltered, contiguous one of the same run.

Both arguments are what `nestwalk compare --json` printed. Prints a table for Markdown: each value of the contiguous
trace, that of the sampled one with half of its 95 % interval, and by how much it is off; then in how many rows
the interval holds the contiguous value, and which values are off by more than 2 %. Exit code 1 if either is too few.
"""

import json
import sys
from pathlib import Path

COLUMNS = (
    ("walks/1000", "walks_per_kiloaccess", 3),
    ("cycles/walk", "walk_latency_cycles", 1),
    ("refs/walk", "references_per_walk", 3),
    ("to guest", "guest_references_per_walk", 3),
    ("to host", "host_references_per_walk", 3),
    ("from memory", "memory_served_share", 4),
    ("walk cycles/access", "walk_cycles_per_access", 4),
    ("host PT fragm.", "host_pt_fragmentation", 3),
    ("relative time", "relative_time", 4),
)
LIMIT = 0.02
SHARE_OF_NOTHING = 0.001
"""Shares below this are compared as they are, not in per cent: ASAP leaves hardly a reference to memory."""
COVERED_MIN = 0.9


def rows(path):
    return {row["configuration"]: row for row in json.loads(Path(path).read_text())["rows"] if row["kind"] == "run"}


def main(sampled_path, contiguous_path):
    sampled, contiguous = rows(sampled_path), rows(contiguous_path)
    names = [name for name in contiguous if name in sampled]
    print("| row |", " | ".join(heading for heading, _, _ in COLUMNS), "|")
    print("| --- |", " | ".join("---" for _ in COLUMNS), "|")
    bad, intervals = [], {}
    for name in names:
        cells = []
        for heading, key, decimals in COLUMNS:
            true, ours = contiguous[name][key], sampled[name][key]
            if not true:
                cells.append("-")
                continue
            ci95 = sampled[name].get(f"{key}_ci95")
            off = ours / true - 1
            plus_minus = "" if ci95 is None else f" +- {ci95:.{decimals}f}"
            cells.append(f"{true:.{decimals}f}, {ours:.{decimals}f}{plus_minus} ({100 * off:+.1f} %)")
            if abs(off) > LIMIT and max(true, ours) > SHARE_OF_NOTHING:
                bad.append(f"{name}: {heading} {100 * off:+.1f} %")
            if ci95 is not None:
                intervals.setdefault(heading, []).append(abs(ours - true) <= ci95)
        print(f"| {name} |", " | ".join(cells), "|")
    print()
    for heading, held in intervals.items():
        print(f"{heading}: the interval holds the contiguous value in {sum(held)} of {len(held)} rows")
    print(f"off by more than {100 * LIMIT:.0f} %:", "; ".join(bad) or "nothing")
    few = [heading for heading, held in intervals.items() if sum(held) < COVERED_MIN * len(held)]
    return 1 if bad or few else 0


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: validate.py SAMPLED.json CONTIGUOUS.json")
    sys.exit(main(*sys.argv[1:]))
