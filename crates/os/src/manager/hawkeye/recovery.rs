// SPDX-License-Identifier: MIT OR Apache-2.0
//! Getting back what huge pages waste: when memory is nearly full, pages of huge pages that are all
//! zeroes are unmapped (`remove_bloat` of the authors' module `bloat_recovery`), and the huge page
//! is single pages from then on. It is not promoted again before it has been unmapped, as the
//! authors' kernel knows candidates from faults on memory that has no table node.
//!
//! Contents are not simulated. Known to be zeroes is a page that was missing when its 2 MiB were
//! promoted, so that zeroes took its place, and to which nothing has been stored since
//! ([`Kernel::note_store`](crate::Kernel::note_store)). A page that the program has mapped before
//! is taken to hold something else.
//!
//! Each look at a huge page counts as 512 pages scanned. The authors' module is loaded for one
//! process; here it goes over all, by number.

use std::collections::{BTreeMap, BTreeSet};

use nestwalk_mem::{Frame, FrameRange, Nanoseconds, PageCount, PageSize, Vpn, VpnRange};

use super::HawkEyeConfig;
use crate::context::Context;
use crate::error::OsError;
use crate::state::KernelState;
use crate::state::process::ProcessId;

/// A bit for each page of 2 MiB.
pub(super) type Bits = [u64; 8];

/// A huge page some of whose pages are zeroes.
#[derive(Clone, Copy, Debug)]
struct Superpage {
    frame: Frame,
    zeroes: Bits,
}

impl Superpage {
    /// The places of pages that are zeroes.
    fn places(&self) -> impl Iterator<Item = u64> + use<> {
        let zeroes = self.zeroes;
        (0..PageSize::Huge.pages()).filter(move |&place| zeroes[place as usize / 64] >> (place % 64) & 1 == 1)
    }
}

/// What was done in a round.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Recovered {
    pub superpages: u64,
    pub pages: u64,
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Recovery {
    /// None: never.
    sleep: Nanoseconds,
    above_permille: u64,
    down_to_permille: u64,
    wakes_at: Nanoseconds,
    superpages: BTreeMap<(ProcessId, Vpn), Superpage>,
    /// What was recovered, and is mapped still.
    recovered: BTreeSet<(ProcessId, Vpn)>,
}

/// Which of the 2 MiB from `first` on have no entry.
pub(super) fn missing(state: &KernelState, process: ProcessId, first: Vpn) -> Result<Bits, OsError> {
    let table = &state.processes.get(process)?.table;
    let (node, _) = table.lowest_node(first);
    let mut bits = Bits::default();
    for place in 0..PageSize::Huge.pages() as usize {
        bits[place / 64] |= u64::from(table.entry(node, place).is_none()) << (place % 64);
    }
    Ok(bits)
}

/// The 2 MiB blocks that have pages in `range`, as keys.
fn blocks(process: ProcessId, range: VpnRange) -> std::ops::Range<(ProcessId, Vpn)> {
    (process, range.start.align_down(PageSize::Huge.order()))..(process, range.end)
}

impl Recovery {
    pub(super) fn new(config: &HawkEyeConfig) -> Self {
        let sleep = Nanoseconds::from_ms(config.recovery_sleep_ms);
        Self {
            sleep,
            above_permille: config.recovery_above_permille,
            down_to_permille: config.recovery_down_to_permille,
            wakes_at: sleep,
            superpages: BTreeMap::new(),
            recovered: BTreeSet::new(),
        }
    }

    /// Whether it is ever done.
    pub(super) fn is_on(&self) -> bool {
        self.sleep > Nanoseconds::default()
    }

    /// A huge page has been made at `frame`, with zeroes where pages were missing.
    pub(super) fn promoted(&mut self, state: &mut KernelState, at: (ProcessId, Vpn), frame: Frame, zeroes: Bits) {
        self.superpages.remove(&at);
        if zeroes != Bits::default() {
            self.superpages.insert(at, Superpage { frame, zeroes });
        }
        self.watch(state);
    }

    /// The program has stored to `page`, or may have.
    pub(super) fn stored(&mut self, process: ProcessId, page: Vpn) {
        let first = page.align_down(PageSize::Huge.order());
        if let Some(superpage) = self.superpages.get_mut(&(process, first)) {
            let place = page.0 - first.0;
            superpage.zeroes[place as usize / 64] &= !(1 << (place % 64));
        }
    }

    /// Pages of `range` are not what they were.
    pub(super) fn changed(&mut self, process: ProcessId, range: VpnRange) {
        if !self.superpages.is_empty() {
            let gone: Vec<_> = self.superpages.range(blocks(process, range)).map(|(&at, _)| at).collect();
            for at in gone {
                self.superpages.remove(&at);
            }
        }
    }

    /// `range` is mapped no more: what is mapped there next begins anew.
    pub(super) fn unmapped(&mut self, process: ProcessId, range: VpnRange) {
        self.changed(process, range);
        let gone: Vec<_> = self.recovered.range(blocks(process, range)).copied().collect();
        for at in gone {
            self.recovered.remove(&at);
        }
    }

    /// Whether the 2 MiB were recovered.
    pub(super) fn has_recovered(&self, process: ProcessId, first: Vpn) -> bool {
        self.recovered.contains(&(process, first))
    }

    /// Only while some huge page has zeroes does the kernel have to hear of stores.
    fn watch(&self, state: &mut KernelState) {
        state.watches_stores = !self.superpages.is_empty();
    }

    /// Gets memory back, if it is time to and little is free.
    pub(super) fn tick(&mut self, cx: &mut Context<'_>) -> Result<Recovered, OsError> {
        let mut sum = Recovered::default();
        while self.is_on() && self.wakes_at <= cx.state.now {
            self.wakes_at += self.sleep;
            let Recovered { superpages, pages } = self.recover(cx)?;
            sum = Recovered { superpages: sum.superpages + superpages, pages: sum.pages + pages };
        }
        Ok(sum)
    }

    /// One round. How much has to become free is counted once, at its beginning
    /// (`count_pages_to_free`).
    fn recover(&mut self, cx: &mut Context<'_>) -> Result<Recovered, OsError> {
        let (all, free) = (cx.state.memory.frames().0, cx.state.memory.free_frames().0);
        let mut done = Recovered::default();
        if free >= all * (1000 - self.above_permille) / 1000 {
            return Ok(done);
        }
        let goal = (all * (1000 - self.down_to_permille) / 1000).saturating_sub(free);
        let candidates: Vec<_> = self.superpages.keys().copied().collect();
        for at in candidates {
            if done.pages > goal {
                break;
            }
            match self.recover_one(cx, at) {
                Ok(0) => {}
                Ok(pages) => {
                    done.superpages += 1;
                    done.pages += pages;
                }
                // The split wants a table node.
                Err(OsError::OutOfMemory { .. }) => break,
                Err(error) => return Err(error),
            }
        }
        self.watch(cx.state);
        Ok(done)
    }

    /// The pages of one huge page that are zeroes. Returns how many there were.
    fn recover_one(&mut self, cx: &mut Context<'_>, at: (ProcessId, Vpn)) -> Result<u64, OsError> {
        let ((process, first), superpage) = (at, self.superpages[&at]);
        let leaf = cx.state.processes.get(process).ok().and_then(|space| space.table.leaf(first));
        let is_there = leaf.is_some_and(|leaf| leaf.size() == PageSize::Huge && leaf.entry.frame() == superpage.frame);
        if !is_there {
            self.superpages.remove(&at);
            return Ok(0);
        }
        cx.state.counters.pages_scanned += PageSize::Huge.pages();
        let is_shared = |place| cx.state.memory.is_shared(superpage.frame + place);
        if superpage.zeroes == Bits::default() || (0..PageSize::Huge.pages()).any(is_shared) {
            return Ok(0);
        }
        cx.split(process, first)?;
        cx.write_leaf_node(process, first)?;
        for place in superpage.places() {
            cx.state.processes.get_mut(process)?.table.unmap(first + place);
            cx.free(FrameRange::single(superpage.frame + place));
        }
        cx.invalidate(process, VpnRange::new(first, PageCount(PageSize::Huge.pages())), false);
        self.superpages.remove(&at);
        self.recovered.insert(at);
        Ok(superpage.places().count() as u64)
    }
}
