# SPDX-License-Identifier: GPL-2.0
"""How contiguous the tables of the lowest level of a process lie, in guests that run, looked at from outside.

    contiguity.py FILE.json [SEEDS]     e.g. contiguity.py /some/contiguity.json 1,2,3

512 MiB are touched in order, beside four co-runners: with sorted page tables, and with vm.sorted_page_tables=0, when all tables come
from the page allocator as on the stock kernel. In a fresh guest and in aged ones (all of memory was in use once, and of each so many KiB
a page still is). Prints a row a case and writes all to the file.
"""
import json
import sys
from pathlib import Path

import build
import outside

MIB, MEMORY = 512, 1536
TABLE = 2 << 20
# KiB of which one page is kept.
AGED = {"fresh": None, "one page in 2 MiB kept": 2048, "one page in 32 KiB kept": 32}
# vm.sorted_page_tables.
MODES = {"off": 0, "sorted": 2}
# As many range registers as ASAP's paper has at most.
REGISTERS = 16


def runs(nodes):
    """Of (first address, gpa) of tables in the order of addresses: the lengths of the runs that one range describes, holes and all.

    A table belongs to the run before it if it lies as far from the run's first table as its address says.
    """
    lengths = {}
    for va, gpa in nodes:
        lengths[gpa - va // TABLE * 4096] = lengths.get(gpa - va // TABLE * 4096, 0) + 1
    return sorted(lengths.values(), reverse=True)


def row_of(nodes):
    """Of the tables: how many, the share whose next neighbour by address is the next frame, and the share that REGISTERS ranges describe."""
    neighbours = [(b[0] - a[0], b[1] - a[1]) for a, b in zip(nodes, nodes[1:]) if b[0] - a[0] == TABLE]
    described = runs(nodes)
    return {"count": len(nodes), "neighbours": sum(gpa == 4096 for _, gpa in neighbours) / len(neighbours),
            "ranges": len(described), "described": sum(described[:REGISTERS]) / len(nodes), "largest": described[0] / len(nodes)}


def measure(mode, aged, seed):
    """A row of one boot."""
    kept = AGED[aged]
    append = f"hugegpt=off nw.corunners=4 nw.seed={seed} nw.sorted={MODES[mode]}" + (f" nw.aged={kept}" if kept else "")
    _, _, found = outside.walk("nestwalk", 0, mib=MIB, mem=MEMORY, append=append)
    leaves = sorted((va, gpa) for level, va, gpa, _ in found if level == 1)
    # The mapping is the longest stretch of tables without a gap; libraries and the stack have a few more.
    stretches, last = [], None
    for va, gpa in leaves:
        if last is None or va != last + TABLE:
            stretches.append([])
        stretches[-1].append((va, gpa))
        last = va
    return row_of(max(stretches, key=len))


def main():
    path, seeds = Path(sys.argv[1]), [int(s) for s in (sys.argv[2] if len(sys.argv) > 2 else "1").split(",")]
    build.deps()
    rows = []
    for aged in AGED:
        for mode in MODES:
            for seed in seeds:
                rows.append({"tables": mode, "memory": aged, "seed": seed, **measure(mode, aged, seed)})
                row = rows[-1]
                print(f"{mode:6} {aged:24} seed {seed}: {row['count']:4} tables, neighbours {row['neighbours']:.3f}, {row['ranges']:4} ranges, "
                      f"{REGISTERS} describe {row['described']:.3f}, the largest {row['largest']:.3f}", flush=True)
    path.write_text(json.dumps({"linux": build.RELEASE.version, "mib": MIB, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
