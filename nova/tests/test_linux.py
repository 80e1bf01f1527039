# SPDX-License-Identifier: Apache-2.0
"""What is read of a Linux host, and the command that publishes it."""

from __future__ import annotations

import configparser
import json
import os
import shlex
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import hosts
from nestwalk_nova import agent, conf, linux
from nestwalk_nova.allocation import runs_of
from nestwalk_nova.driver import read_layout
from nestwalk_nova.encoding import LayoutError, decode

TWO_NODES = [(1, "..#....-..#2"), (16, "#..--....f#.")]


def sizes(free: linux.Free) -> list[list[int]]:
    return [[size for size, count in runs for _ in range(count)] for _, runs in free.nodes]


def test_adjacent_free_pages_are_one_segment(tmp_path: Path) -> None:
    free = linux.hugetlb(
        hosts.gigantic(tmp_path, [(1, "..#....-..#2"), (16, "#..--....##.")]), "1G"
    )
    assert (free.source, free.unit_mib, free.notes) == ("hugetlb", 1024, ())
    assert sizes(free) == [[2, 2, 4], [1, 2, 4]]


def test_a_page_that_is_used_but_not_mapped_leaves_the_counts(tmp_path: Path) -> None:
    free = linux.hugetlb(hosts.gigantic(tmp_path, TWO_NODES), "1G")
    assert free.source == "hugetlb-counts"
    assert sizes(free) == [[1] * 8, [1] * 7]
    assert free.notes == (
        "node 1 has 7 free huge pages, but 8 look free in kpageflags; each free page counts as a segment of its own",
    )


def test_without_root_the_counts_are_left(tmp_path: Path) -> None:
    root = hosts.gigantic(tmp_path, [(1, "....")])
    (root / "proc/kpageflags").unlink()
    free = linux.hugetlb(root, "1G")
    assert (free.source, sizes(free)) == ("hugetlb-counts", [[1, 1, 1, 1]])
    assert "kpageflags: No such file" in free.notes[0]


def test_reserved_and_promised_pages_are_taken_from_the_largest_segment(tmp_path: Path) -> None:
    root = hosts.gigantic(tmp_path, [(1, "......-..#"), (16, "...-.")], promised=2)
    assert sizes(linux.hugetlb(root, "1G", {0: 1, 1: 3, 7: 1})) == [[2, 3], [1]]
    assert sizes(linux.hugetlb(root, "1G", {0: 100, 1: 100})) == [[], []]


def test_recorded_pool_of_2_mib_pages(tmp_path: Path) -> None:
    """8 pages of which two are mapped and one is reserved: five are free, none next to another one."""
    free = linux.hugetlb(hosts.recorded("hugetlb-2m", tmp_path), "2M")
    assert (free.source, free.unit_mib, free.notes) == ("hugetlb", 2, ())
    assert sizes(free) == [[1] * 5]


def test_recorded_buddyinfo_without_root(tmp_path: Path) -> None:
    root = hosts.recorded("hugetlb-2m", tmp_path)
    (root / "proc/kpageflags").unlink()
    free = linux.buddy(root)
    # 752 blocks of zone DMA32 and 206 of Normal; the three of DMA are not for VMs.
    assert (free.source, free.unit_mib, sizes(free)) == ("buddy-counts", 4, [[1] * 958])


def test_adjacent_buddy_blocks_are_one_segment(tmp_path: Path) -> None:
    root = hosts.gigantic(tmp_path, [(1, "----")])
    (root / "proc/buddyinfo").write_text(
        "Node 0, zone   Normal      0      1      0      0      0      0      0      0      0      0      5\n"
    )
    first = hosts.PAGES_1G
    whole = {
        first + pfn: hosts.BUDDY
        for block in (0, 1, 2, 7, 8)
        for pfn in range(block * 1024, block * 1024 + 1024)
    }
    # The beginning of this one is free, its end is not.
    partly = {first + 4 * 1024 + pfn: hosts.BUDDY for pfn in range(1023)}
    hosts.write_entries(root / "proc/kpageflags", whole | partly)
    free = linux.buddy(root)
    assert (free.source, sizes(free)) == ("buddy", [[2, 3]])


@pytest.mark.parametrize(
    ("path", "text", "message"),
    [
        ("proc/zoneinfo", "", "it names no zone with memory"),
        ("proc/buddyinfo", "Node 0", "is not a line of buddyinfo"),
        ("proc/buddyinfo", "", "it names no zone"),
        ("sys/kernel/mm/hugepages/hugepages-1048576kB/resv_hugepages", "many", "is not a number"),
        (
            "sys/devices/system/node/node0/hugepages/hugepages-1048576kB/free_hugepages",
            "\N{SNOWMAN}",
            "not text",
        ),
        (
            "sys/devices/system/node/node0/hugepages/hugepages-1048576kB/nr_hugepages",
            "0",
            "is empty",
        ),
    ],
)
def test_bad_files_are_named(tmp_path: Path, path: str, text: str, message: str) -> None:
    root = hosts.gigantic(tmp_path, [(1, "..#")])
    (root / path).write_text(text, "utf-8")
    with pytest.raises(linux.HostError, match=message) as error:
        (linux.buddy if "buddyinfo" in path else lambda root: linux.hugetlb(root, "1G"))(root)
    assert str(root / Path(path).parts[0]) in str(error.value)


def options(root: Path, path: Path, tmp_path: Path, *more: str) -> list[str]:
    conf = tmp_path / "nova.conf"
    lines = [
        "[DEFAULT]",
        "secret = x",
        "[nestwalk]",
        f"segments_file = {path}",
        "mode = require",
        *more,
    ]
    conf.write_text("\n".join(lines))
    return ["--config-file", str(conf), "--root", str(root)]


def test_agent_writes_what_show_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root, path = hosts.gigantic(tmp_path / "host", [(1, "..#....-..#")]), tmp_path / "segments"
    before_s = int(time.time())
    assert agent.main([*options(root, path, tmp_path), "agent", "--once"]) == 0
    layout = decode(path.read_text("ascii").removesuffix("\n"))
    assert before_s <= layout.taken_s <= time.time()
    assert layout.nodes == ((0, runs_of([2, 4, 2])),)
    assert [entry.name for entry in tmp_path.iterdir() if "segments" in entry.name] == ["segments"]
    capsys.readouterr()
    assert agent.main([*options(root, path, tmp_path), "show", "--json", "--vm", "5000"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["schema"] == 1
    assert shown["nodes"] == [{"node": 0, "free_mib": 8192, "segments": 3, "largest_mib": 4096}]
    assert shown["vm"] == {"mib": 5000, "segments": {"opt1": 3, "opt2": 2}}
    assert agent.main(["decode", shown["text"], "--vm", "9000"]) == 0
    assert "a VM of 9000 MiB: more than is free (opt1)" in capsys.readouterr().out


def test_agent_goes_on_after_trouble_and_leaves_no_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root, path = hosts.gigantic(tmp_path / "host", [(1, "..#.")]), tmp_path / "segments"
    configuration = agent._configuration(
        [*options(root, path, tmp_path, "agent_interval = 1"), "agent"]
    )
    stop = threading.Event()
    worker = threading.Thread(target=agent.run, args=(configuration, stop), kwargs={"once": False})
    worker.start()
    free = root / "sys/devices/system/node/node0/hugepages/hugepages-1048576kB/free_hugepages"

    def wait_for(there: bool) -> None:
        for _ in range(300):
            if path.exists() == there:
                return
            time.sleep(0.02)
        pytest.fail("the agent did not do it within 6 s")

    wait_for(there=True)
    free.rename(free.with_name("away"))
    wait_for(there=False)
    free.with_name("away").rename(free)
    wait_for(there=True)
    stop.set()
    worker.join()
    assert not path.exists()
    assert [record.message.count("free_hugepages: No such file") for record in caplog.records] == [
        0,
        1,
        0,
    ]


def test_the_agent_ends_when_systemd_says_so(tmp_path: Path) -> None:
    root, path = hosts.gigantic(tmp_path / "host", [(1, "..#.")]), tmp_path / "segments"
    command = [sys.executable, "-m", "nestwalk_nova.agent", *options(root, path, tmp_path), "agent"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        for _ in range(1000):
            if path.exists():
                break
            time.sleep(0.02)
        process.terminate()
        _, error = process.communicate(timeout=60)
    assert process.returncode == 0
    assert error == f"nestwalk-nova: writing free segments (hugetlb) to {path}\n"
    assert not path.exists()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ((), "no node has huge pages of 1024 MiB; reserve a pool"),
        (("reserved_pages = 0:x",), "reserved_pages"),
        (("page_size = 3G",), "page_size"),
    ],
)
def test_trouble_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...], message: str
) -> None:
    path = tmp_path / "segments"
    assert agent.main([*options(tmp_path / "none", path, tmp_path, *more), "agent"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not path.exists()


def test_a_folder_that_is_not_there_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = hosts.gigantic(tmp_path / "host", [(1, "..#.")])
    assert agent.main([*options(root, tmp_path / "no/segments", tmp_path), "agent", "--once"]) == 2
    assert (
        "No such file or directory; make its folder, or set segments_file"
        in capsys.readouterr().err
    )


def test_bad_text_to_decode_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert agent.main(["decode", "7;nonsense"]) == 2
    assert capsys.readouterr().err == "nestwalk-nova: version '7' is not known, only 1\n"


@pytest.mark.parametrize("size", ["0", "-1", "x", "1e3", "9" * 5000, ""])
def test_a_size_that_is_none(size: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        agent.main(["show", f"--vm={size}"])
    assert caught.value.code == 2
    assert "is not a size in MiB, such as 16384" in capsys.readouterr().err


def test_the_driver_does_not_wait_for_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "segments")
    with pytest.raises(LayoutError, match="not a regular file"):
        read_layout(tmp_path / "segments")
    (tmp_path / "folder").mkdir()
    with pytest.raises((OSError, LayoutError)):
        read_layout(tmp_path / "folder")


def test_the_unit_file() -> None:
    """Its command line is the agent's, its folder that of the file which the driver reads by default."""
    path = Path(__file__).parent.parent / "systemd/nestwalk-nova-agent.service"
    unit = configparser.RawConfigParser(strict=True)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string(path.read_text("utf-8"))
    service = unit["Service"]
    command, option, file, verb = shlex.split(service["ExecStart"])
    assert (Path(command).name, option, verb) == ("nestwalk-nova", "--config-file", "agent")
    assert Path(file) == Path("/etc/nova/nova.conf")
    default = next(option.default for option in conf.COMPUTE_OPTS if option.name == "segments_file")
    assert Path("/run", service["RuntimeDirectory"]) == Path(default).parent
    # The agent takes its file away when it ends in order; a folder that went with it would leave a container that has
    # it mounted with an empty one for good.
    assert service["RuntimeDirectoryPreserve"] == "yes"
    analyze = shutil.which("systemd-analyze")
    if analyze:
        done = subprocess.run(
            [analyze, "verify", path], capture_output=True, text=True, check=False
        )
        complaints = [line for line in done.stderr.splitlines() if "not executable" not in line]
        assert [line for line in complaints if path.name in line] == []
