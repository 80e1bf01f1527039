# SPDX-License-Identifier: MIT OR Apache-2.0
"""Every block of commands in the documentation is run, or says in a comment above it why not.

The comments: ``<!-- run -->``, ``<!-- run: with --quick -->`` (added to what simulates), ``<!-- run: where the kernel
has it: FILE -->``, ``<!-- run by python/tests/test_X.py -->``, ``<!-- not run: REASON -->``, and of a TOML file
``<!-- file: NAME -->``: the page's blocks find it under that name.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest
from support import EXECUTABLE, REPOSITORY

PAGES = [*sorted((REPOSITORY / "docs").glob("*.md")), REPOSITORY / "README.md"]
AS_A_WHOLE = "example.md"
"""Its Python is one program (test_docs.py)."""
FENCE = re.compile(
    r"^(?:<!-- (?P<mark>[^\n]*?) -->\n)?```(?P<language>\w*)\n(?P<text>.*?)^```", re.DOTALL | re.MULTILINE
)
SECONDS_MAX = 600
TO_RUN = {"sh", "console", "bash", "python", "xml", ""}
NO_COMMANDS = {"text", "toml", "rust", "yaml"}
SIMULATES = re.compile(r"^(nestwalk (?:place|compare|matrix|reproduce|run) .*?)(\\?)$", re.MULTILINE)
VMS = """uuid,created_at,deleted_at,vcpus,memory_mb
a,2026-01-01T00:00:00Z,2026-01-03T00:00:00Z,2,4096
b,2026-01-01T06:00:00Z,2026-01-02T12:00:00Z,4,8192
c,2026-01-01T07:30:00Z,2026-01-04T00:00:00Z,1,2048
"""


@dataclass(frozen=True)
class Block:
    """A block of a page."""

    page: Path
    mark: str
    language: str
    text: str

    @property
    def reason(self) -> str:
        """Why it is not run; empty if it is."""
        return self.mark.removeprefix("not run: ") if self.mark.startswith("not run: ") else ""

    @property
    def name(self) -> str:
        """For the list of tests."""
        return f"{self.page.name}:{self.text.splitlines()[0][:50]}"


def blocks(page: Path) -> list[Block]:
    """The blocks of a page."""
    found = FENCE.finditer(page.read_text(encoding="utf-8"))
    return [Block(page, match["mark"] or "", match["language"], match["text"]) for match in found]


ALL = [block for page in PAGES for block in blocks(page)]
COMMANDS = [
    block
    for block in ALL
    if block.language not in NO_COMMANDS and not (block.language == "python" and block.page.name == AS_A_WHOLE)
]
RUNS = [block for block in COMMANDS if block.mark == "run" or block.mark.startswith("run: ")]


def complaint(block: Block) -> str:
    """What is wrong with the comment above a block; empty if nothing is."""
    if block.language not in TO_RUN:
        return f"{block.language}: say in test_docs_blocks.py what such a block is"
    if block in RUNS or len(block.reason.split()) > 1:
        return ""
    by = re.fullmatch(r"run by (\S+)", block.mark)
    if by is None:
        return "a comment must say that it is run, or why not"
    file = REPOSITORY / by[1]
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    return "" if block.page.name in text else f"{by[1]} does not read {block.page.name}"


@pytest.mark.parametrize("block", COMMANDS, ids=lambda block: block.name)
def test_every_block_is_run_or_says_why_not(block: Block) -> None:
    assert not complaint(block), f"{block.page}: {block.text}"


def test_a_block_without_a_reason_is_found() -> None:
    page = PAGES[0]
    for mark in ("", "not run:", "not run: no", "run by python/tests/none.py", "run by python/tests/test_wheel.py"):
        assert complaint(Block(page, mark, "sh", "nestwalk compare\n")), mark
    assert complaint(Block(page, "run", "cobol", "STOP RUN\n"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_commands_hide_in_indented_blocks(page: Path) -> None:
    prose = FENCE.sub("", page.read_text(encoding="utf-8"))
    for before, line in zip(prose.split("\n"), prose.split("\n")[1:], strict=False):
        if line.startswith("    ") and not before.strip():
            raise AssertionError(f"{page.name}: write this as a fenced block: {line}")


@pytest.mark.parametrize("block", [block for block in ALL if block.language == "toml"], ids=lambda block: block.name)
def test_toml_is_toml(block: Block) -> None:
    assert tomllib.loads(block.text)


def test_most_commands_are_run() -> None:
    assert len(RUNS) >= 10


@pytest.mark.parametrize("block", RUNS, ids=lambda block: block.name)
def test_a_block_runs(block: Block, tmp_path: Path) -> None:
    needed = re.fullmatch(r"run: where the kernel has it: (\S+)", block.mark)
    if needed and not Path(needed[1]).exists():
        pytest.skip(f"this kernel has no {needed[1]}")
    (tmp_path / "linux").symlink_to(REPOSITORY / "linux")
    (tmp_path / "vms.csv").write_text(VMS, encoding="utf-8")
    for file in blocks(block.page):
        if file.mark.startswith("file: "):
            (tmp_path / file.mark.removeprefix("file: ")).write_text(file.text, encoding="utf-8")
    text = block.text.replace("/proc/PID/", "/proc/self/")
    if block.mark == "run: with --quick":
        text = SIMULATES.sub(r"\1 --quick \2", text)
        assert "--quick" in text
    shell = [shutil.which("sh") or "/bin/sh", "-eu", "-c", text]
    done = subprocess.run(
        [sys.executable, "-c", text] if block.language == "python" else shell,
        cwd=tmp_path,
        env={"PATH": f"{EXECUTABLE.parent}:/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS_MAX,
    )
    assert done.returncode == 0, done.stderr
