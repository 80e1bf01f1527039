// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a sparse scatter looks up for each edge besides the edge and its bin: GPOP's tables of bins
//! and the fields that its compiler reads again, since a store might have changed them.
//!
//! Counted in the loop of `scatterVC` as g++ 12 compiles it (-O3, x86-64): 19 accesses an edge. Of
//! these the edge, its list's end and two stores to the bin are elsewhere; here are eight to the
//! tables (pointer and counter of each array, the flag and the pointer to its row) and seven to
//! fields and to the stack.

use crate::generator::memory::HEADER;

/// Bytes of the stack's frame, of `graph` and of the globals, each from a line of its own.
const FIXED: u64 = 512;
const LINE: u64 = 64;

/// What is looked up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Table {
    /// Spilt registers.
    Frame,
    /// `G->EI`, `G->binFlag`: fields of the graph.
    Edges,
    Flags,
    /// `binOffsetBits`, a global variable.
    Shift,
    /// The source partition's `partitionData`.
    Partition,
    /// `binFlag[row]`.
    FlagRow,
    /// `updateBins[row][bin]`, `updateBinPointers[row][bin]`.
    Updates,
    UpdateCount,
    /// `destIdBins[row][bin]`, `destIdBinPointers[row][bin]`.
    Written,
    WrittenCount,
    /// `binFlag[row][bin]`.
    Flag,
}

/// The tables of a graph of so many partitions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tables {
    partitions: u64,
}

impl Tables {
    pub(super) const fn new(partitions: u64) -> Self {
        Self { partitions }
    }

    /// Bytes of all of them.
    pub(super) const fn bytes(self) -> u64 {
        self.rows() + self.partitions * self.row_bytes()
    }

    /// Where the rows begin: behind `partitionData`, a line each, and the pointers to flags.
    const fn rows(self) -> u64 {
        FIXED + LINE * self.partitions + HEADER + 8 * self.partitions
    }

    /// Five arrays: two of pointers, two of counters, one of flags.
    const fn row_bytes(self) -> u64 {
        5 * HEADER + (2 * 8 + 2 * 4 + 1) * self.partitions
    }

    /// Where an entry is, in bytes from the first table: of partition `row`, to partition `bin`.
    #[inline]
    pub(super) fn entry(self, table: Table, row: u64, bin: u64) -> u64 {
        let begin = self.rows() + row * self.row_bytes();
        let array = |before: u64, bytes: u64| begin + (before + 1) * HEADER + bytes * self.partitions;
        match table {
            Table::Frame => 0,
            Table::Edges => LINE,
            Table::Flags => 2 * LINE,
            Table::Shift => 3 * LINE,
            Table::Partition => FIXED + LINE * row,
            Table::FlagRow => FIXED + LINE * self.partitions + HEADER + 8 * row,
            Table::Updates => array(0, 0) + 8 * bin,
            Table::Written => array(1, 8) + 8 * bin,
            Table::UpdateCount => array(2, 16) + 4 * bin,
            Table::WrittenCount => array(3, 20) + 4 * bin,
            Table::Flag => array(4, 24) + bin,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn no_two_entries_overlap_and_all_lie_within() {
        let tables = Tables::new(13);
        let mut taken = BTreeMap::new();
        let mut take = |table, row, bin, bytes| {
            let start = tables.entry(table, row, bin);
            assert!(start + bytes <= tables.bytes());
            assert!(taken.insert(start, start + bytes).is_none(), "{table:?} of {row}, {bin}");
        };
        for table in [Table::Frame, Table::Edges, Table::Flags, Table::Shift] {
            take(table, 0, 0, LINE);
        }
        for row in 0..13 {
            take(Table::Partition, row, 0, LINE);
            take(Table::FlagRow, row, 0, 8);
            for bin in 0..13 {
                for (table, bytes) in [
                    (Table::Updates, 8),
                    (Table::Written, 8),
                    (Table::UpdateCount, 4),
                    (Table::WrittenCount, 4),
                    (Table::Flag, 1),
                ] {
                    take(table, row, bin, bytes);
                }
            }
        }
        assert!(taken.iter().zip(taken.iter().skip(1)).all(|((_, end), (next, _))| end <= next));
    }
}
