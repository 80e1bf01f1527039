// SPDX-License-Identifier: MIT OR Apache-2.0
//! The position of a daemon that goes over the address spaces of all processes, 2 MiB at a time
//! (khugepaged's `mm_slot`).

use nestwalk_mem::{PageSize, Vpn};

use crate::context::Context;
use crate::error::OsError;
use crate::state::KernelState;
use crate::state::process::ProcessId;
use crate::state::vma::{Vma, VmaKind, Vmas};

/// See the [module](self).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cursor {
    process: ProcessId,
    page: Vpn,
}

impl Cursor {
    /// The next aligned 2 MiB in a mapping that is `allowed` and holds all of it, and goes past it.
    /// `None` after one round over all processes; `rounds` counts the processes that were left
    /// behind.
    pub fn next(
        &mut self,
        cx: &Context<'_>,
        rounds: &mut usize,
        allowed: impl Fn(&Vma) -> bool,
    ) -> Result<Option<(ProcessId, Vpn)>, OsError> {
        loop {
            let Some(process) = cx.state.processes.round_robin(self.process) else { return Ok(None) };
            let page = if process == self.process { self.page } else { Vpn(0) };
            if let Some(first) = block_from(&cx.state.processes.get(process)?.vmas, page, &allowed) {
                *self = Self { process, page: first + PageSize::Huge.pages() };
                return Ok(Some((process, first)));
            }
            *self = Self { process: ProcessId(process.0.wrapping_add(1)), page: Vpn(0) };
            *rounds += 1;
            if *rounds >= cx.state.processes.len() {
                return Ok(None);
            }
        }
    }
}

/// The first aligned 2 MiB from `page` on in a mapping that is `allowed` and holds all of it.
pub(super) fn block_from(vmas: &Vmas, page: Vpn, allowed: impl Fn(&Vma) -> bool) -> Option<Vpn> {
    let fits = |vma: &Vma| {
        let first = Vpn(vma.range.start.max(page).0.next_multiple_of(PageSize::Huge.pages()));
        (allowed(vma) && vma.holds_block(first, PageSize::Huge.order())).then_some(first)
    };
    vmas.from(page).find_map(fits)
}

/// What a process has mapped of anonymous memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Anonymous {
    /// Pages, those of huge ones included (`MM_ANONPAGES`).
    pub pages: u64,
    /// Huge pages.
    pub huge: u64,
}

/// Counts the anonymous pages of `process`.
pub(super) fn anonymous(state: &KernelState, process: ProcessId) -> Result<Anonymous, OsError> {
    let space = state.processes.get(process)?;
    let mut sum = Anonymous::default();
    for vma in space.vmas.iter().filter(|vma| vma.flags.kind == VmaKind::Anonymous) {
        space.table.for_each_leaf(vma.range, |leaf| {
            if leaf.entry.is_present() {
                sum.pages += leaf.size().pages();
                sum.huge += u64::from(leaf.size() == PageSize::Huge);
            }
        });
    }
    Ok(sum)
}
