# SPDX-License-Identifier: GPL-2.0
"""Which steps have passed, and with which state of the series: `make -C linux status`.

A suite that runs with NESTWALK_RECORD=1 (`make everything RECORD=1`) writes each step that passes to
data/passed.json, with a fingerprint of what it ran on: the hunks of the patches (not their changelogs),
configurations, and what runs in guests.
So nobody has to keep a list by hand of what has not run since the last change.
"""

import datetime
import hashlib
import json
import tempfile
from pathlib import Path

import build

FILE = build.LINUX / "data" / "passed.json"
# What only these steps depend on, below linux/.
RACES = {"stress", "stress, debug", "stress sorted", "stress sorted, debug", "stress, debian", "variant"}
NESTED = {"nested npt", "nested npt, 2 CPUs", "nested shadow", "nested on a stock host", "nested npt, debian"}
OWN = {
    "qemu/kvm-hgpt.patch": {"QEMU with the patch"},
    "guest/t-qemu.sh": {"QEMU in the host", "QEMU with the patch"},
    "guest/t-migrated.sh": {"QEMU with the patch"},
    "guest/stress.c": RACES | {"balancing, debian"},
    "guest/t-stress.sh": RACES,
    "guest/t-sorted.sh": {"sorted", "sorted, debug", "sorted, debian", "variant"},
    "guest/t-pressure.sh": {"pressure", "pressure, debian"},
    "guest/t-hugegpt.sh": {"hugegpt pool"},
    "guest/t-l2.sh": NESTED | {"hugegpt pool"},
}


def hunks(patch):
    """A patch without its changelog and the version of git that wrote it."""
    text = patch.read_text()
    start = text.find("\ndiff --git ")
    body, _, _ = (text[start:] if start >= 0 else text).partition("\n-- \n")
    return body


def fingerprint(release, step):
    """Of the series of a release, and of all that a step of its tests consists of but the harness."""
    h = hashlib.sha256(release.version.encode())
    for patch in build.patches(release):
        h.update(hunks(patch).encode())
    for folder in "config", "guest", "qemu":
        for path in sorted((build.LINUX / folder).rglob("*")):
            name = str(path.relative_to(build.LINUX))
            if path.is_file() and step in OWN.get(name, {step}):
                h.update(name.encode() + b"\0" + path.read_bytes())
    return h.hexdigest()[:12]


def passed():
    """By release and step: `state`, `date`, CPU time and time in seconds (`cpu_s`, `s`)."""
    return json.loads(FILE.read_text()) if FILE.exists() else {}


def write(step, cpu, elapsed):
    """A step has passed. What others have written meanwhile is kept."""
    with build.holding("record"):
        known = passed()
        known.setdefault(build.RELEASE.name, {})[step] = {
            "state": fingerprint(build.RELEASE, step),
            "date": datetime.datetime.now().astimezone().date().isoformat(),
            "cpu_s": round(cpu),
            "s": round(elapsed),
        }
        with tempfile.NamedTemporaryFile("w", dir=FILE.parent, delete=False) as file:
            json.dump(known, file, indent=1, sort_keys=True)
            file.write("\n")
        written = Path(file.name)
        written.chmod(0o644)
        written.replace(FILE)


def report(steps):
    """One line for each step of the release. Returns whether all have passed as the series is."""
    known = passed().get(build.RELEASE.name, {})
    current = [step for step in steps if step in known and known[step]["state"] == fingerprint(build.RELEASE, step)]
    width = max(len(step) for step in steps)
    print(f"Linux {build.RELEASE.name}")
    for step in steps:
        if entry := known.get(step):
            what = "passed" if step in current else "passed with an earlier state"
            print(f"  {step:{width}}  {what} ({entry['date']}, {entry['s']} s, CPU {entry['cpu_s']} s)")
        else:
            print(f"  {step:{width}}  has not run")
    print(
        f"{len(current)} of {len(steps)} steps have passed as the series is, "
        f"CPU {sum(known[s]['cpu_s'] for s in current)} s"
    )
    return len(current) == len(steps)
