// SPDX-License-Identifier: MIT OR Apache-2.0
//! The fixed-size parts of a `.nwt` file: its header, the headers of its records, its trailer.
//!
//! `docs/trace-format.md` is the specification. All integers are little-endian. Every fixed part
//! ends with a CRC-32C of its other bytes; a record's payload has its own.

use crate::stream::ThreadId;

/// What a trace begins with. Like PNG's, it does not survive a transfer that mangles line ends or
/// the eighth bit.
pub const MAGIC: [u8; 8] = *b"\x89NWT\r\n\x1a\n";
/// What a complete trace ends with.
pub const TRAILER_MAGIC: [u8; 4] = *b"NWTE";
/// The newest version of the format: with filtered stretches. This code reads it and all before it.
pub const VERSION: u16 = 2;
/// The version without filtered stretches, which a trace that has none is written in: older readers
/// take it, too.
pub const VERSION_UNFILTERED: u16 = 1;
/// Bytes of the file header.
pub const HEADER_BYTES: usize = 32;
/// Bytes of a record header.
pub const RECORD_BYTES: usize = 32;
/// Bytes of the trailer.
pub const TRAILER_BYTES: usize = 32;
/// The most accesses, touches and events, sites or index entries in one record.
pub const ITEMS_MAX: usize = 1 << 18;
/// The most bytes that a record's payload has, as stored and as unpacked: what bounds a reader's
/// memory.
pub const PAYLOAD_BYTES_MAX: usize = 1 << 24;
/// An address is below this: what five levels of page tables translate.
pub const ADDRESS_END: u64 = 1 << 57;

/// What a record holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum RecordKind {
    /// Accesses of one thread.
    Accesses = 1,
    /// Memory events, and first touches in stretches whose accesses were left out.
    Log = 2,
    /// A phase begins here.
    Mark = 3,
    /// Part of the table of sites.
    Sites = 4,
    /// What is known of the whole trace, as JSON.
    Metadata = 5,
    /// Part of the index of all records before the sites.
    Index = 6,
    /// Those accesses of one thread that a filter keeps, with the numbers of those that it absorbs.
    /// Since version 2.
    Filtered = 7,
}

impl RecordKind {
    const fn of(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(Self::Accesses),
            2 => Some(Self::Log),
            3 => Some(Self::Mark),
            4 => Some(Self::Sites),
            5 => Some(Self::Metadata),
            6 => Some(Self::Index),
            7 => Some(Self::Filtered),
            _ => None,
        }
    }
}

/// The header of a record: what a reader has to know before it touches the payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordHeader {
    /// What the payload is.
    pub kind: RecordKind,
    /// Whether the payload is a zstd frame.
    pub compressed: bool,
    /// Whose accesses they are (kinds `Accesses` and `Filtered`; 0 otherwise).
    pub thread: ThreadId,
    /// How many accesses, touches and events, sites or entries there are.
    pub items: u32,
    /// Bytes of the payload as stored.
    pub stored_bytes: u32,
    /// Bytes of the payload as unpacked.
    pub plain_bytes: u32,
    /// Instructions that the thread executed since the end of its previous block (kinds `Accesses`
    /// and `Filtered`), or that all threads executed in the stretch (kind `Log`).
    pub instructions: u64,
    /// CRC-32C of the payload as stored.
    pub checksum: u32,
}

/// Why a fixed part cannot be read: what is wrong, for people.
pub type Fault = String;

impl RecordHeader {
    /// As it is in the file.
    pub fn to_bytes(&self) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        bytes[0] = self.kind as u8;
        bytes[1] = u8::from(self.compressed);
        bytes[2..4].copy_from_slice(&self.thread.0.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.items.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.stored_bytes.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.plain_bytes.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.instructions.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.checksum.to_le_bytes());
        seal(&mut bytes);
        bytes
    }

    /// Reads one.
    ///
    /// # Errors
    /// When the checksum is wrong or a field is out of its bounds.
    pub fn from_bytes(bytes: &[u8; RECORD_BYTES]) -> Result<Self, Fault> {
        if !is_sealed(bytes) {
            return Err("the record header is damaged (its checksum does not match)".into());
        }
        let kind = RecordKind::of(bytes[0]).ok_or_else(|| format!("unknown record kind {}", bytes[0]))?;
        let header = Self {
            kind,
            compressed: bytes[1] & 1 != 0,
            thread: ThreadId(u16::from_le_bytes([bytes[2], bytes[3]])),
            items: u32_at(bytes, 4),
            stored_bytes: u32_at(bytes, 8),
            plain_bytes: u32_at(bytes, 12),
            instructions: u64_at(bytes, 16),
            checksum: u32_at(bytes, 24),
        };
        if bytes[1] > 1 {
            return Err(format!("unknown record flags {:#x}", bytes[1]));
        }
        if header.items as usize > ITEMS_MAX {
            return Err(format!("a record of {} items, more than {ITEMS_MAX}", header.items));
        }
        if header.stored_bytes.max(header.plain_bytes) as usize > PAYLOAD_BYTES_MAX {
            return Err(format!("a record of more than {PAYLOAD_BYTES_MAX} bytes"));
        }
        if !header.compressed && header.stored_bytes != header.plain_bytes {
            return Err("an uncompressed record with two different sizes".into());
        }
        Ok(header)
    }
}

/// The file header of that version.
pub fn file_header(version: u16) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..10].copy_from_slice(&version.to_le_bytes());
    bytes[10..12].copy_from_slice(&(HEADER_BYTES as u16).to_le_bytes());
    seal(&mut bytes);
    bytes
}

/// Checks a file header and returns the version.
///
/// # Errors
/// With the offset of the byte at fault: no trace, another version, or damaged.
pub fn check_file_header(bytes: &[u8; HEADER_BYTES]) -> Result<u16, (u64, Fault)> {
    if bytes[..8] != MAGIC {
        return Err((
            0,
            "not a Nestwalk trace (.nwt): its first bytes are others; convert it with `nestwalk trace convert`".into(),
        ));
    }
    let version = u16::from_le_bytes([bytes[8], bytes[9]]);
    if !(VERSION_UNFILTERED..=VERSION).contains(&version) {
        return Err((
            8,
            format!(
                "trace format version {version}, and this build reads versions up to {VERSION}: convert the capture again, or use the Nestwalk that wrote it"
            ),
        ));
    }
    if !is_sealed(bytes) || u16::from_le_bytes([bytes[10], bytes[11]]) as usize != HEADER_BYTES {
        return Err((8, "the file header is damaged: fetch or convert the trace again".into()));
    }
    Ok(version)
}

/// The end of a complete file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Trailer {
    /// Where the sites begin, which is where the accesses and logs end.
    pub sites_at: u64,
    /// Where the first index record begins; the index goes up to the trailer.
    pub index_at: u64,
    /// The length of the whole file.
    pub file_bytes: u64,
}

impl Trailer {
    /// As it is in the file.
    pub fn to_bytes(self) -> [u8; TRAILER_BYTES] {
        let mut bytes = [0; TRAILER_BYTES];
        bytes[0..8].copy_from_slice(&self.sites_at.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.index_at.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.file_bytes.to_le_bytes());
        bytes[24..28].copy_from_slice(&TRAILER_MAGIC);
        seal(&mut bytes);
        bytes
    }

    /// Reads one; `None` if this is no trailer of a file of `file_bytes`, as when the file was cut.
    pub fn from_bytes(bytes: &[u8; TRAILER_BYTES], file_bytes: u64) -> Option<Self> {
        let trailer = Self { sites_at: u64_at(bytes, 0), index_at: u64_at(bytes, 8), file_bytes: u64_at(bytes, 16) };
        let in_order = HEADER_BYTES as u64 <= trailer.sites_at
            && trailer.sites_at <= trailer.index_at
            && trailer.index_at <= file_bytes.checked_sub(TRAILER_BYTES as u64)?;
        let whole = bytes[24..28] == TRAILER_MAGIC && is_sealed(bytes) && trailer.file_bytes == file_bytes;
        (whole && in_order).then_some(trailer)
    }
}

/// Reads a little-endian number.
pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

/// Reads a little-endian number.
pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

/// The CRC-32C of `bytes`.
pub fn checksum(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}

fn seal(bytes: &mut [u8; 32]) {
    let sum = checksum(&bytes[..28]);
    bytes[28..32].copy_from_slice(&sum.to_le_bytes());
}

fn is_sealed(bytes: &[u8; 32]) -> bool {
    checksum(&bytes[..28]) == u32_at(bytes, 28)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> RecordHeader {
        RecordHeader {
            kind: RecordKind::Accesses,
            compressed: true,
            thread: ThreadId(7),
            items: ITEMS_MAX as u32,
            stored_bytes: 1234,
            plain_bytes: 99_999,
            instructions: 1 << 40,
            checksum: 0xdead_beef,
        }
    }

    #[test]
    fn fixed_parts_round_trip_and_notice_every_flipped_bit() {
        assert_eq!(RecordHeader::from_bytes(&header().to_bytes()), Ok(header()));
        let trailer = Trailer { sites_at: 100, index_at: 200, file_bytes: 300 };
        assert_eq!(Trailer::from_bytes(&trailer.to_bytes(), 300), Some(trailer));
        assert_eq!(check_file_header(&file_header(VERSION)), Ok(VERSION));
        for bit in 0..256 {
            let flip = |mut bytes: [u8; 32]| {
                bytes[bit / 8] ^= 1 << (bit % 8);
                bytes
            };
            assert!(RecordHeader::from_bytes(&flip(header().to_bytes())).is_err());
            assert!(check_file_header(&flip(file_header(VERSION))).is_err());
            assert_eq!(Trailer::from_bytes(&flip(trailer.to_bytes()), 300), None);
        }
    }

    #[test]
    fn a_sealed_header_with_impossible_sizes_is_refused() {
        for spoil in [
            |h: &mut RecordHeader| h.items = ITEMS_MAX as u32 + 1,
            |h: &mut RecordHeader| h.plain_bytes = PAYLOAD_BYTES_MAX as u32 + 1,
            |h: &mut RecordHeader| h.compressed = false,
        ] {
            let mut bad = header();
            spoil(&mut bad);
            assert!(RecordHeader::from_bytes(&bad.to_bytes()).is_err());
        }
        assert_eq!(
            Trailer::from_bytes(&Trailer { sites_at: 200, index_at: 100, file_bytes: 300 }.to_bytes(), 300),
            None
        );
    }

    #[test]
    fn another_version_is_named() {
        let mut bytes = file_header(VERSION);
        bytes[8] = 9;
        let (offset, what) = check_file_header(&bytes).unwrap_err();
        assert!(offset == 8 && what.contains("version 9"), "{what}");
    }
}
