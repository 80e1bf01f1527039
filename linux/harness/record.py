# SPDX-License-Identifier: GPL-2.0
"""Which steps have passed, and with which state of the series: `make -C linux status`.

A step that runs with NESTWALK_RECORD=1 (`make everything RECORD=1`) and passes writes itself into
data/passed.json, with what it has used (build.use()) and a fingerprint of that: the hunks of the patches (not
their changelogs), configurations, and the scripts and programs that its guests have run. So nobody has to keep a
list by hand of what has not run since the last change.
"""

import datetime
import hashlib
import json
import re
import tempfile
from pathlib import Path

import build

FILE = build.LINUX / "data" / "passed.json"
# What each guest begins with.
ALWAYS = ["guest/init", "guest/lib.sh"]


def hunks(patch):
    """A patch without its changelog and the version of git that wrote it."""
    text = patch.read_text()
    start = text.find("\ndiff --git ")
    body, _, _ = (text[start:] if start >= 0 else text).partition("\n-- \n")
    return body


def text_of(name):
    path = build.LINUX / name
    return path.read_text() if path.exists() else ""


def named_in(name):
    """Files of guest/ that one of them names: a script the programs and scripts that it runs, a program its headers."""
    if not name.startswith("guest/"):
        return []
    text = text_of(name)
    if name.endswith((".c", ".h")):
        return [f"guest/{header}" for header in re.findall(r'^#include "(\S+)"', text, re.MULTILINE)]
    code = re.sub(r"(^|\s)#.*", "", text, flags=re.MULTILINE)
    names = [f"guest/{word}.c" for word in set(re.findall(r"\w+", code)) & set(build.PROGRAMS)]
    # Of a guest in the guest.
    names += [f"guest/t-{word}.sh" for word in re.findall(r"(?:\btest=|^\s*qemu )(\w+)", code, re.MULTILINE)]
    return [name for name in names if (build.LINUX / name).exists()]


def with_what_they_name(names):
    found, ahead = set(), list(names)
    while ahead:
        if (name := ahead.pop()) not in found:
            found.add(name)
            ahead += named_in(name)
    return sorted(found)


def fingerprint(release, used):
    """Of the series of a release, and of the files below linux/ that a step has used, and what these name."""
    h = hashlib.sha256(release.version.encode())
    for patch in build.patches(release):
        h.update(hunks(patch).encode())
    for name in with_what_they_name(used):
        h.update(name.encode() + b"\0" + text_of(name).encode())
    return h.hexdigest()[:12]


def passed():
    """By release and step.

    `state`, `used` (files below linux/, separated by spaces), `date`, CPU time and time in seconds (`cpu_s`, `s`).
    """
    return json.loads(FILE.read_text()) if FILE.exists() else {}


def write(step, cpu, elapsed):
    """A step has passed, in this process. What others have written meanwhile is kept."""
    used = set(build.USED)
    if any(name.startswith("guest/") for name in used):
        used.update(ALWAYS)
    with build.holding("record"):
        known = passed()
        known.setdefault(build.RELEASE.name, {})[step] = {
            "state": fingerprint(build.RELEASE, used),
            "used": " ".join(sorted(used)),
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
    current = [
        step
        for step in steps
        if step in known and known[step]["state"] == fingerprint(build.RELEASE, known[step]["used"].split())
    ]
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
