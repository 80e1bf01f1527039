// SPDX-License-Identifier: MIT OR Apache-2.0
//! What converters feed: it numbers sites and threads, follows pages and mappings, samples if asked to, and writes.

use std::path::Path;

use nestwalk_mem::{Gva, VpnRange};

use super::collapse::{Collapse, Position};
use super::event::{EventOp, TraceEvent};
use super::filter::{Filter, FilterOptions};
use super::format::ADDRESS_END;
use super::metadata::Metadata;
use super::pages::{Novelty, PageTracker};
use super::sample::{Plan, SampleOptions, Segment};
use super::sites::{SiteAttributes, SiteNumbers};
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
    plan: Option<Plan>,
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

/// What came of it.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// What the file holds.
    pub totals: Totals,
    /// What it says of itself.
    pub metadata: Metadata,
}

impl Recorder {
    /// Begins the trace `path`. What it keeps is filtered if there is a `filter`. `total` is the number of accesses to come, if
    /// known.
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
        let mut recorder = Self {
            writer: Writer::create(path, level, filter.is_some())?,
            sites: SiteNumbers::default(),
            pages: PageTracker::default(),
            space: AddressSpace::default(),
            plan,
            filter,
            filters: Vec::new(),
            collapse: Collapse::default(),
            budget: sample.and_then(|options| options.budget),
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

    /// The next accesses, by `thread`, which then executed `more` instructions that no access accounts for. The accesses
    /// must have passed [`SourceAccess::check_all`].
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
                self.first_touch(thread, access)?;
                self.writer.touch(thread, nestwalk_mem::Vpn(page.0), access.is_store())?;
            }
        }
        Ok(())
    }

    fn keep(&mut self, thread: ThreadId, accesses: &[SourceAccess]) -> Result<(), WorkloadError> {
        for access in accesses {
            if self.pages.note(access.address().page(), access.is_store()) == Novelty::Touch {
                self.first_touch(thread, access)?;
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
        let site = self.sites.number(COLLAPSED_SITE, attributes(false, 0));
        for one in kept {
            self.writer.access(one.thread, site, one.address, one.instructions)?;
            self.writer.absorb_many(one.absorbed, one.absorbed_stores);
        }
        Ok(())
    }

    fn keep_filtered(&mut self, thread: ThreadId, accesses: &[SourceAccess]) -> Result<(), WorkloadError> {
        let (index, Some(options)) = (usize::from(thread.0), self.filter) else { return Ok(()) };
        if self.filters.len() <= index {
            self.filters.resize_with(index + 1, || Filter::new(&options));
        }
        for access in accesses {
            let novelty = self.pages.note(access.address().page(), access.is_store());
            if novelty == Novelty::Touch {
                self.first_touch(thread, access)?;
            }
            let (store, instructions) = (access.is_store(), access.instructions());
            let keeps = self.filters[index].keeps(access.address().0, store, novelty != Novelty::Known);
            if keeps || !self.writer.absorb(thread, store, instructions) {
                let site = self.sites.number(access.site(), access.attributes());
                self.writer.access(thread, site, Gva(access.address().0), instructions)?;
            }
        }
        Ok(())
    }

    /// A page that is touched for the first time must be mapped, or a kernel would kill the program. Where a thread's
    /// accesses came later in the capture than another thread's unmapping, the page is mapped once more.
    #[cold]
    fn first_touch(&mut self, thread: ThreadId, access: &SourceAccess) -> Result<(), WorkloadError> {
        let page = access.address().page();
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
        let Some(plan) = &mut self.plan else { return Ok(()) };
        plan.mark(number, self.position).map_err(impossible)?;
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
        let Some(plan) = &mut self.plan else { return Ok(()) };
        let (budget, totals) = (self.budget, self.writer.totals());
        let (sites, windows) = (self.sites.table().attributes.len() as u64, plan.sampling().windows);
        let segment = plan.segment(self.position, |part, whole| {
            budget.is_none_or(|budget| fits(budget, totals, sites, windows, part, whole))
        });
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
        Ok(())
    }

    /// Completes the trace. `metadata` has what the converter knows; the rest is filled in.
    ///
    /// # Errors
    /// When the file cannot be written, or there was no window to sample.
    pub fn finish(self, mut metadata: Metadata) -> Result<Recorded, WorkloadError> {
        if let Some(complaint) = self.plan.as_ref().and_then(Plan::complaint) {
            return Err(impossible(complaint));
        }
        metadata.program_accesses = self.position;
        metadata.program_instructions = self.instructions;
        metadata.events = self.events;
        metadata.threads = self.threads.len() as u64;
        metadata.footprint_pages = self.pages.footprint().0;
        metadata.vmas = self.space.vmas();
        metadata.implied = self.space.implied();
        metadata.sampling = self.plan.as_ref().map(Plan::sampling);
        metadata.filter = self.filter;
        let totals = self.writer.finish(self.sites.table(), &mut metadata)?;
        Ok(Recorded { totals, metadata })
    }
}

/// Whether one more window fits: the windows so far, and this one, may take their share of what logs and tables leave.
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

/// The end of what an access may address.
pub(super) const SOURCE_ADDRESS_END: u64 = ADDRESS_END;

/// Attributes of an access that has passed its check.
pub(super) fn attributes(store: bool, size_log2: u8) -> SiteAttributes {
    SiteAttributes::new(store, size_log2 & 15).unwrap_or_else(|| unreachable!("four bits are at most 15"))
}
