# SPDX-License-Identifier: MIT OR Apache-2.0
"""What is made from the code and lies in the source tree is up to date; completion; man pages."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import EXECUTABLE, REPOSITORY, script

from nestwalk import completion, manual

GENERATED: dict[Path, str] = script("generate").files()


@pytest.mark.parametrize("path", GENERATED, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_it_is_up_to_date(path: Path) -> None:
    assert path.is_file(), "run ./dev generated"
    assert path.read_text(encoding="utf-8") == GENERATED[path], f"{path} is out of date: run ./dev generated"


def test_no_man_page_is_left_over() -> None:
    found = {path.name for path in (REPOSITORY / "packaging").rglob("*.1")}
    assert found == set(manual.pages())


def test_every_verb_and_every_option_has_its_place_in_a_man_page() -> None:
    import typer.main

    from nestwalk.cli import app

    pages = manual.pages()
    command = typer.main.get_command(app)
    verbs = list(manual.commands(command))
    assert len(verbs) >= 12
    for words, verb in verbs:
        page = pages[f"{'-'.join(('nestwalk', *words))}.1"]
        for parameter in verb.params:
            for option in parameter.opts:
                if option.startswith("-"):
                    assert option.replace("-", "\\-") in page, f"{words}: {option}"


@pytest.mark.skipif(shutil.which("man") is None, reason="man is not installed")
def test_man_shows_a_page_without_a_warning(tmp_path: Path) -> None:
    for name, text in manual.pages().items():
        (tmp_path / name).write_text(text, encoding="utf-8")
        done = subprocess.run(
            ["man", "--warnings", "-l", tmp_path / name],  # noqa: S607
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "MANWIDTH": "80", "LC_ALL": "C.UTF-8"},
        )
        assert not done.stderr, f"{name}: {done.stderr}"
        assert "NAME" in done.stdout


def completions(instruction: str, words: str) -> subprocess.CompletedProcess[str]:
    """What the command answers to a shell."""
    variables = {
        "_NESTWALK_COMPLETE": instruction,
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
        "_TYPER_COMPLETE_ARGS": words,
    }
    return subprocess.run(
        [EXECUTABLE], env={**os.environ, **variables}, capture_output=True, text=True, check=False, timeout=60
    )


def test_a_shell_gets_verbs_and_options() -> None:
    done = completions("complete_bash", "nestwalk mach")
    assert (done.stdout.split(), done.returncode, done.stderr) == (["machine"], 0, "")
    assert completions("complete_bash", "nestwalk machine ").stdout.split() == ["detect", "show", "check"]
    assert "--machine" in completions("complete_bash", "nestwalk compare --ma").stdout.split()
    assert "--machine" in completions("complete_zsh", "nestwalk compare --ma").stdout


VALUES = [
    ("nestwalk compare --machine ", "zen4"),
    ("nestwalk compare --machine=ze", "zen4"),
    ("nestwalk matrix --machine sky", "skylake-6138"),
    ("nestwalk compare --trace ", "redis"),
    ("nestwalk compare --only vm-t", "vm-thp"),
    ("nestwalk compare --matrix everything --only vm-thp-a", "vm-thp-asap"),
    ("nestwalk matrix --only vm-thp-a", "vm-thp-asap"),
    ("nestwalk compare --matrix mine.toml --only m", "my-row"),
    ("nestwalk matrix --program mem", "memcached"),
    ("nestwalk run --seed 7 gu", "gups-vm"),
    ("nestwalk run mi", "mine.toml"),
    ("nestwalk reproduce huge", "hugegpt"),
    ("nestwalk bench nested_te", "nested_tenth_walks"),
    ("nestwalk list wo", "workloads"),
    ("nestwalk keys sc", "scenario"),
    ("nestwalk trace info --json re", "redis"),
    ("nestwalk machine show z", "zen4"),
    ("nestwalk place azure", "azure-v1-days-1-20"),
    ("nestwalk place x.csv --hosts paper-", "paper-holes"),
    ("nestwalk compare -", "--machine"),
]


@pytest.mark.parametrize(("words", "expected"), VALUES)
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_values_are_completed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shell: str, words: str, expected: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text('schema = 1\n[[configuration]]\nname = "my-row"\n', encoding="utf-8")
    broken = words.replace("=", " = ")  # bash makes three words of it
    monkeypatch.setenv("COMP_WORDS", broken)
    monkeypatch.setenv("COMP_CWORD", str(len(broken.split(" ")) - 1))
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", words)
    monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
    monkeypatch.setenv(completion.VARIABLE, f"complete_{shell}")
    assert completion.is_asked()
    found = completion.answer()
    if shell == "bash":
        assert expected in found.split("\n")
        assert all(word.startswith(broken.rpartition(" ")[2]) for word in found.split("\n")), found
    elif shell == "fish":
        option = f"{words.rsplit(maxsplit=1)[-1].partition('=')[0]}=" if "=" in words else ""
        assert option + expected in [line.partition("\t")[0] for line in found.split("\n")]
    else:
        assert f'{expected}"' in found


def test_where_there_is_nothing_to_name_the_shell_names_files() -> None:
    assert completions("complete_bash", "nestwalk trace convert /et").stdout.strip() == ""
    assert completions("complete_zsh", "nestwalk trace convert /et").stdout.strip() == "_files"
    assert completions("complete_bash", "nestwalk run 'half").stdout.strip() == ""


def test_every_value_that_is_completed_is_one_of_the_command() -> None:
    known = completion.table()
    kinds = {about["takes"] for _, node in walk(known) for about in node["options"].values() if about["takes"]}
    kinds |= {kind for _, node in walk(known) for kind in node["arguments"] if kind}
    assert kinds - {"other"} == set(known["values"]), "a kind without values, or values that nothing takes"


def walk(node: dict[str, Any], name: str = "nestwalk") -> Iterator[tuple[str, dict[str, Any]]]:
    """A verb and all below it."""
    yield name, node
    for inner, below in node["verbs"].items():
        yield from walk(below, f"{name} {inner}")


def test_completion_loads_none_of_the_libraries_of_the_command() -> None:
    """That is what makes it fast: a twentieth of a second of processor time, held without a clock."""
    program = (
        "import os, sys; os.environ['_NESTWALK_COMPLETE'] = 'complete_bash'; "
        "os.environ.update(COMP_WORDS='nestwalk compare --machine ', COMP_CWORD='3'); sys.argv = ['nestwalk']\n"
        "from nestwalk.__main__ import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code\n"
        "heavy = {'typer', 'pydantic', 'rich', 'polars', 'nestwalk._native', 'nestwalk.cli'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "zen4" in done.stdout


def test_bash_completes(tmp_path: Path) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is not installed")
    shown = subprocess.run([EXECUTABLE, "--show-completion", "bash"], capture_output=True, text=True, check=False)
    text = shown.stdout if shown.returncode == 0 else completions("source_bash", "nestwalk").stdout
    source = tmp_path / "nestwalk.bash"
    source.write_text(text, encoding="utf-8")
    line = 'COMP_WORDS=(nestwalk tra); COMP_CWORD=1; _nestwalk_completion nestwalk; echo "${COMPREPLY[@]}"'
    done = subprocess.run(
        [bash, "-c", f". {source}; {line}"],
        env={**os.environ, "PATH": f"{EXECUTABLE.parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["trace"]


def test_this_python_is_the_one_that_the_command_has() -> None:
    assert EXECUTABLE.parent == Path(sys.executable).parent
