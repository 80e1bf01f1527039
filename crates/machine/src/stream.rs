// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a program does next: its workload's steps, each taken in parts.

use std::ops::Range;

use nestwalk_mem::Vpn;
use nestwalk_mmu::Accesses;
use nestwalk_workload::{Batch, Step, ThreadId, Workload};

use crate::accesses::part_of;
use crate::error::MachineError;
use crate::spread::Spread;

/// What is known of a stretch as a whole only, shared out evenly as the stretch goes on.
#[derive(Clone, Copy, Debug, Default)]
struct Shares {
    instructions: Spread,
    absorbed_stores: Spread,
    /// Accesses (or touches) of the program that the shares taken so far were for.
    done: u64,
}

/// The share of a part of a stretch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Share {
    /// Accesses (or touches) of the program that the part stands for.
    pub represented: u64,
    pub instructions: u64,
    /// Stores among the accesses that a filter absorbed.
    pub absorbed_stores: u64,
}

impl Shares {
    fn new(whole: Share) -> Self {
        let Share { represented, instructions, absorbed_stores } = whole;
        let over = |total| Spread::new(total, represented);
        Self { instructions: over(instructions), absorbed_stores: over(absorbed_stores), done: 0 }
    }

    fn take(&mut self, represented: u64) -> Share {
        let instructions = self.instructions.of(self.done, represented);
        let absorbed_stores = self.absorbed_stores.of(self.done, represented);
        self.done += represented;
        Share { represented, instructions, absorbed_stores }
    }
}

/// See the [module's documentation](self).
pub(crate) struct Stream {
    workload: Box<dyn Workload>,
    batch: Batch,
    /// The step that is under way.
    pending: Option<Step>,
    /// Accesses or touches of the batch that are done.
    done: usize,
    /// Where the present stretch ends; the batch is one stretch unless it is cut.
    end: usize,
    of_batch: Shares,
    of_stretch: Shares,
}

impl Stream {
    /// The stream of `workload`, from its beginning.
    pub fn new(workload: Box<dyn Workload>) -> Self {
        let (batch, shares) = (Batch::default(), Shares::default());
        Self { workload, batch, pending: None, done: 0, end: 0, of_batch: shares, of_stretch: shares }
    }

    /// Begins anew, as `workload`.
    pub fn restart(&mut self, workload: Box<dyn Workload>) {
        self.workload = workload;
        self.pending = None;
    }

    /// Its workload.
    pub fn workload(&self) -> &dyn Workload {
        &*self.workload
    }

    /// The warm-up has been long enough.
    pub fn end_warm_up(&mut self) {
        self.workload.end_warm_up();
    }

    /// The step that is under way; the next one if none is.
    ///
    /// # Errors
    /// When the workload cannot be read on.
    pub fn fetch(&mut self) -> Result<Step, MachineError> {
        if let Some(step) = self.pending {
            return Ok(step);
        }
        let step = self.workload.next(&mut self.batch)?;
        let represented = self.batch.represented() + self.batch.touches.len() as u64;
        let Batch { instructions, absorbed_stores, .. } = self.batch;
        let shares = Shares::new(Share { represented, instructions, absorbed_stores });
        (self.pending, self.of_batch, self.of_stretch) = (Some(step), shares, shares);
        (self.done, self.end) = (0, self.length());
        Ok(step)
    }

    /// The step that is under way, if one is.
    pub fn pending(&self) -> Option<Step> {
        self.pending
    }

    /// That step is done.
    pub fn finish(&mut self) {
        self.pending = None;
    }

    /// The thread of the batch.
    pub fn thread(&self) -> ThreadId {
        self.batch.thread
    }

    /// First touches of the batch.
    pub fn touches(&self, part: Range<usize>) -> &[(Vpn, bool)] {
        &self.batch.touches[part]
    }

    /// Accesses of the batch.
    pub fn accesses(&self, part: Range<usize>) -> Accesses<'_> {
        part_of(&self.batch, part)
    }

    /// Accesses of the program that the batch stands for.
    pub fn represented(&self) -> u64 {
        self.batch.represented()
    }

    /// Requests that end in the batch, and its accesses or touches before the end of each.
    pub fn requests(&self) -> &[u64] {
        &self.batch.requests
    }

    /// Instructions of the whole batch.
    pub fn instructions(&self) -> u64 {
        self.batch.instructions
    }

    /// Accesses of the program that the stretches cut off so far stand for.
    pub fn represented_so_far(&self) -> u64 {
        self.of_batch.done
    }

    /// Whether something of the batch is left.
    pub fn has_more(&self) -> bool {
        self.pending.is_some() && self.done < self.length()
    }

    fn length(&self) -> usize {
        self.batch.accesses.len() + self.batch.touches.len()
    }

    /// Whether something of the present stretch is left.
    pub fn in_stretch(&self) -> bool {
        self.pending.is_some() && self.done < self.end
    }

    /// Cuts off the next accesses of the batch, as many as stand for `wanted`, as a stretch of its
    /// own.
    pub fn cut(&mut self, wanted: u64) -> Share {
        let (count, represented) = self.accesses(self.done..self.length()).standing_for(wanted);
        let share = self.of_batch.take(represented);
        (self.end, self.of_stretch) = (self.done + count, Shares::new(share));
        share
    }

    /// The next touches of the stretch, at most `most`.
    pub fn take_touches(&mut self, most: usize) -> (Range<usize>, Share) {
        let count = most.min(self.end - self.done);
        self.take(count, count as u64)
    }

    /// The next accesses of the stretch, as many as stand for `wanted`.
    pub fn take_accesses(&mut self, wanted: u64) -> (Range<usize>, Share) {
        let (count, represented) = self.accesses(self.done..self.end).standing_for(wanted);
        self.take(count, represented)
    }

    fn take(&mut self, count: usize, represented: u64) -> (Range<usize>, Share) {
        let from = self.done;
        self.done += count;
        if self.done >= self.length() {
            self.pending = None;
        }
        (from..self.done, self.of_stretch.take(represented))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nestwalk_mem::{Access, Gva, PageCount};
    use nestwalk_workload::{WorkloadError, WorkloadFacts};

    /// One batch of ten accesses, 25 instructions and 4 stores that were absorbed.
    struct Ten(bool);

    impl Workload for Ten {
        fn facts(&self) -> WorkloadFacts {
            WorkloadFacts {
                name: "ten".into(),
                footprint: PageCount(1),
                accesses: Some(10),
                threads: 1,
                warms_until_told: false,
                kernel_half: false,
                tells_dependences: false,
                modelled: None,
            }
        }

        fn next(&mut self, batch: &mut Batch) -> Result<Step, WorkloadError> {
            batch.clear();
            if std::mem::replace(&mut self.0, true) {
                return Ok(Step::End);
            }
            batch.accesses.extend((0..10).map(|n| Access::load(Gva(n * 64))));
            (batch.instructions, batch.absorbed_stores) = (25, 4);
            Ok(Step::Accesses)
        }
    }

    #[test]
    fn parts_of_a_batch_add_up_to_it_however_it_is_cut() {
        let mut stream = Stream::new(Box::new(Ten(false)));
        assert_eq!(stream.fetch().unwrap(), Step::Accesses);
        let mut sum = Share::default();
        for cut in [4, 100] {
            let whole = stream.cut(cut);
            let mut parts = Share::default();
            while stream.in_stretch() {
                let (part, share) = stream.take_accesses(3);
                assert_eq!(part.len() as u64, share.represented);
                parts.represented += share.represented;
                parts.instructions += share.instructions;
                parts.absorbed_stores += share.absorbed_stores;
            }
            assert_eq!(parts, whole);
            sum.represented += whole.represented;
            sum.instructions += whole.instructions;
            sum.absorbed_stores += whole.absorbed_stores;
        }
        assert_eq!(sum, Share { represented: 10, instructions: 25, absorbed_stores: 4 });
        assert_eq!(stream.fetch().unwrap(), Step::End);
    }

    #[test]
    fn a_step_stays_until_it_is_done() {
        let mut stream = Stream::new(Box::new(Ten(false)));
        stream.fetch().unwrap();
        assert_eq!(stream.take_accesses(7).0, 0..7);
        assert_eq!(stream.fetch().unwrap(), Step::Accesses);
        assert_eq!(stream.take_accesses(7).0, 7..10);
        assert_eq!(stream.pending(), None);
    }
}
