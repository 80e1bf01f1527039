// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where what a source yields goes: into a trace, or to simulations that follow it.

use nestwalk_mem::Vpn;

use crate::stream::{ThreadId, WorkloadError};
use crate::trace::event::TraceEvent;
use crate::trace::recorder::Recorder;
use crate::trace::source::SourceAccess;

/// Takes a program's accesses and memory events as they come.
pub trait Sink {
    /// The thread that the capture calls `number`; `None` once there are more than 65,536.
    fn thread(&mut self, number: u32) -> Option<ThreadId>;

    /// The next accesses, by `thread`, which then executed `more` instructions that no access
    /// accounts for. They have passed [`SourceAccess::check_all`].
    ///
    /// # Errors
    /// When they cannot be taken.
    fn accesses(&mut self, thread: ThreadId, accesses: &[SourceAccess], more: u64) -> Result<(), WorkloadError>;

    /// A memory event that passed its check.
    ///
    /// # Errors
    /// When it cannot be taken.
    fn event(&mut self, event: &TraceEvent) -> Result<(), WorkloadError>;

    /// Pages that the kernel copied to or from for `thread` (`read`, `write`), in order, and
    /// whether it stored to them: a page's first touch may be among these.
    ///
    /// # Errors
    /// When they cannot be taken.
    fn copies(&mut self, thread: ThreadId, pages: &[(Vpn, bool)]) -> Result<(), WorkloadError>;
}

impl Sink for Recorder {
    fn thread(&mut self, number: u32) -> Option<ThreadId> {
        Self::thread(self, number)
    }

    fn accesses(&mut self, thread: ThreadId, accesses: &[SourceAccess], more: u64) -> Result<(), WorkloadError> {
        Self::accesses(self, thread, accesses, more)
    }

    fn event(&mut self, event: &TraceEvent) -> Result<(), WorkloadError> {
        Self::event(self, event)
    }

    fn copies(&mut self, thread: ThreadId, pages: &[(Vpn, bool)]) -> Result<(), WorkloadError> {
        pages.iter().try_for_each(|&(page, store)| self.touched(thread, page, store))
    }
}
