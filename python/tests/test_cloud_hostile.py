# SPDX-License-Identifier: MIT OR Apache-2.0
"""Hostile traces of VMs: every loader counts bad rows with their lines and goes on, or refuses the file in one line."""

from __future__ import annotations

import gzip
import json
import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import polars as pl
import pytest
from support import Command
from test_cloud_loaders import (
    AZURE_ARRIVALS,
    AZURE_REDUCED,
    AZURE_V1,
    BITBRAINS,
    BITBRAINS_MONTHS,
    BITBRAINS_VMS,
    HUAWEI_EAST,
    HUAWEI_TOPOLOGY,
    NOVA,
    NOVA_LOG,
    SAMPLES,
    load,
    packing,
    rows,
    versioned,
)

from nestwalk.cloud import loaders
from nestwalk.cloud.loaders import generic
from nestwalk.errors import NestwalkError

GENERIC = "id,start,end,ram,cpu\na,1,5,1,1\nb,2,5,1,1\n"
COLUMNS = "vm=id,arrive=start,leave=end,memory=ram:MiB,cores=cpu"
NOT_A_NUMBER = ("", "x", "NaN", "inf", "-inf", "1e400", "0x10", '"', "\N{FULLWIDTH DIGIT ONE}")


def refused(tmp_path: Path, data: str | bytes, **options: object) -> str:
    """The one line with which a file is refused."""
    with pytest.raises(NestwalkError) as caught:
        load(tmp_path, data, **options)
    said = str(caught.value)
    assert said.startswith((f"{tmp_path / 'trace'}: ", "unknown column for vm in trace "))
    assert "\n" not in said
    return said


def packed(start: object, end: object, kind: object = 7, name: object = "z") -> Callable[[Path], Path]:
    """A packing trace with one VM more."""

    def make(path: Path) -> Path:
        packing(path)
        with sqlite3.connect(path) as connection:
            connection.execute("DELETE FROM vm WHERE vmId IN ('c', 'd')")
            connection.execute("INSERT INTO vm VALUES (?, 1, ?, 0, ?, ?)", (name, kind, start, end))
        connection.close()
        return path

    return make


# A good trace, a row of it with places for arrival, departure, cores and memory, and values for these that are sound.
ROWS = {
    "azure-v1": (AZURE_V1, "vmZ,s,d,{arrive},{leave},1,1,1,Unknown,{cores},{memory}", (10, 20)),
    "azure-reduced": (AZURE_REDUCED, "7,x,{arrive},{leave},{leave},{cores},{memory},0,dev", (10, 20)),
    "azure-arrivals": (AZURE_ARRIVALS, "7,x,{arrive},{cores},{memory}", (10, 20)),
    "huawei-east": (HUAWEI_EAST, "9,{cores},{memory},{arrive},0", (10, 20)),
    "huawei-topology": (HUAWEI_TOPOLOGY, "{cores},{memory},1,,,", (10, 20)),
    "bitbrains": (BITBRAINS, "{arrive};{cores};1;1;1;{memory};1;1;1;1;1", (1372629804, 1372629804)),
    "bitbrains-vms": (
        BITBRAINS_VMS,
        "9,{arrive},{leave},0,0,9,{cores},{cores},{memory},{memory}",
        (1372629804, 1372639804),
    ),
    "bitbrains-months": (
        BITBRAINS_MONTHS,
        "9,2013-7,{arrive},{leave},9,9,{cores},{memory},{memory},1",
        (1372629804, 1372639804),
    ),
    "generic": (GENERIC, "c,{arrive},{leave},{memory},{cores}", (10, 20)),
}


def cases() -> Iterator[tuple[str, str, str]]:
    for name, (_, row, _) in ROWS.items():
        for field in ("arrive", "leave", "cores", "memory"):
            if f"{{{field}}}" in row:
                bad = [*NOT_A_NUMBER, "1e30"] if field in {"arrive", "leave"} else [*NOT_A_NUMBER, "1e30", "-1", "0"]
                # Where a departure may be missing, nothing is a sound value; a sample of a VM that is off says 0.
                if field == "leave" and name in {"azure-reduced", "generic"}:
                    bad = [value for value in bad if value not in {"", '"'}]
                if name == "bitbrains" and field in {"cores", "memory"}:
                    bad = [value for value in bad if value not in {"0", "-1", "1e30"}]
                yield from ((name, field, value) for value in bad)


@pytest.mark.parametrize(("name", "field", "value"), list(cases()))
def test_one_bad_number_is_one_bad_row(tmp_path: Path, name: str, field: str, value: str) -> None:
    good, row, (arrive, leave) = ROWS[name]
    options = {"columns": generic.parse(COLUMNS)} if name == "generic" else {}
    sound = {"arrive": arrive, "leave": leave, "cores": 1, "memory": 4096}
    whole = load(tmp_path, good, **options)
    with_sound = load(tmp_path, good + row.format(**sound) + "\n", **options)
    assert with_sound.malformed.count == 0, "the row is refused for what is damaged, and for nothing else"
    made = load(tmp_path, good + row.format(**{**sound, field: value}) + "\n", **options)
    assert made.malformed.count == 1
    ((where, _),) = made.malformed.examples
    assert where == f"line {len(good.splitlines()) + 1}"
    # No other VM is changed by it: not its time, and not whether it outlives the trace.
    assert rows(made) == rows(whole)


@pytest.mark.parametrize("value", ["x", "nan", 1e300, float("inf"), b"\xff\xfe", "9" * 5000])
@pytest.mark.parametrize("field", ["start", "end", "kind"])
def test_one_bad_number_in_the_packing_trace(tmp_path: Path, field: str, value: object) -> None:
    sound = {"start": 0.5, "end": 1.5, "kind": 7}
    good = loaders.load(packed(**sound)(tmp_path / "good"))
    assert (len(good.frame), good.malformed.count) == (3, 0)
    made = loaders.load(packed(**{**sound, field: value})(tmp_path / "bad"))
    assert (len(made.frame), made.malformed.count) == (2, 1)
    assert made.malformed.examples[0][0].startswith("vm row ")


def notification(**flavor: object) -> str:
    message = json.loads(versioned("instance.create.end", "u9", "2024-05-01 10:00:01"))
    message["payload"]["nova_object.data"]["flavor"]["nova_object.data"].update(flavor)
    return json.dumps(message)


@pytest.mark.parametrize(
    "line",
    [
        notification(memory_mb=10**400),
        notification(memory_mb=float("nan")),
        notification(vcpus=float("inf")),
        notification(vcpus=-1),
        notification(vcpus="2"),
        notification(memory_mb=[1]),
        notification(memory_mb=None),
        notification(memory_mb=True),
        # Times that no cloud had; the first one would move all others.
        versioned("instance.create.end", "u9", "0001-01-01T00:00:00+23:59"),
        versioned("instance.create.end", "u9", "9999-12-31T23:59:59-23:59"),
        versioned("instance.create.end", "u9", "2024-02-30 10:00:00"),
        versioned("instance.create.end", "u9", "x" * 10_000),
        '{"event_type": "instance.create.end", "payload": 5}',
        '{"event_type": "instance.create.end", "timestamp": {}, "payload": {"uuid": 5}}',
        '{"event_type": ["a"]}',
        '{"oslo.message": "{"}',
        '{"oslo.message": "' + "[" * 100_000 + '"}',
        "[" * 100_000,
        '{"a":' * 100_000,
        "null",
        "5",
        '"x"',
        "NaN",
        "\0" * 50,
    ],
)
def test_one_bad_notification_is_one_bad_line(tmp_path: Path, line: str) -> None:
    made = load(tmp_path, NOVA + line + "\n")
    assert made.malformed.count == 1
    assert made.malformed.examples[0][0] == f"line {len(NOVA.splitlines()) + 1}"
    assert rows(made) == rows(load(tmp_path, NOVA))


def test_a_name_that_is_no_text(tmp_path: Path) -> None:
    """JSON can name half a surrogate pair; bytes that are no UTF-8 are replaced."""
    made = load(tmp_path, NOVA + versioned("instance.create.end", "\ud800", "2024-05-01 10:00:01") + "\n")
    assert "?" in made.frame["vm"].to_list()
    assert (
        load(tmp_path, AZURE_V1.encode().replace(b"vmB", b"\xff\xfe")).frame["vm"][1] == "\N{REPLACEMENT CHARACTER}" * 2
    )


@pytest.mark.parametrize("name", SAMPLES)
def test_encodings_and_line_ends(tmp_path: Path, name: str) -> None:
    text = SAMPLES[name]
    plain = rows(load(tmp_path, text))
    assert rows(load(tmp_path, b"\xef\xbb\xbf" + text.encode())) == plain
    assert rows(load(tmp_path, text.replace("\n", "\r\n"))) == plain
    assert rows(load(tmp_path, text.rstrip("\n"))) == plain
    assert "is UTF-16" in refused(tmp_path, text.encode("utf-16"))


@pytest.mark.parametrize("text", [AZURE_REDUCED, AZURE_ARRIVALS, HUAWEI_EAST, BITBRAINS_VMS])
def test_carriage_returns_alone(tmp_path: Path, text: str) -> None:
    assert "carriage returns alone" in refused(tmp_path, text.replace("\n", "\r"))


@pytest.mark.parametrize(
    ("text", "bad"),
    [
        (AZURE_V1, 3),
        (AZURE_REDUCED, 3),
        (AZURE_ARRIVALS, 2),
        (BITBRAINS_VMS, 2),
        # Three creations and a deletion of what runs or is gone already.
        (HUAWEI_EAST, 4),
        (NOVA_LOG, 2),
    ],
)
def test_a_vm_that_comes_twice(tmp_path: Path, text: str, bad: int) -> None:
    lines = text.splitlines(keepends=True)
    head, body = (lines[:1], lines[1:]) if text not in {AZURE_V1, NOVA_LOG} else ([], lines)
    made = load(tmp_path, "".join([*head, *body, *body]))
    assert rows(made) == rows(load(tmp_path, text))
    assert made.malformed.count == bad
    first = made.malformed.examples[0]
    assert first[1] == f"a {'creation of a ' if 'a creation' in first[1] else ''}VM " + (
        "that runs already" if "creation" in first[1] else "of this name runs already"
    )
    assert int(first[0].removeprefix("line ")) > len(lines)


def test_a_name_may_be_used_again(tmp_path: Path) -> None:
    columns = generic.parse(COLUMNS)
    made = load(tmp_path, GENERIC + "a,5,9,1,1\na,8,9,1,1\na,9,,1,1\na,100,101,1,1\n", columns=columns)
    assert [row[:4] for row in rows(made)] == [("a", 1, 5, 5), ("b", 2, 5, 5), ("a", 5, 9, 9), ("a", 9, None, None)]
    assert [where for where, _ in made.malformed.examples] == ["line 5", "line 7"]


@pytest.mark.parametrize("name", [name for name in SAMPLES if name != "huawei-topology.csv"])
def test_rows_out_of_order(tmp_path: Path, name: str) -> None:
    """Times decide, not places in the file. (Of the log, lines before the creation are those of a VM of before.)"""
    if name == "nova.log":
        return
    lines = SAMPLES[name].splitlines(keepends=True)
    head = 1 if name.startswith(("azure-r", "azure-a", "huawei", "bitbrains")) else 0
    turned = load(tmp_path, "".join([*lines[:head], *reversed(lines[head:])]))
    plain = load(tmp_path, SAMPLES[name])
    assert sorted(map(str, rows(turned))) == sorted(map(str, rows(plain)))
    assert turned.malformed.count == 0


@pytest.mark.parametrize("name", [*SAMPLES, "generic.csv"])
def test_damaged_gzip(tmp_path: Path, name: str) -> None:
    """Cut at several places, changed at several, and with something after it."""
    options = {"columns": generic.parse(COLUMNS)} if name == "generic.csv" else {}
    # Larger than what the format is known by, so that the damage may be met late.
    text = SAMPLES.get(name, GENERIC)
    data = gzip.compress("".join([text, *text.splitlines(keepends=True)[1:] * 2000]).encode(), compresslevel=1)
    cut = [data[: len(data) * part // 10] for part in (1, 5, 9)] + [data[:-4]]
    flipped = [
        data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]
        for at in (12, len(data) // 3, len(data) // 2, len(data) - 6)
    ]
    for damaged in (*cut, *flipped, data + b"garbage"):
        said = refused(tmp_path, damaged, **options)
        assert said.endswith("is a damaged gzip file; fetch it again")


@pytest.mark.parametrize(
    "columns",
    [
        {"create_s": ["x", "1"], "cores": [1, 1], "memory_gb": [1.0, 1.0]},
        {"create_s": [None, 1], "cores": [1, 1], "memory_gb": [1.0, 1.0]},
        {"create_s": [1, 1], "cores": [float("nan"), 1], "memory_gb": [1.0, 1.0]},
        {"create_s": [1, 1], "cores": [1, 1], "memory_gb": [float("inf"), 1.0]},
        {
            "create_s": [1, 1],
            "cores": [1, 1],
            "memory_gb": [1.0] * 2,
            "delete_lo_s": ["x", "5"],
            "delete_hi_s": ["x", "5"],
        },
        {"create_s": [1, 1], "cores": [1, 1], "memory_gb": [1.0] * 2, "delete_lo_s": [-1, 5], "delete_hi_s": [5, 5]},
    ],
)
def test_bad_values_in_the_bundled_parquet(tmp_path: Path, columns: dict[str, list[object]]) -> None:
    pl.DataFrame(columns).write_parquet(tmp_path / "x")
    made = load(tmp_path, (tmp_path / "x").read_bytes())
    assert (len(made.frame), made.malformed.count) == (1, 1)
    assert made.malformed.examples[0][0] == "line 1"


def test_damaged_parquet(tmp_path: Path) -> None:
    pl.DataFrame({"create_s": range(5000), "cores": [1] * 5000, "memory_gb": [1.0] * 5000}).write_parquet(
        tmp_path / "x"
    )
    data = (tmp_path / "x").read_bytes()
    for damaged in (data[:-20], data[:100], data[:4], data[:30] + bytes(60) + data[90:]):
        refused(tmp_path, damaged)
    pl.DataFrame({"id": ["a"], "start": [1], "end": [2], "ram": [[1]], "cpu": [1]}).write_parquet(tmp_path / "x")
    said = refused(tmp_path, (tmp_path / "x").read_bytes(), columns=generic.parse(COLUMNS))
    assert "the column 'ram' for memory holds lists or structures" in said


def test_cut_databases(tmp_path: Path) -> None:
    data = packing(tmp_path / "p").read_bytes()
    for length in (16, 100, 4096, len(data) // 2, len(data) - 1):
        assert "is not a sound SQLite file" in refused(tmp_path, data[:length])


HEADERS = [text.splitlines()[0] for name, text in SAMPLES.items() if not name.startswith(("azure-v", "nova"))]


@pytest.mark.parametrize("header", HEADERS)
def test_a_header_alone(tmp_path: Path, header: str) -> None:
    for end in ("", "\n", "\n\n\n"):
        assert "holds no request for a VM that can be used" in refused(tmp_path, header + end)


# The names of tests must be the same in every process that collects them, so the packed one has no time in it.
@pytest.mark.parametrize("data", [b"", b"\n", b"\0", b"x", gzip.compress(b"", mtime=0)])
def test_next_to_nothing(tmp_path: Path, data: bytes) -> None:
    refused(tmp_path, data)
    refused(tmp_path, data, columns=generic.parse(COLUMNS))


def test_a_directory_with_more_than_files(tmp_path: Path) -> None:
    """A pipe that nothing writes, a directory and a dangling link by the name of a VM's file are passed over."""
    folder = tmp_path / "rnd"
    (folder / "3.csv").mkdir(parents=True)
    os.mkfifo(folder / "2.csv")
    (folder / "4.csv").symlink_to("nowhere")
    (folder / "1.csv").write_text(BITBRAINS, encoding="utf-8")
    (folder / "5.csv").write_bytes(b"")
    assert [row[0] for row in rows(loaders.load(folder))] == ["1"]


@pytest.fixture
def nobody() -> Iterator[None]:
    """Not root, whom no mode of a file stops."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    yield
    if root:
        os.seteuid(0)


@pytest.mark.parametrize("columns", [None, COLUMNS])
def test_without_permission(tmp_path: Path, columns: str | None, request: pytest.FixtureRequest) -> None:
    options = loaders.Options(columns=generic.parse(columns) if columns else None)
    (tmp_path / "locked").mkdir()
    for path in (tmp_path / "trace", tmp_path / "locked/trace"):
        path.write_text(AZURE_V1, encoding="utf-8")
    (tmp_path / "trace").chmod(0)
    (tmp_path / "locked").chmod(0)
    request.getfixturevalue("nobody")
    for path in (tmp_path / "trace", tmp_path / "locked/trace"):
        with pytest.raises(NestwalkError, match="Permission denied") as caught:
            loaders.load(path, options)
        assert "\n" not in str(caught.value)


def test_the_command_refuses_in_one_line(command: Command, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    (tmp_path / "cut.gz").write_bytes(gzip.compress(AZURE_V1.encode())[:-9])
    said = {
        "pipe": "pipe: is no regular file; write the trace to a file first",
        "empty": "empty: is empty",
        "folder": "folder: holds no .csv files",
        "cut.gz": "cut.gz: is a damaged gzip file",
        "nowhere.csv": "nowhere.csv",
    }
    for name, what in said.items():
        done = command("place", name)
        assert (done.returncode, done.stdout) == (2, ""), done
        assert what in done.stderr
        assert len(done.stderr.splitlines()) == 1
