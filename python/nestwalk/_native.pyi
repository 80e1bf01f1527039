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

class Populated:
    """The machine of a scenario, up to the first access of its program: all memory touched before is populated.

    It serves one run. A process that holds one can be copied (``os.fork``) for each of several, as what needs other
    threads is over. What `progress` is told, and how it ends the work, is as in :func:`run`.
    """

    def __init__(
        self, scenario: str, path: str, traces: str, progress: Callable[[int, int | None], bool] | None = None
    ) -> None:
        """Populates the memory of `scenario` (TOML text), of the file `path`."""

    def run(self, scenario: str, path: str, progress: Callable[[int, int | None], bool] | None = None) -> str:
        """Runs `scenario`, which is :func:`populated_by` the same, from here to its end: as :func:`run` would."""

def populated_by(scenario: str, path: str) -> str:
    """Equal for scenarios whose memory is populated in the same way, so that they can share a :class:`Populated`."""

def trace_convert(
    source: str, destination: str, options: str, progress: Callable[[int, int | None], bool] | None = None
) -> str:
    """Converts a capture as `options` (JSON) says; `accesses`, `bytes_per_access` and more. The GIL is released."""

def trace_info(path: str) -> str:
    """`accesses`, `instructions`, `threads`, `footprint_bytes`, `vmas`, `format` of a trace."""

def schema(kind: str) -> str:
    """The JSON Schema of files of the sort `kind`: machine, scenario or costs."""

def machine(name: str) -> str:
    """A machine by name or file, checked as a run would: `path`, `text`, `lines` (`key`, `value`, `comment`)."""

def toml_check(path: str, text: str) -> None:
    """Says where `text`, the file `path`, is no TOML, if it is none."""

def toml_position(text: str, path: list[str], of_key: bool) -> tuple[int, int] | None:
    """Line and column of the value at a path of keys and indices, or of its key; of the deepest part that is there."""

def toml_path_at(text: str, line: int, column: int) -> list[str]:
    """The path of keys and indices of what is at a line and a column; empty where there is nothing."""

def processor(dump: str | None = None, path: str | None = None) -> str:
    """The processor here, or of a recorded CPUID: `processor`, `nearest`, `sysfs` (null for a recorded one)."""

def cloud_replay(
    columns: tuple[bytes, bytes, bytes, bytes, bytes],
    fleet: str,
    options: str,
    progress: Callable[[int, int | None], bool] | None = None,
) -> tuple[str, bytes, bytes, bytes]:
    """Replays a trace of VMs over a fleet (JSON) as options (JSON) say. The GIL is released.

    Columns, little-endian, a value for each request: arrival (i64, s), earliest deletion (i64, s; the largest i64:
    none is known), latest deletion (i64, s), virtual CPUs (u32), memory (u64, pages of 4 KiB).

    Back come what was found and measured (JSON), and columns of outcomes (u8: 0 refused, 1 unplaced, 2 placed),
    hosts (u32) and segments (u32).
    """

def trace_check(path: str) -> str:
    """What a check of the whole trace counted: `accesses`, `records`, `touches`, `events`, `instructions`."""

def _panic() -> None:
    """Panics, for the test that this is an error like any other."""

def bench_names() -> list[str]:
    """The benchmarks there are."""

def bench(name: str, repetitions: int, traces: str) -> str:
    """The best of `repetitions` runs of a benchmark: `name`, `value`, `unit`. The GIL is released."""
