// SPDX-License-Identifier: MIT OR Apache-2.0
//! A kernel as what lies below another: the memory of a VM.

use nestwalk_mem::{Cpu, Frame, FrameRange, Vpn, VpnRange};

use crate::below::{Below, Hypercall, HypercallReply};
use crate::error::OsError;
use crate::kernel::Kernel;
use crate::state::process::ProcessId;

/// A VM's memory: one VMA of a process of the host.
pub struct HostMemory<'a> {
    /// The host.
    pub host: &'a mut Kernel,
    /// The VM's process in the host.
    pub process: ProcessId,
    /// Where in that process the guest's frame 0 lies.
    pub base: Vpn,
    /// The host's processor on which the guest runs now.
    pub cpu: Cpu,
    /// What lies below the host.
    pub below: &'a mut dyn Below,
}

impl HostMemory<'_> {
    /// The page of the VM's process at which the guest's `frame` lies.
    #[inline]
    pub fn page_of(&self, frame: Frame) -> Vpn {
        self.base + frame.0
    }

    fn pages_of(&self, frames: FrameRange) -> VpnRange {
        VpnRange::new(self.page_of(frames.start), frames.count)
    }

    /// Page by page, or leaf by leaf where the host has large ones.
    fn touch_range(&mut self, pages: VpnRange, store: bool) -> Result<(), OsError> {
        let mut page = pages.start;
        while page < pages.end {
            let span =
                self.host.backed_span(self.process, page, store).map_err(|source| self.not_backed(page, source))?;
            match span.0 {
                0 => self.touch_page(page, store)?,
                span => {
                    let end = pages.end.min(page + span);
                    if store && self.host.watches_stores() {
                        (page.0..end.0).for_each(|page| self.host.note_store(self.process, Vpn(page)));
                    }
                    page = end;
                }
            }
        }
        Ok(())
    }

    /// One page, which is what nearly all touches are.
    #[inline]
    fn touch_page(&mut self, page: Vpn, store: bool) -> Result<(), OsError> {
        match self.host.touch(self.process, page, store, self.cpu, self.below) {
            Ok(()) => Ok(()),
            Err(source) => Err(self.not_backed(page, source)),
        }
    }

    #[cold]
    #[inline(never)]
    fn not_backed(&self, page: Vpn, source: OsError) -> OsError {
        OsError::Host { frame: Frame(page.0 - self.base.0), source: Box::new(source) }
    }
}

impl Below for HostMemory<'_> {
    #[inline]
    fn touch(&mut self, frames: FrameRange, store: bool) -> Result<(), OsError> {
        if frames.count.0 == 1 {
            return self.touch_page(self.page_of(frames.start), store);
        }
        self.touch_range(self.pages_of(frames), store)
    }

    #[inline]
    fn epoch(&self) -> Option<u64> {
        Some(self.host.epoch())
    }

    fn hypercall(&mut self, call: Hypercall) -> HypercallReply {
        self.host.serve_hypercall(self.process, self.base, call, self.below)
    }
}
