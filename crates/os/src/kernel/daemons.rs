// SPDX-License-Identifier: MIT OR Apache-2.0
//! What happens as time passes.

use nestwalk_mem::{Cpu, Nanoseconds, PageCount};

use super::reclaim::CLUSTER;
use crate::below::Below;
use crate::context::migrate;
use crate::context::placement::TableContext;
use crate::error::OsError;
use crate::kernel::Kernel;

impl Kernel {
    /// Lets daemons run up to `now`, since the kernel began: background reclaim and
    /// compaction, the table placement's and the memory manager's daemons. Time does not go back.
    ///
    /// # Errors
    /// When nothing below backs a frame.
    pub fn tick(&mut self, now: Nanoseconds, below: &mut dyn Below) -> Result<(), OsError> {
        self.state.now = self.state.now.max(now);
        self.reclaim_in_background(below)?;
        self.compact_in_background(below);
        let (cx, _) = self.context(Cpu(0), below);
        let mut inner = TableContext { state: cx.state, below: cx.below, cpu: cx.cpu };
        let placed = cx.tables.tick(&mut inner);
        self.settle(Cpu(0), below);
        placed?;
        let (mut cx, manager) = self.context(Cpu(0), below);
        manager.tick(&mut cx)?;
        self.settle(Cpu(0), below);
        Ok(())
    }

    /// kswapd: from the low watermark up to the high one.
    fn reclaim_in_background(&mut self, below: &mut dyn Below) -> Result<(), OsError> {
        if !std::mem::take(&mut self.state.background_wanted) {
            return Ok(());
        }
        self.state.counters.reclaims_background += 1;
        loop {
            let free = self.state.memory.free_frames();
            let want = PageCount(self.state.watermarks.high.0.saturating_sub(free.0).min(CLUSTER * 32));
            if want.0 == 0 || self.reclaim(want, Cpu(0), below)?.0 == 0 {
                return Ok(());
            }
        }
    }

    /// kcompactd.
    fn compact_in_background(&mut self, below: &mut dyn Below) {
        if let Some(order) = self.state.compaction_wanted.take() {
            self.state.counters.compactions_background += 1;
            migrate::compact(&mut self.state, below, order);
        }
    }
}
