# SPDX-License-Identifier: MIT OR Apache-2.0
"""What the report says in words: findings, what the pictures show, the machine, and what to keep in mind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nestwalk import tables

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nestwalk.comparisons import Comparison
    from nestwalk.result import Result

FIGURES = {
    "time": {
        "title": "Where the time goes",
        "text": (
            "Estimated time of the measured part, in per cent of the plain VM's (100: the plain VM), least first. What "
            "a technique can give back is in the parts for page walks and for kernel work."
        ),
    },
    "whole-run": {
        "title": "The whole run",
        "text": (
            "The same from the program's beginning on, in per cent of the plain VM's whole run: with first touches, "
            "page faults, zeroing and VM exits. What looks free in the measured part may have been paid for here."
        ),
    },
    "latency": {
        "title": "Walk latency",
        "text": "How long a page walk takes on average, shortest first. The thin line is the 95 % interval.",
    },
    "distribution": {
        "title": "Distribution of walk latencies",
        "text": (
            "The share of the walks that took no longer than so many cycles: the further left and the steeper, "
            "the better. Drawn for the plain VM, the best of each kind, and a limit; all rows are in the table below."
        ),
    },
    "references": {
        "title": "Where each level's references were served",
        "text": (
            "References that an average walk makes to each level of each table, by the part of the memory "
            "hierarchy that served them. PGD to PTE are the program's own table (the guest's, in a VM), hPGD to "
            "hPTE the host's, which is walked for each guest level and for the data. Levels that the page-walk "
            "caches or the nested TLB answer have short bars or none."
        ),
    },
    "fragmentation": {
        "title": "Host page-table fragmentation",
        "text": (
            "Over all groups of 8 neighbouring guest pages that are mapped by 4 KiB leaves: how many cache lines "
            "hold their host page-table entries. 1 is perfect, 8 the worst. It matters where the host maps 4 KiB "
            "leaves."
        ),
    },
    "reserved": {
        "title": "Memory set aside and not used",
        "text": (
            "Frames that the guest's memory manager holds in reserve and that nothing maps, as a share of the guest's "
            "memory in use, while the program runs. Only configurations that ever reserve are shown."
        ),
    },
}

ALWAYS = (
    (
        "Walk counts and latencies are simulated from page tables, TLBs, page-walk caches and data caches "
        "that hold real addresses. Time is an estimate: instructions, data latency and walk latency are "
        "weighted by the machine file's overlap shares, kernel work by a table of costs."
    ),
    (
        "Walk latency is the sum of a walk's references, one after the other; walks that overlap in hardware "
        "are accounted for only by the critical share in the time estimate."
    ),
    "Write-back traffic, memory bandwidth and data prefetchers are not modelled.",
)
TRACE = "A trace from user-mode capture holds the program's own accesses; what the kernel copies for it is not in it."
CORUNNER = (
    "The SMT co-runner issues one access to a random line for each access of the program: it competes for "
    "caches, not for TLBs. Real neighbours are milder or worse; a scenario can put real programs beside it."
)
PREFETCH = "Prefetches of page-table lines (ASAP) take no bandwidth from the program."
BOOT = (
    "What the kernels did before the program began (a VM's memory that is allocated at once, a pool for page tables) "
    "is in no time."
)


def model_caveats(results: Sequence[Result]) -> list[str]:
    """What to keep in mind of the model, as far as it was used."""
    scenarios = [result.configuration["scenario"] for result in results]
    applies = {
        TRACE: any("trace" in scenario["workload"] for scenario in scenarios),
        CORUNNER: any(scenario["corunner"] != "none" for scenario in scenarios),
        PREFETCH: any(scenario.get("asap") for scenario in scenarios),
        BOOT: any(result.whole_run["boot_cycles"] for result in results),
    }
    return [*ALWAYS, *(text for text, holds in applies.items() if holds)]


def caveats(done: Comparison) -> list[str]:
    """What to keep in mind with these numbers."""
    said = []
    if done.plan.quick:
        said.append(tables.QUICK)
    cold = tables.not_warm((title, result) for title, _, result in done.labelled)
    said += [text for text in (cold, tables.elsewhere(done)) if text]
    idle = [row["title"] for _, row in done.measured if not row["walks_per_kiloaccess"]]
    if idle:
        said.append(f"No walk was measured for: {', '.join(dict.fromkeys(idle))}.")
    statistics = done.results[0].statistics
    populated = statistics["populated_pages"]
    said.append(
        f"{_grouped(statistics['accesses'])} accesses in {len(statistics['windows'])} windows were measured in each "
        f"run, in the first one after {_grouped(statistics['warm_accesses'])} that only warmed TLBs and caches"
        + (
            f"; {_grouped(populated)} pages were populated by first touches in stretches that the trace skips. "
            if populated
            else ". "
        )
        + "Intervals are computed over the windows; differences of two rows window by window."
    )
    return [*said, *model_caveats(done.results)]


def machine(result: Result) -> list[tuple[str, str]]:
    """The machine as lines of what and value."""
    table = result.configuration["machine"]
    lines = [("machine", f"{table['name']}: {table['description']}")]
    for key, value in table.items():
        if key not in {"schema", "name", "description"}:
            lines += _flat(key, value)
    return lines


def _flat(key: str, value: Any) -> list[tuple[str, str]]:
    """A value of a machine file in lines; the plain values of a table share one."""
    if value in (None, "", []):
        return []
    if isinstance(value, list):
        return [line for number, item in enumerate(value, 1) for line in _flat(f"{key} {number}", item)]
    if not isinstance(value, dict):
        return [(_spaced(key), str(value))]
    apart = {name: item for name, item in value.items() if name == "source" or _is_nested(item)}
    together = [
        f"{_spaced(name)} {_listed(item)}" for name, item in value.items() if name not in apart and item is not None
    ]
    lines = [(_spaced(key), ", ".join(together))] if together else []
    return lines + [
        line for name, item in apart.items() for line in _flat(f"{key} {name}" if key != "mmu" else name, item)
    ]


def _is_nested(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and any(isinstance(item, dict) for item in value))


def _spaced(key: str) -> str:
    return key.replace("_", " ")


def _listed(value: Any) -> str:
    return " + ".join(map(str, value)) if isinstance(value, list) else str(value)


def _grouped(number: int) -> str:
    return f"{number:,}".replace(",", "\N{NARROW NO-BREAK SPACE}")
