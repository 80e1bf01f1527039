// SPDX-License-Identifier: MIT OR Apache-2.0
//! Guests that run in QEMU, seen from outside: their memory, the page tables in it, the processes
//! that have these tables, and whether the frames that a capture recorded are those of the tables.
//!
//! Nothing here asks the guest's kernel or knows its structures: only what the processor and the
//! user ABI fix is used, so that any x86-64 Linux will do.

mod agreement;
mod memory;
mod processes;
mod tables;

pub use agreement::{Agreement, agreement};
pub use memory::{Memory, PAGE_BYTES, Page, Piece, Words};
pub use processes::{Process, processes};
pub use tables::{NODES_MAX, Tables, walk};

/// The bits of a page-table entry, and of CR3, that are an address (Intel SDM volume 3A, section
/// 4.5).
pub const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
/// Bit of an entry: it translates.
pub const PRESENT: u64 = 1;
/// Bit of an entry at the PMD and PUD level: it maps a page.
pub const LARGE: u64 = 1 << 7;
/// Entries of a page-table page.
pub const ENTRIES: usize = 512;

/// Whether `entry` of a table of `level` maps a page, if it translates at all.
pub(crate) const fn is_leaf(entry: u64, level: u8) -> Option<bool> {
    if entry & PRESENT == 0 {
        return None;
    }
    Some(level == 1 || entry & LARGE != 0 && level <= 3)
}

/// The address that `entry`, a leaf of `level`, maps: bit 12 of a large entry is no part of it
/// (PAT).
pub(crate) const fn page_address(entry: u64, level: u8) -> u64 {
    let bits = 12 + 9 * (level as u32 - 1);
    (entry & ADDRESS) >> bits << bits
}
