# SPDX-License-Identifier: GPL-2.0
"""32 KiB folios (mTHP) of Debian's own 6.12 beside reservations on the patched 6.1, each against its kernel without them.

    mthp.py FILE [BOOTS [RUN]]

RUN is the folder of a run that was interrupted: boots that it has finished are read from its logs.
Writes linux/data/mthp.json (its README has the format) to FILE and prints the table of linux/README.md.
"""
import concurrent.futures
import json
import re
import statistics
import subprocess
import sys
from pathlib import Path

import build
import opcost
import qemu

PACKAGE, VERSION = "linux-image-6.12.117+deb12-cloud-amd64-unsigned", "6.12.117-1~deb12u1"
# Each way in one kernel, and what the same kernel is without it.
WAYS = (("6.1", "none"), ("6.1", "ptemagnet"), ("6.12", "none"), ("6.12", "mthp"))
# MiB of the guest; and of the guest that counts instructions.
MEMORY, COST_MEMORY = 640, 1024
# The two passes of a step may differ by so much.
AGREE_MAX = 1.02
# So that the kernels differ in no more than they have to: four levels of tables, no isolation of them.
COMMON = "mitigations=off no5lvl"
# Whether the page allocator clears what it hands out, which is Debian's default.
CLEARING = ("init_on_alloc=0", "init_on_alloc=1")


def debian_kernel():
    """The bzImage of Debian's package, which is not installed."""
    folder = build.BUILD / "debian-6.12"
    with build.building():
        if not list(folder.glob("boot/vmlinuz-*")):
            folder.mkdir(parents=True, exist_ok=True)
            build.run("apt-get", "download", f"{PACKAGE}={VERSION}", cwd=folder)
            with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", next(folder.glob("*.deb"))], stdout=subprocess.PIPE) as tar:
                subprocess.run(["tar", "xf", "-", "./boot"], stdin=tar.stdout, cwd=folder, check=True)
    return next(folder.glob("boot/vmlinuz-*"))


def image(kernel):
    return debian_kernel() if kernel == "6.12" else build.kernel("nestwalk")


def checked(lines, kernel, way):
    """The guest is as asked. Returns its release."""
    if sum(l.startswith("ok - ") for l in lines) != 1:
        raise qemu.Failure(f"{kernel} {way}: not as asked")
    return next(re.search(r"cpus=\d+ (\S+)", l)[1] for l in lines if l.startswith("UP "))


def booted(name, kernel, **kw):
    """The console of a boot, or of the same one in an earlier run."""
    log = Path(sys.argv[3]) / f"{name}.log" if len(sys.argv) > 3 else None
    if log and log.exists() and any(l.startswith("DONE ") for l in qemu.console(log)):
        return qemu.console(log)
    return qemu.boot(name, image(kernel), build.initramfs(), "mthp", timeout=1800, **kw)


def memory(kernel, way, boot):
    """One boot: how memory lies, what is resident, what can be had under pressure."""
    lines = booted(f"mthp-{kernel}-{way}-{boot}", kernel, mem=MEMORY,
                   append=f"nw.way={way} nw.seed={boot} init_on_alloc=0 {COMMON}")
    run = {"kernel": kernel, "way": way, "boot": boot, "release": checked(lines, kernel, way)}
    run["folios"] = [json.loads(l[7:]) for l in lines if l.startswith("FOLIOS ")]
    run["frag"] = [{key: r[key] for key in ("tag", "mib", "order", "groups", "mean", "distribution")}
                   for r in (json.loads(l[5:]) for l in lines if l.startswith("FRAG "))]
    run["grown"] = [json.loads(l[6:]) for l in lines if l.startswith("GROWN ")]
    if not all(r["killed"] for r in run["grown"]) or len(run["grown"]) != 3 or len(run["folios"]) != 8 or len(run["frag"]) != 3:
        raise qemu.Failure(f"{kernel} {way}: measurements are missing")
    run["counters"] = {m[1]: int(m[2]) for l in lines if (m := re.match(r"COUNTER (\S+) (\d+)$", l))}
    return run


def cost(kernel, way, clearing):
    """One boot: instructions a page of each step of guest/opbench.c."""
    lines = booted(f"mthp-cost-{kernel}-{way}-{clearing[-1]}", kernel, cpus=1, icount=0, mem=COST_MEMORY,
                   append=f"nw.way={way} nw.cost=1 {clearing} {COMMON}", extra=["-plugin", str(build.plugin("insncount"))])
    checked(lines, kernel, way)
    passes = [steps for tag, steps in opcost.counted(lines) if tag == way]
    count = {step: min(steps[step][0] / steps[step][1] for steps in passes) for step in passes[0]}
    # Another thread that ran meanwhile would show in one pass more than in the other.
    touches = [steps["touch"][0] for steps in passes]
    if max(touches) > AGREE_MAX * min(touches):
        raise qemu.Failure(f"{kernel} {way}: something else ran: {touches}")
    most = {step: max(steps[step][0] / steps[step][1] for steps in passes) for step in count}
    return {"kernel": kernel, "way": way, "command_line": clearing, "instructions": {s: round(n, 1) for s, n in count.items()},
            "greater": {s: round(n, 1) for s, n in most.items() if n > AGREE_MAX * count[s]}}


def cells(runs):
    """{row: {(kernel, way): values of all boots}} of what the boots saw."""
    found = {}

    def add(row, run, value):
        found.setdefault(row, {}).setdefault((run["kernel"], run["way"]), []).append(value)

    for run in runs:
        for r in run["frag"]:
            add(f"lines a group, {r['tag']}, {r['order']}", run, r["mean"])
        for r in run["folios"]:
            for key, what in (("mean", "lines a group"), ("rss_kb", "resident, kB"), ("used_kb", "used, kB"),
                              ("kept_kb", "used after reclaim, kB")):
                if key != "mean" or r["groups"]:
                    add(f"{r['tag']} {r['what']}: {what}", run, r[key])
        for r in run["grown"]:
            add(f"pages before OOM, {r['tag']}", run, r["pages"])
    return found


def shown(values):
    """The median of the boots, and in brackets the least and the most where they differ."""
    if not values:
        return "-"
    spread = f" ({min(values):g} to {max(values):g})" if min(values) < max(values) else ""
    return f"{statistics.median(values):.6g}{spread}"


def show(runs, costs):
    """The measurements as a table."""
    print(f"{'':44}" + "".join(f"{kernel + ' ' + way:>28}" for kernel, way in WAYS))
    for row, by_way in cells(runs).items():
        texts = [shown(by_way.get(way, [])) for way in WAYS]
        print(f"{row:44}" + "".join(f"{text:>28}" for text in texts))
    for clearing in dict.fromkeys(c["command_line"] for c in costs):
        by_way = {(c["kernel"], c["way"]): c["instructions"] for c in costs if c["command_line"] == clearing}
        for step in next(iter(by_way.values())):
            texts = [f"{by_way[way][step]:.1f} ({by_way[way][step] / by_way[way[0], 'none'][step] - 1:+.1%})" for way in WAYS]
            print(f"{step + ', ' + clearing:44}" + "".join(f"{text:>28}" for text in texts))


def write(path, runs, costs):
    """The document, an object of it a line. What is there of it is shown."""
    document = {"schema": 1, "kernels": {"6.1": f"{build.RELEASE.package} {build.RELEASE.version} with the series, kind nestwalk",
                                         "6.12": f"{PACKAGE} {VERSION}"},
                "qemu": build.run("qemu-system-x86_64", "--version").splitlines()[0], "memory_mib": MEMORY, "cpus": 2,
                "cost_memory_mib": COST_MEMORY, "cost_cpus": 1, "command_line": f"{COMMON} init_on_alloc=0"}
    text = json.dumps(document, indent=1)[:-2]
    for key, values in (("runs", runs), ("costs", costs)):
        text += f',\n "{key}": [' + ",".join("\n  " + json.dumps(v) for v in values) + "\n ]"
    path.write_text(text + "\n}\n", encoding="utf-8")
    show(runs, costs)


def main():
    path, boots = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 3
    build.deps()
    # Built once, before several threads want it.
    build.kernel("nestwalk"), debian_kernel(), build.initramfs(), build.plugin("insncount")
    with concurrent.futures.ThreadPoolExecutor(int(build.JOBS)) as pool:
        runs = list(pool.map(lambda one: memory(*one), [(*way, boot) for boot in range(1, boots + 1) for way in WAYS]))
        write(path, runs, [])
        write(path, runs, list(pool.map(lambda one: cost(*one), [(*way, clearing) for clearing in CLEARING for way in WAYS])))


if __name__ == "__main__":
    main()
