// SPDX-License-Identifier: MIT OR Apache-2.0
//! The hashed form of one radix table: an elastic cuckoo table for each page size, and its walk
//! tables.

use std::collections::BTreeMap;

use nestwalk_mem::{Hpa, Level, PageSize, PageTable, Vpn, VpnRange};

use super::elastic::{ALL_WAYS, Elastic, Work, mix, only};
use super::region::{Extent, Region};
use crate::config::LINE_BYTES;
use crate::leaf::index_of;

/// log2 of the entries in a line: those of an aligned group of pages.
const GROUP: u32 = 3;

/// log2 of the sections that an entry of a walk table, or of a walk cache, describes.
const SECTIONS: u32 = 6;

/// Lines of a walk table.
const WALK_TABLE_LINES: usize = 1024;

/// Walk tables have sections of lines of 4 KiB pages, of 2 MiB pages, and of 1 GiB pages. There is
/// a fourth place.
const WALK_TABLES: usize = 4;

/// The line of the table for `size` that has the entry of `page`.
pub(super) const fn key(page: Vpn, size: PageSize) -> u64 {
    page.0 >> (size.order() + GROUP)
}

/// The entry of the walk table of `size` that describes the section of `page`.
pub(super) const fn walk_key(page: Vpn, size: PageSize) -> u64 {
    key(page, size) >> SECTIONS
}

/// See the [module's documentation](self).
#[derive(Debug)]
pub(super) struct Mirror {
    /// Which radix table it is made from.
    pub table: u64,
    sizes: [Elastic; 3],
    /// Lines of 4 KiB pages in each section of 16 MiB.
    small_in_pmd: BTreeMap<u64, u32>,
    /// Lines of 4 KiB and of 2 MiB pages in each section of 8 GiB.
    in_pud: BTreeMap<u64, [u32; 2]>,
    walk_tables: Extent,
}

/// The ways in which to look, by page size.
pub(super) type Plan = [u8; 3];

impl Mirror {
    /// The form of `table`, whose changes are told from now on.
    pub fn new(table: &mut PageTable, lines: usize, region: &mut Region) -> Self {
        let mut mirror = Self {
            table: table.version().table,
            sizes: std::array::from_fn(|_| Elastic::new(lines, region)),
            small_in_pmd: BTreeMap::new(),
            in_pud: BTreeMap::new(),
            walk_tables: region.take(WALK_TABLES * WALK_TABLE_LINES),
        };
        table.watch();
        table.take_writes();
        table.for_each_leaf(VpnRange { start: Vpn(0), end: table.geometry().end() }, |leaf| {
            if leaf.entry.is_present() {
                mirror.insert(leaf.page, leaf.size(), region);
            }
        });
        mirror
    }

    /// Gives its memory back.
    pub fn drop_into(self, region: &mut Region) {
        self.sizes.into_iter().for_each(|elastic| elastic.drop_into(region));
        region.give(self.walk_tables);
    }

    /// Where it lies.
    pub fn extents(&self) -> impl Iterator<Item = Extent> + '_ {
        self.sizes.iter().flat_map(Elastic::extents).chain([self.walk_tables])
    }

    /// Takes in what software wrote to `table` since the last time.
    pub fn take_in(&mut self, table: &mut PageTable, region: &mut Region) {
        for write in table.take_writes() {
            let Some(size) = (0..=3).find(|level| write.pages.len() == 1 << (9 * level)) else { continue };
            if let Some(size) = PageSize::of_level(Level(size + 1)) {
                self.renew(table, write.pages.start, size, region);
            }
            // A node went, came, or came with all its entries.
            if let Some(below) = PageSize::of_level(Level(size)) {
                for group in 0..1 << (9 - GROUP) {
                    self.renew(table, write.pages.start + (group << (below.order() + GROUP)), below, region);
                }
            }
        }
    }

    /// Brings the line of `page` for `size` up to date.
    fn renew(&mut self, table: &PageTable, page: Vpn, size: PageSize, region: &mut Region) {
        if has_leaf(table, page, size.level()) {
            self.insert(page, size, region);
        } else {
            self.remove(page, size, region);
        }
    }

    /// There are leaves of `size` in the line of `page`.
    pub fn insert(&mut self, page: Vpn, size: PageSize, region: &mut Region) {
        if self.sizes[size as usize].insert(key(page, size), region) {
            self.count(page, size, |count| *count += 1);
        }
    }

    /// There are none any more.
    pub fn remove(&mut self, page: Vpn, size: PageSize, region: &mut Region) {
        if self.sizes[size as usize].remove(key(page, size), region) {
            self.count(page, size, |count| *count -= 1);
        }
    }

    fn count(&mut self, page: Vpn, size: PageSize, change: impl Fn(&mut u32)) {
        if size == PageSize::Small {
            change(self.small_in_pmd.entry(key(page, PageSize::Huge)).or_default());
        }
        if size < PageSize::Giant {
            change(&mut self.in_pud.entry(key(page, PageSize::Giant)).or_default()[size as usize]);
        }
    }

    /// Where to look for `page`, if the walk caches know the sections of the PMD's and the PUD's
    /// walk tables, or not.
    pub fn plan(&self, page: Vpn, [pmd, pud]: [bool; 2]) -> Plan {
        let mut plan = [ALL_WAYS; 3];
        let direct = |size| self.way_of(page, size).map_or(0, only);
        if pud {
            let [small, huge] = self.in_pud.get(&key(page, PageSize::Giant)).copied().unwrap_or_default();
            plan = [if small > 0 { ALL_WAYS } else { 0 }, if huge > 0 { ALL_WAYS } else { 0 }, direct(PageSize::Giant)];
        }
        if pmd {
            plan[1] = direct(PageSize::Huge);
            let has_small = self.small_in_pmd.get(&key(page, PageSize::Huge)).is_some_and(|&count| count > 0);
            if !has_small {
                plan[0] = 0;
            }
            if has_small || plan[1] > 0 {
                // The section lies in no larger page.
                plan[2] = 0;
            }
        }
        plan
    }

    /// The way in which the line of `page` for `size` is.
    pub fn way_of(&self, page: Vpn, size: PageSize) -> Option<usize> {
        self.sizes[size as usize].way_of(key(page, size))
    }

    /// Where that line is if it is in `way`.
    pub fn line(&self, page: Vpn, size: PageSize, way: usize) -> Hpa {
        self.sizes[size as usize].line(key(page, size), way)
    }

    /// Where the entry of the walk table of `size` for `page` is.
    pub fn walk_line(&self, page: Vpn, size: PageSize) -> Hpa {
        let line = mix(walk_key(page, size)) as usize % WALK_TABLE_LINES;
        self.walk_tables.base + (size as usize * WALK_TABLE_LINES + line) as u64 * LINE_BYTES
    }

    /// What was done to keep it, since the last time.
    pub fn take_work(&mut self) -> Work {
        self.sizes.iter_mut().map(|elastic| std::mem::take(&mut elastic.work)).fold(Work::default(), |sum, work| Work {
            moved: sum.moved + work.moved,
            resizes: sum.resizes + work.resizes,
        })
    }

    /// Checks what must always hold.
    pub fn check_invariants(&self) {
        self.sizes.iter().for_each(Elastic::check_invariants);
    }
}

/// Whether the line of `page` at `level` has a leaf that is present.
fn has_leaf(table: &PageTable, page: Vpn, level: Level) -> bool {
    let (mut node, mut at) = table.lowest_node(page);
    while at < level {
        (node, at) = (table.parent(node), at.up());
    }
    at == level && table.line(node, index_of(page, level)).iter().any(|entry| entry.is_present() && entry.is_leaf())
}
