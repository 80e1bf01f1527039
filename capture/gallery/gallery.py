#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""The gallery: captures programs by recipe, compares them, and writes the table of docs/gallery.md.

    gallery.py list                 the recipes, and which can run here
    gallery.py capture NAME FILE    one recipe: a trace
    gallery.py make [NAME ...]      capture and compare them (all, if none is named), and write the table anew

A recipe is a TOML file beside this script: ``command``, and what it takes for ``nestwalk capture`` to run it. Results
of ``make`` are kept in results.json, so that the table can be made of several runs.
"""

import argparse
import json
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent
PAGE = HERE.parents[1] / "docs" / "gallery.md"
RESULTS = HERE / "results.json"
BEGIN, END = "<!-- table: written by capture/gallery/gallery.py -->", "<!-- end of the table -->"
ROWS = ("native-4k", "vm-4k", "vm-host-2m", "vm-thp", "vm-mthp", "vm-ptemagnet", "vm-hugegpt", "vm-asap", "vm-ds")
LIMIT_S = 1800
ACCESSES_MIN = 10_000_000
"""A capture of fewer is of a wrapper, or of a program that failed at once."""


class RefusedError(Exception):
    """Why something cannot be done, in one line."""


def recipes():
    """All recipes by name."""
    return {path.stem: tomllib.loads(path.read_text(encoding="utf-8")) for path in sorted(HERE.glob("*.toml"))}


def missing(recipe):
    """What the recipe needs that is not here, as packages of Debian."""
    return [package for tool, package in recipe["needs"].items() if shutil.which(tool) is None]


def nestwalk():
    """The command: the one of the checkout, or the installed one."""
    own = HERE.parents[1] / ".venv" / "bin" / "nestwalk"
    found = str(own) if own.exists() else shutil.which("nestwalk")
    if found is None:
        raise RefusedError("nestwalk is not installed: ./dev build, or pip install nestwalk")
    return found


def free_port():
    """A port of 127.0.0.1 that nothing listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def command_line(name, recipe, out, build, size):
    """The one command that captures a recipe."""
    port = str(free_port())
    fill = {"{port}": port, "{here}": str(HERE), "{build}": str(build), "{python}": sys.executable}

    def filled(text):
        for key, value in fill.items():
            text = text.replace(key, value)
        return text

    if "build" in recipe:
        subprocess.run(["/bin/sh", "-ec", filled(recipe["build"])], check=True, timeout=LIMIT_S)
    words = [nestwalk(), "capture", "-o", str(out), "--name", name, "--size", size]
    if recipe.get("port"):
        words += ["--until-ready", port]
    if "client" in recipe:
        words += ["--client", filled(recipe["client"])]
    if "follow" in recipe:
        words += ["--follow", recipe["follow"]]
    return [*words, "--json", "--", *map(filled, recipe["command"])]


def capture(name, out, size="16M"):
    """Captures the recipe ``name``; what the capture says of itself."""
    known = recipes()
    if name not in known:
        raise RefusedError(f"no recipe is called {name}; there are {', '.join(known)}")
    recipe = known[name]
    if lacks := missing(recipe):
        raise RefusedError(f"{name} needs {', '.join(lacks)}: apt install {' '.join(lacks)}")
    with tempfile.TemporaryDirectory(prefix="nestwalk-gallery-") as build:
        words = command_line(name, recipe, out, build, size)
        print(shlex.join(words), file=sys.stderr)
        done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False, timeout=LIMIT_S)
    if done.returncode != 0:
        raise RefusedError(f"{name}: the capture ended with {done.returncode}")
    captured = json.loads(done.stdout)
    for warning in captured["warnings"]:
        print(f"gallery: {name}: {warning}", file=sys.stderr)
    if captured["accesses"] < ACCESSES_MIN:
        raise RefusedError(
            f"{name}: the program made {captured['accesses']:,} accesses only: it is not the one of the recipe"
        )
    return captured


def compare(trace):
    """What the comparison says."""
    only = [word for row in ROWS for word in ("--only", row)]
    words = [nestwalk(), "compare", "--trace", str(trace), "--json", "--jobs", "1", *only]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False, timeout=LIMIT_S)
    if done.returncode != 0:
        raise RefusedError(f"{trace}: the comparison ended with {done.returncode}")
    return json.loads(done.stdout)


def make(names):
    """Captures and compares, and writes results and table."""
    results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    for name in names or recipes():
        with tempfile.TemporaryDirectory(prefix="nestwalk-gallery-") as folder:
            trace = Path(folder) / f"{name}.nwt"
            try:
                captured = capture(name, trace)
            except RefusedError as why:
                if names:
                    raise
                print(f"gallery: left out: {why}", file=sys.stderr)
                continue
            results[name] = {"captured": facts(captured), **answer(compare(trace))}
        RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    write_table(results)


def write_table(results):
    """Puts the table into its page."""
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{table(results)}\n{END}{rest.partition(END)[2]}", encoding="utf-8")


def facts(captured):
    """What is kept of a capture: nothing that names this machine."""
    keys = (
        "accesses",
        "bytes",
        "threads",
        "footprint_bytes",
        "windows",
        "sampled_from",
        "walk_latency_ci95",
        "cpu_seconds",
    )
    return {key: captured[key] for key in keys}


def answer(found):
    """What is kept of a comparison: the plain VM's row, and what each kind of change gives back at best."""
    rows = {row["configuration"]: row for row in found["rows"]}
    keys = ("walks_per_kiloaccess", "walk_latency_cycles", "walk_latency_cycles_ci95", "host_pt_fragmentation")
    verdict = found["verdict"]
    best = {}
    alone = verdict["groups"][0]["variant"] if verdict["groups"] else None
    for one in verdict["advice"]:
        if one["variant"] == alone and one["gain"] is not None:
            half = one["gain_ci95"] or 0.0
            if one["gain"] > half and one["gain"] > best.get(one["who"], {"gain": 0.0})["gain"]:
                best[one["who"]] = {key: one[key] for key in ("configuration", "title", "gain", "gain_ci95")}
    plain = {key: rows["vm-4k"].get(key) for key in keys}
    share = {key: verdict.get(key) for key in ("walk_share", "walk_share_ci95")}
    return {"plain": plain, "share": share, "best": best, "version": found["version"], "machine": found["machine"]}


def percent(value, half):
    """A share for people, with half of its interval if there is one."""
    if value is None:
        return "unknown"
    return f"{100 * value:.1f} %" if half is None else f"{100 * value:.1f} ±{100 * half:.1f} %"


def table(results):
    """The table in Markdown."""
    heads = (
        "program",
        "accesses",
        "footprint",
        "trace",
        "walks/1000",
        "cycles a walk",
        "share of time",
        "best setting",
        "best kernel patch",
        "best hardware",
    )
    lines = [f"| {' | '.join(heads)} |", f"|{' --- |' * len(heads)}"]
    for name, recipe in recipes().items():
        if name not in results:
            lines.append(f"| {recipe['title']} |{' not run |' * (len(heads) - 1)}")
            continue
        found = results[name]
        captured, plain, best = found["captured"], found["plain"], found.get("best")
        cells = [
            recipe["title"],
            f"{captured['accesses'] / 1e6:,.0f} M",
            f"{captured['footprint_bytes'] / 1e6:,.0f} MB",
            f"{captured['bytes'] / 1e6:.1f} MB, {captured['windows']} windows",
            f"{plain['walks_per_kiloaccess']:.2f}",
            f"{plain['walk_latency_cycles']:.0f}",
            percent(found["share"]["walk_share"], found["share"]["walk_share_ci95"]),
        ]
        for who in ("settings", "kernel patch", "hardware"):
            one = None if best is None else best.get(who)
            nothing = "not run" if best is None else "none"
            cells.append(f"{one['title']}: {percent(one['gain'], one['gain_ci95'])}" if one else nothing)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main():
    """The script."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("list", help="the recipes, and which can run here")
    one = verbs.add_parser("capture", help="make the trace of one recipe")
    one.add_argument("name")
    one.add_argument("file", type=Path)
    one.add_argument("--size", default="16M")
    several = verbs.add_parser("make", help="capture, compare, and write the table")
    several.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    try:
        if arguments.verb == "list":
            for name, recipe in recipes().items():
                lacks = missing(recipe)
                state = f"needs {', '.join(lacks)}" if lacks else "can run"
                print(f"{name:10} {state:24} {recipe['what']}")
        elif arguments.verb == "capture":
            print(json.dumps(capture(arguments.name, arguments.file, arguments.size), indent=1))
        else:
            make(arguments.names)
    except RefusedError as why:
        print(f"gallery: {why}", file=sys.stderr)
        return 2
    except (OSError, subprocess.SubprocessError) as error:
        print(f"gallery: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("gallery: interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
