// SPDX-License-Identifier: MIT OR Apache-2.0
//! ASAP's range registers of each core, kept as the kernels of the program on it want them.

use nestwalk_mem::Frame;
use nestwalk_mmu::{Asap, Core, SortedNodes};
use nestwalk_os::{ProcessId, TableRegion};

use crate::chain::{Floor, KernelChain};
use crate::stack::Stack;

/// Keeps the range registers of a core as the kernels of the program that runs on it want them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Follower {
    loaded: Option<Loaded>,
}

/// Of which program's tables the registers were loaded last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Loaded {
    /// Its lowest and its topmost kernel, with the processes there.
    processes: [(usize, ProcessId); 2],
    /// The generations of these kernels' regions then.
    generations: [u64; 2],
}

impl Follower {
    /// Reloads the registers of `core` if another program runs there now, or regions have changed.
    #[inline]
    pub fn follow(&mut self, stack: &Stack, chain: &KernelChain, core: &mut Core<Asap>) {
        let ends = [*chain.bottom_floor(), *chain.top_floor()];
        let now = Some(Loaded {
            processes: ends.map(|floor| (floor.kernel, floor.process)),
            generations: ends.map(|floor| stack.kernel(&floor).table_regions_generation()),
        });
        if self.loaded != now {
            self.loaded = now;
            load(stack, chain, core);
        }
    }
}

#[cold]
fn load(stack: &Stack, chain: &KernelChain, core: &mut Core<Asap>) {
    let regions = |floor: &Floor| stack.kernel(floor).table_regions(floor.process);
    let sorted = |region: &TableRegion, base: Frame| SortedNodes {
        pages: region.pages,
        level: region.level,
        base: base.address().into(),
    };
    let (bottom, top) = (chain.bottom_floor(), chain.top_floor());
    let here: Vec<_> = regions(bottom).iter().map(|region| sorted(region, region.base)).collect();
    let (guest, host) = if chain.depth() == 1 {
        (here, Vec::new())
    } else {
        let in_host = |region: &TableRegion| Some(sorted(region, region.below?));
        (regions(top).iter().filter_map(in_host).collect(), here)
    };
    core.accelerator_mut().load(&guest, &host, bottom.base);
}
