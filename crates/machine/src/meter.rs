// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which program the kernels worked for: their counters are read after each program's turn, and
//! what is new belongs to that program.

use nestwalk_mem::Cycles;
use nestwalk_os::OsCounters;

use crate::chain::KernelChain;
use crate::stack::Stack;
use crate::timing::CostWeights;

/// What kernels did for one program, by floor of its chain, bottom first.
pub(crate) type Work = [OsCounters; KernelChain::DEPTH_MAX];

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Meter {
    weights: CostWeights,
    /// What each kernel had counted when it was read last.
    seen: Vec<OsCounters>,
}

impl Meter {
    /// Reads nothing yet: the kernels' work so far belongs to the first program that is read for.
    pub fn new(weights: CostWeights) -> Self {
        Self { weights, seen: Vec::new() }
    }

    /// Adds to `work` what the kernels of `chain` did since they were last read. Returns its cost.
    pub fn read(&mut self, stack: &Stack, chain: &KernelChain, work: &mut Work) -> Cycles {
        let mut cycles = 0;
        for (layer, floor) in chain.floors().iter().enumerate() {
            if self.seen.len() <= floor.kernel {
                self.seen.resize(floor.kernel + 1, OsCounters::default());
            }
            let weights = self.weights.of(faults_exit(stack, chain, layer));
            let now = stack.kernel(floor).counters();
            work[layer].take_news(now, &mut self.seen[floor.kernel], |counter, more| cycles += more * weights[counter]);
        }
        Cycles(cycles)
    }

    /// The cost of one event of the counter at that place: of the event, and of the exit that comes
    /// with it under a guest.
    pub fn costs(&self, counter: usize, under_guest: bool) -> [u64; 2] {
        self.weights.parts(counter, under_guest)
    }

    /// What `work` of a program on `chain` cost.
    pub fn cycles(&self, stack: &Stack, chain: &KernelChain, work: &Work) -> Cycles {
        let layers = work.iter().take(chain.depth()).enumerate();
        layers.map(|(layer, done)| self.weights.cycles(done, faults_exit(stack, chain, layer))).sum()
    }
}

/// Whether each fault that the kernel of `layer` takes is a VM exit of its own. Under shadow paging
/// it is part of the exit of the fill that needs it.
#[inline]
pub(crate) fn faults_exit(stack: &Stack, chain: &KernelChain, layer: usize) -> bool {
    layer < chain.top() && !(chain.depth() == 2 && stack.shadows(chain))
}

/// What was done after `earlier`, a copy of the same program's work.
pub(crate) fn since(work: &Work, earlier: &Work) -> Work {
    std::array::from_fn(|layer| work[layer].since(&earlier[layer]))
}
