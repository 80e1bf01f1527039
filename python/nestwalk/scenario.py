# SPDX-License-Identifier: MIT OR Apache-2.0
"""Scenario files: read, changed by options of the command line, and written so that a run can be made again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from nestwalk import _native, checks, data, files, toml_file, traces
from nestwalk.errors import SEED_MAX, NestwalkError, unknown, unreadable
from nestwalk.pool import Job

if TYPE_CHECKING:
    from collections.abc import Mapping

SUFFIX = ".toml"
QUICK_ACCESSES = 500_000
"""Measured accesses after which a ``--quick`` run of a generator stops."""
QUICK_WARM_ACCESSES = 140_000_000
"""Accesses after which the warm-up of such a run ends, warm or not."""
QUICK_TRACE_ACCESSES = 16_000_000
"""The same of a trace that has windows. They stand for so many; few of them are in the file where it is filtered."""
QUICK_WHOLE_ACCESSES = 100_000_000
"""A whole trace of no more accesses than this is measured in full."""
QUICK_WINDOWS, QUICK_WINDOW_WARM, QUICK_WINDOW = 8, 8_000_000, 2_000_000
"""Of a longer one: windows, and accesses that warm up and are measured in each."""


def read(name: str) -> Job:
    """The scenario in the file ``name``, or the bundled one of that name.

    Raises:
        NestwalkError: When there is none.
    """
    path = Path(checks.text("scenario", name))
    with files.telling(path, "cannot be read"):
        is_file = name.endswith(SUFFIX) or path.exists()
    if is_file:
        return Job(path.stem, read_text(path), path)
    known = [entry["name"] for entry in data.catalog()["scenarios"]]
    if name not in known:
        raise unknown("scenario", name, known)
    return Job(name, _native.scenario(name), Path(f"{name}{SUFFIX}"))


def read_text(path: Path) -> str:
    """What is in the text file ``path``.

    Raises:
        NestwalkError: When it cannot be read, or is no text.
    """
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise unreadable(path, error) from error
    except UnicodeDecodeError as error:
        raise NestwalkError(f"{path}: byte {error.start}: is no UTF-8 text; save it as UTF-8") from error


def adapt(job: Job, *, quick: bool = False, seed: int | None = None) -> Job:
    """The job with what the command line asks for.

    A scenario that needs no change is passed on as it was written, so that the engine's messages name its lines.

    Raises:
        NestwalkError: When it is no TOML.
    """
    table = toml_file.parse(job.scenario, str(job.path))
    changed = dict(table)
    if seed is not None:
        changed["seed"] = checks.whole("seed", seed, 0, SEED_MAX)
    if quick:
        changed["sampling"] = quick_sampling(table.get("sampling"), _trace(table, job.path))
    return job if changed == table else Job(job.name, write(changed), job.path)


def quick_sampling(sampling: object, trace: str | None = None) -> dict[str, Any]:
    """A scenario's ``sampling``, of which less is measured.

    A generator's run ends early. Of a trace that has windows the first are measured, warmed up as in a full run; of
    a whole one, windows all over it (its beginning is another program: it fills its memory), or all if it is short.
    """
    known: dict[str, Any] = dict(sampling) if isinstance(sampling, dict) else {}
    limit, most = known.get("measured_accesses_max"), QUICK_ACCESSES
    if trace is None:
        known.setdefault("warm_accesses_max", QUICK_WARM_ACCESSES)
    else:
        most = QUICK_TRACE_ACCESSES
        about = traces.trace_info(trace)
        accesses = about["represented_accesses"]
        if about["sampling"] is None and accesses > QUICK_WHOLE_ACCESSES and not known:
            return {"period": accesses // QUICK_WINDOWS, "warm": QUICK_WINDOW_WARM, "measure": QUICK_WINDOW}
        if about["sampling"] is None:
            most = QUICK_WHOLE_ACCESSES
    known["measured_accesses_max"] = min(limit, most) if isinstance(limit, int) else most
    return known


def _trace(table: Mapping[str, Any], path: Path) -> str | None:
    """The trace of a scenario of the file ``path``, if it has one that is there."""
    workload = table.get("workload")
    name = workload.get("trace") if isinstance(workload, dict) else None
    if not isinstance(name, str) or name in data.traces():
        return name if isinstance(name, str) else None
    file = path.parent / name
    return str(file) if file.is_file() else None


def write(table: Mapping[str, Any]) -> str:
    """TOML for ``table``, without what is not set."""
    import tomli_w

    return tomli_w.dumps(_without_nulls(table))


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value if item is not None]
    return value
