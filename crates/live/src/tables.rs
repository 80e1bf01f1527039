// SPDX-License-Identifier: MIT OR Apache-2.0
//! Page tables of a process: what they take, and what the memory that is there needs.

use serde::Serialize;

use crate::known::Known;
use crate::maps::PAGE_BYTES;
use crate::strip::Region;

/// Entries of a table.
const ENTRIES: u64 = 512;

/// Page tables.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct PageTables {
    /// Bytes of all its tables, as the kernel counts them (`VmPTE`).
    pub bytes: Known<u64>,
    /// Tables of PTEs that the memory needs (present or swapped out): one for each 2 MiB of
    /// addresses.
    pub pte_tables: u64,
    /// Tables of PMDs: one for each 1 GiB.
    pub pmd_tables: u64,
    /// Tables of PUDs: one for each 512 GiB.
    pub pud_tables: u64,
    /// Bytes of these tables together.
    pub needed_bytes: u64,
}

/// Tables for what is present in `regions`, which ascend.
pub(crate) fn needed(regions: &[Region], bytes: Known<u64>) -> PageTables {
    let distinct = |span: u64| {
        let mut count = 0;
        let mut last = None;
        for number in regions.iter().map(|region| region.number / span) {
            count += u64::from(last != Some(number));
            last = Some(number);
        }
        count
    };
    let pte_tables = regions.iter().filter(|region| region.table).count() as u64;
    let (pmd_tables, pud_tables) = (distinct(ENTRIES), distinct(ENTRIES * ENTRIES));
    PageTables {
        bytes,
        pte_tables,
        pmd_tables,
        pud_tables,
        needed_bytes: (pte_tables + pmd_tables + pud_tables) * PAGE_BYTES,
    }
}
