// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memories that were used before the scenario begins.
//!
//! [`PhysicalMemory::fragment`] makes the Frag-50 and Frag-100 of Zhu, Cox and Rixner (ATC 2020): a
//! share of the 2 MiB blocks is not free as a whole. [`PhysicalMemory::age`] leaves the free lists
//! as a long history of programs does: short and in no order, so that even a program alone gets
//! scattered frames.

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use crate::addr::{Frame, PageCount};
use crate::prefetch::prefetch;

use super::table::{PAGEBLOCK, PAGEBLOCK_ORDER, Pfn32, State};
use super::{Cpu, InUse, MigrateType, Order, Owner, PhysicalMemory};

/// How [`PhysicalMemory::fragment`] fills a memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fragmentation {
    /// Of 1000 free 2 MiB blocks, how many get frames that stay allocated: 500 for Frag-50, 1000
    /// for Frag-100.
    pub blocks_permille: u16,
    /// How many frames of each such block are allocated, 1 to 512.
    pub frames_per_block: u16,
    /// Of 1000 such blocks, how many have unmovable frames ([`Owner::Kernel`]), so that compaction
    /// cannot empty them. The frames of the others are [`Owner::Cache`], which can be moved or
    /// dropped.
    pub unmovable_permille: u16,
    /// Chooses blocks and frames.
    pub seed: u64,
}

/// How [`PhysicalMemory::age`] uses a memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Aging {
    /// Of 1000 free frames, how many are allocated by the programs of the past.
    pub used_permille: u16,
    /// Of 1000 of those, how many are still allocated afterwards, as [`Owner::Cache`].
    pub kept_permille: u16,
    /// Of 1000 frames, how many the kernel itself had at once (page tables, slabs).
    pub kernel_permille: u16,
    /// Of 1000 of those, how many it still has, as [`Owner::Kernel`].
    pub kernel_kept_permille: u16,
    /// Chooses the order of frees and what is kept.
    pub seed: u64,
}

/// A uniform number below `bound`, by multiplication; the bias is below 2^-32 for bounds up to
/// 2^32.
pub(super) fn below(rng: &mut Xoshiro256PlusPlus, bound: u64) -> u64 {
    ((u128::from(rng.next_u64()) * u128::from(bound)) >> 64) as u64
}

/// Puts `items` into random order (Fisher and Yates). The random places are drawn some swaps before
/// their own, so that they are fetched by then.
pub(super) fn shuffle<T>(items: &mut [T], rng: &mut Xoshiro256PlusPlus) {
    const AHEAD: usize = 32;
    let mut places = [0; AHEAD];
    let mut rest = items.len();
    while rest > 1 {
        let some = AHEAD.min(rest - 1);
        for (last, place) in (1..rest).rev().zip(&mut places[..some]) {
            *place = below(rng, last as u64 + 1) as usize;
            prefetch(&items[*place]);
        }
        for (last, &place) in (1..rest).rev().zip(&places[..some]) {
            items.swap(last, place);
        }
        rest -= some;
    }
}

impl PhysicalMemory {
    /// Allocates scattered frames for good, so that a share of the 2 MiB blocks that are free as a
    /// whole no longer is. Says how many blocks.
    ///
    /// # Panics
    /// If a share is above 1000 or the frames of a block are not 1 to 512.
    pub fn fragment(&mut self, how: &Fragmentation) -> u64 {
        assert!(how.blocks_permille <= 1000 && how.unmovable_permille <= 1000, "a share is at most 1000 per mille");
        assert!((1..=PAGEBLOCK).contains(&how.frames_per_block.into()), "a 2 MiB block has 512 frames");
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(how.seed);
        self.drain();
        let mut blocks: Vec<Pfn32> = (0..self.zone.table.len())
            .step_by(PAGEBLOCK as usize)
            .filter(|&pfn| self.zone.buddy_of(pfn).is_some_and(|(_, order)| order >= PAGEBLOCK_ORDER))
            .collect();
        shuffle(&mut blocks, &mut rng);
        let chosen = blocks.len() * usize::from(how.blocks_permille) / 1000;
        let unmovable = chosen * usize::from(how.unmovable_permille) / 1000;
        let mut places: Vec<Pfn32> = (0..PAGEBLOCK).collect();
        for (index, &block) in blocks[..chosen].iter().enumerate() {
            let owner = if index < unmovable { Owner::Kernel } else { Owner::Cache };
            shuffle(&mut places, &mut rng);
            for &place in &places[..usize::from(how.frames_per_block)] {
                self.pin(block + place, owner);
            }
        }
        chosen as u64
    }

    /// Allocates one frame out of the free block that it lies in.
    fn pin(&mut self, pfn: Pfn32, owner: Owner) {
        let (start, order) = self.zone.buddy_of(pfn).expect("the block was free as a whole");
        self.take_block(start, order);
        for half in (0..order).rev() {
            let other = (pfn >> half ^ 1) << half;
            self.free_to_buddy(other, half);
        }
        self.set_owner(Frame(pfn.into()), owner);
    }

    /// Allocates a share of the free frames, one by one, by all processors in turn, and frees most
    /// of them in random order: first those of programs, then the kernel's own, which come out of
    /// what the programs have left and so lie in pageblocks of their own. Takes some nine bytes a
    /// frame for the time being. Says how many frames stay allocated.
    ///
    /// # Panics
    /// If a share is above 1000.
    pub fn age(&mut self, how: &Aging) -> InUse {
        let shares = [how.used_permille, how.kept_permille, how.kernel_permille, how.kernel_kept_permille];
        assert!(shares.iter().all(|&share| share <= 1000), "a share is at most 1000 per mille");
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(how.seed);
        let count = self.free_frames().0 * u64::from(how.used_permille) / 1000;
        let cache = self.pass(MigrateType::Movable, count, how.kept_permille, Owner::Cache, &mut rng);
        let count = self.frames().0 * u64::from(how.kernel_permille) / 1000;
        let kernel = self.pass(MigrateType::Unmovable, count, how.kernel_kept_permille, Owner::Kernel, &mut rng);
        InUse { cache, kernel }
    }

    /// Allocates up to `count` frames and frees all but a share of them, which `owner` keeps. Says
    /// how many these are.
    // Always: with `kind` known, ageing takes 2 % fewer instructions.
    #[inline(always)]
    pub(super) fn pass(
        &mut self,
        kind: MigrateType,
        count: u64,
        kept_permille: u16,
        owner: Owner,
        rng: &mut Xoshiro256PlusPlus,
    ) -> PageCount {
        if count == 0 {
            // To free nothing at once goes over all frames.
            return PageCount(0);
        }
        let cpus = self.cpus.len() as u64;
        let cpu_of = |index: u64| Cpu((index % cpus) as u16);
        let mut frames: Vec<Pfn32> = (0..count)
            .map_while(|index| self.alloc(Order::PAGE, kind, cpu_of(index)))
            .map(|frame| frame.0 as Pfn32)
            .collect();
        shuffle(&mut frames, rng);
        let kept = (frames.len() as u64 * u64::from(kept_permille) / 1000) as usize;
        for &pfn in &frames[..kept] {
            self.set_owner(Frame(pfn.into()), owner);
        }
        self.free_in_turn(&frames[kept..]);
        PageCount(kept as u64)
    }

    /// The share of 2 MiB blocks, in thousandths, that are not free as a whole: 0 for Frag-0, 1000
    /// for Frag-100.
    pub fn broken_blocks_permille(&self) -> u16 {
        let blocks = u64::from(self.zone.table.len() / PAGEBLOCK);
        let whole = (0..self.zone.table.len())
            .step_by(PAGEBLOCK as usize)
            .filter(|&pfn| {
                let (_, head) = self.zone.table.find_head(pfn);
                head.state() == State::Free && head.order() >= PAGEBLOCK_ORDER
            })
            .count() as u64;
        ((blocks - whole) * 1000 / blocks) as u16
    }
}
