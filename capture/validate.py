#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Holds what `nestwalk capture` chooses against the whole stream of the same run.

    nestwalk capture --raw -o bfs.raw -- capture/programs/bfs -s 18 -t 4
    capture/validate.py bfs.raw 1M 4M
    capture/validate.py --seeds 8 bfs.raw 4M 8M

Makes traces of the stream: every access from the end of the start-up on, unfiltered ("whole"); the
same, filtered; and what `nestwalk capture --size` makes of it for each size named. Compares them for
every technique, and prints a table in Markdown: what the whole stream says, and how far the others
are from it in percent, with half of the 95 % interval that the comparison prints. An exclamation mark
stands where that interval does not cover the whole stream's value.

With --seeds each size is captured so many times, with other places for its windows. The table then has
how far off the whole stream's values they are (root mean square), half of the interval on average, and
how many of the intervals cover it.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from nestwalk import _native, traces

ROWS = ("native-4k", "vm-4k", "vm-host-2m", "vm-thp", "vm-mthp", "vm-ptemagnet", "vm-hugegpt", "vm-asap", "vm-ds")
KEYS = {"walks_per_kiloaccess": "walks/1000", "walk_latency_cycles": "cycles a walk"}
ALL_KEYS = KEYS | {"cycles_per_access": "cycles an access"}
ALL = 10**12
WARM = 10
"""Of the whole stream, one access in so many warms up, as in a trace without gaps."""


def captured(source, target, size, name, seed=1):
    """A trace of the stream, as `nestwalk capture` makes it; what is known of it."""
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
        "seed": seed,
    }
    return json.loads(_native.capture(str(source), str(target), json.dumps(options), lambda *_: 1))


def whole(source, target, begin, warm, total):
    """A trace with every access from `begin` on, of which the first `warm` ones warm up."""
    sample = traces.Sample(windows=1, warm=warm, window=total - begin - warm, steady_access=begin)
    traces.trace_convert(source, target, sample=sample, total=total)


def compared(trace, rows):
    """Rows by name."""
    only = [word for row in rows for word in ("--only", row)]
    words = [str(Path(sys.executable).with_name("nestwalk")), "compare", "--trace", str(trace), "--json", "--jobs", "1"]
    done = subprocess.run([*words, *only], stdout=subprocess.PIPE, check=True, text=True)
    return {row["configuration"]: row for row in json.loads(done.stdout)["rows"]}


def beside(row, truth, key):
    """How far a row's value is from the whole stream's."""
    value, half, exact = row[key], row.get(f"{key}_ci95"), truth[key]
    if not value or not exact:
        return "none" if value is None else f"{value:.3f}"
    off = f"{100 * (value / exact - 1):+.1f} %"
    if half is None:
        return off
    covers = abs(value - exact) <= half
    return f"{off} ±{100 * half / exact:.1f}{'' if covers else ' **!**'}"


def over_seeds(tables, truth, key):
    """How captures with other places of their windows scatter around the whole stream's value of a row."""
    exact = truth[key]
    values = [(rows[key], rows.get(f"{key}_ci95")) for rows in tables]
    if not exact or any(value is None for value, _ in values):
        return "none"
    off = sum((value / exact - 1) ** 2 for value, _ in values) / len(values)
    halves = [(abs(value - exact) <= half, half / exact) for value, half in values if half is not None]
    text = f"{100 * off**0.5:.1f} %"
    if not halves:
        return f"{text}, no interval"
    mean = sum(half for _, half in halves) / len(halves)
    return f"{text}, ±{100 * mean:.1f}, {sum(covers for covers, _ in halves)} of {len(halves)}"


def one_of_each(source, trace, sizes, names):
    """The table of one capture of each size, beside all of the steady phase, filtered. Its first tenth warms up."""
    name = source.name.split(".")[0]
    report = captured(source, trace, ALL, name)
    found = {"filtered": compared(trace, names)}
    for word in sizes:
        made = captured(source, trace, traces.count(word), name)
        found[f"{made['bytes'] / 1e6:.1f} MB, {made['windows']} windows"] = compared(trace, names)
    first, total = report["sampled_from"], report["accesses"]
    warm = (total - first) // WARM
    whole(source, trace, first, warm, total)
    truth = compared(trace, names)
    heads = [f"{name}: {(total - first - warm) / 1e6:,.0f} M accesses", *KEYS.values()]
    yield heads + [f"{title}: {what}" for title in found for what in KEYS.values()]
    for row in names:
        cells = [f"`{row}`", *(f"{truth[row][key] or 0:.2f}" for key in KEYS)]
        yield cells + [beside(rows[row], truth[row], key) for rows in found.values() for key in KEYS]


def many_of_each(source, trace, sizes, names, seeds):
    """The table of so many captures of each size, beside all of the steady phase, warmed up by what comes before."""
    name = source.name.split(".")[0]
    found = {}
    for word in sizes:
        windows = []
        for seed in range(1, seeds + 1):
            report = captured(source, trace, traces.count(word), name, seed)
            windows.append(report["windows"])
            found.setdefault(word, []).append(compared(trace, names))
        print(f"{word}B: {min(windows)} to {max(windows)} windows", file=sys.stderr)
    first, total = report["sampled_from"], report["accesses"]
    warm = min(first, (total - first) // WARM)
    whole(source, trace, first - warm, warm, total)
    truth = compared(trace, names)
    heads = [f"{name}: {(total - first) / 1e6:,.0f} M accesses, {seeds} captures"]
    yield heads + [f"{word}B: {what}" for word in found for what in ALL_KEYS.values()]
    for row in names:
        scattered = [
            (over_seeds([rows[row] for rows in tables], truth[row], key))
            for tables in found.values()
            for key in ALL_KEYS
        ]
        yield [f"`{row}`", *scattered]


def main():
    """A table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("source", type=Path, help="what nestwalk capture --raw made")
    parser.add_argument("sizes", nargs="*", help="of traces, such as 1M")
    parser.add_argument("--rows", default=",".join(ROWS), help="which configurations to compare")
    parser.add_argument("--seeds", type=int, default=1, help="so many captures of each size")
    arguments = parser.parse_args()
    if arguments.seeds > 1 and not arguments.sizes:
        parser.error("--seeds is about sizes: name some, such as 4M 8M")
    names = arguments.rows.split(",")
    if not arguments.source.is_file():
        parser.error(f"{arguments.source}: no such file: make it with nestwalk capture --raw")
    with tempfile.TemporaryDirectory(dir=arguments.source.parent, prefix="validate-") as folder:
        wanted = (arguments.source, Path(folder) / "trace.nwt", arguments.sizes, names)
        lines = list(many_of_each(*wanted, arguments.seeds) if arguments.seeds > 1 else one_of_each(*wanted))
    for number, cells in enumerate(lines):
        print(f"| {' | '.join(cells)} |")
        if number == 0:
            print(f"|{' --- |' * len(cells)}")


if __name__ == "__main__":
    main()
