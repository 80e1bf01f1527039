# SPDX-License-Identifier: MIT OR Apache-2.0
"""Sweeps: what a specification expands to, and that nothing is made twice and nothing is lost."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import drawn
import polars as pl
import pytest
from support import EXECUTABLE, REPOSITORY, Command

from nestwalk import _native, content_store, data, orders, pool, scenario, surveys
from nestwalk.conduct import Means
from nestwalk.errors import NestwalkError
from nestwalk.sweeps import kept, spec
from nestwalk.sweeps import sweep as sweeps

HEAD = """
schema = 1
title = "tiny"

[[program]]
name = "gups"
title = "GUPS"
workload = { generator = { kind = "gups", footprint = "32 MiB", warm_accesses = 0, measured_accesses = 20000 } }
"""
ENTRIES = """
[[axis]]
name = "entries"
key = "machine.mmu.l2_tlb.0.entries"
values = [{values}]
"""
TECHNIQUES = '[techniques]\nonly = ["vm-4k", "vm-thp"]\n'


def small(values: str) -> str:
    """Two techniques, each with these sizes of the second-level TLB."""
    return HEAD + TECHNIQUES + ENTRIES.format(values=values)


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    """Four runs: two techniques, two sizes of the second-level TLB."""
    path = tmp_path / "grid.toml"
    path.write_text(small("384, 768"), encoding="utf-8")
    return path


def made(path: Path, results: Path | str, **options: Any) -> sweeps.Sweep:
    return sweeps.sweep(path, jobs=2, results=str(results), **options)


def parsed(text: str) -> spec.Spec:
    return spec.parse(text, "spec.toml")


def axis(text: str) -> list[Any]:
    """The values of an axis that is written so."""
    whole = f'{HEAD}[set.scenario]\nkernels = [{{}}]\n[[axis]]\nkey = "scenario.sampling.warm"\n{text}\n'
    return [value.shown for value in parsed(whole).axes[0].values]


# What a specification says.


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("values = [1, 2.5, 'x']", [1, 2.5, "x"]),
        ("range = { from = 1, to = 4 }", [1, 2, 3, 4]),
        ("range = { from = 0.1, to = 0.31, step = 0.1 }", [0.1, 0.2, 0.3]),
        ("range = { from = '1 GiB', to = '3 GiB' }", ["1 GiB", "2 GiB", "3 GiB"]),
        ("log = { from = 64, to = 512, factor = 2 }", [64, 128, 256, 512]),
        ("log = { from = 1, to = 100, points = 3 }", [1, 10, 100]),
        ("log = { from = '256 MiB', to = '1024 MiB', factor = 2 }", ["256 MiB", "512 MiB", "1024 MiB"]),
    ],
)
def test_values_of_an_axis(text: str, values: list[Any]) -> None:
    assert axis(text) == values


def test_every_axis_against_every_other_but_for_conditions() -> None:
    read = parsed(
        HEAD.replace('title = "tiny"', 'title = "tiny"\nseeds = { from = 1, to = 3 }')
        + """
[techniques]
only = ["vm-4k", "vm-thp"]
[[axis]]
name = "both"
keys = ["machine.mmu.l2_tlb.0.entries", "machine.mmu.l2_tlb.0.ways"]
values = [[384, 6], [512, 8]]
when = { technique = "vm-4k" }
[[skip]]
technique = "vm-thp"
seed = { from = 2 }
[[skip]]
both = "512, 8"
seed = [1, 3]
"""
    )
    found = [(point.cell.name if point.cell else "", point.seed, point.values.get("both")) for point in read.points()]
    assert found == [
        ("vm-4k", 1, "384, 6"),
        ("vm-4k", 2, "384, 6"),
        ("vm-4k", 2, "512, 8"),
        ("vm-4k", 3, "384, 6"),
        ("vm-thp", 1, None),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("schema = 2", r"spec.toml:1:10: schema is 2"),
        (f"{HEAD}sweeps = 1", r"unknown key 'sweeps'"),
        (
            f"{HEAD}[[axis]]\nkey = 'machin.x'\nvalues = [1]",
            r"spec.toml:9:7: .*begin with one of scenario, machine, costs",
        ),
        (f"{HEAD}[[axis]]\nkey = 'machine.x'", r"spec.toml:8:1: .*has no values"),
        (f"{HEAD}[[axis]]\nkey = 'machine.x'\nvalues = []", r"spec.toml:10:10: .*at least one value"),
        (f"{HEAD}[[axis]]\nkey = 'machine.x'\nvalues = [1, 1]", r"has a value twice"),
        (f"{HEAD}[[axis]]\nkey = 'machine.x'\nrange = {{ from = 2, to = 1 }}", r"1 is below from = 2"),
        (f"{HEAD}[[axis]]\nkey = 'machine.x'\nrange = {{ from = 0, to = 1e9 }}", r"give at most 100,000"),
        (f"{HEAD}[[axis]]\nkey = 'machine.x'\nlog = {{ from = 0, to = 1, factor = 2 }}", r"above 0: the range is log"),
        (f"{HEAD}[[axis]]\nkey = 'machine.x'\nlog = {{ from = 1, to = 2, factor = 1 }}", r"a number above 1"),
        (f"{HEAD}[[axis]]\nkey = 'machine.x'\nvalues = [1]\nwhen = {{ colour = 1 }}", r"unknown axis 'colour'"),
        (f"{HEAD}[[skip]]\nprogram = 'gusp'", r"spec.toml:9:11: .*never is 'gusp'"),
        (f"{HEAD}[[skip]]", r"would leave out every run"),
        ("schema = 1", r"there is no program"),
        ("schema = 1\nprograms = ['rediss']", r"spec.toml:2:13: .*did you mean 'redis'"),
        ("schema = 1\nbase = 'gups-wm'", r"spec.toml:2:8: .*did you mean 'gups-vm'"),
        (f"{HEAD}[techniques]\nonly = ['vm-5k']", r"spec.toml:9:9: .*did you mean 'vm-4k'"),
        ("schema = 1\nprograms = ['redis']\nseeds = [1, 1]", r"spec.toml:3:13: 1 is there twice"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(text: str, said: str) -> None:
    with pytest.raises(NestwalkError, match=said) as error:
        parsed(text.lstrip("\n"))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("axes", "said"),
    [
        ('[[axis]]\nkey = "machine.mmu.l2_tlb.0.entry"\nvalues = [1536]', r"grid.toml:15:\d+: .*unknown field `entry`"),
        (
            '[[axis]]\nkey = "machine.mmu.l2_tlb.7.entries"\nvalues = [1536]',
            r"mmu.l2_tlb.7: there are 2, counted from 0",
        ),
        ('[[axis]]\nkey = "scenario.kernels.0.levels"\nvalues = [4, 9]', r"grid.toml:15:14: .*levels = 9"),
        ('[[axis]]\nkey = "costs.nothing"\nvalues = [1]', r"grid.toml:15:\d+: .*unknown field `nothing`"),
        ('[[axis]]\nkey = "scenario.name.x"\nvalues = [1]', r"no table, so it has no keys"),
    ],
)
def test_what_the_engine_refuses_is_said_with_the_place_of_the_axis(grid: Path, axes: str, said: str) -> None:
    grid.write_text(HEAD + TECHNIQUES + "\n\n" + axes, encoding="utf-8")
    with pytest.raises(NestwalkError, match=said):
        sweeps.plan(grid)


def test_the_plan_says_what_would_be_run(grid: Path, tmp_path: Path) -> None:
    text = small("384, 768, 1536")
    # 1536 is what the machine has anyway: the same run as a technique without the axis.
    grid.write_text(
        text + '\n[[axis]]\nname = "again"\nkey = "machine.description"\nvalues = ["a", "b"]\n', encoding="utf-8"
    )
    plan = sweeps.plan(grid, means=Means(results=str(tmp_path / "kept"))).to_json()
    assert (plan["runs"], plan["duplicates"], plan["to_make"], plan["populations"]) == (12, 6, 6, 2)
    assert plan["estimate"]["cpu_seconds"].startswith("unavailable, because")
    assert not (tmp_path / "kept").exists(), "a plan writes nothing"


# What is made, and what is found.


def test_only_what_is_missing_is_made(grid: Path, tmp_path: Path) -> None:
    first = made(grid, tmp_path / "kept")
    assert (first.tally.made, first.tally.reused) == (4, 0)
    again = made(grid, tmp_path / "kept")
    assert (again.tally.made, again.tally.reused) == (0, 4)
    assert again.rows == first.rows
    grid.write_text(small("384, 768, 1536"), encoding="utf-8")
    plan = sweeps.plan(grid, means=Means(results=str(tmp_path / "kept")))
    assert plan.estimate.unavailable is None
    assert plan.estimate.seconds > 0
    assert plan.estimate.memory_bytes > 1 << 20
    extended = sweeps.execute(plan)
    assert (extended.tally.made, extended.tally.reused) == (2, 4)
    frame = extended.frame
    assert frame["entries"].to_list() == [384, 768, 1536] * 2
    assert frame["entries"].dtype == pl.Int64


def test_a_comparison_finds_what_a_sweep_has_made(grid: Path, tmp_path: Path) -> None:
    grid.write_text(HEAD + TECHNIQUES, encoding="utf-8")
    made(grid, tmp_path / "kept")
    matrix = tmp_path / "matrix.toml"
    matrix.write_text(HEAD + '[[configuration]]\nname = "plain"\nscenario = { kernels = [{}, {}] }\n', encoding="utf-8")
    seen: list[str] = []

    class Watcher(pool.Silent):
        def advanced(self, index: int, share: float) -> None:
            seen.append(f"{index} {share}")

    plan = surveys.plan(["gups"], matrix_name=str(matrix))
    done = surveys.execute(plan, means=Means(jobs=1, results=str(tmp_path / "kept")), watcher=Watcher())
    assert [row["configuration"] for row in done.rows] == ["plain"], "it has its own name"
    assert done.results[0].configuration["scenario"]["name"] == "gups-plain"
    store = content_store.open_store(str(tmp_path / "kept"))
    assert store is not None
    assert len(store.keys()) == 2, "nothing was made beside what the sweep made"
    fresh = surveys.execute(plan, means=Means(jobs=1, results="none"))
    assert fresh.results[0].json == done.results[0].json, "the same as one that was made for it"


def test_what_a_run_is_called_is_not_what_it_depends_on(tmp_path: Path) -> None:
    machine = json.loads(_native.machine("broadwell-asap"))["text"]
    trace = (data.TRACES / "redis.nwt").read_bytes()
    (tmp_path / "renamed.toml").write_text(re.sub('name = ".*"', 'name = "mine"', machine, count=1), encoding="utf-8")
    (tmp_path / "other.toml").write_text(machine.replace("entries = 1536", "entries = 768"), encoding="utf-8")
    (tmp_path / "mine.nwt").write_bytes(trace)

    def key(**changes: Any) -> str:
        table = {
            "schema": 1,
            "name": "one",
            "machine": "broadwell-asap",
            "workload": {"trace": "redis"},
            "kernels": [{}],
        }
        return orders.of(pool.Job("x", scenario.write({**table, **changes}), tmp_path / "x.toml")).order.key

    same = key()
    assert key(name="two", description="another") == same
    assert key(machine="renamed.toml", costs="linux-6.1", seed=1) == same
    assert key(workload={"trace": "mine.nwt"}) == same, "a trace is its content"
    others = [key(seed=2), key(machine="other.toml"), key(kernels=[{}, {}]), key(workload={"trace": "bfs"})]
    assert len({same, *others}) == 5


@pytest.fixture
def store(tmp_path: Path) -> content_store.ContentStore:
    found = content_store.open_store(str(tmp_path / "kept"))
    assert found is not None
    return found


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A bucket of a server that speaks S3's protocol, which boto's own variables name."""
    server = pytest.importorskip("moto.server", reason="no server for S3: pip install 'moto[s3]' flask-cors")
    s3fs = pytest.importorskip("s3fs", reason="fsspec has no S3: pip install s3fs")
    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    try:
        host, port = running.get_host_and_port()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "made-up")
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        s3fs.S3FileSystem(skip_instance_cache=True).mkdir("nestwalk-results")
        s3fs.S3FileSystem.clear_instance_cache()
        yield "s3://nestwalk-results/kept"
    finally:
        running.stop()


@pytest.fixture(params=["directory", "file://", "memory://", "s3://"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where results are kept."""
    if request.param == "s3://":
        return str(request.getfixturevalue("bucket"))
    if request.param == "memory://":
        pytest.importorskip("fsspec")
        return f"memory://{tmp_path.name}"
    return str(tmp_path / "kept") if request.param == "directory" else f"file://{tmp_path / 'kept'}"


def test_results_are_found_wherever_they_are_kept(grid: Path, place: str) -> None:
    assert made(grid, place).tally.made == 4
    assert made(grid, place).tally.reused == 4
    kept_there = content_store.open_store(place)
    assert kept_there is not None
    key = kept_there.keys()[0]
    kept_there.remove(key)
    again = made(grid, place)
    assert (again.tally.made, again.tally.reused) == (1, 3)


def test_a_corrupt_result_is_made_again_and_that_is_said(
    grid: Path, tmp_path: Path, store: content_store.ContentStore, capsys: pytest.CaptureFixture[str]
) -> None:
    first = made(grid, tmp_path / "kept")
    files = sorted((tmp_path / "kept" / "entries").rglob("*.result"))
    whole = [file.read_bytes() for file in files]
    files[0].write_bytes(whole[0][:-20])
    files[1].write_bytes(whole[1][:-9] + b"x" * 9)
    files[2].write_bytes(b"")
    again = made(grid, tmp_path / "kept")
    assert (again.tally.made, again.tally.reused) == (3, 1)
    assert capsys.readouterr().err.count("is corrupt") == 3
    assert again.rows == first.rows
    assert all(store.get(key) is not None for key in sorted(store.keys()))
    files[3].write_bytes(b"{}")
    assert kept.collect(store, before=None, other_models=False, dry_run=True)["corrupt"] == 1
    assert kept.collect(store, before=None, other_models=False, dry_run=False)["removed"] == 1
    assert len(store.keys()) == 3


def test_writers_of_one_key_do_each_other_no_harm(tmp_path: Path) -> None:
    code = (
        "import sys; from nestwalk import content_store, orders; "
        "store = content_store.open_store(sys.argv[1]); "
        "order = orders.Order('ab' * 32, 'kind', 'm', {}, {}, {}, ()); "
        "[store.put(order, {'row': list(range(2000))}, seconds=1, memory_bytes=1) for _ in range(150)]"
    )
    place = str(tmp_path / "kept")
    writers = [subprocess.Popen([sys.executable, "-c", code, place]) for _ in range(3)]
    store = content_store.open_store(place)
    assert store is not None
    seen = 0
    while any(writer.poll() is None for writer in writers):
        entry = store.get("ab" * 32)
        seen += entry is not None
        assert entry is None or entry.result == {"row": list(range(2000))}
    assert [writer.returncode for writer in writers] == [0, 0, 0]
    assert seen
    assert [path.name for path in (tmp_path / "kept").rglob(".nestwalk*")] == [], "nothing temporary stays"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with room for one or two results."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    mounted = subprocess.run(["/bin/mount", "-t", "tmpfs", "-o", "size=28k", "tmpfs", folder], check=False)
    if mounted.returncode:
        pytest.skip("a file system cannot be mounted here")
    yield folder
    subprocess.run(["/bin/umount", folder], check=True)


def test_a_full_disk_loses_nothing_that_was_kept(grid: Path, small_disk: Path) -> None:
    with pytest.raises(NestwalkError, match=r"disk: results cannot be written: No space left on device; make room"):
        made(grid, small_disk)
    kept_there = content_store.open_store(str(small_disk))
    assert kept_there is not None
    before = kept_there.keys()
    assert all(kept_there.get(key) is not None for key in before), "what is there is whole"
    subprocess.run(["/bin/mount", "-o", "remount,size=4m", small_disk], check=True)
    again = made(grid, small_disk)
    assert (again.tally.made, again.tally.reused) == (4 - len(before), len(before))


def test_a_comparison_goes_on_without_a_place_for_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "grid.toml"
    file.write_text(small("384"), encoding="utf-8")
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "entries").write_text("in the way", encoding="utf-8")
    plan = sweeps.plan(file, means=Means(results=str(tmp_path / "kept")), must_keep=False)
    assert sweeps.execute(plan).tally.made == 2
    assert "going on, but nothing is kept" in capsys.readouterr().err


def test_a_place_that_takes_no_folders_is_said_with_a_remedy(grid: Path) -> None:
    with pytest.raises(NestwalkError, match=r"^/proc/x: results cannot be written: no folder.*; name another place$"):
        made(grid, "/proc/x")


def test_a_killed_worker_is_replaced_and_its_run_made_again(grid: Path, tmp_path: Path) -> None:
    """Each group's first worker is killed in the middle; what it had made before is not made twice."""
    marks = tmp_path / "marks"
    marks.mkdir()
    code = (
        "import os, signal, sys; from nestwalk import worker; tell = worker._tell; "
        f"folder = {str(marks)!r}; name = lambda: str(os.getppid()); "
        "first = lambda: not os.path.exists(folder + '/killed') and (open(folder + '/killed', 'w').close() or True); "
        "worker._tell = lambda *a: os.kill(os.getpid(), signal.SIGKILL) if first() else tell(*a); "
        "sys.exit(worker.main())"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool, "WORKER", ["-c", code])
        done = made(grid, tmp_path / "kept")
    assert (marks / "killed").exists()
    assert (done.tally.made, done.tally.failed) == (4, 0)
    assert made(grid, tmp_path / "kept").rows == done.rows


def test_results_can_be_listed_shown_exported_and_collected(grid: Path, command: Command, tmp_path: Path) -> None:
    place = str(tmp_path / "kept")
    made(grid, place)
    listed = json.loads(command("results", "list", "--results", place, "--json").stdout)["results"]
    assert [one["program"] for one in listed] == ["gups 32 MiB"] * 4
    key = listed[0]["key"]
    shown = json.loads(command("results", "show", key[:20], "--results", place, "--json").stdout)
    assert shown["result"]["row"]["walks_per_kiloaccess"] > 0
    process = command("results", "export", "all.parquet", "--results", place)
    assert process.returncode == 0, process.stderr
    frame = pl.read_parquet(tmp_path / "all.parquet")
    assert sorted(frame["key"].to_list()) == sorted(one["key"] for one in listed)
    assert json.loads(frame["configuration"][0])["machine"]["mmu"]["l2_tlb"]
    dry = json.loads(command("results", "gc", "--older-than", "0", "--dry-run", "--results", place, "--json").stdout)
    assert (dry["removed"], len(content_store.open_store(place).keys())) == (4, 4)  # type: ignore[union-attr]
    command("results", "gc", "--older-than", "0", "--results", place)
    assert content_store.open_store(place).keys() == []  # type: ignore[union-attr]
    assert "no results are kept there" in command("results", "list", "--results", place).stdout
    for wrong in (["show", "zz"], ["export", "x.parquet"]):
        process = command("results", *wrong, "--results", place)
        assert (process.returncode, process.stderr.count("\n")) == (2, 1), process.stderr


def test_results_of_one_program_are_found_by_its_name(grid: Path, command: Command, tmp_path: Path) -> None:
    place = ["--results", str(tmp_path / "kept")]
    made(grid, place[1])
    row = ("compare", "--quick", "--trace", "bfs", "--only", "vm-4k", "--no-report", *place)
    assert command(*row).returncode == 0
    listed = json.loads(command("results", "list", "--program", "bfs", "--json", *place).stdout)["results"]
    assert [one["program"] for one in listed] == ["trace bfs"]
    for verb, code in (("list", 0), ("export", 2)):
        target = ["x.parquet"] if verb == "export" else []
        done = command("results", verb, *target, "--program", "redis", *place)
        assert done.returncode == code
        assert "none of the 5 results has 'redis' in its program" in done.stdout + done.stderr
    assert not (tmp_path / "x.parquet").exists()


def test_an_export_is_parquet_and_nothing_else(grid: Path, command: Command, tmp_path: Path) -> None:
    place = ["--results", str(tmp_path / "kept")]
    made(grid, place[1])
    with (tmp_path / "piped").open("wb") as file:
        done = subprocess.run(
            [EXECUTABLE, "results", "export", "-", *place], stdout=file, stderr=subprocess.PIPE, text=True, check=True
        )
    assert done.stderr == "wrote 4 results\n"
    content = (tmp_path / "piped").read_bytes()
    assert (content[:4], content[-4:]) == (b"PAR1", b"PAR1")
    for target, said in (("x.csv", "give a name in .parquet"), ("-", "both want standard output")):
        refused = command("results", "export", target, "--json", *place)
        assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)
        assert said in refused.stderr
    assert not (tmp_path / "x.csv").exists()


def test_the_page_needs_no_other_file(grid: Path, tmp_path: Path) -> None:
    done = made(grid, tmp_path / "kept")
    page = done.page()
    widths = [drawing.width for drawing in drawn.drawings(page)]
    assert min(widths) <= 347, "a phone's"
    assert page.count("<svg") == 2, "over the entries, for a desktop and a phone"
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "tiny" in page


def test_a_failed_run_does_not_keep_the_others_from_being_made(grid: Path, command: Command, tmp_path: Path) -> None:
    text = small("1536").replace("vm-thp", "native-4k")
    # Less memory than the program has: a run that ends in "out of memory".
    grid.write_text(
        text + '[[axis]]\nkey = "scenario.kernels.0.memory"\nvalues = ["16 MiB", "256 MiB"]\n', encoding="utf-8"
    )
    process = command("sweep", str(grid), "--results", str(tmp_path / "kept"), "--json")
    found = json.loads(process.stdout)
    assert found["failed"] >= 1
    assert found["made"] >= 1
    assert process.returncode == 2
    assert "runs failed; the first one:" in process.stderr
    errors = [row["error"] for row in found["rows"] if "error" in row]
    assert all("grid.toml:" in error or "16 MiB" in error for error in errors), errors


def test_asaps_sweep_has_each_rule_of_its_simulator_alone_and_all_of_them() -> None:
    plan = sweeps.plan(REPOSITORY / "sweeps" / "asap-rules.toml", means=Means(results="none"), must_keep=False)
    assert len(plan.wanted) == 4 * 4 * 8
    paper, *alone, together = [one.configuration["machine"]["mmu"] for one in plan.wanted[:8]]
    assert paper == hardware("broadwell-asap")
    assert together == hardware("asap-simulator")
    rules = leaves(together) - leaves(paper)
    found = [leaves(one) & rules for one in alone]
    assert all(found)
    assert sorted(itertools.chain.from_iterable(found)) == sorted(rules), "each rule is in one run"


def hardware(machine: str) -> dict[str, Any]:
    """What a run on a machine has of it."""
    workload = {"generator": {"kind": "gups", "footprint": "64 MiB"}}
    table = {"schema": 1, "name": "run", "machine": machine, "workload": workload, "kernels": [{}]}
    found: dict[str, Any] = orders.of(pool.Job("run", scenario.write(table), Path("run.toml"))).configuration[
        "machine"
    ]["mmu"]
    return found


def leaves(table: Any, path: str = "") -> set[tuple[str, str]]:
    """All values of nested tables, with where they are."""
    if not isinstance(table, dict):
        return {(path, json.dumps(table))}
    return set().union(*(leaves(value, f"{path}.{key}") for key, value in table.items()))
