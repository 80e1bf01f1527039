# SPDX-License-Identifier: MIT OR Apache-2.0
"""Nothing is destroyed: what is no regular file is not replaced, and what is not ours stays."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import threading
from pathlib import Path

import polars as pl
import pytest
from support import EXECUTABLE, REPOSITORY, Command

from nestwalk import files, folders
from nestwalk.errors import NestwalkError

RAW = REPOSITORY / "linux" / "data" / "stock-trace.zst"
ONE_ROW = ("compare", "--quick", "--trace", "bfs", "--only", "vm-4k", "-q")


def fill(folder: Path, **contents: str) -> None:
    """Writes results there as the command does; of names the dots are ``__``."""
    with folders.filling(folder) as fresh:
        for name, text in {folders.MARKER: "frame", **contents}.items():
            file = fresh / name.replace("__", ".")
            file.parent.mkdir(exist_ok=True)
            file.write_text(text, encoding="utf-8")


def test_a_link_keeps_pointing_where_it_points(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old", encoding="utf-8")
    target.chmod(0o640)
    link.symlink_to("target")
    files.check_file(link)
    files.write_file(link, "new")
    assert link.is_symlink()
    assert target.read_text(encoding="utf-8") == "new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    dangling = tmp_path / "dangling"
    dangling.symlink_to(tmp_path / "made")
    files.write_file(dangling, "made")
    assert dangling.is_symlink()
    assert (tmp_path / "made").read_text(encoding="utf-8") == "made"


def test_a_frame_on_a_full_disk_is_one_line_and_no_bug() -> None:
    frame = pl.DataFrame({"value": [0.5]})
    with (
        pytest.raises(NestwalkError, match="out: cannot be written: No space left on device; make room"),
        files.telling(Path("out")),
    ):
        folders.write_frame(frame, Path("/dev/full"))
    sources = [path for path in (REPOSITORY / "python" / "nestwalk").rglob("*.py") if path.name != "folders.py"]
    assert not [path for path in sources if "write_parquet(fresh" in path.read_text(encoding="utf-8")]


def test_what_was_written_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "written", [])
    for _ in range(3):
        files.write_file(tmp_path / "figures.prom", "1")
    assert files.written == [tmp_path / "figures.prom"]


def test_a_fifo_is_written_through(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    found: list[str] = []
    reader = threading.Thread(target=lambda: found.append(fifo.read_text(encoding="utf-8")))
    reader.start()
    files.check_file(fifo)
    files.write_file(fifo, "through")
    reader.join(10)
    assert found == ["through"]
    assert stat.S_ISFIFO(fifo.stat().st_mode)


def test_devices_stay(tmp_path: Path) -> None:
    files.check_file(Path("/dev/null"))
    files.write_file(Path("/dev/null"), "away")
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)
    with pytest.raises(NestwalkError, match="No space left"):
        files.write_file(Path("/dev/full"), "x" * 100_000)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        with pytest.raises(NestwalkError, match="is a socket"):
            files.check_file(tmp_path / "socket")


def test_the_longest_name_will_do_and_a_longer_one_is_refused(tmp_path: Path) -> None:
    files.write_file(tmp_path / ("n" * 255), "long")
    assert (tmp_path / ("n" * 255)).read_text(encoding="utf-8") == "long"
    with pytest.raises(NestwalkError, match="too long; give a shorter name"):
        files.check_file(tmp_path / ("n" * 256))


def test_foreign_files_in_a_folder_of_results_stay(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    fill(folder, report__html="page", **{"scenarios/a.toml": "a", "scenarios/b.toml": "b"})
    (folder / "thesis.tex").write_text("precious", encoding="utf-8")
    (folder / "scenarios" / "mine.toml").write_text("mine", encoding="utf-8")
    (folder / "scenarios" / "b.toml").write_text("b, changed by hand", encoding="utf-8")
    folder.chmod(0o750)
    inode = folder.stat().st_ino
    fill(folder, **{"scenarios/a.toml": "a2"})
    assert (folder.stat().st_ino, stat.S_IMODE(folder.stat().st_mode)) == (inode, 0o750)
    left = {str(file.relative_to(folder)): file.read_text(encoding="utf-8") for file in folder.rglob("*.t*")}
    assert left == {
        "thesis.tex": "precious",
        "scenarios/mine.toml": "mine",
        "scenarios/a.toml": "a2",
        "scenarios/b.toml": "b, changed by hand",
    }
    assert not (folder / "report.html").exists()  # an earlier result that is no longer made
    assert not list(folder.glob(f"{files.PREFIX}*"))


def test_what_somebody_made_under_one_of_our_names_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "kept"
    fill(folder)
    (folder / "report.html").mkdir()
    (folder / "results.json").symlink_to("/etc/hostname")
    (folder / "scenarios").write_text("a file", encoding="utf-8")
    fill(folder, report__html="page", results__json="{}", **{"scenarios/a.toml": "a"})
    assert (folder / "report.html.kept-1").is_dir()
    assert (folder / "results.json.kept-1").is_symlink()
    assert (folder / "scenarios.kept-1").read_text(encoding="utf-8") == "a file"
    assert (folder / "report.html").read_text(encoding="utf-8") == "page"
    assert capsys.readouterr().err.count("is kept as") == 3


def test_a_link_to_a_folder_of_results_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to("disk")
    fill(tmp_path / "out")
    fill(tmp_path / "out", report__html="page")
    assert (tmp_path / "out").is_symlink()
    assert (tmp_path / "disk" / "report.html").is_file()


def test_a_manifest_that_leads_elsewhere_is_not_followed(tmp_path: Path) -> None:
    folder, outside = tmp_path / "kept", tmp_path / "outside"
    fill(folder)
    outside.write_text("precious", encoding="utf-8")
    digest = "3df79d34abbca99308e79cb94461c1893582604d68329a41fd4bec1885e6adb4"
    found = {"files": {"../outside": digest, str(outside): digest}}
    (folder / folders.MANIFEST).write_text(json.dumps(found), encoding="utf-8")
    fill(folder)
    assert outside.read_text(encoding="utf-8") == "precious"


def test_what_cannot_be_filled_is_said_before_the_first_run(tmp_path: Path) -> None:
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "file").touch()
    for name, said in (("dangling", "which does not exist"), ("file", "is a file"), ("no/such", "make it first")):
        with pytest.raises(NestwalkError, match=said):
            folders.check_directory(tmp_path / name)


def can_mount() -> bool:
    command = ["unshare", "--mount", "true"]
    return os.geteuid() == 0 and subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not can_mount(), reason="no permission to mount a file system")
def test_a_mount_point_is_filled(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    run = f"{EXECUTABLE} {' '.join(ONE_ROW)} --no-report --out out"
    script = f"mount -t tmpfs none out && mkdir out/lost+found && {run} && ls out && umount out"
    command = ["unshare", "--mount", "sh", "-c", script]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "results.parquet" in done.stdout


def test_the_command_saves_over_what_it_saved(command: Command, tmp_path: Path) -> None:
    for _ in range(2):
        done = command(*ONE_ROW, "--out", "out")
        assert (done.returncode, done.stderr) == (0, "")
    (tmp_path / "out" / "notes.txt").write_text("mine", encoding="utf-8")
    assert command(*ONE_ROW, "--no-report", "--out", "out").returncode == 0
    assert (tmp_path / "out" / "notes.txt").read_text(encoding="utf-8") == "mine"
    assert not (tmp_path / "out" / "report.html").exists()
    assert (tmp_path / "out" / "scenarios" / "vm-4k.toml").is_file()


def test_a_report_to_standard_output_or_through_a_link(command: Command, tmp_path: Path) -> None:
    done = command(*ONE_ROW, "--report", "-")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("<!")
    assert "VM, 4 KiB" in done.stderr
    (tmp_path / "link.html").symlink_to("real.html")
    assert command(*ONE_ROW, "--report", "link.html").returncode == 0
    assert (tmp_path / "link.html").is_symlink()
    assert (tmp_path / "real.html").stat().st_size > 10_000


def test_no_report(command: Command, tmp_path: Path) -> None:
    done = command(*ONE_ROW, "--no-report")
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.iterdir())
    assert "contradict" in command(*ONE_ROW, "--no-report", "--report", "x.html").stderr


def test_a_trace_replaces_regular_files_only(command: Command, tmp_path: Path) -> None:
    (tmp_path / "link.nwt").symlink_to("real.nwt")
    assert command("trace", "convert", RAW, "link.nwt").returncode == 0
    assert (tmp_path / "link.nwt").is_symlink()
    real = (tmp_path / "real.nwt").read_bytes()
    assert command("trace", "convert", RAW, "/dev/null").returncode == 0
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)
    os.mkfifo(tmp_path / "fifo")
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append((tmp_path / "fifo").read_bytes()))
    reader.start()
    assert command("trace", "convert", RAW, "fifo").returncode == 0
    reader.join(10)
    assert found == [real]
    done = subprocess.run([EXECUTABLE, "trace", "convert", RAW, "-"], cwd=tmp_path, capture_output=True, check=False)
    assert done.stdout == real
    copy = tmp_path / "copy.zst"
    copy.write_bytes(RAW.read_bytes())
    done2 = command("trace", "convert", copy, copy)
    assert (done2.returncode, copy.read_bytes()) == (2, RAW.read_bytes())
    assert "both the source and the destination" in done2.stderr
