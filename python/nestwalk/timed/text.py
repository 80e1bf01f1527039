# SPDX-License-Identifier: MIT OR Apache-2.0
"""What ``nestwalk time`` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from nestwalk import tables
from nestwalk.probe import statistics
from nestwalk.probe.statistics import ROUNDS_MIN
from nestwalk.timed import pages
from nestwalk.timed.timing import MEASURES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from nestwalk.timed.held import Held, Host
    from nestwalk.timed.timing import Timed

GIVEN = {
    "always": "the kernel's setting is `always`; for 4 KiB pages the program has them disabled by prctl",
    "madvise": "the kernel's setting is `madvise`, so only what glibc's malloc hands out has huge pages "
    "(GLIBC_TUNABLES=glibc.malloc.hugetlb=1)",
}
HOSTS: dict[Host, str] = {
    "4k": "a host with 4 KiB pages",
    "2m": "a host with 2 MiB pages",
    "none": "no host",
}
MIB = 1 << 20


def page(done: Timed) -> list[RenderableType]:
    """All of it: what huge pages give first."""
    lines: list[RenderableType] = [Text(headline(done), style="bold"), Text(), measured(done)]
    if done.held:
        lines += [Text(), simulated(done)]
    return [*lines, Text(), *(Text(line) for line in notes(done))]


def headline(done: Timed) -> str:
    """What huge pages give the program, if that is clear."""
    found = done.ratio(done.judged)
    what = MEASURES[done.judged].removesuffix(", s")
    if done.huge_bytes["huge"] == 0:
        return "What huge pages give is unavailable, because the program got none."
    if found is None:
        return f"What huge pages give is unavailable, because {what} is too short to be measured."
    if found.low is None or found.high is None:
        return (
            f"With 4 KiB pages {what} is {found.value:.3f} times as long; no interval, because there are too few "
            "rounds."
        )
    if found.low <= 1 <= found.high:
        return f"Huge pages make no difference to {what} that is clear of the noise: {found.span(3)}."
    change = f"{abs(1 - 1 / found.value):.1%} {'shorter' if found.value > 1 else 'longer'}"
    return f"Huge pages make {what} {change}: with 4 KiB pages it is {found.span(3)} times as long."


def measured(done: Timed) -> RenderableType:
    """A line for each measure."""
    table = tables.new(("", "4 KiB pages", "huge pages", "4 KiB / huge"))
    for measure, title in MEASURES.items():
        small, huge, ratio = done.value(measure, "4k"), done.value(measure, "huge"), done.ratio(measure)
        if small is None or huge is None:
            continue
        decimals = 0 if measure == "faults" else 3
        table.add_row(
            title,
            *(tables.number(found.value, decimals, found.ci95) for found in (small, huge)),
            ratio.span(3) if ratio else tables.NOTHING,
        )
    most = (_mebibytes(done.huge_bytes[which]) for which in pages.BOTH)
    table.add_row("most memory in huge pages, MiB", *most, "")
    return table


def _mebibytes(number: int | None) -> str:
    return tables.NOTHING if number is None else f"{number / MIB:.0f}"


def simulated(done: Timed) -> RenderableType:
    """A line for each simulated host."""
    table = tables.new(
        (
            "simulated on",
            "cycles an\naccess, 4 KiB",
            "of them\nwalks",
            "cycles an\naccess, huge",
            "in huge\npages, MiB",
            "4 KiB / huge",
            "verdict",
        )
    )
    cycles = [None if one is None else statistics.value(one) for one in map(done.cycles, pages.BOTH)]
    if None not in cycles:
        small, huge = (f"{one.value:.2f}" for one in cycles if one is not None)
        ratio = done.ratio(done.judged)
        table.add_row("(measured)", small, "", huge, "", ratio.span(3) if ratio else "", "")
    for held in done.held:
        table.add_row(
            HOSTS[held.host],
            f"{held.small.total:.2f}",
            f"{held.small.walk:.2f}",
            f"{held.huge.total:.2f}",
            _mebibytes(held.huge_bytes),
            tables.number(held.ratio.value, 3, held.ratio.ci95),
            verdict(held),
        )
    return table


def verdict(held: Held) -> str:
    """Whether simulated and measured ratio agree."""
    if held.agrees is None:
        return "unavailable, because there are too few rounds for an interval"
    off = held.ratio.value / held.measured.value - 1
    return "agrees" if held.agrees else f"differs, {off:+.1%}"


def notes(done: Timed) -> Sequence[str]:
    """Units, noise, how huge pages were had, and what the machine's file would need to agree."""
    rounds = len(done.trials["4k"])
    intervals = (
        "with bootstrapped 95 % intervals"
        if rounds >= ROUNDS_MIN
        else f"without intervals, which need {ROUNDS_MIN} rounds (--rounds)"
    )
    counted = f"Medians over {rounds} rounds" if rounds > 1 else "One round"
    lines = [
        *done.notes,
        f"{counted} of a run with either kind of pages, {intervals}.",
        f"Huge pages: {GIVEN[done.means]}.",
    ]
    if done.simulation:
        lines.append(f"Simulated: {done.simulation.machine}; the program's own accesses, without the kernel's work.")
        lines += [line for held in done.held for line in needed(done, held)]
    return lines


def needed(done: Timed, held: Held) -> Sequence[str]:
    """What the machine's file would need to say for the simulator to agree."""
    shares = done.shares(held)
    if shares is None:
        return [critical(held)]
    overlap, walks = shares.values()
    file = held.shares
    line = (
        f"{_where(held)} both times come out if {overlap.span(0)} thousandths of the data's latency are hidden "
        f"(data_overlap_permille; the machine's file has {file.overlap:.0f}) and nothing hides {walks.span(0)} "
        f"thousandths of walk cycles (walk_critical_permille; {file.critical:.0f})."
    )
    return [line]


def _where(held: Held) -> str:
    return f"On {HOSTS[held.host]}" if held.host != "none" else "Natively"


def critical(held: Held) -> str:
    """Which ``walk_critical_permille`` would make the simulated ratio the measured one."""
    where = _where(held)
    value, low, high = held.critical_measured.values()
    has = f"the machine's file has {held.shares.critical:.0f}"
    if value is None:
        return f"{where} no share of walk cycles that nothing hides gives the measured ratio; {has} thousandths."
    span = " to ".join("none" if end is None else f"{end:.0f}" for end in (low, high))
    return f"{where} the measured ratio is had if nothing hides {value:.0f} thousandths ({span}) of walk cycles; {has}."
