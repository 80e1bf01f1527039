# SPDX-License-Identifier: MIT OR Apache-2.0
"""Hostile arguments through every verb: exit code 2 and one line that names the option, and nothing written.

Most run in this process: the same entry as the command's, without the half second that a process takes to start.
"""

from __future__ import annotations

import os
import string
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support import Command

from nestwalk import __main__ as entry
from nestwalk.errors import SEED_MAX

COLUMNS = ("--columns", "vm=id,arrive=start,leave=end,memory=ram,cores=cpu")
PLACE = ("place", "t.csv", *COLUMNS)
CONVERT = ("trace", "convert", "capture.raw", "x.nwt")
SAMPLED = (*CONVERT, "--period", "5M")

Said = Callable[..., str]


@pytest.fixture
def said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., str]]:
    """What the command says when it refuses."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text("id,start,end,ram,cpu\na,0,,1,1\nb,1,5,2,1\n", encoding="utf-8")
    (tmp_path / "capture.raw").write_bytes(b"")

    def run(*arguments: str) -> str:
        code = entry._run(list(arguments))
        shown = capfd.readouterr()
        assert (code, shown.out) == (2, ""), shown
        lines = shown.err.splitlines()
        assert len(lines) == 1, shown.err
        assert lines[0].startswith("nestwalk: error: "), shown.err
        assert lines[0].isprintable(), shown.err
        assert "bug" not in lines[0], shown.err
        return lines[0]

    yield run
    assert {path.name for path in tmp_path.iterdir()} == {"t.csv", "capture.raw"}


NO_NUMBERS = ("-1", "-inf", "nan", "inf", "1e3", "0x10", "1.5", "9" * 30, "9" * 5000, "", "  ", "\N{SUPERSCRIPT TWO}")

WHOLE_NUMBERS = [
    ("compare", "--seed"),
    ("compare", "--jobs"),
    ("matrix", "--seed"),
    ("matrix", "--jobs"),
    ("sweep", "t.csv", "--jobs"),
    ("sweep", "t.csv", "--workers"),
    ("results", "gc", "--older-than"),
    ("run", "gups-vm", "--seed"),
    ("reproduce", "asap", "--seed"),
    ("reproduce", "asap", "--jobs"),
    ("segments", "--pid"),
    *((*PLACE, option) for option in ("--segments", "--seed", "--jobs", "--map-host", "--measure-from")),
    *((*CONVERT, option) for option in ("--total", "--sample-windows", "--period", "--level")),
    *((*SAMPLED, option) for option in ("--warm", "--window", "--skip-start", "--steady-from", "--budget", "--seed")),
    *((*SAMPLED, option) for option in ("--collapse", "--windows-max")),
]


@pytest.mark.parametrize("arguments", WHOLE_NUMBERS, ids=lambda words: f"{words[0]}{words[-1]}")
@pytest.mark.parametrize("number", NO_NUMBERS, ids=lambda number: repr(number[:9]))
def test_what_is_no_whole_number(said: Said, arguments: tuple[str, ...], number: str) -> None:
    line = said(*arguments, number)
    assert arguments[-1] in line
    assert "give " in line
    assert len(line) < 6000 if len(number) > 1000 else len(line) < 200


OTHER_NUMBERS = [
    ("--target-utilisation", ("-1", "0", "1.1", "nan", "inf", "", "x"), "'--target-utilisation'"),
    ("--boot-storm", ("-1", "1.5", "9" * 30, "", "x"), "--boot-storm"),
    (
        "--resize",
        tuple(f"unplug:{shares}" for shares in ("-1:1", "0.5", "0.5:nan", "0:0.5", "2:0.5", "", ":")),
        "--resize",
    ),
    ("--resize", ("", ":", "start:0.1:0.1", "grow:0.1:inf", "shrink:1:1"), "resize"),
    ("--machine", ("4", "nan:1GiB", "inf:1GiB", "-1:1GiB", "4:0GiB", f"4:{'9' * 30}GiB", "", ":"), "--machine"),
    ("--nova", ("x=1", "", "host_subset_size", "host_subset_size=0", "host_subset_size=1.5"), "--nova"),
    ("--nova", tuple(f"cpu_allocation_ratio={number}" for number in ("0", "-1", "nan", "inf", "1e9", "")), "--nova"),
    ("--versions", ("", ",", "opt3", "opt1,opt1"), ""),
    ("--scheduler", ("", "first", "-1"), "unknown scheduler"),
    ("--allocator", ("", "first", "-1"), "unknown allocator"),
]


@pytest.mark.parametrize(
    ("option", "value", "part"),
    [(option, value, part) for option, values, part in OTHER_NUMBERS for value in values],
)
def test_other_values_of_a_replay(said: Said, option: str, value: str, part: str) -> None:
    assert part in said(*PLACE, option, value)


NAMES = [
    ("compare", "--trace"),
    ("compare", "--machine"),
    ("compare", "--matrix"),
    ("compare", "--only"),
    ("compare", "--tables"),
    ("matrix", "--program"),
    ("matrix", "--matrix"),
    ("run",),
    ("reproduce",),
    ("list",),
    ("bench",),
    ("keys",),
    ("trace", "info"),
    ("trace", "verify"),
    ("trace", "head"),
    ("machine", "show"),
    ("machine", "check"),
    ("machine", "detect", "--cpuid"),
    ("sweep",),
    ("results", "show"),
    ("place",),
    ("place", "t.csv", "--hosts"),
    ("segments", "--from"),
]

ODD_NAMES = {
    "empty": "",
    "blank": "  ",
    "long": "x" * 5000,
    "long file": f"{'x' * 300}.toml",
    "two lines": "a\nb",
    "colour": "\x1b[31mred",
    "no text": os.fsdecode(b"\xff\xfe"),
    "no text.toml": os.fsdecode(b"\xff\xfe.toml"),
    "format": "{0}%s[red]$(x)",
    "directory": "/proc",
    "through a file": "t.csv/x",
}


@pytest.mark.parametrize("arguments", NAMES, ids=" ".join)
@pytest.mark.parametrize("name", ODD_NAMES.values(), ids=ODD_NAMES.keys())
def test_odd_names(said: Said, arguments: tuple[str, ...], name: str) -> None:
    line = said(*arguments, name)
    assert len(line) < 1200, "no message repeats a name of any length"
    if name == "":
        assert "empty" in line or "unknown " in line


PATHS = [
    ("run", "gups-vm", "--out"),
    ("compare", "--out"),
    ("compare", "--report"),
    ("matrix", "--out"),
    ("sweep", "t.csv", "--out"),
    ("results", "export"),
    ("reproduce", "asap", "--out"),
    (*PLACE, "--out"),
    ("machine", "detect", "--out"),
    ("trace", "convert", "capture.raw"),
]

NO_PLACES = {
    "empty": "",
    "long": "x" * 300,
    "no folder": "no/such/folder/x",
    "through a file": "t.csv/x",
    "of the system": "/proc/x",
}


@pytest.mark.parametrize("arguments", PATHS, ids=" ".join)
@pytest.mark.parametrize("place", NO_PLACES.values(), ids=NO_PLACES.keys())
def test_places_where_nothing_can_be_written(said: Said, arguments: tuple[str, ...], place: str) -> None:
    assert len(said(*arguments, place)) < 500


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("compare --json --csv", "--json and --csv"),
        ("compare --report x.html --no-report", "contradict"),
        ("compare --report - --json", "standard output"),
        ("compare -q -v", "contradict"),
        ("run gups-vm --json --csv", "--json and --csv"),
        ("keys machine --schema --json", "contradict"),
        ("segments", "--pid PID"),
        ("segments --pid 1 --from x", "--pid PID"),
        ("place t.csv --versions opt1 --scheduler first-fit", "--versions"),
        ("trace convert capture.raw x.nwt --windows-max 3", "--windows-max"),
        ("trace convert capture.raw x.nwt --window 3", "--window"),
        ("trace convert capture.raw x.nwt --period 3 --sample-windows 3", "exclude"),
        ("trace convert capture.raw x.nwt --period 3 --skip-start 3 --steady-from 3", "exclude"),
        ("trace convert capture.raw - --json", "standard output"),
        ("trace convert capture.raw x.nwt --filter 3x", "no filter"),
        ("trace convert capture.raw", "DST"),
        ("trace", "Missing command"),
        ("machine frobnicate", "frobnicate"),
        ("compare extra", "extra"),
        ("compare --only", "--only"),
    ],
)
def test_options_that_exclude_or_need_each_other(said: Said, words: str, part: str) -> None:
    line = said(*words.split())
    assert part in line
    assert " at line " not in line, "of options as JSON text, no line is the user's"


@pytest.mark.parametrize(("name", "part"), [(".", "is a directory"), ("/dev/null", "is no regular file")])
def test_what_is_there_and_is_no_trace(said: Said, name: str, part: str) -> None:
    assert part in said("trace", "info", name)
    assert part in said("compare", "--trace", name)


def test_no_character_of_ascii_breaks_a_name(said: Said) -> None:
    for letter in [*string.printable, "\x00", "\x7f", "\x9b"]:
        assert "trace" in said("trace", "info", f"no{letter}ne")


def test_the_installed_command_says_the_same(command: Command, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("id\n", encoding="utf-8")
    done = command("compare", "--seed", "nan")
    line = f"nestwalk: error: compare: Invalid value for '--seed': 'nan': give a whole number from 0 to {SEED_MAX}\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", line)
