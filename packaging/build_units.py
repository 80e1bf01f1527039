# SPDX-License-Identifier: MIT OR Apache-2.0
"""What the compiler's processes of a kernel's build use: ``packaging/build_units.py BUILD_FOLDER [COUNT]``.

The folder is one in which Linux has been built with gcc. COUNT of its units, drawn at random, are compiled again, one
after the other, into a temporary folder: under strace (calls), and with a small library (memory at exit). Prints for
each ``cc1`` what ``crates/workload/src/generator/build.rs`` has in ``UNITS``, and the medians of the other programs.
Needs gcc and strace.
"""

from __future__ import annotations

import os
import random
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

LIBRARY = r"""
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

__attribute__((destructor)) static void leave(void) {
    const char *folder = getenv("NESTWALK_SMAPS");
    char path[512], buffer[65536];
    struct rusage used;
    ssize_t got;
    if (!folder) return;
    snprintf(path, sizeof path, "%s/%d.smaps", folder, getpid());
    int from = open("/proc/self/smaps", O_RDONLY), to = open(path, O_CREAT | O_WRONLY | O_TRUNC, 0644);
    getrusage(RUSAGE_SELF, &used);
    dprintf(to, "%ld\n", used.ru_utime.tv_sec * 1000L + used.ru_utime.tv_usec / 1000L);
    while ((got = read(from, buffer, sizeof buffer)) > 0)
        if (write(to, buffer, got) < 0) break;
}
"""
"""Writes user time, ms, and /proc/self/smaps when a process exits."""

COLUMNS = ("collected_kib", "malloc_kib", "files", "user_ms")
"""Of what is printed of a ``cc1``."""
HEAD = re.compile(r"[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \d+\s*(.*)")
"""The first line of a mapping in smaps."""


def commands(folder: Path, count: int) -> list[str]:
    """The command lines of so many units, without what they write."""
    found = []
    for file in sorted(folder.rglob(".*.o.cmd")):
        line = file.read_text(encoding="utf-8", errors="replace").splitlines()[0]
        command = line.partition(":= ")[2].partition(" ; ")[0].strip().removeprefix("ccache ")
        if command.startswith("gcc ") and "-D__KERNEL__ " in command and re.search(r"\S\.c$", command):
            found.append(re.sub(r"-Wp,-MMD,\S+", "", command))
    random.Random(1).shuffle(found)  # noqa: S311
    return found[:count]


def compile_one(folder: Path, command: str, library: Path, into: Path) -> None:
    """Compiles a unit and leaves strace's and the library's files in ``into``."""
    into.mkdir()
    command = re.sub(r" -o \S+", f" -o {shlex.quote(str(into / 'unit.o'))}", command)
    calls = shlex.split("strace -f -qq -e trace=execve,openat")
    calls += ["-o", str(into / "strace"), "-E", f"LD_PRELOAD={library}"]
    environment = {**os.environ, "NESTWALK_SMAPS": str(into), "LC_ALL": "C"}
    subprocess.run([*calls, "sh", "-c", command], cwd=folder, env=environment, check=True, capture_output=True)


def processes(into: Path) -> list[tuple[str, dict[str, int]]]:
    """Program and figures of each process of a unit."""
    program: dict[str, str] = {}
    opened: dict[str, int] = defaultdict(int)
    for line in (into / "strace").read_text(errors="replace").splitlines():
        if match := re.match(r'(\d+) +execve\("([^"]*)"', line):
            program[match[1]] = Path(match[2]).name
        elif match := re.match(r"(\d+) +openat\(.* = \d+$", line):
            opened[match[1]] += 1
    found = []
    for file in into.glob("*.smaps"):
        time, *lines = file.read_text().splitlines()
        figures: dict[str, int] = defaultdict(int)
        figures |= {"user_ms": int(time), "files": opened[file.stem]}
        name = ""
        for line in lines:
            if match := HEAD.match(line):
                name = match[1]
            elif line.startswith("Rss:"):
                figures[part(name, program.get(file.stem, "?"))] += int(line.split()[1])
            elif line.startswith("Anonymous:") and name.startswith("/"):
                figures["copied_kib"] += int(line.split()[1])
        found.append((program.get(file.stem, "?"), dict(figures)))
    return found


def part(name: str, program: str) -> str:
    """What a mapping of that name is."""
    if name.startswith("/"):
        return "executable_kib" if program in name.rpartition("/")[2] else "libraries_kib"
    return {"[heap]": "malloc_kib", "[stack]": "stack_kib", "": "collected_kib"}.get(name, "kernel_kib")


def main() -> None:
    """Compiles, and prints."""
    match sys.argv[1:]:
        case [place] if Path(place).is_dir():
            folder, count = Path(place), 22
        case [place, number] if Path(place).is_dir() and number.isdecimal() and int(number) > 0:
            folder, count = Path(place), int(number)
        case _:
            sys.exit("usage: build_units.py BUILD_FOLDER [COUNT], a folder in which Linux has been built with gcc")
    units, others = [], defaultdict(list)
    with tempfile.TemporaryDirectory() as scratch:
        source, library = Path(scratch, "leave.c"), Path(scratch, "leave.so")
        source.write_text(LIBRARY)
        subprocess.run([*shlex.split("gcc -O2 -shared -fPIC -o"), str(library), str(source)], check=True)
        for number, command in enumerate(commands(folder, count)):
            into = Path(scratch, str(number))
            compile_one(folder, command, library, into)
            for name, figures in processes(into):
                if name == "cc1":
                    units.append(tuple(figures.get(key, 0) for key in COLUMNS))
                others[name].append(figures)
    print("collected KiB, malloc KiB, files, user ms of each cc1:")
    for unit in sorted(units):
        print(unit)
    for name, all_figures in others.items():
        keys = sorted({key for figures in all_figures for key in figures})
        medians = {key: statistics.median(figures.get(key, 0) for figures in all_figures) for key in keys}
        print(f"{name}, medians of {len(all_figures)}: {medians}")


if __name__ == "__main__":
    main()
