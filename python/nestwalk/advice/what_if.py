# SPDX-License-Identifier: MIT OR Apache-2.0
"""What each technique would give back to a running process: its page tables imported, and all techniques compared.

The process's memory, as it is now, is laid under a program: a capture of it, or a workload of its kind. That program
then runs on it (``vm-now``), and, as a program that starts afresh, under each configuration of the standard comparison.
"""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nestwalk import _native, advice, checks, comparisons, data, engine, matrix, program, scenario, sizes, traces
from nestwalk.advice import measured, standard, tables_of
from nestwalk.errors import NestwalkError, shown, unknown
from nestwalk.matrix import Cell, Entry
from nestwalk.program import Program

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nestwalk.advice.subject import Subject
    from nestwalk.advice.tables_of import Layout
    from nestwalk.comparisons import Comparison, Plan

NOW = "vm-now"
PLAIN = "vm-4k"
QUICK_ACCESSES = [100_000, 100_000]
"""Of a workload with ``--quick``: accesses that warm up and are measured."""


@dataclass(frozen=True)
class WhatIf:
    """A simulation of a process as it is, and of what could be."""

    done: Comparison
    notes: list[str]
    """What to know of it: a sentence each."""

    @property
    def walk_share(self) -> float | None:
        """The share of page walks in the time of the process as it is."""
        (group,) = self.done.verdict.groups
        return None if group.walk_share is None else group.walk_share.value

    def entry(self, technique: str) -> dict[str, Any] | None:
        """The entry of ``verdict.advice`` for a technique, costs held against a fresh start with 4 KiB pages."""
        name = standard.CONFIGURATIONS[technique]
        (group,) = self.done.verdict.groups
        found = next((entry for entry in group.advice if entry["configuration"] == name), None)
        if found is None:
            return None
        runs = {cell.name: run for cell, run in zip(self.done.plan.matrix.cells, self.done.results, strict=True)}
        counted = measured.costs(runs[name], runs[PLAIN])
        return {**found, "costs": advice.costs([technique], counted)}

    def to_json(self) -> dict[str, Any]:
        """The comparison, as ``nestwalk compare --json`` has it."""
        return self.done.to_json()


@dataclass(frozen=True)
class Request:
    """What is to be simulated."""

    trace: str | None
    """A capture of the process, or of a program like it."""
    workload: str | None
    """Or: a workload like it."""
    machine: str | None
    """None: the nearest to this processor."""
    seed: int
    quick: bool

    @property
    def place(self) -> str:
        """The machine's file."""
        return comparisons.place_of(standard.nearest_machine() if self.machine is None else self.machine)


@contextmanager
def planned(subject: Subject, layout: Layout, request: Request) -> Iterator[tuple[Plan, list[str]]]:
    """The comparison to be made for a process with this memory, and what to know of it; its files are there meanwhile.

    Raises:
        NestwalkError: When there is no program to take the process's part, or its memory cannot be read.
    """
    chosen, notes = _program(subject, layout, request)
    with tempfile.TemporaryDirectory(prefix="nestwalk-advise-") as folder:
        path = Path(folder) / "tables"
        copies = tables_of.write(layout, _regions(chosen, request), path)
        notes += [*layout.notes, *_sizes(layout, copies)]
        if subject.where == "bare metal":
            notes.append("This machine shows no hypervisor: the process is simulated as if it ran in a VM.")
        notes.append(_host_note(subject))
        plan = comparisons.Plan(
            _matrix(path, subject.host_pages),
            chosen,
            request.place,
            request.seed,
            request.quick,
        )
        yield plan, notes


def _program(subject: Subject, layout: Layout, request: Request) -> tuple[Program, list[str]]:
    """What takes the process's part, and how that was chosen."""
    if request.trace is not None and request.workload is not None:
        raise NestwalkError("--trace and --as contradict each other; give one")
    if request.trace is not None:
        chosen, of = program.of_trace(request.trace), traces.check_accesses(request.trace)["program"]
        notes = [f"Accesses are those of the trace {chosen.title}, its addresses laid on the process's memory."]
        if not _same(of, subject.name):
            what = f"The trace says that it is of {shown(of)}, and the process is {subject.name}"
            notes.append(f"{what}: unless both are the same program, gains are those of another one's accesses.")
        return chosen, notes
    kind = standard.kind_of(subject.name)
    name = request.workload or (kind.workload if kind else None)
    if name is None:
        what = f"of what kind '{subject.name}' is, is not known"
        raise NestwalkError(f"{what}; give --trace FILE (a capture of it) or --as WORKLOAD (nestwalk list workloads)")
    why = "as asked for" if request.workload else f"since {subject.name} is {kind.kind}" if kind else ""
    return _preset(name, layout, request), [f"Accesses are those of the workload {name} ({why}), not of the process."]


def _same(title: str, name: str) -> bool:
    """Whether a trace called ``title`` may be of a process called ``name``, which the kernel cuts at 15 letters."""
    return not title or title.startswith(name) or name.startswith(title)


def _preset(name: str, layout: Layout, request: Request) -> Program:
    """The preset ``name``, made as much smaller as the process is."""
    presets = [entry["name"] for entry in engine.catalog()["workloads"] if entry["description"].startswith("preset: ")]
    if name not in presets:
        raise unknown("workload", checks.text("workload", name), presets)
    whole = _workload(name, 1)
    times = len(_regions(whole, request)) // len(layout.regions)
    if times <= 1:
        return whole
    smaller = _workload(name, times)
    try:
        _regions(smaller, request)
    except NestwalkError:  # its size is not a footprint, but as many keys or vertices
        return whole
    return smaller


def _workload(name: str, times: int) -> Program:
    """The preset ``name``, so many times smaller."""
    preset = {"name": name, **({"divide_footprint": times} if times > 1 else {})}
    return Program(name, name, {"preset": preset}, {"preset": {**preset, "data_accesses": QUICK_ACCESSES}})


def _regions(chosen: Program, request: Request) -> list[int]:
    """The regions of 2 MiB that the program touches."""
    workload = chosen.quick if request.quick else chosen.workload
    table = {
        "schema": 1,
        "name": "advise",
        "machine": request.place,
        "seed": request.seed,
        "workload": dict(workload),
        "kernels": [{}],
    }
    return _native.touched_regions(scenario.write(table), "advise.toml", str(data.TRACES))


def _sizes(layout: Layout, copies: int) -> list[str]:
    size, regions = sizes.words(layout.pages), len(layout.regions)
    said = f"Imported: {size} of the process's anonymous memory in {regions} regions of 2 MiB"
    return [f"{said}; the program has more, so they are repeated {copies} times." if copies > 1 else f"{said}."]


def _host_note(subject: Subject) -> str:
    if subject.host_pages == "2m":
        return "The host has 2 MiB pages in all rows, as `nestwalk probe` found it likely."
    return "The host has 4 KiB pages but where a row says else; a guest cannot read what it has (`nestwalk probe`)."


def _matrix(dump: Path, host_pages: str) -> matrix.Matrix:
    """The standard comparison's first variant, and before it the process as it is."""
    host = {"manager": {"kind": "thp", "enabled": "always"} if host_pages == "2m" else {"kind": "linux4k"}}
    now = Entry(
        NOW,
        "the process's memory as it is",
        "the process's page tables as they are now",
        {"kernels": [host, {"dump": str(dump)}]},
        changes=(),
    )
    standard_one = matrix.load(matrix.STANDARD)
    cells = [Cell(now, Entry("", "", "", {}))]
    for cell in standard_one.cells:
        entry = cell.configuration
        if cell.variant.name or entry.role != "advice":
            continue
        kernels = [*entry.scenario["kernels"]]
        if host_pages == "2m" and "paging" not in kernels[0]:
            kernels[0] = {**kernels[0], **host}
        role = "setup" if entry.name == PLAIN else "advice"
        changed = replace(entry, scenario={**entry.scenario, "kernels": kernels}, role=role)
        cells.append(Cell(changed, cells[0].variant))
    return matrix.Matrix("A process as it is, and what could be", tuple(cells), baseline=NOW)
