# SPDX-License-Identifier: MIT OR Apache-2.0
"""What to do for a running process: its state by technique, and what each gives back, where a run says it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nestwalk import _native, advice, techniques
from nestwalk.advice import standard, steps

if TYPE_CHECKING:
    from nestwalk.advice.steps import Finding
    from nestwalk.advice.subject import Subject
    from nestwalk.advice.what_if import WhatIf

NOT_RUN = (
    "unavailable, because no run of this program was simulated; --what-if with --trace FILE (a capture of it) or "
    "--as WORKLOAD (a program like it) simulates one"
)
SAID = {("do", "weigh", "try"): "To do, in this order", ("ask",): "To find out", ("set",): "Set already"}
"""States that the sentence names, and how."""
NO_ROW = "unavailable, because the simulation has no row for it"
ON_NODE = (
    "It runs in a container ({sort}): settings are those of the node's kernel, so whoever runs the node sets them."
)
MEANS = {"vm": "a VM", "bare metal": "bare metal: no hypervisor shows itself", "unknown": "a machine of unknown sort"}


@dataclass(frozen=True)
class Advice:
    """What to do for one process."""

    subject: Subject
    what_if: WhatIf | None = None
    entries: list[dict[str, Any]] = field(init=False)
    """One a technique, in the order in which a person should act, with the keys of ``verdict.advice``."""

    def __post_init__(self) -> None:
        """Makes the entries."""
        object.__setattr__(self, "entries", [self._entry(name) for name in steps.STEPS])

    def _entry(self, name: str) -> dict[str, Any]:
        technique, found = techniques.find(name), steps.STEPS[name](self.subject)
        simulated = self.what_if.entry(name) if self.what_if is not None else None
        other = self.what_if.entry(found.instead) if self.what_if is not None and found.instead else None
        state = _state(found, simulated, other)
        none = NOT_RUN if self.what_if is None else NO_ROW
        native = self.subject.where == "bare metal" and not self.subject.is_vmm
        likes = [] if simulated or native else standard.of(self.subject.name)
        of_kind = [entry for one in likes if (entry := one.entry(name))]
        return {
            "configuration": standard.CONFIGURATIONS[name],
            "technique": name,
            "title": technique.title.replace(" in the guest", "") if native else technique.title,
            "who": techniques.class_of(technique.who),
            "changes": list(technique.who),
            "gain": simulated["gain"] if simulated else none,
            "gain_ci95": simulated["gain_ci95"] if simulated else None,
            "whole_run_gain": simulated["whole_run_gain"] if simulated else None,
            "whole_run_gain_ci95": simulated["whole_run_gain_ci95"] if simulated else None,
            "standard": of_kind,
            "how": _how(found, name),
            "commands": [f"{step.where}: {step.line}" if step.where else step.line for step in technique.get],
            "step": techniques.order().index(name) + 1,
            "state": state,
            "reason": f"{found.reason} {simulated['reason']}" if simulated else found.reason,
            "costs": simulated["costs"] if simulated else advice.costs([name], {}),
        }

    @property
    def sentence(self) -> str:
        """All of it in brief: where it runs, what is set, and what to do, in order."""
        subject = self.subject
        parts = [f"{subject.name} runs on {MEANS[subject.where]}."]
        for states, words in SAID.items():
            named = [entry["title"] for entry in self.entries if entry["state"] in states]
            parts += [f"{words}: {', '.join(named)}."] if named else []
        if not any(entry["state"] in ("do", "try", "weigh", "ask") for entry in self.entries):
            parts.append("There is nothing to do.")
        return " ".join(parts)

    @property
    def notes(self) -> list[str]:
        """What to know of it: a sentence each."""
        subject = self.subject
        said = []
        if subject.container is not None:
            said.append(ON_NODE.format(sort=subject.container))
        if subject.where == "unknown":
            said.append(f"Whether there is a hypervisor is {subject.why('hypervisor')}.")
        if self.what_if is not None:
            said += self.what_if.notes
        return said

    def to_json(self) -> dict[str, Any]:
        """What ``nestwalk advise PID --json`` prints."""
        what_if = self.what_if
        return {
            "schema": 1,
            "version": _native.version(),
            "target": "process",
            "sentence": self.sentence,
            "walk_share": what_if.walk_share if what_if else None,
            "unavailable": None if what_if else f"The share of page walks is {NOT_RUN}",
            "advice": self.entries,
            "notes": self.notes,
            "subject": self.subject.to_json(),
            "what_if": what_if.to_json() if what_if else None,
        }


def _state(found: Finding, simulated: dict[str, Any] | None, other: dict[str, Any] | None) -> str:
    """What to do, once a run has said what it gives back; what is set or not to be had stays so.

    A technique in whose place another one does (``other``) is left unless it gives back more by more than its interval.
    """
    if simulated is None or found.state not in ("try", "ask", "leave"):
        return found.state
    if other is not None and simulated["gain"] - other["gain"] <= (simulated["gain_ci95"] or 0.0):
        return found.state
    if found.state == "ask":
        return "ask" if simulated["state"] in ("do", "weigh", "unknown") else str(simulated["state"])
    return str(simulated["state"])


def _how(found: Finding, name: str) -> str:
    """The line to type; what to find out, where that comes first."""
    technique = techniques.find(name)
    if found.how:
        return found.how
    lines = [step for step in technique.get if step.where]
    if techniques.class_of(technique.who) != techniques.CLASSES[0] or not lines:
        return technique.short
    return f"{lines[0].where}: {lines[0].line}"
