// SPDX-License-Identifier: MIT OR Apache-2.0
//! A memory's state as bytes, and a memory in that state again.
//!
//! [`PhysicalMemory::save`] keeps all that later allocations depend on: which frames are free, the
//! order of every list, the pageblocks' migrate types, the per-CPU lists, compaction's position.
//! Processes are not kept: the pages that they have, and what is reserved for them, become pages of
//! the page cache; table nodes and frames without an owner become the kernel's own, which cannot be
//! moved. The format is described in docs/scenarios.md.

use thiserror::Error;

use super::lists::FreeLists;
use super::table::{Head, Kind, MAX_ORDER, PAGEBLOCK, PAGEBLOCK_ORDER, Pfn32, State, Table};
use super::{FrameUse, InUse, Owner, PhysicalMemory};

const MAGIC: &[u8; 8] = b"\x89NWM\r\n\x1a\n";
const VERSION: u16 = 1;
const HEADER_BYTES: usize = 32;

/// Why a saved memory cannot be taken.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum SavedError {
    /// It is something else.
    #[error("it is no saved memory (its first bytes are others): nestwalk memory makes them")]
    Foreign,
    /// It was made by a later version.
    #[error("it has version {0}; this program reads version {VERSION}")]
    Version(u16),
    /// It was changed after it was made.
    #[error("{0}: it is cut or damaged, make it again")]
    Damaged(&'static str),
    /// It is of another machine.
    #[error(
        "it is of {frames} frames and {cpus} processors, the kernel has {own_frames} and {own_cpus}: give it the same memory and cpus"
    )]
    Other {
        /// Frames of the saved memory.
        frames: u64,
        /// Its processors.
        cpus: u16,
        /// Frames of the kernel's memory.
        own_frames: u64,
        /// The kernel's processors.
        own_cpus: u16,
    },
}

fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// A sequence of numbers: how many, then each less the one before.
fn put_sequence(out: &mut Vec<u8>, numbers: impl Iterator<Item = u32>) {
    let numbers: Vec<u32> = numbers.collect();
    put(out, numbers.len() as u64);
    let mut before = 0;
    for number in numbers {
        let delta = i64::from(number) - before;
        put(out, (delta << 1 ^ delta >> 63) as u64);
        before = i64::from(number);
    }
}

/// Runs of equal values: how many runs, then value and length of each.
fn put_runs(out: &mut Vec<u8>, values: impl Iterator<Item = (u64, u64)>) {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for (value, length) in values {
        match runs.last_mut() {
            Some(last) if last.0 == value => last.1 += length,
            _ => runs.push((value, length)),
        }
    }
    put(out, runs.len() as u64);
    runs.iter().for_each(|&(value, length)| {
        put(out, value);
        put(out, length);
    });
}

/// Reads what the above have written.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    const CUT: SavedError = SavedError::Damaged("a number is missing");

    fn number(&mut self) -> Result<u64, SavedError> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.0.split_first().ok_or(Self::CUT)?;
            self.0 = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(SavedError::Damaged("a number has more than 64 bits"))
    }

    fn below(&mut self, bound: u64) -> Result<u32, SavedError> {
        self.number()?
            .try_into()
            .ok()
            .filter(|&n| u64::from(n) < bound)
            .ok_or(SavedError::Damaged("a number is too large"))
    }

    fn sequence(&mut self, bound: u64) -> Result<Vec<u32>, SavedError> {
        let count = self.below(bound + 1)?;
        let mut before = 0i64;
        (0..count)
            .map(|_| {
                let coded = self.number()?;
                before = before.wrapping_add((coded >> 1) as i64 ^ -((coded & 1) as i64));
                let number = u32::try_from(before).ok().filter(|&n| u64::from(n) < bound);
                number.ok_or(SavedError::Damaged("a frame lies beyond the memory"))
            })
            .collect()
    }

    /// Runs that together are `all` long: value, start and length of each.
    fn runs(&mut self, all: u64, values: u64) -> Result<Vec<(u32, u64, u64)>, SavedError> {
        let count = self.below(all + 1)?;
        let mut at = 0u64;
        let runs: Result<Vec<_>, _> = (0..count)
            .map(|_| {
                let (value, length) = (self.below(values)?, u64::from(self.below(all + 1)?));
                let start = at;
                at += length;
                Ok((value, start, length))
            })
            .collect();
        if at == all { runs } else { Err(SavedError::Damaged("the frames do not add up")) }
    }
}

impl PhysicalMemory {
    /// This state as bytes. See the [module](self).
    pub fn save(&self) -> Vec<u8> {
        let mut payload = Vec::new();
        let table = &self.zone.table;
        put_runs(&mut payload, table.blocks.iter().map(|block| (block.kind as u64 | u64::from(block.skip) << 2, 1)));
        put_runs(&mut payload, self.heads().flat_map(|(pfn, head)| self.classes(pfn, head)));
        for kind in Kind::ALL {
            for order in 0..=MAX_ORDER {
                put_sequence(&mut payload, self.zone.lists.iter(table, order, kind).map(|pfn| pfn >> order));
            }
        }
        let (migrate, free) = self.scanners.positions();
        [migrate, free, self.cache_hand].iter().for_each(|&number| put(&mut payload, number.into()));
        for cpu in &self.cpus {
            put(&mut payload, cpu.free_factor().into());
            for (order, blocks) in cpu.lists() {
                put_sequence(&mut payload, blocks.iter().map(|pfn| pfn >> order));
            }
        }
        let mut out = Vec::with_capacity(HEADER_BYTES + payload.len());
        out.extend(MAGIC);
        out.extend(VERSION.to_le_bytes());
        out.extend(self.cpus().to_le_bytes());
        out.extend(table.len().to_le_bytes());
        out.extend((payload.len() as u64).to_le_bytes());
        out.extend(crc32c::crc32c(&payload).to_le_bytes());
        out.extend(crc32c::crc32c(&out).to_le_bytes());
        out.extend(payload);
        out
    }

    /// What the frames of a block are, one after the other.
    pub(super) fn classes(&self, pfn: Pfn32, head: Head) -> Vec<(u64, u64)> {
        if head.state() != State::Allocated {
            return vec![(FrameUse::Free as u64, 1 << head.order())];
        }
        let class = |owner| match owner {
            Owner::Page { .. } | Owner::Reserved { .. } | Owner::Cache | Owner::File { .. } => FrameUse::Cache,
            Owner::Unknown | Owner::Kernel | Owner::TableNode { .. } => FrameUse::Kernel,
        };
        // Of a large page, only the first frame has an owner.
        let first = self.zone.table.owner(pfn);
        let frames = (pfn..pfn + (1 << head.order())).map(|frame| match self.zone.table.owner(frame) {
            Owner::Unknown => first,
            owner => owner,
        });
        frames.map(|owner| (class(owner) as u64, 1)).collect()
    }

    /// Becomes the memory that `bytes` were [saved](PhysicalMemory::save) of. What was here before
    /// is forgotten; watermarks stay.
    ///
    /// # Errors
    /// When `bytes` are not a saved memory of this size with as many processors. This memory is
    /// unchanged then.
    pub fn restore(&mut self, bytes: &[u8]) -> Result<InUse, SavedError> {
        let payload = self.check_header(bytes)?;
        let frames = self.frames().0;
        let mut reader = Reader(payload);
        let mut table = Table::new(frames as u32);
        for (bits, start, length) in reader.runs(frames / u64::from(PAGEBLOCK), 8)? {
            for block in &mut table.blocks[start as usize..(start + length) as usize] {
                let kind = Kind::ALL.get((bits & 3) as usize).ok_or(SavedError::Damaged("a pageblock has no type"))?;
                (block.kind, block.skip) = (*kind, bits & 4 != 0);
            }
        }
        let (mut in_use, mut free_expected) = (InUse::default(), 0);
        for (class, start, length) in reader.runs(frames, 3)? {
            let frames = start as Pfn32..(start + length) as Pfn32;
            match class {
                0 => free_expected += length,
                1 => {
                    in_use.cache.0 += length;
                    table.occupy(frames, Owner::Cache);
                }
                _ => {
                    in_use.kernel.0 += length;
                    table.occupy(frames, Owner::Kernel);
                }
            }
        }
        let mut lists = FreeLists::new();
        let mut free = 0;
        for kind in Kind::ALL {
            for order in 0..=MAX_ORDER {
                for number in reader.sequence(frames >> order)? {
                    let pfn = vacant(&mut table, number, order)?;
                    lists.push_back(&mut table, pfn, order, kind);
                    free += 1u64 << order;
                }
            }
        }
        let scanners = [reader.below(frames)?, reader.below(frames)?];
        let cache_hand = reader.below(frames)?;
        let mut cpus: Vec<super::PerCpu> = Vec::new();
        for _ in 0..self.cpus.len() {
            let mut cpu = super::PerCpu::new();
            cpu.set_free_factor(reader.below(64)?);
            for list in 0..cpu.lists().count() {
                let order = cpu.lists().nth(list).map_or(0, |(order, _)| order);
                for number in reader.sequence(frames >> order)? {
                    let pfn = vacant(&mut table, number, order)?;
                    cpu.restore(&mut table, list, pfn);
                }
            }
            cpus.push(cpu);
        }
        let per_cpu: u64 = cpus.iter().map(|cpu| u64::from(cpu.count())).sum();
        if free + per_cpu != free_expected || !reader.0.is_empty() {
            return Err(SavedError::Damaged("the lists do not hold what is free"));
        }
        (self.zone.table, self.zone.lists, self.zone.free) = (table, lists, free);
        self.scanners.set_positions(scanners[0], scanners[1]);
        (self.cpus, self.cache_hand, self.allocated) = (cpus, cache_hand, frames - free_expected);
        Ok(in_use)
    }

    /// The payload of `bytes`, if they are whole and of such a memory.
    fn check_header<'a>(&self, bytes: &'a [u8]) -> Result<&'a [u8], SavedError> {
        if !bytes.starts_with(MAGIC) {
            return Err(SavedError::Foreign);
        }
        let Some((header, payload)) = bytes.split_at_checked(HEADER_BYTES) else {
            return Err(SavedError::Damaged("the header is not whole"));
        };
        let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("four bytes"));
        let [version, cpus] = [8, 10].map(|at| u16::from_le_bytes([header[at], header[at + 1]]));
        if version != VERSION {
            return Err(SavedError::Version(version));
        }
        if crc32c::crc32c(&header[..HEADER_BYTES - 4]) != word(HEADER_BYTES - 4) {
            return Err(SavedError::Damaged("the header's checksum does not match"));
        }
        let length = u64::from(word(16)) | u64::from(word(20)) << 32;
        if length != payload.len() as u64 {
            return Err(SavedError::Damaged("the file has another length than its header says"));
        }
        if crc32c::crc32c(payload) != word(24) {
            return Err(SavedError::Damaged("the checksum does not match"));
        }
        let (frames, own_frames, own_cpus) = (u64::from(word(12)), self.frames().0, self.cpus());
        if (frames, cpus) != (own_frames, own_cpus) {
            return Err(SavedError::Other { frames, cpus, own_frames, own_cpus });
        }
        Ok(payload)
    }
}

/// The first frame of the block with this number among those of its order, if nothing is recorded
/// there yet.
fn vacant(table: &mut Table, number: u32, order: u8) -> Result<Pfn32, SavedError> {
    let pfn = number << order;
    let taken = table.head(pfn, order).state() != State::Inside || table.head(pfn, 0).state() != State::Inside;
    if taken {
        return Err(SavedError::Damaged("a block is listed twice"));
    }
    if order < PAGEBLOCK_ORDER {
        table.block_mut(pfn).detailed = true;
    }
    Ok(pfn)
}

#[cfg(test)]
mod tests {
    use super::super::{Aging, Cpu, Fragmentation, MemoryConfig, MigrateType, Order};
    use super::*;
    use crate::addr::{Frame, PageCount};

    fn memory(cpus: u16) -> PhysicalMemory {
        PhysicalMemory::new(&MemoryConfig { frames: PageCount(1 << 14), cpus, min_free: PageCount(64) }).unwrap()
    }

    fn aged(cpus: u16) -> PhysicalMemory {
        let mut memory = memory(cpus);
        memory.alloc(Order(3), MigrateType::Unmovable, Cpu(0)).unwrap();
        memory.age(&Aging { used_permille: 600, kept_permille: 300, seed: 5, ..Aging::default() });
        let how = Fragmentation { blocks_permille: 500, frames_per_block: 3, unmovable_permille: 400, seed: 9 };
        memory.fragment(&how);
        for _ in 0..40 {
            let frame = memory.alloc(Order::PAGE, MigrateType::Movable, Cpu(cpus - 1)).unwrap();
            memory.set_owner(frame, Owner::Page { process: 1, page: crate::addr::Vpn(frame.0) });
        }
        memory
    }

    /// Allocations of all kinds, until nothing is left.
    fn exhaust(memory: &mut PhysicalMemory) -> Vec<Option<Frame>> {
        let orders = [0, 0, 0, 3, 0, 1, 9, 0, 2];
        let kinds = [MigrateType::Movable, MigrateType::Unmovable, MigrateType::Movable];
        let mut got = Vec::new();
        for step in 0..30_000usize {
            let cpu = Cpu((step % memory.cpus.len()) as u16);
            let frame = memory.alloc(Order(orders[step % orders.len()]), kinds[step % kinds.len()], cpu);
            if let Some(frame) = frame.filter(|_| step % 5 == 0 && orders[step % orders.len()] == 0) {
                memory.free(frame, Order::PAGE, cpu);
            }
            got.push(frame);
        }
        got
    }

    #[test]
    fn a_restored_memory_gives_out_the_same_frames() {
        for cpus in [1, 3] {
            let mut first = aged(cpus);
            let bytes = first.save();
            let mut second = memory(cpus);
            let in_use = second.restore(&bytes).unwrap();
            second.check_invariants();
            assert_eq!(second.save(), bytes, "saved again it is the same");
            assert_eq!(in_use.cache.0 + in_use.kernel.0, first.allocated);
            assert_eq!(second.free_blocks(), first.free_blocks());
            let given = exhaust(&mut first);
            assert_eq!(exhaust(&mut second), given);
            assert!(given.iter().any(Option::is_none) && given.iter().any(Option::is_some));
            second.check_invariants();
        }
    }

    #[test]
    fn what_is_damaged_is_refused_and_changes_nothing() {
        let bytes = aged(1).save();
        let mut target = memory(1);
        let before = target.save();
        for at in (0..bytes.len()).step_by(7) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            assert!(target.restore(&damaged).is_err(), "byte {at}");
        }
        for length in [0, 7, 8, 31, 32, bytes.len() - 1] {
            assert!(target.restore(&bytes[..length]).is_err(), "{length} bytes");
        }
        assert_eq!(target.save(), before);
        let other = memory(2).restore(&bytes).unwrap_err();
        assert!(other.to_string().contains("processors"), "{other}");
        assert_eq!(memory(1).restore(b"\x89NWT\r\n\x1a\n"), Err(SavedError::Foreign));
    }
}
