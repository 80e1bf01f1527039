# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a wrong command line is answered with: which verb it was of, what is wrong with it, and what to do.

typer says what is wrong, in several lines of which only one names it. The rest of that line is made here.
"""

from __future__ import annotations

import re
from typing import Any

_NEGATIVE = re.compile(r"-\d")
"""How a number below 0 begins, which typer takes for an option."""


def explained(error: Any) -> str:
    """One line about an error of typer's: the verb, what typer says, and the remedy."""
    text = str(error.format_message()).strip().removesuffix(".")
    context = getattr(error, "ctx", None)
    if context is None:
        return text
    verb = context.command_path.partition(" ")[2]
    said = "; ".join(part for part in (text, _remedy(error, context)) if part)
    return f"{verb}: {said}" if verb else said


def _remedy(error: Any, context: Any) -> str:
    """What to do; nothing where what typer says has it already."""
    listed = f"`{context.command_path} --help`"
    if hasattr(error, "param_type"):  # something is missing
        about = str(getattr(error.param, "help", None) or "what it is").rstrip(".")
        about = about if about[1:2].isupper() else about[:1].lower() + about[1:]
        return f"give it: {about} ({listed})"
    if hasattr(error, "param_hint"):  # a value is wrong: our own parsers say what to give
        return ""
    if hasattr(error, "option_name"):
        return _of_option(error, context, listed)
    commands = getattr(context.command, "commands", None)
    if commands:
        named = "Missing" not in error.message
        return f"{listed} lists the commands" if named else f"give one of {', '.join(commands)}"
    return f"{listed} says what it takes" if _arguments(context) else f"it takes options only: {listed} lists them"


def _of_option(error: Any, context: Any, listed: str) -> str:
    if not hasattr(error, "possibilities"):  # it has no value, or one too many
        return f"{listed} says which"
    if _arguments(context) and _NEGATIVE.match(error.option_name):
        return f"an argument that begins with '-' goes behind `--`, and {listed} lists the options"
    return f"{listed} lists the options"


def _arguments(context: Any) -> bool:
    """Whether the command takes anything but options."""
    return any(one.param_type_name == "argument" for one in context.command.params)
