// SPDX-License-Identifier: MIT OR Apache-2.0
//! The loops that run accesses through a core: the hot path.
//!
//! Three things make them fast, and none of them shows in any result:
//! - *Repetition*: an access to the page of the access before hits the most recently used L1 TLB entry, and one to the
//!   same line hits the most recently used L1-D line, too. Neither changes any order, so both are only counted.
//! - *Batches*: accesses are taken [`BATCH`] at a time. If the batch before walked often, the simulation's own memory for
//!   the walks of this one (table entries, rows of the last-level cache) is fetched ahead, in stages of which each uses
//!   what the one before has brought. See [`Walker::hint_first`].
//! - Page faults leave the loop, so it contains nothing of them.

use nestwalk_mem::{Access, Gva, Hpa, PageSize};

use crate::corunner::CoRunner;
use crate::counters::TlbCounters;
use crate::hierarchy::Llc;
use crate::prefetcher::Prefetcher;
use crate::processor::{Core, RunEnd};
use crate::tlb::{Lookup, Mapping, Tlbs};
use crate::walker::{Fault, Walker};

/// Accesses that are looked ahead.
const BATCH: usize = 64;

/// Fetch ahead when the batch before had at least this many walks: a sequential stream has one in eight batches.
const HINT_WALKS_MIN: usize = 2;

/// From this many walks on, do not even ask the TLBs who will walk.
const HINT_ALL_WALKS_MIN: usize = BATCH / 2;

/// The access before: its page and its line.
#[derive(Clone, Copy)]
struct Last {
    gva: u64,
    /// log2 of the bytes of its L1 TLB entry's page.
    shift: u32,
    size: PageSize,
    /// Whether a store needs nothing more than this entry.
    store_ok: bool,
    /// Host-physical address of that page's first byte.
    start: Hpa,
}

impl Last {
    /// None: differs from every address in a bit that no address has.
    const NONE: Self = Self { gva: 1 << 63, shift: 12, size: PageSize::Small, store_ok: false, start: Hpa(0) };

    #[inline(always)]
    fn new(gva: Gva, mapping: Mapping) -> Self {
        Self {
            gva: gva.0,
            shift: mapping.size.order() + 12,
            size: mapping.size,
            store_ok: mapping.writable && mapping.dirty,
            start: mapping.frame.address(),
        }
    }

    #[inline(always)]
    fn allows(&self, access: Access) -> bool {
        self.store_ok || !access.is_store()
    }

    #[inline(always)]
    fn same_line(&self, access: Access) -> bool {
        (access.gva().0 ^ self.gva) >> 6 == 0 && self.allows(access)
    }

    #[inline(always)]
    fn same_page(&self, access: Access) -> bool {
        (access.gva().0 ^ self.gva) >> self.shift == 0 && self.allows(access)
    }

    /// Where `gva`, an address in the same page, lies.
    #[inline(always)]
    fn hpa(&self, gva: Gva) -> Hpa {
        self.start + (gva.0 & ((1 << self.shift) - 1))
    }
}

/// Counts a hit, sets dirty bits if this is the first store, and returns what the first level holds.
#[inline(always)]
fn on_hit<W: Walker>(
    tlbs: &mut Tlbs,
    counters: &mut TlbCounters,
    walker: &mut W,
    access: Access,
    lookup: Lookup,
) -> Option<Mapping> {
    let mut mapping = match lookup {
        Lookup::L1(mapping) => {
            counters.l1_hits[mapping.size as usize] += 1;
            mapping
        }
        Lookup::L2 { first, size } => {
            counters.l2_hits[size as usize] += 1;
            first
        }
        Lookup::Miss => return None,
    };
    if access.is_store() && !mapping.dirty {
        walker.set_dirty(access.gva());
        tlbs.set_dirty(access.gva().page());
        mapping.dirty = true;
    }
    Some(mapping)
}

fn stores(accesses: &[Access]) -> u64 {
    accesses.iter().map(|access| u64::from(access.is_store())).sum()
}

impl<P: Prefetcher> Core<P> {
    /// Simulates `accesses` in full, in order, up to the first that needs a page fault.
    pub fn run<W: Walker, C: CoRunner>(
        &mut self,
        llc: &mut Llc,
        walker: &mut W,
        accesses: &[Access],
        corunner: &mut C,
    ) -> RunEnd {
        self.unit.caches.synchronise(llc);
        #[cfg(target_arch = "x86_64")]
        if crate::row::Wide::is_available() {
            // SAFETY: this processor has what it needs.
            return unsafe { self.run_wide(llc, walker, accesses, corunner) };
        }
        self.run_batches(llc, walker, accesses, corunner)
    }

    /// The same, compiled for processors with AVX2 and BMI.
    ///
    /// # Safety
    /// [`Wide::is_available`](crate::row::Wide::is_available).
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,bmi1,bmi2")]
    unsafe fn run_wide<W: Walker, C: CoRunner>(
        &mut self,
        llc: &mut Llc,
        walker: &mut W,
        accesses: &[Access],
        corunner: &mut C,
    ) -> RunEnd {
        self.run_batches(llc, walker, accesses, corunner)
    }

    #[inline(always)]
    fn run_batches<W: Walker, C: CoRunner>(
        &mut self,
        llc: &mut Llc,
        walker: &mut W,
        accesses: &[Access],
        corunner: &mut C,
    ) -> RunEnd {
        let mut last = Last::NONE;
        for (number, batch) in accesses.chunks(BATCH).enumerate() {
            if self.hints && self.recent_walks >= HINT_WALKS_MIN {
                self.hint(Some(llc), walker, batch);
            }
            let end = self.run_batch(llc, walker, batch, corunner, &mut last);
            let done = end.map_or(batch.len(), |(index, _)| index);
            self.unit.counters.tlb.accesses += done as u64;
            self.unit.counters.tlb.stores += stores(&batch[..done]);
            if let Some((index, fault)) = end {
                return RunEnd::Fault { index: number * BATCH + index, fault };
            }
        }
        RunEnd::Done
    }

    /// Runs a batch; where and why it stopped, if it did. Accesses and stores are counted by the caller.
    #[inline(always)]
    fn run_batch<W: Walker, C: CoRunner>(
        &mut self,
        llc: &mut Llc,
        walker: &mut W,
        batch: &[Access],
        corunner: &mut C,
        last: &mut Last,
    ) -> Option<(usize, Fault)> {
        let mut walks = 0;
        let mut index = 0;
        while let Some(&access) = batch.get(index) {
            // The co-runner comes between any two accesses: then the line before need not be there any more.
            if !C::ACTIVE && last.same_line(access) {
                let run = batch[index..].iter().take_while(|&&access| last.same_line(access)).count();
                self.unit.counters.tlb.l1_hits[last.size as usize] += run as u64;
                self.unit.same_data(run as u64);
                index += run;
                continue;
            }
            if last.same_page(access) {
                self.unit.counters.tlb.l1_hits[last.size as usize] += 1;
                last.gva = access.gva().0;
            } else {
                let lookup = self.tlbs.find(access.gva().page(), access.is_store());
                let hit = on_hit(&mut self.tlbs, &mut self.unit.counters.tlb, walker, access, lookup);
                let mapping = match hit {
                    Some(mapping) => mapping,
                    None => match self.walk(llc, walker, access) {
                        Ok(mapping) => mapping,
                        Err(fault) => return Some((index, fault)),
                    },
                };
                walks += usize::from(hit.is_none());
                *last = Last::new(access.gva(), mapping);
            }
            self.unit.data(llc, last.hpa(access.gva()));
            if C::ACTIVE {
                self.unit.corunner(llc, corunner.next());
            }
            index += 1;
        }
        self.recent_walks = walks;
        None
    }

    #[inline(always)]
    fn walk<W: Walker>(&mut self, llc: &mut Llc, walker: &mut W, access: Access) -> Result<Mapping, Fault> {
        self.unit.begin(llc, access.gva());
        match walker.walk(&mut self.unit, llc, access.gva(), access.is_store()) {
            Ok(mapping) => {
                self.unit.commit();
                self.unit.counters.tlb.misses[mapping.size as usize] += 1;
                Ok(self.tlbs.insert(access.gva().page(), mapping))
            }
            Err(fault) => {
                self.unit.abort();
                Err(fault)
            }
        }
    }

    /// Fetches ahead what the walks of `batch` will need of the simulation's own memory. Changes nothing.
    #[inline(always)]
    fn hint<W: Walker>(&self, llc: Option<&Llc>, walker: &W, batch: &[Access]) {
        let mut hints = [W::Hint::default(); BATCH];
        let mut count = 0;
        let mut before = None;
        let all = self.recent_walks >= HINT_ALL_WALKS_MIN;
        for access in batch {
            let page = access.gva().page();
            if before != Some(page) && (all || !self.tlbs.holds(page)) {
                hints[count] = walker.hint_first(access.gva());
                count += 1;
            }
            before = Some(page);
        }
        hints[..count].iter_mut().for_each(|hint| walker.hint_second(hint));
        if let Some(llc) = llc {
            hints[..count].iter().for_each(|hint| walker.hint_third(hint, |line| llc.hint(line)));
        }
    }

    /// Lets only the TLBs see `accesses`: exact hits and misses ([`Counters::functional`](crate::Counters)), no caches,
    /// no latencies. It keeps the TLBs' contents right over the stretches of a trace between the windows that are
    /// simulated in full.
    pub fn run_functional<W: Walker>(&mut self, walker: &mut W, accesses: &[Access]) -> RunEnd {
        let mut last = Last::NONE;
        for (number, batch) in accesses.chunks(BATCH).enumerate() {
            if self.hints && self.recent_walks >= HINT_WALKS_MIN {
                self.hint(None, walker, batch);
            }
            let end = self.run_functional_batch(walker, batch, &mut last);
            let done = end.map_or(batch.len(), |(index, _)| index);
            self.unit.counters.functional.accesses += done as u64;
            self.unit.counters.functional.stores += stores(&batch[..done]);
            if let Some((index, fault)) = end {
                return RunEnd::Fault { index: number * BATCH + index, fault };
            }
        }
        RunEnd::Done
    }

    #[inline(always)]
    fn run_functional_batch<W: Walker>(
        &mut self,
        walker: &mut W,
        batch: &[Access],
        last: &mut Last,
    ) -> Option<(usize, Fault)> {
        let (mut walks, mut index) = (0, 0);
        while let Some(&access) = batch.get(index) {
            let run = batch[index..].iter().take_while(|&&access| last.same_page(access)).count();
            self.unit.counters.functional.l1_hits[last.size as usize] += run as u64;
            index += run;
            let Some(&access) = (if run == 0 { Some(&access) } else { batch.get(index) }) else { break };
            let (gva, store) = (access.gva(), access.is_store());
            let lookup = self.tlbs.find(gva.page(), store);
            let mapping = match on_hit(&mut self.tlbs, &mut self.unit.counters.functional, walker, access, lookup) {
                Some(mapping) => mapping,
                None => match walker.resolve(gva, store) {
                    Ok(mapping) => {
                        walks += 1;
                        self.unit.counters.functional.misses[mapping.size as usize] += 1;
                        self.tlbs.insert(gva.page(), mapping)
                    }
                    Err(fault) => return Some((index, fault)),
                },
            };
            *last = Last::new(gva, mapping);
            index += 1;
        }
        self.recent_walks = walks;
        None
    }
}
