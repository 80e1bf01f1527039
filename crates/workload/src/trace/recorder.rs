// SPDX-License-Identifier: MIT OR Apache-2.0
//! What converters feed: it numbers sites and threads, follows pages and mappings, samples if asked
//! to, and writes.

use std::path::Path;

use nestwalk_mem::{Gva, PageCount, Va, Vpn, VpnRange};

use super::capture::model::{Model, Unit};
use super::capture::planner::{CHUNK_ACCESSES, Since, Thin, Windows};
use super::collapse::{Collapse, Position};
use super::event::{EventOp, TraceEvent};
use super::filter::{Filter, FilterOptions};
use super::metadata::Metadata;
use super::pages::{Novelty, PageTracker};
use super::sample::{Plan, SampleOptions, Segment};
use super::sites::{SiteAttributes, SiteId, SiteNumbers, SiteTable};
use super::source::SourceAccess;
use super::space::{AddressSpace, Cover, PageEffect};
use super::writer::{Totals, Writer};
use crate::stream::{Phase, ThreadId, WorkloadError};

/// The site of all accesses of collapsed stretches: a number that no capture gives.
const COLLAPSED_SITE: u64 = u32::MAX as u64 + 1;

/// Turns what a capture holds into a trace.
#[derive(Debug)]
pub struct Recorder {
    writer: Writer,
    sites: SiteNumbers,
    pages: PageTracker,
    space: AddressSpace,
    /// `None`: every access is kept.
    plan: Option<Planner>,
    /// Of a spool.
    model: Option<Box<Model>>,
    /// Number of a mark, and the access before which it came first.
    marks: Vec<(u64, u64)>,
    filter: Option<FilterOptions>,
    /// By [`ThreadId`]; empty without a filter.
    filters: Vec<Filter>,
    collapse: Collapse,
    budget: Option<u64>,
    segment: Segment,
    /// Of the last mark, but for those of collapsed stretches.
    phase: Phase,
    /// Accesses and instructions of the program so far, all threads.
    position: u64,
    instructions: u64,
    /// The capture's numbers of the threads, by [`ThreadId`].
    threads: Vec<u32>,
    events: u64,
}

/// Which accesses are kept.
#[derive(Debug)]
pub(super) enum Planner {
    /// Windows at random places, which are chosen as the program goes.
    Sample(Plan),
    /// A spool.
    Thin(Thin),
    /// Windows that are known beforehand.
    Windows(Windows),
    /// Everything from somewhere on.
    Since(Since),
}

/// An access that a filter kept, with those that it absorbed after it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Represented {
    /// Whose they are.
    pub thread: ThreadId,
    /// Of the kept one.
    pub site: SiteId,
    /// Of the kept one.
    pub address: Gva,
    /// How many were absorbed.
    pub absorbed: u32,
    /// How many of these were stores.
    pub absorbed_stores: u64,
    /// Instructions of all of them.
    pub instructions: u64,
}

/// Marks that are remembered: a program numbers its parts, not its requests.
const MARKS_MAX: usize = 1 << 12;

/// What came of it.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// What the file holds.
    pub totals: Totals,
    /// What it says of itself.
    pub metadata: Metadata,
}

impl Recorder {
    /// Begins the trace `path`. What it keeps is filtered if there is a `filter`. `total` is the
    /// number of accesses to come, if known.
    ///
    /// # Errors
    /// When the file cannot be made, or the sampling options are impossible.
    pub fn create(
        path: &Path,
        level: i32,
        sample: Option<SampleOptions>,
        filter: Option<FilterOptions>,
        total: Option<u64>,
    ) -> Result<Self, WorkloadError> {
        filter.as_ref().map_or(Ok(()), FilterOptions::check).map_err(impossible)?;
        if filter.is_none() && sample.is_some_and(|options| options.collapse > 0) {
            return Err(impossible(
                "a collapsed stretch needs a filter: give --filter, or leave --collapse out".into(),
            ));
        }
        let plan = sample.map(|options| Plan::new(options, total)).transpose().map_err(impossible)?;
        let budget = sample.and_then(|options| options.budget);
        Self::new(path, level, plan.map(Planner::Sample), filter, budget)
    }

    /// Begins a trace of what `plan` keeps.
    ///
    /// # Errors
    /// When the file cannot be made.
    pub(super) fn planned(
        path: &Path,
        level: i32,
        plan: Planner,
        filter: Option<FilterOptions>,
    ) -> Result<Self, WorkloadError> {
        Self::new(path, level, Some(plan), filter, None)
    }

    /// Begins a spool, which keeps half as much with each `step` bytes that it has taken.
    ///
    /// # Errors
    /// When the file cannot be made.
    pub(super) fn spooling(path: &Path, level: i32, filter: FilterOptions, step: u64) -> Result<Self, WorkloadError> {
        let thin = Thin::new(step, CHUNK_ACCESSES);
        let recorder = Self::planned(path, level, Planner::Thin(thin), Some(filter))?;
        Ok(Self { model: Some(Box::default()), ..recorder })
    }

    fn new(
        path: &Path,
        level: i32,
        plan: Option<Planner>,
        filter: Option<FilterOptions>,
        budget: Option<u64>,
    ) -> Result<Self, WorkloadError> {
        let mut recorder = Self {
            writer: Writer::create(path, level, filter.is_some())?,
            sites: SiteNumbers::default(),
            pages: PageTracker::default(),
            space: AddressSpace::default(),
            plan,
            model: None,
            marks: Vec::new(),
            filter,
            filters: Vec::new(),
            collapse: Collapse::default(),
            budget,
            segment: Segment { phase: Phase::Measure, collapsed: false, until: u64::MAX },
            phase: Phase::Measure,
            position: 0,
            instructions: 0,
            threads: Vec::new(),
            events: 0,
        };
        if recorder.plan.is_some() {
            recorder.next_segment(true)?;
        }
        Ok(recorder)
    }

    /// The thread that the capture calls `number`; `None` once there are more than 65,536.
    pub fn thread(&mut self, number: u32) -> Option<ThreadId> {
        let known = self.threads.iter().rposition(|&thread| thread == number);
        let index = known.unwrap_or_else(|| {
            self.threads.push(number);
            self.threads.len() - 1
        });
        u16::try_from(index).ok().map(ThreadId)
    }

    /// Accesses so far.
    pub const fn position(&self) -> u64 {
        self.position
    }

    /// What has been written so far.
    pub const fn totals(&self) -> Totals {
        self.writer.totals()
    }

    /// Pages ever touched.
    pub(super) fn footprint(&self) -> PageCount {
        self.pages.footprint()
    }

    /// Misses of the model's TLB, of a spool.
    pub(super) fn walks(&self) -> u64 {
        self.model.as_ref().map_or(0, |model| model.walks())
    }

    /// The access before which the mark with this number came first, if it came.
    pub(super) fn mark_at(&self, number: u64) -> Option<u64> {
        self.marks.iter().find(|mark| mark.0 == number).map(|mark| mark.1)
    }

    /// What is kept begins here, of a plan that is told so.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub(super) fn begin(&mut self) -> Result<(), WorkloadError> {
        let Some(Planner::Since(since)) = &mut self.plan else { return Ok(()) };
        since.begin(self.position);
        self.begins()
    }

    /// The next accesses, by `thread`, which then executed `more` instructions that no access
    /// accounts for. The accesses must have passed [`SourceAccess::check_all`].
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn accesses(
        &mut self,
        thread: ThreadId,
        mut accesses: &[SourceAccess],
        more: u64,
    ) -> Result<(), WorkloadError> {
        while !accesses.is_empty() {
            if self.position == self.segment.until {
                self.next_segment(false)?;
            }
            let left = usize::try_from(self.segment.until - self.position).unwrap_or(usize::MAX);
            let (now, later) = accesses.split_at(left.min(accesses.len()));
            let instructions: u64 = now.iter().map(SourceAccess::instructions).sum();
            if self.segment.phase == Phase::Populate {
                self.skip(thread, now)?;
                self.writer.skipped_instructions(instructions);
            } else if self.segment.collapsed {
                self.note(thread, now)?;
            } else if self.filter.is_some() {
                self.keep_filtered(thread, now)?;
            } else {
                self.keep(thread, now)?;
            }
            self.position += now.len() as u64;
            self.instructions += instructions;
            if let Some(model) = &mut self.model
                && self.segment.phase != Phase::Populate
            {
                model.passed(now.len() as u64, self.position);
            }
            accesses = later;
        }
        self.instructions += more;
        if self.segment.phase == Phase::Populate {
            self.writer.skipped_instructions(more);
        } else if !self.segment.collapsed {
            self.writer.block_instructions(more);
        }
        Ok(())
    }

    fn skip(&mut self, thread: ThreadId, accesses: &[SourceAccess]) -> Result<(), WorkloadError> {
        for access in accesses {
            let page = access.address().page();
            if self.pages.note(page, access.is_store()) != Novelty::Known {
                self.first_touch(thread, access.address().page())?;
                self.writer.touch(thread, nestwalk_mem::Vpn(page.0), access.is_store())?;
            }
        }
        Ok(())
    }

    fn keep(&mut self, thread: ThreadId, accesses: &[SourceAccess]) -> Result<(), WorkloadError> {
        for access in accesses {
            if self.pages.note(access.address().page(), access.is_store()) == Novelty::Touch {
                self.first_touch(thread, access.address().page())?;
            }
            let site = self.sites.number(access.site(), access.attributes());
            self.writer.access(thread, site, Gva(access.address().0), access.instructions())?;
        }
        Ok(())
    }

    /// Of a collapsed stretch: first touches at once, the accesses at its end.
    fn note(&mut self, thread: ThreadId, accesses: &[SourceAccess]) -> Result<(), WorkloadError> {
        self.skip(thread, accesses)?;
        for (access, position) in accesses.iter().zip(self.position..) {
            self.collapse.note(thread, position, access);
        }
        Ok(())
    }

    fn end_collapsed(&mut self) -> Result<(), WorkloadError> {
        let end = Position { access: self.position, instructions: self.instructions };
        let Some((start, kept)) = self.collapse.finish(end) else { return Ok(()) };
        self.writer.mark(Phase::Warm, start.access, start.instructions)?;
        let attributes = SiteAttributes::new(false, 0).unwrap_or_else(|| unreachable!("a load of one byte"));
        let site = self.sites.number(COLLAPSED_SITE, attributes);
        for one in kept {
            self.writer.access(one.thread, site, one.address, one.instructions)?;
            self.writer.absorb(one.absorbed, one.absorbed_stores, 0);
        }
        Ok(())
    }

    fn keep_filtered(&mut self, thread: ThreadId, accesses: &[SourceAccess]) -> Result<(), WorkloadError> {
        let (index, Some(options)) = (usize::from(thread.0), self.filter) else { return Ok(()) };
        if self.filters.len() <= index {
            self.filters.resize_with(index + 1, || Filter::new(&options));
            self.sample();
        }
        let mut rest = accesses;
        while !rest.is_empty() {
            let room = rest.len().min(self.writer.room_to_absorb(thread) as usize);
            let run = self.filters[index].absorb(&rest[..room]);
            let (absorbed, others) = rest.split_at(run.accesses as usize);
            // A page that the filter knows has been touched since mappings changed, and stored to
            // if a store is absorbed.
            debug_assert!(absorbed.iter().all(|access| self.novelty(access) == Novelty::Known));
            self.writer.absorb(run.accesses, run.stores, run.instructions);
            let Some((access, later)) = others.split_first() else { break };
            rest = later;
            let (store, instructions) = (access.is_store(), access.instructions());
            let keeps = self.filters[index].keeps(access.address().0, store, false);
            if keeps && self.novelty(access) == Novelty::Touch {
                self.first_touch(thread, access.address().page())?;
                if let Some(model) = &mut self.model {
                    model.touched();
                }
            }
            if !keeps && self.writer.room_to_absorb(thread) > 0 {
                self.writer.absorb(1, u64::from(store), instructions);
                continue;
            }
            let site = self.sites.number(access.site(), access.attributes());
            self.writer.access(thread, site, Gva(access.address().0), instructions)?;
            if let Some(model) = &mut self.model {
                model.kept(access.address());
            }
        }
        Ok(())
    }

    /// What the filters sample is of measured stretches.
    fn sample(&mut self) {
        let on = self.segment.phase == Phase::Measure;
        self.filters.iter_mut().for_each(|filter| filter.set_sampling(on));
    }

    fn novelty(&mut self, access: &SourceAccess) -> Novelty {
        self.pages.note(access.address().page(), access.is_store())
    }

    /// A thread of the spool: it has the same number here, if they come in the same order.
    pub(super) fn known_thread(&mut self, thread: ThreadId) -> ThreadId {
        self.thread(u32::from(thread.0)).unwrap_or(thread)
    }

    /// Sites are numbered as in `table` from now on.
    pub(super) fn share_sites(&mut self, table: &SiteTable) {
        self.sites = SiteNumbers::of(table);
    }

    /// The next accesses, of a trace that is filtered.
    pub(super) fn represented(&mut self, next: &Represented) -> Result<(), WorkloadError> {
        while self.position >= self.segment.until {
            self.next_segment(false)?;
        }
        let store = self.sites.table().attributes[next.site.0 as usize].is_store();
        let address = Va(next.address.0);
        if self.segment.phase == Phase::Populate || self.segment.collapsed {
            self.touched(next.thread, address.page(), store)?;
            if self.segment.collapsed {
                self.collapse.note_line(next.thread, self.position, address, u64::from(store) + next.absorbed_stores);
            } else {
                self.writer.skipped_instructions(next.instructions);
            }
        } else {
            if self.pages.note(address.page(), store) == Novelty::Touch {
                self.first_touch(next.thread, address.page())?;
            }
            self.writer.access(next.thread, next.site, next.address, next.instructions)?;
            self.writer.absorb(next.absorbed, next.absorbed_stores, 0);
        }
        self.position += 1 + u64::from(next.absorbed);
        self.instructions += next.instructions;
        Ok(())
    }

    /// A page is touched in a stretch whose accesses are left out; that it is for the first time
    /// may not be so.
    pub(super) fn touched(&mut self, thread: ThreadId, page: Vpn, store: bool) -> Result<(), WorkloadError> {
        if self.pages.note(page, store) == Novelty::Known {
            return Ok(());
        }
        self.first_touch(thread, page)?;
        self.writer.touch(thread, page, store)
    }

    /// Instructions of a stretch whose accesses are left out.
    pub(super) fn skipped_instructions(&mut self, instructions: u64) {
        self.instructions += instructions;
        self.writer.skipped_instructions(instructions);
    }

    /// What follows is access number `position` of the program, after so many instructions.
    pub(super) fn jump(&mut self, position: u64, instructions: u64) -> Result<(), WorkloadError> {
        (self.position, self.instructions) = (position, instructions);
        while self.position >= self.segment.until {
            self.next_segment(false)?;
        }
        Ok(())
    }

    /// A page that is touched for the first time must be mapped, or a kernel would kill the
    /// program. Where a thread's accesses came later in the capture than another thread's
    /// unmapping, the page is mapped once more.
    #[cold]
    fn first_touch(&mut self, thread: ThreadId, page: Vpn) -> Result<(), WorkloadError> {
        if self.space.cover(page) != Cover::Stray {
            return Ok(());
        }
        let again = TraceEvent::mapping(thread, VpnRange { start: page, end: page + 1 });
        if let Some(meaning) = again.meaning() {
            self.space.apply(&meaning);
        }
        self.writer.event(&again)
    }

    /// A memory event that passed its check.
    ///
    /// # Errors
    /// When the file cannot be written, or a mark shows that the sampling options are impossible.
    pub fn event(&mut self, event: &TraceEvent) -> Result<(), WorkloadError> {
        if event.op == EventOp::Mark {
            if self.marks.len() < MARKS_MAX && self.mark_at(event.argument).is_none() {
                self.marks.push((event.argument, self.position));
            }
            self.steady_mark(event.argument)?;
        }
        self.events += 1;
        if let Some(meaning) = event.meaning() {
            match self.space.apply(&meaning) {
                PageEffect::None => {}
                PageEffect::Clear(range) => {
                    self.pages.clear(range);
                    self.collapse.forget(range);
                }
                PageEffect::Relocate(from, to) => {
                    self.pages.relocate(from, to);
                    self.collapse.forget(from);
                    self.collapse.forget(to);
                }
                PageEffect::ShareAll => self.pages.share_all(),
            }
            // Whatever the event changes: nothing is absorbed because of what was there before.
            self.filters.iter_mut().for_each(Filter::forget);
        }
        self.writer.event(event)
    }

    fn steady_mark(&mut self, number: u64) -> Result<(), WorkloadError> {
        match &mut self.plan {
            Some(Planner::Sample(plan)) => plan.mark(number, self.position).map_err(impossible)?,
            Some(Planner::Since(since)) => since.passed(number, self.position),
            Some(Planner::Thin(_) | Planner::Windows(_)) | None => return Ok(()),
        }
        self.begins()
    }

    /// What is kept may begin here.
    fn begins(&mut self) -> Result<(), WorkloadError> {
        if self.segment.phase == Phase::Populate {
            self.next_segment(false)?;
        }
        Ok(())
    }

    fn next_segment(&mut self, first: bool) -> Result<(), WorkloadError> {
        if self.plan.is_none() {
            return Ok(());
        }
        self.end_collapsed()?;
        self.writer.flush()?;
        let (budget, totals) = (self.budget, self.writer.totals());
        let sites = self.sites.table().attributes.len() as u64;
        let segment = match &mut self.plan {
            None => return Ok(()),
            Some(Planner::Thin(thin)) => thin.segment(self.position, totals.bytes),
            Some(Planner::Windows(windows)) => windows.segment(self.position),
            Some(Planner::Since(since)) => since.segment(self.position),
            Some(Planner::Sample(plan)) => {
                let windows = plan.sampling().windows;
                plan.segment(self.position, |part, whole| {
                    budget.is_none_or(|budget| fits(budget, totals, sites, windows, part, whole))
                })
            }
        };
        if let Some(model) = &mut self.model {
            model.close(self.position);
        }
        // Two windows may touch: each has its marks all the same.
        if segment.collapsed {
            self.collapse.begin(Position { access: self.position, instructions: self.instructions });
        }
        let phase = if segment.collapsed { Phase::Populate } else { segment.phase };
        if first || phase != self.phase || phase != Phase::Populate {
            self.writer.mark(phase, self.position, self.instructions)?;
        }
        self.phase = phase;
        // What is skipped does not go through the filters.
        if phase == Phase::Populate {
            self.filters.iter_mut().for_each(Filter::forget);
        }
        self.segment = segment;
        self.sample();
        Ok(())
    }

    /// Completes the trace. `metadata` has what the converter knows; the rest is filled in.
    ///
    /// # Errors
    /// When the file cannot be written, or there was no window to sample.
    pub fn finish(self, mut metadata: Metadata) -> Result<Recorded, WorkloadError> {
        if let Some(Planner::Sample(plan)) = &self.plan
            && let Some(complaint) = plan.complaint()
        {
            return Err(impossible(complaint));
        }
        metadata.program_accesses = self.position;
        metadata.program_instructions = self.instructions;
        metadata.events = self.events;
        metadata.threads = self.threads.len() as u64;
        metadata.footprint_pages = self.pages.footprint().0;
        metadata.vmas = self.space.vmas();
        metadata.implied = self.space.implied();
        metadata.sampling = match &self.plan {
            Some(Planner::Sample(plan)) => Some(plan.sampling()),
            Some(Planner::Windows(windows)) => Some(windows.sampling()),
            Some(Planner::Since(since)) => Some(since.sampling(self.position)),
            Some(Planner::Thin(_)) | None => None,
        };
        metadata.filter = self.filter;
        if let Some(options) = self.filter
            && !self.filters.is_empty()
        {
            let mut reuse = options.reuse();
            self.filters.iter().for_each(|filter| reuse.add(filter.reuse()));
            metadata.reuse = Some(reuse).filter(|reuse| reuse.absorbed.total() > 0);
        }
        let totals = self.writer.finish(self.sites.table(), &mut metadata)?;
        Ok(Recorded { totals, metadata })
    }
}

impl Recorder {
    /// Completes a spool. Returns every stretch that it has, too, and what it has, from and until.
    pub(super) fn finish_spool(mut self, metadata: Metadata) -> Result<Spool, WorkloadError> {
        let units = self.model.take().map_or_else(Vec::new, |model| model.into_units());
        let kept = match &self.plan {
            Some(Planner::Thin(thin)) => thin.kept().to_vec(),
            _ => Vec::new(),
        };
        Ok((self.finish(metadata)?, units, kept))
    }
}

type Spool = (Recorded, Vec<Unit>, Vec<(u64, u64)>);

/// Whether one more window fits: the windows so far, and this one, may take their share of what
/// logs and tables leave.
fn fits(budget: u64, totals: Totals, sites: u64, windows: u64, part: u64, whole: Option<u64>) -> bool {
    // Four bytes a site is on the high side of what the table and the index take at the end.
    let other = totals.bytes - totals.access_bytes + 4 * sites + 4096;
    let one_more = totals.access_bytes + totals.access_bytes.checked_div(windows).unwrap_or(0);
    let room = budget.saturating_sub(other);
    match whole {
        Some(whole) => u128::from(one_more) * u128::from(whole) <= u128::from(room) * u128::from(part),
        None => one_more <= room,
    }
}

fn impossible(what: String) -> WorkloadError {
    WorkloadError::Parameter { name: "trace".into(), what }
}
