# SPDX-License-Identifier: MIT OR Apache-2.0
"""What the documentation says is true."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.main
from support import REPOSITORY

from nestwalk import matrix, techniques

BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
OUTSIDE = ("*.md", "capture/**/*.md", "fuzz/**/*.md", "linux/*.md", "linux/*/*.md", "nova/**/*.md")
PAGES = sorted(
    page
    for pattern in ("docs/**/*.md", *OUTSIDE)
    for page in REPOSITORY.glob(pattern)
    if page.name != "CHANGELOG.md" and ".venv" not in page.parts
)
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)")

FENCE = re.compile(r"^```(?P<language>\w*)\n(?P<text>.*?)^```", re.DOTALL | re.MULTILINE)
INDENTED = re.compile(r"(?:^|\n\n)((?: {4}\S.*\n)+)")
INLINE = re.compile(r"`((?:\./dev )?nestwalk [^`\n]+)`")


def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    text = (REPOSITORY / "docs" / "example.md").read_text(encoding="utf-8")
    names: dict[str, object] = {}
    blocks = BLOCK.findall(text)
    assert len(blocks) > 5
    for block in blocks:
        exec(compile(block, "docs/example.md", "exec"), names)  # noqa: S102
    assert (tmp_path / "redis.html").is_file()
    assert "did you mean 'broadwell-asap'?" in capsys.readouterr().out


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page}: {target}"


def lines(text: str) -> Iterator[str]:
    """Lines of a shell, without prompts and comments, those that end in a backslash joined."""
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        yield line.strip().removeprefix("$ ").partition(" #")[0].strip()


def command_lines(text: str) -> list[str]:
    """What a page says to type that begins with nestwalk, as whole lines or in a sentence."""
    blocks = [match["text"] for match in FENCE.finditer(text) if match["language"] in {"sh", "bash", "console", ""}]
    prose = FENCE.sub("", text)
    blocks += INDENTED.findall(prose)
    found = [line for block in blocks for line in lines(block)] + INLINE.findall(prose)
    found = [re.sub(r"^(sudo )?(\./dev |\.venv/bin/)?nestwalk ", "nestwalk ", line) for line in found]
    dev = [line.replace("./dev compare", "nestwalk compare", 1) for line in found if line.startswith("./dev compare")]
    return [line for line in found if line.startswith("nestwalk ")] + dev


@cache
def root() -> Any:
    """The command."""
    from nestwalk.cli import app

    return typer.main.get_command(app)


def words_of(line: str) -> list[str]:
    """The words of a command line or of a synopsis, without brackets and what the shell takes."""
    line = re.split(r"\s[|<>&;]|\s\d>", line.replace("[", " ").replace("]", " ").replace("...", " "))[0]
    return [word for word in shlex.split(line)[1:] if word != "|"]


def check_words(words: list[str]) -> None:
    """That the verb exists and has these options; values may be placeholders."""
    command = root()
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        assert words[0] in command.commands, f"there is no verb {words[0]!r}"
        command, words = command.commands[words[0]], words[1:]
    context = command.context_class(command, info_name="nestwalk")
    known = {option for parameter in command.get_params(context) for option in parameter.opts}
    for word in words:
        if word == "--":
            break
        option = word.partition("=")[0]
        if re.fullmatch(r"--?[a-z][a-z-]*", option):
            assert option in known, f"{command.name} has no option {option}"


COMMAND_LINES = [
    pytest.param(line, id=f"{page.relative_to(REPOSITORY)}:{line[:60]}")
    for page in PAGES
    for line in dict.fromkeys(command_lines(page.read_text(encoding="utf-8")))
]


def test_there_are_command_lines_to_check() -> None:
    assert len(COMMAND_LINES) > 50


@pytest.mark.parametrize("line", COMMAND_LINES)
def test_a_command_line_has_a_verb_and_its_options(line: str) -> None:
    for one in alternatives(line):
        check_words(words_of(one))


def alternatives(line: str) -> list[str]:
    """Of a line such as ``nestwalk machine show|check NAME`` each that it stands for, as far as verbs go."""
    words = line.split(" ")
    for number, word in enumerate(words):
        if re.fullmatch(r"[a-z]+(\|[a-z]+)+", word) and all(
            re.fullmatch(r"[a-z]+", before) for before in words[:number]
        ):
            inner = root()
            for before in words[1:number]:
                inner = getattr(inner, "commands", {}).get(before)
            if hasattr(inner, "commands"):
                return [" ".join([*words[:number], one, *words[number + 1 :]]) for one in word.split("|")]
    return [line]


EVERYWHERE = {"--help", "--quiet", "--verbose", "--csv", "--no-report", "--json"}
"""Options that the head of commands.md explains for all commands."""


def verbs(command: Any, name: str = "") -> Iterator[tuple[str, set[str]]]:
    """Every verb that is not hidden, with its options."""
    for key, inner in getattr(command, "commands", {}).items():
        yield from verbs(inner, f"{name} {key}".strip())
    if name and not hasattr(command, "commands") and not command.hidden:
        context = command.context_class(command, info_name=name)
        parameters = command.get_params(context)
        options = {option for parameter in parameters for option in (*parameter.opts, *parameter.secondary_opts)}
        yield name, {option for option in options if option.startswith("--")}


@pytest.mark.parametrize(("verb", "options"), [pytest.param(*found, id=found[0]) for found in verbs(root())])
def test_commands_md_has_every_option_and_no_other(verb: str, options: set[str]) -> None:
    text = (REPOSITORY / "docs" / "commands.md").read_text(encoding="utf-8")
    head, *sections = re.split(r"^## ", text, flags=re.MULTILINE)
    assert set(re.findall(r"--[a-z]+(?:-[a-z]+)*", head)) >= EVERYWHERE
    own = next((part for part in sections if verb in part.partition("\n")[0].split(", ")), None)
    assert own, f"commands.md has no section on {verb}"
    named = set(re.findall(r"(?<![\w-])--[a-z]+(?:-[a-z]+)*", own))
    assert options - EVERYWHERE <= named
    if "," not in own.partition("\n")[0]:
        assert named <= options


@pytest.mark.parametrize(
    "line", ["nestwalk compair", "nestwalk compare --trase redis", "nestwalk machine detekt", "nestwalk keys --schemas"]
)
def test_a_wrong_command_line_is_found(line: str) -> None:
    with pytest.raises(AssertionError):
        check_words(words_of(line))


def test_settings_have_every_file_that_the_techniques_name() -> None:
    text = (REPOSITORY / "docs" / "settings.md").read_text(encoding="utf-8")
    for technique in techniques.known().values():
        for step in (*technique.get, *technique.check):
            for file in re.findall(r"/(?:sys|proc)/[\w/.-]+", step.line):
                assert file in text or Path(file).name in text, (technique.name, file)
        if "hardware" not in technique.who:
            assert technique.short.split(":")[0] in ("guest", "host", "guest and host", "guest, Linux 6.8+")


@pytest.mark.parametrize(
    ("page", "said"),
    [("commands.md", r"All of it is ([\d,]+) runs"), ("sweeps.md", r"\| the full matrix \| ([\d,]+) \|")],
)
def test_the_full_matrix_has_as_many_runs_as_the_pages_say(page: str, said: str) -> None:
    everything = matrix.load("everything")
    found = re.search(said, " ".join((REPOSITORY / "docs" / page).read_text(encoding="utf-8").split()))
    assert found is not None
    assert int(found[1].replace(",", "")) == len(everything.cells) * len(everything.programs)
