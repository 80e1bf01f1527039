# SPDX-License-Identifier: MIT OR Apache-2.0
"""What is made from the code and lies in the source tree is up to date; completion; man pages."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from support import EXECUTABLE, REPOSITORY

from nestwalk import manual


def script(name: str) -> ModuleType:
    """A script of packaging/ as a module."""
    path = REPOSITORY / "packaging" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
