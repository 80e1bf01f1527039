// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether the frames that a capture recorded are those of the page tables that were dumped after
//! it.

use nestwalk_mem::{Frame, Vpn};
use nestwalk_os::{FrozenLeaf, FrozenTable};
use nestwalk_workload::trace::guest::FrameCount;
use serde::Serialize;

use super::memory::{PAGE_BYTES, Piece};
use crate::dump::Dumped;

/// Accesses of a capture by what the tables say of their pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Agreement {
    /// To the frame that the tables map there.
    pub same: u64,
    /// To another frame: the page moved in the meantime, or another process was recorded.
    pub other: u64,
    /// To a page that the tables do not map, or map no more.
    pub unmapped: u64,
    /// With no frame in the capture: QEMU could not tell it, or it was a device's register.
    pub unknown: u64,
    /// What QEMU calls physical is an offset into its RAM, and was translated; else it is the gpa.
    pub by_ram_offset: bool,
}

/// Compares `frames` with the tables. Versions of QEMU differ in what they say to a plugin: the
/// gpa, or the offset into RAM, which is another number above a hole. The reading that agrees more
/// often is taken.
pub fn agreement(dumped: &Dumped, frames: &[FrameCount], levels: u8, pieces: &[Piece]) -> Agreement {
    let as_gpa = count(dumped, frames, levels, Some);
    let as_offset = count(dumped, frames, levels, |frame| {
        let offset = frame * PAGE_BYTES;
        let inside = |piece: &&Piece| offset.checked_sub(piece.ram_offset).is_some_and(|inside| inside < piece.bytes);
        pieces.iter().find(inside).map(|piece| (piece.gpa + (offset - piece.ram_offset)) / PAGE_BYTES)
    });
    if as_offset.same > as_gpa.same { Agreement { by_ram_offset: true, ..as_offset } } else { as_gpa }
}

fn count(dumped: &Dumped, frames: &[FrameCount], levels: u8, gfn: impl Fn(u64) -> Option<u64>) -> Agreement {
    let mut found = Agreement::default();
    // Recorded addresses are canonical; tables have as many bits as they translate.
    let pages = (1_u64 << (9 * u32::from(levels))) - 1;
    for one in frames {
        let page = Vpn(one.page & pages);
        let table = if page.0 > pages / 2 { &dumped.kernel } else { &dumped.user };
        let told = one.frame.and_then(&gfn).map(Frame);
        let slot = match (told, frame_of(table, page)) {
            (None, _) => &mut found.unknown,
            (_, None) => &mut found.unmapped,
            (Some(told), Some(mapped)) if told == mapped => &mut found.same,
            _ => &mut found.other,
        };
        *slot += one.accesses;
    }
    found
}

fn frame_of(table: &FrozenTable, page: Vpn) -> Option<Frame> {
    let at = table.leaves.partition_point(|leaf| leaf.page <= page);
    let leaf: &FrozenLeaf = table.leaves.get(at.checked_sub(1)?)?;
    let inside = page.0 - leaf.page.0;
    (inside < leaf.size.pages()).then(|| leaf.frame + inside)
}

#[cfg(test)]
mod tests {
    use nestwalk_mem::PageSize;

    use super::*;

    fn dumped(frame: u64) -> Dumped {
        let leaf = |page, frame, size| FrozenLeaf { page: Vpn(page), frame: Frame(frame), size, writable: true };
        let user = FrozenTable { leaves: vec![leaf(5, frame, PageSize::Small)], ..FrozenTable::default() };
        let kernel = FrozenTable { leaves: vec![leaf(1 << 35, 512, PageSize::Huge)], ..FrozenTable::default() };
        Dumped { user, kernel }
    }

    const fn frame(page: u64, frame: Option<u64>, accesses: u64) -> FrameCount {
        FrameCount { page, frame, accesses }
    }

    #[test]
    fn each_access_is_counted_once() {
        // Sign bits above the 36 that four levels translate.
        let upper = 0x1ff8_0000_0003;
        let frames = [
            frame(5, Some(77), 10),
            frame(5, Some(78), 1),
            frame(6, Some(77), 2),
            frame(5, None, 4),
            frame(upper, Some(515), 100),
        ];
        let found = agreement(&dumped(77), &frames, 4, &[]);
        assert_eq!(found, Agreement { same: 110, other: 1, unmapped: 2, unknown: 4, by_ram_offset: false });
    }

    #[test]
    fn offsets_into_ram_are_noticed() {
        let piece = |gpa, bytes, ram_offset| Piece { gpa, bytes, file: "m".into(), offset: 0, ram_offset };
        let pieces = [piece(0, 3 << 30, 0), piece(4 << 30, 1 << 30, 3 << 30)];
        let high = (4_u64 << 30) / PAGE_BYTES;
        let found = agreement(&dumped(high), &[frame(5, Some((3 << 30) / PAGE_BYTES), 9)], 4, &pieces);
        assert_eq!((found.same, found.by_ram_offset), (9, true));
        let found = agreement(&dumped(high), &[frame(5, Some(high), 9)], 4, &pieces);
        assert_eq!((found.same, found.by_ram_offset), (9, false));
    }
}
