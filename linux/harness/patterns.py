# SPDX-License-Identifier: GPL-2.0
"""Measure the allocation patterns of linux/data/README.md on a kernel and write them as one JSON file.

patterns.py KIND SEEDS FILE [KERNEL-PARAMETER...]     e.g. patterns.py nestwalk 1,2 out.json ptemagnet=2
"""

import json
import re
import sys
from pathlib import Path

import build
import qemu

# What the guest script t-patterns.sh does before and during each tag.
TAGS = {
    "alone": {"corunners": 0, "corunner_mib": 0, "state": "fresh boot"},
    "co2": {"corunners": 2, "corunner_mib": 32, "state": "co-runners running since before"},
    "co12": {"corunners": 12, "corunner_mib": 8, "state": "co-runners running since before"},
    "aged": {"corunners": 0, "corunner_mib": 0, "state": "after all co-runners were killed"},
}


def measure(kind, seeds, mem=1024, cpus=2, append=""):
    """One boot a seed; returns the document that goes to linux/data."""
    kernel, initrd = build.kernel(kind), build.initramfs()
    runs, release = [], None
    for seed in seeds:
        lines = qemu.boot(
            f"patterns-{kind}-{seed}",
            kernel,
            initrd,
            "patterns",
            mem=mem,
            cpus=cpus,
            append=f"nw.seed={seed} {append}",
            timeout=1200,
        )
        release = release or next(re.search(r"cpus=\d+ (\S+)", line)[1] for line in lines if line.startswith("UP "))
        runs += [
            {
                "boot": seed,
                "tag": r["tag"],
                **TAGS[r["tag"]],
                "mib": r["mib"],
                "order": r["order"],
                "seed": r["seed"],
                "groups": r["groups"],
                "mean": r["mean"],
                "distribution": r["distribution"],
            }
            for r in (json.loads(line[5:]) for line in lines if line.startswith("FRAG "))
        ]
    return {
        "schema": 1,
        "kernel": release,
        "package": f"{build.RELEASE.package} {build.RELEASE.version}",
        "kind": kind,
        "command_line": append,
        "memory_mib": mem,
        "cpus": cpus,
        "thp": "never for the measured memory",
        "runs": runs,
    }


def summary(document):
    """Mean fragmentation of every (tag, order) over the boots, as printable lines."""
    cells = {}
    for r in document["runs"]:
        cells.setdefault((r["tag"], r["order"]), []).append(r["mean"])
    return [f"{tag:6} {order:5} " + " ".join(f"{m:.2f}" for m in means) for (tag, order), means in cells.items()]


def main():
    kind, seeds, path = sys.argv[1], [int(s) for s in sys.argv[2].split(",")], sys.argv[3]
    document = measure(kind, seeds, append=" ".join(sys.argv[4:]))
    text = json.dumps({k: v for k, v in document.items() if k != "runs"}, indent=1)[:-2]
    rows = ",\n  ".join(json.dumps(r) for r in document["runs"])
    Path(path).write_text(f'{text},\n "runs": [\n  {rows}\n ]\n}}\n', encoding="utf-8")
    print("\n".join(summary(document)))


if __name__ == "__main__":
    main()
