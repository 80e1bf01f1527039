# SPDX-License-Identifier: MIT OR Apache-2.0
"""What each technique's state is for a process, by what the process and its machine show: one function a technique.

Each returns what to do (one of :data:`nestwalk.advice.STATES`) and why, with the values that it goes by. None of them
says what a technique gives back: that takes a run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from nestwalk.advice.subject import Subject

MOST = 0.5
"""More than this share of a process's memory in 2 MiB pages: they are in effect."""

PACKED = 1.5
"""Host PT fragmentation up to this: at least half of the groups of 8 pages that could lie on one line do."""

NO_HOST = "this machine shows no hypervisor, so there is no host page table below it."
INSIDE = (
    "the process is a VM's memory, and a host cannot read its guest's settings: run `nestwalk advise` in the guest."
)
LEAVES_2M = "the host maps 2 MiB pages, and their PMD entries cover 8 neighbouring pages in any order."


@dataclass(frozen=True)
class Finding:
    """What to do about a technique, and why."""

    state: str
    reason: str
    """A sentence."""
    how: str = ""
    """What to do in place of the technique's own line, if anything."""
    instead: str = ""
    """A technique that comes before it and does the same, if there is one."""


def thp_host(subject: Subject) -> Finding:
    """2 MiB pages of the host: what ``nestwalk probe`` measured, or, on a host, what the VM's memory looks like."""
    if subject.is_vmm:
        return _thp_here(subject, "the VM's memory")
    if subject.where == "bare metal":
        return Finding("cannot", _said(NO_HOST))
    why = "a guest cannot read how its host maps it"
    match subject.host_pages:
        case "2m":
            return Finding("set", "`nestwalk probe`: the host likely backs this VM with 2 MiB pages.")
        case "4k" | "mixed":
            share = "all" if subject.host_pages == "4k" else "a part"
            return Finding("try", f"`nestwalk probe`: the host likely backs {share} of this VM with 4 KiB pages.")
        case _ if subject.probe is not None:
            return Finding(
                "ask", f"`nestwalk probe` could not tell, and {why}.", "ask the provider, or look on the host"
            )
        case _:
            how = "nestwalk probe --json > probe.json, then --probe probe.json"
            return Finding("ask", f"Unavailable, because {why}; `nestwalk probe` measures it.", how)


def thp_guest(subject: Subject) -> Finding:
    """THP for the process: the setting, whether the process has refused it, and what its memory looks like."""
    if subject.is_vmm:
        return Finding("ask", _said(INSIDE))
    return _thp_here(subject, "its memory")


def _thp_here(subject: Subject, whose: str) -> Finding:
    enabled, share = subject.value("settings", "thp_enabled"), subject.pmd_share
    if enabled is None:
        return Finding("ask", f"The setting is {subject.why('settings', 'thp_enabled')}.")
    shown = f"{whose} is mapped by 2 MiB pages"
    mapped = f"the share of it in 2 MiB pages is {subject.why('huge_pages', 'pmd_mapped_share')}"
    if share is not None:
        mapped = f"{100 * share:.0f} % of {shown}"
    set_to = f"THP is set to {enabled}, and {mapped}."
    if share is not None and share > MOST:
        return Finding("set", set_to)
    if enabled != "always":
        return Finding("try", set_to)
    if subject.value("process", "thp_allowed") is False:
        how = f"let {subject.name} not switch THP off (redis: disable-thp no), and restart it"
        return Finding("try", f"THP is set to always, but the process has switched it off for itself; {mapped}.", how)
    if share is None:
        return Finding("set", set_to)
    how = "restart the program; if thp_fault_fallback in /proc/vmstat grows, free memory is in pieces"
    free = subject.value("settings", "buddyinfo", "order9_bytes")
    pieces = "" if free is None else f" Free memory in blocks of 2 MiB and more: {free / (1 << 20):.0f} MiB."
    return Finding("try", f"{set_to}{pieces}", how)


def mthp(subject: Subject) -> Finding:
    """Folios of 32 KiB: whether the kernel has them, and whether there is anything that they could put together."""
    found = _gathers(subject)
    if subject.value("settings", "mthp") is None:
        reason = subject.why("settings", "mthp")
        if found is not None:
            return found
        kernel = subject.value("settings", "kernel")
        return Finding("cannot", f"Sizes of folios are {reason}" + (f" (kernel {kernel})." if kernel else "."))
    if subject.mthp_32 == "always":
        return Finding("set", f"Folios of 32 KiB are set to always; {_fragments(subject)}.")
    if found is not None:
        return found
    return Finding("try", f"Folios of 32 KiB are set to {subject.mthp_32 or 'nothing'}; {_fragments(subject)}.")


def ptemagnet(subject: Subject) -> Finding:
    """PTEMagnet: whether it is on, and whether a setting of a stock kernel does the same."""
    setting = subject.surroundings.get("ptemagnet")
    if isinstance(setting, int) and setting > 0:
        return Finding("set", f"vm.ptemagnet is {setting}; {_fragments(subject)}.")
    found = _gathers(subject)
    if found is not None:
        return found
    if subject.value("settings", "mthp") is not None:
        reason = f"Folios of 32 KiB do the same without a patch; {_fragments(subject)}."
        return Finding("leave", reason, instead="mthp")
    return Finding("try", f"No setting of this kernel keeps 8 neighbours together; {_fragments(subject)}.")


def hugegpt(subject: Subject) -> Finding:
    """HugeGPT: of use where page tables are large, and the host maps 4 KiB."""
    found = _host(subject)
    if found is not None:
        return found
    if subject.host_pages == "2m":
        return Finding("leave", "The host maps 2 MiB pages, so that the guest's page tables are on them anyway.")
    size = subject.value("page_tables", "bytes")
    tables = subject.why("page_tables", "bytes") if size is None else f"{size / (1 << 20):.1f} MiB"
    if subject.thp_for_it and (subject.pmd_share or 0) > MOST:
        return Finding("leave", f"With 2 MiB pages in the guest its page tables are small: {tables}.")
    return Finding("try", f"The size of the process's page tables is {tables}.")


def hardware(subject: Subject) -> Finding:
    """What no processor has."""
    return _host(subject) or Finding("cannot", "No processor has it; the simulation shows what it would give back.")


def _host(subject: Subject) -> Finding | None:
    """What ends it for techniques of a guest."""
    if subject.is_vmm:
        return Finding("ask", _said(INSIDE))
    return Finding("cannot", _said(NO_HOST)) if subject.where == "bare metal" else None


def _gathers(subject: Subject) -> Finding | None:
    """Why a technique that keeps 8 neighbouring pages on 8 neighbouring frames has nothing to do; None if it has."""
    found = _host(subject)
    if found is not None:
        return found
    if subject.host_pages == "2m":
        return Finding("leave", _said(LEAVES_2M))
    if subject.pmd_share is not None and subject.pmd_share > MOST:
        return Finding("leave", f"{100 * subject.pmd_share:.0f} % of its memory is mapped by 2 MiB pages already.")
    if subject.fragmentation is not None and subject.fragmentation <= PACKED:
        return Finding("leave", f"Its pages are together already: {_fragments(subject)}.")
    return None


def _fragments(subject: Subject) -> str:
    found = subject.fragmentation
    if found is None:
        return f"host PT fragmentation is {subject.why('host_pt_fragmentation')}"
    return f"host PT fragmentation is {found:.2f} lines a group of 8 pages"


def _said(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


STEPS: dict[str, Callable[[Subject], Finding]] = {
    "thp-host": thp_host,
    "thp-guest": thp_guest,
    "mthp": mthp,
    "ptemagnet": ptemagnet,
    "hugegpt": hugegpt,
    "asap": hardware,
    "ds": hardware,
    "clustered": hardware,
}
"""By technique, in the order in which a person should act."""
