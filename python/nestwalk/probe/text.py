# SPDX-License-Identifier: MIT OR Apache-2.0
"""What ``nestwalk probe`` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.text import Text

from nestwalk import tables
from nestwalk.probe import probing, validation
from nestwalk.probe.cells import LINES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import RenderableType

    from nestwalk.probe.probing import Probed
    from nestwalk.probe.statistics import Value
    from nestwalk.probe.validation import Validated

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
UNKNOWN = "unknown"
HOST = {
    "4k": "likely 4 KiB pages",
    "2m": "likely 2 MiB pages",
    "mixed": "likely pages of both sizes",
    "unknown": UNKNOWN,
}
NOISE = (
    "Medians over {rounds} rounds in turns, with bootstrapped 95 % intervals; in {share:.0%} of the stretches "
    "that were timed the kernel gave the processor to somebody else (these are left out)."
)


def size(number: float | None) -> str:
    """Bytes for people."""
    if number is None:
        return UNKNOWN
    for unit, name in ((GIB, "GiB"), (MIB, "MiB")):
        if number >= unit:
            return f"{number / unit:.4g} {name}"
    return f"{number / KIB:.0f} KiB"


def page(done: Probed) -> list[RenderableType]:
    """All of a probe: what is likely, first."""
    return [*verdicts(done), Text(), curve(done), Text(), *notes(done)]


def verdicts(done: Probed) -> list[RenderableType]:
    """A line for each question."""
    table = tables.new(("", "", ""), right=False, header=False)
    for what, answer, why in answers(done):
        table.add_row(what, answer, why)
    return [table]


def answers(done: Probed) -> list[tuple[str, str, str]]:
    """What was asked, what is likely, and why, or how sure."""
    rows = [("the host backs this VM with", HOST[done.host_pages], done.host_pages_why)]
    for key, name in (("l1_tlb", "first-level TLB reaches"), ("l2_tlb", "second-level TLB reaches")):
        found = done.reach[key]
        why = found["unavailable"] or (
            f"about {found['entries']} pages of 4 KiB; the knee is between "
            f"{size(found['low_bytes'])} and {size(found['high_bytes'])}"
        )
        rows.append((name, size(found["footprint_bytes"]), why))
    for key, name in (("l2", "the L2"), ("llc", "the last-level cache"), ("memory", "memory")):
        found = done.walk_cost[key]
        if found["unavailable"]:
            rows.append((f"a walk with PTEs in {name}", UNKNOWN, found["unavailable"]))
        else:
            answer = f"{tables.number(found['ns'], 1, found['ci95'])} ns"
            rows.append(
                (
                    f"a walk with PTEs in {name}",
                    answer,
                    f"{found['cycles']:.0f} cycles, at {size(found['footprint_bytes'])}",
                )
            )
    llc = done.llc
    if llc["unavailable"]:
        rows.append(("share of the last-level cache", UNKNOWN, llc["unavailable"]))
    else:
        between = f"{size(llc['low_bytes'])} to {size(llc['high_bytes'])}"
        stated = f"; CPUID says {size(llc['stated_bytes'])}" if llc["stated_bytes"] else ""
        rows.append(("share of the last-level cache", size(llc["bytes"]), between + stated))
        latencies = f"{tables.number(llc['hit_ns'], 1, llc['hit_ns_ci95'])} ns, "
        latencies += f"{tables.number(llc['memory_ns'], 1, llc['memory_ns_ci95'])} ns"
        rows.append(("a load from it, from memory", latencies, "as far as prefetchers let it be seen"))
    ghz = probing.clock(done.measured)
    rows.append(("clock in effect", f"{ghz:.2f} GHz" if ghz else UNKNOWN, "a chain of additions, one a cycle"))
    return rows


def curve(done: Probed) -> RenderableType:
    """Nanoseconds an access by footprint, a column for each layout and order."""
    series = sorted({(cell.layout, cell.order) for cell in done.measured.samples if cell.order != LINES})
    table = tables.new(("footprint", *(f"{layout}\n{order}" for layout, order in series)))
    samples = done.measured.samples
    for footprint in sorted({cell.footprint_bytes for cell in samples if cell.order != LINES}):
        row = []
        for layout, order in series:
            cell = next(
                (c for c in samples if (c.footprint_bytes, c.layout, c.order) == (footprint, layout, order)), None
            )
            row.append(number(done.measured.value(cell)) if cell else "")
        table.add_row(size(footprint), *row)
    return table


def number(value: Value) -> str:
    """A median with its interval."""
    return tables.number(value.value, 1, value.ci95)


def notes(done: Probed) -> list[RenderableType]:
    """Units, noise, how sure the layouts are, counters."""
    return [Text(line) for line in footnotes(done)]


def counted(counter: Mapping[str, Any]) -> str:
    """A counter's name and count; and in what share of the time it had a counter to itself."""
    said = f"{counter['name'].replace('_', ' ')} {counter['count']:,}"
    share = counter["counted_share"]
    return said if share == 1 else f"{said} (extrapolated from {share:.0%} of the time)"


def footnotes(done: Probed) -> list[str]:
    """The same as lines."""
    measured = done.measured
    lines = ["ns an access; each access needs the one before (a chase of pointers, one line a page)"]
    lines.append(NOISE.format(rounds=measured.rounds, share=measured.disturbed / max(measured.stretches, 1)))
    lines.append(layouts(measured.facts))
    opened = [counted(one) for one in measured.counters if one["count"] is not None]
    lines.append("Counters: " + (", ".join(opened) if opened else measured.counters[0]["unavailable"]))
    return lines


def layouts(facts: dict[str, Any]) -> str:
    """How the layouts were made, and how sure they are."""
    small = facts["small"]
    whole = small["huge_bytes"] >= small["bytes"]
    sure = (
        "the kernel gave 2 MiB pages, so frames are contiguous for certain"
        if whole
        else "the kernel gave few 2 MiB pages, so frames are contiguous only as far as first touches made them so"
    )
    seen = {
        name: found["value"] for name, found in small.get("lines_per_group", {}).items() if found["value"] is not None
    }
    why = next(
        (found["unavailable"] for found in small.get("lines_per_group", {}).values() if found["unavailable"]), ""
    )
    shown = "; lines a group in pagemap: " + ", ".join(f"{name} {value:.3f}" for name, value in sorted(seen.items()))
    return f"Layouts: {sure}; pages were moved by {small['means']}" + (shown if seen else f"; pagemap: {why}")


def validated_page(done: Validated) -> list[RenderableType]:
    """All of a validation: the verdict first."""
    counts = done.counts()
    head = (
        f"{done.name}: of {len(done.shapes)} shapes {counts['agrees']} agree, {counts['differs']} differ and "
        f"{counts['not clear']} are not clear of the noise"
    )
    lines: list[RenderableType] = [Text(head, style="bold"), Text()]
    lines += [
        *verdicts(done.probed),
        Text(),
        shapes(done),
        Text(),
        *crossings(done),
        Text(),
        side_by_side(done),
        Text(),
    ]
    lines += [Text(line) for line in notes_of(done)]
    return lines


def notes_of(done: Validated) -> list[str]:
    """What is simulated, and how the layouts were made."""
    machine = "; ".join(done.machine.changes) or "nothing is changed"
    lines = [f"Simulated: {done.name} as `machine detect` writes it, but: {machine}."]
    if done.machine_as_measured:
        lines.append("With measured latencies besides: " + "; ".join(done.machine_as_measured.changes) + ".")
    below = {
        "none": "No host: bare metal.",
        "4k": "The simulated host has 4 KiB pages",
        "2m": "The simulated host has 2 MiB pages",
    }
    sure = "" if done.host in (done.probed.host_pages, "none") else " (not known: assumed)"
    lines.append(f"{below[done.host]}{sure}.".replace("..", "."))
    measured = done.measured
    lines.append(NOISE.format(rounds=measured.rounds, share=measured.disturbed / max(measured.stretches, 1)))
    lines.append(layouts(measured.facts))
    return lines


def shape_rows(done: Validated) -> list[tuple[str, ...]]:
    """Each shape: question, order, footprint, measured ratio, simulated ratio, verdict."""
    return [
        (
            f"{validation.QUESTIONS[shape.question][0]} / {validation.QUESTIONS[shape.question][1]}",
            shape.order,
            size(shape.footprint_bytes),
            shape.measured.span(2),
            f"{shape.simulated:.2f}",
            shape.verdict + (", in the interval" if shape.within else f", {shape.off:+.0%}"),
        )
        for shape in done.shapes
    ]


SHAPE_HEADINGS = ("time of", "order", "footprint", "measured", "simulated", "verdict")
SIDE_HEADINGS = (
    "layout",
    "order",
    "footprint",
    "measured, ns",
    "simulated, ns",
    "with measured\nlatencies, ns",
    "walk\ncycles",
)


def shapes(done: Validated) -> RenderableType:
    """The verdicts."""
    table = tables.new(SHAPE_HEADINGS)
    for row in shape_rows(done):
        table.add_row(*row)
    return table


def crossings(done: Validated) -> list[RenderableType]:
    """From where on layouts part."""
    return [Text(line) for line in crossing_lines(done)]


def crossing_lines(done: Validated) -> list[str]:
    """From which footprint on layouts part, on both sides."""
    lines = []
    for name in ("scattered", "four", "two"):
        above, below, _ = validation.QUESTIONS[name]
        for order in validation.ORDERS:
            seen, ours = validation.crossing(done.shapes, name, order)
            words = [f"from {size(where)} on" if where else "nowhere" for where in (seen, ours)]
            lines.append(f"{above} costs more than {below} by 5 %, {order}: measured {words[0]}, simulated {words[1]}")
    return lines


def side_rows(done: Validated) -> list[tuple[str, ...]]:
    """Nanoseconds an access, measured and simulated, a row a cell."""
    rows: list[tuple[str, ...]] = []
    for row in sorted(done.rows(), key=lambda row: (row["order"], row["footprint_bytes"], row["layout"])):
        other = row["simulated_ns_as_measured"]
        rows.append(
            (
                row["layout"],
                row["order"],
                size(row["footprint_bytes"]),
                tables.number(row["ns_per_access"], 1, row["ci95"]),
                f"{row['simulated_ns']:.1f}",
                tables.NOTHING if other is None else f"{other:.1f}",
                f"{row['simulated_walk_cycles']:.1f}",
            )
        )
    return rows


def side_by_side(done: Validated) -> RenderableType:
    """The same as a table."""
    table = tables.new(SIDE_HEADINGS)
    for row in side_rows(done):
        table.add_row(*row)
    return table


def markdown(done: Validated, date: str) -> str:
    """The tables for ``docs/fidelity.md``."""

    def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
        flat = [tables.one_line(heading) for heading in headings]
        return [f"| {' | '.join(flat)} |", f"|{' --- |' * len(flat)}", *(f"| {' | '.join(row)} |" for row in rows)]

    counts = done.counts()
    head = (
        f"Measured on {date} on {done.probed.processor['brand']} (family {done.probed.processor['family']:x}h model "
        f"{done.probed.processor['model']:02x}h), in a VM: of {len(done.shapes)} shapes {counts['agrees']} agree, "
        f"{counts['differs']} differ, {counts['not clear']} are not clear."
    )
    lines = [head, ""]
    lines += table(("this machine", "likely", "why, or how sure"), [tuple(row) for row in answers(done.probed)])
    lines += ["", *table(SHAPE_HEADINGS, shape_rows(done)), "", *(f"- {line}" for line in crossing_lines(done)), ""]
    lines += [*table(SIDE_HEADINGS, side_rows(done)), "", *(f"- {line}" for line in notes_of(done)), ""]
    return "\n".join(lines)
