# SPDX-License-Identifier: GPL-2.0
"""On how many runs of neighbouring frames a program and its page tables lie, in guests whose memory has been used.

    used.py DIR [SEEDS]       e.g. used.py /some/folder 1,2,3

A boot for each seed, and one of a fresh guest. The recipe is guest/t-used.sh, in a guest of 1 GiB: a program
writes 800 MiB in random order and ends; six co-runners of 64 MiB run while 60,000 files are made, and nine in ten
deleted; then they end. The program is capture/programs/frame_runs.c, which runs with 16, 64 and 256 MiB, one after
the other. Prints a line for each, and what a scenario's kernel would say of such a memory (docs/scenarios.md, start
"aged" and "buddyinfo"), of which nothing is taken from what the program gets. All of it goes to DIR/used.json, and
what the kernel said of its memory before the program began to DIR/boot-SEED, as `nestwalk memory` reads it.
"""

import base64
import gzip
import json
import re
import sys
from pathlib import Path

import build
import qemu

MIB, CPUS, ORDERS = 1024, 2, 11
# With pageblocks of 2 MiB, as distributions have them.
KIND = "hugetlb"
PAGEBLOCK = 512


def types(lines):
    """Of zone DMA32, which has nearly all memory: pageblocks, free frames, free blocks, of each migrate type."""
    words = [line.split() for line in lines]
    blocks = {w[5]: [int(n) for n in w[-ORDERS:]] for w in words if w[3:5] == ["DMA32,", "type"]}
    free = {name: sum(n << order for order, n in enumerate(counts)) for name, counts in blocks.items()}
    header = next(w for w in words if w[:4] == ["Number", "of", "blocks", "type"])[4:]
    counts = next(w for w in words if w[3:4] == ["DMA32"] and "type" not in w)[4:]
    return {"pageblocks": dict(zip(header, map(int, counts), strict=True)), "free": free, "free_blocks": blocks}


def starts(found, memfree):
    """Starts of a simulated kernel whose memory is used alike: by what is in use, and by what is free."""
    blocks, free = found["pageblocks"], found["free"]
    total = PAGEBLOCK * sum(blocks.values())
    kernel, movable = PAGEBLOCK * blocks["Unmovable"], PAGEBLOCK * blocks["Movable"]
    own = {
        "kernel_permille": 1000 * kernel // total,
        "kernel_kept_permille": 1000 - 1000 * free["Unmovable"] // kernel,
    }
    aged = {
        "kind": "aged",
        "used_permille": 1000 - 1000 * min(memfree) * 1024 // (MIB << 20) if memfree else 0,
        "kept_permille": 1000 - 1000 * free["Movable"] // movable,
        **own,
    }
    # The kernel's pageblocks were free in one piece before it took them.
    *small, largest = found["free_blocks"]["Movable"]
    buddyinfo = {"kind": "buddyinfo", "free_blocks": [*small, largest + kernel // 1024], "of": MIB << 20, **own}
    return {"aged": aged, "buddyinfo": buddyinfo}


def measure(seed, folder):
    """A boot: what its memory is like, and what the program got."""
    exe = build.run_folder() / "frame_runs"
    source = build.LINUX.parent / "capture" / "programs" / "frame_runs.c"
    build.run("gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-static", "-o", exe, source)
    initrd = build.initramfs("used", (("/bin/frame_runs", exe, "755"),))
    append = f"nw.seed={seed}" if seed else "nw.fresh=1"
    lines = qemu.boot(f"used-{seed}", build.kernel(KIND), initrd, "used", mem=MIB, cpus=CPUS, append=append)

    def said(word):
        return [line[len(word) + 1 :] for line in lines if line.startswith(word + " ")]

    found = types(said("TYPES"))
    proc = folder / f"boot-{seed}"
    proc.mkdir(parents=True, exist_ok=True)
    for name, word in (("pagetypeinfo", "TYPES"), ("zoneinfo", "ZONES")):
        (proc / name).write_text("".join(f"{line}\n" for line in said(word)))
    (proc / "kpageflags").write_bytes(gzip.decompress(base64.b64decode("".join(said("FLAGS")))))
    runs = [dict(re.findall(r"(page_runs|pages|table_runs|tables) (\d+)", line)) for line in said("RUNS")]
    return {
        "seed": seed,
        "memory": {name: int(kib) for name, kib, *_ in map(str.split, said("MEMORY"))},
        **found,
        "starts": starts(found, [int(word) for word in said("MEMFREE")]),
        "runs": [{key: int(value) for key, value in run.items()} for run in runs],
    }


def main():
    folder, seeds = Path(sys.argv[1]), [int(s) for s in (sys.argv[2] if len(sys.argv) > 2 else "1").split(",")]
    build.deps()
    rows = []
    for seed in (0, *seeds):
        rows.append(measure(seed, folder))
        row = rows[-1]
        print(f"seed {seed}: {row['pageblocks']}, free {row['free']}, starts {row['starts']}", flush=True)
        for run in row["runs"]:
            print(f"        {run}", flush=True)
    (folder / "used.json").write_text(
        json.dumps({"linux": build.RELEASE.version, "mib": MIB, "boots": rows}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
