# SPDX-License-Identifier: GPL-2.0
"""Where the instructions of each step of guest/opbench.c go, by kernel function.

    opcost.py KIND [STEP...]     e.g. opcost.py nestwalk dontneed mremap

Prints, for each tag (off, others, on) and step, instructions a page, and the functions that have them.
"""
import bisect
import collections
import json
import subprocess
import sys

import build
import qemu

SHOWN_MIN = 0.5  # instructions a page


def functions(kernel):
    """Addresses and names of the kernel's functions, in order."""
    lines = subprocess.run(["nm", "-n", kernel], stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    named = [(int(a, 16), name) for a, kind, name in (l.split() for l in lines) if kind in "tTwW"]
    return [a for a, _ in named], [name for _, name in named]


def entries(kernel, profile):
    """{(report, function): how often it was entered} in step 0."""
    addresses, names = functions(kernel)
    start = dict(zip(addresses, names))
    found = collections.Counter()
    for line in profile.read_text().splitlines():
        report, step, address, _, executions = line.split()
        if step == "0" and int(address, 16) in start:
            found[int(report), start[int(address, 16)]] += int(executions)
    return found


def measure(kind, path=None, append=""):
    """[(tag, {step: (instructions, pages)})] of the runs of t-instructions.sh. With a path: also a profile there."""
    profile = f",profile={path}" if path else ""
    # -icount makes the guest's clock follow the count, so that timer interrupts are the same.
    lines = qemu.boot(f"instructions-{kind}", build.kernel(kind), build.initramfs(), "instructions", cpus=1, icount=0, timeout=1800, append=append,
                      extra=["-plugin", f"{build.plugin('insncount')}{profile}"])
    return counted(lines)


def counted(lines):
    """[(tag, {step: (instructions, pages)})] of the runs of guest/opbench.c on a console."""
    counts = [json.loads(l[6:]) for l in lines if l.startswith("INSNS ")]
    runs = [json.loads(l[6:]) for l in lines if l.startswith("STEPS ")]
    if len(counts) != len(runs) or not runs:
        raise qemu.Failure(f"instructions: {len(counts)} counts for {len(runs)} runs")
    return [(r["tag"], {s: (c[i], pages) for i, (s, pages) in enumerate(r["pages"].items())}) for c, r in zip(counts, runs)]


def main():
    kind, wanted = sys.argv[1], sys.argv[2:]
    path = build.run_folder() / f"profile-{kind}.txt"
    runs = measure(kind, path)
    addresses, names = functions(build.kernel(kind))
    spent = collections.Counter()
    for line in path.read_text().splitlines():
        run, step, address, n, _ = line.split()
        at = int(address, 16)
        name = names[bisect.bisect_right(addresses, at) - 1] if at >> 63 else "(user)"
        spent[int(run), int(step), name] += int(n)
    for run, (tag, steps) in enumerate(runs):
        for step, (name, (instructions, pages)) in enumerate(steps.items()):
            if wanted and name not in wanted:
                continue
            print(f"{tag} {name}: {instructions / pages:.1f} a page")
            rows = sorted(((n / pages, f) for (r, s, f), n in spent.items() if (r, s) == (run, step)), reverse=True)
            for n, f in rows:
                if n >= SHOWN_MIN:
                    print(f"  {n:8.1f} {f}")


if __name__ == "__main__":
    main()
