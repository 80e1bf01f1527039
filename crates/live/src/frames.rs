// SPDX-License-Identifier: MIT OR Apache-2.0
//! The physical memory of a running Linux: what each frame of a zone is used for.
//!
//! `/proc/kpageflags` says of each frame whether it is free, a user's or the kernel's. It does not
//! say which migrate type a pageblock has; that is told from what lies in it, and what came out
//! can be held against `/proc/pagetypeinfo`, which counts pageblocks by type.

use std::fs::File;
use std::io;
use std::path::Path;

use nestwalk_mem::PageCount;
use nestwalk_mem::physical::{FrameUse, MemoryConfig, MemoryError, MigrateType, PhysicalMemory};
use serde::Serialize;

use crate::error::InspectError;
use crate::kpageflags::{ANON, BUDDY, COMPOUND_TAIL, HWPOISON, LRU, MMAP, NOPAGE, OFFLINE, PGTABLE, SLAB, SWAPBACKED};
use crate::words;

const FLAGS: &str = "kpageflags";
const ZONES: &str = "zoneinfo";
const TYPES: &str = "pagetypeinfo";

/// Frames of a pageblock.
const PAGEBLOCK: usize = 512;
/// Frames of the largest free block: a memory is a multiple of them.
const LARGEST: u64 = 1024;
/// Frames of the largest machine: 2^52 bytes, what x86-64 can address.
const PFN_MAX: u64 = 1 << 40;
/// Words of kpageflags that are read at once.
const AT_ONCE: usize = 64 * PAGEBLOCK;

/// A zone of physical memory (`/proc/zoneinfo`).
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct MemoryZone {
    /// Its NUMA node.
    pub node: u32,
    /// `DMA`, `DMA32`, `Normal` or `Movable`.
    pub zone: String,
    /// The pfn of its first frame.
    pub start_pfn: u64,
    /// Frames from the first to the last, holes included.
    pub spanned: u64,
    /// Frames that are there.
    pub present: u64,
}

/// Pageblocks by migrate type.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Pageblocks {
    /// With page tables or other memory of the kernel that can be neither moved nor dropped.
    pub unmovable: u64,
    /// With users' pages.
    pub movable: u64,
    /// With nothing but slabs (inodes, directory entries).
    pub reclaimable: u64,
}

/// What the frames of a zone are used for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ZoneFrames {
    /// Runs, the lowest frame first, of a multiple of 4 MiB together.
    pub uses: Vec<(FrameUse, u64)>,
    /// Of its pageblocks, the lowest first.
    pub kinds: Vec<MigrateType>,
}

impl ZoneFrames {
    /// How many frames there are.
    pub fn frames(&self) -> u64 {
        self.uses.iter().map(|&(_, length)| length).sum()
    }

    /// A memory that is used likewise, of a kernel with `cpus` processors; `seed` chooses the order
    /// of its free lists ([`PhysicalMemory::occupied`]).
    ///
    /// # Errors
    /// When there are no processors, or too many frames.
    pub fn memory(&self, cpus: u16, seed: u64) -> Result<PhysicalMemory, MemoryError> {
        let config = MemoryConfig::new(PageCount(self.frames()), cpus);
        PhysicalMemory::occupied(&config, &self.uses, &self.kinds, seed)
    }

    /// How many pageblocks there are of each type.
    pub fn pageblocks(&self) -> Pageblocks {
        let mut counts = Pageblocks::default();
        for kind in &self.kinds {
            *match kind {
                MigrateType::Unmovable => &mut counts.unmovable,
                MigrateType::Movable => &mut counts.movable,
                MigrateType::Reclaimable => &mut counts.reclaimable,
            } += 1;
        }
        counts
    }
}

/// The zone that has the most memory, on `node` or on any, of the machine whose `/proc` is `proc`,
/// or has been copied there.
///
/// # Errors
/// When `zoneinfo` cannot be read, or has no such node.
pub fn largest_zone(proc: &Path, node: Option<u32>) -> Result<MemoryZone, InspectError> {
    let path = proc.join(ZONES);
    let text = match std::fs::read(&path) {
        Ok(text) => text,
        Err(source) => return Err(InspectError::Io { path, source }),
    };
    let zones = zones(&String::from_utf8_lossy(&text));
    let of_node = zones.iter().filter(|zone| node.is_none_or(|node| zone.node == node));
    of_node.max_by_key(|zone| zone.present).cloned().ok_or_else(|| {
        let mut nodes: Vec<u32> = zones.iter().map(|zone| zone.node).collect();
        nodes.dedup();
        InspectError::NoZone { path, node, nodes }
    })
}

/// What each frame of `zone` is used for.
///
/// # Errors
/// When `kpageflags` cannot be read, which takes root outside of containers, or ends before the
/// zone does.
pub fn read(proc: &Path, zone: &MemoryZone) -> Result<ZoneFrames, InspectError> {
    let path = proc.join(FLAGS);
    let found = File::open(&path).and_then(|file| from(&file, zone));
    found.map_err(|source| match source.kind() {
        io::ErrorKind::PermissionDenied => InspectError::FramesHidden { path },
        _ => InspectError::Io { path, source },
    })
}

/// How many pageblocks of `zone` have each type, if the kernel says so.
pub fn pageblocks_counted(proc: &Path, zone: &MemoryZone) -> Option<Pageblocks> {
    pageblocks(&std::fs::read_to_string(proc.join(TYPES)).ok()?, zone)
}

/// The zones of 4 MiB and more in the text of `/proc/zoneinfo` (mm/vmstat.c,
/// `zoneinfo_show_print`).
pub fn zones(text: &str) -> Vec<MemoryZone> {
    let mut found: Vec<MemoryZone> = Vec::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match (&words[..], found.last_mut()) {
            (["Node", node, "zone", name], _) => {
                let Ok(node) = node.trim_end_matches(',').parse() else { continue };
                found.push(MemoryZone { node, zone: (*name).to_owned(), start_pfn: 0, spanned: 0, present: 0 });
            }
            (["spanned", number], Some(zone)) => zone.spanned = number.parse().unwrap_or(0),
            (["present", number], Some(zone)) => zone.present = number.parse().unwrap_or(0),
            (["start_pfn:", number], Some(zone)) => zone.start_pfn = number.parse().unwrap_or(0),
            _ => {}
        }
    }
    let possible = |zone: &MemoryZone| zone.start_pfn < PFN_MAX && (LARGEST..PFN_MAX).contains(&zone.spanned);
    found.retain(|zone| zone.present > 0 && possible(zone));
    found
}

/// The row of `zone` in the last table of the text of `/proc/pagetypeinfo` (mm/vmstat.c,
/// `pagetypeinfo_showblockcount`).
pub fn pageblocks(text: &str, zone: &MemoryZone) -> Option<Pageblocks> {
    let (_, table) = text.split_once("Number of blocks type")?;
    let mut lines = table.lines();
    let types: Vec<&str> = lines.next()?.split_whitespace().collect();
    let node = format!("{},", zone.node);
    let mut rows = lines.map(|line| line.split_whitespace().collect::<Vec<_>>());
    let row = rows.find(|row| row.starts_with(&["Node", &node, "zone", &zone.zone]))?;
    let count = |kind: &str| row.get(4 + types.iter().position(|&name| name == kind)?)?.parse().ok();
    Some(Pageblocks { unmovable: count("Unmovable")?, movable: count("Movable")?, reclaimable: count("Reclaimable")? })
}

/// What lies in a pageblock besides free frames.
#[derive(Clone, Copy, Default)]
struct Content {
    movable: bool,
    slabs: bool,
    other: bool,
}

impl Content {
    /// The type that the pageblock has in all likelihood. Linux gives a pageblock to the kernel as
    /// a whole; users' pages among the kernel's were there before, or came when nothing else was
    /// free. Frames without any flag may be the kernel's as well as wait in per-CPU lists, and
    /// decide nothing.
    fn kind(self) -> MigrateType {
        match self {
            Self { slabs: false, other: false, .. } => MigrateType::Movable,
            Self { movable: false, other: false, .. } => MigrateType::Reclaimable,
            _ => MigrateType::Unmovable,
        }
    }
}

/// A frame's use by its flags, which are recorded in `content`. Of a compound page's tail,
/// `before`.
fn frame_use(flags: u64, before: FrameUse, content: &mut Content) -> FrameUse {
    if flags & BUDDY != 0 {
        FrameUse::Free
    } else if flags & SLAB != 0 {
        content.slabs = true;
        FrameUse::Kernel
    } else if flags & (PGTABLE | NOPAGE | HWPOISON | OFFLINE) != 0 {
        content.other |= flags & PGTABLE != 0;
        FrameUse::Kernel
    } else if flags & (LRU | MMAP | ANON | SWAPBACKED) != 0 {
        content.movable = true;
        FrameUse::Cache
    } else if flags & COMPOUND_TAIL != 0 {
        before
    } else {
        content.other |= flags != 0;
        FrameUse::Kernel
    }
}

/// The flags of a zone's frames as uses and types. `file` is a kpageflags.
fn from(file: &File, zone: &MemoryZone) -> io::Result<ZoneFrames> {
    let first = zone.start_pfn.next_multiple_of(LARGEST);
    let end = (zone.start_pfn + zone.spanned) / LARGEST * LARGEST;
    let mut found = ZoneFrames { uses: Vec::new(), kinds: Vec::new() };
    let mut buffer = vec![0; AT_ONCE];
    let mut at = first;
    let mut before = FrameUse::Kernel;
    while at < end {
        let wanted = AT_ONCE.min((end - at) as usize);
        let flags = &mut buffer[..wanted];
        let got = words::read(file, at, flags)?;
        if got < wanted {
            let ends = format!("it ends at frame {}, and the zone at frame {end}: copy all of it", at + got as u64);
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, ends));
        }
        for block in flags.chunks(PAGEBLOCK) {
            let mut content = Content::default();
            for &flags in block {
                before = frame_use(flags, before, &mut content);
                match found.uses.last_mut() {
                    Some((last, length)) if *last == before => *length += 1,
                    _ => found.uses.push((before, 1)),
                }
            }
            found.kinds.push(content.kind());
        }
        at += wanted as u64;
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use proptest::prelude::*;

    use super::*;

    const ZONEINFO: &str = "\
Node 0, zone      DMA
  per-node stats
      nr_inactive_anon 1563
  pages free     3840
        spanned  4095
        present  3998
        managed  3840
  start_pfn:           1
Node 0, zone   Normal
  pages free     4187256
        spanned  5505024
        present  5505024
        nr_free_pages 4187256
  start_pfn:           1048576
Node 0, zone  Movable
  pages free     0
        spanned  0
        present  0
Node 1, zone   Normal
        spanned  8192
        present  8000
  start_pfn:           6553600
";

    const TYPEINFO: &str = "\
Page block order: 9
Pages per block:  512

Free pages count per migrate type at order       0      1
Node    0, zone   Normal, type    Unmovable    994   2915

Number of blocks type     Unmovable      Movable  Reclaimable   HighAtomic      Isolate
Node 0, zone      DMA            1            7            0            0            0
Node 0, zone   Normal          284         9218          994            0            0
";

    fn zone(start_pfn: u64, spanned: u64) -> MemoryZone {
        MemoryZone { node: 0, zone: "Normal".to_owned(), start_pfn, spanned, present: spanned }
    }

    fn file(flags: &[u64]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        flags.iter().for_each(|flags| file.write_all(&flags.to_ne_bytes()).unwrap());
        file
    }

    #[test]
    fn zones_without_memory_are_none() {
        let names: Vec<_> = zones(ZONEINFO).into_iter().map(|zone| (zone.node, zone.zone, zone.start_pfn)).collect();
        let expected = [(0, "DMA", 1), (0, "Normal", 1_048_576), (1, "Normal", 6_553_600)];
        assert_eq!(names, expected.map(|(node, zone, start)| (node, zone.to_owned(), start)));
        assert!(zones("another file\nspanned 3\n").is_empty());
    }

    #[test]
    fn pageblocks_are_counted_by_the_names_of_their_types() {
        let expected = Pageblocks { unmovable: 284, movable: 9218, reclaimable: 994 };
        assert_eq!(pageblocks(TYPEINFO, &zone(0, 0)), Some(expected));
        assert_eq!(pageblocks(TYPEINFO, &MemoryZone { node: 1, ..zone(0, 0) }), None);
        assert_eq!(pageblocks("", &zone(0, 0)), None);
    }

    #[test]
    fn what_lies_in_a_pageblock_says_its_type() {
        let block = |some: &[u64]| {
            let mut flags = vec![BUDDY; PAGEBLOCK];
            flags[..some.len()].copy_from_slice(some);
            flags
        };
        // What flags of slabs share with a user's pages means something else there.
        let blocks = [
            block(&[]),
            block(&[LRU | MMAP | ANON, 0, LRU]),
            block(&[SLAB, SLAB | COMPOUND_TAIL, SLAB | ANON, 0]),
            block(&[SLAB, LRU]),
            block(&[PGTABLE | MMAP, 0]),
            block(&[0; PAGEBLOCK]),
        ];
        // A zone that begins 3 frames before a boundary of 4 MiB, and ends 5 after another one.
        let mut flags = vec![LRU; 1021];
        flags.extend([LRU; 3]);
        flags.extend(blocks.concat());
        flags.extend([LRU; 5]);
        let found = from(&file(&flags), &zone(1021, 3 + 6 * 512 + 5)).unwrap();
        let [unmovable, movable, reclaimable] =
            [MigrateType::Unmovable, MigrateType::Movable, MigrateType::Reclaimable];
        assert_eq!(found.kinds, [movable, movable, reclaimable, unmovable, unmovable, movable]);
        assert_eq!(found.frames(), 6 * 512);
        assert_eq!(found.pageblocks(), Pageblocks { unmovable: 2, movable: 3, reclaimable: 1 });
        let [free, cache, kernel] = [FrameUse::Free, FrameUse::Cache, FrameUse::Kernel];
        let expected = [
            (free, 512),
            (cache, 1),
            (kernel, 1),
            (cache, 1),
            (free, 509),
            (kernel, 4),
            (free, 508),
            (kernel, 1),
            (cache, 1),
            (free, 510),
            (kernel, 2),
            (free, 510),
            (kernel, 512),
        ];
        assert_eq!(found.uses, expected);
    }

    #[test]
    fn a_zone_that_no_machine_has_is_none() {
        let zone = |start: u64, spanned: u64| {
            zones(&format!("Node 0, zone X\n spanned {spanned}\n present 9\n start_pfn: {start}\n")).len()
        };
        assert_eq!([zone(1 << 20, 1 << 20), zone(u64::MAX, 1 << 20), zone(0, u64::MAX), zone(0, 1023)], [1, 0, 0, 0]);
    }

    proptest! {
        #[test]
        fn any_flags_make_a_memory(
            flags in prop::collection::vec(prop_oneof![0..1_u64 << 27, any::<u64>()], 2048),
            start in 0..1500_u64,
            spanned in 1024..2500_u64,
            seed: u64,
        ) {
            let zone = zone(start, spanned);
            if let Ok(found) = from(&file(&flags), &zone) {
                prop_assert_eq!(found.frames() % LARGEST, 0);
                prop_assert_eq!(found.kinds.len() as u64 * PAGEBLOCK as u64, found.frames());
                if found.frames() > 0 {
                    let memory = found.memory(1, seed).unwrap();
                    memory.check_invariants();
                    let free = found.uses.iter().filter(|run| run.0 == FrameUse::Free).map(|run| run.1).sum::<u64>();
                    prop_assert_eq!(memory.free_frames().0, free);
                }
            } else {
                prop_assert!((zone.start_pfn + zone.spanned) / LARGEST * LARGEST > 2048);
            }
        }

        #[test]
        fn any_text_is_read(text: String, numbers in prop::collection::vec(any::<u64>(), 3)) {
            let [a, b, c] = numbers[..] else { unreachable!() };
            let zoneinfo = format!("Node 0, zone {text}\nspanned {a}\npresent {b}\nstart_pfn: {c}\n{text}");
            for zone in zones(&zoneinfo) {
                prop_assert!(zone.start_pfn < PFN_MAX && zone.spanned < PFN_MAX);
                pageblocks(&text, &zone);
            }
        }
    }

    #[test]
    fn tails_are_as_their_head_and_a_file_that_ends_early_is_refused() {
        let mut flags = vec![NOPAGE; 1024];
        flags[0] = 1 << 15 | LRU;
        flags[1..4].fill(COMPOUND_TAIL);
        let found = from(&file(&flags), &zone(0, 1024)).unwrap();
        let error = from(&file(&flags[..1000]), &zone(0, 1024)).unwrap_err();
        assert!(error.to_string().contains("ends at frame 1000"), "{error}");
        assert_eq!(found.uses, [(FrameUse::Cache, 4), (FrameUse::Kernel, 1020)]);
        assert_eq!(found.kinds, [MigrateType::Movable; 2]);
    }
}
