# SPDX-License-Identifier: MIT OR Apache-2.0
"""What all verbs of the command have in common: ``-q`` and ``-v``."""

from __future__ import annotations

import functools
import inspect
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin, get_type_hints

import typer
import typer.core

from nestwalk import say

if TYPE_CHECKING:
    from collections.abc import Callable

Quiet = Annotated[
    bool, typer.Option("-q", "--quiet", help="Say nothing on standard error but errors: no progress, no warnings.")
]
Verbose = Annotated[
    bool, typer.Option("-v", "--verbose", help="Say more on standard error; of an error, where it came from.")
]


SHOWN_MAX = 10_000
"""A range whose end is above that is shown by its beginning: the end is there to catch slips."""


class _Command(typer.core.TyperCommand):
    """A command of which every error of its command line says that it is of this command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As typer's, which leaves out whose error it is where an option has no value, or one too many."""
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            if getattr(error, "ctx", ctx) is None:
                error.ctx = ctx  # type: ignore[attr-defined]
            raise


class App(typer.Typer):
    """A :class:`typer.Typer` whose commands all have ``-q`` and ``-v``, which their functions need not know of."""

    def command(self, *arguments: Any, **settings: Any) -> Callable[[Any], Any]:
        """As typer's."""
        register = super().command(*arguments, **{"cls": _Command, **settings})

        def add(function: Callable[..., Any]) -> Callable[..., Any]:
            register(_with_levels(function))
            return function

        return add


def _parse_as(kind: Any) -> None:
    """Gives an option of a path or a number the parser that says what is wrong in our words, and checks its range."""
    if get_origin(kind) is not Annotated:
        return
    types, (about,) = (get_args(get_args(kind)[0]) or (get_args(kind)[0],)), get_args(kind)[1:]
    if about.parser is not None:
        return
    if Path in types:
        about.parser = _path
    elif int in types or float in types:
        if about.min is None or about.max is None:
            raise TypeError(f"{about.param_decls}: give a number's option a min and a max")
        about.parser = _number(int if int in types else float, about.min, about.max)
        ends = f"From {about.min:g}." if about.max > SHOWN_MAX else f"From {about.min:g} to {about.max:g}."
        about.help, about.min, about.max = f"{about.help} {ends}", None, None


def _number(kind: type[int] | type[float], least: float, most: float) -> Callable[[Any], float]:
    """A parser of numbers from ``least`` to ``most``."""
    words = "a whole number" if kind is int else "a number"

    def parse(text: Any) -> float:
        try:
            value: float = kind(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            raise typer.BadParameter(f"{str(text)!r}: give {words} from {least} to {most}")
        return value

    return parse


def _path(text: str | Path) -> Path:
    """A path that names something: of an empty text, as of an unset variable, Python makes the working directory."""
    if not str(text):
        raise typer.BadParameter("is empty; name a file or a folder, or leave the option out")
    return Path(text)


def _with_levels(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` with two parameters more."""

    @functools.wraps(function)
    def verb(*arguments: Any, quiet: bool, verbose: bool, **options: Any) -> Any:
        if quiet and verbose:
            raise typer.BadParameter("-q and -v contradict each other; give one")
        say.set_level(say.Level.QUIET if quiet else say.Level.VERBOSE if verbose else say.Level.NORMAL)
        return function(*arguments, **options)

    kinds = {**get_type_hints(function, include_extras=True), "quiet": Quiet, "verbose": Verbose}
    for kind in kinds.values():
        _parse_as(kind)
    own = inspect.signature(function).parameters.values()
    levels = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False) for name in ("quiet", "verbose")]
    verb.__annotations__ = kinds
    verb.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [parameter.replace(annotation=kinds[parameter.name]) for parameter in (*own, *levels)]
    )
    return verb
