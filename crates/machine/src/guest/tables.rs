// SPDX-License-Identifier: MIT OR Apache-2.0
//! All page tables below a root, as a file that [`crate::dump`] reads.

use std::io::Write;
use std::path::Path;

use nestwalk_mem::addr::PAGE_SHIFT;
use nestwalk_mem::{Frame, Level, Va, sorted_regions};
use serde::Serialize;

use super::memory::{Page, Words};
use super::{ADDRESS, ENTRIES, is_leaf, page_address};
use crate::dump;
use crate::error::MachineError;

/// Page-table pages that a dump may have: those of 512 GiB in 4 KiB pages.
pub const NODES_MAX: usize = 1 << 18;
/// zstd's level: small files, and still hundreds of MB/s.
const LEVEL: i32 = 3;

/// A page-table page.
#[derive(Debug)]
struct Node {
    level: u8,
    first: u64,
    gpa: u64,
    entries: Box<Words>,
}

/// The page tables below a root.
#[derive(Debug)]
pub struct Tables {
    nodes: Vec<Node>,
    summary: Summary,
    /// What the guest's kernel says of the process in the file of [`sorted_regions::PATH`].
    regions: Option<String>,
}

/// What a walk found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Summary {
    /// Levels of the tables.
    pub levels: u8,
    /// Page-table pages of the user half, the root among them.
    pub user_tables: u64,
    /// Page-table pages of the kernel half.
    pub kernel_tables: u64,
    /// Pages of the user half by size: 4 KiB, 2 MiB, 1 GiB.
    pub user_pages: [u64; 3],
    /// Pages of the kernel half by size.
    pub kernel_pages: [u64; 3],
    /// Entries left out: what they point to is not the guest's memory (device memory, or a table
    /// that was in the making).
    pub outside: u64,
    /// Of the kernel's regions of sorted tables; `None` if they are not in the dump.
    pub regions: Option<RegionSummary>,
}

/// What regions of sorted tables hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct RegionSummary {
    /// Regions.
    pub regions: u64,
    /// Page-table pages at their place in one.
    pub in_place: u64,
    /// Page-table pages that have a place in one and lie elsewhere.
    pub elsewhere: u64,
}

/// Follows the tables of `levels` levels (4 or 5) that `cr3` points to, the kernel's half if
/// `kernel`.
///
/// # Errors
/// When memory cannot be read, or `cr3` is no root of page tables.
pub fn walk(memory: &impl Page, cr3: u64, levels: u8, kernel: bool) -> Result<Tables, MachineError> {
    let mut tables = Tables { nodes: Vec::new(), summary: Summary { levels, ..Summary::default() }, regions: None };
    let mut todo = vec![(levels, 0, cr3 & ADDRESS)];
    while let Some((level, first, gpa)) = todo.pop() {
        let Some(mut entries) = memory.page(gpa)? else {
            return Err(refused(cr3, format!("the table at {gpa:#x} is no memory of the guest")));
        };
        if tables.nodes.len() == NODES_MAX {
            return Err(refused(cr3, format!("it leads to more than {NODES_MAX} tables")));
        }
        let root = level == levels;
        if root && !kernel {
            entries[ENTRIES / 2..].fill(0);
        }
        for (index, entry) in entries.iter_mut().enumerate() {
            let Some(leaf) = is_leaf(*entry, level) else { continue };
            let target = if leaf { page_address(*entry, level) } else { *entry & ADDRESS };
            if !memory.contains(target) {
                *entry = 0;
                tables.summary.outside += 1;
                continue;
            }
            let place = first | (index as u64) << shift(level);
            if leaf {
                tables.summary.pages(place)[usize::from(level) - 1] += 1;
            } else {
                todo.push((level - 1, place, target));
            }
        }
        *tables.summary.tables(first) += 1;
        tables.nodes.push(Node { level, first, gpa, entries: Box::new(entries) });
    }
    Ok(tables)
}

fn refused(cr3: u64, what: String) -> MachineError {
    let what = format!("{what}; it is no root of a process's page tables, or the process has just ended");
    MachineError::Dump { path: format!("CR3 {cr3:#x}").into(), what }
}

/// The lowest bit of an address that an entry of `level` does not translate.
const fn shift(level: u8) -> u32 {
    12 + 9 * (level as u32 - 1)
}

impl Summary {
    /// Whether `place`, of as many bits as the tables translate, is in the kernel's half.
    const fn is_kernel(&self, place: u64) -> bool {
        place >> (shift(self.levels) + 8) & 1 != 0
    }

    const fn pages(&mut self, place: u64) -> &mut [u64; 3] {
        if self.is_kernel(place) { &mut self.kernel_pages } else { &mut self.user_pages }
    }

    const fn tables(&mut self, place: u64) -> &mut u64 {
        if self.is_kernel(place) { &mut self.kernel_tables } else { &mut self.user_tables }
    }
}

impl Tables {
    /// What there is.
    pub const fn summary(&self) -> Summary {
        self.summary
    }

    /// Puts `text`, the lines of the process in the guest's file of [`sorted_regions::PATH`] under
    /// its header, into the dump. Without a line the dump is as one of a kernel that sorts nothing.
    ///
    /// # Errors
    /// Says what is wrong with the text.
    pub fn add_regions(&mut self, text: String) -> Result<(), String> {
        let regions = sorted_regions::parse(&text)?;
        let nodes =
            self.nodes.iter().map(|node| (Level(node.level), Va(node.first).page(), Frame(node.gpa >> PAGE_SHIFT)));
        let (in_place, elsewhere) = sorted_regions::in_place(&regions, nodes);
        self.summary.regions = Some(RegionSummary { regions: regions.len() as u64, in_place, elsewhere });
        self.regions = (!regions.is_empty()).then_some(text);
        Ok(())
    }

    /// The bytes of the dump, not packed.
    ///
    /// # Errors
    /// When `out` cannot be written.
    pub fn write_to(&self, out: &mut impl Write) -> std::io::Result<()> {
        let kernel = self.summary.kernel_tables > 0 || self.summary.kernel_pages != [0; 3];
        let magic = match (&self.regions, kernel) {
            (Some(_), _) => dump::MAGIC_WITH_SECTIONS,
            (None, true) => dump::MAGIC_WITH_KERNEL,
            (None, false) => dump::MAGIC,
        };
        out.write_all(magic)?;
        out.write_all(&(self.nodes.len() as u64).to_le_bytes())?;
        for node in &self.nodes {
            for word in [u64::from(node.level), node.first, node.gpa].iter().chain(&*node.entries) {
                out.write_all(&word.to_le_bytes())?;
            }
        }
        if let Some(text) = &self.regions {
            let lengths = [dump::REGIONS, text].map(|part| (part.len() as u64).to_le_bytes());
            out.write_all(&[&lengths.concat(), dump::REGIONS.as_bytes(), text.as_bytes()].concat())?;
        }
        Ok(())
    }

    /// Writes the dump `path`, packed by zstd.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), MachineError> {
        let io = |source| MachineError::Io { path: path.into(), source };
        let file = std::fs::File::create(path).map_err(io)?;
        let mut packer = zstd::stream::write::Encoder::new(std::io::BufWriter::new(file), LEVEL).map_err(io)?;
        self.write_to(&mut packer).map_err(io)?;
        packer.finish().and_then(|mut file| file.flush()).map_err(io)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// A memory of `BTreeMap`s, up to an end.
    #[derive(Default)]
    struct Sparse {
        pages: BTreeMap<u64, Words>,
        end: u64,
    }

    impl Page for Sparse {
        fn page(&self, gpa: u64) -> Result<Option<Words>, MachineError> {
            Ok(self.contains(gpa).then(|| self.pages.get(&gpa).copied().unwrap_or([0; ENTRIES])))
        }

        fn contains(&self, gpa: u64) -> bool {
            gpa < self.end
        }
    }

    impl Sparse {
        /// Maps `va` as a processor would be told to: new tables come one after the other from 1
        /// MiB on.
        fn map(&mut self, levels: u8, va: u64, frame: u64, size: u8) {
            let mut table = 1 << 20;
            self.pages.entry(table).or_insert([0; ENTRIES]);
            for level in (size + 1..=levels).rev() {
                let next = (1 << 20) + self.pages.len() as u64 * 4096;
                let index = (va >> shift(level)) as usize % ENTRIES;
                let entry = &mut self.pages.get_mut(&table).unwrap()[index];
                if *entry == 0 {
                    *entry = next | 0x67;
                }
                table = *entry & ADDRESS;
                self.pages.entry(table).or_insert([0; ENTRIES]);
            }
            let large = if size > 1 { LARGE_BITS } else { 0 };
            self.pages.get_mut(&table).unwrap()[(va >> shift(size)) as usize % ENTRIES] = frame | large | 0x67;
        }
    }

    const LARGE_BITS: u64 = super::super::LARGE;

    fn dumped(tables: &Tables) -> dump::Dumped {
        let mut bytes = Vec::new();
        tables.write_to(&mut bytes).unwrap();
        dump::whole_from_bytes(&bytes, Path::new("tables")).unwrap()
    }

    proptest! {
        /// Any set of pages of any size in both halves comes back as it was mapped.
        #[test]
        fn what_is_mapped_is_found(
            levels in 4_u8..=5,
            kernel in any::<bool>(),
            places in proptest::collection::btree_map((0_u64..512, 0_u64..512), (1_u8..=3, 0_u64..400), 1..40),
        ) {
            let mut memory = Sparse { end: 1 << 40, ..Sparse::default() };
            let mut user = BTreeMap::new();
            let mut upper = BTreeMap::new();
            for (&(top, gigabyte), &(size, frame)) in &places {
                // One page a GiB, so that sizes do not meet.
                let va = top << shift(levels) | gigabyte << 30;
                let address = (1 << 30) + (frame << 30);
                memory.map(levels, va, address, size);
                let target = if top < 256 { &mut user } else { &mut upper };
                target.insert(va >> 12, (address >> 12, size));
            }
            let tables = walk(&memory, (1 << 20) | 0xfff, levels, kernel).unwrap();
            let found = dumped(&tables);
            let leaves = |table: &nestwalk_os::FrozenTable| -> BTreeMap<u64, (u64, u8)> {
                table.leaves.iter().map(|leaf| (leaf.page.0, (leaf.frame.0, leaf.size.level().0))).collect()
            };
            prop_assert_eq!(leaves(&found.user), user);
            prop_assert_eq!(leaves(&found.kernel), if kernel { upper } else { BTreeMap::new() });
            prop_assert_eq!(found.user.nodes.len() as u64, tables.summary().user_tables);
        }
    }

    #[test]
    fn regions_come_back_with_how_many_tables_lie_in_them() {
        let mut memory = Sparse { end: 1 << 30, ..Sparse::default() };
        // The tables come at frames 0x100 (root) to 0x103, and the next PTE tables after them.
        [0x1000, 0x20_0000, 0x60_0000].iter().for_each(|&va| memory.map(4, va, 0x5000, 1));
        let mut tables = walk(&memory, 1 << 20, 4, false).unwrap();
        let text = |lines: &str| format!("{}\n{lines}", sorted_regions::HEADER);
        // Three places from the first PTE table on; the fourth table, of 6 MiB, is at 0x105.
        tables.add_regions(text("9 1 0 800000 103 3 1 0\n")).unwrap();
        let summary = tables.summary().regions.unwrap();
        assert_eq!((summary.regions, summary.in_place, summary.elsewhere), (1, 2, 1));
        let found = dumped(&tables).user;
        assert_eq!((found.regions.len(), found.in_place()), (1, (2, 1)));
        tables.add_regions(text("")).unwrap();
        assert_eq!((tables.summary().regions, dumped(&tables).user.regions.len()), (Some(RegionSummary::default()), 0));
        assert!(tables.add_regions("something else".into()).unwrap_err().contains("as it is"));
    }

    #[test]
    fn what_is_not_memory_is_left_out_and_counted() {
        let mut memory = Sparse { end: 1 << 30, ..Sparse::default() };
        memory.map(4, 0x1000, 0x5000, 1);
        memory.map(4, 0x2000, 0xfee0_0000, 1);
        let tables = walk(&memory, 1 << 20, 4, true).unwrap();
        assert_eq!((tables.summary().outside, tables.summary().user_pages), (1, [1, 0, 0]));
        assert_eq!(dumped(&tables).user.leaves.len(), 1);
        let error = walk(&memory, 1 << 30, 4, true).unwrap_err().to_string();
        assert!(error.contains("no memory of the guest") && error.contains("just ended"), "{error}");
    }

    #[test]
    fn a_root_that_points_to_itself_ends_in_an_error_and_not_in_endless_work() {
        let mut memory = Sparse { end: 1 << 30, ..Sparse::default() };
        memory.pages.insert(0x1000, [0x1067; ENTRIES]);
        let error = walk(&memory, 0x1000, 5, true).unwrap_err().to_string();
        assert!(error.contains("more than"), "{error}");
    }
}
