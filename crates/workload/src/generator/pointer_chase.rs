// SPDX-License-Identifier: MIT OR Apache-2.0
//! `pointer_chase`: each load's value is the next load's address. The nodes form one cycle in
//! random order; node `k` of the cycle is a permutation's image of `k`, so the cycle is computed
//! and never stored. Threads start evenly spaced in it.

use nestwalk_mem::{Access, Dependence, PageCount, Vpn};

use super::bijection::{Bijection, mix};
use super::config::{impossible, parameters};
use super::memory::{MmapArea, Region, Sweep};
use super::program::Program;
use crate::stream::WorkloadError;

/// Instructions of a step (assumed): the load, a count and a branch.
const INSTRUCTIONS_PER_STEP: u64 = 3;

parameters! {
    /// Dependent loads in one random cycle.
    PointerChaseConfig {
        /// Bytes from node to node: 64 visits every line, 4096 every page. A power of two from 8 to
        /// 2 MiB.
        stride: u64 = 64,
    }
}

pub(super) struct PointerChase {
    nodes: Region,
    stride: u64,
    count: u64,
    order: Bijection,
    sweep: Sweep,
    /// Position of each thread in the cycle.
    positions: Vec<u64>,
}

impl PointerChase {
    pub(super) fn new(config: &PointerChaseConfig) -> Result<Self, WorkloadError> {
        config.common().check(Self::NAME)?;
        let stride = config.stride;
        if !stride.is_power_of_two() || !(8..=2 << 20).contains(&stride) {
            return Err(impossible(Self::NAME, format!("stride = {stride}: a power of two from 8 to 2097152 (2 MiB)")));
        }
        let nodes = MmapArea::new().map(config.footprint);
        let count = nodes.bytes() / stride;
        if count == 0 {
            return Err(impossible(Self::NAME, format!("stride = {stride}: larger than the footprint")));
        }
        let threads = u64::from(config.threads);
        Ok(Self {
            nodes,
            stride,
            count,
            order: Bijection::new(count, mix(config.seed)),
            sweep: Sweep::new(vec![vec![nodes]], config.threads),
            positions: (0..threads).map(|thread| count * thread / threads).collect(),
        })
    }
}

impl Program for PointerChase {
    const NAME: &'static str = "pointer_chase";
    const TELLS_DEPENDENCES: bool = true;

    fn regions(&self) -> Vec<Region> {
        vec![self.nodes]
    }

    fn footprint(&self) -> PageCount {
        PageCount(self.nodes.pages.len())
    }

    fn touch(&mut self, thread: u16, touches: &mut Vec<(Vpn, bool)>, most: usize) {
        self.sweep.touch(thread, touches, most);
    }

    fn fill(&mut self, thread: u16, accesses: &mut Vec<Access>, most: usize) -> u64 {
        let position = &mut self.positions[usize::from(thread)];
        let room = most - accesses.len();
        accesses.extend((0..room).map(|_| {
            let node = self.order.apply(*position);
            *position = if *position + 1 == self.count { 0 } else { *position + 1 };
            Access::load(self.nodes.at(node * self.stride)).depending(Dependence::After)
        }));
        room as u64 * INSTRUCTIONS_PER_STEP
    }
}
