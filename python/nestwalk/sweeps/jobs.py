# SPDX-License-Identifier: MIT OR Apache-2.0
"""The runs of a sweep as jobs: a scenario for each point, and the machine and cost files that its axes change."""

from __future__ import annotations

import copy
import hashlib
import json
from typing import TYPE_CHECKING, Any

from nestwalk import _native, matrix, pool, scenario, toml_file
from nestwalk.errors import NestwalkError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from nestwalk.sweeps.spec import Point, Spec
    from nestwalk.toml_file import KeyPath

COSTS_OF = """
schema = 1
name = "costs"
machine = "broadwell-asap"
costs = {costs}
workload.generator = {{ kind = "gups", footprint = "64 MiB" }}
kernels = [{{}}]
"""
"""A scenario that names a cost file, for what the engine reads in it."""


class Builder:
    """Makes the jobs of a specification. Changed machine and cost files are written to ``folder``, each once."""

    def __init__(self, spec: Spec, folder: Path, *, quick: bool) -> None:
        """For ``spec``; ``quick`` measures less."""
        self._spec, self._folder, self._quick = spec, folder, quick
        self._tables: dict[tuple[str, str], dict[str, Any]] = {}
        self._written: dict[str, tuple[str, str]] = {}

    def job(self, point: Point, number: int) -> pool.Job:
        """The run of a point.

        Raises:
            NestwalkError: When an axis sets a key where there can be none.
        """
        spec = self._spec
        table: dict[str, Any] = {"schema": 1, **spec.base, "machine": point.machine}
        table |= {"name": f"run-{number}", "description": point.title[:200], "seed": point.seed}
        table = matrix.merge(table, spec.parts["scenario"])
        if point.program is not None:
            table["workload"] = dict(point.program.quick if self._quick else point.program.workload)
        if point.cell is not None:
            table = matrix.merge(table, point.cell.scenario)
        table = copy.deepcopy(table)
        self._set(table, point, "scenario")
        if self._quick and isinstance(table.get("workload"), dict):
            trace = table["workload"].get("trace")
            table["sampling"] = scenario.quick_sampling(table.get("sampling"), trace)
        parts: dict[str, tuple[str, Callable[[KeyPath], str]]] = {}
        for part in ("machine", "costs"):
            made = self._part(part, str(table.get(part, "linux-6.1")), point)
            if made is not None:
                table[part] = made[0]
                parts[made[0]] = (made[1], self._places(point, part))
        path = spec.folder / f"run-{number}{scenario.SUFFIX}"
        return pool.Job(point.title, scenario.write(table), path, self._places(point, "scenario"), parts)

    def _places(self, point: Point, file: str) -> Callable[[KeyPath], str]:
        """Where the user wrote what is at a path of one of a point's files."""
        return lambda path: self._origin(point, (file, *path))

    def _set(self, table: dict[str, Any], point: Point, file: str) -> None:
        """Sets what the point's axes set in a file."""
        for path, value, place in point.settings:
            if path[0] == file:
                _put(table, path[1:], value, self._spec.source.at(place[:2]))

    def _part(self, part: str, name: str, point: Point) -> tuple[str, str] | None:
        """A machine or cost file, as this point changes it: where it was written, and its text; None if unchanged."""
        own = [(path, value) for path, value, _ in point.settings if path[0] == part]
        common = self._spec.parts[part]
        if not own and not common:
            return None
        known = json.dumps([part, name, own], default=str)
        if known not in self._written:
            table = copy.deepcopy(matrix.merge(self._read(part, name), common))
            self._set(table, point, part)
            text = scenario.write(table)
            path = self._folder / f"{part}-{hashlib.sha256(text.encode()).hexdigest()[:16]}{scenario.SUFFIX}"
            path.write_text(text, encoding="utf-8")
            self._written[known] = (str(path), text)
        return self._written[known]

    def _read(self, part: str, name: str) -> dict[str, Any]:
        """What a machine or cost file says."""
        if (part, name) not in self._tables:
            place = str(self._spec.folder / name) if name.endswith(scenario.SUFFIX) else name
            try:
                if part == "machine":
                    found = json.loads(_native.machine(place))
                    table = toml_file.parse(found["text"], found["path"])
                else:
                    text = COSTS_OF.format(costs=json.dumps(place))
                    table = json.loads(_native.configuration(text, "costs.toml"))["costs"]
            except NestwalkError as error:
                raise NestwalkError(f"{self._spec.source.file}: {error}") from error
            self._tables[part, name] = table
        return self._tables[part, name]

    def _origin(self, point: Point, path: KeyPath) -> str:
        """Where the user wrote what is at ``path`` of a file: the axis that sets it, else the part or the technique."""
        source = self._spec.source
        best: tuple[int, str] = (0, f"{source.file}: {point.title}")
        for setting, _, place in point.settings:
            depth = _common(setting, path)
            if depth == min(len(setting), len(path)) and depth > 1:
                best = max(best, (depth, f"{source.at(place)}: {point.title}"), key=lambda found: found[0])
        if best[0]:
            return best[1]
        if path[0] == "scenario" and point.cell is not None and self._spec.techniques is not None:
            origin = point.cell.origin(path[1:])
            if origin is not None:
                return f"{self._spec.techniques.source.at(origin)}: {point.title}"
        if len(path) > 1 and path[1] in self._spec.parts[str(path[0])]:
            return f"{source.at(('set', *path))}: {point.title}"
        return best[1]


def _common(one: KeyPath, two: KeyPath) -> int:
    """How many names two paths begin with alike."""
    count = 0
    for left, right in zip(one, two, strict=False):
        if left != right:
            break
        count += 1
    return count


def _put(table: dict[str, Any], path: KeyPath, value: Any, place: str) -> None:
    """Sets the value at a path of keys and indices; tables that are missing are made, list elements are not.

    Raises:
        NestwalkError: When there is no such element, or something else than a table on the way.
    """
    here: Any = table
    for depth, name in enumerate(path):
        last = depth == len(path) - 1
        shown = ".".join(map(str, path[: depth + 1]))
        if isinstance(here, list):
            if not isinstance(name, int) or name >= len(here):
                what = f"there are {len(here)}, counted from 0" if isinstance(name, int) else "a number must stand here"
                raise NestwalkError(f"{place}: {shown}: {what}")
            if last:
                here[name] = value
            here = here[name]
        elif isinstance(here, dict):
            if last:
                here[str(name)] = value
                return
            here = here.setdefault(str(name), {})
        else:
            what = f"{'.'.join(map(str, path[:depth]))} is {here!r} and no table, so it has no keys"
            raise NestwalkError(f"{place}: {shown}: {what}")
