// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memories of which it is known how many free blocks of each order they have.
//!
//! Every Linux says so (`/proc/buddyinfo`), and it decides on how many runs of neighbouring frames
//! a program's pages lie: the allocator hands out the smallest blocks first. Where blocks lie it
//! does not decide, so that is random here: of all memories with these blocks each is as likely as
//! any other.

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use crate::addr::PageCount;

use super::age::{below, shuffle};
use super::table::{Kind, MAX_ORDER, Pfn32, State, Table};
use super::zone::Zone;
use super::{FrameUse, InUse, MigrateType, Order, Owner, PhysicalMemory};

/// Orders of blocks: 4 KiB to 4 MiB.
const ORDERS: usize = MAX_ORDER as usize + 1;

/// What is free of a memory, and what its kernel had.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BuddyInfo {
    /// Free blocks of each order, 4 KiB first. What is in none is in use, as [`Owner::Cache`].
    pub free_blocks: [u64; ORDERS],
    /// Of 1000 frames of the memory, how many of these the kernel itself then took: page tables,
    /// slabs.
    pub kernel_permille: u16,
    /// Of 1000 of those, how many it still has, as [`Owner::Kernel`].
    pub kernel_kept_permille: u16,
    /// Chooses where blocks lie, and what the kernel keeps.
    pub seed: u64,
}

impl BuddyInfo {
    /// The largest order of which a memory of so many `frames` cannot have as many blocks, of which
    /// no two are halves of a larger one; `None` if it can have all.
    pub fn too_many(frames: u64, free_blocks: &[u64; ORDERS]) -> Option<Order> {
        let mut room = frames >> MAX_ORDER;
        for order in (0..=MAX_ORDER).rev() {
            let wanted = free_blocks[usize::from(order)];
            if wanted > room {
                return Some(Order(order));
            }
            // What is larger has two halves each; one at most of each pair can be a block.
            room = if order == MAX_ORDER { room - wanted } else { 2 * room - wanted };
        }
        None
    }
}

/// Puts `count` of `items`, each choice as likely as any other, to the front.
fn choose<T>(items: &mut [T], count: usize, rng: &mut Xoshiro256PlusPlus) {
    for at in 0..count {
        items.swap(at, at + below(rng, (items.len() - at) as u64) as usize);
    }
}

/// Places for `free_blocks` in a memory of so many `frames`: first frame and order of each, the
/// largest first.
fn places(frames: Pfn32, free_blocks: &[u64; ORDERS], rng: &mut Xoshiro256PlusPlus) -> Vec<(Pfn32, u8)> {
    let mut free = Vec::with_capacity(free_blocks.iter().sum::<u64>() as usize);
    // Blocks of the order before of which nothing is known yet.
    let mut vacant: Vec<Pfn32> = (0..frames).step_by(1 << MAX_ORDER).collect();
    let whole = free_blocks[usize::from(MAX_ORDER)] as usize;
    choose(&mut vacant, whole, rng);
    free.extend(vacant.drain(..whole).map(|pfn| (pfn, MAX_ORDER)));
    for order in (0..MAX_ORDER).rev() {
        let wanted = free_blocks[usize::from(order)] as usize;
        choose(&mut vacant, wanted, rng);
        let mut halves = Vec::with_capacity(2 * vacant.len() - wanted);
        for (index, pfn) in vacant.into_iter().enumerate() {
            let pair = [pfn, pfn + (1 << order)];
            if index < wanted {
                let which = usize::from(rng.next_u64() >> 63 == 1);
                free.push((pair[which], order));
                halves.push(pair[1 - which]);
            } else {
                halves.extend(pair);
            }
        }
        vacant = halves;
    }
    free
}

impl PhysicalMemory {
    /// Becomes a memory with these free blocks, whose lists are in random order. What was here
    /// before is forgotten; watermarks stay. Says how many frames are in use.
    ///
    /// # Panics
    /// If a share is above 1000, or there are [too many](BuddyInfo::too_many) blocks.
    pub fn lay_out(&mut self, how: &BuddyInfo) -> InUse {
        assert!(how.kernel_permille <= 1000 && how.kernel_kept_permille <= 1000, "a share is at most 1000 per mille");
        assert_eq!(BuddyInfo::too_many(self.frames().0, &how.free_blocks), None, "so many blocks cannot be free");
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(how.seed);
        let all = self.zone.table.len();
        self.drain();
        let mut free = places(all, &how.free_blocks, &mut rng);
        free.sort_unstable();
        let mut table = Table::new(all);
        let (mut at, mut cache) = (0, 0);
        for &(pfn, order) in free.iter().chain(&[(all, 0)]) {
            table.occupy(at..pfn, Owner::Cache);
            cache += u64::from(pfn - at);
            at = pfn + (1 << order);
        }
        shuffle(&mut free, &mut rng);
        self.zone = Zone::of_blocks(table, &free, self.zone.nofragment);
        self.allocated = cache;
        let count = self.frames().0 * u64::from(how.kernel_permille) / 1000;
        let kernel = self.pass(MigrateType::Unmovable, count, how.kernel_kept_permille, Owner::Kernel, &mut rng);
        InUse { cache: PageCount(cache), kernel }
    }

    /// What would have to be [laid out](Self::lay_out) so that as much is free as here, in blocks
    /// of the same orders. Of pageblocks that are the kernel's own, all but what users have there
    /// counts as free: that is where the kernel takes them from.
    pub fn buddyinfo(&self) -> BuddyInfo {
        let permille = |part: u64, whole: u64| (1000 * part).checked_div(whole).unwrap_or(0) as u16;
        let mut free_blocks = [0; ORDERS];
        let (mut taken, mut kept) = (0, 0);
        for (pfn, head) in self.heads() {
            let kind = self.zone.table.block(pfn).kind;
            if kind == Kind::Movable && head.state() != State::Allocated {
                free_blocks[usize::from(head.order())] += 1;
            } else if kind == Kind::Unmovable {
                for (class, frames) in self.classes(pfn, head) {
                    taken += if class == FrameUse::Cache as u64 { 0 } else { frames };
                    kept += if class == FrameUse::Kernel as u64 { frames } else { 0 };
                }
            }
        }
        free_blocks[usize::from(MAX_ORDER)] += taken >> MAX_ORDER;
        BuddyInfo {
            free_blocks,
            kernel_permille: permille(taken, self.frames().0),
            kernel_kept_permille: permille(kept, taken),
            seed: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{Cpu, MemoryConfig};
    use super::*;
    use crate::addr::Frame;

    const FRAMES: u64 = 1 << 13;

    fn memory() -> PhysicalMemory {
        PhysicalMemory::new(&MemoryConfig::new(PageCount(FRAMES), 2)).unwrap()
    }

    fn laid_out(free_blocks: [u64; ORDERS], seed: u64) -> PhysicalMemory {
        let mut memory = memory();
        let in_use = memory.lay_out(&BuddyInfo { free_blocks, seed, ..BuddyInfo::default() });
        assert_eq!(in_use.cache.0 + memory.free_frames().0, FRAMES);
        memory
    }

    proptest! {
        #[test]
        fn as_many_blocks_are_free_as_are_asked_for_if_that_can_be(
            shares in prop::array::uniform11(0..=100_u64),
            seed: u64,
        ) {
            // A share of what there is still room for, the largest first.
            let mut free_blocks = [0; ORDERS];
            for order in (0..ORDERS).rev() {
                let mut most = free_blocks;
                most[order] = FRAMES;
                while BuddyInfo::too_many(FRAMES, &most).is_some() {
                    most[order] -= 1;
                }
                free_blocks[order] = most[order] * shares[order] / 100;
            }
            let mut memory = laid_out(free_blocks, seed);
            memory.check_invariants();
            prop_assert_eq!(memory.free_blocks(), free_blocks);
            prop_assert_eq!(memory.buddyinfo(), BuddyInfo { free_blocks, ..BuddyInfo::default() });
            // All of it can be had, and nothing else.
            let free = memory.free_frames().0;
            let taken = std::iter::from_fn(|| memory.alloc(Order::PAGE, MigrateType::Movable, Cpu(1))).count();
            prop_assert_eq!(taken as u64, free);
            memory.check_invariants();
        }
    }

    #[test]
    fn blocks_that_would_be_a_larger_one_are_too_many() {
        let of = |order: usize, count| {
            let mut free_blocks = [0; ORDERS];
            free_blocks[order] = count;
            BuddyInfo::too_many(FRAMES, &free_blocks)
        };
        assert_eq!((of(10, 8), of(10, 9)), (None, Some(Order(10))));
        // Of each block of 4 MiB one half.
        assert_eq!((of(9, 8), of(9, 9)), (None, Some(Order(9))));
        assert_eq!((of(0, FRAMES / 2), of(0, FRAMES / 2 + 1)), (None, Some(Order(0))));
        // Half of each, and a half of each other half, and so on: all but one frame of each.
        let chain = [8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 0];
        assert_eq!(BuddyInfo::too_many(FRAMES, &chain), None);
        assert_eq!(laid_out(chain, 1).free_frames().0, FRAMES - 8);
    }

    #[test]
    fn each_place_is_as_likely_as_any_other() {
        // One block of 64 frames and one frame: of 2 x 4096 seeds each place has its share of both.
        let (mut blocks, mut frames) = ([0; 8], [0; 8]);
        for seed in 0..4096 {
            let memory = laid_out([1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0], seed);
            let first = |order| memory.free_list(Order(order), MigrateType::Movable).next().unwrap().0;
            blocks[(first(6) >> 10) as usize] += 1;
            frames[(first(0) >> 10) as usize] += 1;
        }
        assert!([blocks, frames].iter().flatten().all(|count| (420..610).contains(count)), "{blocks:?} {frames:?}");
    }

    #[test]
    fn a_program_gets_the_smallest_blocks_first_and_a_run_of_each() {
        let mut memory = laid_out([200, 0, 100, 0, 0, 20, 0, 0, 0, 1, 1], 3);
        let pages = 200 + 400 + 640;
        let frames: Vec<Frame> =
            (0..pages).map(|_| memory.alloc(Order::PAGE, MigrateType::Movable, Cpu(0)).unwrap()).collect();
        let runs = 1 + frames.windows(2).filter(|pair| pair[0].0 + 1 != pair[1].0).count();
        assert!((300..=320).contains(&runs), "{runs}");
    }

    #[test]
    fn what_the_kernel_took_is_of_the_large_blocks_and_lies_apart() {
        let mut memory = memory();
        let free_blocks = [40, 30, 20, 10, 5, 5, 2, 2, 1, 1, 3];
        let how = BuddyInfo { free_blocks, kernel_permille: 200, kernel_kept_permille: 300, seed: 3 };
        let in_use = memory.lay_out(&how);
        memory.check_invariants();
        assert_eq!(in_use.kernel.0, FRAMES * 200 / 1000 * 300 / 1000);
        let found = memory.buddyinfo();
        assert_eq!(found.free_blocks[..6], free_blocks[..6], "small ones are as they were");
        assert!(
            found.kernel_permille.abs_diff(200) <= 60 && found.kernel_kept_permille.abs_diff(300) <= 80,
            "{found:?}"
        );
    }
}
