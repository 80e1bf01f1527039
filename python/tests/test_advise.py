# SPDX-License-Identifier: MIT OR Apache-2.0
"""``nestwalk advise``: recorded inspections of known states give the known list, and what is not known says why."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import Command

from nestwalk import _native, advice, comparisons, data, intervals, techniques, traces, verdict
from nestwalk.advice import measured, process, standard, steps, subject, tables_of, text, what_if
from nestwalk.advice.process import Advice
from nestwalk.advice.subject import Subject
from nestwalk.cloud import proc
from nestwalk.errors import NestwalkError

PRESENT = proc.PRESENT
PAGES = 512
ORDER = ["thp-host", "thp-guest", "mthp", "ptemagnet", "hugegpt", "asap", "ds", "clustered"]
NO_FRAMES = "unavailable, because the kernel shows frame numbers to processes with CAP_SYS_ADMIN only"


def inspection(**changes: Any) -> dict[str, Any]:
    """A guest with 4 KiB pages of which nothing is set, as ``nestwalk inspect --json`` has it; with changes by key."""
    facts: dict[str, Any] = {
        "schema": 1,
        "hypervisor": "KVMKVMKVM",
        "process": {"pid": 4242, "name": "redis-server", "thp_allowed": True},
        "memory": {"present_bytes": 1 << 30},
        "page_tables": {"bytes": 3 << 20},
        "host_pt_fragmentation": {"value": 5.2, "distribution": [0] * 8, "groups": 1000},
        "huge_pages": {"pmd_mapped_bytes": 0, "pmd_mapped_share": 0.0},
        "settings": {
            "kernel": "6.12.1",
            "thp_enabled": "madvise",
            "mthp": [{"kib": 32, "enabled": "never"}, {"kib": 2048, "enabled": "inherit"}],
            "buddyinfo": {"order9_bytes": 64 << 20},
        },
        "surroundings": {"container": None, "ptemagnet": None},
    }
    for path, value in changes.items():
        *parents, key = path.split("__")
        table = facts
        for parent in parents:
            table = table[parent]
        table[key] = value
    return facts


def advised(tmp_path: Path, probe: dict[str, Any] | None = None, **changes: Any) -> Advice:
    """The advice for such a recorded inspection."""
    path = tmp_path / "seen.json"
    path.write_text(json.dumps(inspection(**changes)), encoding="utf-8")
    return Advice(subject.of_file(path, probe))


def states(made: Advice) -> dict[str, str]:
    return {entry["technique"]: entry["state"] for entry in made.entries}


def reason(made: Advice, name: str) -> str:
    return str(next(entry["reason"] for entry in made.entries if entry["technique"] == name))


def test_the_order_is_that_in_which_a_person_should_act(tmp_path: Path) -> None:
    made = advised(tmp_path)
    assert [entry["technique"] for entry in made.entries] == ORDER
    assert [entry["step"] for entry in made.entries] == sorted(entry["step"] for entry in made.entries)
    assert set(techniques.order()) == set(techniques.known())
    assert {entry["state"] for entry in made.entries} <= set(advice.STATES)


def test_a_plain_guest_is_told_all_that_can_be_tried(tmp_path: Path) -> None:
    made = advised(tmp_path)
    found = states(made)
    assert (found["thp-host"], found["thp-guest"], found["mthp"]) == ("ask", "try", "try")
    assert (found["ptemagnet"], found["hugegpt"], found["asap"]) == ("leave", "try", "cannot")
    assert "madvise" in reason(made, "thp-guest")
    assert "5.20 lines" in reason(made, "mthp")
    assert "without a patch" in reason(made, "ptemagnet")
    assert made.sentence.startswith("redis-server runs on a VM. To do, in this order: THP in the guest, mTHP 32 KiB")


def test_thp_that_is_on_is_said_to_be_set_and_not_advised(tmp_path: Path) -> None:
    made = advised(tmp_path, settings__thp_enabled="always", huge_pages__pmd_mapped_share=0.93)
    found = states(made)
    assert found["thp-guest"] == "set"
    assert reason(made, "thp-guest") == "THP is set to always, and 93 % of its memory is mapped by 2 MiB pages."
    assert [found[name] for name in ("mthp", "ptemagnet", "hugegpt")] == ["leave"] * 3


@pytest.mark.parametrize("allowed", [False, True])
def test_thp_that_is_on_and_does_nothing_says_what_stands_in_its_way(tmp_path: Path, allowed: bool) -> None:
    made = advised(tmp_path, settings__thp_enabled="always", process__thp_allowed=allowed)
    entry = next(entry for entry in made.entries if entry["technique"] == "thp-guest")
    assert entry["state"] == "try"
    assert ("disable-thp no" in entry["how"]) is not allowed
    assert ("switched it off" in entry["reason"]) is not allowed


def test_a_guest_with_large_folios_has_nothing_to_gather(tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "settings__mthp": [{"kib": 32, "enabled": "always"}],
        "host_pt_fragmentation": {"value": 1.05, "groups": 9},
    }
    made = advised(tmp_path, **changes)
    assert (states(made)["mthp"], states(made)["ptemagnet"]) == ("set", "leave")
    assert "1.05 lines" in reason(made, "ptemagnet")
    # The same setting by inheritance.
    changes |= {"settings__mthp": [{"kib": 32, "enabled": "inherit"}], "settings__thp_enabled": "always"}
    assert states(advised(tmp_path, **changes))["mthp"] == "set"


def test_a_kernel_without_folio_sizes_leaves_ptemagnet(tmp_path: Path) -> None:
    none = {
        "unavailable": "unavailable, because this kernel has no folios of several sizes (mTHP; Linux 6.8 and later)"
    }
    made = advised(tmp_path, settings__mthp=none, settings__kernel="6.1.0")
    assert (states(made)["mthp"], states(made)["ptemagnet"]) == ("cannot", "try")
    assert "Linux 6.8 and later" in reason(made, "mthp")
    on = advised(tmp_path, settings__mthp=none, surroundings={"container": None, "ptemagnet": 2})
    assert states(on)["ptemagnet"] == "set"


def test_bare_metal_has_no_host_to_set(tmp_path: Path) -> None:
    made = advised(tmp_path, hypervisor=None)
    found = states(made)
    assert found.pop("thp-guest") == "try"
    assert set(found.values()) == {"cannot"}
    assert "no hypervisor" in reason(made, "ptemagnet")
    # What a comparison of VMs says is not of this machine.
    assert not any(entry["standard"] for entry in made.entries)
    titles = {entry["technique"]: entry["title"] for entry in made.entries}
    assert titles["thp-guest"] == "THP"


def test_a_vm_on_its_host_is_asked_for_what_only_its_guest_shows(tmp_path: Path) -> None:
    made = advised(tmp_path, hypervisor=None, process__name="qemu-system-x86_64")
    found = states(made)
    assert found.pop("thp-host") == "try"
    assert set(found.values()) == {"ask"}
    assert "the VM's memory" in reason(made, "thp-host")


def test_a_container_says_that_the_node_is_set_by_others(tmp_path: Path) -> None:
    made = advised(tmp_path, surroundings={"container": "Kubernetes", "ptemagnet": None})
    assert any("container (Kubernetes)" in note for note in made.notes)
    assert advised(tmp_path).notes == []


def test_without_privilege_each_value_says_why_it_is_not_known(tmp_path: Path) -> None:
    none = {"unavailable": NO_FRAMES}
    made = advised(
        tmp_path,
        host_pt_fragmentation=none,
        huge_pages__pmd_mapped_share=none,
        hypervisor={"unavailable": "unavailable, because CPUID cannot be read"},
        settings__thp_enabled={"unavailable": "unavailable, because /sys cannot be read"},
    )
    assert NO_FRAMES in reason(made, "mthp")
    assert "/sys cannot be read" in reason(made, "thp-guest")
    assert any("CPUID cannot be read" in note for note in made.notes)
    for entry in made.entries:
        assert entry["gain"].startswith("unavailable, because")
        assert entry["gain_ci95"] is None
        assert "None" not in entry["reason"]


@pytest.mark.parametrize(("pages", "state"), [("2m", "set"), ("4k", "try"), ("mixed", "try"), ("unknown", "ask")])
def test_what_the_probe_measured_decides_on_the_host(tmp_path: Path, pages: str, state: str) -> None:
    made = advised(tmp_path, probe={"schema": 1, "host_pages": pages})
    assert states(made)["thp-host"] == state
    assert "nestwalk probe" in reason(made, "thp-host")
    assert (states(made)["mthp"] == "leave") == (pages == "2m")


def test_gains_of_a_process_are_not_made_up_but_those_of_a_named_comparison(tmp_path: Path) -> None:
    entry = advised(tmp_path).entries[1]
    assert entry["gain"] == process.NOT_RUN
    (like,) = entry["standard"]
    assert (like["trace"], like["configuration"]) == ("redis", "vm-thp")
    assert "a key-value store, as redis-server is" in like["sentence"]
    assert like["machine"] == standard.nearest_machine()
    # Of another kind of program none, or all of them by name.
    assert advised(tmp_path, process__name="cc1").entries[1]["standard"] == []
    both = advised(tmp_path, process__name="quux").entries[1]["standard"]
    assert [one["trace"] for one in both] == ["redis", "bfs"]
    assert "may be quite another program" in both[0]["sentence"]


def test_the_figures_of_the_standard_comparison_are_those_of_this_version() -> None:
    machine, trace, row = "zen4", "bfs", "vm-host-2m"
    done = comparisons.comparison(trace, machine=machine, configurations=["vm-4k", row])
    (group,) = done.verdict.groups
    (entry,) = group.advice
    kept = standard._read("standard.json")["machines"][machine][trace]["rows"][row]
    again = "run packaging/standard.py: results have changed"
    assert kept["gain"] == pytest.approx(entry["gain"], abs=entry["gain_ci95"]), again


def test_kinds_name_workloads_and_traces_that_exist() -> None:
    catalog = json.loads(_native.catalog(str(data.TRACES)))
    workloads = {entry["name"] for entry in catalog["workloads"]}
    for entry in standard._read("kinds.toml")["kind"]:
        assert entry["workload"] in workloads
        assert entry.get("trace", "redis") in data.traces()
    # There to explain ASAP's figures, and not to be advised about: packaging/standard.py leaves it out.
    machines = {entry["name"] for entry in catalog["machines"]} - {"asap-simulator"}
    assert set(standard._read("standard.json")["machines"]) == machines
    assert set(steps.STEPS) == set(standard.CONFIGURATIONS) == set(ORDER)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("", "is no JSON"),
        ("[" * 100_000, "is no JSON"),
        ("[]", '"schema": 1'),
        ('{"schema": 2}', '"schema": 1'),
        ('{"schema": 1}', "is no inspection of one process"),
        (json.dumps(inspection(settings__thp_enabled="perhaps")), "none of always, madvise, never"),
        (json.dumps(inspection(huge_pages__pmd_mapped_share=7)), "a number from 0 to 1"),
        (json.dumps(inspection(host_pt_fragmentation={"value": "5"})), "a number from 0 to 8"),
        (json.dumps(inspection(settings__mthp=[1])), "a list of sizes"),
        (json.dumps(inspection(surroundings=1)), "is no object"),
    ],
    ids=["empty", "deep", "list", "schema", "other", "thp", "share", "fragmentation", "mthp", "surroundings"],
)
def test_a_file_that_is_something_else_is_refused(tmp_path: Path, written: str, said: str) -> None:
    path = tmp_path / "seen.json"
    path.write_text(written, encoding="utf-8")
    with pytest.raises(NestwalkError, match=r"seen\.json") as caught:
        subject.of_file(path)
    assert said in str(caught.value)


LEAVES = (
    *("process__name", "process__thp_allowed", "page_tables", "host_pt_fragmentation", "huge_pages", "hypervisor"),
    *("settings__kernel", "settings__thp_enabled", "settings__mthp", "settings__buddyinfo", "surroundings"),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(("value", "kib", "enabled")), inner),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(LEAVES), JSON, min_size=1, max_size=3))
@settings(max_examples=150, deadline=None)
def test_any_values_are_advised_on_or_refused(changes: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "seen.json"
        path.write_text(json.dumps(inspection(**changes)), encoding="utf-8")
        try:
            made = Advice(subject.of_file(path))
        except NestwalkError as error:
            assert "seen.json" in str(error)  # noqa: PT017 (either is right)
            return
    assert [entry["technique"] for entry in made.entries] == ORDER
    assert text.of_process(made)


# What a comparison says.


def test_a_comparison_ends_with_the_same_list() -> None:
    done = comparisons.comparison(quick=True, configurations=["vm-4k", "vm-thp", "vm-host-2m", "vm-shadow", "vm-asap"])
    found = done.verdict.to_json()["advice"]
    assert [entry["configuration"] for entry in found] == ["vm-host-2m", "vm-thp", "vm-shadow", "vm-asap"]
    assert {entry["configuration"]: entry["state"] for entry in found} == {
        "vm-host-2m": "do",
        "vm-thp": "do",
        "vm-shadow": "weigh",
        "vm-asap": "cannot",
    }
    for entry in found:
        assert entry["reason"].startswith("Measured: ")
        assert {"memory", "latency", "documented"} <= set(entry["costs"])
    plain, thp = done.results[0], next(run for run in done.results if run.name == "vm-thp")
    costs = measured.costs(thp, plain)
    # Counted by hand from the result: frames in use, and the guest's faults.
    kernel = thp.statistics["kernels"][-1]
    assert costs["guest_memory_bytes"] == 4096 * (kernel["frames"] - kernel["free_frames"])
    assert costs["faults"] == thp.whole_run["kernels"][-1]["faults"] < costs["plain_faults"]
    assert costs["fault_cycles"] > costs["plain_fault_cycles"]


def test_rows_that_lose_over_the_whole_run_are_to_be_weighed() -> None:
    def row(gain: float, whole: float | None) -> str:
        estimate = intervals.Estimate(gain, 0.01)
        over = None if whole is None else intervals.Estimate(whole, 0.01)
        return verdict.Candidate("a", "a", "advice", "settings", (), "", estimate, over).state

    assert row(0.1, 0.1) == row(0.1, None) == "do"
    assert row(0.1, -0.1) == row(-0.1, 0.1) == "weigh"
    assert row(0.0, 0.1) == "do"
    assert row(0.0, 0.0) == row(-0.1, None) == "leave"


def test_a_run_decides_but_not_against_what_does_the_same() -> None:
    def state(found: str, simulated: str, gain: float = 0.05, other: float | None = None) -> str:
        against = None if other is None else {"gain": other}
        return process._state(steps.Finding(found, ""), {"state": simulated, "gain": gain, "gain_ci95": 0.01}, against)

    assert [state("try", said) for said in ("do", "leave", "weigh")] == ["do", "leave", "weigh"]
    assert [state(kept, "do") for kept in ("set", "cannot")] == ["set", "cannot"]
    # What the host does has to be found out first, unless it would change nothing.
    assert (state("ask", "do"), state("ask", "leave")) == ("ask", "leave")
    assert (state("leave", "do", other=0.045), state("leave", "do", other=0.03)) == ("leave", "do")


# The command.


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process with 16 MiB of memory of which every page was touched."""
    code = "import mmap, sys\nm = mmap.mmap(-1, 16 << 20, flags=34)\nfor i in range(0, 16 << 20, 4096): m[i] = 1\n"
    running = subprocess.Popen(
        [sys.executable, "-c", f"{code}print('ready', flush=True)\nsys.stdin.read()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert running.stdout is not None
    assert running.stdout.readline() == b"ready\n"
    yield running
    running.kill()
    running.communicate()


def test_the_command_advises_a_process_and_its_recording_alike(
    child: subprocess.Popen[bytes], command: Command, tmp_path: Path
) -> None:
    live = command("advise", str(child.pid), "--json", "--record", "seen.json")
    assert live.returncode == 0, live.stderr
    found = json.loads(live.stdout)
    assert found["schema"] == 1
    assert [entry["technique"] for entry in found["advice"]] == ORDER
    assert found["walk_share"] is None
    assert found["unavailable"].startswith("The share of page walks is unavailable, because")
    again = command("advise", "seen.json", "--json")
    assert json.loads(again.stdout)["advice"] == found["advice"]
    assert "What to do, in this order" in command("advise", "seen.json").stdout
    (tmp_path / "seen.json").rename(tmp_path / "seen")
    assert json.loads(command("advise", "seen", "--json").stdout)["advice"] == found["advice"], "by its content"
    inspected = command("inspect", "./seen")
    assert (inspected.returncode, inspected.stderr.count("\n")) == (2, 1)
    assert "is JSON, and not a recording" in inspected.stderr


def test_a_folder_of_advice_on_a_trace(command: Command, tmp_path: Path) -> None:
    done = command("advise", "bfs", "--quick", "--json", "--out", "folder")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert json.loads((tmp_path / "folder" / "results.json").read_text(encoding="utf-8")) == found
    rows = pl.read_parquet(tmp_path / "folder" / "results.parquet")
    assert rows["configuration"].to_list() == [entry["configuration"] for entry in found["advice"]]
    page = (tmp_path / "folder" / "report.html").read_text(encoding="utf-8")
    assert all(entry["title"] in page for entry in found["advice"])
    assert "A live process" not in page


def test_what_if_simulates_the_process_on_its_own_tables(child: subprocess.Popen[bytes], command: Command) -> None:
    done = command("advise", str(child.pid), "--what-if", "--as", "swaptions", "--quick", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert 0 <= found["walk_share"] < 1
    rows = [row["configuration"] for row in found["what_if"]["rows"]]
    assert rows[0] == "vm-now"
    assert {"vm-4k", "vm-thp", "vm-mthp", "vm-asap"} <= set(rows)
    gains = [entry["gain"] for entry in found["advice"]]
    assert all(isinstance(gain, float) for gain in gains)
    assert any("swaptions" in note for note in found["notes"])


def test_what_if_simulates_a_recording_as_its_process(
    child: subprocess.Popen[bytes], command: Command, tmp_path: Path
) -> None:
    assert command("inspect", str(child.pid), "--record", "mine.rec").returncode == 0
    lives, kept = tables_of.of_process(child.pid), tables_of.of_recording(tmp_path / "mine.rec")
    assert (kept.frames_known, kept.notes) == (lives.frames_known, lives.notes)
    # The process waits: none of its memory moves, but khugepaged may collapse some.
    assert abs(kept.pages - lives.pages) < PAGES
    child.kill()
    done = command("advise", "./mine.rec", "--what-if", "--as", "swaptions", "--quick", "--json", "--out", "page")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["what_if"]["rows"][0]["configuration"] == "vm-now"
    assert any("names no processor" in note for note in found["notes"])
    assert json.loads((tmp_path / "page" / "results.json").read_text(encoding="utf-8")) == found
    rows = pl.read_parquet(tmp_path / "page" / "results.parquet")
    assert rows["technique"].to_list() == ORDER
    assert rows["gain"].to_list() == [entry["gain"] for entry in found["advice"]]


def test_a_page_of_advice_for_a_process(child: subprocess.Popen[bytes], command: Command, tmp_path: Path) -> None:
    done = command("advise", str(child.pid), "--out", "page")
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "page" / "report.html").read_text(encoding="utf-8")
    value = json.loads((tmp_path / "page" / "results.json").read_text(encoding="utf-8"))
    for entry in value["advice"]:
        assert entry["title"] in page
    assert pl.read_parquet(tmp_path / "page" / "results.parquet")["gain"].null_count() == len(value["advice"])
    again = command("advise", str(child.pid), "--out", "/proc/version/x")
    assert (again.returncode, len(again.stderr.strip().splitlines())) == (2, 1)


def test_what_if_needs_pages_and_json_has_none(command: Command, tmp_path: Path) -> None:
    (tmp_path / "seen.json").write_text(json.dumps({"schema": 1, "process": {}, "settings": {}}), encoding="utf-8")
    done = command("advise", "seen.json", "--what-if", "--as", "swaptions")
    assert done.returncode == 2
    assert "--record FILE" in done.stderr


def test_a_trace_of_another_program_is_named() -> None:
    def notes(name: str) -> list[str]:
        seen = Subject(inspection(process__name=name), {})
        return what_if._program(seen, layout({0: 7}), what_if.Request("redis", None, None, 1, quick=True))[1]

    assert len(notes("redis-server")) == len(notes("redis-s")) == 1
    assert "is of redis-server, and the process is postgres" in notes("postgres")[1]


def test_a_trace_without_an_access_is_refused(command: Command, tmp_path: Path) -> None:
    (tmp_path / "none").write_bytes(b"")
    traces.trace_convert(tmp_path / "none", tmp_path / "none.nwt", from_="addresses")
    recording = Path(__file__).parent / "recorded" / "inspect" / "frag-0.rec"
    for arguments in (["none.nwt"], [recording, "--what-if", "--trace", "none.nwt"]):
        done = command("advise", *arguments)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert "none.nwt: has no access to data, so there is nothing to simulate; give a trace" in done.stderr


def test_what_was_imported_of_a_small_process_is_not_0_mib() -> None:
    assert "Imported: 12 KiB of the process's" in what_if._sizes(layout(dict.fromkeys(range(3), 7)), 1)[0]


def test_2_mib_pages_are_taken_as_the_kernel_tells_them() -> None:
    pmd = (4096, 4096, True, array("Q", [PRESENT | 1024, 0, PRESENT | 4096]))
    small = (0, 8192, False, array("Q", [PRESENT | (2048 + page) for page in range(PAGES)]))
    made = tables_of.of_entries([pmd, small], {}, "it")
    assert [(region.huge, region.pages[5]) for region in made.regions] == [(True, 1030), (True, 4102), (False, 2054)]
    assert made.pages == 3 * PAGES


def test_a_process_that_has_ended_is_one_line(child: subprocess.Popen[bytes], command: Command) -> None:
    child.kill()
    child.wait()
    time.sleep(0.01)
    done = command("advise", str(child.pid))
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.strip().splitlines()) == 1
    assert str(child.pid) in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["redis", "--what-if"], "--what-if goes with a process"),
        (["redis", "--trace", "redis"], "--trace goes with --what-if"),
        (["1", "--as", "xz"], "--as goes with --what-if"),
        (["1", "--record", "-"], "give --record a file"),
        (["none.json"], "none.json"),
        (["none.nwt"], "no such file"),
        (["99999999"], "no process has this number"),
    ],
    ids=["trace", "trace-option", "as", "record", "file", "trace-file", "number"],
)
def test_what_does_not_go_together_is_refused(command: Command, arguments: list[str], said: str) -> None:
    done = command("advise", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


# Page tables of a process.


def layout(frames: dict[int, int], huge: dict[int, int] | None = None) -> tables_of.Layout:
    """The layout of a mapping that begins at page 0: frames by page."""
    entries = array("Q", bytes(8 * (max(frames) + 1)))
    for page, frame in frames.items():
        entries[page] = PRESENT | frame
    return tables_of.of_entries([(0, 0, False, entries)], huge or {}, "it")


def leaves(dump: Path) -> dict[int, tuple[int, int]]:
    """What a dump maps, walked from its root as hardware would: frame and pages by page."""
    words = array("Q", dump.read_bytes())
    nodes = {words[at + 2]: (words[at], words[at + 1], at + 3) for at in range(2, len(words), 515)}
    found = {}
    todo = [(words[4], 0)]
    while todo:
        node, first = todo.pop()
        level, own_first, at = nodes[node]
        assert own_first == first
        for slot in range(512):
            entry = words[at + slot]
            page = (first >> 12) + (slot << 9 * (level - 1))
            if entry & 1 and (level == 1 or entry & 0x80):
                found[page] = (entry >> 12 & ((1 << 40) - 1), 1 << 9 * (level - 1))
            elif entry & 1:
                todo.append((entry & ~0xFFF, page << 12))
    return found


def test_frames_keep_their_groups_and_order_under_the_program(tmp_path: Path) -> None:
    frames = {page: 100_000 + (page * 7) % 512 for page in range(512)} | {512 + page: 9000 + page for page in range(8)}
    made = layout(frames)
    assert made.frames_known
    assert tables_of.write(made, [5, 90_000], tmp_path / "t") == 1
    found = leaves(tmp_path / "t")
    assert len(found) == 520
    lines: dict[int, set[int]] = {page >> 3: set() for page in frames}
    for page, frame in frames.items():
        under = page + 5 * 512 if page < 512 else page - 512 + 90_000 * 512
        assert found[under][0] & 511 == frame & 511
        lines[page >> 3].add(found[under][0] >> 3)
    for group, own in lines.items():
        assert len(own) == len({frame >> 3 for page, frame in frames.items() if page >> 3 == group})
    assert len({frame for frame, _ in found.values()}) == len(found)


def test_two_mib_pages_stay_so_and_more_regions_repeat_the_layout(tmp_path: Path) -> None:
    made = layout({page: 4096 + page for page in range(512)}, {0: 1})
    assert [region.huge for region in made.regions] == [True]
    assert tables_of.write(made, [1, 2, 3], tmp_path / "t") == 3
    found = leaves(tmp_path / "t")
    assert {page: pages for page, (_, pages) in found.items()} == {512: 512, 1024: 512, 1536: 512}
    assert len({frame for frame, _ in found.values()}) == 3
    # Contiguous, but smaps knows of no 2 MiB page.
    assert not layout({page: 4096 + page for page in range(512)}).regions[0].huge


def test_hidden_frames_are_said_to_be_so(tmp_path: Path) -> None:
    made = layout(dict.fromkeys(range(0, 1024, 2), 0))
    assert not made.frames_known
    assert "shown to root only" in made.notes[0]
    tables_of.write(made, [0, 1], tmp_path / "t")
    assert sorted(leaves(tmp_path / "t")) == list(range(0, 1024, 2))


def test_a_process_without_memory_is_refused() -> None:
    with pytest.raises(NestwalkError, match="no anonymous memory is present"):
        tables_of.of_entries([(0, 0, False, array("Q", [0] * 8))], {}, "process 1")


def test_advice_needs_only_what_a_subject_knows() -> None:
    empty = Subject({"schema": 1}, {})
    for entry in Advice(empty).entries:
        assert entry["state"] in advice.STATES
        assert entry["reason"]
