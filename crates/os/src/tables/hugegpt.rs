// SPDX-License-Identifier: MIT OR Apache-2.0
//! HugeGPT (Jia et al., PACT 2023): a guest keeps its page-table nodes together in 2 MiB regions,
//! and asks its host to back these by huge pages, so that the host walk to a guest node has one
//! step less.
//!
//! The pool is made when the first process is: 1 % of memory, taken as contiguous ranges. A node
//! that is freed is the first to be used again. An empty pool grows by a region, and falls back to
//! the buddy allocator if there is none. On bare metal, or on a host that does not know the
//! hypercalls, nothing is pooled and nodes are placed as stock Linux does.

use std::collections::BTreeMap;

use nestwalk_mem::counters::{Counter, list};
use nestwalk_mem::{Frame, FrameRange, Order, PageCount};
use serde::{Deserialize, Serialize};

use crate::below::{Hypercall, HypercallReply};
use crate::context::placement::{NodeKey, TableContext, TablePlacement};

/// Its parameters.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct HugeGptConfig {
    /// The pool's size at the start, in thousandths of memory (section 3.2: 1 %).
    pub pool_permille: u16,
}

impl Default for HugeGptConfig {
    fn default() -> Self {
        Self { pool_permille: 10 }
    }
}

nestwalk_mem::counters! {
    /// What HugeGPT counts.
    pub numbers HugeGptCounters {
        /// Regions of 2 MiB for nodes made.
        regions_made ["regions"],
        /// Regions without nodes given back.
        regions_given_back ["regions"],
        /// Regions made that the host backs by a huge page.
        huge_regions ["regions"],
        /// Nodes put into regions.
        placed ["nodes"],
        /// Nodes put elsewhere, for want of a free block of 2 MiB.
        fallbacks ["nodes"],
    }
}

/// What is known of the host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Host {
    NotAsked,
    Knows,
    DoesNot,
}

/// See the [module](self).
#[derive(Clone, Debug)]
pub struct HugeGpt {
    config: HugeGptConfig,
    host: Host,
    /// By number (frame / 512): frames of the region in which a node lies.
    regions: BTreeMap<u64, u16>,
    /// Frames of the pool in which no node lies, the one freed last at the end.
    free: Vec<Frame>,
    counters: HugeGptCounters,
}

const REGION: PageCount = PageCount(Order::HUGE.frames());

const fn region_of(frame: Frame) -> u64 {
    frame.0 >> Order::HUGE.0
}

impl HugeGpt {
    /// With no pool yet.
    pub fn new(config: HugeGptConfig) -> Self {
        Self {
            config,
            host: Host::NotAsked,
            regions: BTreeMap::new(),
            free: Vec::new(),
            counters: HugeGptCounters::default(),
        }
    }

    fn make_pool(&mut self, cx: &mut TableContext<'_>) {
        let wanted = cx.state.memory.frames().0 * u64::from(self.config.pool_permille) / 1000;
        for _ in 0..wanted.div_ceil(REGION.0) {
            if !self.grow(cx) {
                return;
            }
        }
    }

    /// One more region, backed by the host as hugely as it can (section 3.3). Whether there is one.
    fn grow(&mut self, cx: &mut TableContext<'_>) -> bool {
        if self.host == Host::DoesNot {
            return false;
        }
        let Some(range) = cx.alloc_range(REGION, Order::HUGE) else { return false };
        if cx.hypercall(Hypercall::PreferHuge(range)) == HypercallReply::Unsupported {
            self.host = Host::DoesNot;
            cx.state.memory.free_range(range, cx.cpu);
            return false;
        }
        self.host = Host::Knows;
        if cx.below.touch(range, true).is_err() {
            cx.state.memory.free_range(range, cx.cpu);
            return false;
        }
        if let HypercallReply::Done { frames, .. } = cx.hypercall(Hypercall::GatherHuge(range)) {
            self.counters.huge_regions += u64::from(frames == REGION);
        }
        self.counters.regions_made += 1;
        self.regions.insert(region_of(range.start), 0);
        // The lowest frame is taken first.
        self.free.extend((0..REGION.0).rev().map(|place| range.start + place));
        true
    }
}

impl TablePlacement for HugeGpt {
    fn name(&self) -> &'static str {
        "hugegpt"
    }

    fn place(&mut self, cx: &mut TableContext<'_>, _: NodeKey) -> Option<Frame> {
        if self.host == Host::NotAsked {
            self.make_pool(cx);
        }
        if self.free.is_empty() {
            self.grow(cx);
        }
        let Some(frame) = self.free.pop() else {
            self.counters.fallbacks += 1;
            return cx.state.alloc_kernel(cx.cpu);
        };
        self.counters.placed += 1;
        *self.regions.entry(region_of(frame)).or_default() += 1;
        Some(frame)
    }

    fn release(&mut self, cx: &mut TableContext<'_>, _: NodeKey, frame: Frame) {
        match self.regions.get_mut(&region_of(frame)) {
            Some(used) => {
                *used -= 1;
                self.free.push(frame);
            }
            None => cx.state.memory.free(frame, Order::PAGE, cx.cpu),
        }
    }

    fn pressure(&mut self, cx: &mut TableContext<'_>, want: PageCount) -> PageCount {
        let mut given = PageCount(0);
        while given < want
            && let Some(region) = self.regions.iter().find(|(_, used)| **used == 0).map(|(region, _)| *region)
        {
            self.regions.remove(&region);
            self.free.retain(|&frame| region_of(frame) != region);
            cx.state.memory.free_range(FrameRange::new(Frame(region << Order::HUGE.0), REGION), cx.cpu);
            self.counters.regions_given_back += 1;
            given.0 += REGION.0;
        }
        given
    }

    fn reserved(&self) -> PageCount {
        PageCount(self.free.len() as u64)
    }

    fn counters(&self) -> Vec<Counter> {
        list(&self.counters)
    }
}

#[cfg(test)]
mod tests;
