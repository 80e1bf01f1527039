# SPDX-License-Identifier: GPL-2.0
"""Measure huge pages on fragmented memory (linux/data/README.md, superpages) and write them as one JSON file.

    superpages.py KIND BOOTS FILE [CASE...]     e.g. superpages.py stock 3 out.json frag100-always

KIND may be the path of a bzImage instead, of a release that the series does not exist for.
"""

import concurrent.futures
import itertools
import json
import re
import sys
from pathlib import Path

import build
import qemu

# MiB of the guest, and of the program.
MEMORY, NEED = 1024, 256
# Of khugepaged, ms, a tenth of Linux's, so that as many scans fit in a tenth of the time.
SCAN_SLEEP, ALLOC_SLEEP = 1000, 6000
# For how long the program then looks at its memory, s.
SECONDS = 30


def case(percent, defrag="always", advice="plain", *, fill="small", proactiveness=0, wait=0, **other):
    return {
        "percent": percent,
        "defrag": defrag,
        "advice": advice,
        "fill": fill,
        "proactiveness": proactiveness,
        "wait": wait,
        **other,
    }


def scripts(percent, steps="pa", **other):
    """All steps of the authors' scripts, or only these before the last, and their minute before the program.

    In less memory the first step would not find what is left above the watermarks.
    """
    return case(percent, fill="scripts", wait=60, steps=steps, memory=2048, need=512, **other)


FRAGS = ("fresh", "0", "50", "100")
CASES = {
    **{f"frag{p}-{d}": case(p, d) for p, d in itertools.product(FRAGS, ("always", "madvise"))},
    "frag100-advised": case("100", "madvise", "advised"),
    "frag100-defer": case("100", "defer"),
    "frag100-never": case("100", "never"),
    # Linux's default of background compaction, with a minute for it, which is what the paper's machine had not.
    "frag100-proactive": case("100", "madvise", proactiveness=20, wait=60),
    # What the recipe frees of huge pages is not free: it waits until memory is short (deferred_split_scan).
    "frag100-huge-fill": case("100", "always", fill="huge"),
    "frag100-huge-fill-never": case("100", "never", fill="huge"),
    # Only measured where they are named: minutes each.
    **{f"scripts{p}": scripts(p) for p in FRAGS[1:]},
    "scripts100-no-pressure": scripts("100", steps="a"),
    "scripts100-last-step": scripts("100", steps=""),
}


# What is kept of each second.
LATER = (
    "when",
    "second",
    "huge",
    "thp_collapse_alloc",
    "thp_collapse_alloc_failed",
    "compact_stall",
    "compact_fail",
    "pgmigrate_success",
)


def trimmed(seen):
    return {key: seen[key] for key in LATER} if seen["when"] == "later" else seen


def measure(kernel, initrd, name, boot):
    """One boot."""
    asked = CASES[name]
    # Boots of a case differ in what was allocated before: pages of a file, kept.
    words = {
        "memory": MEMORY,
        "need": NEED,
        **asked,
        "seconds": SECONDS,
        "scan_sleep": SCAN_SLEEP,
        "alloc_sleep": ALLOC_SLEEP,
        "before": boot,
    }
    lines = qemu.boot(
        f"superpages-{name}-{boot}",
        kernel,
        initrd,
        "superpages",
        mem=words["memory"],
        cpus=1,
        append=" ".join(f"nw.{key}={value}" for key, value in words.items()),
    )
    release = next(re.search(r"cpus=\d+ (\S+)", line)[1] for line in lines if line.startswith("UP "))
    seen = [json.loads(line.split(" ", 1)[1]) for line in lines if line.startswith("SUPERPAGES ")]
    watermarks = next(json.loads(line.split(" ", 1)[1]) for line in lines if line.startswith("WATERMARKS "))
    return release, {
        "case": name,
        "boot": boot,
        **asked,
        "watermarks": watermarks,
        "seen": [trimmed(one) for one in seen],
    }


def main():
    kind, boots, path, only = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4:]
    build.deps()
    given = Path(kind).resolve() if "/" in kind else None
    kernel, initrd = given or build.kernel(kind), build.initramfs()
    names = only or [name for name, asked in CASES.items() if asked["fill"] != "scripts"]
    todo = list(itertools.product(names, range(1, boots + 1)))
    with concurrent.futures.ThreadPoolExecutor(int(build.JOBS)) as pool:
        done = list(pool.map(lambda one: measure(kernel, initrd, *one), todo))
    source = {} if given else {"package": f"{build.RELEASE.package} {build.RELEASE.version}", "kind": kind}
    document = {
        "schema": 1,
        "kernel": done[0][0],
        **source,
        "memory_mib": MEMORY,
        "need_mib": NEED,
        "cpus": 1,
        "kept_pages": 16,
        "scan_sleep_ms": SCAN_SLEEP,
        "alloc_sleep_ms": ALLOC_SLEEP,
    }
    text = json.dumps(document, indent=1)[:-2]
    rows = ",\n  ".join(json.dumps(run) for _, run in done)
    Path(path).write_text(f'{text},\n "runs": [\n  {rows}\n ]\n}}\n', encoding="utf-8")
    for _, run in done:
        faulted = next(s for s in run["seen"] if s["when"] == "faulted")
        before = next(s for s in run["seen"] if s["when"] == "before")
        print(
            f"{run['case']:24} {run['boot']} at faults {faulted['huge']:4}, last {run['seen'][-1]['huge']:4}, of "
            f"{run.get('need', NEED) // 2}; stalls {faulted['compact_stall'] - before['compact_stall']}, successes "
            f"{faulted['compact_success'] - before['compact_success']}, failures "
            f"{faulted['compact_fail'] - before['compact_fail']}"
        )


if __name__ == "__main__":
    main()
