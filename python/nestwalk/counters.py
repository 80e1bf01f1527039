# SPDX-License-Identifier: MIT OR Apache-2.0
# ruff: noqa: D205
"""What a run counts: the type of ``Result.statistics``. Written by ``./dev generated`` from the engine's declarations.

A type checker refuses a counter that does not exist: ``statistics["mmu"]["walk_cycle"]``.
"""

from typing import NotRequired, TypedDict


class Fragmentation(TypedDict):
    """How many lines the host PTEs of each group of 8 neighbouring guest pages fill."""

    distribution: list[int]
    """Groups on 1, 2, ... 8 lines."""

    groups: int
    """All groups."""

    value: float | None
    """Their average: 1 is perfect, 8 the worst. `None` when there is no whole group of 4 KiB pages."""


class OsCounters(TypedDict):
    """Counters by name."""

    collapses: int
    """2 MiB pages made of 4 KiB pages by copying them. (2 MiB pages)"""

    compaction_scanned: int
    """Frames that compaction's scanners looked at. (frames)"""

    compactions_background: int
    """Runs of background compaction. (runs)"""

    compactions_direct: int
    """Runs of direct compaction (in a fault or in a request). (runs)"""

    compactions_failed: int
    """Runs of compaction after which no block of the wanted order was free. (runs)"""

    compactions_proactive: int
    """Runs of proactive compaction, which the background daemon begins by itself. (runs)"""

    copied_4k: int
    """4 KiB pages copied for copy-on-write. (pages)"""

    copied_collapse: int
    """4 KiB pages copied into a 2 MiB page (out-of-place promotion). (pages)"""

    copied_file: int
    """4 KiB pages copied between the page cache and a program by read and write. (pages)"""

    entries_copied: int
    """Entries copied by fork. (entries)"""

    entries_moved: int
    """Entries moved by mremap. (entries)"""

    exits: int
    """Processes that exited. (processes)"""

    faults_1g: int
    """Faults that mapped a fresh 1 GiB page. (faults)"""

    faults_2m: int
    """Faults that mapped a fresh 2 MiB page. (faults)"""

    faults_4k: int
    """Faults that mapped a fresh 4 KiB page. (faults)"""

    faults_copied: int
    """Stores to a shared page, which was copied. (faults)"""

    faults_file: int
    """Faults on a mapping of a file whose page was in the page cache. (faults)"""

    faults_file_read: int
    """Faults on a mapping of a file whose page had to be read from storage. (faults)"""

    faults_reused: int
    """Stores to a page that had been write-protected and that is not shared (any more). (faults)"""

    faults_spurious: int
    """Faults on a page that was mapped already, with the right to do what was tried. (faults)"""

    faults_swapped_in: int
    """Faults on a page that had been swapped out. (faults)"""

    file_calls: int
    """System calls: read and write of files. (calls)"""

    file_pages_read: int
    """Pages of files read from storage into the page cache. (pages)"""

    file_pages_written: int
    """Pages of files written back to storage. (pages)"""

    file_waits: int
    """Times that a fault or a read waited for storage (at most 32 pages each). (waits)"""

    forks: int
    """Processes made by fork. (processes)"""

    huge_fallbacks: int
    """Faults that wanted a 2 MiB page, might have had one, and got a 4 KiB page for want of a block. (faults)"""

    hypercalls: int
    """Hypercalls made to the kernel below. (calls)"""

    migrated: int
    """4 KiB pages moved by compaction. (pages)"""

    mmaps: int
    """System calls: mmap. (calls)"""

    munmaps: int
    """System calls: munmap. (calls)"""

    nodes_freed: int
    """Page-table nodes freed. (nodes)"""

    nodes_made: int
    """Page-table nodes made. (nodes)"""

    nodes_moved: int
    """Page-table nodes moved to another frame. (nodes)"""

    other_calls: int
    """System calls: all others that change an address space (brk, mremap, mprotect, madvise). (calls)"""

    out_of_memory: int
    """Requests that failed for want of memory. (requests)"""

    pages_mapped_around: int
    """Pages of the page cache that a fault mapped beside its own (fault-around). (pages)"""

    pages_scanned: int
    """Pages that a daemon looked at in page tables. (pages)"""

    promotions: int
    """2 MiB pages made of 4 KiB pages that lay in place already. (2 MiB pages)"""

    reclaim_scanned: int
    """Pages that reclaim looked at. (pages)"""

    reclaimed_clean: int
    """Pages that reclaim dropped without writing them. (pages)"""

    reclaimed_reserved: int
    """Frames that the memory manager gave back under pressure. (frames)"""

    reclaims_background: int
    """Times that the background daemon reclaimed memory. (runs)"""

    reclaims_direct: int
    """Times that a request had to reclaim memory itself. (runs)"""

    shadow_fills: int
    """Entries of shadow tables filled: exits of the VM. (exits)"""

    shadow_flushes: int
    """Times that a guest flushed its TLB whole, where its table is shadowed: exits of the VM. (exits)"""

    shadow_invlpgs: int
    """Pages that a guest took out of its TLB one by one, where its table is shadowed: exits of the VM. (exits)"""

    shadow_prefetches: int
    """Entries of shadow tables filled beside one that the hardware missed. (entries)"""

    shadow_reflected: int
    """Misses of a shadow table that were the guest's own page faults, and were handed on to it: exits of the VM.
    (exits)
    """

    shadow_syncs: int
    """PTE nodes that were written to freely and brought up to date in the shadow at such a time. (nodes)"""

    shadow_unsyncs: int
    """First writes of a guest to a PTE node that is shadowed, which may be written to freely from then on: exits of
    the VM. (exits)
    """

    shadow_writes: int
    """Writes of a guest to a node above the PTEs that is shadowed, and so write-protected: exits of the VM. (exits)"""

    shadow_zaps: int
    """Entries of shadow tables taken out because what they were made from changed. (entries)"""

    shootdown_pages: int
    """Pages that shootdowns named. (pages)"""

    shootdowns: int
    """TLB shootdowns. (shootdowns)"""

    splits: int
    """2 MiB (or larger) leaves split. (leaves)"""

    splits_deferred: int
    """2 MiB pages of which a part was unmapped for the first time, and which wait to be split
    (`thp_deferred_split_page`). (2 MiB pages)
    """

    splits_whole: int
    """2 MiB pages split into pages of their own, so that what was unmapped of them is free (`thp_split_page`). (2
    MiB pages)
    """

    swapped_out: int
    """Pages that reclaim wrote to swap. (pages)"""

    zeroed_2m: int
    """2 MiB pages zeroed at once. (2 MiB pages)"""

    zeroed_4k: int
    """4 KiB pages zeroed. (pages)"""


class CountersContiguous(TypedDict):
    """Counters by name."""

    fills: int
    """Walks after which the TLBs took in 64 KiB, of all accesses, those that only the TLBs saw included. (walks)"""


class CountersCorunner(TypedDict):
    """Counters by name."""

    l1d: int
    """The co-runner's accesses, by what served them. (accesses)"""

    l2: int
    """The co-runner's accesses, by what served them. (accesses)"""

    llc: int
    """The co-runner's accesses, by what served them. (accesses)"""

    memory: int
    """The co-runner's accesses, by what served them. (accesses)"""


class CountersCuckooWalkCacheHits(TypedDict):
    """Counters by name."""

    guest_pmd: int
    """Look-ups in the walk caches that hit, for walks that found their translation. (look-ups)"""

    guest_pud: int
    """Look-ups in the walk caches that hit, for walks that found their translation. (look-ups)"""

    host_pmd: int
    """Look-ups in the walk caches that hit, for walks that found their translation. (look-ups)"""

    host_pte: int
    """Look-ups in the walk caches that hit, for walks that found their translation. (look-ups)"""

    host_pud: int
    """Look-ups in the walk caches that hit, for walks that found their translation. (look-ups)"""


class CountersCuckooWalkCacheMisses(TypedDict):
    """Counters by name."""

    guest_pmd: int
    """Look-ups in the walk caches that missed: the walk table is read beside the walk. (look-ups)"""

    guest_pud: int
    """Look-ups in the walk caches that missed: the walk table is read beside the walk. (look-ups)"""

    host_pmd: int
    """Look-ups in the walk caches that missed: the walk table is read beside the walk. (look-ups)"""

    host_pte: int
    """Look-ups in the walk caches that missed: the walk table is read beside the walk. (look-ups)"""

    host_pud: int
    """Look-ups in the walk caches that missed: the walk table is read beside the walk. (look-ups)"""


class CountersCuckooWalkTableReferences(TypedDict):
    """Counters by name."""

    l1d: int
    """References to walk tables, by what served them. Those before a page fault are not in here. (references)"""

    l2: int
    """References to walk tables, by what served them. Those before a page fault are not in here. (references)"""

    llc: int
    """References to walk tables, by what served them. Those before a page fault are not in here. (references)"""

    memory: int
    """References to walk tables, by what served them. Those before a page fault are not in here. (references)"""


class CountersCuckoo(TypedDict):
    """Counters by name."""

    beside: int
    """References of walks to hashed tables that no step waited for, as another line had what was looked for.
    (references)
    """

    moved: int
    """Lines of hashed tables that were moved, by insertions and by resizes. (lines)"""

    resizes: int
    """Resizes of hashed tables that began. (resizes)"""

    walk_cache_hits: CountersCuckooWalkCacheHits

    walk_cache_misses: CountersCuckooWalkCacheMisses

    walk_table_references: CountersCuckooWalkTableReferences


class CountersData(TypedDict):
    """Counters by name."""

    l1d: int
    """The program's data accesses, by what served them. (accesses)"""

    l2: int
    """The program's data accesses, by what served them. (accesses)"""

    llc: int
    """The program's data accesses, by what served them. (accesses)"""

    memory: int
    """The program's data accesses, by what served them. (accesses)"""


class CountersGuestPwcHits(TypedDict):
    """Counters by name."""

    pl2_hits: int
    """Look-ups that found an entry of this level, and none of a lower one. (look-ups)"""

    pl3_hits: int
    """Look-ups that found an entry of this level, and none of a lower one. (look-ups)"""

    pl4_hits: int
    """Look-ups that found an entry of this level, and none of a lower one. (look-ups)"""

    pl5_hits: int
    """Look-ups that found an entry of this level, and none of a lower one. (look-ups)"""


class CountersGuestPwc(TypedDict):
    """Counters by name."""

    hits: CountersGuestPwcHits

    misses: int
    """Look-ups that found nothing. (look-ups)"""


class CountersHostPwcHits(TypedDict):
    """Counters by name."""

    pl2_hits: int
    """Look-ups that found an entry of this level, and none of a lower one. (look-ups)"""

    pl3_hits: int
    """Look-ups that found an entry of this level, and none of a lower one. (look-ups)"""

    pl4_hits: int
    """Look-ups that found an entry of this level, and none of a lower one. (look-ups)"""

    pl5_hits: int
    """Look-ups that found an entry of this level, and none of a lower one. (look-ups)"""


class CountersHostPwc(TypedDict):
    """Counters by name."""

    hits: CountersHostPwcHits

    misses: int
    """Look-ups that found nothing. (look-ups)"""


class CountersNestedTlb(TypedDict):
    """Counters by name."""

    hits: int
    """Look-ups that hit. (look-ups)"""

    misses: int
    """Look-ups that missed. (look-ups)"""


CountersPomTlbHits = TypedDict(
    "CountersPomTlbHits",
    {
        "2MiB": int,
        "4KiB": int,
    },
)


class CountersPomTlbReferences(TypedDict):
    """Counters by name."""

    l1d: int
    """References to its lines, by what served them. Those before a page fault are not in here. (references)"""

    l2: int
    """References to its lines, by what served them. Those before a page fault are not in here. (references)"""

    llc: int
    """References to its lines, by what served them. Those before a page fault are not in here. (references)"""

    memory: int
    """References to its lines, by what served them. Those before a page fault are not in here. (references)"""


class CountersPomTlb(TypedDict):
    """Counters by name."""

    hits: CountersPomTlbHits

    misses: int
    """Misses in both parts, after which a walk found the translation. (look-ups)"""

    references: CountersPomTlbReferences

    size_mispredicted: int
    """Hits in the part that was not predicted: they took two references. (look-ups)"""


CountersPrefetchesWalksCoveredByRegisters = TypedDict(
    "CountersPrefetchesWalksCoveredByRegisters",
    {
        "1": int,
        "16": int,
        "4": int,
        "8": int,
    },
)


class CountersPrefetches(TypedDict):
    """Counters by name."""

    dropped: int
    """Requests that were dropped since all miss registers of the L1-D were busy. (requests)"""

    issued: int
    """Lines that were asked for and on their way. (lines)"""

    needless: int
    """Requests for lines that were in the L1-D, or on their way to it, already. (requests)"""

    useful: int
    """References of walks that found their line in flight, or brought, by a prefetch of the same walk. (references)"""

    walks: int
    """Walks that the prefetcher saw begin. (walks)"""

    walks_covered_by_registers: CountersPrefetchesWalksCoveredByRegisters


CountersTlbL1Hits = TypedDict(
    "CountersTlbL1Hits",
    {
        "1GiB": int,
        "2MiB": int,
        "4KiB": int,
    },
)


CountersTlbL2Hits = TypedDict(
    "CountersTlbL2Hits",
    {
        "1GiB": int,
        "2MiB": int,
        "4KiB": int,
    },
)


CountersTlbMisses = TypedDict(
    "CountersTlbMisses",
    {
        "1GiB": int,
        "2MiB": int,
        "4KiB": int,
    },
)


class CountersTlb(TypedDict):
    """Counters by name."""

    l1_hits: CountersTlbL1Hits

    l2_hits: CountersTlbL2Hits

    misses: CountersTlbMisses


class CountersWalkLatencyCycles(TypedDict):
    """Counters by name."""

    p50: int | None
    """Half of all walks took no longer. Of this and of the other shares: the upper end of a bucket of 8 cycles; null
    without walks, and beyond the last bucket. (cycles)
    """

    p95: int | None
    """95 % of all walks took no longer. (cycles)"""

    p99: int | None
    """99 % of all walks took no longer. (cycles)"""


class Counters(TypedDict):
    """Counters by name."""

    aborted_references: int
    """References of those walks. (references)"""

    aborted_walks: int
    """Walks that ended in a page fault. Nothing else counts them. (walks)"""

    accesses: int
    """Accesses of the program. (accesses)"""

    contiguous: NotRequired[CountersContiguous]

    corunner: CountersCorunner

    cuckoo: NotRequired[CountersCuckoo]

    data: CountersData

    data_cycles: int
    """Cycles of all of them. (cycles)"""

    guest_pwc: CountersGuestPwc

    guest_walk_cycles: int
    """The part of them spent on guest entries, the guest's page-walk caches, and what is asked before a walk.
    (cycles)
    """

    host_pwc: CountersHostPwc

    host_walk_cycles: int
    """The part of them spent on host entries, the host's page-walk caches and the nested TLB. (cycles)"""

    nested_tlb: CountersNestedTlb

    pom_tlb: NotRequired[CountersPomTlb]

    prefetches: CountersPrefetches

    segment_translations: int
    """Translations by segment registers (DS-n). (translations)"""

    stores: int
    """Those that were stores. (accesses)"""

    tlb: CountersTlb

    walk_cycles: int
    """Cycles of all walks. (cycles)"""

    walk_latency_cycles: CountersWalkLatencyCycles


class ColocatedStatistics(TypedDict):
    """What the programs of one `[[colocated]]` entry did, added up."""

    accesses: int
    """Data accesses."""

    count: int
    """How many they were."""

    host_pt_fragmentation: Fragmentation | None
    """How the pages of those that are alive at the end lie in guest memory; `None` without a host table, or if none
    is.
    """

    instructions: int
    """Instructions."""

    kernels: list[OsCounters]
    """What each kernel under them did for them, bottom first."""

    mmu: Counters | None
    """All counters of their cores, by name; `None` where their accesses were not simulated."""

    restarts: int
    """Times that one had ended and began anew."""

    touches: int
    """First touches of stretches without accesses."""

    workload: str
    """The trace or the kind of generator."""


class Cycles(TypedDict):
    """Estimated cycles by what they are spent on (`docs/model.md`, "Time")."""

    data: int
    """Data latency beyond L1 that is not overlapped."""

    os: int
    """Kernel events."""

    walk: int
    """Walk cycles on the critical path."""

    work: int
    """The program's own instructions."""


class ManagerCounters(TypedDict):
    """Counters of memory managers: a kernel has those of its own manager."""

    broken_under_pressure: NotRequired[int]
    """`freebsd`, `quicksilver`: Reservations broken because memory was short. (reservations)"""

    completed: NotRequired[int]
    """`ptemagnet`: Reservations that have no frame left to give. `quicksilver`: Superpages made in a fault before
    all their pages had been touched. (2 MiB pages, reservations)
    """

    completed_64k: NotRequired[int]
    """`quicksilver`: Groups of 64 KiB that were mapped before all their pages had been touched. (64 KiB groups)"""

    evicted: NotRequired[int]
    """`quicksilver`: Reservations that the daemon emptied. (reservations)"""

    evicted_pages: NotRequired[int]
    """`quicksilver`: Pages that the daemon moved to empty reservations. (pages)"""

    fallbacks: NotRequired[int]
    """`ptemagnet`: Faults that were to make a reservation, and got a single page for want of a block. `mthp`: Faults
    that were to map a folio, and got a single page for want of a block. (faults)
    """

    faults_from_parents: NotRequired[int]
    """`ptemagnet`: Faults of forked children served from a reservation of their parent. (faults)"""

    faults_from_reservations: NotRequired[int]
    """`ptemagnet`, `freebsd`, `quicksilver`: Faults served from a reservation, without those that made one. (faults)"""

    faults_zeroed_ahead: NotRequired[int]
    """`hawkeye`: Faults whose page was zeroed ahead. (faults)"""

    file_reservations: NotRequired[int]
    """`freebsd`, `quicksilver`: Reservations of 2 MiB of a file made (counted in `reservations`, too).
    (reservations)
    """

    file_superpages_mapped: NotRequired[int]
    """`freebsd`, `quicksilver`: Faults on files that mapped 2 MiB at once. (2 MiB pages)"""

    folios: NotRequired[int]
    """`mthp`: Folios mapped. (folios)"""

    hot_pages: NotRequired[int]
    """`ingens`: Pages, small and huge, that were hot in the last sample. (pages)"""

    idle_pages: NotRequired[int]
    """`ingens`: Pages, small and huge, that had not been used since the sample before it. (pages)"""

    measurements: NotRequired[int]
    """`hawkeye`: Measurements of MMU overhead. (measurements)"""

    prepared_ahead: NotRequired[int]
    """`quicksilver`: Untouched pages prepared to complete superpages and groups. (pages)"""

    promoted: NotRequired[int]
    """`hawkeye`: Regions of 2 MiB promoted. (2 MiB pages)"""

    promoted_by_scan: NotRequired[int]
    """`ingens`: Regions promoted because its scan found them. (2 MiB pages)"""

    promoted_on_request: NotRequired[int]
    """`ingens`: Requested regions that the daemon promoted. (2 MiB pages)"""

    promotions_64k: NotRequired[int]
    """`freebsd`: Aligned 64 KiB that got the contiguous bit. (64 KiB blocks)"""

    promotions_failed_mixed: NotRequired[int]
    """`freebsd`: Promotions that failed because some pages were dirty and some were not. (promotions)"""

    promotions_without_block: NotRequired[int]
    """`ingens`, `hawkeye`: Promotions that found no free block. (promotions)"""

    recovered_pages: NotRequired[int]
    """`hawkeye`: Pages of zeroes taken out of huge pages. (pages)"""

    recovered_superpages: NotRequired[int]
    """`hawkeye`: Huge pages out of which pages of zeroes were taken. (2 MiB pages)"""

    regions: NotRequired[int]
    """`hawkeye`: Regions of 2 MiB of small pages known at the end. (regions)"""

    regions_densest_bin: NotRequired[int]
    """`hawkeye`: Regions in the densest bin at the end. (regions)"""

    requests: NotRequired[int]
    """`ingens`: Regions of 2 MiB that faults asked the daemon to promote. (requests)"""

    reservations: NotRequired[int]
    """`ptemagnet`: Groups of 8 frames reserved. `freebsd`, `quicksilver`: Reservations of 2 MiB made. (reservations)"""

    returned_under_pressure: NotRequired[int]
    """`ptemagnet`: Unmapped frames of reservations given back because memory was short or a process exited. (frames)"""

    rounds_by_overhead: NotRequired[int]
    """`hawkeye`: Rounds of promotion for the process with the highest MMU overhead. (rounds)"""

    samples: NotRequired[int]
    """`ingens`, `hawkeye`: Samples of accessed bits taken. (samples)"""

    scans_by_fairness: NotRequired[int]
    """`ingens`: Scans that served the process with the most memory for each huge page. (scans)"""

    zero_page_allocations: NotRequired[int]
    """`thp`: Times that the huge page of zeroes was made (`thp_zero_page_alloc`). (2 MiB pages)"""

    zero_page_faults: NotRequired[int]
    """`thp`: Loads that mapped the huge page of zeroes. (faults)"""

    zeroed_ahead: NotRequired[int]
    """`hawkeye`: Pages of free memory zeroed ahead. (pages)"""


class TableCounters(TypedDict):
    """Counters of table placements: a kernel has those of its own placement."""

    extensions: NotRequired[int]
    """`asap`: Times that a region was to grow where it was. (regions)"""

    fallbacks: NotRequired[int]
    """`hugegpt`: Nodes put elsewhere, for want of a free block of 2 MiB. (nodes)"""

    frames_given_back: NotRequired[int]
    """`asap`: Frames of regions given back. (frames)"""

    frames_not_had: NotRequired[int]
    """`asap`: Frames that a region was to get and that were in use. (frames)"""

    holes: NotRequired[int]
    """`asap`: Places in the regions that have no frame at the end. (frames)"""

    huge_regions: NotRequired[int]
    """`hugegpt`: Regions made that the host backs by a huge page. (regions)"""

    made_contiguous: NotRequired[int]
    """`asap`: Requests for contiguous memory that the host granted. (requests)"""

    nodes_moved: NotRequired[int]
    """`asap`: Nodes moved into a region that grew or moved. (nodes)"""

    not_contiguous: NotRequired[int]
    """`asap`: Requests for contiguous memory that the host refused. (requests)"""

    pages_moved: NotRequired[int]
    """`asap`: Pages of programs moved to make room. (pages)"""

    placed: NotRequired[int]
    """`asap`: Nodes put in their place in a region. `hugegpt`: Nodes put into regions. (nodes)"""

    placed_elsewhere: NotRequired[int]
    """`asap`: Nodes of the sorted levels put elsewhere. (nodes)"""

    region_frames: NotRequired[int]
    """`asap`: Frames that the regions have at the end. (frames)"""

    regions: NotRequired[int]
    """`asap`: Regions of sorted nodes at the end. (regions)"""

    regions_failed: NotRequired[int]
    """`asap`: Regions that could not be made, for want of contiguous memory. (regions)"""

    regions_given_back: NotRequired[int]
    """`hugegpt`: Regions without nodes given back. (regions)"""

    regions_made: NotRequired[int]
    """`asap`: Regions made. `hugegpt`: Regions of 2 MiB for nodes made. (regions)"""

    regions_moved: NotRequired[int]
    """`asap`: Regions moved to a larger place. (regions)"""


class KernelStatistics(TypedDict):
    """A kernel's counters."""

    counters: OsCounters
    """All counters, by name."""

    frames: int
    """Frames of its memory."""

    free_frames: int
    """Those that are free at the end."""

    manager: str
    """Its memory manager."""

    manager_counters: ManagerCounters
    """The manager's own counters, by name."""

    mapped_pages: int
    """Pages of 4 KiB that the table maps (a large page is several)."""

    page_runs: int
    """Runs of pages that follow each other in virtual memory and whose frames follow each other, too: what one
    range, or one TLB entry of any length, could hold.
    """

    paging: str | None
    """How the memory of the VM on it is translated: `ept`, `shadow`, or `segments` with their number."""

    reserved_frames: int
    """Frames that the manager has set aside and that nothing maps."""

    role: str
    """`host`, `middle`, `guest` or `native`."""

    table_counters: TableCounters
    """The table placement's own counters, by name."""

    table_nodes: int
    """Nodes of the page table of the program (or VM) that it runs."""

    table_runs: int
    """Runs of neighbouring frames on which those nodes lie."""

    vmas: list[int]
    """VMAs of the program (or VM), and the fewest of them that hold 99 % of its mapped pages."""


class LatencyHistogram(TypedDict):
    """Walks by latency."""

    bucket_cycles: int
    """The width of a bucket; the last bucket holds all that are longer."""

    counts: list[int]
    """Walks in each."""


class Modelled(TypedDict):
    """What the model of a capture counted in a part of the program."""

    accesses: int
    """Accesses."""

    data_cycles: int
    """What the accesses that the filter kept cost in its caches."""

    walk_cycles: int
    """What they cost."""

    walks: int
    """Misses of its TLB."""


class References(TypedDict):
    """References of walks to one level of one table that one place served."""

    count: int
    """How many."""

    level: int
    """1 = PTE."""

    served_by: str
    """`l1d`, `l2`, `llc` or `memory`."""

    table: str
    """`guest` (the only table, when native) or `host`."""


class Requests(TypedDict):
    """The requests of a server: how long it took for each, waiting in a queue not included."""

    count: int
    """All that were measured."""

    cycles: int
    """Their time together."""

    cycles_max: int
    """The longest time of one."""

    cycles_p50: int
    """The time that half of them do not exceed."""

    cycles_p95: int
    """The time that 95 % of them do not exceed."""

    cycles_p99: int
    """The time that 99 % of them do not exceed."""

    detailed: int
    """Those of them that were simulated in full. The others' pages were touched, and they waited for data and walks
    as the last of these did on average.
    """

    series_cycles: list[int]
    """The time of so many requests in a row, from the first to the last."""

    series_requests: int
    """How many requests each element of `series_cycles` has; the last one may have fewer."""


class ReservedPoint(TypedDict):
    """The state at one moment."""

    reserved_frames: int
    """Frames that the memory manager has set aside and that nothing maps."""

    resident_frames: int
    """All other frames that are in use."""

    time_ns: int
    """Simulated time since the run began."""


class Reserved(TypedDict):
    """Frames held in reserve over the time of a run."""

    maximum_frames: int
    """The most at any time."""

    maximum_share: float | None
    """The largest share of the resident memory at any time; `None` before anything was resident."""

    mean_frames: float
    """The mean over all moments at which it was looked at."""

    mean_share: float | None
    """That as a share of the resident memory."""

    series: list[ReservedPoint]
    """Some of these moments, evenly spread."""


class StepReferences(TypedDict):
    """References at one step of a walk that one place served. A two-dimensional walk's steps have two co-ordinates
    (steps 1 to 24 of the papers' figures, row by row).
    """

    count: int
    """How many."""

    guest_level: int
    """The level of the guest's entry that is wanted (natively: of the entry); 0 for the data page at the end."""

    host_level: int
    """The level of the host's entry that is read on the way there; 0 for the guest's entry itself."""

    served_by: str
    """`l1d`, `l2`, `llc` or `memory`."""


class Shares(TypedDict):
    """What samples say of a program in place of the three shares of the machine's `[timing]`."""

    accesses: int
    """Accesses that were looked at."""

    cycles_per_kiloinstruction: int
    """Cycles that 1000 instructions take when no access waits for more than an L1-D hit."""

    data_overlap_permille: int | None
    """Share of the data latency beyond L1-D that the program does not wait for, in thousandths; `None` without such
    latency.
    """

    walk_critical_permille: int | None
    """Share of the walk cycles that it waits for, in thousandths; `None` without walks."""


class Window(TypedDict):
    """The counters of one measured window."""

    accesses: int
    """Data accesses."""

    cycles: Cycles
    """Estimated time by what it is spent on."""

    instructions: int
    """Instructions, the accesses' own included."""

    modelled: NotRequired[Modelled | None]
    """What the model of the capture counted in it, where that chose the windows."""

    walk_cycles: int
    """Their latency."""

    walk_references: int
    """References to tables."""

    walks: int
    """TLB misses that went to a walker."""


class Statistics(TypedDict):
    """Counters of the measured part."""

    accesses: int
    """Data accesses."""

    adopted_pages: int
    """Pages that the program used though it had never mapped them (a trace that does not know all mappings)."""

    colocated: NotRequired[list[ColocatedStatistics]]
    """What ran beside the program, by `[[colocated]]` entry: all that it did, from beginning to end."""

    cycles: Cycles
    """Estimated time by what it is spent on."""

    instructions: int
    """Instructions, the accesses' own included."""

    kernels: list[KernelStatistics]
    """All counters of each kernel since the start, bottom first."""

    latency_histogram: LatencyHistogram
    """Distribution of walk latencies."""

    mmu: Counters
    """All counters of the MMU, by name."""

    modelled: NotRequired[Modelled | None]
    """What the model of the capture counted in it, where that chose the windows."""

    modelled_program: NotRequired[Modelled | None]
    """What the model of the capture counted of all that the windows are a sample of, where that chose them."""

    populated_pages: int
    """Pages that were brought in by first touches of stretches that the trace skips."""

    references: list[References]
    """References to tables."""

    refused_events: int
    """Memory events that the kernel refused, because the trace does not know what they refer to."""

    requests: NotRequired[Requests | None]
    """The requests of a server that tells them apart."""

    reserved: Reserved
    """Frames that the program's kernel held in reserve, over the time of the run."""

    steps: list[StepReferences]
    """The same by step of the walk."""

    waiting: NotRequired[Shares | None]
    """How much of its waiting the program hides, where it says which access needs which."""

    walk_cycles: int
    """Their latency."""

    walk_references: int
    """References to tables."""

    walks: int
    """TLB misses that went to a walker."""

    warm_accesses: int
    """Accesses that only warmed TLBs and caches."""

    windows: list[Window]
    """Each measured window."""
