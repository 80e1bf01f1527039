# SPDX-License-Identifier: GPL-2.0
"""How contiguous the tables of the lowest level of a process lie, in guests that run, looked at from outside.

    contiguity.py FILE.json [SEEDS [MEMORY [TABLES]]]
    e.g. contiguity.py /some/contiguity.json 1,2,3 "nothing whole" sorted

512 MiB are touched in order, beside four co-runners: with sorted page tables for everyone, for the program alone,
which asks for them and so may have memory compacted, and with vm.sorted_page_tables=0, when all tables come from
the page allocator as on the stock kernel. In a fresh guest and in aged ones (all of memory was in use once, and of
each so many KiB a page still is; in some 48 MiB were left alone). MEMORY and TABLES: only rows whose names these
begin. Prints a row a case and writes all to the file.
"""

import itertools
import json
import re
import sys
from pathlib import Path

import build
import outside

MIB, MEMORY = 512, 1536
TABLE = 2 << 20
# KiB of which one page is kept, and MiB that were left alone.
AGED = {
    "fresh": "",
    "one page in 2 MiB kept": "nw.aged=2048",
    "one page in 32 KiB kept": "nw.aged=32",
    "nothing whole, one page in 32 KiB kept": "nw.aged=32 nw.whole=0",
}
MODES = {"off": "nw.sorted=0", "sorted": "nw.sorted=2", "asked": "nw.sorted=1 nw.asks=1"}
# As many range registers as ASAP's paper has at most.
REGISTERS = 16


def runs(nodes):
    """Of (first address, gpa) of tables, by address: the lengths of the runs that one range describes, holes and all.

    A table belongs to the run before it if it lies as far from the run's first table as its address says.

    """
    lengths = {}
    for va, gpa in nodes:
        lengths[gpa - va // TABLE * 4096] = lengths.get(gpa - va // TABLE * 4096, 0) + 1
    return sorted(lengths.values(), reverse=True)


def row_of(nodes):
    """How many tables, the share whose next by address is the next frame, and that which REGISTERS ranges describe."""
    neighbours = [(b[0] - a[0], b[1] - a[1]) for a, b in itertools.pairwise(nodes) if b[0] - a[0] == TABLE]
    described = runs(nodes)
    return {
        "count": len(nodes),
        "neighbours": sum(gpa == 4096 for _, gpa in neighbours) / len(neighbours),
        "ranges": len(described),
        "described": sum(described[:REGISTERS]) / len(nodes),
        "largest": described[0] / len(nodes),
    }


def free_blocks(log):
    """Free blocks of each order when the program began, all zones together."""
    zones = [[int(n) for n in line.split()[3:]] for line in re.findall(r"^BUDDY Node (.*?)\r?$", log, re.MULTILINE)]
    return [sum(n) for n in zip(*(zone[-11:] for zone in zones), strict=True)]


def measure(mode, aged, seed):
    """A row of one boot: of the tables, what was free before, and what the kernel has counted of the process."""
    append = f"hugegpt=off nw.corunners=4 nw.seed={seed} {MODES[mode]} {AGED[aged]}"
    _, _, found = outside.walk("nestwalk", 0, mib=MIB, mem=MEMORY, append=append)
    log = (build.run_folder() / "outside-nestwalk-0.log").read_text(errors="replace")
    names, *values = (line.split() for line in re.findall(r"^PROCESS (.*?)\r?$", log, re.MULTILINE))
    counted = {
        "free_blocks": free_blocks(log),
        "process": dict(zip(names[1:], (int(v) for v in values[0][1:]), strict=True)) if values else {},
    }
    leaves = sorted((va, gpa) for level, va, gpa, _ in found if level == 1)
    # The mapping is the longest stretch of tables without a gap; libraries and the stack have a few more.
    stretches, last = [], None
    for va, gpa in leaves:
        if last is None or va != last + TABLE:
            stretches.append([])
        stretches[-1].append((va, gpa))
        last = va
    return row_of(max(stretches, key=len)) | counted


def main():
    path, seeds = Path(sys.argv[1]), [int(s) for s in (sys.argv[2] if len(sys.argv) > 2 else "1").split(",")]
    memory, tables = (sys.argv[i] if len(sys.argv) > i else "" for i in (3, 4))
    build.deps()
    rows = []
    for aged in (a for a in AGED if a.startswith(memory)):
        for mode in (m for m in MODES if m.startswith(tables)):
            for seed in seeds:
                rows.append({"tables": mode, "memory": aged, "seed": seed, **measure(mode, aged, seed)})
                row = rows[-1]
                print(
                    f"{mode:6} {aged:38} seed {seed}: {row['count']:4} tables, neighbours {row['neighbours']:.3f}, "
                    f"{row['ranges']:4} ranges, "
                    f"{REGISTERS} describe {row['described']:.3f}, the largest {row['largest']:.3f}\n"
                    f"       free blocks of orders 0 to 10: {row['free_blocks']}; {row['process']}",
                    flush=True,
                )
    path.write_text(json.dumps({"linux": build.RELEASE.version, "mib": MIB, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
