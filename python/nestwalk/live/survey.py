# SPDX-License-Identifier: MIT OR Apache-2.0
"""Several processes: those of a cgroup, or all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nestwalk import _native
from nestwalk.errors import NestwalkError
from nestwalk.live import known
from nestwalk.live.inspection import SCHEMA, Inspection, hypervisor, inspect

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nestwalk.pool import Watcher

GROUP_PAGES = 8


@dataclass(frozen=True)
class Survey:
    """What is known of several processes."""

    scope: str
    """Which ones, in words."""
    made: list[Inspection]
    """Those that could be read, most memory first."""
    left_out: list[dict[str, Any]]
    """Those that could not: ``pid``, ``name``, and ``unavailable``, a sentence."""

    def to_json(self) -> dict[str, Any]:
        """Sums over all of them, then each."""
        processes = [_of_one(one.facts) for one in self.made]
        settings = self.made[0].facts["settings"] if self.made else known.unavailable("no process could be read")
        return {
            "schema": SCHEMA,
            "version": _native.version(),
            "scope": self.scope,
            "hypervisor": hypervisor(None),
            "memory": _summed([one["memory"] for one in processes]),
            "host_pt_fragmentation": fragmentation(self.made),
            "huge_pages": _huge(processes),
            "settings": settings,
            "processes": processes,
            "left_out": self.left_out,
        }


def _of_one(facts: dict[str, Any]) -> dict[str, Any]:
    """What is said of each of several: all but what is the same of all, and the strip."""
    return {key: value for key, value in facts.items() if key not in ("settings", "strip", "hypervisor", "recording")}


def _summed(parts: Sequence[dict[str, int]]) -> dict[str, int]:
    keys = parts[0] if parts else ()
    return {key: sum(part[key] for part in parts) for key in keys}


def fragmentation(made: Sequence[Inspection]) -> dict[str, Any]:
    """The metric over the groups of all processes; or why it is not known."""
    found = [one.host_pt_fragmentation for one in made]
    values = [one for one in found if known.reason(one) is None]
    if not values:
        why = known.first_reason(found)
        return {known.KEY: why} if why else known.unavailable("no process could be read")
    distribution = [sum(one["distribution"][lines] for one in values) for lines in range(GROUP_PAGES)]
    groups = sum(distribution)
    lines = sum(count * (index + 1) for index, count in enumerate(distribution))
    return {"value": lines / groups, "distribution": distribution, "groups": groups}


def _huge(processes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    values = [one["huge_pages"]["pmd_mapped_bytes"] for one in processes]
    why = known.first_reason(values)
    if why is not None or not values:
        none = {known.KEY: why} if why else known.unavailable("no process could be read")
        return {"pmd_mapped_bytes": none, "pmd_mapped_share": none}
    mapped, present = sum(values), sum(one["memory"]["present_bytes"] for one in processes)
    share = mapped / present if present else known.unavailable("no memory of the processes is present")
    return {"pmd_mapped_bytes": mapped, "pmd_mapped_share": share}


def survey(
    chosen: Sequence[tuple[int, str]], scope: str, *, all_flags: bool = False, contents: bool = False, watcher: Watcher
) -> Survey:
    """Looks at the processes ``chosen`` (number, name). Those that end meanwhile or may not be read are left out.

    Raises:
        NestwalkError: When there is none.
    """
    if not chosen:
        raise NestwalkError(f"{scope}: there is no process; give another cgroup, or --all")
    made, left_out = [], []
    watcher.started(0)
    for index, (pid, name) in enumerate(chosen):
        try:
            made.append(inspect(pid, all_flags=all_flags, contents=contents))
        except NestwalkError as error:
            left_out.append({"pid": pid, "name": name, **known.unavailable(str(error))})
        watcher.advanced(0, (index + 1) / len(chosen))
    watcher.finished(0)
    made.sort(key=lambda one: -one.facts["memory"]["present_bytes"])
    return Survey(scope, made, left_out)
