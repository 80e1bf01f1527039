# SPDX-License-Identifier: MIT OR Apache-2.0
"""The list of what to do, for people: a table, and below it what is behind each entry that asks for an act."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.padding import Padding
from rich.text import Text

from nestwalk import advice, tables
from nestwalk.intervals import Estimate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from nestwalk.advice.process import Advice
    from nestwalk.comparisons import Comparison

HEAD = "What to do, in this order"
SETTINGS = "docs/settings.md says more, and how to see that a setting took effect."
EACH = "Each gain is the row's own, against the same plain VM: those of several rows do not add up."
ACTS = ("do", "weigh", "try", "ask")
"""States that ask for an act, or for a thought: these are explained."""


def page(entries: Sequence[dict[str, Any]], head: str = HEAD) -> list[RenderableType]:
    """``entries`` as a table, then a paragraph for each that asks for an act; nothing if none can be got."""
    if not any(entry["how"] for entry in entries):
        return []
    gains = any(not isinstance(entry["gain"], str) for entry in entries)
    table = tables.new(("", "what", "do", *(["gives back"] if gains else []), "who", "how to get it"), right=False)
    for number, entry in enumerate(entries, 1):
        gain = [signed(entry)] if gains else []
        who = ", ".join(entry["changes"]) or tables.NOTHING
        table.add_row(str(number), entry["title"], words(entry), *gain, who, entry["how"] or tables.NOTHING)
    lines: list[RenderableType] = [Text(head, style="bold"), table, *([Text(EACH)] if gains else []), Text()]
    for number, entry in enumerate(entries, 1):
        if entry["state"] in ACTS:
            lines.append(Text(f"{number} {entry['title']}: {advice.STATES[entry['state']]}."))
            lines += [Padding(Text(line), (0, 0, 0, 2)) for line in behind(entry)]
    return [*lines, Text(SETTINGS), Text()]


def words(entry: dict[str, Any]) -> str:
    """What to do about it, in few words."""
    return advice.STATES[entry["state"]].partition(":")[0]


def signed(entry: dict[str, Any]) -> str:
    """What it gives back; negative where it takes more time."""
    from nestwalk import verdict

    if isinstance(entry["gain"], str):
        return tables.NOTHING
    return verdict.given(Estimate(entry["gain"], entry["gain_ci95"]))


def behind(entry: dict[str, Any]) -> list[str]:
    """The reason, what it gives back over the whole run, and the costs: a line each."""
    from nestwalk import verdict

    whole = entry.get("whole_run_gain")
    over = Estimate(whole, entry.get("whole_run_gain_ci95")) if whole is not None else None
    return [
        line
        for line in (
            entry["reason"],
            f"Gives back over the whole run: {verdict.given(over)}." if over else "",
            *(one["sentence"] for one in entry.get("standard", ())),
            f"Costs: {entry['costs']['memory']} {entry['costs']['latency']}",
        )
        if line
    ]


def of_comparison(done: Comparison) -> list[RenderableType]:
    """All that ``nestwalk advise TRACE`` prints: the cost of walks, and what to do."""
    from nestwalk import answers

    plan, groups = done.plan, done.verdict.groups
    head = [Text(groups[0].cost, style="bold")] if groups else [Text(f"{done.verdict.unavailable}.")]
    about = f"{plan.program.title} on {plan.machine}, seed {plan.seed}" + (", quick" if plan.quick else "")
    return [*head, Text(about), Text(), *answers.advice_of(done), *([Text(tables.QUICK)] if plan.quick else [])]


def of_process(made: Advice) -> list[RenderableType]:
    """All that ``nestwalk advise PID`` prints."""
    from nestwalk.advice import process

    lines: list[RenderableType] = [Text(made.sentence, style="bold"), *map(Text, made.notes), Text()]
    if made.what_if is not None:
        group = made.what_if.done.verdict.groups[0]
        lines += [Text(group.cost), Text()]
    lines += page(made.entries)
    known: dict[str, list[str]] = {"set": [], "leave": [], "cannot": []}
    for entry in made.entries:
        if entry["state"] in known:
            known[entry["state"]].append(f"{entry['title']}: {entry['reason']}")
    for state, said in known.items():
        if said:
            lines.append(Text(f"{advice.STATES[state].capitalize()}", style="bold"))
            lines += [Padding(Text(line), (0, 0, 0, 2)) for line in said]
    if made.what_if is None:
        lines += [Text(), Text(f"What each gives back is {process.NOT_RUN}.")]
    return lines
