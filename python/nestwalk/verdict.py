# SPDX-License-Identifier: MIT OR Apache-2.0
"""The answer first: how much time page walks take, which technique gives how much of it back, and who must act.

A comparison's rows fall into groups, one for each variant (alone, beside a co-runner ...). Each group is held against
its own plain VM, the row of the matrix' baseline in that variant. Within a group, rows are put together by what they
take: a setting, a kernel patch, hardware. Two rows whose difference lies within its interval are equal; rows that the
user cannot have (a machine without a hypervisor) are limits and no advice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nestwalk import advice, intervals, techniques, whole_run
from nestwalk.advice import measured
from nestwalk.cycles import total

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nestwalk.comparisons import Comparison
    from nestwalk.cycles import Part
    from nestwalk.intervals import Estimate
    from nestwalk.result import Result

NEEDS: dict[str | None, str] = {
    "settings": "settings",
    "kernel patch": "kernel patches",
    "hardware": "new hardware",
    None: "rows of which the matrix does not say who must act",
}
"""What gives time back, by class."""

SAID = 0.0005
"""Shares below this are not said."""

SMALL = 0.0005
"""Intervals below this get a digit more."""

LISTED_MAX = 6
"""A line lists no more than so many rows or groups of equals; the table has all."""

LOSS_MIN = 0.01
"""A row that loses at least this share over the whole run, and so much more than in the measured part, is never named
without that."""

WORK_MIN = 1.1
"""Likewise with so many times the plain VM's kernel work, where the whole run's time is not known."""

PLUS_MINUS = "\N{PLUS-MINUS SIGN}"
MINUS = "\N{MINUS SIGN}"


@dataclass(frozen=True)
class Candidate:
    """A row, held against its group's plain VM."""

    configuration: str
    title: str
    role: str
    """``advice``, ``limit`` or ``setup``."""
    who: str | None
    """One of :data:`nestwalk.techniques.CLASSES`; None where nothing has to change or the matrix does not say."""
    changes: tuple[str, ...]
    how: str
    gain: Estimate
    """The share of the plain VM's time that it gives back; negative where it takes more."""
    whole_run_gain: Estimate | None = None
    """The same over the whole run, first touches, faults and exits included; None where that is unavailable."""
    estimated: bool = False
    """Whether a part of its kernel work is estimated, because a sampled trace does not show it."""
    kernel_work: float | None = None
    """Its kernel work of the whole run over the plain VM's."""
    data_gain: float = 0.0
    """What it gives back of the time that the program waits for data, as a share of the plain VM's time."""
    work_gain: float = 0.0
    """Likewise of the kernels' work in the measured part."""
    techniques: tuple[str, ...] = ()
    """Those that it uses, by name."""
    reason: str = ""
    """Why it gives back what it does: a sentence, from the counters."""
    costs: dict[str, Any] = field(default_factory=dict)
    """What it takes besides: see :func:`nestwalk.advice.measured.costs`."""

    @property
    def paid(self) -> str:
        """Where the whole run says something else than the measured part: what, in brackets; else empty."""
        whole = self.whole_run_gain
        if whole is not None:
            if whole.value >= LOSS_MIN and self.finding in ("equal", "takes more"):
                return f" (over the whole run {'about ' if self.estimated else ''}{percent(whole)} less time)"
            if whole.value > -LOSS_MIN or whole.value > self.gain.value - LOSS_MIN:
                return ""
            return f" (over the whole run {'about ' if self.estimated else ''}{percent(whole)} more time)"
        if self.kernel_work is None or self.kernel_work < WORK_MIN:
            return ""
        return f" (kernel work from the beginning on {self.kernel_work:.1f} times the plain VM's)"

    @property
    def state(self) -> str:
        """What to do about it: one of :data:`nestwalk.advice.STATES`."""
        if self.who == techniques.CLASSES[2]:
            return "cannot"
        if self.finding == "unknown":
            return "unknown"
        whole = 0.0 if self.whole_run_gain is None else self.whole_run_gain.value
        if self.finding == "gives back":
            return "weigh" if whole <= -LOSS_MIN else "do"
        if whole < LOSS_MIN:
            return "leave"
        return "do" if self.finding == "equal" else "weigh"

    @property
    def step(self) -> int | None:
        """Its place in the order in which a person should act; None where its techniques are not known."""
        known = techniques.order()
        return max((known.index(name) + 1 for name in self.techniques), default=None)

    @property
    def finding(self) -> str:
        """``gives back``, ``takes more``, ``equal`` (within the interval), or ``unknown`` without an interval."""
        differs = self.gain.differs
        if differs is None:
            return "unknown"
        if not differs:
            return "equal"
        return "gives back" if self.gain.value > 0 else "takes more"


Tier = tuple[Candidate, ...]
"""Rows between which the intervals leave no difference, best first."""


@dataclass(frozen=True)
class Group:
    """The rows of one variant."""

    variant: str
    program: str
    plain: str
    """The title of its plain VM."""
    walk_share: Estimate | None
    """Of the plain VM's time."""
    candidates: tuple[Candidate, ...]
    difference: Callable[[Candidate, Candidate], Estimate]
    """Of two rows' gains."""
    unavailable: str | None = None
    """Why the whole run's gains are unavailable: a sentence."""

    def having(self, role: str) -> list[Candidate]:
        """Rows of that role."""
        return [row for row in self.candidates if row.role == role]

    def advised(self, who: str | None) -> list[Candidate]:
        """Rows that can be had, of that class."""
        return [row for row in self.having("advice") if row.who == who]

    def tiers(self, rows: Sequence[Candidate]) -> list[Tier]:
        """``rows`` from the largest gain to the smallest; those that are equal to the first of a tier join it."""
        left = sorted(rows, key=lambda row: -row.gain.value)
        tiers = []
        while left:
            first = left[0]
            tier = [row for row in left if row is first or self.difference(first, row).differs is False]
            tiers.append(tuple(tier))
            left = [row for row in left if row not in tier]
        return tiers

    @property
    def advice(self) -> list[dict[str, Any]]:
        """The entries of ``verdict.advice``: by class, then in the order in which a person should act, then by gain."""
        entries = []
        for who in NEEDS:
            tiered = [(row, tier) for tier in self.tiers(self.advised(who)) for row in tier]
            tiered.sort(key=lambda found: (found[0].step or len(techniques.order()) + 1, len(found[0].techniques)))
            entries += [self._entry(row, tier) for row, tier in tiered]
        return entries

    def _entry(self, row: Candidate, tier: Tier) -> dict[str, Any]:
        return {
            "configuration": row.configuration,
            "title": row.title,
            "variant": self.variant,
            "who": row.who,
            "changes": list(row.changes),
            "gain": row.gain.value,
            "gain_ci95": row.gain.ci95,
            "finding": row.finding,
            "equal_to": [other.configuration for other in tier if other is not row],
            **_whole_run(row),
            "how": row.how,
            "step": row.step,
            "state": row.state,
            "reason": row.reason,
            "costs": advice.costs(row.techniques, row.costs),
        }

    @property
    def lines(self) -> list[str]:
        """The group in sentences: the cost, then each class, then the limits and other set-ups, then the whole run."""
        said = [self.cost, *(line for who in NEEDS if (line := self.class_line(who)))]
        for role, head in (("limit", "Limits, not to be had in a VM"), ("setup", "Other set-ups")):
            rows = self.having(role)
            if rows:
                said.append(f"{head}: {'; '.join(f'{short(row.title)} {_found(row)}{row.paid}' for row in rows)}.")
        return [*said, *self._more_than_walks(), *self._whole_run_lines()]

    def _more_than_walks(self) -> list[str]:
        """Where the row that gives back most gives back more than the walks take: of what."""
        rows = [row for row in self.having("advice") if row.finding == "gives back"]
        best = max(rows, key=lambda row: row.gain.value, default=None)
        if best is None or self.walk_share is None or (best.gain - self.walk_share).differs is not True:
            return []
        if best.gain.value < self.walk_share.value:
            return []
        others = {"waiting for data": best.data_gain, "the kernels' work": best.work_gain}
        falls = [f"{what} falls by {100 * share:.1f} % of the time" for what, share in others.items() if share >= SAID]
        if not falls:
            return []
        return [f"{_capital(short(best.title))} gives back more than the walks: {_listed(falls)}."]

    @property
    def cost(self) -> str:
        """What page walks take in the plain VM."""
        title = self.plain.removeprefix("VM, ")
        where = f"In a plain VM ({title})" if title != self.plain else f"With {self.plain}"
        beside = "" if self.variant in ("", "alone") else f", {self.variant}"
        if self.walk_share is None:
            return f"{where}{beside}: no time is known, because no access was measured."
        return f"{where}{beside}, page walks take {percent(self.walk_share)} of {_possessive(self.program)} time."

    def class_line(self, who: str | None) -> str:
        """What the rows of that class give back; empty if there are none."""
        rows = self.advised(who)
        if not rows:
            return ""
        if any(row.finding == "unknown" for row in rows):
            listed = ", ".join(
                f"{short(row.title)} {_signed(row.gain.value)}{row.paid}" for tier in self.tiers(rows) for row in tier
            )
            return f"Given back by {NEEDS[who]} (no interval is known, so the order means nothing): {listed}."
        gains = _tiers(self.tiers([row for row in rows if row.finding == "gives back"]))
        parts = [f"Given back by {NEEDS[who]}: {', '.join(gains) or 'nothing'}."]
        same = [f"{short(row.title)}{row.paid}" for row in rows if row.finding == "equal"]
        if same:
            parts.append(f"No difference within the interval: {_listed(same)}.")
        worse = _tiers(self.tiers([row for row in rows if row.finding == "takes more"])[::-1])
        if worse:
            parts.append(f"More time: {', '.join(worse)}.")
        return " ".join(parts)

    def _whole_run_lines(self) -> list[str]:
        rows = [(row, row.whole_run_gain) for row in self.candidates if row.role != "limit"]
        known = [(row, gain) for row, gain in rows if gain is not None]
        if not known:
            return self._kernel_work_lines()
        parts = [
            f"{short(row.title)} {'about ' if row.estimated else ''}{_signed(gain.value, gain.ci95)}"
            for row, gain in sorted(known, key=lambda one: -one[1].value)
        ]
        if len(parts) > 2 * LISTED_MAX:
            left = len(parts) - LISTED_MAX - LISTED_MAX // 2
            parts = [*parts[:LISTED_MAX], f"{left} more in between", *parts[-(LISTED_MAX // 2) :]]
        return [f"Over the whole run, first touches, faults and exits included: {', '.join(parts)}."]

    def _kernel_work_lines(self) -> list[str]:
        """What can be said of the whole run where the program's length is not known."""
        if not self.unavailable:
            return []
        known = [row for row in self.candidates if row.role != "limit" and row.kernel_work is not None]
        ordered = sorted(known, key=lambda row: row.kernel_work or 0.0)
        parts = ", ".join(f"{short(row.title)} {row.kernel_work:.2f}" for row in ordered)
        work = f" Kernel work from the beginning on (1: the plain VM's): {parts}." if parts else ""
        return [f"The time of the whole run is {self.unavailable}.{work}"]


@dataclass(frozen=True)
class Verdict:
    """The groups of a comparison."""

    groups: tuple[Group, ...]
    unavailable: str | None = None
    """Why there is no verdict: a sentence."""

    @property
    def sentence(self) -> str:
        """The first group in brief: the cost, and each class."""
        if not self.groups:
            return self.unavailable or ""
        group = self.groups[0]
        return " ".join([group.cost, *(line for who in NEEDS if (line := group.class_line(who)))])

    def to_json(self) -> dict[str, Any]:
        """``verdict`` of ``--json``."""
        shares = [None if group.walk_share is None else group.walk_share.value for group in self.groups]
        return {
            "sentence": self.sentence,
            "walk_share": shares[0] if shares else None,
            "advice": [entry for group in self.groups for entry in group.advice],
            "limits": [_limit(row, group) for group in self.groups for row in group.having("limit")],
            "setups": [_limit(row, group) for group in self.groups for row in group.having("setup")],
            "groups": [
                {"variant": group.variant, "walk_share": share, "lines": group.lines}
                for group, share in zip(self.groups, shares, strict=True)
            ],
            "unavailable": self.unavailable,
        }


def of(done: Comparison) -> Verdict:
    """The verdict of a comparison."""
    variants = list(dict.fromkeys(cell.variant.name for cell in done.plan.matrix.cells))
    groups = [group for variant in variants if (group := _group(done, variant)) is not None]
    if groups:
        return Verdict(tuple(groups))
    baseline = done.plan.matrix.baseline or "a row to hold the others against"
    return Verdict((), f"unavailable, because {baseline} is not among the rows")


def _group(done: Comparison, variant: str) -> Group | None:
    """The rows of ``variant``; None if its plain VM is not among them."""
    plain = done.plain(variant)
    if plain is None:
        return None
    results = {
        cell.name: result
        for cell, result in zip(done.plan.matrix.cells, done.results, strict=True)
        if cell.variant.name == variant
    }
    plain_cell, base = plain
    rows = [row for row in done.rows if row["configuration"] in results or row["of"] in results]
    used = {cell.name: cell.configuration.techniques or () for cell in done.plan.matrix.cells}
    candidates, stock = [], whole_run.row(base)["whole_run_kernel_cycles"]
    for row in rows:
        run = results.get(row["configuration"])
        gain = intervals.gain(run, base) if run is not None else _computed(row)
        if gain is not None and run is not base:
            work = row["whole_run_kernel_cycles"]
            candidates.append(
                Candidate(
                    row["configuration"],
                    row["title"],
                    row["role"],
                    row["who"],
                    tuple(row["changes"] or ()),
                    row["how"] or "",
                    gain,
                    whole_run.gain(run, base) if run is not None else None,
                    run is not None and run.whole_run["estimated_cycles"] > 0,
                    work / stock if work is not None and stock else None,
                    data_gain=_part_gain(run, base, "data"),
                    work_gain=_part_gain(run, base, "os"),
                    techniques=used.get(row["configuration"], ()),
                    reason=measured.reason(run, base) if run is not None else "",
                    costs=measured.costs(run, base) if run is not None else {},
                )
            )

    def difference(one: Candidate, two: Candidate) -> Estimate:
        runs = [results.get(row.configuration) for row in (one, two)]
        found = None if None in runs else intervals.difference(runs[1], runs[0], base)  # type: ignore[arg-type]
        return found or one.gain - two.gain

    return Group(
        plain_cell.variant.title,
        done.plan.program.name,
        plain_cell.configuration.title,
        intervals.walk_share(base),
        tuple(candidates),
        difference,
        base.whole_run["unavailable"],
    )


def _part_gain(run: Result | None, plain: Result, part: Part) -> float:
    """How much less an access of ``run`` takes of a part of the time, as a share of an access of ``plain``."""
    if run is None:
        return 0.0
    before, after = plain.statistics, run.statistics
    whole = total(before["cycles"])
    if not whole or not after["accesses"]:
        return 0.0
    own: float = after["cycles"][part] / after["accesses"] * before["accesses"]
    saved: float = before["cycles"][part] - own
    return saved / whole


def _computed(row: dict[str, Any]) -> Estimate | None:
    """The gain of a row that no run made."""
    against = row["against_baseline"]
    return None if against is None else intervals.Estimate(1 - against)


def _limit(row: Candidate, group: Group) -> dict[str, Any]:
    return {
        "configuration": row.configuration,
        "title": row.title,
        "variant": group.variant,
        "gain": row.gain.value,
        "gain_ci95": row.gain.ci95,
        **_whole_run(row),
    }


def _whole_run(row: Candidate) -> dict[str, float | None]:
    found = row.whole_run_gain
    return {
        "whole_run_gain": None if found is None else found.value,
        "whole_run_gain_ci95": None if found is None else found.ci95,
    }


def short(title: str) -> str:
    """A row's title in a sentence about VMs."""
    return title.removeprefix("limit: ").removeprefix("VM, ")


def percent(share: Estimate) -> str:
    """A share with its interval, to as many digits as the interval leaves."""
    if share.ci95 is None:
        return f"{100 * abs(share.value):.1f} %"
    digits = 1 if share.ci95 >= SMALL else 2
    return f"{100 * abs(share.value):.{digits}f} {PLUS_MINUS}{100 * share.ci95:.{digits}f} %"


def given(gain: Estimate) -> str:
    """A gain with its interval; negative where it takes more time."""
    text = percent(gain)
    return f"{MINUS}{text}" if gain.value < 0 and text.strip("0. ")[:1] not in (PLUS_MINUS, "%") else text


def _signed(share: float, ci95: float | None = None) -> str:
    digits = 1 if ci95 is None or ci95 >= SMALL else 2
    rounded = round(100 * share, digits)
    value = f"{rounded:+.{digits}f}".replace("-", MINUS) if rounded else f"{0:.{digits}f}"
    return f"{value} %" if ci95 is None else f"{value} {PLUS_MINUS}{100 * ci95:.{digits}f} %"


def _tiers(tiers: Sequence[Tier]) -> list[str]:
    """The first of ``tiers``, and how many rows are left out."""
    left = sum(len(tier) for tier in tiers[LISTED_MAX:])
    more = [f"{left} more, which are smaller"] if left else []
    return [*map(_tier, tiers[:LISTED_MAX]), *more]


def _tier(tier: Tier) -> str:
    if len(tier) == 1:
        return f"{short(tier[0].title)} {percent(tier[0].gain)}{tier[0].paid}"
    rows = [f"{short(row.title)} ({percent(row.gain)}){row.paid}" for row in tier]
    return f"{_listed(rows)} (equal within the interval)"


def _found(row: Candidate) -> str:
    """What was found of a row, in few words."""
    match row.finding:
        case "equal":
            return "makes no difference within the interval"
        case "unknown":
            return _signed(row.gain.value)
        case "gives back":
            return f"gives back {percent(row.gain)}"
        case _:
            return f"takes {percent(row.gain)} more time"


def _listed(texts: Sequence[str]) -> str:
    return " and ".join(part for part in (", ".join(texts[:-1]), *texts[-1:]) if part)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _possessive(name: str) -> str:
    return f"{name}'" if name.endswith("s") else f"{name}'s"
