# SPDX-License-Identifier: MIT OR Apache-2.0
"""Traces: converting captures of real programs, and looking at what a trace holds."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nestwalk import _native, checks, data, files, parquet
from nestwalk.errors import SEED_MAX, NestwalkError, shown

if TYPE_CHECKING:
    from collections.abc import Callable

SUFFIXES = {"k": 10**3, "M": 10**6, "G": 10**9}
"""What may stand behind a number on the command line."""


@dataclass(frozen=True)
class Sample:
    """What a sampled trace keeps: all first touches, and windows of accesses at random places of equal stretches."""

    windows: int | None = None
    """So many windows, evenly over the steady phase."""
    period: int | None = None
    """Or: a window in every so many accesses."""
    windows_max: int | None = None
    """At most so many of them."""
    collapse: int = 0
    """Accesses before a window's warm-up of which only the last one to each line is kept; needs a filter."""
    warm: int = 1_000_000
    """Accesses of a window that warm up."""
    window: int = 200_000
    """Accesses of a window that are measured."""
    seed: int = 1
    """What the random places follow from."""
    steady_access: int | None = None
    """No window begins before this access."""
    steady_mark: int | None = None
    """No window begins before this mark of the capture."""
    budget: int | None = None
    """About how large the file may become, in bytes."""


COUNT_MAX = 10**14
"""Accesses, as of the engine's files; an assumption: a longer run takes years."""
PROCESS_MAX = 2**32 - 1
"""Numbers of processes, as the options have it."""
LEVEL_MAX = 22
"""zstd's highest level."""
DIGITS_MAX = len(str(COUNT_MAX))


def count(text: str) -> int:
    """From ``"200k"``, ``"4M"`` or ``"1000"``, the number.

    Raises:
        ValueError: When it is none.
    """
    number = text[:-1] if text[-1:] in SUFFIXES else text
    if not (number.isascii() and number.isdecimal()):
        raise ValueError(f"{shown(text)!r}: give a whole number from 0, such as 200k or 4M")
    found = int(number) * SUFFIXES.get(text[-1:], 1) if len(number) <= DIGITS_MAX else COUNT_MAX + 1
    if found > COUNT_MAX:
        raise ValueError(f"{shown(text)!r}: give at most {COUNT_MAX // 10**9}G")
    return found


def trace_info(name: str | Path) -> dict[str, Any]:
    """What is in a trace (a file, or the name of a bundled one): ``accesses``, ``footprint_bytes``, ``vmas`` and more.

    Raises:
        NestwalkError: When there is no such trace, or it is damaged.
    """
    found: dict[str, Any] = json.loads(_native.trace_info(str(file_of(name))))
    return found


def check_accesses(name: str | Path) -> dict[str, Any]:
    """Refuses a trace without an access to data, of which no time can be said.

    Returns:
        As :func:`trace_info`.

    Raises:
        NestwalkError: When it is such a trace, there is none, or it is damaged.
    """
    found = trace_info(name)
    if not found["accesses"]:
        what = "has no access to data, so there is nothing to simulate"
        raise NestwalkError(f"{shown(name)}: {what}; give a trace of the program (nestwalk capture)")
    return found


def trace_verify(name: str | Path) -> dict[str, Any]:
    """Reads a whole trace (a file, or the name of a bundled one) and checks every checksum, record and total.

    Returns:
        What it counted: ``accesses``, ``records``, ``touches``, ``events``, ``instructions``.

    Raises:
        NestwalkError: When there is no such trace, or it is damaged: where, and what can be done.
    """
    found: dict[str, Any] = json.loads(_native.trace_check(str(file_of(name))))
    return found


def trace_head(name: str | Path, count: int, *, skip: int = 0) -> list[dict[str, Any]]:
    """Items of a trace in order, from number ``skip`` on: accesses, first touches, memory events and marks.

    Returns:
        A dictionary each; ``what`` is ``access``, ``touch``, ``event`` or ``mark``; addresses and sizes are in bytes.

    Raises:
        NestwalkError: When there is no such trace, or it is damaged there.
    """
    checks.whole("count", count, 1, COUNT_MAX)
    checks.whole("skip", skip, 0, COUNT_MAX)
    found: list[dict[str, Any]] = json.loads(_native.trace_head(str(file_of(name)), skip, count))
    return found


def trace_profile(name: str | Path, *, progress: Callable[[int, int | None], bool] | None = None) -> dict[str, Any]:
    """How the program of a trace uses its memory: reads all of it.

    Returns:
        ``footprint`` (points of ``access`` and ``bytes``), ``working_set`` (``access``, ``accesses``, ``bytes``),
        ``reuse`` (``pages_below``, ``accesses``), ``first_accesses``, ``rows`` (``start``, ``end``, ``region``),
        ``heat`` (``interval``, ``row``, ``accesses``), ``interval_accesses``.

    Raises:
        NestwalkError: When there is no such trace, or it is damaged.
    """
    found: dict[str, Any] = json.loads(_native.trace_profile(str(file_of(name)), progress))
    return found


def locality(
    name: str | Path, *, accesses: int = 20_000_000, progress: Callable[[int, int | None], bool] | None = None
) -> dict[str, Any]:
    """How near each other, in memory and in time, a program uses its pages.

    Args:
        name: A trace (a file, or the name of a bundled one), or a workload (its name, or its TOML file).
        accesses: Measured accesses to count, at most. A workload warms up for as many before.
        progress: Told of accesses done and of all there are; ends it by returning false.

    Returns:
        ``accesses``, ``uses`` (of pages that are not among the last 64), ``first_uses``, ``reuse`` (``pages_below``,
        ``uses``), ``near`` (``pages``, ``uses``, ``with_neighbour``), ``runs`` (``pages_below``, ``runs``) and
        ``run_mean``.

    Raises:
        NestwalkError: When there is neither such a trace nor such a workload, or it is damaged.
    """
    checks.whole("accesses", accesses, 1, COUNT_MAX)
    known = {entry["name"] for entry in data.catalog()["workloads"]} - set(data.traces())
    is_workload = str(name).endswith(".toml") or str(name) in known
    program = {"preset": str(name)} if is_workload else {"trace": str(file_of(name))}
    found: dict[str, Any] = json.loads(_native.locality(json.dumps(program), str(data.TRACES), accesses, progress))
    return found


def file_of(name: str | Path) -> Path:
    """The file of a trace, by the name of a bundled one or by its path, whatever bytes are in it."""
    path = Path(name if isinstance(name, str | Path) and str(name) else checks.text("trace", name))
    with files.telling(path, "cannot be read"):
        return path if "/" in str(name) and path.is_file() else data.file(str(name))


def sample_of(
    *,
    windows: int | None = None,
    period: int | None = None,
    windows_max: int | None = None,
    collapse: int = 0,
    warm: int | None = None,
    window: int | None = None,
    seed: int | None = None,
    skip_start: int | None = None,
    steady_from: int | None = None,
    budget: int | None = None,
) -> Sample | None:
    """The sampling that these options of the command line ask for; None if none of them is given.

    Raises:
        NestwalkError: When one of them needs another one, or two of them exclude each other.
    """
    if windows is not None and period is not None:
        raise NestwalkError("--sample-windows and --period exclude each other; give one")
    if skip_start is not None and steady_from is not None:
        raise NestwalkError("--skip-start and --steady-from exclude each other; give one")
    if windows_max is not None and period is None:
        raise NestwalkError("--windows-max needs --period; with --sample-windows there are as many as that says")
    values = {
        "--collapse": collapse or None,
        "--warm": warm,
        "--window": window,
        "--seed": seed,
        "--skip-start": skip_start,
        "--steady-from": steady_from,
        "--budget": budget,
    }
    given = [name for name, value in values.items() if value is not None]
    if windows is None and period is None:
        if given:
            raise NestwalkError(f"{given[0]} is about sampling, and needs --sample-windows or --period")
        return None
    for name, value in (("--sample-windows", windows), ("--period", period), ("--window", window)):
        if value == 0:
            raise NestwalkError(f"{name} 0: give 1 or more")
    default = Sample()
    return Sample(
        windows=windows,
        period=period,
        windows_max=windows_max,
        collapse=collapse,
        warm=default.warm if warm is None else warm,
        window=default.window if window is None else window,
        seed=default.seed if seed is None else checks.whole("seed", seed, 0, SEED_MAX),
        steady_access=None if steady_from is not None else skip_start or 0,
        steady_mark=steady_from,
        budget=budget,
    )


def trace_convert(
    source: str | Path,
    destination: str | Path,
    *,
    program: str | None = None,
    command: str | None = None,
    tool: str | None = None,
    date: str | None = None,
    level: int | None = None,
    total: int | None = None,
    sample: Sample | None = None,
    filter_: str | None = None,
    from_: str | None = None,
    until: int | None = None,
    process: int | None = None,
    columns: str | None = None,
    progress: Callable[[int, int | None], bool] | None = None,
) -> dict[str, Any]:
    """Converts a capture to a trace, which is there whole or not at all.

    Args:
        source: The capture, plain or packed (zstd, gzip, xz, lz4), or a folder of drmemtrace files; ``-`` is standard
            input. Its format is found by its content (``docs/traces.md``).
        destination: The trace to write.
        program: What to call it in tables.
        command: The command line that ran, to keep with the trace.
        tool: What captured it, likewise.
        date: When, likewise.
        level: zstd's level, 1 to 22.
        total: Accesses of the capture, where it cannot be read twice.
        sample: What to keep; everything if None.
        filter_: Leave out and count what two small LRU filters hold, one over lines and one over pages: ``default``,
            ``exact``, or their sizes (``docs/trace-format.md``); everything is kept if None.
        from_: The source's format (``drmemtrace``, ``champsim``, ``lackey``, ``pin``, ``addresses``, ``numpy``, ``raw``
            or ``system``), where its content does not tell.
        until: Of a trace: the access before which it is cut off.
        process: Of a drmemtrace trace of several processes: the number of the one to convert.
        columns: Of a Parquet file: which column is what (``nestwalk.parquet``).
        progress: Told of accesses done and to be done (if known); ends the conversion by returning False.

    Returns:
        ``accesses``, ``bytes_per_access`` and what the trace says of itself.

    Raises:
        NestwalkError: When the capture is damaged or unreadable, or the trace cannot be written.
    """
    target = checks.path("destination", destination)
    files.check_file(target)
    if sample is not None and not isinstance(sample, Sample):
        raise NestwalkError(f"sample must be a nestwalk.traces.Sample or None, not {sample!r}")
    if level is not None:
        checks.whole("level", level, 1, LEVEL_MAX)
    if total is not None:
        checks.whole("total", total, 0, COUNT_MAX)
    if process is not None:
        checks.whole("process", process, 0, PROCESS_MAX)
    texts = {"program": program, "command": command, "tool": tool, "date": date, "filter_": filter_, "from_": from_}
    for key, value in texts.items():
        if value is not None and not isinstance(value, str):
            raise NestwalkError(f"{key} = {value!r}: give a text, or None")
    if sample is not None and (sample.windows is None) == (sample.period is None):
        raise NestwalkError("a sample has either windows or a period")
    if sample is not None and sample.windows_max is not None and sample.period is None:
        raise NestwalkError("windows_max needs a period")
    options = {
        "program": program,
        "command": command,
        "tool": tool,
        "date": date,
        "level": level,
        "total": total,
        "sample": None if sample is None else asdict(sample),
        "filter": filter_,
        "from": from_,
        "until": until,
        "process": process,
    }
    origin = _source(checks.path("source", source))
    if process is not None and parquet.is_in(origin):
        raise NestwalkError(f"{origin}: only drmemtrace files say which process made an access: leave --process out")
    if parquet.is_in(origin):
        with parquet.stream(origin, columns) as (fifo, about):
            told = json.dumps({**options, **about(options)})
            found: dict[str, Any] = json.loads(_native.trace_convert(fifo, os.fspath(target), told, progress))
    elif columns is not None:
        raise NestwalkError(f"{origin}: columns are those of a Parquet file, and this is none")
    else:
        told = json.dumps(options)
        found = json.loads(_native.trace_convert(os.fspath(origin), os.fspath(target), told, progress))
    return found


def _source(path: Path) -> Path:
    """A file or folder as it is given, or the bundled trace of that name."""
    return path if str(path) == "-" or path.exists() or "/" in str(path) else _bundled(path)


def _bundled(path: Path) -> Path:
    try:
        return data.file(str(path))
    except NestwalkError:
        return path  # the engine says what is wrong with it
