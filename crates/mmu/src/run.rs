// SPDX-License-Identifier: MIT OR Apache-2.0
//! The loops that run accesses through a core: the hot path.
//!
//! Five things make them fast, and none of them shows in any result:
//! - *Repetition*: an access to the same page as the previous one hits the most recently used L1
//!   TLB entry. An access to the same line also hits the most recently used L1-D line. Neither
//!   changes an LRU order, so both are only counted.
//! - *Runs of 4 KiB pages*: most accesses are to 4 KiB pages that the TLBs hold or whose walks can
//!   be deferred. Consecutive ones are handled in a small loop of their own.
//! - *Passes*: accesses are processed in batches of [`Tape::BATCH`]. First the whole batch is
//!   translated, then all its references are [replayed](crate::play) through the caches.
//! - *Hints*: if the previous batch had many walks, the leaf entries for the walks of this batch
//!   are prefetched from the simulation's own memory. Each stage of a hint uses the lines that the
//!   previous stage has fetched. See [`Walker::hint_first`].
//! - *Page faults* leave the loop, which has no code for them.

use nestwalk_mem::addr::PAGE_SHIFT;
use nestwalk_mem::{Access, Gva, Gvn, Hpa, PageSize};

use crate::accelerator::Accelerator;
use crate::accelerator::tables::Probe;
use crate::any_walker::AnyWalker;
use crate::clustered::Group;
use crate::corunner::CoRunner;
use crate::counters::Counters;
use crate::engine::{Engine, EngineWalker, SeenBy};
use crate::events::WalkEvents;
use crate::llc::Llc;
use crate::mapping::Mapping;
use crate::memo::{Memo, Prepared};
use crate::processor::{Core, RunEnd};
use crate::simd::{Plain, Simd, Vectors};
use crate::stages::FetchAhead;
use crate::tape::Tape;
use crate::tlb::{Lookup, SmallPages, TlbCounters, Tlbs};
use crate::walk_unit::WalkUnit;
use crate::walker::{Fault, Walker};

/// The most walks that are prepared at once; a batch ends with the last of them.
const HINTS: usize = 64;

/// The most pairs of tables for which a core keeps prepared walks.
const MEMOS_MAX: usize = 16;

/// Walks in the previous batch from which on walks are deferred and hints given. A sequential
/// stream has one walk in each batch.
const WALKS_MIN: usize = 2;

/// The access before: its page and its line.
#[derive(Clone, Copy)]
struct Last {
    /// No store, unless `store_ok`.
    access: Access,
    /// log2 of the bytes around it that its L1 TLB entry certainly serves: see
    /// [`Tlbs::served_shift`].
    shift: u32,
    size: PageSize,
    /// Whether a store needs nothing more than this entry.
    store_ok: bool,
    /// Host-physical address of that page's first byte.
    start: Hpa,
}

impl Last {
    /// None: differs from every address in a bit that no address has.
    const NONE: Self = Self {
        access: Access::load(Gva(Tlbs::NO_ADDRESS)),
        shift: 12,
        size: PageSize::Small,
        store_ok: false,
        start: Hpa(0),
    };

    #[inline(always)]
    fn new(access: Access, mapping: Mapping, shift: u32) -> Self {
        Self { access, shift, size: mapping.size(), store_ok: mapping.takes_stores(), start: mapping.start() }
    }

    #[inline(always)]
    fn allows(&self, access: Access) -> bool {
        self.store_ok || !access.is_store()
    }

    /// Whether `access` has the same address but for its lowest bits, and is allowed.
    #[inline(always)]
    fn agrees(&self, access: Access, lowest: u32) -> bool {
        access.agrees(self.access, lowest, self.store_ok)
    }

    #[inline(always)]
    fn same_line(&self, access: Access) -> bool {
        self.agrees(access, 6)
    }

    #[inline(always)]
    fn same_page(&self, access: Access) -> bool {
        self.agrees(access, self.shift)
    }

    /// Where it lies.
    #[inline(always)]
    fn hpa(&self) -> Hpa {
        self.start + (self.access.gva().0 & (self.size.bytes() - 1))
    }
}

/// How much of the machine sees an access.
trait Detail {
    /// Whether its data, and the references of its walk, go to the caches.
    const FULL: bool;

    /// Where its look-up in the TLBs counts.
    fn tlb(counters: &mut Counters) -> &mut TlbCounters;

    /// Whether `access`, right after `last`, is only to be counted.
    fn only_counts(last: &Last, access: Access) -> bool;

    /// Where the co-runner refers to, if there is one.
    fn corunner(&mut self) -> Option<Hpa>;

    /// What remains to be done when a batch is translated.
    fn finish<P: Accelerator>(&mut self, core: &mut Core<P>);
}

/// All of it. If `BESIDE` is false there is no co-runner, and its code is compiled away.
struct Full<'a, const BESIDE: bool> {
    llc: &'a mut Llc,
    corunner: Option<&'a mut CoRunner>,
}

impl<const BESIDE: bool> Detail for Full<'_, BESIDE> {
    const FULL: bool = true;

    #[inline(always)]
    fn tlb(counters: &mut Counters) -> &mut TlbCounters {
        &mut counters.tlb
    }

    #[inline(always)]
    fn only_counts(last: &Last, access: Access) -> bool {
        // The co-runner comes between any two accesses: then the line before need not be there any
        // more.
        !BESIDE && last.same_line(access)
    }

    #[inline(always)]
    fn corunner(&mut self) -> Option<Hpa> {
        if BESIDE { self.corunner.as_mut().map(|corunner| corunner.next_access()) } else { None }
    }

    #[inline(always)]
    fn finish<P: Accelerator>(&mut self, core: &mut Core<P>) {
        core.player.play::<P>(self.llc, &mut core.unit.tape, &mut core.unit.counters);
    }
}

/// Only TLBs.
struct TlbOnly;

impl Detail for TlbOnly {
    const FULL: bool = false;

    #[inline(always)]
    fn tlb(counters: &mut Counters) -> &mut TlbCounters {
        &mut counters.functional
    }

    #[inline(always)]
    fn only_counts(last: &Last, access: Access) -> bool {
        last.same_page(access)
    }

    #[inline(always)]
    fn corunner(&mut self) -> Option<Hpa> {
        None
    }

    #[inline(always)]
    fn finish<P: Accelerator>(&mut self, _: &mut Core<P>) {}
}

/// Counts a hit, sets dirty bits if this is the first store, and returns what the first level
/// holds.
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
            counters.l1_hits[mapping.size() as usize] += 1;
            mapping
        }
        Lookup::L2 { first, size } => {
            counters.l2_hits[size as usize] += 1;
            first
        }
        Lookup::Miss => return None,
    };
    if access.is_store() && !mapping.is_dirty() {
        walker.set_dirty(access.gva());
        tlbs.set_dirty(access.gva().page());
        mapping = mapping.used(true);
    }
    Some(mapping)
}

fn stores(accesses: &[Access]) -> u64 {
    accesses.iter().map(|access| u64::from(access.is_store())).sum()
}

/// What an access, now the `last`, refers to besides its walk.
#[inline(always)]
fn refer<P: Accelerator, D: Detail>(unit: &mut WalkUnit<P>, detail: &mut D, last: Last) {
    if D::FULL {
        unit.pending.others.data(last.hpa());
    }
    if let Some(hpa) = detail.corunner() {
        unit.pending.others.corunner(hpa);
    }
}

/// What is known of the access at which a row of accesses to 4 KiB pages ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    /// There is none, or it only counts.
    Easy,
    /// It is no 4 KiB page of the first level.
    NotSmall,
    /// Neither level has its translation.
    Missed,
    /// Nothing.
    Unknown,
}

/// Accesses that hit 4 KiB pages of the first level, and how many of them were to the line of the
/// access before.
#[derive(Default)]
struct Hits {
    accesses: usize,
    same_line: usize,
}

/// Where a row of accesses found their translations: how many in which place.
#[derive(Default)]
struct Row {
    l1_hits: usize,
    /// Of these, to the line of the access before.
    same_line: usize,
    l2_hits: usize,
    /// Walks that were put off.
    misses: usize,
}

impl Row {
    fn accesses(&self) -> usize {
        self.l1_hits + self.l2_hits + self.misses
    }
}

/// Translates as many of `accesses` as hit `pages` of the first level, one after the other, and
/// need nothing else. Whether the line is that of the access before decides no branch: it depends
/// on the program alone, and what comes next is foreseen badly.
#[inline(always)]
fn first_level_hits<const N: usize, S: Simd, D: Detail>(
    pages: &mut SmallPages<'_, N>,
    others: &mut Tape,
    simd: S,
    accesses: &[Access],
    detail: &mut D,
    last: &mut Last,
) -> (Hits, Next) {
    let (mut hits, mut next) = (Hits::default(), Next::Easy);
    let (mut now, mut writer) = (*last, others.writer());
    for &access in accesses {
        let mut same_line = false;
        // A caller with a larger page has found that this access is to another one.
        if now.agrees(access, PAGE_SHIFT) {
            same_line = D::FULL && D::only_counts(&now, access);
            now.access = access;
        } else {
            let Some(mapping) = pages.find(simd, access.gva().page()) else {
                next = Next::NotSmall;
                break;
            };
            let found = Last::new(access, mapping, PAGE_SHIFT);
            if !found.allows(access) {
                next = Next::Unknown;
                break;
            }
            now = found;
        }
        if D::FULL {
            writer.data_if(now.start + now.access.gva().page_offset(), !same_line);
        }
        if let Some(hpa) = detail.corunner() {
            writer.corunner(hpa);
        }
        hits.accesses += 1;
        hits.same_line += usize::from(same_line);
    }
    writer.finish();
    *last = now;
    (hits, next)
}

/// See [`Core::small_pages`].
#[inline(always)]
fn small_pages_in<const N: usize, P: Accelerator, S: Simd, W: Walker, D: Detail>(
    mut pages: SmallPages<'_, N>,
    (unit, memos, memo): (&mut WalkUnit<P>, &mut [Memo], Option<usize>),
    simd: S,
    walker: &mut W,
    (accesses, hints): (&[Access], &mut Hints<W::Hint>),
    detail: &mut D,
    last: &mut Last,
) -> (Row, Next) {
    let mut row = Row::default();
    loop {
        let rest = &accesses[row.accesses()..];
        let (hits, next) = first_level_hits(&mut pages, &mut unit.pending.others, simd, rest, detail, last);
        row.l1_hits += hits.accesses;
        row.same_line += hits.same_line;
        let Some(&access) = rest.get(hits.accesses) else { return (row, Next::Easy) };
        if next != Next::NotSmall || !pages.are_all() {
            return (row, next);
        }
        let (gva, page) = (access.gva(), access.gva().page());
        let mapping = if let Some(mapping) = pages.find_second(simd, page) {
            if !Last::new(access, mapping, PAGE_SHIFT).allows(access) {
                return (row, Next::Unknown);
            }
            row.l2_hits += 1;
            mapping
        } else {
            let Some(memo) = memo.and_then(|memo| memos.get_mut(memo)) else { return (row, Next::Missed) };
            let prepared = hints.found_for(access).or_else(
                #[inline(always)]
                || walker.prepare(memo, gva, access.is_store()),
            );
            let Some(prepared) = prepared else { return (row, Next::Missed) };
            unit.pending.push(gva, &prepared);
            pages.insert_second(simd, page, prepared.mapping);
            row.misses += 1;
            prepared.mapping
        };
        pages.insert(simd, page, mapping);
        *last = Last::new(access, mapping, PAGE_SHIFT);
        refer(unit, detail, *last);
    }
}

impl<P: Accelerator> WalkUnit<P> {
    /// The accelerator walks in place of `walker`.
    pub(crate) fn walk_other_tables<W: Walker>(
        &mut self,
        walker: &mut W,
        gva: Gva,
        store: bool,
    ) -> Result<Mapping, Fault> {
        let found = walker.resolve(gva, store);
        let Self { accelerator, tape, walk, .. } = self;
        let lookups = accelerator.walk(gva, walker.tables(), found.is_ok(), |Probe { hpa, code, host, waits }| {
            tape.entry(hpa, code, host, u64::from(!waits));
        });
        walk.guest_lookup_cycles += lookups.guest;
        walk.host_lookup_cycles += lookups.host;
        found
    }
}

impl<P: Accelerator> Core<P> {
    /// Whether walks can ever be done in [stages](crate::stages): if those of the kernels' tables
    /// are all that there are.
    const IN_STAGES: bool = !P::TRANSLATES && !P::WALKS;

    /// Simulates `accesses` in full, in order, up to the first that needs a page fault.
    pub fn run<W: EngineWalker>(
        &mut self,
        llc: &mut Llc,
        walker: &mut W,
        accesses: &[Access],
        corunner: Option<&mut CoRunner>,
    ) -> RunEnd
    where
        P: Engine,
    {
        walker.run(self, accesses, SeenBy::Caches(llc, corunner))
    }

    /// Lets only the TLBs see `accesses`: exact hits and misses ([`Counters::functional`]), no
    /// caches, no latencies. It keeps the TLBs' contents right over the stretches of a trace
    /// between the windows that are simulated in full.
    pub fn run_functional<W: EngineWalker>(&mut self, walker: &mut W, accesses: &[Access]) -> RunEnd
    where
        P: Engine,
    {
        walker.run(self, accesses, SeenBy::Tlbs)
    }

    /// What [`Engine`] compiles for each walker.
    pub(crate) fn run_in<W: Walker>(
        &mut self,
        vectors: Vectors,
        walker: &mut W,
        accesses: &[Access],
        seen_by: SeenBy<'_>,
    ) -> RunEnd {
        match seen_by {
            SeenBy::Tlbs => self.run_apart(vectors, walker, accesses, TlbOnly),
            SeenBy::Caches(llc, corunner) => {
                vectors.apart(
                    #[inline(always)]
                    || self.player.caches.synchronise(vectors, llc),
                );
                match corunner {
                    None => self.run_apart(vectors, walker, accesses, Full::<false> { llc, corunner }),
                    Some(_) => self.run_apart(vectors, walker, accesses, Full::<true> { llc, corunner }),
                }
            }
        }
    }

    /// What it compiles for processors without vectors: as little as does the same.
    #[inline(never)]
    pub(crate) fn run_portable(
        &mut self,
        mut walker: AnyWalker<'_, '_>,
        accesses: &[Access],
        seen_by: SeenBy<'_>,
    ) -> RunEnd {
        match seen_by {
            SeenBy::Tlbs => self.run_batches(Plain, &mut walker, accesses, TlbOnly),
            SeenBy::Caches(llc, corunner) => {
                self.player.caches.synchronise(Plain, llc);
                self.run_batches(Plain, &mut walker, accesses, Full::<true> { llc, corunner })
            }
        }
    }

    fn run_apart<W: Walker, D: Detail>(
        &mut self,
        vectors: Vectors,
        walker: &mut W,
        accesses: &[Access],
        detail: D,
    ) -> RunEnd {
        vectors.apart(
            #[inline(always)]
            || self.run_batches(vectors, walker, accesses, detail),
        )
    }

    #[inline(always)]
    fn run_batches<S: Simd, W: Walker, D: Detail>(
        &mut self,
        simd: S,
        walker: &mut W,
        accesses: &[Access],
        mut detail: D,
    ) -> RunEnd {
        self.memo = if D::FULL { self.memo_for(walker) } else { None };
        if P::WALKS {
            self.unit.accelerator.take_in(walker.tables());
        }
        let mut last = Last::NONE;
        let mut done = 0;
        let mut hints = Hints::default();
        self.expect(accesses, &mut hints);
        self.fetch_ahead(walker, &mut hints);
        while done < accesses.len() {
            let rest = &accesses[done..];
            let batch = &rest[..hints.len];
            let end = self.translate(simd, walker, (batch, &mut hints), &mut detail, &mut last);
            // Prefetch for the next batch while the walks of this one are done and its references
            // replayed.
            self.expect(&rest[batch.len()..], &mut hints);
            if D::FULL {
                self.finish_walks(simd, walker, Some(&mut hints));
            }
            self.fetch_ahead(walker, &mut hints);
            detail.finish(self);
            let in_batch = end.map_or(batch.len(), |(index, _)| index);
            let counters = D::tlb(&mut self.unit.counters);
            counters.accesses += in_batch as u64;
            counters.stores += stores(&batch[..in_batch]);
            done += in_batch;
            if let Some((_, fault)) = end {
                return RunEnd::Fault { index: done, fault };
            }
        }
        RunEnd::Done
    }

    /// Translates a batch; where and why it stopped, if it did. Accesses and stores are counted by
    /// the caller.
    #[inline(always)]
    fn translate<S: Simd, W: Walker, D: Detail>(
        &mut self,
        simd: S,
        walker: &mut W,
        (batch, hints): (&[Access], &mut Hints<W::Hint>),
        detail: &mut D,
        last: &mut Last,
    ) -> Option<(usize, Fault)> {
        let mut walks = 0;
        let mut index = 0;
        while let Some(&access) = batch.get(index) {
            if D::only_counts(last, access) {
                let before = *last;
                let run = batch[index..].iter().take_while(|&&access| D::only_counts(&before, access)).count();
                D::tlb(&mut self.unit.counters).l1_hits[last.size as usize] += run as u64;
                if D::FULL {
                    self.unit.same_data(run as u64);
                }
                index += run;
                continue;
            }
            if D::FULL && last.same_page(access) {
                D::tlb(&mut self.unit.counters).l1_hits[last.size as usize] += 1;
                last.access = access;
            } else {
                let (row, next) = self.small_pages(simd, walker, (&batch[index..], hints), detail, last);
                index += row.accesses();
                walks += row.misses;
                if next == Next::Easy {
                    continue;
                }
                let access = batch[index];
                let lookup = match next {
                    Next::Missed => Lookup::Miss,
                    _ => self.tlbs.find(simd, access.gva().page(), access.is_store(), next == Next::NotSmall),
                };
                let hit = on_hit(&mut self.tlbs, D::tlb(&mut self.unit.counters), walker, access, lookup);
                let mapping = match hit {
                    Some(mapping) => mapping,
                    None => match self.walk::<S, W, D>(simd, walker, access, hints) {
                        Ok(mapping) => mapping,
                        Err(fault) => return Some((index, fault)),
                    },
                };
                walks += usize::from(hit.is_none());
                let load = Access::load(Gva(access.gva().0 | self.tlbs.uncounted()));
                *last = Last::new(load, mapping, self.tlbs.served_shift(mapping.size()));
            }
            refer(&mut self.unit, detail, *last);
            index += 1;
        }
        self.recent_walks = walks;
        None
    }

    /// Translates as many of `accesses` as are to 4 KiB pages that the TLBs hold, or for which the
    /// walk can be put off, one after the other, and need nothing else.
    #[inline(always)]
    fn small_pages<S: Simd, W: Walker, D: Detail>(
        &mut self,
        simd: S,
        walker: &mut W,
        accesses: (&[Access], &mut Hints<W::Hint>),
        detail: &mut D,
        last: &mut Last,
    ) -> (Row, Next) {
        let Self { tlbs, unit, memos, memo, recent_walks, .. } = self;
        let memo = if !Self::IN_STAGES || *recent_walks < WALKS_MIN { None } else { *memo };
        let (row, next) = if let Some(pages) = tlbs.small_pages::<1>() {
            small_pages_in(pages, (unit, memos, memo), simd, walker, accesses, detail, last)
        } else if let Some(pages) = tlbs.small_pages::<2>() {
            small_pages_in(pages, (unit, memos, memo), simd, walker, accesses, detail, last)
        } else {
            return (Row::default(), Next::Unknown);
        };
        let counters = D::tlb(&mut unit.counters);
        const SMALL: usize = PageSize::Small as usize;
        counters.l1_hits[SMALL] += row.l1_hits as u64;
        counters.l2_hits[SMALL] += row.l2_hits as u64;
        counters.misses[SMALL] += row.misses as u64;
        unit.same_data(row.same_line as u64);
        (row, next)
    }

    #[inline(always)]
    fn walk<S: Simd, W: Walker, D: Detail>(
        &mut self,
        simd: S,
        walker: &mut W,
        access: Access,
        hints: &mut Hints<W::Hint>,
    ) -> Result<Mapping, Fault> {
        let (gva, store) = (access.gva(), access.is_store());
        if P::TRANSLATES
            && let Some(mapping) = self.ask::<S, W, D>(simd, walker, access)
        {
            let alone = |_: Option<&Memo>| Group::alone(gva.page(), mapping.frame());
            return Ok(self.take_in::<S, D>(simd, gva.page(), mapping, alone, || false));
        }
        let mapping = if !D::FULL {
            walker.resolve(gva, store)?
        } else if let Some(mapping) = self.put_off(walker, access, hints) {
            mapping
        } else {
            self.finish_walks(simd, walker, None);
            if !P::TRANSLATES {
                self.unit.begin(gva);
            }
            let found = if P::WALKS {
                self.unit.walk_other_tables(walker, gva, store)
            } else {
                walker.walk(&mut self.unit, simd, gva, store)
            };
            let found = found.inspect_err(|_| self.unit.abort())?;
            self.unit.commit();
            found
        };
        if P::TRANSLATES {
            self.unit.accelerator.learn(gva.page(), mapping, D::FULL);
        }
        let neighbours = |memo: Option<&Memo>| walker.neighbours(gva, memo);
        Ok(self.take_in::<S, D>(simd, gva.page(), mapping, neighbours, || walker.is_in_block(gva)))
    }

    /// Begins a walk by asking the accelerator. What it answers ends the walk.
    #[inline(always)]
    fn ask<S: Simd, W: Walker, D: Detail>(&mut self, simd: S, walker: &mut W, access: Access) -> Option<Mapping> {
        if D::FULL {
            self.finish_walks(simd, walker, None);
            self.unit.begin(access.gva());
        }
        let WalkUnit { accelerator, tape, .. } = &mut self.unit;
        let refer = |line| {
            if D::FULL {
                tape.entry(line, WalkEvents::ACCELERATOR, false, 0);
            }
        };
        let found = accelerator.look_up(access.gva().page(), access.is_store(), D::FULL, refer)?;
        if found.first_store {
            walker.set_dirty(access.gva());
        }
        if D::FULL {
            self.unit.commit();
        }
        Some(found.mapping)
    }

    /// The TLBs take in what they had missed; `neighbours` are of a 4 KiB page, and `is_in_block`
    /// is asked of one.
    #[inline(always)]
    fn take_in<S: Simd, D: Detail>(
        &mut self,
        simd: S,
        page: Gvn,
        mapping: Mapping,
        neighbours: impl FnOnce(Option<&Memo>) -> Group,
        is_in_block: impl FnOnce() -> bool,
    ) -> Mapping {
        D::tlb(&mut self.unit.counters).misses[mapping.size() as usize] += 1;
        if self.tlbs.takes_groups() && mapping.size() == PageSize::Small {
            if self.tlbs.is_clustered() {
                let memo = self.memo.and_then(|memo| self.memos.get(memo));
                return self.tlbs.insert_cluster(simd, page, mapping, neighbours(memo));
            }
            if is_in_block() {
                self.unit.counters.contiguous.fills += 1;
                return self.tlbs.insert_block(simd, page, mapping);
            }
        }
        self.tlbs.insert(simd, page, mapping)
    }

    /// What the walk for `access` will find, if it can be put off and done in
    /// [stages](crate::stages).
    #[inline(always)]
    fn put_off<W: Walker>(&mut self, walker: &mut W, access: Access, hints: &mut Hints<W::Hint>) -> Option<Mapping> {
        if !Self::IN_STAGES || self.recent_walks < WALKS_MIN {
            return None;
        }
        let memo = self.memos.get_mut(self.memo?)?;
        let prepared = hints.found_for(access).or_else(
            #[inline(always)]
            || walker.prepare(memo, access.gva(), access.is_store()),
        )?;
        self.unit.pending.push(access.gva(), &prepared);
        Some(prepared.mapping)
    }

    /// Does all walks that were put off, and brings the batch's references onto the tape.
    #[inline(always)]
    fn finish_walks<S: Simd, W: Walker>(&mut self, simd: S, walker: &mut W, hints: Option<&mut Hints<W::Hint>>) {
        if Self::IN_STAGES && self.unit.pending.has_walks() {
            self.finish_in_stages(simd, walker, hints.unwrap_or(&mut Hints::default()));
        }
        self.unit.finish_others();
    }

    #[inline(never)]
    fn finish_in_stages<S: Simd, W: Walker>(&mut self, simd: S, walker: &mut W, hints: &mut Hints<W::Hint>) {
        let Some(memo) = self.memo else { return };
        let prepared = &self.memos[memo];
        let ahead = Ahead { walker: &*walker, memo: Some(prepared), hints };
        if walker.is_flat() {
            return simd.apart(
                #[inline(always)]
                || self.unit.run_flat_stage(simd, prepared, ahead),
            );
        }
        let unmarked = simd.apart(
            #[inline(always)]
            || self.unit.run_stages(simd, prepared, ahead),
        );
        if unmarked {
            self.unit.unmarked().for_each(|node| walker.mark_node(&mut self.memos[memo], node));
        }
    }

    /// The memo for the tables of `walker`, if its walks can be put off.
    fn memo_for<W: Walker>(&mut self, walker: &W) -> Option<usize> {
        // In stages nothing is prefetched in flat walks; in nested ones all host walks search the
        // same caches, and there is no nested TLB.
        let is_staged = if walker.is_flat() {
            !P::ACTIVE
        } else {
            self.unit.nested_tlb.is_none() && self.unit.searches_host_pwc(0) == self.unit.searches_host_pwc(1)
        };
        if !Self::IN_STAGES || !self.stages || !is_staged {
            return None;
        }
        let (sources, slots) = walker.prepares()?;
        let about = |memo: &Memo| memo.is_about(&sources);
        let at = self.memos.iter().position(about).unwrap_or_else(|| {
            if self.memos.len() < MEMOS_MAX {
                self.memos.push(Memo::default());
                return self.memos.len() - 1;
            }
            self.oldest_memo = (self.oldest_memo + 1) % MEMOS_MAX;
            self.memos[self.oldest_memo] = Memo::default();
            self.oldest_memo
        });
        self.memos[at].renew(sources, slots);
        Some(at)
    }

    /// The next batch is the beginning of `accesses`: says how far it goes, and which of them are
    /// likely to walk.
    #[inline(always)]
    fn expect<H>(&mut self, accesses: &[Access], hints: &mut Hints<H>) {
        let batch = &accesses[..accesses.len().min(Tape::BATCH)];
        (hints.count, hints.first, hints.second, hints.asked, hints.len) = (0, 0, 0, 0, batch.len());
        if !self.hints || self.recent_walks < WALKS_MIN {
            return;
        }
        for (index, access) in batch.iter().enumerate() {
            let page = access.gva().page();
            if !self.recent_pages.contains(page) {
                let Some(gva) = hints.gvas.get_mut(hints.count) else {
                    hints.len = index;
                    break;
                };
                *gva = access.gva();
                self.recent_pages.insert(page);
                hints.count += 1;
            }
        }
    }

    /// Fetches ahead what is left to fetch for the walks of the next batch.
    #[inline(always)]
    fn fetch_ahead<W: Walker>(&self, walker: &W, hints: &mut Hints<W::Hint>) {
        let mut ahead = Ahead { walker, memo: self.memo.map(|memo| &self.memos[memo]), hints };
        while ahead.first() {}
        while ahead.second() {}
    }
}

/// What is fetched ahead for a batch, of the simulation's own memory.
struct Hints<H> {
    /// Of accesses that are likely to walk.
    gvas: [Gva; HINTS],
    hints: [H; HINTS],
    /// What those will find that went through the second stage, where it is known.
    found: [Option<Prepared>; HINTS],
    count: usize,
    /// How many of them went through the first stage, and through the second.
    first: usize,
    second: usize,
    /// How many of them the batch has come past.
    asked: usize,
    /// Accesses of the batch.
    len: usize,
}

impl<H: Copy + Default> Default for Hints<H> {
    #[inline(always)]
    fn default() -> Self {
        Self {
            gvas: [Gva(0); HINTS],
            hints: [H::default(); HINTS],
            found: [None; HINTS],
            count: 0,
            first: 0,
            second: 0,
            asked: 0,
            len: 0,
        }
    }
}

impl<H> Hints<H> {
    /// What the walk for `access` finds, if that is known. Asked for accesses in order.
    #[inline(always)]
    fn found_for(&mut self, access: Access) -> Option<Prepared> {
        while self.asked < self.second {
            let place = self.asked % HINTS;
            self.asked += 1;
            if self.gvas[place] == access.gva() {
                return self.found[place]?.allowing(access.is_store());
            }
        }
        None
    }
}

/// Fetches ahead, one walk after the other, between other work.
struct Ahead<'a, W: Walker> {
    walker: &'a W,
    memo: Option<&'a Memo>,
    hints: &'a mut Hints<W::Hint>,
}

impl<W: Walker> FetchAhead for Ahead<'_, W> {
    #[inline(always)]
    fn first(&mut self) -> bool {
        let Hints { gvas, hints, count, first, .. } = &mut *self.hints;
        if *first == *count {
            return false;
        }
        hints[*first % HINTS] = self.walker.hint_first(gvas[*first % HINTS], self.memo);
        *first += 1;
        true
    }

    #[inline(always)]
    fn second(&mut self) -> bool {
        let Hints { hints, found, first, second, .. } = &mut *self.hints;
        if *second == *first {
            return false;
        }
        found[*second % HINTS] = self.walker.hint_second(hints[*second % HINTS], self.memo);
        *second += 1;
        true
    }
}
