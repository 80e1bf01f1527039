// SPDX-License-Identifier: MIT OR Apache-2.0
//! Page tables as maps: nodes by level and number, leaves by first page.

use std::collections::BTreeMap;

use nestwalk_mem::{Entry, PageSize, PageTable, Vpn, VpnRange};

/// A leaf: what its entry says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Leaf {
    pub frame: u64,
    pub size: PageSize,
    pub writable: bool,
    pub accessed: bool,
    pub dirty: bool,
    /// One of a contiguous block.
    pub contiguous: bool,
}

impl Leaf {
    /// One that was not used yet.
    pub fn new(frame: u64, size: PageSize, writable: bool) -> Self {
        Self { frame, size, writable, accessed: false, dirty: false, contiguous: false }
    }

    /// What hardware sets after a load or a store.
    pub fn mark(&mut self, store: bool) {
        self.accessed = true;
        self.dirty |= store;
    }
}

/// A table.
#[derive(Debug)]
pub struct Table {
    root: u8,
    /// The frame of the node of a level that translates page `number << 9 * level`.
    nodes: BTreeMap<(u8, u64), u64>,
    pub leaves: BTreeMap<u64, Leaf>,
}

/// One entry on the way down a table.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    pub level: u8,
    /// Of the entry, in the space in which the table lies.
    pub address: u64,
}

/// The entry number of `page` among all entries of `level`.
pub fn number(page: u64, level: u8) -> u64 {
    page >> (9 * (level - 1))
}

/// All leaves of `table`.
pub fn leaves(table: &PageTable) -> BTreeMap<u64, Leaf> {
    let mut leaves = BTreeMap::new();
    table.for_each_leaf(VpnRange { start: Vpn(0), end: Vpn(1 << 45) }, |leaf| {
        let (entry, size) = (leaf.entry, leaf.size());
        let found = Leaf {
            frame: entry.frame().0,
            size,
            writable: entry.has(Entry::WRITABLE),
            accessed: entry.has(Entry::ACCESSED),
            dirty: entry.has(Entry::DIRTY),
            contiguous: entry.has(Entry::CONTIGUOUS),
        };
        leaves.insert(leaf.page.0, found);
    });
    leaves
}

impl Table {
    /// What `table` holds now.
    pub fn of(table: &PageTable) -> Self {
        let mut read = Self { root: table.geometry().root().0, nodes: BTreeMap::new(), leaves: leaves(table) };
        read.take_nodes(table);
        read
    }

    /// Learns where the nodes of `table` lie. Leaves stay as they are.
    pub fn take_nodes(&mut self, table: &PageTable) {
        table.for_each_node(|node| {
            self.nodes.insert((node.level.0, number(node.first_page.0, node.level.0 + 1)), node.frame.0);
        });
    }

    pub fn root(&self) -> u8 {
        self.root
    }

    /// The entries for `page` from the root down to the last one that can be read: the leaf's, or
    /// the one that is not present.
    pub fn way(&self, page: u64) -> Vec<Step> {
        let frame = |level: u8| self.nodes.get(&(level, number(page, level + 1)));
        let to = |level: u8| {
            frame(level).map(|frame| Step { level, address: frame << 12 | (number(page, level) & 511) << 3 })
        };
        let end = self.leaf(page).map_or(1, |(_, leaf)| 1 + leaf.size as u8);
        (end..=self.root).rev().map_while(to).collect()
    }

    /// The leaf that maps `page`, and its first page.
    pub fn leaf(&self, page: u64) -> Option<(u64, Leaf)> {
        let (&first, &leaf) = self.leaves.range(..=page).next_back()?;
        (page < first + leaf.size.pages()).then_some((first, leaf))
    }

    /// Hardware uses `page`, which is mapped: a contiguous block has its bits in common.
    pub fn mark(&mut self, page: u64, store: bool) {
        let (first, leaf) = self.leaf(page).expect("it is mapped");
        let pages = if leaf.contiguous { page & !15..(page & !15) + 16 } else { first..first + 1 };
        pages.for_each(|page| self.leaves.get_mut(&page).expect("a block is whole").mark(store));
    }

    /// Whether the 64 KiB around `page`, which is mapped, are contiguous: as a block or in a large
    /// page.
    pub fn is_in_block(&self, page: u64) -> bool {
        self.leaf(page).is_some_and(|(_, leaf)| leaf.contiguous || leaf.size > PageSize::Small)
    }

    /// The leaf of `page` becomes writable, and is no longer of a block.
    pub fn make_writable(&mut self, page: u64) {
        let (first, leaf) = self.leaf(page).expect("it is mapped");
        if leaf.contiguous {
            (page & !15..(page & !15) + 16).for_each(|page| self.leaves.get_mut(&page).unwrap().contiguous = false);
        }
        self.leaves.get_mut(&first).unwrap().writable = true;
    }

    /// The frame behind `page`, which is mapped.
    pub fn frame(&self, page: u64) -> u64 {
        let (first, leaf) = self.leaf(page).expect("it is mapped");
        leaf.frame + page - first
    }

    /// Of the aligned group of 8 pages around `page`, which is mapped, the frames of those that one
    /// line of entries says are like it: the same rights, accessed and dirty bits; and their frames
    /// lie in one aligned group of 8 frames.
    pub fn group(&self, page: u64) -> [Option<u64>; 8] {
        let (own_first, own) = self.leaf(page).expect("it is mapped");
        std::array::from_fn(|place| {
            let other = page & !7 | place as u64;
            let (first, leaf) = self.leaf(other)?;
            let same_leaf = own.size != PageSize::Small && first == own_first;
            let alike = (leaf.size, leaf.writable, leaf.accessed, leaf.dirty)
                == (PageSize::Small, own.writable, own.accessed, own.dirty);
            let near = self.frame(other) >> 3 == self.frame(page) >> 3;
            ((same_leaf || own.size == PageSize::Small && alike) && near).then(|| self.frame(other))
        })
    }
}
