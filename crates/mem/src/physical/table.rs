// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is recorded of each frame (Linux's `struct page`) and each pageblock.
//!
//! Memory is tiled by *blocks*: free ones in the buddy lists, free ones in per-CPU lists, allocated
//! ones. Only a block's first frame, its head, says so; an entry of zeroes lies inside a block
//! whose head comes before it. So fresh metadata is all zeroes and is never paged in until a
//! pageblock is split.
//!
//! Heads of blocks of 2 MiB and 4 MiB are recorded with the pageblock, all smaller ones with the
//! frame. Twelve bytes a frame hold the two links of a free block (u32 frame numbers), or the owner
//! and the share count of an allocated frame.

use super::types::Owner;

/// A frame number inside this room.
pub(super) type Pfn32 = u32;

/// No frame: memories have fewer than 2^32 frames.
pub(super) const NIL: Pfn32 = u32::MAX;

/// log2 of a pageblock's frames (`pageblock_order`).
pub(super) const PAGEBLOCK_ORDER: u8 = 9;
/// Frames of a pageblock.
pub(super) const PAGEBLOCK: u32 = 1 << PAGEBLOCK_ORDER;
/// Linux 6.1's `MAX_ORDER - 1`.
pub(super) const MAX_ORDER: u8 = 10;

/// What the block that begins here is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum State {
    /// No block begins here.
    Inside = 0,
    /// Free, in a buddy list (`PageBuddy`).
    Free = 1,
    /// Free, in a per-CPU list.
    PerCpu = 2,
    /// Allocated.
    Allocated = 3,
}

/// [`MigrateType`](super::MigrateType) as the lists are indexed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Kind {
    Unmovable = 0,
    Movable = 1,
    Reclaimable = 2,
}

impl Kind {
    pub(super) const ALL: [Self; 3] = [Self::Unmovable, Self::Movable, Self::Reclaimable];

    #[inline]
    fn from_bits(bits: u32) -> Self {
        match bits & 3 {
            0 => Self::Unmovable,
            1 => Self::Movable,
            _ => Self::Reclaimable,
        }
    }
}

/// A block's head, packed: state in bits 0 and 1, order in 2 to 5, list in 6 and 7. For a frame,
/// 24 bits of share count follow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub(super) struct Head(u32);

impl Head {
    const BITS: u32 = 0xff;

    #[inline]
    pub(super) const fn new(state: State, order: u8, kind: Kind) -> Self {
        Self(state as u32 | (order as u32) << 2 | (kind as u32) << 6)
    }

    /// An allocated block has no list.
    #[inline]
    pub(super) const fn allocated(order: u8) -> Self {
        Self::new(State::Allocated, order, Kind::Unmovable)
    }

    #[inline]
    pub(super) fn state(self) -> State {
        match self.0 & 3 {
            0 => State::Inside,
            1 => State::Free,
            2 => State::PerCpu,
            _ => State::Allocated,
        }
    }

    #[inline]
    pub(super) const fn order(self) -> u8 {
        (self.0 >> 2 & 15) as u8
    }

    #[inline]
    pub(super) fn kind(self) -> Kind {
        Kind::from_bits(self.0 >> 6)
    }

    /// Whether a free block of `order` in a buddy list begins here, whatever its list
    /// (`page_is_buddy`).
    #[inline]
    const fn is_buddy(self, order: u8) -> bool {
        self.0 & 0x3f == State::Free as u32 | (order as u32) << 2
    }
}

/// A pageblock: its migrate type, and the head of the block of order 9 or 10 that begins here, if
/// one does.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pageblock {
    links: [Pfn32; 2],
    head: Head,
    /// Linux's pageblock bitmap: the type that frees go to.
    pub(super) kind: Kind,
    /// Compaction found nothing to move here or no room (`PB_migrate_skip`).
    pub(super) skip: bool,
    /// Whether some entry of the frames may differ from zero.
    pub(super) detailed: bool,
}

/// Per-frame and per-pageblock records.
pub(super) struct Table {
    /// Links or owner in 0 and 1; [`Head`] and share count in 2. A plain array so that the
    /// allocator hands out zero pages lazily.
    frames: Vec<[u32; 3]>,
    pub(super) blocks: Vec<Pageblock>,
}

impl Table {
    /// `frames` (a multiple of a pageblock's) that no block covers yet.
    pub(super) fn new(frames: u32) -> Self {
        let block = Pageblock { links: [NIL; 2], head: Head(0), kind: Kind::Movable, skip: false, detailed: false };
        let mut records = vec![[0; 3]; frames as usize];
        crate::huge::advise(&mut records);
        Self { frames: records, blocks: vec![block; (frames / PAGEBLOCK) as usize] }
    }

    /// How many frames there are.
    #[inline]
    pub(super) fn len(&self) -> u32 {
        self.frames.len() as u32
    }

    #[inline]
    pub(super) fn block(&self, pfn: Pfn32) -> &Pageblock {
        &self.blocks[(pfn >> PAGEBLOCK_ORDER) as usize]
    }

    #[inline]
    pub(super) fn block_mut(&mut self, pfn: Pfn32) -> &mut Pageblock {
        &mut self.blocks[(pfn >> PAGEBLOCK_ORDER) as usize]
    }

    /// The head recorded at `pfn` for blocks as large as `order`, if it is one.
    #[inline]
    pub(super) fn head(&self, pfn: Pfn32, order: u8) -> Head {
        if order < PAGEBLOCK_ORDER { Head(self.frames[pfn as usize][2] & Head::BITS) } else { self.block(pfn).head }
    }

    /// Whether the buddy list of `order` has a block at `pfn`.
    #[inline]
    pub(super) fn is_buddy(&self, pfn: Pfn32, order: u8) -> bool {
        self.head(pfn, order).is_buddy(order)
    }

    /// Makes `pfn` the head of a block. What its frame entry says of owner and shares stays.
    #[inline]
    pub(super) fn set_head(&mut self, pfn: Pfn32, head: Head) {
        if head.order() < PAGEBLOCK_ORDER {
            let word = &mut self.frames[pfn as usize][2];
            *word = *word & !Head::BITS | head.0;
        } else {
            self.block_mut(pfn).head = head;
        }
    }

    /// `pfn` is the head of a block no more. What its frame entry says of owner and shares stays.
    #[inline]
    pub(super) fn clear_head(&mut self, pfn: Pfn32, order: u8) {
        if order < PAGEBLOCK_ORDER {
            self.frames[pfn as usize][2] &= !Head::BITS;
        } else {
            self.block_mut(pfn).head = Head(0);
        }
    }

    /// Where the next and the previous block of a list are recorded: `[previous, next]`.
    #[inline]
    pub(super) fn links(&self, pfn: Pfn32, order: u8) -> [Pfn32; 2] {
        if order < PAGEBLOCK_ORDER {
            let [previous, next, _] = self.frames[pfn as usize];
            [previous, next]
        } else {
            self.block(pfn).links
        }
    }

    #[inline]
    pub(super) fn set_previous(&mut self, pfn: Pfn32, order: u8, previous: Pfn32) {
        if order < PAGEBLOCK_ORDER {
            self.frames[pfn as usize][0] = previous;
        } else {
            self.block_mut(pfn).links[0] = previous;
        }
    }

    #[inline]
    pub(super) fn set_next(&mut self, pfn: Pfn32, order: u8, next: Pfn32) {
        if order < PAGEBLOCK_ORDER {
            self.frames[pfn as usize][1] = next;
        } else {
            self.block_mut(pfn).links[1] = next;
        }
    }

    /// Makes `pfn` the head of a block in a list, links and all, in one write.
    #[inline]
    pub(super) fn set_listed(&mut self, pfn: Pfn32, head: Head, links: [Pfn32; 2]) {
        if head.order() < PAGEBLOCK_ORDER {
            self.frames[pfn as usize] = [links[0], links[1], head.0];
        } else {
            let block = self.block_mut(pfn);
            block.links = links;
            block.head = head;
        }
    }

    /// Makes `pfn` the head of a block in no list, with a frame without an owner.
    #[inline]
    pub(super) fn set_unlisted(&mut self, pfn: Pfn32, head: Head) {
        self.set_listed(pfn, head, if head.order() < PAGEBLOCK_ORDER { [0; 2] } else { [NIL; 2] });
    }

    /// Makes `count` neighbours, from `pfn` on, heads of blocks in no list, with frames that
    /// nothing owns.
    #[inline]
    pub(super) fn set_unlisted_run(&mut self, pfn: Pfn32, head: Head, count: u32) {
        if head.order() == 0 {
            self.frames[pfn as usize..][..count as usize].fill([0, 0, head.0]);
        } else {
            (0..count).for_each(|index| self.set_unlisted(pfn + (index << head.order()), head));
        }
    }

    /// Nothing begins at `pfn` any more, where the head of a free block was.
    #[inline]
    pub(super) fn absorb(&mut self, pfn: Pfn32, order: u8) {
        if order < PAGEBLOCK_ORDER {
            self.frames[pfn as usize] = [0; 3];
        } else {
            self.clear_head(pfn, order);
        }
    }

    /// Forgets owners, shares and heads of all frames of a block. Writes only where something may
    /// have been written.
    pub(super) fn wipe(&mut self, pfn: Pfn32, order: u8) {
        if order < PAGEBLOCK_ORDER {
            self.frames[pfn as usize..][..1 << order].fill([0; 3]);
            return;
        }
        for start in (pfn..pfn + (1 << order)).step_by(PAGEBLOCK as usize) {
            self.clear_head(start, PAGEBLOCK_ORDER);
            if std::mem::take(&mut self.block_mut(start).detailed) {
                self.frames[start as usize..][..PAGEBLOCK as usize].fill([0; 3]);
            }
        }
    }

    /// The block that `pfn` lies in: its first frame and head.
    ///
    /// A block that holds `pfn` begins at `pfn` with some of its low bits cleared, and everything
    /// between lies inside it.
    #[inline]
    pub(super) fn find_head(&self, pfn: Pfn32) -> (Pfn32, Head) {
        let mut start = pfn;
        loop {
            let mut head = self.head(start, 0);
            if head.state() == State::Inside && start.is_multiple_of(PAGEBLOCK) {
                head = self.head(start, PAGEBLOCK_ORDER);
            }
            if head.state() != State::Inside {
                debug_assert!(pfn - start < 1 << head.order(), "frame {pfn:#x} lies in no block");
                return (start, head);
            }
            assert!(start != 0, "frame {pfn:#x} lies in no block");
            start &= start - 1;
        }
    }

    /// Whether the frame entry alone shows that `pfn` is allocated: it says so at the head of a
    /// block, and inside of one only an allocated frame has an owner. `false` says nothing.
    #[inline(always)]
    pub(super) fn is_seen_allocated(&self, pfn: Pfn32) -> bool {
        let [low, high, head] = self.frames[pfn as usize];
        let state = head & 3;
        state == State::Allocated as u32 || state == State::Inside as u32 && low | high != 0
    }

    /// Whether `pfn` is an allocated block of one frame which is not shared.
    #[inline]
    pub(super) fn is_lone_page(&self, pfn: Pfn32) -> bool {
        self.frames[pfn as usize][2] == Head::allocated(0).0
    }

    #[inline]
    pub(super) fn owner(&self, pfn: Pfn32) -> Owner {
        let [low, high, _] = self.frames[pfn as usize];
        Owner::unpack(u64::from(low) | u64::from(high) << 32)
    }

    #[inline]
    pub(super) fn set_owner(&mut self, pfn: Pfn32, owner: Owner) {
        let bits = owner.pack();
        let entry = &mut self.frames[pfn as usize];
        entry[0] = bits as u32;
        entry[1] = (bits >> 32) as u32;
    }

    /// [`Table::set_owner`] of several.
    #[inline]
    pub(super) fn set_owners(&mut self, frames: std::ops::Range<Pfn32>, owner: Owner) {
        let bits = owner.pack();
        for entry in &mut self.frames[frames.start as usize..frames.end as usize] {
            entry[0] = bits as u32;
            entry[1] = (bits >> 32) as u32;
        }
    }

    /// Makes each of `frames`, of which nothing is recorded, an allocated page of `owner`.
    pub(super) fn occupy(&mut self, frames: std::ops::Range<Pfn32>, owner: Owner) {
        for pfn in frames {
            self.set_unlisted(pfn, Head::allocated(0));
            self.set_owner(pfn, owner);
            self.block_mut(pfn).detailed = true;
        }
    }

    /// Further mappings of an allocated frame.
    #[inline]
    pub(super) fn shares(&self, pfn: Pfn32) -> u32 {
        self.frames[pfn as usize][2] >> 8
    }

    #[inline]
    pub(super) fn set_shares(&mut self, pfn: Pfn32, shares: u32) {
        assert!(shares < 1 << 24, "frame {pfn:#x} is shared 2^24 times");
        let word = &mut self.frames[pfn as usize][2];
        *word = *word & Head::BITS | shares << 8;
    }

    /// Whether nothing at all is recorded of `pfn`.
    pub(super) fn is_blank(&self, pfn: Pfn32) -> bool {
        self.frames[pfn as usize] == [0; 3]
    }

    /// A hint that `pfn`'s entry is about to be used.
    #[inline]
    pub(super) fn prefetch(&self, pfn: Pfn32) {
        crate::prefetch::prefetch(&self.frames[pfn as usize]);
    }
}
