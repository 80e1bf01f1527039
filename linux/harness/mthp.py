# SPDX-License-Identifier: GPL-2.0
"""32 KiB folios (mTHP), reservations, and neither, on one kernel: the patched 6.12.

    mthp.py FILE [BOOTS [RUN]]

RUN is the folder of a run that was interrupted: boots that it has finished are read from its logs.
Writes linux/data/mthp.json (its README has the format) to FILE and prints the tables of linux/docs/folios.md.
"""

import concurrent.futures
import json
import re
import statistics
import sys
from pathlib import Path

import build
import opcost
import qemu

# What makes frames neighbours; all else is compared with none.
WAYS = ("none", "ptemagnet", "mthp")
# MiB of the guest; and of the guest that counts instructions.
MEMORY, COST_MEMORY = 640, 1024
# The two passes of a step may differ by so much.
AGREE_MAX = 1.02
# Lines of each kind that a boot prints.
LINES = {"FOLIOS": 12, "FRAG": 3, "GROWN": 3}
SWAPPED = {"SWAPPED": 3}
# Whether the page allocator clears what it hands out, which is Debian's default.
CLEARING = ("init_on_alloc=0", "init_on_alloc=1")


def checked(lines, way):
    """The guest is as asked. Returns its release."""
    if sum(line.startswith("ok - ") for line in lines) != 1:
        raise qemu.Failure(f"{way}: not as asked")
    return next(re.search(r"cpus=\d+ (\S+)", line)[1] for line in lines if line.startswith("UP "))


def booted(name, **kw):
    """The console of a boot, or of the same one in an earlier run."""
    log = Path(sys.argv[3]) / f"{name}.log" if len(sys.argv) > 3 else None
    if log and log.exists() and any(line.startswith("DONE ") for line in qemu.console(log)):
        return qemu.console(log)
    return qemu.boot(name, build.kernel("nestwalk"), build.initramfs(), "mthp", timeout=1800, **kw)


def measured(way, boot, lines, kinds):
    """What a boot has printed, as {kind: objects}, besides which boot it was."""
    run = {"way": way, "boot": boot, "release": checked(lines, way)}
    for kind, count in kinds.items():
        found = [json.loads(line[len(kind) + 1 :]) for line in lines if line.startswith(f"{kind} ")]
        if len(found) != count:
            raise qemu.Failure(f"{way}: {len(found)} lines {kind}, {count} expected")
        run[kind.lower()] = found
    return run


def memory(way, boot):
    """One boot: how memory lies, what is resident, what can be had before the OOM killer comes."""
    lines = booted(f"mthp-{way}-{boot}", mem=MEMORY, append=f"nw.way={way} nw.seed={boot} init_on_alloc=0")
    run = measured(way, boot, lines, LINES)
    run["grown"] = qemu.grown(lines)
    for r in run["frag"]:
        # Time on a busy machine is not measured.
        del r["fault_ns"], r["seed"]
    if not all(r["killed"] for r in run["grown"]):
        raise qemu.Failure(f"{way}: not killed: {run['grown']}")
    return run


def limit(way, boot):
    """One boot: what a cgroup at its limit swaps."""
    lines = booted(f"mthp-swap-{way}-{boot}", mem=MEMORY, append=f"nw.way={way} nw.swap=1 init_on_alloc=0")
    run = measured(way, boot, lines, SWAPPED)
    if any(r["wrong"] for r in run["swapped"]):
        raise qemu.Failure(f"{way}: wrong bytes: {run['swapped']}")
    run["counters"] = {m[1]: int(m[2]) for line in lines if (m := re.match(r"COUNTER (\S+) (\d+)$", line))}
    return run


def cost(way, clearing):
    """One boot: instructions a page of each step of guest/opbench.c."""
    lines = booted(
        f"mthp-cost-{way}-{clearing[-1]}",
        cpus=1,
        icount=0,
        mem=COST_MEMORY,
        append=f"nw.way={way} nw.cost=1 {clearing}",
        extra=["-plugin", str(build.plugin("insncount"))],
    )
    checked(lines, way)
    passes = [steps for tag, steps in opcost.counted(lines) if tag == way]
    count = {step: min(steps[step][0] / steps[step][1] for steps in passes) for step in passes[0]}
    # Another thread that ran meanwhile would show in one pass more than in the other.
    touches = [steps["touch"][0] for steps in passes]
    if max(touches) > AGREE_MAX * min(touches):
        raise qemu.Failure(f"{way}: something else ran: {touches}")
    most = {step: max(steps[step][0] / steps[step][1] for steps in passes) for step in count}
    return {
        "way": way,
        "command_line": clearing,
        "instructions": {s: round(n, 1) for s, n in count.items()},
        "greater": {s: round(n, 1) for s, n in most.items() if n > AGREE_MAX * count[s]},
    }


def cells(runs):
    """{row: {way: values of all boots}} of what the boots saw."""
    found = {}

    def add(row, run, value):
        found.setdefault(row, {}).setdefault(run["way"], []).append(value)

    for run in runs:
        for r in run.get("frag", ()):
            add(f"lines a group, {r['tag']}, {r['order']}", run, r["mean"])
        for r in run.get("folios", ()):
            for key, what in (
                ("mean", "lines a group"),
                ("faults", "page faults"),
                ("rss_kb", "resident, kB"),
                ("used_kb", "used, kB"),
                ("kept_kb", "used after reclaim, kB"),
            ):
                if key != "mean" or r["groups"]:
                    add(f"{r['tag']} {r['what']}: {what}", run, r[key])
        for r in run.get("grown", ()):
            add(f"pages before OOM, {r['tag']}", run, r["pages"] + r["per_cpu"])
        for r in run.get("swapped", ()):
            for key in ("out", "in", "minor", "major"):
                add(f"at its limit, {r['tag']}: {key}", run, r[key])
            if r["groups"]:
                add(f"at its limit, {r['tag']}: lines a group", run, r["mean"])
                add(f"at its limit, {r['tag']}: groups", run, r["groups"])
    return found


def shown(values):
    """The median of the boots, and in brackets the least and the most where they differ."""
    if not values:
        return "-"
    spread = f" ({min(values):g} to {max(values):g})" if min(values) < max(values) else ""
    return f"{statistics.median(values):.6g}{spread}"


def show(runs, costs):
    """The measurements as a table."""
    print(f"{'':52}" + "".join(f"{way:>32}" for way in WAYS))
    for row, by_way in cells(runs).items():
        print(f"{row:52}" + "".join(f"{shown(by_way.get(way, [])):>32}" for way in WAYS))
    for clearing in dict.fromkeys(c["command_line"] for c in costs):
        by_way = {c["way"]: c["instructions"] for c in costs if c["command_line"] == clearing}
        for step in by_way["none"]:
            texts = [f"{by_way[way][step]:.1f} ({by_way[way][step] / by_way['none'][step] - 1:+.1%})" for way in WAYS]
            print(f"{step + ', ' + clearing:52}" + "".join(f"{text:>32}" for text in texts))


def write(path, runs, costs):
    """The document, an object of it a line. What is there of it is shown."""
    document = {
        "schema": 2,
        "kernel": f"{build.RELEASE.package} {build.RELEASE.version} with the series, kind nestwalk",
        "qemu": build.run("qemu-system-x86_64", "--version").splitlines()[0],
        "memory_mib": MEMORY,
        "cpus": 2,
        "cost_memory_mib": COST_MEMORY,
        "cost_cpus": 1,
        "command_line": "init_on_alloc=0",
    }
    text = json.dumps(document, indent=1)[:-2]
    for key, values in (("runs", runs), ("costs", costs)):
        text += f',\n "{key}": [' + ",".join("\n  " + json.dumps(v) for v in values) + "\n ]"
    path.write_text(text + "\n}\n", encoding="utf-8")
    show(runs, costs)


def main():
    if build.RELEASE.name != "6.12":
        sys.exit("6.1 has no folios of 32 KiB: give LINUX=6.12")
    path, boots = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 3
    build.deps()
    # Built once, before several threads want it.
    build.kernel("nestwalk"), build.initramfs(), build.plugin("insncount")
    with concurrent.futures.ThreadPoolExecutor(int(build.JOBS)) as pool:
        each = [(way, boot) for boot in range(1, boots + 1) for way in WAYS]
        runs = [*pool.map(lambda one: memory(*one), each), *pool.map(lambda one: limit(*one), each)]
        write(path, runs, [])
        write(
            path,
            runs,
            list(pool.map(lambda one: cost(*one), [(way, clearing) for clearing in CLEARING for way in WAYS])),
        )


if __name__ == "__main__":
    main()
