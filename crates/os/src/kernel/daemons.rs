// SPDX-License-Identifier: MIT OR Apache-2.0
//! What happens as time passes.

use nestwalk_mem::{Cpu, Nanoseconds, PageCount};

use super::reclaim::{CLUSTER, PRIORITY_KSWAPD};
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
            if want.0 == 0 {
                self.state.memory.kswapd_sleeps();
                return Ok(());
            }
            if self.reclaim_down_to(PRIORITY_KSWAPD, want, Cpu(0), below)?.0 == 0 {
                return Ok(());
            }
        }
    }

    /// kcompactd: what was asked of it, or else what it does by itself (`kcompactd`).
    fn compact_in_background(&mut self, below: &mut dyn Below) {
        if let Some(order) = self.state.compaction_wanted.take() {
            self.state.counters.compactions_background += 1;
            migrate::compact(&mut self.state, below, order);
            self.state.proactive_at = self.state.now + CHECK_INTERVAL;
        }
        let proactiveness = u64::from(self.config.compaction_proactiveness);
        if proactiveness == 0 {
            return;
        }
        let (low, high) = score_watermarks(proactiveness);
        while self.state.proactive_at <= self.state.now {
            let before = self.state.memory.fragmentation_score();
            if before <= high {
                self.state.proactive_at = self.state.now + CHECK_INTERVAL;
                return;
            }
            self.state.counters.compactions_proactive += 1;
            migrate::compact_proactively(&mut self.state, below, low, Cpu(0));
            let progress = self.state.memory.fragmentation_score() < before;
            let defer = if progress { 0 } else { DEFER_SHIFT_MAX };
            self.state.proactive_at += Nanoseconds(CHECK_INTERVAL.0 << defer);
        }
    }
}

/// kcompactd looks at the fragmentation score this often (`HPAGE_FRAG_CHECK_INTERVAL_MSEC`).
pub(crate) const CHECK_INTERVAL: Nanoseconds = Nanoseconds::from_ms(500);
/// And this much less often, as a power of two, when it has not got the score down
/// (`COMPACT_MAX_DEFER_SHIFT`).
const DEFER_SHIFT_MAX: u32 = 6;

/// The score down to which it compacts, and the one above which it begins
/// (`fragmentation_score_wmark`).
fn score_watermarks(proactiveness: u64) -> (u64, u64) {
    let low = 100_u64.saturating_sub(proactiveness).max(5);
    (low, (low + 10).min(100))
}

#[cfg(test)]
mod tests {
    use nestwalk_mem::{Order, Vpn, VpnRange};

    use super::*;
    use crate::below::Bare;
    use crate::config::{KernelConfig, StartState};
    use crate::kernel::inhabit::free_huge_blocks as huge_blocks;
    use crate::state::process::ProcessId;
    use crate::state::vma::VmaFlags;

    /// 64 MiB, in each 2 MiB of which `frames` pages of the cache lie scattered.
    fn broken(proactiveness: u16, frames: u16, unmovable_permille: u16) -> Kernel {
        let mut config = KernelConfig::new(PageCount(16_384));
        config.compaction_proactiveness = proactiveness;
        config.start = StartState::Fragmented { blocks_permille: 1000, frames_per_block: frames, unmovable_permille };
        Kernel::new(&config).unwrap()
    }

    fn tick(kernel: &mut Kernel, ms: u64) {
        kernel.tick(Nanoseconds::from_ms(ms), &mut Bare).unwrap();
        kernel.check_invariants();
    }

    #[test]
    fn the_scores_are_those_of_linux() {
        let marks = [1, 10, 20, 95, 99, 100].map(score_watermarks);
        assert_eq!(marks, [(99, 100), (90, 100), (80, 90), (5, 15), (5, 15), (5, 15)]);
    }

    #[test]
    fn kcompactd_makes_blocks_before_they_are_asked_for() {
        let mut kernel = broken(20, 16, 0);
        assert_eq!((huge_blocks(kernel.memory()), kernel.memory().fragmentation_score()), (0, 100));
        tick(&mut kernel, 499);
        assert_eq!(kernel.counters().compactions_proactive, 0, "it looks twice a second");
        tick(&mut kernel, 500);
        let score = kernel.memory().fragmentation_score();
        assert!(score <= 80 && huge_blocks(kernel.memory()) > 0, "{score}");
        let done = *kernel.counters();
        assert_eq!((done.compactions_proactive, done.compactions_direct, done.compactions_background), (1, 0, 0));
        assert!(done.migrated > 0 && done.compaction_scanned > done.migrated);
        tick(&mut kernel, 60_000);
        assert_eq!(*kernel.counters(), done, "below the upper score it leaves memory alone");
    }

    #[test]
    fn without_proactiveness_it_waits_to_be_asked() {
        let mut kernel = broken(0, 16, 0);
        tick(&mut kernel, 60_000);
        assert_eq!((kernel.counters().migrated, kernel.memory().fragmentation_score()), (0, 100));
    }

    #[test]
    fn without_progress_it_is_put_off() {
        let mut kernel = broken(20, 16, 1000);
        tick(&mut kernel, 500);
        assert_eq!((kernel.counters().compactions_proactive, kernel.counters().migrated), (1, 0));
        tick(&mut kernel, 500 + 31_999);
        assert_eq!(kernel.counters().compactions_proactive, 1);
        tick(&mut kernel, 500 + 32_000);
        assert_eq!(kernel.counters().compactions_proactive, 2);
        assert_eq!(huge_blocks(kernel.memory()), 0);
    }

    #[test]
    fn what_is_asked_of_it_comes_first_and_the_interval_begins_anew() {
        let mut kernel = broken(20, 16, 0);
        tick(&mut kernel, 400);
        kernel.state.compaction_wanted = Some(Order::HUGE);
        tick(&mut kernel, 500);
        assert_eq!((kernel.counters().compactions_background, kernel.counters().compactions_proactive), (1, 0));
        tick(&mut kernel, 999);
        assert_eq!(kernel.counters().compactions_proactive, 0);
        tick(&mut kernel, 1000);
        assert_eq!(kernel.counters().compactions_proactive, 1);
    }

    #[test]
    fn pages_of_a_program_are_moved_and_stay_what_they_were() {
        let mut kernel = broken(100, 16, 0);
        let process: ProcessId = kernel.spawn(&mut Bare).unwrap();
        let range = VpnRange::new(Vpn(512), PageCount(1000));
        kernel.mmap(process, range, VmaFlags::ANONYMOUS, &mut Bare).unwrap();
        (512..1512).for_each(|page| drop(kernel.touch(process, Vpn(page), true, Cpu(0), &mut Bare)));
        kernel.take_invalidations().for_each(drop);
        tick(&mut kernel, 500);
        assert!(kernel.take_invalidations().count() > 0, "cores are told of what has moved");
        assert!((512..1512).all(|page| kernel.table(process).unwrap().translate(Vpn(page)).is_some()));
    }
}
