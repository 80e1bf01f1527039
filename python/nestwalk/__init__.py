# SPDX-License-Identifier: MIT OR Apache-2.0
"""Nestwalk: what page walks cost a program in a virtual machine, and which technique gives that time back.

::

    import nestwalk

    frame = nestwalk.compare(quick=True)          # the bundled trace under twenty-six configurations, a polars frame
    both = nestwalk.comparison("bfs")             # the same as an object, with pictures and a report
    both.plot_latency()
    survey = nestwalk.survey(quick=True)          # every technique and every mix, on several programs
    result = nestwalk.run("scenario.toml")        # one run
    result.references

Everything that can go wrong raises :class:`NestwalkError`, whose text is one line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nestwalk.errors import NestwalkError

if TYPE_CHECKING:
    from nestwalk.benchmarks import bench
    from nestwalk.comparisons import Comparison, compare, comparison
    from nestwalk.engine import catalog, run
    from nestwalk.result import Result
    from nestwalk.surveys import Survey, survey
    from nestwalk.sweeps.sweep import Sweep, sweep
    from nestwalk.traces import trace_convert, trace_info, trace_verify

    __version__: str

__all__ = [
    "Comparison",
    "NestwalkError",
    "Result",
    "Survey",
    "Sweep",
    "__version__",
    "bench",
    "catalog",
    "compare",
    "comparison",
    "run",
    "survey",
    "sweep",
    "trace_convert",
    "trace_info",
    "trace_verify",
]

_HOMES = {
    "Comparison": "comparisons",
    "Result": "result",
    "Survey": "surveys",
    "Sweep": "sweeps.sweep",
    "bench": "benchmarks",
    "catalog": "engine",
    "compare": "comparisons",
    "comparison": "comparisons",
    "run": "engine",
    "survey": "surveys",
    "sweep": "sweeps.sweep",
    "trace_verify": "traces",
    "trace_convert": "traces",
    "trace_info": "traces",
}


def __getattr__(name: str) -> Any:
    """Imports what is asked for when it is asked for: the command starts fast, and a worker loads the engine only."""
    if name == "__version__":
        from nestwalk import _native

        return _native.version()
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'nestwalk' has no attribute '{name}'")
    import importlib

    value = getattr(importlib.import_module(f"nestwalk.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """What there is, whether imported yet or not."""
    return sorted([*globals(), *__all__])
