// SPDX-License-Identifier: MIT OR Apache-2.0
//! The index: the position and the contents of each record, so that a reader can go to any of them
//! at once. And marks.

use super::format::{Fault, RECORD_BYTES, RecordKind, u64_at};
use super::varint::{self, VarintReader};
use crate::stream::{Phase, ThreadId};

/// What the index says of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordEntry {
    /// The position of its header in the file.
    pub offset: u64,
    /// What it is: accesses, filtered accesses, a log or a mark.
    pub kind: RecordKind,
    /// Whose accesses they are.
    pub thread: ThreadId,
    /// How many accesses, or touches and events.
    pub items: u32,
    /// Instructions executed during them.
    pub instructions: u64,
    /// Of filtered accesses: how many more the filter absorbed.
    pub absorbed: u64,
    /// How many of these were stores.
    pub absorbed_stores: u64,
}

impl RecordEntry {
    /// Accesses of the program that the record stands for: 0 of a log or a mark.
    pub const fn represented(&self) -> u64 {
        match self.kind {
            RecordKind::Accesses | RecordKind::Filtered => self.items as u64 + self.absorbed,
            _ => 0,
        }
    }
}

/// A phase begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mark {
    /// Which.
    pub phase: Phase,
    /// Accesses of the whole program before it.
    pub access: u64,
    /// Instructions of the whole program before it.
    pub instructions: u64,
}

const MARK_BYTES: usize = 24;

/// The most accesses that a record's filter absorbs: no sum over the records of a file can
/// overflow.
const ABSORBED_MAX: u64 = 1 << 40;

impl Mark {
    pub(super) fn to_bytes(self) -> [u8; MARK_BYTES] {
        let mut bytes = [0; MARK_BYTES];
        bytes[0] = match self.phase {
            Phase::Populate => 0,
            Phase::Warm => 1,
            Phase::Measure => 2,
        };
        bytes[8..16].copy_from_slice(&self.access.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.instructions.to_le_bytes());
        bytes
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Result<Self, Fault> {
        let phase = match bytes.first() {
            Some(0) => Phase::Populate,
            Some(1) => Phase::Warm,
            Some(2) => Phase::Measure,
            _ => return Err("a mark of no known phase".into()),
        };
        if bytes.len() != MARK_BYTES {
            return Err("a mark of the wrong length".into());
        }
        Ok(Self { phase, access: u64_at(bytes, 8), instructions: u64_at(bytes, 16) })
    }
}

/// Writes a part of the index to `out` (cleared first).
pub(super) fn encode(entries: &[RecordEntry], out: &mut Vec<u8>) {
    out.clear();
    let mut offset = 0;
    for entry in entries {
        varint::put(out, entry.offset - offset);
        offset = entry.offset;
        out.push(entry.kind as u8);
        varint::put(out, u64::from(entry.thread.0));
        varint::put(out, u64::from(entry.items));
        varint::put(out, entry.instructions);
        if entry.kind == RecordKind::Filtered {
            varint::put(out, entry.absorbed);
            varint::put(out, entry.absorbed_stores);
        }
    }
}

/// Appends the `count` entries of a payload. They must lie in order, within `from..end` of the
/// file.
pub(super) fn decode(
    plain: &[u8],
    count: u32,
    from: u64,
    end: u64,
    entries: &mut Vec<RecordEntry>,
) -> Result<(), Fault> {
    let mut words = VarintReader::new(plain, 0);
    let mut offset = 0u64;
    for _ in 0..count {
        let entry = entry(&mut words, offset).ok_or("an index shorter than it says, or with an unknown record")?;
        offset = entry.offset;
        let earliest = entries.last().map_or(from, |last| last.offset + RECORD_BYTES as u64);
        if offset < earliest || offset > end.saturating_sub(RECORD_BYTES as u64) {
            return Err(format!("an index that names a record at byte {offset}, where none can be"));
        }
        entries.push(entry);
    }
    if words.is_at_end() { Ok(()) } else { Err("an index longer than it says".into()) }
}

fn entry(words: &mut VarintReader<'_>, last: u64) -> Option<RecordEntry> {
    let mut entry = RecordEntry {
        offset: last.checked_add(words.unsigned()?)?,
        kind: match words.unsigned()? {
            1 => RecordKind::Accesses,
            2 => RecordKind::Log,
            3 => RecordKind::Mark,
            7 => RecordKind::Filtered,
            _ => return None,
        },
        thread: ThreadId(u16::try_from(words.unsigned()?).ok()?),
        items: u32::try_from(words.unsigned()?).ok()?,
        instructions: words.unsigned()?,
        absorbed: 0,
        absorbed_stores: 0,
    };
    if entry.kind == RecordKind::Filtered {
        entry.absorbed = words.unsigned().filter(|&absorbed| absorbed <= ABSORBED_MAX)?;
        entry.absorbed_stores = words.unsigned().filter(|&stores| stores <= entry.absorbed)?;
    }
    Some(entry)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_index_round_trips(sizes in prop::collection::vec((32u64..1 << 20, 0u8..4, any::<u16>(), any::<u32>(), any::<u64>(), 0u64..1 << 40), 0..50)) {
            let mut offset = 32;
            let mut entries = Vec::new();
            for (size, kind, thread, items, instructions, absorbed) in sizes {
                let kind = [RecordKind::Accesses, RecordKind::Log, RecordKind::Mark, RecordKind::Filtered][kind as usize];
                let absorbed = if kind == RecordKind::Filtered { absorbed } else { 0 };
                let (thread, absorbed_stores) = (ThreadId(thread), absorbed / 3);
                entries.push(RecordEntry { offset, kind, thread, items, instructions, absorbed, absorbed_stores });
                offset += size;
            }
            let mut plain = Vec::new();
            encode(&entries, &mut plain);
            let mut read = Vec::new();
            decode(&plain, entries.len() as u32, 32, offset, &mut read).unwrap();
            prop_assert_eq!(&read, &entries);
            prop_assert!(decode(&plain, entries.len() as u32 + 1, 32, offset, &mut Vec::new()).is_err());
            if !entries.is_empty() {
                prop_assert!(decode(&plain, entries.len() as u32, 33, offset, &mut Vec::new()).is_err());
                let last = entries[entries.len() - 1].offset;
                prop_assert!(decode(&plain, entries.len() as u32, 32, last + 31, &mut Vec::new()).is_err());
            }
        }

        #[test]
        fn no_bytes_make_it_panic(plain in prop::collection::vec(any::<u8>(), 0..100), count in 0u32..50) {
            let _ = decode(&plain, count, 32, 1000, &mut Vec::new());
            let _ = Mark::from_bytes(&plain);
        }
    }

    #[test]
    fn a_mark_round_trips() {
        for phase in [Phase::Populate, Phase::Warm, Phase::Measure] {
            let mark = Mark { phase, access: 5 << 40, instructions: 7 << 50 };
            assert_eq!(Mark::from_bytes(&mark.to_bytes()), Ok(mark));
        }
    }
}
