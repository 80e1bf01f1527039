# SPDX-License-Identifier: MIT OR Apache-2.0
"""``nestwalk trace``: other tools' formats, parts and samples of traces, and what is in them."""

from __future__ import annotations

import gzip
import json
import os
import struct
import time
import zipfile
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from support import REPOSITORY, Command

from nestwalk import parquet
from nestwalk.errors import NestwalkError

SAMPLES = REPOSITORY.parent / "shared" / "data" / "memory-traces"


def made(command: Command, *arguments: str | Path) -> dict[str, Any]:
    """What the command says as JSON; it has to succeed."""
    done = command("trace", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["schema"] == 1
    return found


def refused(command: Command, *arguments: str | Path) -> str:
    """The one line by which the command refuses."""
    done = command("trace", *arguments)
    assert done.returncode == 2, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return done.stderr


def accesses(count: int = 3000, stride: int = 7919, footprint: int = 1 << 22) -> list[tuple[int, int, bool]]:
    """Instruction, address, store of a made-up program."""
    address = [0x7F0000000000 + i * stride % footprint // 8 * 8 for i in range(count)]
    return [(0x401000 + i % 7 * 4, address[i], i % 7 == 1) for i in range(count)]


def pin(path: Path, count: int = 3000, stride: int = 7919) -> Path:
    """As pinatrace writes it."""
    path.write_text("".join(f"{pc:#x}: {'RW'[store]} {address:#x}\n" for pc, address, store in accesses(count, stride)))
    return path


def drmemtrace(one: list[tuple[int, int, bool]], version: int = 7) -> bytes:
    """As drraw2trace writes it, of one thread."""
    record = struct.Struct("<HHQ").pack
    parts = [record(25, 0, version), record(28, 12, version), record(22, 4, 7), record(24, 4, 7)]
    for pc, address, store in one:
        parts += [record(47, 4, 0), record(10, 4, pc), record(int(store), 8, address)]
    return b"".join([*parts, record(23, 4, 7), record(26, 0, 0)])


def items(command: Command, trace: Path, count: int = 3000) -> list[tuple[int, bool]]:
    """Address and store bit of the first accesses."""
    found = made(command, "head", trace, "-n", str(count))["items"]
    return [(item["address"], item["store"]) for item in found if item["what"] == "access"]


SHARED_SAMPLES = {
    "champsim/mcf.1M.champsimtrace.xz": ("champsim", None),
    "champsim/stevehenny_8rec.champsim": ("champsim", 0),
    "drmemtrace/drmemtrace.allasm_x86_64.trace.zip": ("drmemtrace", 0),
    "drmemtrace/drmemtrace.core.000000.trace.zip": ("drmemtrace", 56238 + 32730),
    "drmemtrace/drmemtrace.simple_app.trace.zip": ("drmemtrace", 31507 + 12338),
    "drmemtrace/drmemtrace.threadsig.872902.5666.trace.zip": ("drmemtrace", 16232 + 9388),
    "lackey/own_gapbs_pr_g8.lackey.zst": ("lackey", None),
    "pin/pinatrace_c884523.out": ("pin", 40_514),
    "raw/redis.raw16.zst": ("raw", (31_458_960 - 31 * 32) // 16),
}
"""Format, and data accesses, as an independent count of the records has them."""


@pytest.mark.parametrize("name", sorted(SHARED_SAMPLES))
def test_a_real_file_of_another_tool_is_read(command: Command, tmp_path: Path, name: str) -> None:
    source = SAMPLES / name
    if not source.is_file():
        pytest.skip(f"{source} is absent: real inputs lie beside the repository")
    found = made(command, "convert", source, tmp_path / "out.nwt")
    kind, count = SHARED_SAMPLES[name]
    assert found["source_format"] == kind
    if count is None:
        assert found["accesses"] > 50_000
    else:
        assert found["accesses"] == count
    info = made(command, "info", tmp_path / "out.nwt")
    assert info["accesses"] == found["accesses"]
    assert made(command, "verify", tmp_path / "out.nwt")["whole"] is True
    assert sum(vma["end"] - vma["start"] for vma in info["vmas"]) >= info["footprint_bytes"]


def test_a_full_disk_is_one_line_with_a_remedy(command: Command, tmp_path: Path) -> None:
    said = refused(command, "convert", pin(tmp_path / "pin.txt"), "/dev/full")
    assert said == "nestwalk: error: /dev/full: No space left on device; make room, or name another place\n"


def test_an_import_gives_the_walks_of_our_own_capture(command: Command, tmp_path: Path) -> None:
    """The same accesses as our capture and as drmemtrace: every walk is the same."""
    words, raw = accesses(60_000, 100_003, 1 << 26), bytearray()
    raw += struct.pack("<IIQIIQ", 0x43525441, 7, len(words), 16 * len(words), 0, len(words))
    for pc, address, store in words:
        raw += struct.pack("<QQ", address, pc | 1 << 32 | 3 << 48 | store << 56)
    (tmp_path / "own.raw").write_bytes(raw)
    with zipfile.ZipFile(tmp_path / "foreign.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        whole = drmemtrace(words)
        for part in range(0, len(whole), 120_000):
            archive.writestr(f"chunk.{part // 120_000:04}", whole[part : part + 120_000])
    rows = {}
    for name, source in (("own", "own.raw"), ("foreign", "foreign.zip")):
        made(command, "convert", tmp_path / source, tmp_path / f"{name}.nwt", "--program", "same")
        arguments = ("--trace", tmp_path / f"{name}.nwt", "--only", "vm-4k", "--quick", "--jobs", "1", "--json")
        done = command("compare", *arguments)
        assert done.returncode == 0, done.stderr
        rows[name] = json.loads(done.stdout)["rows"][0]
    keys = ("walks_per_kiloaccess", "walk_latency_cycles", "references_per_walk", "walk_cycles_per_access")
    assert {key: rows["own"][key] for key in keys} == {key: rows["foreign"][key] for key in keys}
    assert rows["own"]["walks_per_kiloaccess"] > 1


def test_pipes_and_packed_files_are_read(command: Command, tmp_path: Path) -> None:
    source = pin(tmp_path / "text")
    (tmp_path / "packed").write_bytes(gzip.compress(source.read_bytes()))
    assert made(command, "convert", tmp_path / "packed", tmp_path / "out.nwt")["accesses"] == 3000
    assert items(command, tmp_path / "out.nwt") == [(address, store) for _, address, store in accesses()]


@pytest.mark.parametrize("names", [("address", "store"), ("va", "is_write")], ids="-".join)
def test_parquet_columns_are_read(command: Command, tmp_path: Path, names: tuple[str, str]) -> None:
    frame = pl.DataFrame(
        {
            names[0]: [address for _, address, _ in accesses()],
            names[1]: [store for _, _, store in accesses()],
            "tid": [i // 1000 for i in range(3000)],
        }
    )
    frame.write_parquet(tmp_path / "a.parquet")
    found = made(command, "convert", tmp_path / "a.parquet", tmp_path / "out.nwt")
    assert (found["accesses"], found["threads"], found["source_format"], found["program"]) == (3000, 3, "parquet", "a")
    assert "one instruction that makes all accesses" in found["warning"]
    assert items(command, tmp_path / "out.nwt") == [(address, store) for _, address, store in accesses()]


def test_long_parquet_columns_and_short_turns_of_threads_keep_their_order(tmp_path: Path) -> None:
    rows = 600_000  # several batches, of polars and of Arrow
    threads = [row % 3 if row < 5000 else row // 100_000 for row in range(rows)]
    frame = pl.DataFrame({"address": [0x1000_0000 + row * 8 for row in range(rows)], "tid": threads})
    frame.write_parquet(tmp_path / "a.parquet")
    with parquet.stream(tmp_path / "a.parquet", None) as (source, _):
        raw = Path(source).read_bytes()
    found, at = [], 0
    while at < len(raw):
        _, thread, records, size, _, _ = parquet.BLOCK.unpack_from(raw, at)
        words = struct.unpack_from(f"<{2 * records}Q", raw, at + parquet.BLOCK.size)
        found += [(thread, address) for address in words[::2]]
        at += parquet.BLOCK.size + size
    assert found == list(zip(threads, frame["address"], strict=True))


def test_parquet_without_addresses_is_refused(command: Command, tmp_path: Path) -> None:
    path, out = tmp_path / "a.parquet", tmp_path / "out.nwt"
    pl.DataFrame({"where": [1, 2]}).write_parquet(path)
    assert "--columns address=NAME" in refused(command, "convert", path, out)
    assert "has no column 'x'" in refused(command, "convert", path, out, "--columns", "address=x")
    assert made(command, "convert", path, out, "--columns", "address=where")["accesses"] == 2
    out.unlink()
    pl.DataFrame({"address": [1, 1 << 60]}).write_parquet(path)
    assert "row 1 (from 0)" in refused(command, "convert", path, out)
    pl.DataFrame({"address": [1.5]}).write_parquet(path)
    assert "whole numbers" in refused(command, "convert", path, out)
    path.write_bytes(b"PAR1 and no more")
    assert "cannot be read as Parquet" in refused(command, "convert", path, out)
    assert not out.exists()


def test_what_is_wrong_with_parquet_is_said_also_if_the_engine_refuses_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(_path: Path, _frame: object, out: int, failure: list[BaseException]) -> None:
        time.sleep(0.3)
        failure.append(NestwalkError("row 1"))
        os.close(out)

    monkeypatch.setattr(parquet, "_write", write)
    path = tmp_path / "a.parquet"
    pl.DataFrame({"address": [1]}).write_parquet(path)
    with pytest.raises(NestwalkError, match="row 1"), parquet.stream(path, None):
        raise NestwalkError("at byte 0")


def test_what_is_no_trace_is_refused(command: Command, tmp_path: Path) -> None:
    out = tmp_path / "out.nwt"
    (tmp_path / "text").write_text("hello\n")
    assert "no line is an access" in refused(command, "convert", tmp_path / "text", out)
    assert 'no format is called "x"' in refused(command, "convert", tmp_path / "text", out, "--from", "x")
    assert "is a DynamoRIO" in (said := refused(command, "convert", tmp_path, out)) or "drmemtrace" in said
    assert not out.exists()


@pytest.fixture
def whole(command: Command, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace of every access, with memory events."""
    path = tmp_path_factory.mktemp("whole") / "whole.nwt"
    made(command, "convert", pin(path.with_name("text"), 20_000), path)
    return path


def test_a_part_is_what_was_there(command: Command, tmp_path: Path, whole: Path) -> None:
    out, every = tmp_path / "part.nwt", [(address, store) for _, address, store in accesses(20_000)]
    assert made(command, "cut", whole, out, "--skip", "5k", "--count", "700")["accesses"] == 700
    assert items(command, out, 100_000) == every[5000:5700]
    assert made(command, "cut", whole, out, "--count", "700")["accesses"] == 700
    assert items(command, out) == every[:700]
    info = made(command, "info", out)
    assert (info["program"], info["source_format"], info["sampling"]) == ("text", "pin", None)
    assert made(command, "cut", whole, out)["accesses"] == 20_000
    has = "has 20000 accesses, so that"
    assert f"{has} --skip 20000 names no part" in refused(command, "cut", whole, out, "--skip", "20k")
    assert f"{has} --skip 19000 --count 2000 names" in refused(
        command, "cut", whole, out, "--skip", "19k", "--count=2k"
    )
    assert "give a --count of 1 or more" in refused(command, "cut", whole, out, "--count", "0")


def test_samples_and_filters_are_made_of_whole_traces_only(command: Command, tmp_path: Path, whole: Path) -> None:
    out = tmp_path / "out.nwt"
    found = made(command, "sample", whole, out, "--sample-windows", "4", "--warm", "500", "--window", "300")
    assert (found["accesses"], found["sampling"]["windows"]) == (3200, 4)
    assert made(command, "info", out)["footprint_bytes"] == made(command, "info", whole)["footprint_bytes"]
    assert "windows of the program only" in refused(command, "filter", out, tmp_path / "again.nwt")
    found = made(command, "filter", pin(tmp_path / "dense", 20_000, stride=8), out)
    assert found["represented_accesses"] == 20_000 > found["accesses"]
    assert "what a filter kept only" in refused(command, "sample", out, tmp_path / "again.nwt", "--period", "10k")
    assert "how many windows" in refused(command, "sample", whole, out)


def test_head_shows_every_kind_of_item(command: Command) -> None:
    found = made(command, "head", "redis", "-n", "5000")["items"]
    assert {item["what"] for item in found} >= {"event", "touch", "mark"}
    assert made(command, "head", "redis", "-n", "10", "--skip", "4990")["items"] == found[4990:]
    done = command("trace", "head", "redis", "-n", "3")
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == 4


def test_head_behind_the_last_item_says_so(command: Command, tmp_path: Path, whole: Path) -> None:
    assert "has no item 1000000 (from 0 on)" in refused(command, "head", whole, "--skip", "1M")
    assert made(command, "head", whole, "--skip", "1M")["items"] == []
    (tmp_path / "none").write_bytes(b"")
    made(command, "convert", tmp_path / "none", tmp_path / "none.nwt", "--from", "addresses")
    assert "has no items" in command("trace", "head", tmp_path / "none.nwt").stdout


def test_a_page_of_a_program_that_uses_all_its_memory_all_the_time(command: Command, tmp_path: Path) -> None:
    """The picture of its address space has more fields than altair takes by itself (5000)."""
    addresses = [0x7F0000000000 + i * 2_654_435_761 % (1 << 30) // 8 * 8 for i in range(60_000)]
    (tmp_path / "words").write_bytes(struct.pack(f"<{len(addresses)}Q", *addresses))
    made(command, "convert", tmp_path / "words", tmp_path / "words.nwt", "--from", "addresses")
    done = command("trace", "info", tmp_path / "words.nwt", "--out", "page")
    assert done.returncode == 0, done.stderr
    heat = json.loads((tmp_path / "page" / "results.json").read_text(encoding="utf-8"))["profile"]["heat"]
    assert len(heat) > 5000
    assert "The address space over time" in (tmp_path / "page" / "report.html").read_text(encoding="utf-8")


def test_a_page_shows_how_memory_is_used(command: Command, tmp_path: Path, whole: Path) -> None:
    found = made(command, "info", whole, "--out", tmp_path / "page")
    page = (tmp_path / "page" / "report.html").read_text(encoding="utf-8")
    for title in ("Footprint and working set", "Reuse distance by page", "The address space over time"):
        assert title in page
    assert page.count("<svg") == 6
    profile = json.loads((tmp_path / "page" / "results.json").read_text())["profile"]
    assert profile["footprint"][-1]["bytes"] == found["footprint_bytes"]
    assert sum(cell["accesses"] for cell in profile["heat"]) == found["accesses"]
    known = sum(point["accesses"] for point in profile["reuse"])
    # In a trace of one stretch, the first access to each page is the one of unknown distance.
    assert profile["first_accesses"] == found["footprint_bytes"] // 4096
    assert known + profile["first_accesses"] == found["accesses"]
    assert pl.read_parquet(tmp_path / "page" / "results.parquet").columns == ["access", "bytes"]
