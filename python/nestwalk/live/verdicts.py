# SPDX-License-Identifier: MIT OR Apache-2.0
"""What is known of a process as lines for people: what, how much, and what that means, in one sentence.

The limits below choose words, and nothing else; docs/inspect.md lists them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nestwalk.live import known

if TYPE_CHECKING:
    from collections.abc import Mapping

PACKED = 1.3
"""Lines a group up to which groups count as packed: mTHP of 32 KiB came to 1.00 to 1.26 on a real kernel."""
SCATTERED = 4.0
"""Lines a group from which they count as scattered: half of the worst."""
HUGE = 0.9
"""Share of the memory from which it counts as mapped by huge pages."""
LITTLE = 0.1
"""Share up to which it counts as hardly mapped by huge pages."""
FEW_VMAS = 16
"""Mappings that a range TLB or registers could hold: as many as ASAP's paper has at the most, and then some."""
REACH = 2.0
"""Pages an entry from which a Clustered TLB gains much."""
SCARCE = 0.05
"""Share of free memory in large blocks below which these are scarce."""


@dataclass(frozen=True)
class Line:
    """A line of the table."""

    key: str
    """The JSON key that the value is from."""
    what: str
    value: str
    """May be empty where the verdict is why there is none."""
    verdict: str


def of_process(facts: Mapping[str, Any]) -> list[Line]:
    """All lines about one process, most important first."""
    return [
        *_memory(facts["memory"]),
        *_fragmentation(facts["host_pt_fragmentation"], facts.get("hypervisor")),
        *_contiguity(facts["contiguity"]),
        *_coalescing(facts["coalescing"]),
        *_huge(facts["huge_pages"], facts["settings"]),
        *_tables(facts["page_tables"], facts["mappings"], facts["memory"]),
        *_sorted(facts["sorted_tables"]),
        *of_settings(facts["settings"]),
    ]


def of_several(facts: Mapping[str, Any]) -> list[Line]:
    """Lines about several processes together."""
    share = facts["huge_pages"]["pmd_mapped_share"]
    return [
        *_memory(facts["memory"]),
        *_fragmentation(facts["host_pt_fragmentation"], facts.get("hypervisor")),
        _line("huge_pages.pmd_mapped_share", "mapped by 2 MiB pages", share, percent, lambda it: _pmd(it, {})),
        *(of_settings(facts["settings"]) if known.reason(facts["settings"]) is None else ()),
    ]


def _line(key: str, what: str, value: Any, shown: Any, verdict: Any) -> Line:
    """A line whose verdict is the reason where there is no value."""
    why = known.reason(value)
    return Line(key, what, "", why) if why else Line(key, what, shown(value), verdict(value))


UNITS = ("KiB", "MiB", "GiB", "TiB")


def size(bytes_: float) -> str:
    """Bytes for people."""
    value, unit = bytes_ / 1024, UNITS[0]
    for larger in UNITS[1:]:
        if value < 1024:  # noqa: PLR2004 (bytes of a KiB)
            break
        value, unit = value / 1024, larger
    return f"{value:.4g} {unit}"


def percent(share: float) -> str:
    """A share for people."""
    return f"{100 * share:.1f} %"


def _memory(memory: Mapping[str, int]) -> list[Line]:
    if not memory:
        return []
    present = memory["present_bytes"]
    parts = [("anonymous", "anonymous_bytes"), ("files", "file_bytes"), ("shared", "shared_bytes")]
    made_of = ", ".join(f"{size(memory[key])} {name}" for name, key in parts if memory[key])
    lines = [
        Line(
            "memory", "memory present", size(present), f"of {size(memory['mapped_bytes'])} mapped: {made_of or 'none'}"
        )
    ]
    if memory["swapped_bytes"]:
        lines.append(
            Line(
                "memory",
                "swapped out",
                size(memory["swapped_bytes"]),
                "comes back page by page, wherever there is room",
            )
        )
    if memory["zero_bytes"]:
        lines.append(
            Line(
                "memory", "page of zeros", size(memory["zero_bytes"]), "read and never written: no memory is behind it"
            )
        )
    return lines


def _fragmentation(found: Mapping[str, Any], hypervisor: Any) -> list[Line]:
    key, what = "host_pt_fragmentation", "host PT fragmentation"
    why = known.reason(found)
    if why:
        return [Line(key, what, "", why)]
    lines = [
        Line(f"{key}.value", what, f"{found['value']:.2f} lines", _scatter(found["value"], hypervisor)),
        Line(f"{key}.distribution", "groups on 1 to 8 lines, %", _shares(found), f"of {found['groups']:,} groups"),
    ]
    if "host_2m" in found and known.reason(found["host_2m"]) is None:
        value = found["host_2m"]["value"]
        words = "what counts where the host maps 2 MiB pages, which a guest cannot see"
        lines.append(Line(f"{key}.host_2m", "the same, host with 2 MiB leaves", f"{value:.2f} lines", words))
    return lines


def _shares(found: Mapping[str, Any]) -> str:
    return " ".join(f"{100 * count / found['groups']:.0f}" for count in found["distribution"])


def _scatter(value: float, hypervisor: Any) -> str:
    if value <= PACKED:
        words = "packed: the host PTEs of eight neighbours share a cache line"
    elif value < SCATTERED:
        words = "between: about two lines are common for pages in order but not aligned"
    else:
        words = "scattered: PTEMagnet or folios of 32 KiB would bring it to about 1"
    return f"{words}; without a hypervisor there is no host table" if hypervisor is None else words


def _contiguity(found: Mapping[str, Any]) -> list[Line]:
    why = known.reason(found)
    if why:
        return [Line("contiguity", "contiguity", "", why)]
    lines = []
    for name, what, words in (
        ("virtual_order", "runs in virtual order", "pages and frames in the same order"),
        ("physical_order", "runs in physical order", "frames alone: what sorting could reach"),
    ):
        runs = found[name]
        value = f"{runs['mean_pages']:.1f} pages"
        lines.append(
            Line(
                f"contiguity.{name}", what, value, f"{words}; {runs['runs']:,} runs, longest {runs['longest_pages']:,}"
            )
        )
    return lines


def _coalescing(found: Mapping[str, Any]) -> list[Line]:
    why = known.reason(found)
    if why:
        return [Line("coalescing", "coalescing", "", why)]
    reach = found["pages_per_clustered_entry"]
    gain = "would reach much further" if reach >= REACH else "would gain little"
    folios = found["folio_32k_share"]
    return [
        Line(
            "coalescing.pages_per_clustered_entry",
            "pages an entry, Clustered TLB",
            f"{reach:.2f}",
            f"it {gain} (8 at most)",
        ),
        Line(
            "coalescing.folio_32k_share",
            "pages that lie as in 32 KiB folios",
            percent(folios),
            "eight aligned pages on eight aligned frames, in order",
        ),
    ]


def _pmd(share: float, settings: Mapping[str, Any]) -> str:
    if share >= HUGE:
        return "nearly all: walks are a level shorter and rare"
    enabled = settings.get("thp_enabled")
    wish = {
        "never": "; transparent huge pages are off",
        "madvise": "; only programs that ask (madvise) get them",
    }.get(enabled if isinstance(enabled, str) else "", "")
    return f"{'hardly any' if share <= LITTLE else 'a part'}{wish}"


def _huge(found: Mapping[str, Any], settings: Mapping[str, Any]) -> list[Line]:
    def folio_words(folios: Mapping[str, Any]) -> str:
        ci95 = f" +- {100 * folios['share_ci95']:.1f}" if folios["share_ci95"] else ""
        return f"of pages that PTEs map{ci95}; {folios['sampled']:,} of {folios['pages']:,} pages looked at"

    def few_words(few: Mapping[str, Any]) -> str:
        return (
            f"of {few['looked_at']:,} looked at have under 64 used pages; {percent(few['zero_share'])} of them is zeros"
        )

    lines = [
        _line(
            "huge_pages.pmd_mapped_share",
            "mapped by 2 MiB pages",
            found["pmd_mapped_share"],
            percent,
            lambda share: _pmd(share, settings),
        ),
        _line(
            "huge_pages.large_folios",
            "in large folios",
            found["large_folios"],
            lambda it: percent(it["share"]),
            folio_words,
        ),
        _line(
            "huge_pages.few_used", "2 MiB pages little used", found["few_used"], lambda it: f"{it['few']:,}", few_words
        ),
    ]
    hugetlb = found["hugetlb_bytes"]
    if known.reason(hugetlb) is None and hugetlb:
        lines.append(Line("huge_pages.hugetlb_bytes", "hugetlb", size(hugetlb), "never split, never swapped"))
    sparse = sum(one["regions"] for one in found["regions"][:-1])
    total = sum(one["regions"] for one in found["regions"])
    if total:
        words = f"of {total:,} regions that PTEs map: huge pages there would add memory"
        lines.append(Line("huge_pages.regions", "2 MiB regions not full", f"{sparse:,}", words))
    return lines


def _tables(tables: Mapping[str, Any], mappings: Mapping[str, Any], memory: Mapping[str, int]) -> list[Line]:
    def words(bytes_: int) -> str:
        total = memory["present_bytes"]
        part = f"{percent(bytes_ / total)} of the memory" if total else "for no memory"
        return f"{part}; what is present needs {size(tables['needed_bytes'])}"

    few = mappings["for_99_percent"]
    ranges = "few enough for registers or a range TLB" if few <= FEW_VMAS else "too many for a handful of registers"
    return [
        _line("page_tables.bytes", "page tables", tables["bytes"], size, words),
        Line(
            "mappings.for_99_percent", "VMAs for 99 % of the memory", f"{few:,}", f"of {mappings['count']:,}: {ranges}"
        ),
    ]


def _sorted(tables: Mapping[str, Any]) -> list[Line]:
    """Nothing where the kernel sorts no tables of the process, as on almost all machines."""
    if known.reason(tables) or not tables["regions"]:
        return []
    words = f"{tables['used']:,} tables in use, {tables['idle']:,} places empty, {tables['holes']:,} given back"
    return [Line("sorted_tables.regions", "regions of sorted page tables", f"{tables['regions']:,}", words)]


def of_settings(settings: Mapping[str, Any]) -> list[Line]:
    """Lines about the kernel's settings."""
    thp = {
        "always": "every program gets huge pages where it can",
        "madvise": "programs that ask get huge pages",
        "never": "no program gets huge pages",
    }
    swap = "0 keeps anonymous memory in; 100 treats it as files"
    scans = (
        "khugepaged looks at {pages_to_scan:,} pages every {scan_sleep_ms:,} ms; absent pages it fills: {max_ptes_none}"
    )
    lines = [
        _line(
            "settings.thp_enabled", "transparent huge pages", settings["thp_enabled"], str, lambda it: thp.get(it, "")
        ),
        _line("settings.mthp", "folios of 32 KiB (mTHP)", settings["mthp"], _mthp_32k, _mthp_words),
        _line(
            "settings.khugepaged",
            "khugepaged",
            settings["khugepaged"],
            lambda it: f"defrag {it['defrag']}",
            lambda it: scans.format(**it),
        ),
        _line("settings.swappiness", "swappiness", settings["swappiness"], str, lambda _: swap),
    ]
    buddy = settings["buddyinfo"]
    why = known.reason(buddy)
    if why:
        return [*lines, Line("settings.buddyinfo", "free memory", "", why)]
    for order, words, key in ((3, "32 KiB", "order3_bytes"), (9, "2 MiB", "order9_bytes")):
        free = buddy["free_bytes"]
        share = buddy[key] / free if free else 0.0
        verdict = f"{percent(share)} of {size(free)} free" + (
            ": scarce, compaction has to make them" if share < SCARCE else ""
        )
        lines.append(
            Line(f"settings.buddyinfo.{key}", f"free in {words} and more (order {order})", size(buddy[key]), verdict)
        )
    return lines


def _mthp_32k(found: Any) -> str:
    return next((one["enabled"] for one in found if one["kib"] == 32), "no such size")  # noqa: PLR2004 (KiB)


def _mthp_words(found: Any) -> str:
    # The size of a PMD follows the setting of transparent huge pages.
    on = [f"{one['kib']} KiB {one['enabled']}" for one in found if one["enabled"] not in ("never", "inherit")]
    return f"on: {', '.join(on)}" if on else "off in every size: faults take single pages or 2 MiB"
