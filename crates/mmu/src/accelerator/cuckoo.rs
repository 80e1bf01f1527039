// SPDX-License-Identifier: MIT OR Apache-2.0
//! Elastic cuckoo page tables (Skarlatos, Kokolis, Xu, Torrellas, ASPLOS 2020), and nested ones
//! (Stojkovic et al., ASPLOS 2022): the hardware walks hashed tables in place of the kernels' radix
//! tables.
//!
//! - A process has a hashed table for each page size, of three ways. A line of it has the entries
//!   of 8 neighbouring pages. All lines that a page may be in are read in parallel, and a step
//!   takes as long as the one that has it.
//! - Walk tables say of a section, that is what a line of the 2 MiB (of the 1 GiB) table maps,
//!   which page sizes are in it, and in which way the large ones are. A core's walk caches keep
//!   entries of these tables, so that most walks read the lines of one table, or one line. What is
//!   not there is read from memory while the walk goes on.
//! - Nested, each line of the guest's that is to be read is translated by the host's table first
//!   (step 1, all in parallel), then they are read (step 2), then the host's table translates the
//!   data page (step 3). The hypervisor maps the guest's tables by 4 KiB pages, so that step 1
//!   reads the host's table of that size only, and a walk cache of its own knows the way.
//!
//! The kernels keep their radix tables, which stay the truth of what is mapped. Their hashed forms
//! follow each write to them, as the papers' kernels would: insertions, removals and resizes one by
//! one. [The model](nestwalk_mem) of it: `docs/model.md` has what is left out.

mod elastic;
mod mirror;
mod region;

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

use nestwalk_mem::addr::PAGE_SHIFT;
use nestwalk_mem::keys::{Key, assumed, key};
use nestwalk_mem::{Gpa, Gva, Hpa, PageSize, Va, Vpn};
use serde::{Deserialize, Serialize};

use self::elastic::{ALL_WAYS, WAYS, Work, only};
use self::mirror::{Mirror, Plan, walk_key};
use self::region::{Extent, Region};
use crate::accelerator::Accelerator;
use crate::accelerator::tables::{Lookups, Probe, Tables};
use crate::config::LINE_BYTES;
use crate::events::{Served, WalkEvents};
use crate::key::Asid;
use crate::leaf::{Found, leaf_of};

/// The numbers of a scenario that are this technique's.
pub const KEYS: &[Key] = &[
    key("accelerator.lines", 64, 1 << 24, "lines", assumed("a way of 1 GiB")),
    key("accelerator.pmd_walk_cache", 1, 4096, "entries", assumed("256 times what the papers have")),
    key("accelerator.pud_walk_cache", 1, 4096, "entries", assumed("2048 times what the papers have")),
    key("accelerator.walk_cache_cycles", 0, 100, "cycles", assumed("as long as a look-up in the last-level cache")),
];

/// Elastic cuckoo page tables, of all kernels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CuckooConfig {
    /// Lines of a way to begin with, rounded up to a power of two. The papers have 16384.
    pub lines: u32,
    /// Entries of a walk cache for the sections of 16 MiB, 64 of which an entry describes.
    pub pmd_walk_cache: u32,
    /// Entries of a walk cache for the sections of 8 GiB, 64 of which an entry describes.
    pub pud_walk_cache: u32,
    /// Cycles of a look-up in the walk caches, before each step that they serve.
    pub walk_cache_cycles: u32,
}

impl Default for CuckooConfig {
    fn default() -> Self {
        Self { lines: 16384, pmd_walk_cache: 16, pud_walk_cache: 2, walk_cache_cycles: 2 }
    }
}

/// The walk caches of a core.
const WALK_CACHES: [&str; 5] = ["guest_pmd", "guest_pud", "host_pte", "host_pmd", "host_pud"];

nestwalk_mem::counters! {
    /// What hashed page tables did, of measured accesses.
    pub struct CuckooCounters {
        /// Look-ups in the walk caches that hit, for walks that found their translation.
        walk_cache_hits: [u64; 5] ["look-ups" by WALK_CACHES],
        /// Look-ups in the walk caches that missed: the walk table is read beside the walk.
        walk_cache_misses: [u64; 5] ["look-ups" by WALK_CACHES],
        /// References of walks to hashed tables that no step waited for, as another line had what
        /// was looked for.
        beside: u64 ["references"],
        /// References to walk tables, by what served them. Those before a page fault are not in
        /// here.
        walk_table_references: [u64; 4] ["references" by Served::NAMES],
        /// Lines of hashed tables that were moved, by insertions and by resizes.
        moved: u64 ["lines"],
        /// Resizes of hashed tables that began.
        resizes: u64 ["resizes"],
    }
}

/// The guest-physical page at which a VM sees the memory that its hashed tables are in: beyond any
/// memory of its own.
const GUEST_REGION: u64 = 1 << 34;

/// Entries of a walk table that a core keeps, the latest first.
#[derive(Clone, Debug)]
struct WalkCache {
    keys: Vec<u64>,
    entries: usize,
}

impl WalkCache {
    fn new(entries: u32) -> Self {
        Self { keys: Vec::new(), entries: entries as usize }
    }

    /// Looks `key` up, which is the latest then.
    fn look_up(&mut self, key: u64) -> bool {
        let there = self.keys.iter().position(|&other| other == key);
        match there {
            Some(place) => self.keys[..=place].rotate_right(1),
            None => {
                self.keys.truncate(self.entries - 1);
                self.keys.insert(0, key);
            }
        }
        there.is_some()
    }

    fn flush(&mut self, process: Asid) {
        self.keys.retain(|&key| Asid::part(key) != process.key());
    }
}

/// All that is in memory.
#[derive(Debug)]
struct Shared {
    region: Region,
    /// By process, with its VM.
    guests: Vec<Option<(Asid, Mirror)>>,
    /// By VM.
    hosts: Vec<Option<Mirror>>,
    lines: usize,
}

/// See the [module's documentation](self). A clone is another core's: what is in memory is the
/// same.
#[derive(Clone, Debug)]
pub struct Cuckoo {
    shared: Arc<Mutex<Shared>>,
    /// In the order of [`WALK_CACHES`].
    walk_caches: [WalkCache; 5],
    walk_cache_cycles: u32,
    process: Asid,
    vm: Asid,
    counters: CuckooCounters,
}

/// The place of `number` in a list that grows as needed.
fn place<T>(list: &mut Vec<Option<T>>, number: Asid) -> &mut Option<T> {
    let number = usize::from(number.0);
    if list.len() <= number {
        list.resize_with(number + 1, || None);
    }
    &mut list[number]
}

/// The host's virtual pages at which the lines of `extent` are mapped for a VM, one in each group
/// of 8.
fn host_pages(region: &Region, extent: Extent, base: Vpn) -> impl Iterator<Item = Vpn> + use<> {
    let first = base + GUEST_REGION + (region.offset(extent.base) >> PAGE_SHIFT);
    let pages = (extent.lines as u64 * LINE_BYTES).div_ceil(1 << PAGE_SHIFT);
    (first.0 & !7..first.0 + pages).step_by(8).map(Vpn)
}

impl Shared {
    /// Brings the hashed forms of the tables of a process and its VM up to date.
    fn take_in(&mut self, process: Asid, vm: Asid, tables: Tables<'_>) -> Work {
        let Self { region, guests, hosts, lines } = self;
        let (guest, host) = match tables {
            Tables::One(table) => (table, None),
            Tables::Two { guest, host, base } => (guest, Some((host, base))),
            Tables::Other => unreachable!("a scenario with other tables is refused"),
        };
        let place_of_guest = place(guests, process);
        if let Some((_, gone)) = place_of_guest.take_if(|(_, mirror)| mirror.table != guest.version().table) {
            gone.drop_into(region);
        }
        let (_, mirror) = place_of_guest.get_or_insert_with(|| (vm, Mirror::new(guest, *lines, region)));
        mirror.take_in(guest, region);
        let mut work = mirror.take_work();
        let news = region.take_news();
        let Some((host, base)) = host else { return work };
        let place_of_host = place(hosts, vm);
        if let Some(gone) = place_of_host.take_if(|mirror| mirror.table != host.version().table) {
            gone.drop_into(region);
        }
        let is_new = place_of_host.is_none();
        let mirror = place_of_host.get_or_insert_with(|| Mirror::new(host, *lines, region));
        mirror.take_in(host, region);
        // The hypervisor backs what the guest's tables came to lie in, and leaves it so.
        let in_vm = || guests.iter().flatten().filter(|(of, _)| *of == vm);
        let mapped = if is_new { in_vm().flat_map(|(_, guest)| guest.extents()).collect() } else { news };
        for extent in mapped {
            for page in host_pages(region, extent, base) {
                mirror.insert(page, PageSize::Small, region);
            }
        }
        let of_host = mirror.take_work();
        region.take_news();
        work.moved += of_host.moved;
        work.resizes += of_host.resizes;
        work
    }
}

/// The lines of a plan: page size, way, line.
fn lines_of(mirror: &Mirror, page: Vpn, plan: Plan) -> impl Iterator<Item = (PageSize, usize, Hpa)> + '_ {
    let ways = |ways: u8| (0..WAYS).filter(move |&way| ways & only(way) > 0);
    PageSize::ALL
        .into_iter()
        .flat_map(move |size| ways(plan[size as usize]).map(move |way| (size, way, mirror.line(page, size, way))))
}

/// A walk that goes on.
struct Walk<'a, F> {
    walk_caches: &'a mut [WalkCache; 5],
    /// What it counts if it ends well.
    counters: CuckooCounters,
    probe: F,
}

impl<F: FnMut(Probe)> Walk<'_, F> {
    /// Looks into the walk cache of that number for the section of `page`, and has the walk table
    /// read if it is not there.
    fn look_up(&mut self, number: usize, mirror: &Mirror, page: Vpn, size: PageSize, process: Asid) -> bool {
        let hit = self.walk_caches[number].look_up(walk_key(page, size) | process.key());
        self.counters.walk_cache_hits[number] += u64::from(hit);
        self.counters.walk_cache_misses[number] += u64::from(!hit);
        if !hit {
            let hpa = mirror.walk_line(page, size);
            (self.probe)(Probe { hpa, code: WalkEvents::ACCELERATOR, host: number > 1, waits: false });
        }
        hit
    }

    /// Where to look for `page`, by the walk caches from that number on.
    fn plan(&mut self, number: usize, mirror: &Mirror, page: Vpn, process: Asid) -> Plan {
        let pmd = self.look_up(number, mirror, page, PageSize::Huge, process);
        let pud = self.look_up(number + 1, mirror, page, PageSize::Giant, process);
        mirror.plan(page, [pmd, pud])
    }

    fn refer(&mut self, hpa: Hpa, code: u8, host: bool, waits: bool) {
        self.counters.beside += u64::from(!waits);
        (self.probe)(Probe { hpa, code, host, waits });
    }
}

/// Whether `leaf` is in the line of that size and way.
fn is_in(leaf: Option<Found>, mirror: &Mirror, page: Vpn, (size, way): (PageSize, usize)) -> bool {
    leaf.is_some_and(|leaf| leaf.size() == size) && mirror.way_of(page, size) == Some(way)
}

impl Cuckoo {
    /// Empty tables in `memory`.
    pub fn new(config: &CuckooConfig, memory: Range<Hpa>) -> Self {
        let lines = config.lines.next_power_of_two() as usize;
        let region = Region::new(memory.start, memory.end);
        let (pmd, pud) = (WalkCache::new(config.pmd_walk_cache), WalkCache::new(config.pud_walk_cache));
        Self {
            shared: Arc::new(Mutex::new(Shared { region, guests: Vec::new(), hosts: Vec::new(), lines })),
            walk_caches: [pmd.clone(), pud.clone(), pmd.clone(), pmd, pud],
            walk_cache_cycles: config.walk_cache_cycles,
            process: Asid::default(),
            vm: Asid::default(),
            counters: CuckooCounters::default(),
        }
    }

    fn shared(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
        shared.lock().expect("nothing panics while it is held")
    }
}

impl Accelerator for Cuckoo {
    const WALKS: bool = true;

    type Counters = CuckooCounters;

    fn take_in(&mut self, tables: Tables<'_>) {
        let work = Self::shared(&self.shared).take_in(self.process, self.vm, tables);
        self.counters.moved += work.moved;
        self.counters.resizes += work.resizes;
    }

    fn walk(&mut self, gva: Gva, tables: Tables<'_>, ends_well: bool, probe: impl FnMut(Probe)) -> Lookups {
        let Self { shared, walk_caches, process, vm, walk_cache_cycles, .. } = self;
        let shared = Self::shared(shared);
        let mut walk = Walk { walk_caches, counters: CuckooCounters::default(), probe };
        let page = Va::from(gva).page();
        let guest = shared.guests.get(usize::from(process.0)).and_then(Option::as_ref);
        let (_, own) = guest.expect("its tables were taken in");
        let plan = walk.plan(0, own, page, *process);
        let step = |guest: u8, host: u8| WalkEvents::step_code(guest, host);
        let mut lookups = Lookups { guest: *walk_cache_cycles, host: 0 };
        match tables {
            Tables::One(table) => {
                let leaf = leaf_of(table, page, false);
                for (size, way, line) in lines_of(own, page, plan) {
                    walk.refer(line, step(size.level().0, 0), false, is_in(leaf, own, page, (size, way)));
                }
            }
            Tables::Two { guest, host, base } => {
                let below = shared.hosts.get(usize::from(vm.0)).and_then(Option::as_ref);
                let below = below.expect("its tables were taken in");
                let leaf = leaf_of(guest, page, false);
                lookups.host += *walk_cache_cycles;
                // Step 1: where the lines are.
                for (size, way, line) in lines_of(own, page, plan) {
                    let waits = is_in(leaf, own, page, (size, way));
                    let there = base + GUEST_REGION + (shared.region.offset(line) >> PAGE_SHIFT);
                    let own_way = below.way_of(there, PageSize::Small);
                    let known = walk.look_up(2, below, there, PageSize::Small, *vm);
                    let ways = if known { own_way.map_or(0, only) } else { ALL_WAYS };
                    for (_, way, line) in lines_of(below, there, [ways, 0, 0]) {
                        walk.refer(line, step(size.level().0, 1), true, waits && own_way == Some(way));
                    }
                }
                // Step 2: what is in them.
                for (size, way, line) in lines_of(own, page, plan) {
                    walk.refer(line, step(size.level().0, 0), false, is_in(leaf, own, page, (size, way)));
                }
                // Step 3: where the page is.
                if let Some(leaf) = leaf {
                    let gpa: Gpa = leaf.gpa_of(gva);
                    let page = base + gpa.page().0;
                    let leaf = leaf_of(host, page, false);
                    let plan = walk.plan(3, below, page, *vm);
                    lookups.host += *walk_cache_cycles;
                    for (size, way, line) in lines_of(below, page, plan) {
                        walk.refer(line, step(0, size.level().0), true, is_in(leaf, below, page, (size, way)));
                    }
                }
            }
            Tables::Other => unreachable!("a scenario with other tables is refused"),
        }
        if ends_well {
            self.counters.add(&walk.counters);
        }
        lookups
    }

    fn switch_to(&mut self, guest: Asid, host: Asid) {
        (self.process, self.vm) = (guest, host);
    }

    fn flush(&mut self) {
        let [guest @ .., _, _, _] = &mut self.walk_caches;
        guest.iter_mut().for_each(|cache| cache.flush(self.process));
    }

    fn flush_all(&mut self) {
        self.walk_caches.iter_mut().for_each(|cache| cache.keys.clear());
    }

    fn counters(&self) -> Option<&CuckooCounters> {
        Some(&self.counters)
    }

    fn counters_mut(&mut self) -> Option<&mut CuckooCounters> {
        Some(&mut self.counters)
    }

    fn take_events(events: &mut WalkEvents, counters: &mut CuckooCounters) {
        counters.walk_table_references = events.take(WalkEvents::ACCELERATOR);
    }

    fn check_invariants(&self) {
        let shared = Self::shared(&self.shared);
        shared.guests.iter().flatten().for_each(|(_, mirror)| mirror.check_invariants());
        shared.hosts.iter().flatten().for_each(Mirror::check_invariants);
    }
}
