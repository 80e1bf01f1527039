// SPDX-License-Identifier: MIT OR Apache-2.0
//! Making a 2 MiB page of 4 KiB pages: by copying them (`collapse_huge_page`), or in place.

use nestwalk_mem::{Entry, Frame, FrameRange, Leaf, Level, Owner, PageCount, PageSize, Vpn, VpnRange};

use crate::context::{Context, Outcome};
use crate::error::OsError;
use crate::state::KernelState;
use crate::state::process::ProcessId;
use crate::state::vma::VmaKind;

/// What may be missing of the 512 pages for a collapse to be worth it (khugepaged's `max_ptes_*`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CollapseLimits {
    /// Pages that are not mapped: they become zeroes.
    pub none_max: u16,
    /// Pages that are in swap: they are read back.
    pub swap_max: u16,
    /// Pages that are shared since a fork: they are copied.
    pub shared_max: u16,
    /// Whether at least one page must have been used lately.
    pub referenced: bool,
}

impl CollapseLimits {
    /// None at all: what `MADV_COLLAPSE` goes by.
    pub const NONE: Self = Self { none_max: 511, swap_max: 512, shared_max: 512, referenced: false };
}

/// What maps one aligned 2 MiB of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Candidate {
    /// A huge page already.
    Huge,
    /// 4 KiB pages that may become one.
    Suitable,
    /// Nothing that may become one.
    Unsuitable,
}

/// Looks at the 2 MiB from `first` on (`hpage_collapse_scan_pmd`).
///
/// # Errors
/// When there is no such process.
pub fn examine(
    state: &KernelState,
    process: ProcessId,
    first: Vpn,
    limits: &CollapseLimits,
) -> Result<Candidate, OsError> {
    let space = state.processes.get(process)?;
    let order = PageSize::Huge.order();
    let suitable = |vma: crate::state::vma::Vma| vma.flags.kind == VmaKind::Anonymous && vma.holds_block(first, order);
    if space.table.geometry().entry_order(Level::PMD) != order || !space.vmas.get(first).is_some_and(suitable) {
        return Ok(Candidate::Unsuitable);
    }
    let (node, level) = space.table.lowest_node(first);
    if level > Level::PTE {
        let huge = level == Level::PMD && space.table.entry_for(node, level, first).is_present();
        return Ok(if huge { Candidate::Huge } else { Candidate::Unsuitable });
    }
    let (mut none, mut swapped, mut shared) = (0, 0, 0);
    let (mut writable, mut referenced, mut pinned) = (false, false, false);
    for index in 0..PageSize::Huge.pages() as usize {
        let entry = space.table.entry(node, index);
        if entry.is_none() || entry.is_present() && state.is_zero(entry.frame()) {
            none += 1;
        } else if !entry.is_present() {
            swapped += 1;
        } else {
            shared += u16::from(state.memory.is_shared(entry.frame()));
            writable |= entry.has(Entry::WRITABLE);
            referenced |= entry.has(Entry::ACCESSED);
            pinned |= state.memory.owner(entry.frame()) == Owner::Kernel;
        }
    }
    let within = none <= limits.none_max && swapped <= limits.swap_max && shared <= limits.shared_max;
    let used = writable && (referenced || !limits.referenced);
    Ok(if within && used && !pinned { Candidate::Suitable } else { Candidate::Unsuitable })
}

/// What the PTEs of 4 KiB pages that lie in place have in common.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placed {
    /// How many there are.
    pub mapped: u64,
    /// Flags that all of them have.
    pub all: u64,
    /// Flags that any of them has.
    pub any: u64,
}

impl Placed {
    /// Whether some of them have one of `flags` and some have not.
    pub const fn differ(&self, flags: u64) -> bool {
        (self.all ^ self.any) & flags != 0
    }
}

impl Context<'_> {
    /// A 2 MiB block: from the free lists or, with `direct`, by compaction. Never reclaims.
    pub fn huge_frame(&mut self, direct: bool) -> Option<Frame> {
        use nestwalk_mem::Order;
        let block = self.state.alloc(Order::HUGE, self.cpu);
        if block.is_some() || !direct || self.compact(Order::HUGE) != Outcome::Done {
            return block;
        }
        self.state.alloc(Order::HUGE, self.cpu)
    }

    /// Copies the pages of the [suitable](Candidate::Suitable) 2 MiB from `first` on into the block
    /// at `huge`, zeroes what is missing, and maps the block as one page.
    /// `gone(context, page, frame, shared)` hears of each page that was mapped there: one that is
    /// `shared` others still map, any other is the caller's to free.
    ///
    /// # Errors
    /// When nothing below backs a frame. The block is then free again and all is mapped as before.
    pub fn collapse(
        &mut self,
        process: ProcessId,
        first: Vpn,
        huge: Frame,
        gone: &mut dyn FnMut(&mut Self, Vpn, Frame, bool),
    ) -> Result<(), OsError> {
        let mut leaves = Vec::new();
        let range = VpnRange::new(first, PageCount(PageSize::Huge.pages()));
        let space = self.state.processes.get(process)?;
        space.table.for_each_leaf(range, |leaf| leaves.push(leaf));
        let writable = space.vmas.get(first).is_some_and(|vma| vma.flags.writable);
        if let Err(error) = self.fill_huge(process, range, huge, &leaves) {
            self.free(FrameRange::new(huge, PageCount(range.len())));
            return Err(error);
        }
        let dirty = leaves.iter().any(|leaf| !leaf.entry.is_present() || leaf.entry.has(Entry::DIRTY));
        let flag = |set: bool, flag: u64| if set { flag } else { 0 };
        let flags = Entry::ACCESSED | flag(writable, Entry::WRITABLE) | flag(dirty, Entry::DIRTY);
        self.replace_by_huge(process, first, huge, flags)?;
        for leaf in leaves {
            if !leaf.entry.is_present() {
                self.state.swap.used.0 -= 1;
            } else if self.state.memory.is_shared(leaf.entry.frame()) {
                self.state.leave_shared(leaf.entry.frame(), process, leaf.page);
                gone(self, leaf.page, leaf.entry.frame(), true);
            } else {
                gone(self, leaf.page, leaf.entry.frame(), false);
            }
        }
        self.state.counters.collapses += 1;
        Ok(())
    }

    fn fill_huge(&mut self, process: ProcessId, range: VpnRange, huge: Frame, leaves: &[Leaf]) -> Result<(), OsError> {
        let mut leaves = leaves.iter().peekable();
        for i in 0..range.len() {
            let (page, to) = (range.start + i, huge + i);
            match leaves.next_if(|leaf| leaf.page == page) {
                None => self.zero(FrameRange::single(to))?,
                Some(leaf) if leaf.entry.is_present() && self.state.is_zero(leaf.entry.frame()) => {
                    self.zero(FrameRange::single(to))?;
                }
                Some(leaf) if !leaf.entry.is_present() => self.below.swap_in(process, page, to)?,
                Some(leaf) => {
                    self.below.copy(leaf.entry.frame(), to)?;
                    self.state.counters.copied_collapse += 1;
                }
            }
        }
        Ok(())
    }

    /// What the PTEs over the aligned 2 MiB from `first` on have in common, if each of them that is
    /// not empty maps the page of its place in the aligned block at `huge`, unshared and not
    /// pinned. `None` if not, or if there are no PTEs.
    ///
    /// # Errors
    /// When there is no such process.
    pub fn placed(&self, process: ProcessId, first: Vpn, huge: Frame) -> Result<Option<Placed>, OsError> {
        self.placed_in(process, VpnRange::new(first, PageCount(PageSize::Huge.pages())), huge)
    }

    /// The same of the PTEs over `range`, which lies in 2 MiB, and the frames from `frame` on.
    ///
    /// # Errors
    /// As [`Context::placed`].
    pub fn placed_in(&self, process: ProcessId, range: VpnRange, frame: Frame) -> Result<Option<Placed>, OsError> {
        let table = &self.state.processes.get(process)?.table;
        let (node, level) = table.lowest_node(range.start);
        if level > Level::PTE || table.geometry().entry_order(Level::PMD) != PageSize::Huge.order() {
            return Ok(None);
        }
        let begin = table.geometry().index(range.start, Level::PTE);
        let mut placed = Placed { mapped: 0, all: u64::MAX, any: 0 };
        for place in 0..range.len() {
            let entry = table.entry(node, begin + place as usize);
            if entry.is_none() {
                continue;
            }
            let frame = frame + place;
            let memory = &self.state.memory;
            if !entry.is_present()
                || entry.frame() != frame
                || memory.is_shared(frame)
                || memory.owner(frame) == Owner::Kernel
            {
                return Ok(None);
            }
            placed.mapped += 1;
            placed.all &= entry.flags();
            placed.any |= entry.flags();
        }
        placed.all &= placed.any;
        Ok(Some(placed))
    }

    /// Makes one 2 MiB page of the pages that lie in the aligned block at `huge` already, each in
    /// its place (in-place promotion). Pages that are not mapped yet must have been prepared.
    /// Returns whether all that is mapped [lies in place](Context::placed).
    ///
    /// # Errors
    /// When there is no such process, or nothing below backs a table node.
    pub fn promote(&mut self, process: ProcessId, first: Vpn, huge: Frame, flags: u64) -> Result<bool, OsError> {
        if self.placed(process, first, huge)?.is_none() || !huge.is_aligned(PageSize::Huge.order()) {
            return Ok(false);
        }
        // Of a large page only the first frame has an owner.
        let frames = FrameRange::new(huge, PageCount(PageSize::Huge.pages()));
        self.state.memory.set_owners(frames, Owner::Unknown);
        self.replace_by_huge(process, first, huge, flags)?;
        self.state.counters.promotions += 1;
        Ok(true)
    }

    /// Maps the 2 MiB of the page cache that lie in the aligned block at `base` by one leaf at
    /// `first`, where nothing is mapped, without the right to store.
    ///
    /// # Errors
    /// When there is no memory for a table node, or nothing below backs it.
    pub fn map_file_block(&mut self, process: ProcessId, first: Vpn, base: Frame) -> Result<(), OsError> {
        self.map_entry(process, first, Level::PMD, Entry::leaf(base, Entry::ACCESSED))?;
        (0..PageSize::Huge.pages()).for_each(|i| self.state.memory.share(base + i));
        Ok(())
    }

    /// Makes one leaf of 512 PTEs from `first` on, if they map the 2 MiB of the page cache that lie
    /// in the aligned block at `base`, each in its place, and none of them has the right to store.
    /// Returns whether it did.
    ///
    /// # Errors
    /// When there is no such process, or nothing below backs a table node.
    pub fn promote_file(&mut self, process: ProcessId, first: Vpn, base: Frame) -> Result<bool, OsError> {
        let table = &self.state.processes.get(process)?.table;
        let (node, level) = table.lowest_node(first);
        let small = level == Level::PTE && table.geometry().entry_order(Level::PMD) == PageSize::Huge.order();
        let in_place = |i: usize| {
            let entry = table.entry(node, i);
            entry.is_present() && entry.frame() == base + i as u64 && !entry.has(Entry::WRITABLE)
        };
        if !small || !(0..PageSize::Huge.pages() as usize).all(in_place) {
            return Ok(false);
        }
        self.replace_leaves(process, first, base, Entry::ACCESSED)?;
        self.state.counters.promotions += 1;
        Ok(true)
    }

    /// Takes the right to store from the clean 4 KiB pages of `range`, which lies in 2 MiB: the
    /// next store to one is a fault.
    ///
    /// # Errors
    /// When there is no such process, or nothing below backs a table node.
    pub fn protect_clean(&mut self, process: ProcessId, range: VpnRange) -> Result<(), OsError> {
        self.write_leaf_node(process, range.start)?;
        let table = &mut self.state.processes.get_mut(process)?.table;
        let mut changed = false;
        let clean = |entry: Entry| entry.has(Entry::PRESENT | Entry::WRITABLE) && !entry.has(Entry::DIRTY);
        for page in (0..range.len()).map(|i| range.start + i) {
            if table.leaf(page).is_some_and(|leaf| clean(leaf.entry)) {
                table.update(page, |entry| entry.without(Entry::WRITABLE));
                changed = true;
            }
        }
        if changed {
            self.invalidate(process, range, false);
        }
        Ok(())
    }

    fn replace_by_huge(&mut self, process: ProcessId, first: Vpn, huge: Frame, flags: u64) -> Result<(), OsError> {
        self.state.own(huge, process, first);
        self.replace_leaves(process, first, huge, flags)
    }

    fn replace_leaves(&mut self, process: ProcessId, first: Vpn, huge: Frame, flags: u64) -> Result<(), OsError> {
        let table = &mut self.state.processes.get_mut(process)?.table;
        let node = table.collapse(first, huge, flags).expect("there are PTEs to collapse");
        self.release_node(process, Level::PTE, first, node);
        self.invalidate(process, VpnRange::new(first, PageCount(PageSize::Huge.pages())), true);
        self.write_leaf_node(process, first)
    }
}
