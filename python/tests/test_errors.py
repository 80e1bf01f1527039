# SPDX-License-Identifier: MIT OR Apache-2.0
"""Bad input: one line that names place and remedy, exit code 2, and nothing written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support import GENERATOR, REPOSITORY, Command

import nestwalk

GOOD = GENERATOR.format(accesses=1000)
HEAP = GOOD.replace('"gups"', '"netlist"\nheap = { step = STEP }')


@pytest.fixture(autouse=True)
def nothing_is_written(tmp_path: Path) -> Iterator[None]:
    """No test here may leave more behind than it made itself."""
    yield
    left = {path.name for path in tmp_path.iterdir()}
    assert left <= {"tiny.toml", "mine.toml", "cut.nwt", "bad.nwt", "precious", "folder", "letter"}


def refused(command: Command, *arguments: str | Path) -> str:
    """The one line that the command says, having written nothing."""
    done = command(*arguments)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("nestwalk: error: ")
    assert "Traceback" not in done.stderr
    return lines[0]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["cmpare"], "'compare'"),
        (["compare", "--sead", "1"], "--seed"),
        (["compare", "--seed", "x"], "'--seed'"),
        (["compare", "--jobs", "0"], "give a whole number from 1 to 4096"),
        (["compare", "--trace", "rdis"], "did you mean 'redis'?"),
        (["compare", "--trace", "nowhere/x.nwt"], "nowhere/x.nwt: no such file"),
        (["compare", "--machine", "brodwell-asap"], "did you mean 'broadwell-asap'?"),
        (["compare", "--machine", "nowhere.toml"], "nowhere.toml"),
        (["compare", "--only", "vm4k"], "did you mean 'vm-4k'?"),
        (["compare", "--matrix", "standart"], "did you mean 'standard'?"),
        (["compare", "--matrix", "nowhere.toml"], "nowhere.toml: No such file"),
        (["compare", "--matrix", "folder"], "folder: is a directory; name a matrix file in it"),
        (["compare", "--matrix", "letter"], "letter: the name of a matrix file ends in .toml; rename it"),
        (["compare", "--machine", "folder"], "folder: is a directory; name a machine file in it"),
        (["compare", "--machine", "letter"], "letter: the name of a machine file ends in .toml; rename it"),
        (["run", "folder"], "folder: Is a directory; name a file in it"),
        (["trace", "convert", "letter", "x.nwt"], 'one of Pin "0x401000: R 0x1ffe8040"'),
        (["compare", "--report", "no/such/dir/report.html"], "there is no directory"),
        (["compare", "--out", "no/such/dir"], "there is no directory"),
        (["run"], "SCENARIO.toml"),
        (["run", "nowhere.toml"], "nowhere.toml: No such file"),
        (["run", "qickstart"], "unknown scenario 'qickstart'"),
        (["list", "machine"], "did you mean 'machines'?"),
        (["trace"], "Missing command"),
        (["trace", "info", "rdis"], "did you mean 'redis'?"),
        (["trace", "info", str(REPOSITORY / "README.md")], "README.md"),
        (["trace", "convert", "nowhere.zst", "x.nwt"], "nowhere.zst"),
        (["trace", "convert", "nowhere.zst", "no/such/dir/x.nwt"], "there is no directory"),
        (["trace", "convert", "a", "b", "--period", "9x"], "200k or 4M"),
    ],
)
def test_bad_arguments(command: Command, tmp_path: Path, arguments: list[str], said: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "letter").write_text("0x1000\n", encoding="utf-8")
    assert said in refused(command, *arguments)


@pytest.mark.parametrize(
    ("arguments", "verb", "wrong", "remedy"),
    [
        (["inspect", "-1"], "inspect", "No such option: -1", "an argument that begins with '-' goes behind `--`"),
        (
            ["compare", "redis"],
            "compare",
            "extra argument(s) (redis)",
            "it takes options only: `nestwalk compare --help`",
        ),
        (["compare", "--sead", "1"], "compare", "--sead", "`nestwalk compare --help` lists the options"),
        (["run", "a", "b"], "run", "extra argument(s) (b)", "`nestwalk run --help` says what it takes"),
        (["trace", "head", "redis", "--skip"], "trace head", "'--skip'", "`nestwalk trace head --help` says which"),
        (["matrix", "--quick=3"], "matrix", "'--quick' does not take a value", "`nestwalk matrix --help` says which"),
        (["keys"], "keys", "'KIND'", "give it: machine, scenario, costs, matrix or sweep"),
        (["vm", "tables", "-o", "x"], "vm tables", "'--monitor'", "give it: QEMU's QMP socket"),
        (["trace"], "trace", "Missing command", "give one of convert, cut,"),
        (["trace", "haed"], "trace", "did you mean 'head'?", "`nestwalk trace --help` lists the commands"),
        (["compare", "--seed", "-1"], "compare", "'--seed': '-1'", "give a whole number from 0"),
    ],
)
def test_a_wrong_command_line_names_verb_argument_and_remedy(
    command: Command, arguments: list[str], verb: str, wrong: str, remedy: str
) -> None:
    said = refused(command, *arguments)
    assert said.startswith(f"nestwalk: error: {verb}: ")
    assert wrong.lower() in said.lower()
    assert remedy in said


def test_a_process_number_below_one_is_named_as_such(command: Command) -> None:
    for wrong in ("0", "-1", "-99999999999"):
        assert f"{wrong}: no process has this number; give one from 1 to" in refused(command, "inspect", "--", wrong)
    assert "the process is empty" in refused(command, "inspect", "")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("schema = ", "tiny.toml"),
        (GOOD.replace("machine =", "machin ="), "machine"),
        (GOOD.replace('"gups"', '"gusp"'), "gups"),
        (GOOD.replace('"thp"', '"tph"'), "thp"),
        (GOOD.replace('"broadwell-asap"', '"zen5"'), "zen4"),
        (GOOD.replace("schema = 1", "schema = 2"), "schema"),
        (GOOD + "[[kernels]]\n" * 2, "kernels"),
        (GOOD.replace("[[kernels]]", '[[kernels]]\nmemory = "1 MiB"', 1), "tiny"),
        (HEAP.replace("STEP", "0"), 'workload.generator.heap.step = 0: give "4 KiB" to'),
        (HEAP.replace("STEP", "5000"), "5000 bytes are no multiple of 4 KiB"),
        (HEAP.replace("STEP", '"64 MiB"'), 'heap.step = "64 MiB": from "4 KiB" to the heap'),
        (HEAP.replace("STEP", '"1 MB"'), "1 MB"),
    ],
)
def test_bad_scenarios(command: Command, tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "tiny.toml").write_text(text, encoding="utf-8")
    assert said in refused(command, "run", "tiny.toml")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("ways = 8 ", "ways = 0 ", "ways"),
        ('size = "20MiB"', 'size = "21MiB"', "llc"),
        ("[mmu.llc]", "[mmu.lcl]", "llc"),
    ],
)
def test_bad_machines(command: Command, tmp_path: Path, scenario: Path, old: str, new: str, said: str) -> None:
    text = (REPOSITORY / "machines" / "broadwell-asap.toml").read_text(encoding="utf-8")
    assert old in text
    (tmp_path / "mine.toml").write_text(text.replace(old, new, 1), encoding="utf-8")
    scenario.write_text(GOOD.replace('"broadwell-asap"', '"mine.toml"'), encoding="utf-8")
    assert said in refused(command, "run", scenario)


def test_a_guest_larger_than_its_host(command: Command, tmp_path: Path) -> None:
    text = GOOD.replace("[[kernels]]", '[[kernels]]\nmemory = "1 GiB"', 1)
    text = text.replace('[[kernels]]\nmanager = { kind = "thp" }', '[[kernels]]\nmemory = "2 GiB"')
    (tmp_path / "tiny.toml").write_text(text, encoding="utf-8")
    assert "host" in refused(command, "run", "tiny.toml")


@pytest.mark.parametrize(("keep", "said"), [(0.5, "cut.nwt"), (0.0, "cut.nwt")])
def test_a_truncated_trace(command: Command, tmp_path: Path, keep: float, said: str) -> None:
    whole = (REPOSITORY / "data" / "traces" / "bfs.nwt").read_bytes()
    (tmp_path / "cut.nwt").write_bytes(whole[: int(len(whole) * keep)])
    assert said in refused(command, "compare", "--quick", "--trace", "cut.nwt")


def test_a_corrupt_trace(command: Command, tmp_path: Path) -> None:
    content = bytearray((REPOSITORY / "data" / "traces" / "bfs.nwt").read_bytes())
    content[len(content) // 2] ^= 0x40
    (tmp_path / "bad.nwt").write_bytes(content)
    assert "bad.nwt" in refused(command, "compare", "--trace", "bad.nwt", "--only", "vm-4k")


def test_a_folder_with_other_things_is_left_alone(command: Command, tmp_path: Path, scenario: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thesis.tex").write_text("...", encoding="utf-8")
    assert "not results" in refused(command, "run", scenario, "--out", "precious")


def test_the_api_raises_the_same_line(command: Command) -> None:
    with pytest.raises(nestwalk.NestwalkError) as caught:
        nestwalk.comparison(machine="brodwell-asap", quick=True)
    assert "did you mean 'broadwell-asap'?" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(caught.value) in refused(command, "compare", "--machine", "brodwell-asap", "--quick")
