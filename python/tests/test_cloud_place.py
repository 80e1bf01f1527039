# SPDX-License-Identifier: MIT OR Apache-2.0
"""``nestwalk place``: replays through the installed command."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from support import REPOSITORY, Command
from test_interrupt import busy, said, start, until
from test_reproduce import assert_nothing_is_cut

from nestwalk.cloud import fleets, place
from nestwalk.cloud.requests import SCHEMA, Requests
from nestwalk.errors import NestwalkError

SHARED = REPOSITORY.parent / "shared" / "data" / "vm-traces"
GIB = 1 << 18
SMALL = """\
schema = 1
[[group]]
name = "one"
hosts = 2
cores = 8
memory = "8 GiB"
"""


def trace(path: Path, rows: list[str]) -> Path:
    """A trace with columns that ``COLUMNS`` names."""
    path.write_text("id,start,end,ram,cpu\n" + "".join(f"{row}\n" for row in rows), encoding="utf-8")
    return path


COLUMNS = ("--columns", "vm=id,arrive=start,leave=end,memory=ram,cores=cpu")


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(SMALL, encoding="utf-8")
    return path


@pytest.fixture
def busy_trace(tmp_path: Path) -> Path:
    """Some hundred VMs of several sizes that come and go, some of which leave at a time between bounds."""
    rows = [
        f"vm{at},{at * 60},{at * 60 + 600 + (at * 7919) % 30000},{(1, 2, 3.5, 7, 14, 28)[at * at % 6]},{1 + at % 4}"
        for at in range(600)
    ]
    return trace(tmp_path / "busy.csv", rows)


def made(command: Command, *arguments: str | Path) -> dict[str, Any]:
    done = command("place", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    value: dict[str, Any] = json.loads(done.stdout)
    return value


def deterministic(value: dict[str, Any]) -> dict[str, Any]:
    """All that must not differ from run to run."""
    kept = {key: part for key, part in value.items() if key not in place.MEASURED}
    kept["versions"] = [
        {key: part for key, part in version.items() if key not in place.MEASURED} for version in value["versions"]
    ]
    return kept


def test_a_replay_worked_out_by_hand(command: Command, tmp_path: Path, small: Path) -> None:
    # 8 GiB a host; the RAM weigher puts each VM where most is free. a and b fill host 0 and half of host 1; c goes to
    # host 1; when b has left, d needs both of host 1's holes unless it fits.
    path = trace(tmp_path / "t.csv", ["a,0,,8,1", "b,1,10,4,1", "c,2,,3,1", "d,20,,5,1"])
    arguments: list[str | Path] = [path, *COLUMNS, "--hosts", small, "--allocator", "first-fit"]
    value = made(command, *arguments)
    assert (value["vms"], value["placed"], value["unplaced"], value["refused"]) == (4, 4, 0, 0)
    # b [0, 4), c [4, 7), then d takes [0, 4) and [7, 8).
    assert value["segments"] == {"1": 0.75, "2": 0.25, "3": 0.0, "more": 0.0}
    assert value["versions"][0]["histogram"] == {"1": 3, "2": 1}
    kept = command("place", *arguments, "--out", "kept")
    assert kept.returncode == 0, kept.stderr
    vms = pl.read_parquet(tmp_path / "kept" / "vms.parquet")
    assert vms["vm"].to_list() == ["a", "b", "c", "d"]
    assert vms["host_custom"].to_list() == [0, 1, 1, 1]
    assert vms["segments_custom"].to_list() == [1, 1, 1, 2]


def test_the_stable_keys(command: Command, busy_trace: Path) -> None:
    value = made(command, busy_trace, *COLUMNS)
    assert value["schema"] == 1
    assert [version["version"] for version in value["versions"]] == ["baseline", "opt1", "opt2", "dynamic"]
    for entry in (value, *value["versions"]):
        assert isinstance(entry["vms"], int)
        assert set(entry["segments"]) == {"1", "2", "3", "more"}
        assert sum(entry["segments"].values()) == pytest.approx(1)
        assert {"mean", "stdev", "p50", "p99"} <= set(entry["latency_us"])
        assert entry["latency_us"]["p50"] > 0
        assert entry["placed"] + entry["unplaced"] + entry["refused"] == entry["vms"] == 600
    for version in value["versions"]:
        assert [mode["n"] for mode in version["modes"]] == list(range(1, 9))
        shares = [mode["ds_vms"] for mode in version["modes"]]
        assert shares == sorted(shares)


def test_the_same_replay_twice_and_by_any_number_of_jobs_is_the_same(command: Command, busy_trace: Path) -> None:
    options: list[str | Path] = [busy_trace, *COLUMNS, "--seed", "7", "--nova", "host_subset_size=3"]
    first = deterministic(made(command, *options, "--jobs", "1"))
    assert deterministic(made(command, *options, "--jobs", "1")) == first
    assert deterministic(made(command, *options, "--jobs", "2")) == first
    assert deterministic(made(command, *options, "--jobs", "4")) == first
    other = deterministic(made(command, *options[:-4], "--seed", "8", "--nova", "host_subset_size=3"))
    assert other != first


def test_a_vm_larger_than_any_host_is_refused_and_not_lost(command: Command, tmp_path: Path, small: Path) -> None:
    path = trace(tmp_path / "t.csv", ["a,0,,9,1", "b,1,,1,200", "c,2,,8,1", "d,3,,8,1", "e,4,,8,1"])
    value = made(command, path, *COLUMNS, "--hosts", small)
    for version in value["versions"]:
        counts = {key: version[key] for key in ("vms", "placed", "unplaced", "refused")}
        assert counts == {"vms": 5, "placed": 2, "unplaced": 1, "refused": 2}


def test_malformed_rows_are_said_with_their_lines(command: Command, tmp_path: Path, small: Path) -> None:
    path = trace(tmp_path / "t.csv", ["a,0,,1,1", "b,soon,,1,1", "c,1,,1,1", "d,1,,none,1"])
    arguments: list[str | Path] = [path, *COLUMNS, "--hosts", small, "--versions", "opt2"]
    value = made(command, *arguments)
    assert value["vms"] == 2
    assert value["trace"]["malformed"] == {
        "count": 2,
        "examples": [
            {"where": "line 3", "what": "the time of arrival is missing or not a number"},
            {"where": "line 5", "what": "the memory is missing or not a number"},
        ],
    }
    text = command("place", *arguments).stdout
    assert "2 malformed rows were left out: line 3:" in text


def test_a_folder_with_frames_json_and_a_page(command: Command, tmp_path: Path, busy_trace: Path) -> None:
    done = command("place", busy_trace, *COLUMNS, "--out", "kept")
    assert done.returncode == 0, done.stderr
    kept = tmp_path / "kept"
    names = {path.name for path in kept.iterdir()}
    assert names == {
        "nestwalk-files.json",
        "results.parquet",
        "vms.parquet",
        "series.parquet",
        "results.json",
        "report.html",
        "fleet.toml",
    }
    value = json.loads((kept / "results.json").read_text(encoding="utf-8"))
    page = (kept / "report.html").read_text(encoding="utf-8")
    assert "<script" not in page
    assert "src=" not in page
    for section in ("versions", "shares", "curve", "sizes", "fleet", "map", "hosts"):
        assert f'<section id="{section}">' in page
    assert page.count("<svg") == 10  # each for the desktop and for a phone
    assert_nothing_is_cut(page)
    frame = pl.read_parquet(kept / "results.parquet")
    whole = frame.filter(pl.col("memory_pages").is_null())
    assert whole["version"].to_list() == ["baseline", "opt1", "opt2", "dynamic"]
    assert whole["segments_1"].to_list() == [version["segments"]["1"] for version in value["versions"]]
    vms = pl.read_parquet(kept / "vms.parquet")
    assert len(vms) == 600
    assert vms["segments_opt2"].drop_nulls().min() == 1
    # The fleet that was sized makes the same replay again.
    again = made(command, busy_trace, *COLUMNS, "--hosts", kept / "fleet.toml")
    assert [version["histogram"] for version in again["versions"]] == [
        version["histogram"] for version in value["versions"]
    ]


def test_options_of_the_hypervisor(command: Command, busy_trace: Path) -> None:
    base: list[str | Path] = [busy_trace, *COLUMNS, "--versions", "baseline", "--target-utilisation", "0.9"]
    plain, any_order = made(command, *base), made(command, *base, "--any-order")
    assert any_order["segments"]["1"] >= plain["segments"]["1"]
    opt2: list[str | Path] = [busy_trace, *COLUMNS, "--allocator", "compromis-opt2", "--target-utilisation", "0.95"]
    moved = made(command, *opt2, "--migration")["versions"][0]["migration"]
    assert moved["moves"] >= 0
    assert (moved["bytes_copied"] > 0) == (moved["moves"] > 0)


def test_vms_are_resized(command: Command, busy_trace: Path) -> None:
    base: list[str | Path] = [busy_trace, *COLUMNS, "--allocator", "compromis-opt2", "--target-utilisation", "0.95"]
    plain = made(command, *base)["versions"][0]
    assert plain["resize"] == {"vms": 0, "pages": 0, "not_done": 0, "undone": 0, "not_undone": 0}
    for how in ("grow", "shrink", "unplug", "balloon"):
        [version] = made(command, *base, "--resize", f"{how}:0.5:0.25")["versions"]
        done = version["resize"]
        assert 200 < done["vms"] + done["not_done"] < 400  # half of 600
        assert done["undone"] > 100
        stays = made(command, *base, "--resize", f"{how}:0.5:0.25", "--resize-stays")["versions"][0]["resize"]
        assert (stays["undone"], stays["not_undone"]) == (0, 0)
    page = command("place", *base, "--resize", "unplug:0.5:0.25").stdout
    assert "resized" in page


def test_a_quick_replay_says_so(command: Command, busy_trace: Path) -> None:
    value = made(command, busy_trace, *COLUMNS, "--quick", "--versions", "opt2")
    assert (value["quick"], value["vms"]) == (True, 60)
    assert any("one VM in 10" in note for note in value["trace"]["notes"])
    assert made(command, busy_trace, *COLUMNS, "--versions", "opt2")["quick"] is False


def test_a_boot_storm(command: Command, busy_trace: Path) -> None:
    value = made(command, busy_trace, *COLUMNS, "--boot-storm", "18000", "--versions", "opt2")
    assert 0 < value["vms"] < 600
    assert value["trace"]["span_s"] == [0, 0]
    assert made(command, busy_trace, *COLUMNS, "--boot-storm", "all", "--versions", "opt2")["vms"] == 600


@pytest.mark.parametrize(
    ("arguments", "said_"),
    [
        (["nowhere.csv"], "no such file"),
        (["azure-v1-days-21-31"], "did you mean 'azure-v1-days-21-30'?"),
        (["t.csv"], "--columns"),
        (["t.csv", *COLUMNS, "--hosts", "papr"], "did you mean 'paper'?"),
        (["t.csv", *COLUMNS, "--hosts", "bad.toml"], "did you mean 'cores'?"),
        (["t.csv", *COLUMNS, "--versions", "opt3"], "unknown version 'opt3'"),
        (["t.csv", *COLUMNS, "--versions", "opt1", "--allocator", "xen"], "--versions goes without"),
        (["t.csv", *COLUMNS, "--allocator", "zen"], "did you mean 'xen'?"),
        (["t.csv", *COLUMNS, "--scheduler", "improve-placement"], "did you mean 'improv-placement'?"),
        (["t.csv", *COLUMNS, "--segments", "9"], "--segments"),
        (["t.csv", *COLUMNS, "--target-utilisation", "2"], "--target-utilisation"),
        (["t.csv", *COLUMNS, "--nova", "host_subset_size=0"], "host_subset_size"),
        (["t.csv", *COLUMNS, "--nova", "hosts=1"], "unknown option in --nova"),
        (["t.csv", *COLUMNS, "--resize", "unplug:1"], "HOW:VMS:MEMORY"),
        (["t.csv", *COLUMNS, "--resize", "unplug:1:1"], "below 1"),
        (["t.csv", *COLUMNS, "--resize", "grow:nan:1"], "HOW:VMS:MEMORY"),
        (["t.csv", *COLUMNS, "--resize", "unplugged:1:0.5"], "did you mean 'unplug'?"),
        (["t.csv", *COLUMNS, "--resize-stays"], "goes with --resize"),
        (["t.csv", *COLUMNS, "--boot-storm", "never"], "--boot-storm"),
        (["t.csv", *COLUMNS, "--machine", "40"], "CORES:SIZE"),
        (["t.csv", *COLUMNS, "--jobs", "0"], "give a whole number from 1 to 4096"),
        (["t.csv", *COLUMNS, "--out", "no/such/dir"], "there is no directory"),
        (["t.csv", *COLUMNS, "--map-host", "99999"], "--map-host 99999: the fleet has "),
    ],
)
def test_bad_requests_are_one_line(command: Command, tmp_path: Path, arguments: list[str], said_: str) -> None:
    trace(tmp_path / "t.csv", ["a,0,,1,1", "b,1,,1,1"])
    (tmp_path / "bad.toml").write_text(SMALL.replace("cores", "core"), encoding="utf-8")
    done = command("place", *arguments)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert said_ in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"t.csv", "bad.toml"}


def test_an_interrupted_replay_leaves_nothing(tmp_path: Path) -> None:
    process = start("place", "azure-v1-days-21-30", "--jobs", "2", "--out", "kept", cwd=tmp_path)
    until(lambda: busy(process.pid), process)
    os.killpg(process.pid, signal.SIGINT)
    assert said(process).splitlines()[-1] == "nestwalk: interrupted; nothing was written"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("old", "new", "said_"),
    [
        ("schema = 1", "schema = 2", "schema"),
        ("schema = 1", "schema = 1\nseed = 1", "unknown key 'seed'"),
        ("hosts = 2", "", "either hosts"),
        ("hosts = 2", "hosts = 0", "hosts = 0: give a whole number"),
        ("hosts = 2", "hosts = 2\nshare = 0.5", "either hosts"),
        ("hosts = 2", "share = 1.5", "share = 1.5: give a number"),
        ("cores = 8", "cores = true", "cores = true: give a whole number"),
        ('"8 GiB"', "8", "with its unit"),
        ('"8 GiB"', '"8 MB"', "pages of 4 KiB"),
        ('"8 GiB"', '"8 Gib"', "is no size"),
        ('"8 GiB"', '"8 GiB"\nnuma = "none"', "preferred, strict"),
        ('"8 GiB"', '"8 GiB"\nholes = [{kind = "mmio", start = "1 GiB"}]', "size is missing"),
        ('"8 GiB"', '"8 GiB"\nholes = [{kind = "io", start = "1 GiB", size = "1 GiB"}]', "mmio, firmware, bad"),
        ('"8 GiB"', '"8 GiB"\n[scheduler]\nhost_subset_size = "x"', "give a whole number"),
        ('"8 GiB"', '"8 GiB"\n[scheduler]\nsubset_size = 1', "did you mean 'host_subset_size'?"),
        ("[[group]]", "[group]", "group"),
        ("schema", "schema =", "f.toml:1:10: "),
    ],
)
def test_fleets_that_are_none(tmp_path: Path, old: str, new: str, said_: str) -> None:
    path = tmp_path / "f.toml"
    path.write_text(SMALL.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(NestwalkError) as caught:
        fleets.load(str(path))
    assert said_ in str(caught.value)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def requests(*rows: tuple[int, int | None, int, int]) -> Requests:
    full = [(str(at), arrive, leave, leave, cores, gib * GIB) for at, (arrive, leave, cores, gib) in enumerate(rows)]
    return Requests(Path("t"), "test", pl.DataFrame(full, schema=SCHEMA, orient="row"))


def test_the_paper_s_fleet_is_sized_for_the_peak() -> None:
    need = fleets.demand(requests((0, 10, 4, 100), (5, 20, 4, 100), (10, None, 4, 50)))
    # At 10 the first has left when the third comes.
    assert (need.memory_pages, need.vcpus, need.vms, need.largest_pages) == (200 * GIB, 8, 2, 100 * GIB)
    paper = fleets.load("paper")
    assert [group["memory_pages"] // GIB for group in paper.groups] == [128, 192, 256, 192, 512]
    assert [group["vcpus"] for group in paper.groups] == [24, 24, 40, 48, 32]
    big = fleets.Demand(memory_pages=256_000 * GIB, vcpus=100, vms=1000, largest_pages=GIB)
    sized = fleets.sized(paper, big, 0.5, 16.0)
    # A mean host has 256 GiB: 1000 hosts hold the demand, 2000 at half.
    assert [group["hosts"] for group in sized.groups] == [400] * 5
    by_cpu = fleets.sized(paper, fleets.Demand(GIB, 33_600 * 2, 1, GIB), 1.0, 1.0)
    assert by_cpu.hosts == 2000
    assert [group["hosts"] for group in fleets.sized(paper, need, 0.75, 16.0).groups] == [1] * 5
    assert fleets.load("paper-holes").groups[0]["reserved_pages"] == 4 * GIB


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared traces are not here")
def test_huawei_s_servers_are_a_fleet(command: Command) -> None:
    value = made(
        command,
        SHARED / "huawei_topology" / "VM_data_C1.csv.gz",
        "--hosts",
        SHARED / "huawei_topology" / "PM_res.csv",
        "--versions",
        "baseline,opt2",
    )
    assert value["fleet"]["hosts"] == 1710
    assert value["vms"] == 4998
