# SPDX-License-Identifier: MIT OR Apache-2.0
"""The engine. What is structured comes back as JSON text; errors are `nestwalk.errors.NestwalkError`."""

from collections.abc import Callable

def version() -> str:
    """The version of engine and package."""

def ratio(windows: list[tuple[int, int]]) -> tuple[float | None, float | None]:
    """The ratio of the sums of numerators and denominators over windows, and half of its 95 % interval."""

def catalog(traces: str) -> str:
    """What there is by kind, each a list of `name` and `description`; bundled traces lie in `traces`."""

def scenario(name: str) -> str:
    """The TOML text of the bundled scenario `name`."""

def check(scenario: str, path: str, traces: str) -> None:
    """Says what is wrong with a scenario and with what it names, as far as that shows without a run."""

def run(scenario: str, path: str, traces: str, progress: Callable[[int, int | None], bool] | None = None) -> str:
    """Runs `scenario` (TOML text), of the file `path` (for messages, relative paths); bundled traces lie in `traces`.

    `progress` is told of the accesses done and of all there are, if known, and ends the run by returning False.
    The GIL is released; Ctrl-C ends the run with KeyboardInterrupt.
    """

def trace_convert(
    source: str, destination: str, options: str, progress: Callable[[int, int | None], bool] | None = None
) -> str:
    """Converts a capture as `options` (JSON) says; `accesses`, `bytes_per_access` and more. The GIL is released."""

def trace_info(path: str) -> str:
    """`accesses`, `instructions`, `threads`, `footprint_bytes`, `vmas`, `format` of a trace."""

def bench_names() -> list[str]:
    """The benchmarks there are."""

def bench(name: str, repetitions: int, traces: str) -> str:
    """The best of `repetitions` runs of a benchmark: `name`, `value`, `unit`. The GIL is released."""
