# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a shell completes: verbs, options, and the values that options and arguments take.

A shell asks at each press of a key, so the answer comes from a table that is made beforehand (``completion.json``,
``./dev generated``) and without the libraries of the command. The scripts that a shell is given are typer's
(``nestwalk --show-completion``); this answers in the form that they expect.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VARIABLE = "_NESTWALK_COMPLETE"
"""What a shell's script sets: ``complete_bash``, ``complete_zsh``, ``complete_fish``, and others that typer answers."""

TABLE = Path(__file__).with_name("completion.json")
FILES_MAX = 100
"""So many files are named beside what comes with the package."""


@dataclass(frozen=True)
class Item:
    """A word to go on with."""

    value: str
    text: str = ""
    """What it means, in one line."""


def is_asked() -> bool:
    """Whether a shell asks for completions in a form that is answered here."""
    return os.environ.get(VARIABLE) in _ANSWERS


def answer() -> str:
    """What the shell wants to read."""
    return _ANSWERS[os.environ[VARIABLE]]()


def complete(words: list[str], incomplete: str) -> list[Item]:
    """What ``incomplete`` may become behind ``words``, which begin behind the command's name."""
    node: dict[str, Any] = json.loads(TABLE.read_text(encoding="utf-8"))
    values = node["values"]
    given: dict[str, str] = {}
    pending, position = "", 0
    for word in _joined(words):
        if pending:
            given[pending], pending = word, ""
        elif word.startswith("-") and word != "-":
            name, equals, value = word.partition("=")
            if equals and value:
                given[name] = value
            elif (equals and name in node["options"]) or (name in node["options"] and node["options"][name]["takes"]):
                pending = name
        elif word in node["verbs"]:
            node, given["verb"] = node["verbs"][word], word
        else:
            position += 1
    name, equals, value = incomplete.partition("=")
    if pending:
        return _values(node["options"][pending]["takes"] or "", incomplete, values, given)
    if incomplete.startswith("-") and equals and name in node["options"]:
        return _values(node["options"][name]["takes"] or "", value, values, given)
    if incomplete.startswith("-"):
        options = [Item(option, about["text"]) for option, about in node["options"].items()]
        return [item for item in options if item.value.startswith(incomplete)]
    verbs = [Item(verb, inner["text"]) for verb, inner in node["verbs"].items() if verb.startswith(incomplete)]
    arguments = node["arguments"]
    kind = arguments[min(position, len(arguments) - 1)] if arguments else ""
    return verbs + _values(kind, incomplete, values, given)


def _joined(words: list[str]) -> list[str]:
    """Bash takes ``--option=value`` for three words."""
    joined: list[str] = []
    for word in words:
        if joined and (word == "=" or (joined[-1].startswith("--") and joined[-1].endswith("="))):
            joined[-1] += word
        else:
            joined.append(word)
    return joined


def _values(kind: str, incomplete: str, values: dict[str, Any], given: dict[str, str]) -> list[Item]:
    """What a value of a kind may be: names that come with the package, and files in the working directory."""
    if incomplete == "=":
        incomplete = ""
    about = values.get(kind, {})
    names: dict[str, str] = about.get("names", {})
    if kind == "configurations":
        names = _configurations(values, given)
    found = [Item(name, text) for name, text in names.items() if name.startswith(incomplete)]
    return found + [Item(name) for name in _files(incomplete, about.get("endings", ()))]


def _configurations(values: dict[str, Any], given: dict[str, str]) -> dict[str, str]:
    """Rows of the matrix that the command line names."""
    chosen = given.get("--matrix", "")
    if chosen.endswith(".toml"):
        from nestwalk import matrix
        from nestwalk.errors import NestwalkError

        try:
            return {cell.name: cell.title for cell in matrix.load(chosen).cells}
        except NestwalkError:
            return {}
    known: dict[str, dict[str, str]] = values["configurations"]["matrices"]
    default = "everything" if given.get("verb") == "matrix" else "standard"
    return known.get(chosen or default, {})


def _files(incomplete: str, endings: list[str] | tuple[()]) -> list[str]:
    """Files of the working directory with one of the endings; behind a slash, the shell itself does it better."""
    if not endings or "/" in incomplete:
        return []
    try:
        with os.scandir() as entries:
            found = (entry.name for entry in entries if entry.name.endswith(tuple(endings)))
            return sorted(name for name in found if name.startswith(incomplete) and name.isprintable())[:FILES_MAX]
    except OSError:
        return []


def _split(text: str) -> list[str]:
    """The words of a command line that may end within quotes."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=False)
    lexer.whitespace_split = True
    lexer.commenters = ""
    words: list[str] = []
    try:
        words.extend(lexer)
    except ValueError:  # the closing quote is still to come
        words.append(lexer.token)
    return words


def _bash() -> str:
    words = _split(os.environ.get("COMP_WORDS", ""))
    current = int(os.environ.get("COMP_CWORD", "0"))
    incomplete = words[current] if current < len(words) else ""
    return "\n".join(item.value for item in complete(words[1:current], incomplete))


def _line() -> list[Item]:
    line = os.environ.get("_TYPER_COMPLETE_ARGS", "")
    words = _split(line)[1:]
    incomplete = words.pop() if words and not line.endswith(" ") else ""
    found = complete(words, incomplete)
    name, equals, _ = incomplete.partition("=")
    return [Item(f"{name}={item.value}", item.text) for item in found] if equals and name.startswith("--") else found


def _zsh() -> str:
    def quoted(text: str) -> str:
        for letter, instead in (('"', '""'), ("'", "''"), ("$", "\\$"), ("`", "\\`"), (":", r"\\:")):
            text = text.replace(letter, instead)
        return f'"{text}"'

    found = [f"{quoted(item.value)}:{quoted(item.text)}" if item.text else quoted(item.value) for item in _line()]
    return "_arguments '*: :(({}))'".format("\n".join(found)) if found else "_files"


def _fish() -> str:
    found = _line()
    if os.environ.get("_TYPER_COMPLETE_FISH_ACTION") == "is-args":
        sys.exit(0 if found else 1)  # 1: fish names files
    return "\n".join(f"{item.value}\t{item.text}" if item.text else item.value for item in found)


_ANSWERS = {"complete_bash": _bash, "complete_zsh": _zsh, "complete_fish": _fish}


# The table.

KINDS = {
    ("--machine", "compare"): "machines",
    ("--machine", "matrix"): "machines",
    ("--trace", "compare"): "traces",
    ("--machine", "advise"): "machines",
    ("--trace", "advise"): "traces",
    ("--as", "advise"): "presets",
    ("target", "advise"): "traces",
    ("--matrix", ""): "matrices",
    ("--only", ""): "configurations",
    ("--program", "matrix"): "programs",
    ("--hosts", "place"): "fleets",
    ("--versions", "place"): "versions",
    ("--scheduler", "place"): "schedulers",
    ("--allocator", "place"): "allocators",
    ("--resize", "place"): "resizes",
    ("--nova", "place"): "nova",
    ("--filter", "convert"): "filters",
    ("scenario", "run"): "scenarios",
    ("paper", "reproduce"): "papers",
    ("kind", "list"): "lists",
    ("kind", "keys"): "kinds",
    ("names", "bench"): "benchmarks",
    ("trace", "info"): "traces",
    ("trace", "check"): "traces",
    ("trace", "place"): "vm_traces",
    ("name", "show"): "machines",
    ("name", "check"): "machines",
}
"""What an option or an argument of a verb takes; with an empty verb, of every one."""


def table() -> dict[str, Any]:
    """All verbs with their options and arguments, and what comes with the package, for ``completion.json``."""
    import typer.main

    from nestwalk.cli import app

    return {"text": "", **_node(typer.main.get_command(app), ""), "values": _known()}


def _node(command: Any, verb: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    arguments: list[str] = []
    context = command.context_class(command, info_name=verb)
    for parameter in command.get_params(context):
        if parameter.param_type_name == "argument":
            arguments.append(KINDS.get((parameter.name, verb), ""))
            continue
        flag = getattr(parameter, "is_flag", False)
        for option in (*parameter.opts, *parameter.secondary_opts):
            kind = KINDS.get((option, verb), KINDS.get((option, ""), ""))
            options[option] = {"text": _line_of(parameter.help), "takes": False if flag else kind or "other"}
    verbs = {name: _node(inner, name) for name, inner in getattr(command, "commands", {}).items()}
    return {"text": _line_of(command.help), "options": options, "arguments": arguments, "verbs": verbs}


def _line_of(text: str | None) -> str:
    return " ".join((text or "").split())


def _known() -> dict[str, Any]:
    """What comes with the package, by kind."""
    from nestwalk import benchmarks, data, engine, keys, matrix
    from nestwalk.cloud import bundled, fleets, place
    from nestwalk.reproduce import PAPERS

    catalog = engine.catalog()

    def listed(kind: str) -> dict[str, str]:
        return {entry["name"]: _line_of(entry["description"]) for entry in catalog[kind]}

    def plain(names: Any) -> dict[str, str]:
        return dict.fromkeys(names, "")

    shown = (matrix.STANDARD, matrix.EVERYTHING, matrix.SUPERPAGES, matrix.CONTIGUOUS)
    matrices = {name: matrix.load(name) for name in shown}
    programs = {one.name: one.title for one in matrices[matrix.EVERYTHING].programs}
    toml, trace = [".toml"], [".nwt"]
    return {
        "machines": {"names": listed("machines"), "endings": toml},
        "scenarios": {"names": listed("scenarios"), "endings": toml},
        "traces": {"names": plain(sorted(data.traces())), "endings": trace},
        "programs": {"names": {**programs, **plain(sorted(set(data.traces()) - set(programs)))}, "endings": trace},
        "matrices": {"names": {name: made.title for name, made in matrices.items()}, "endings": toml},
        "configurations": {
            "matrices": {name: {cell.name: cell.title for cell in made.cells} for name, made in matrices.items()}
        },
        "presets": {"names": {name: text for name, text in listed("workloads").items() if text.startswith("preset: ")}},
        "papers": {"names": plain(PAPERS)},
        "lists": {"names": plain(engine.KINDS)},
        "kinds": {"names": plain(keys.KINDS)},
        "benchmarks": {"names": plain(benchmarks.known_names())},
        "fleets": {"names": plain(fleets.names()), "endings": toml},
        "versions": {"names": plain(place.VERSIONS)},
        "schedulers": {"names": plain(place.SCHEDULERS)},
        "allocators": {"names": plain(place.ALLOCATORS)},
        "resizes": {"names": plain(f"{how}:" for how in place.RESIZES)},
        "nova": {"names": plain(f"{key}=" for key in fleets.SCHEDULER)},
        "filters": {"names": plain(("default", "exact"))},
        "vm_traces": {"names": plain(bundled.names()), "endings": [".csv", ".parquet"]},
    }
