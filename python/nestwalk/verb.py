# SPDX-License-Identifier: MIT OR Apache-2.0
"""What all verbs of the command have in common: ``-q`` and ``-v``."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from nestwalk import say

if TYPE_CHECKING:
    from collections.abc import Callable

Quiet = Annotated[
    bool, typer.Option("-q", "--quiet", help="Say nothing on standard error but errors: no progress, no warnings.")
]
Verbose = Annotated[
    bool, typer.Option("-v", "--verbose", help="Say more on standard error; of an error, where it came from.")
]


class App(typer.Typer):
    """A :class:`typer.Typer` whose commands all have ``-q`` and ``-v``, which their functions need not know of."""

    def command(self, *arguments: Any, **settings: Any) -> Callable[[Any], Any]:
        """As typer's."""
        register = super().command(*arguments, **settings)

        def add(function: Callable[..., Any]) -> Callable[..., Any]:
            register(_with_levels(function))
            return function

        return add


def _with_levels(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` with two parameters more."""

    @functools.wraps(function)
    def verb(*arguments: Any, quiet: bool, verbose: bool, **options: Any) -> Any:
        if quiet and verbose:
            raise typer.BadParameter("-q and -v contradict each other; give one")
        say.set_level(say.Level.QUIET if quiet else say.Level.VERBOSE if verbose else say.Level.NORMAL)
        return function(*arguments, **options)

    kinds = {**get_type_hints(function, include_extras=True), "quiet": Quiet, "verbose": Verbose}
    own = inspect.signature(function).parameters.values()
    levels = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False) for name in ("quiet", "verbose")]
    verb.__annotations__ = kinds
    verb.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [parameter.replace(annotation=kinds[parameter.name]) for parameter in (*own, *levels)]
    )
    return verb
