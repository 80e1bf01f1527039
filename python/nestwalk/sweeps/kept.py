# SPDX-License-Identifier: MIT OR Apache-2.0
"""What can be done with a store of results: list, show, export, collect."""

from __future__ import annotations

import io
import json
from functools import cache
from typing import TYPE_CHECKING, Any

from nestwalk import _native, data, files, orders
from nestwalk.errors import NestwalkError, shown
from nestwalk.result import Result

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from nestwalk.content_store import ContentStore, Entry


def described(entry: Entry) -> dict[str, Any]:
    """What a result is of: ``program``, ``machine``, ``kernels``, ``seed``, with what the store knows about it."""
    result = entry.result
    configuration = result["configuration"]
    scenario = configuration["scenario"]
    return {
        "key": entry.key,
        "program": program_of(scenario["workload"]),
        "machine": _machine(configuration["machine"]),
        "kernels": " > ".join(kernel_of(kernel) for kernel in scenario["kernels"]),
        "seed": scenario["seed"],
        **{name: entry.about[name] for name in ("model", "version", "seconds", "memory_bytes", "made")},
    }


def program_of(workload: Mapping[str, Any]) -> str:
    """A workload in a word or two."""
    if "trace" in workload:
        digest = workload["trace"].removeprefix("sha256:")
        return f"trace {_bundled().get(digest, digest[:12])}"
    generator = workload.get("generator", {})
    return " ".join(str(generator[key]) for key in ("kind", "footprint") if key in generator) or "program"


@cache
def _bundled() -> dict[str, str]:
    """The names of the bundled traces, by checksum: a result knows a trace by that alone."""
    return {orders.checksum(data.file(name))[0]: name for name in data.traces()}


def kernel_of(kernel: Mapping[str, Any]) -> str:
    """A kernel by its memory manager, and where it places its tables if that is not stock."""
    manager = kernel.get("manager", {}).get("kind", "linux4k")
    tables = kernel.get("tables", {}).get("kind", "buddy")
    return manager if tables == "buddy" else f"{manager}+{tables}"


def _machine(machine: Mapping[str, Any]) -> str:
    """A machine without its name, which is not part of a result: by its frequency and second-level TLB."""
    return f"{machine['frequency_mhz']} MHz"


def _entries(store: ContentStore, program: str | None) -> Iterator[tuple[dict[str, Any], Entry]]:
    for key in store.keys():  # noqa: SIM118 (no mapping)
        entry = store.get(key)
        if entry is None:
            continue
        about = described(entry)
        if program is None or program in about["program"]:
            yield about, entry


def listed(store: ContentStore, program: str | None = None) -> list[dict[str, Any]]:
    """All results, newest first."""
    return sorted((about for about, _ in _entries(store, program)), key=lambda about: (-about["made"], about["key"]))


def none(store: ContentStore, program: str | None) -> str:
    """Why nothing was found: there is nothing, or nothing of that program."""
    there = len(store.keys())
    if program is None or not there:
        return "no results are kept there"
    return f"none of the {there} results has '{shown(program)}' in its program"


def one(store: ContentStore, prefix: str) -> tuple[dict[str, Any], Result]:
    """The result whose key begins with ``prefix``.

    Raises:
        NestwalkError: When there is none, or there are several.
    """
    key = store.find(prefix)
    entry = store.get(key)
    if entry is None:
        raise NestwalkError(f"{store.place}: the result {key[:16]} was corrupt and is gone; make its run again")
    return described(entry), Result(entry.result)


def export(store: ContentStore, file: Path, program: str | None = None) -> int:
    """Writes the rows of all results to a Parquet file, with ``configuration`` as JSON; returns how many.

    Raises:
        NestwalkError: When there are none, or the file cannot be written.
    """
    import polars as pl

    rows = [
        {
            **about,
            **{key: value for key, value in entry.result["row"].items() if key != "configuration"},
            "configuration": json.dumps(entry.result["configuration"]),
        }
        for about, entry in _entries(store, program)
    ]
    if not rows:
        raise NestwalkError(f"{store.place}: {none(store, program)}; there is nothing to export")
    names = list(dict.fromkeys(name for row in rows for name in row))
    texts = {"key", "program", "machine", "kernels", "model", "version", "configuration"}
    whole = {"seed", "memory_bytes", "made"}
    schema = {name: pl.String if name in texts else pl.Int64 if name in whole else pl.Float64 for name in names}
    frame = pl.DataFrame([{name: row.get(name) for name in names} for row in rows], schema=schema).sort("key")
    written = io.BytesIO()
    frame.write_parquet(written)
    files.write_file(file, written.getvalue())
    return len(rows)


def collect(store: ContentStore, *, before: int | None, other_models: bool, dry_run: bool) -> dict[str, Any]:
    """Takes results away: corrupt ones, those made ``before`` (Unix time), those of other models if asked to."""
    looked_at = corrupt = removed = 0
    for key, about in store.heads(store.keys()):
        looked_at += 1
        broken = about is None
        old = about is not None and before is not None and about["made"] <= before
        foreign = about is not None and other_models and about["model"] != _native.model()
        if broken or old or foreign:
            corrupt += broken
            removed += 1
            if not dry_run:
                store.remove(key, None if about is None else about.get("kind"))
    return {"looked_at": looked_at, "removed": removed, "corrupt": corrupt}
