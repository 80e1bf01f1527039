# SPDX-License-Identifier: MIT OR Apache-2.0
"""Man pages, made from the command itself: one for ``nestwalk``, one for each verb.

They lie in the source tree as they are installed (``packaging/``), and a test holds them to the command. No generator
that exists reads typer's commands, which since typer 0.29 are no longer those of click.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer.main

from nestwalk import _native
from nestwalk.errors import EXIT_ERROR, EXIT_INTERRUPTED

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME = "nestwalk"


def pages() -> dict[str, str]:
    """The text (roff) of each page by its file name, such as ``nestwalk-trace-info.1``."""
    from nestwalk.cli import app

    return dict(_pages(typer.main.get_command(app), None, NAME))


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """All verbs below ``command`` with the words that call them, depth first."""
    for name, inner in sorted(getattr(command, "commands", {}).items()):
        yield (*path, name), inner
        yield from commands(inner, (*path, name))


def _pages(command: Any, parent: Any, path: str) -> Iterator[tuple[str, str]]:
    context = command.context_class(command, info_name=path, parent=parent)
    name = path.replace(" ", "-")
    yield f"{name}.1", _page(command, context, path)
    for inner_name, inner in sorted(getattr(command, "commands", {}).items()):
        yield from _pages(inner, None, f"{path} {inner_name}")


def _page(command: Any, context: Any, path: str) -> str:
    name = path.replace(" ", "-")
    about = " ".join((command.help or "").split())
    lines = [
        '.\\" SPDX-License-Identifier: MIT OR Apache-2.0',
        f'.\\" Written by `./dev generated` from `{path} --help`.',
        f'.TH "{name.upper()}" "1" "" "nestwalk {_native.version()}" "Nestwalk"',
        ".SH NAME",
        f"{_roff(name)} \\- {_roff(about.rstrip('.'))}",
        ".SH SYNOPSIS",
        f".B {_roff(path)}",
        _roff(" ".join(command.collect_usage_pieces(context))),
    ]
    options: list[tuple[str, str]] = []
    arguments: list[tuple[str, str]] = []
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None and not getattr(parameter, "hidden", False):
            (arguments if parameter.param_type_name == "argument" else options).append(record)
    for title, records in (("ARGUMENTS", arguments), ("OPTIONS", options)):
        lines += _records(title, records)
    verbs = sorted(getattr(command, "commands", {}).items())
    lines += _records("COMMANDS", [(f"{path} {verb}", " ".join((inner.help or "").split())) for verb, inner in verbs])
    codes = [
        ("0", "Done."),
        (str(EXIT_ERROR), "Bad input: one line on standard error says what, where and what to do."),
        (str(EXIT_INTERRUPTED), "Interrupted. Nothing is left half-written."),
    ]
    lines += _records("EXIT STATUS", codes)
    others = [f"{path} {verb}" for verb, _ in verbs] or [path.rpartition(" ")[0] or NAME]
    lines += [".SH SEE ALSO", ", ".join(f"\\fB{_roff(other.replace(' ', '-'))}\\fR(1)" for other in others)]
    return "\n".join(lines) + "\n"


def _records(title: str, records: list[tuple[str, str]]) -> list[str]:
    if not records:
        return []
    lines = [f".SH {title}"]
    for term, text in records:
        lines += [".TP", f"\\fB{_roff(term)}\\fR", _roff(" ".join(text.split()))]
    return lines


def _roff(text: str) -> str:
    """``text`` so that roff prints it as it is."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped
