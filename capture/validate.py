#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Holds what `nestwalk capture` chooses against the whole stream of the same run.

    nestwalk capture --raw -o >(zstd -q -1 -o bfs.raw.zst) -- capture/programs/bfs -s 20 -t 8
    capture/validate.py bfs.raw.zst 4M 16M

Makes traces of the stream: one with all that comes after the start-up, filtered and without gaps, and one of each size
named. Compares them, and prints a line of Markdown for each: what it says, and how far that is from the first one.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from nestwalk import _native, traces

ROWS = ("native-4k", "vm-4k")
KEYS = ("walks_per_kiloaccess", "walk_latency_cycles", "walk_cycles_per_access")
ALL = 10**12


def made(source, target, size, name):
    """A trace of the stream, as `nestwalk capture` makes it, and its processor time."""
    options = {
        "program": name,
        "command": "",
        "size": size,
        "precision": 0.02,
        "whole": False,
        "begin_accesses": None,
        "begin_mark": None,
        "begin_told": False,
        "end_mark": None,
        "spool": None,
        "seed": 1,
    }
    begun = time.process_time()
    report = json.loads(_native.capture(str(source), str(target), json.dumps(options), lambda *_: 1))
    return report, time.process_time() - begun


def compared(trace):
    """Rows by name."""
    only = [word for row in ROWS for word in ("--only", row)]
    words = [str(Path(sys.executable).with_name("nestwalk")), "compare", "--trace", str(trace), "--json", "--jobs", "1"]
    done = subprocess.run([*words, *only], stdout=subprocess.PIPE, check=True, text=True)
    return {row["configuration"]: row for row in json.loads(done.stdout)["rows"]}


def main():
    """A table."""
    source = Path(sys.argv[1])
    sizes = [traces.count(word) for word in sys.argv[2:]]
    name = source.name.split(".")[0]
    print(f"| trace | bytes | windows | row | {' | '.join(key.replace('_', ' ') for key in KEYS)} |")
    print(f"|{' --- |' * (4 + len(KEYS))}")
    whole = None
    for size in (ALL, *sizes):
        with tempfile.TemporaryDirectory(dir=source.parent) as folder:
            trace = Path(folder) / "trace.nwt"
            report, seconds = made(source, trace, size, name)
            rows = compared(trace)
        whole = whole or rows
        speed = report["accesses"] / seconds / 1e6
        print(f"{name}: {report} {speed:.1f} M/s a CPU second", file=sys.stderr)
        for row in ROWS:
            cells = []
            for key in KEYS:
                value, half, truth = rows[row][key], rows[row].get(f"{key}_ci95"), whole[row][key]
                off = f" ({100 * (value / truth - 1):+.1f} %)" if rows is not whole else ""
                cells.append(f"{value:.3f}{off}" + (f" ±{half:.3f}" if half is not None else ""))
            shown = "whole" if size == ALL else f"{size / 1e6:g} MB"
            print(
                f"| {name}, {shown} | {report['bytes']:,} | {report['windows']} | {row} | {' | '.join(cells)} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
