// SPDX-License-Identifier: MIT OR Apache-2.0
//! The host's side of hypercalls.

use nestwalk_mem::{FrameRange, PageCount, Vpn, VpnRange};

use crate::below::{Below, Hypercall, HypercallReply};
use crate::kernel::Kernel;
use crate::kernel::madvise::Advice;
use crate::state::process::ProcessId;

impl Kernel {
    /// Does what the guest in `process`, whose memory begins at page `base`, asks for. A guest may
    /// ask for anything: frames that it does not have are refused.
    pub fn serve_hypercall(
        &mut self,
        process: ProcessId,
        base: Vpn,
        call: Hypercall,
        below: &mut dyn Below,
    ) -> HypercallReply {
        if !self.config.hypercalls {
            return HypercallReply::Unsupported;
        }
        let (Hypercall::PreferHuge(frames) | Hypercall::GatherHuge(frames) | Hypercall::MakeContiguous(frames)) = call;
        let done = |frames: PageCount| HypercallReply::Done { frames, base: None };
        let Some(pages) = self.guest_pages(process, base, frames) else { return done(PageCount(0)) };
        match call {
            Hypercall::PreferHuge(_) => match self.madvise(process, pages, Advice::HugePage, below) {
                Ok(()) => done(frames.count),
                Err(_) => done(PageCount(0)),
            },
            Hypercall::GatherHuge(_) => done(self.collapse_range(process, pages, below).unwrap_or_default()),
            Hypercall::MakeContiguous(_) => match self.make_contiguous(process, pages, below) {
                Ok(base) => HypercallReply::Done { frames: frames.count, base: Some(base) },
                Err(_) => done(PageCount(0)),
            },
        }
    }

    /// The pages of the VM's process at which `frames` lie, if they are all its memory.
    fn guest_pages(&self, process: ProcessId, base: Vpn, frames: FrameRange) -> Option<VpnRange> {
        let start = base.0.checked_add(frames.start.0)?;
        let end = start.checked_add(frames.count.0)?;
        let pages = VpnRange { start: Vpn(start), end: Vpn(end) };
        let space = self.state.processes.get(process).ok()?;
        (!pages.is_empty() && space.vmas.cover(pages)).then_some(pages)
    }
}
