# SPDX-License-Identifier: MIT OR Apache-2.0
"""Scenario files: read, changed by options of the command line, and written so that a run can be made again."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nestwalk import _native, data
from nestwalk.errors import NestwalkError, unknown, unreadable
from nestwalk.pool import Job

if TYPE_CHECKING:
    from collections.abc import Mapping

SUFFIX = ".toml"
QUICK_ACCESSES = 500_000
"""Measured accesses after which a ``--quick`` run stops."""


def read(name: str) -> Job:
    """The scenario in the file ``name``, or the bundled one of that name.

    Raises:
        NestwalkError: When there is none.
    """
    path = Path(name)
    if name.endswith(SUFFIX) or path.exists():
        try:
            return Job(path.stem, path.read_text(encoding="utf-8"), path)
        except OSError as error:
            raise unreadable(path, error) from error
        except UnicodeDecodeError as error:
            raise NestwalkError(f"{path}: byte {error.start}: is no UTF-8 text") from error
    known = [entry["name"] for entry in json.loads(_native.catalog(str(data.TRACES)))["scenarios"]]
    if name not in known:
        raise unknown("scenario", name, known)
    return Job(name, _native.scenario(name), Path(f"{name}{SUFFIX}"))


def adapt(job: Job, *, quick: bool = False, seed: int | None = None) -> Job:
    """The job with what the command line asks for.

    A scenario that needs no change is passed on as it was written, so that the engine's messages name its lines.

    Raises:
        NestwalkError: When it is no TOML.
    """
    try:
        table = tomllib.loads(job.scenario)
    except tomllib.TOMLDecodeError as error:
        raise NestwalkError(f"{job.path}: {error}") from error
    changed = dict(table)
    if seed is not None:
        changed["seed"] = seed
    if quick:
        changed["sampling"] = quick_sampling(table.get("sampling"))
    return job if changed == table else Job(job.name, write(changed), job.path)


def quick_sampling(sampling: object) -> dict[str, Any]:
    """A scenario's ``sampling``, ended early."""
    known: dict[str, Any] = dict(sampling) if isinstance(sampling, dict) else {}
    limit = known.get("measured_accesses_max")
    known["measured_accesses_max"] = min(limit, QUICK_ACCESSES) if isinstance(limit, int) else QUICK_ACCESSES
    return known


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
