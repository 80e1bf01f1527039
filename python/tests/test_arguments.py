# SPDX-License-Identifier: MIT OR Apache-2.0
"""Of the Python interface and the command: what is impossible or contradictory is an error, and never ignored."""

from __future__ import annotations

import json
import math
import re
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import GENERATOR, REPOSITORY, Command, Made

import nestwalk
from nestwalk import _native, pool, progress, say
from nestwalk.cloud import fleets
from nestwalk.result import Result

api: Any = nestwalk
"""The package, unchecked: what is wrong on purpose is no error of types here."""

RAW = REPOSITORY / "linux" / "data" / "stock-trace.zst"


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: api.compare(configurations=[]), "empty list"),
        (lambda: api.compare(configurations="vm-4k"), "must be a list"),
        (lambda: api.compare(configurations=["vm-4k", 3]), "must be a name"),
        (lambda: api.compare(machine=None), "machine must be a name"),
        (lambda: api.compare(machine=""), "machine is empty"),
        (lambda: api.compare(trace=""), "trace is empty"),
        (lambda: api.compare(trace=7), "trace must be a name"),
        (lambda: api.compare(matrix=None), "matrix must be a name"),
        (lambda: api.compare(seed=-1), "seed = -1"),
        (lambda: api.compare(seed=2**63), "give a whole number from 0 to 9223372036854775807"),
        (lambda: api.compare(seed=1.5), "seed = 1.5"),
        (lambda: api.compare(seed=True), "seed = True"),
        (lambda: api.compare(jobs=0), "give a whole number from 1 to 4096"),
        (lambda: api.compare(jobs="2"), "give a whole number from 1 to 4096"),
        (lambda: api.survey(programs=[]), "empty list"),
        (lambda: api.survey(programs="redis"), "must be a list"),
        (lambda: api.survey(seed=-1), "seed = -1"),
        (lambda: api.run(None), "scenario must be a name"),
        (lambda: api.run("gups-vm", seed=-1), "seed = -1"),
        (lambda: api.trace_info(""), "trace is empty"),
        (lambda: api.trace_verify("a\0b"), "null character"),
        (lambda: api.trace_info(None), "trace must be a name"),
        (lambda: api.trace_verify(3), "trace must be a name"),
        (lambda: api.bench("trace_decode"), "must be a list"),
        (lambda: api.bench([]), "empty list"),
        (lambda: api.bench([None]), "must be a name"),
        (lambda: api.trace_convert(None, "x.nwt"), "source = None: give a path"),
        (lambda: api.trace_convert("x", ""), "destination = '': give a path"),
        (lambda: api.trace_convert("x", "x.nwt", level=math.nan), "level = nan: give a whole number from 1 to 22"),
        (lambda: api.trace_convert("x", "x.nwt", total=-1), "total = -1: give a whole number"),
        (lambda: api.trace_convert("x", "x.nwt", filter_=3), "filter_ = 3: give a text"),
        (lambda: api.trace_convert("x", "x.nwt", sample={}), "sample must be a nestwalk.traces.Sample"),
        (lambda: api.compare(seed=math.nan), "seed = nan"),
        (lambda: api.compare(jobs=[1]), "jobs at a time: give a whole number"),
        (lambda: fleets.load(api.compare), "the fleet must be a name"),
        (_native._panic, "bug in Nestwalk.*as asked for"),
    ],
)
def test_impossible_arguments_are_clear_errors(call: Callable[[], object], said: str) -> None:
    with pytest.raises(nestwalk.NestwalkError, match=said) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_results_are_saved_where_a_path_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.toml").write_text(GENERATOR.format(accesses=1000), encoding="utf-8")
    done: Any = nestwalk.run("tiny.toml")
    for nowhere in (None, 3, "", "a\0b"):
        with pytest.raises(nestwalk.NestwalkError, match="give a path"):
            done.save(nowhere)
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.toml"]


def test_other_latencies_are_checked(made: Made) -> None:
    result = Result(json.loads((made.folder / "out" / "results.json").read_text(encoding="utf-8"))["runs"][0])
    for wrong in (-1, 1.5, True, 10**9):
        with pytest.raises(nestwalk.NestwalkError, match="give a whole number from 0"):
            result.walk_latency(memory=wrong)  # type: ignore[arg-type]


def test_the_engine_and_the_object_agree_on_percentiles(made: Made) -> None:
    runs = json.loads((made.folder / "out" / "results.json").read_text(encoding="utf-8"))["runs"]
    for run in runs:
        for key, percent in (("p50", 50), ("p95", 95), ("p99", 99)):
            assert Result(run).latency_percentile(percent) == run["statistics"]["mmu"]["walk_latency_cycles"][key]


def test_the_composed_table_of_a_vm_in_a_vm_names_its_levels(tmp_path: Path) -> None:
    # Without page-walk caches each level of each table is read in each walk.
    machine = (REPOSITORY / "machines" / "broadwell-asap.toml").read_text(encoding="utf-8")
    (tmp_path / "bare.toml").write_text(re.sub(r"(?m)^pl\d = .*$", "", machine), encoding="utf-8")
    text = GENERATOR.format(accesses=2000).partition("[[kernels]]")[0].replace('"broadwell-asap"', '"bare.toml"')
    for levels in ((4, 5, 4), (5, 4, 4), (4, 4, 5)):
        path = tmp_path / "nested.toml"
        path.write_text(text + "".join(f"[[kernels]]\nlevels = {number}\n" for number in levels), encoding="utf-8")
        read = nestwalk.run(path).references
        for table, depth in (("guest", levels[2]), ("host", levels[1])):
            rows = read.filter(table=table)
            names = dict(zip(rows["level"], rows["level_name"], strict=True))
            expected = ["PTE", "PMD", "PUD", "PGD"] if depth == 4 else ["PTE", "PMD", "PUD", "P4D", "PGD"]
            assert [names[level] for level in sorted(names)] == expected, (levels, table)


def test_a_panic_says_nothing_on_standard_error(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(nestwalk.NestwalkError, match=r"panic at .*lib\.rs"):
        _native._panic()
    assert capfd.readouterr().err == ""


def test_the_version_and_short_names() -> None:
    assert nestwalk.__version__ == _native.version()
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", nestwalk.__version__)


def test_objects_have_a_short_repr(tmp_path: Path) -> None:
    path = tmp_path / "tiny.toml"
    path.write_text(GENERATOR.format(accesses=5000), encoding="utf-8")
    found = [repr(nestwalk.run(path)), repr(nestwalk.comparison("bfs", quick=True, configurations=["vm-4k"]))]
    assert found[0].startswith("<Result tiny: ")
    assert found[1] == "<Comparison of bfs on broadwell-asap: 1 runs, seed 1, quick>"
    assert all(len(text) < 100 for text in found)


def test_a_notebook_sees_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    class Handle:
        def update(self, content: dict[str, str], *, raw: bool) -> None:
            assert raw
            shown.append(content["text/plain"])

    shell = types.SimpleNamespace(kernel=object())
    display = types.SimpleNamespace(display=lambda *_, **__: Handle())
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    nestwalk.comparison("bfs", quick=True, configurations=["vm-4k"])
    assert shown[0].startswith("0 of 1 runs done")
    assert any(text.startswith("1 of 1 runs done, 100 %") for text in shown)
    assert shown[-1] == ""
    shell.kernel = None
    with progress.of_notebook(["a"]) as watcher:
        assert isinstance(watcher, pool.Silent)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--sample-windows", "3", "--period", "1k"], "exclude each other"),
        (["--period", "1k", "--skip-start", "1", "--steady-from", "2"], "exclude each other"),
        (["--sample-windows", "3", "--windows-max", "2"], "--windows-max needs --period"),
        (["--windows-max", "2"], "--windows-max needs --period"),
        *(
            ([option, "1"], f"{option} is about sampling")
            for option in ("--warm", "--window", "--skip-start", "--steady-from", "--budget", "--seed")
        ),
        (["--sample-windows", "0"], "give 1 or more"),
        (["--period", "-1"], "-1: give a whole number from 0"),
        (["--period", "1.5M"], "1.5M: give a whole number"),
        (["--level", "23"], "1 to 22"),
    ],
)
def test_no_option_of_a_conversion_is_ignored(command: Command, tmp_path: Path, options: list[str], said: str) -> None:
    done = command("trace", "convert", RAW, "x.nwt", *options)
    assert done.returncode == 2
    assert said in done.stderr.replace("'", "")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["advise", "1", "--machine", "zen4"], "--machine is of what is simulated"),
        (["advise", "1", "--quick"], "--quick is of what is simulated"),
        (["advise", "1", "--jobs", "1"], "--jobs is of what is simulated"),
        (["advise", "1", "--seed", "1"], "--seed is of what is simulated"),
        (["compare", "--tables", f"a={RAW}", "--matrix", "standard"], "--tables and --matrix both say"),
        (["sweep", "any.toml", "--plan", "--out", "x"], "--plan runs nothing and writes nothing; leave --out out"),
        (["sweep", "any.toml", "--plan", "--no-report"], "leave --no-report out"),
        (["sweep", "any.toml", "--plan", "--csv"], "--plan has no rows"),
        (["inspect", "--host", "--all-flags"], "--all-flags is about"),
        (["inspect", "--host", "--contents"], "--contents is about"),
        (["probe", "--jobs", "1"], "give --validate, too"),
        (["reproduce", "asap", "--traces", "."], "--traces is for the paper compromis"),
    ],
)
def test_an_option_that_would_change_nothing_is_refused(
    command: Command, tmp_path: Path, arguments: list[str], said: str
) -> None:
    done = command(*arguments)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert said in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_trace_is_checked_whole(command: Command, tmp_path: Path) -> None:
    whole = REPOSITORY / "data" / "traces" / "bfs.nwt"
    found = json.loads(command("trace", "verify", "bfs", "--json").stdout)
    assert (found["schema"], found["whole"]) == (1, True)
    assert found["accesses"] == nestwalk.trace_info("bfs")["accesses"]
    content = bytearray(whole.read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / "bad.nwt").write_bytes(content)
    assert command("trace", "info", "bad.nwt").returncode == 0  # it reads the tables only
    done = command("trace", "verify", "bad.nwt")
    assert done.returncode == 2
    assert "bad.nwt: at byte" in done.stderr


def test_quiet_and_verbose(command: Command) -> None:
    row = ("compare", "--quick", "--trace", "bfs", "--only", "vm-4k", "--no-report")
    assert "[1/1]" in command(*row).stderr
    assert command(*row, "-q").stderr == ""
    assert "contradict" in command(*row, "-q", "-v").stderr
    refused = command("compare", "--machine", "x", "-v").stderr
    assert "Traceback" in refused
    assert refused.splitlines()[-1].startswith("nestwalk: error: ")
    assert say.level() is say.Level.NORMAL


def test_csv(command: Command) -> None:
    done = command("compare", "--quick", "--trace", "bfs", "--only", "vm-4k", "--csv")
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("configuration,walks_per_kiloaccess,")
    assert lines[1].startswith("vm-4k,")
    assert command("compare", "--csv", "--json").returncode == 2


@pytest.mark.parametrize("options", [["--seed", "7"], ["--quick"], []])
def test_a_scenario_is_named_with_its_own_lines_whatever_the_options(
    command: Command, tmp_path: Path, options: list[str]
) -> None:
    text = "# a comment that no rewriting keeps\n\n" + GENERATOR.format(accesses=1000).replace("kernels", "kernel", 1)
    (tmp_path / "tiny.toml").write_text(text, encoding="utf-8")
    line = next(number for number, line in enumerate(text.splitlines(), 1) if line == "[[kernel]]")
    assert f"tiny.toml:{line}:" in command("run", "tiny.toml", *options).stderr


def test_a_seed_that_no_file_can_hold_is_named_as_such(command: Command) -> None:
    for verb in (["run", "gups-vm"], ["compare"], ["matrix"], ["reproduce", "asap"]):
        done = command(*verb, "--seed", str(2**63))
        assert "'--seed': '9223372036854775808': give a whole number from 0 to 9223372036854775807" in done.stderr
        assert ".toml" not in done.stderr
