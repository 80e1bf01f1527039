// SPDX-License-Identifier: MIT OR Apache-2.0
//! A reference model of the whole machine: one access and one reference after the other, no
//! batches.

use std::collections::BTreeMap;

use nestwalk_mem::{Access, Gpa, Hpa, PageSize};
use nestwalk_mmu::{
    CoRunner, Counters, Fault, LatencyHistogram, MmuConfig, PwcConfig, PwcRules, Served, Table as Which, WaysConfig,
};

use crate::caches::Caches;
use crate::pom::{Pom, User};
use crate::tables::{Step, Table, number};
use crate::tlbs::{Found, Mapping, Tlbs};

/// The histogram's bucket for all latencies that no other has.
const LATENCY_BUCKET_MAX: u64 = LatencyHistogram::LEN as u64 - 1;

/// Counters by name. Those that are 0 may be missing.
pub type Counted = BTreeMap<String, u64>;

/// A set of entry numbers with their processes, the latest first.
type Set = Vec<(u16, u64)>;

/// Page-walk caches: for each level its sets and their ways.
#[derive(Debug)]
struct WalkCaches {
    latency: u64,
    levels: BTreeMap<u8, (Vec<Set>, usize)>,
    asid: u16,
    rules: PwcRules,
    /// The tag that each level was searched for last.
    latest: BTreeMap<u8, (u16, u64)>,
}

impl WalkCaches {
    fn new(config: &PwcConfig) -> Self {
        let level = |ways: WaysConfig| (vec![Vec::new(); (ways.entries / ways.ways) as usize], ways.ways as usize);
        let configured = [(2, config.pl2), (3, config.pl3), (4, config.pl4), (5, config.pl5)];
        let levels = configured.into_iter().filter_map(|(number, ways)| Some((number, level(ways?)))).collect();
        let rules = config.rules;
        Self { latency: config.latency_cycles.into(), levels, asid: 0, rules, latest: BTreeMap::new() }
    }

    fn exist(&self) -> bool {
        !self.levels.is_empty()
    }

    /// The process's tag of the entry of `level` for `page`.
    fn tag(&self, page: u64, level: u8) -> (u16, u64) {
        (self.asid, number(page, level) / u64::from(self.rules.entries_per_tag.unwrap_or(1)))
    }

    /// The lowest level above `leaf` whose entry for `page` is known; it becomes the latest.
    fn find(&mut self, page: u64, leaf: u8, root: u8) -> Option<u8> {
        let mut hit = None;
        for level in leaf + 1..=root {
            if hit.is_some() && !self.rules.all_levels {
                break;
            }
            let key = self.tag(page, level);
            let is_repeat = self.latest.insert(level, key) == Some(key);
            let Some((sets, _)) = self.levels.get(&level) else { continue };
            let there = sets[(key.1 % sets.len() as u64) as usize].contains(&key);
            if there || hit.is_some() {
                self.insert(page, level);
            }
            if there && !(is_repeat && self.rules.repeats_miss) {
                hit = hit.or(Some(level));
            }
        }
        hit
    }

    /// The entry of `level` for `page` was read on the way to a node, or found: it is the latest.
    fn insert(&mut self, page: u64, level: u8) {
        let key = self.tag(page, level);
        let Some((sets, ways)) = self.levels.get_mut(&level) else { return };
        let count = sets.len() as u64;
        let set = &mut sets[(key.1 % count) as usize];
        set.retain(|&other| other != key);
        set.insert(0, key);
        set.truncate(*ways);
    }

    fn flush(&mut self, all: bool) {
        let asid = self.asid;
        let sets = self.levels.values_mut().flat_map(|(sets, _)| sets);
        sets.for_each(|set| set.retain(|&(owner, _)| !all && owner != asid));
    }
}

/// Host translations of 4 KiB pages.
#[derive(Debug)]
struct NestedTlb {
    latency: u64,
    sets: Vec<Vec<(u16, u64, Mapping)>>,
    ways: usize,
    asid: u16,
}

impl NestedTlb {
    fn set(&mut self, page: u64) -> &mut Vec<(u16, u64, Mapping)> {
        let count = self.sets.len() as u64;
        &mut self.sets[(page % count) as usize]
    }

    fn find(&mut self, page: u64, write: bool) -> Option<Mapping> {
        let asid = self.asid;
        let set = self.set(page);
        let entry = set.remove(set.iter().position(|&(owner, at, _)| (owner, at) == (asid, page))?);
        // A write needs an entry that allows it and knows of the dirty bit.
        (!write || entry.2.writable && entry.2.dirty).then(|| {
            set.insert(0, entry);
            entry.2
        })
    }

    fn insert(&mut self, page: u64, mapping: Mapping) {
        let (asid, ways) = (self.asid, self.ways);
        let set = self.set(page);
        set.insert(0, (asid, page, mapping));
        set.truncate(ways);
    }
}

/// A core, its caches apart.
#[derive(Debug)]
struct Core {
    tlbs: Tlbs,
    guest_pwc: WalkCaches,
    host_pwc: WalkCaches,
    nested_tlb: Option<NestedTlb>,
    host_pwc_skips_data: bool,
    pom_user: User,
    counted: Counted,
}

/// What a walk did.
#[derive(Debug, Default)]
struct Walk {
    /// References by guest and host level, and what served each.
    references: Vec<(u8, u8, Served)>,
    /// Those to lines of the part-of-memory TLB.
    pom_references: Vec<Served>,
    lookups: Vec<String>,
    guest_cycles: u64,
    host_cycles: u64,
}

/// Cores over one last-level cache.
#[derive(Debug)]
pub struct Machine {
    latencies: [u64; 4],
    caches: Caches,
    cores: Vec<Core>,
    /// Of all cores.
    pom: Option<Pom>,
}

/// The tables of a program: its own, and in a VM the host's.
#[derive(Debug)]
pub struct Tables {
    pub own: Table,
    pub host: Option<Table>,
}

impl Tables {
    /// The first store to `page` through an entry that a load had brought.
    fn set_dirty(&mut self, page: u64) {
        let gfn = self.own.frame(page);
        self.own.mark(page, true);
        if let Some(host) = &mut self.host {
            host.mark(gfn, true);
        }
    }
}

fn count(counted: &mut Counted, name: impl Into<String>, by: u64) {
    *counted.entry(name.into()).or_default() += by;
}

fn name_of_step(guest: u8, host: u8, served: Served) -> String {
    format!("step {guest}.{host} {served:?}")
}

impl Machine {
    pub fn new(config: &MmuConfig, cores: usize, pom: Option<Pom>) -> Self {
        let core = || Core {
            tlbs: Tlbs::new(config),
            guest_pwc: WalkCaches::new(&config.guest_pwc),
            host_pwc: WalkCaches::new(&config.host_pwc),
            nested_tlb: config.nested_tlb.map(|nested| NestedTlb {
                latency: nested.latency_cycles.into(),
                sets: vec![Vec::new(); (nested.entries / nested.ways) as usize],
                ways: nested.ways as usize,
                asid: 0,
            }),
            host_pwc_skips_data: config.host_pwc_skips_data,
            pom_user: User::default(),
            counted: Counted::new(),
        };
        let latencies = [
            config.l1d.latency_cycles,
            config.l2.latency_cycles,
            config.llc.latency_cycles,
            config.memory_latency_cycles,
        ];
        let cores: Vec<_> = (0..cores).map(|_| core()).collect();
        Self { latencies: latencies.map(u64::from), caches: Caches::new(config, cores.len()), cores, pom }
    }

    /// See [`Caches::hear_of_evictions`].
    pub fn hear_of_evictions(&mut self) {
        self.caches.hear_of_evictions();
    }

    fn latency(&self, served: Served) -> u64 {
        self.latencies[served as usize]
    }

    /// A reference of a walk.
    fn refer(&mut self, core: usize, walk: &mut Walk, (guest, host): (u8, u8), address: u64) {
        let served = self.caches.refer(core, address);
        walk.references.push((guest, host, served));
        *(if host == 0 { &mut walk.guest_cycles } else { &mut walk.host_cycles }) += self.latency(served);
    }

    /// What is left to read of `way` after a look-up in the page-walk caches `pwc`.
    fn look_up(
        pwc: Option<&mut WalkCaches>,
        (lookups, cycles): (&mut Vec<String>, &mut u64),
        which: Which,
        page: u64,
        way: &[Step],
        root: u8,
    ) -> Vec<Step> {
        let Some(pwc) = pwc.filter(|pwc| pwc.exist()) else { return way.to_vec() };
        let leaf = way.last().expect("a table has a root").level;
        let hit = pwc.find(page, leaf, root);
        lookups.push(format!("pwc {which:?} {}", hit.unwrap_or(0)));
        *cycles += pwc.latency;
        way.iter().copied().filter(|step| hit.is_none_or(|hit| step.level < hit)).collect()
    }

    /// Translates a page of the host's process for a reference to `gpa`.
    fn host_walk(
        &mut self,
        core: usize,
        walk: &mut Walk,
        host: &mut Table,
        gpa: u64,
        write: bool,
        guest_level: u8,
    ) -> Result<Mapping, Fault> {
        let page = gpa >> 12;
        if let Some(nested) = &mut self.cores[core].nested_tlb {
            let found = nested.find(page, write);
            walk.lookups.push(format!("nested TLB {}", found.is_some()));
            walk.host_cycles += nested.latency;
            if let Some(found) = found {
                return Ok(found);
            }
        }
        let way = host.way(page);
        let is_searched = guest_level > 0 || !self.cores[core].host_pwc_skips_data;
        let pwc = is_searched.then_some(&mut self.cores[core].host_pwc);
        let into = (&mut walk.lookups, &mut walk.host_cycles);
        let end = way.last().expect("a table has a root").level;
        for step in Self::look_up(pwc, into, Which::Host, page, &way, host.root()) {
            self.refer(core, walk, (guest_level, step.level), step.address);
            if step.level > end && is_searched {
                self.cores[core].host_pwc.insert(page, step.level);
            }
        }
        let fault = Fault::Host { gpa: Gpa(gpa), store: write };
        let (first, leaf) = host.leaf(page).filter(|(_, leaf)| leaf.writable || !write).ok_or(fault)?;
        host.mark(page, write);
        let mapping = Mapping {
            page: first,
            frame: leaf.frame,
            size: leaf.size,
            writable: leaf.writable,
            dirty: leaf.dirty || write,
        };
        if let Some(nested) = &mut self.cores[core].nested_tlb {
            nested.insert(page, mapping);
        }
        Ok(mapping)
    }

    /// Asks the part-of-memory TLB. What it finds, and marks.
    fn ask(
        &mut self,
        core: usize,
        walk: &mut Walk,
        tables: &mut Tables,
        access: Access,
        detail: bool,
    ) -> Option<Mapping> {
        let (page, store) = (access.gva().page().0, access.is_store());
        let Core { pom_user, counted, .. } = &mut self.cores[core];
        let (read, hit) = self.pom.as_mut()?.find(pom_user, page, store);
        if detail {
            if let Some(hit) = &hit {
                count(counted, format!("POM hit {}", hit.part), 1);
                count(counted, "POM other size", u64::from(!hit.predicted));
            }
            for address in read {
                let served = self.caches.refer(core, address);
                walk.pom_references.push(served);
                walk.guest_cycles += self.latency(served);
            }
        }
        let mapping = hit?.mapping;
        if store && !mapping.dirty {
            tables.set_dirty(page);
        }
        Some(Mapping { dirty: mapping.dirty || store, ..mapping })
    }

    /// The walk for an access; with `detail` its references are made. What it finds, marks and
    /// counts.
    fn walk(
        &mut self,
        core: usize,
        walk: &mut Walk,
        tables: &mut Tables,
        access: Access,
        detail: bool,
    ) -> Result<Mapping, Fault> {
        let (gva, store) = (access.gva(), access.is_store());
        let page = gva.page().0;
        if detail {
            let way = tables.own.way(page);
            let end = way.last().expect("a table has a root").level;
            let pwc = Some(&mut self.cores[core].guest_pwc);
            let into = (&mut walk.lookups, &mut walk.guest_cycles);
            for step in Self::look_up(pwc, into, Which::Guest, page, &way, tables.own.root()) {
                let address = match &mut tables.host {
                    None => step.address,
                    Some(host) => {
                        let there = self.host_walk(core, walk, host, step.address, true, step.level)?;
                        there.frame_of(step.address >> 12) << 12 | step.address & 0xfff
                    }
                };
                self.refer(core, walk, (step.level, 0), address);
                if step.level > end {
                    self.cores[core].guest_pwc.insert(page, step.level);
                }
            }
        }
        let fault = Fault::Guest { gva, store };
        let (first, leaf) = tables.own.leaf(page).filter(|(_, leaf)| leaf.writable || !store).ok_or(fault)?;
        let own = Mapping {
            page: first,
            frame: leaf.frame,
            size: leaf.size,
            writable: leaf.writable,
            dirty: leaf.dirty || store,
        };
        let Some(host) = &mut tables.host else {
            tables.own.mark(page, store);
            return Ok(own);
        };
        let gpa = own.frame_of(page) << 12 | gva.page_offset();
        let below = if detail {
            self.host_walk(core, walk, host, gpa, store, 0)?
        } else {
            let fault = Fault::Host { gpa: Gpa(gpa), store };
            let (first, leaf) = host.leaf(gpa >> 12).filter(|(_, leaf)| leaf.writable || !store).ok_or(fault)?;
            host.mark(gpa >> 12, store);
            Mapping {
                page: first,
                frame: leaf.frame,
                size: leaf.size,
                writable: leaf.writable,
                dirty: leaf.dirty || store,
            }
        };
        tables.own.mark(page, store);
        // The smaller of the two pages, where the host has it.
        let size = own.size.min(below.size);
        let first = page & !(size.pages() - 1);
        let frame = below.frame_of(own.frame_of(page)) & !(size.pages() - 1);
        Ok(Mapping {
            page: first,
            frame,
            size,
            writable: own.writable && below.writable,
            dirty: own.dirty && below.dirty,
        })
    }

    /// What lines of leaf entries say of the group around `page`, which was just walked for.
    fn group(tables: &Tables, page: u64) -> [Option<u64>; 8] {
        let own = tables.own.group(page);
        let Some(host) = &tables.host else { return own };
        let below = host.group(tables.own.frame(page));
        own.map(|frame| below[(frame? & 7) as usize])
    }

    /// Core `core` does one access; with `detail` caches see it, and after it the co-runner's.
    pub fn access(
        &mut self,
        core: usize,
        tables: &mut Tables,
        access: Access,
        detail: bool,
        corunner: Option<&mut CoRunner>,
    ) -> Result<(), Fault> {
        let page = access.gva().page().0;
        let mode = if detail { "full" } else { "functional" };
        let found = self.cores[core].tlbs.find(page, access.is_store());
        let (mapping, what) = match found {
            Found::L1(mapping) => (mapping, format!("{mode} l1 {:?}", mapping.size)),
            Found::L2(mapping, size) => (mapping, format!("{mode} l2 {size:?}")),
            Found::Miss => {
                let mut walk = Walk::default();
                let answer = self.ask(core, &mut walk, tables, access, detail);
                let end = match answer {
                    Some(mapping) => Ok(mapping),
                    None => self.walk(core, &mut walk, tables, access, detail),
                };
                let Core { tlbs, pom_user, counted, .. } = &mut self.cores[core];
                let mapping = match end {
                    Ok(mapping) => mapping,
                    Err(fault) => {
                        if detail {
                            count(counted, "aborted walks", 1);
                            let references = walk.references.len() + walk.pom_references.len();
                            count(counted, "aborted references", references as u64);
                        }
                        return Err(fault);
                    }
                };
                walk.references
                    .iter()
                    .for_each(|&(guest, host, served)| count(counted, name_of_step(guest, host, served), 1));
                walk.pom_references.iter().for_each(|served| count(counted, format!("POM {served:?}"), 1));
                walk.lookups.into_iter().for_each(|lookup| count(counted, lookup, 1));
                if let Some(pom) = self.pom.as_mut().filter(|_| answer.is_none()) {
                    pom.insert(pom_user, page, mapping);
                    count(counted, "POM miss", detail.into());
                }
                if detail {
                    count(counted, "guest cycles", walk.guest_cycles);
                    count(counted, "host cycles", walk.host_cycles);
                    count(
                        counted,
                        format!("latency {}", ((walk.guest_cycles + walk.host_cycles) / 8).min(LATENCY_BUCKET_MAX)),
                        1,
                    );
                }
                let clustered = tlbs.is_clustered() && mapping.size == PageSize::Small;
                // An answer has no line of leaf entries beside it.
                let group = clustered.then(|| match answer {
                    Some(mapping) => std::array::from_fn(|place| (place as u64 == page & 7).then_some(mapping.frame)),
                    None => Self::group(tables, page),
                });
                // Nor does it say anything of 64 KiB.
                let in_block = answer.is_none()
                    && tlbs.holds_blocks()
                    && mapping.size == PageSize::Small
                    && tables.own.is_in_block(page)
                    && tables.host.as_ref().is_none_or(|host| host.is_in_block(tables.own.frame(page)));
                count(counted, "blocks", in_block.into());
                (tlbs.insert(page, mapping, group, in_block), format!("{mode} miss {:?}", mapping.size))
            }
        };
        let Core { tlbs, counted, .. } = &mut self.cores[core];
        if access.is_store() && !mapping.dirty {
            tables.set_dirty(page);
            tlbs.set_dirty(page);
        }
        count(counted, what, 1);
        count(counted, format!("{mode} accesses"), 1);
        count(counted, format!("{mode} stores"), access.is_store().into());
        if detail {
            let served = self.caches.refer(core, mapping.frame_of(page) << 12 | access.gva().page_offset());
            count(&mut self.cores[core].counted, format!("data {served:?}"), 1);
            if let Some(Hpa(beside)) = corunner.map(CoRunner::next_access) {
                let served = self.caches.refer(core, beside);
                count(&mut self.cores[core].counted, format!("co-runner {served:?}"), 1);
            }
        }
        Ok(())
    }

    /// See [`nestwalk_mmu::Core::invalidate`].
    pub fn invalidate(&mut self, core: usize, pages: std::ops::Range<u64>) {
        let Core { tlbs, guest_pwc, pom_user, .. } = &mut self.cores[core];
        self.pom.iter_mut().for_each(|pom| pom.remove(Some(pom_user.asid), &pages));
        tlbs.invalidate(pages);
        guest_pwc.flush(false);
    }

    /// See [`nestwalk_mmu::Core::flush_guest`].
    pub fn flush_guest(&mut self, core: usize) {
        let Core { tlbs, guest_pwc, pom_user, .. } = &mut self.cores[core];
        self.pom.iter_mut().for_each(|pom| pom.remove(Some(pom_user.asid), &(0..u64::MAX)));
        tlbs.flush(false);
        guest_pwc.flush(false);
    }

    /// See [`nestwalk_mmu::Core::flush_all`].
    pub fn flush_all(&mut self, core: usize) {
        let Core { tlbs, guest_pwc, host_pwc, nested_tlb, .. } = &mut self.cores[core];
        self.pom.iter_mut().for_each(|pom| pom.remove(None, &(0..u64::MAX)));
        tlbs.flush(true);
        guest_pwc.flush(true);
        host_pwc.flush(true);
        nested_tlb.iter_mut().flat_map(|nested| &mut nested.sets).for_each(Vec::clear);
    }

    /// See [`nestwalk_mmu::Core::switch_to`].
    pub fn switch_to(&mut self, core: usize, guest: u16, host: u16) {
        let Core { tlbs, guest_pwc, host_pwc, nested_tlb, pom_user, .. } = &mut self.cores[core];
        (tlbs.asid, guest_pwc.asid, host_pwc.asid) = (guest, guest, host);
        (pom_user.asid, pom_user.vm) = (guest, host);
        nested_tlb.iter_mut().for_each(|nested| nested.asid = host);
    }

    /// All that a core has counted.
    pub fn counted(&self, core: usize) -> Counted {
        let mut counted = self.cores[core].counted.clone();
        counted.retain(|_, count| *count != 0);
        counted
    }
}

/// The same, of the counters of a core.
pub fn counted_by(counters: &Counters) -> Counted {
    let mut counted = Counted::new();
    for (mode, tlb) in [("full", &counters.tlb), ("functional", &counters.functional)] {
        count(&mut counted, format!("{mode} accesses"), tlb.accesses);
        count(&mut counted, format!("{mode} stores"), tlb.stores);
        for size in PageSize::ALL {
            count(&mut counted, format!("{mode} l1 {size:?}"), tlb.l1_hits[size as usize]);
            count(&mut counted, format!("{mode} l2 {size:?}"), tlb.l2_hits[size as usize]);
            count(&mut counted, format!("{mode} miss {size:?}"), tlb.misses[size as usize]);
        }
    }
    let events = &counters.walk_events;
    for served in Served::ALL {
        for (guest, host) in (0..6).flat_map(|guest| (0..6).map(move |host| (guest, host))) {
            count(&mut counted, name_of_step(guest, host, served), events.step(guest, host, served));
        }
        count(&mut counted, format!("POM {served:?}"), counters.pom_tlb.references[served as usize]);
        count(&mut counted, format!("data {served:?}"), counters.caches.data[served as usize]);
        count(&mut counted, format!("co-runner {served:?}"), counters.caches.corunner[served as usize]);
    }
    for (which, pwc) in [(Which::Guest, &counters.guest_pwc), (Which::Host, &counters.host_pwc)] {
        count(&mut counted, format!("pwc {which:?} 0"), pwc.misses);
        for level in 2..=5 {
            count(&mut counted, format!("pwc {which:?} {level}"), pwc.hits_at(nestwalk_mem::Level(level)));
        }
    }
    for (part, &hits) in counters.pom_tlb.hits.iter().enumerate() {
        count(&mut counted, format!("POM hit {part}"), hits);
    }
    count(&mut counted, "POM other size", counters.pom_tlb.size_mispredicted);
    count(&mut counted, "POM miss", counters.pom_tlb.misses);
    count(&mut counted, "nested TLB true", counters.nested_tlb.hits);
    count(&mut counted, "nested TLB false", counters.nested_tlb.misses);
    count(&mut counted, "guest cycles", counters.guest_walk_cycles);
    count(&mut counted, "host cycles", counters.host_walk_cycles);
    assert_eq!(counters.walk_cycles, counters.guest_walk_cycles + counters.host_walk_cycles);
    count(&mut counted, "blocks", counters.contiguous.fills);
    count(&mut counted, "aborted walks", counters.aborted_walks);
    count(&mut counted, "aborted references", counters.aborted_references);
    for (bucket, &walks) in counters.latency.buckets.iter().enumerate() {
        count(&mut counted, format!("latency {bucket}"), walks);
    }
    counted.retain(|_, count| *count != 0);
    counted
}
