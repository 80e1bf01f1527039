# SPDX-License-Identifier: GPL-2.0
"""Where the instructions of each step of guest/opbench.c go, by kernel function.

    opcost.py KIND [--from TAG] [--mib MIB] [STEP...]     e.g. opcost.py nestwalk dontneed
                                                          opcost.py nestwalk --from off mremap

Prints, for each tag (off, sorted, others, on) and step, instructions a page, and the functions that have them. With
--from: how many more than with that tag, in all of the step and not for each page, of the run with the fewest; what
a step does once is seen so. With --mib: of so much memory, in place of 16.
"""

import argparse
import bisect
import collections
import json
import subprocess

import build
import qemu

SHOWN_MIN = 0.5  # instructions a page
DIFFERENCE_MIN = 50  # instructions


def functions(kernel):
    """Addresses and names of the kernel's functions, in order."""
    lines = subprocess.run(["nm", "-n", kernel], stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    named = [(int(a, 16), name) for a, kind, name in (line.split() for line in lines) if kind in "tTwW"]
    return [a for a, _ in named], [name for _, name in named]


def entries(kernel, profile, of_step=0):
    """{(report, function): how often it was entered} in a step."""
    addresses, names = functions(kernel)
    start = dict(zip(addresses, names, strict=True))
    found = collections.Counter()
    for line in profile.read_text().splitlines():
        report, step, address, _, executions = line.split()
        if int(step) == of_step and int(address, 16) in start:
            found[int(report), start[int(address, 16)]] += int(executions)
    return found


def measure(kind, path=None, append=""):
    """[(tag, {step: (instructions, pages)})] of the runs of t-instructions.sh. With a path: also a profile there."""
    profile = f",profile={path}" if path else ""
    # -icount makes the guest's clock follow the count, so that timer interrupts are the same.
    lines = qemu.boot_kind(
        kind,
        "instructions",
        cpus=1,
        icount=0,
        timeout=1800,
        append=append,
        extra=["-plugin", f"{build.plugin('insncount')}{profile}"],
    )
    return counted(lines)


def counted(lines):
    """[(tag, {step: (instructions, pages)})] of the runs of guest/opbench.c on a console."""
    counts = [json.loads(line[6:]) for line in lines if line.startswith("INSNS ")]
    runs = [json.loads(line[6:]) for line in lines if line.startswith("STEPS ")]
    if len(counts) != len(runs) or not runs:
        raise qemu.Failure(f"instructions: {len(counts)} counts for {len(runs)} runs")
    return [
        (r["tag"], {s: (c[i], pages) for i, (s, pages) in enumerate(r["pages"].items())})
        for c, r in zip(counts, runs, strict=True)
    ]


def spent_in(kernel, profile):
    """{(report, step, function): instructions}; all of user mode is one function."""
    addresses, names = functions(kernel)
    spent = collections.Counter()
    for line in profile.read_text().splitlines():
        run, step, address, n, _ = line.split()
        at = int(address, 16)
        name = names[bisect.bisect_right(addresses, at) - 1] if at >> 63 else "(user)"
        spent[int(run), int(step), name] += int(n)
    return spent


def differences(runs, spent, base, wanted):
    """Of each step, the functions that have more or fewer instructions than with tag base, by shortest runs."""
    for step, name in enumerate(runs[0][1]):
        if wanted and name not in wanted:
            continue
        shortest = {}
        for run, (tag, steps) in enumerate(runs):
            if tag not in shortest or steps[name][0] < runs[shortest[tag]][1][name][0]:
                shortest[tag] = run
        of = {tag: {f: n for (r, s, f), n in spent.items() if (r, s) == (run, step)} for tag, run in shortest.items()}
        for tag in shortest.keys() - {base, "warm"}:
            more = {f: of[tag].get(f, 0) - of[base].get(f, 0) for f in of[tag].keys() | of[base].keys()}
            print(f"{tag} {name}: {sum(more.values()):+} instructions to {base}")
            for f, n in sorted(more.items(), key=lambda item: -item[1]):
                if abs(n) >= DIFFERENCE_MIN:
                    print(f"  {n:+8} {f}")


def main():
    parser = argparse.ArgumentParser(prog="opcost.py")
    parser.add_argument("kind")
    parser.add_argument("--from", dest="base")
    parser.add_argument("--mib", type=int)
    parser.add_argument("steps", nargs="*")
    asked = parser.parse_intermixed_args()
    kind, base, wanted = asked.kind, asked.base, asked.steps
    path = build.run_folder() / f"profile-{kind}.txt"
    runs = measure(kind, path, f"nw.mib={asked.mib}" if asked.mib else "")
    spent = spent_in(build.kernel(kind), path)
    if base:
        differences(runs, spent, base, wanted)
        return
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
