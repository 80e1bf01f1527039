// SPDX-License-Identifier: MIT OR Apache-2.0
//! Page tables that were dumped from a running machine (`nestwalk vm tables`, [`crate::guest`]; the
//! format is described in `docs/whole-vms.md`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use nestwalk_mem::{Frame, Geometry, Level, PageSize, Va, Vpn};
use nestwalk_os::{FrozenLeaf, FrozenNode, FrozenTable};

use crate::error::MachineError;

/// What a dump of the user half begins with.
pub const MAGIC: &[u8; 8] = b"NWPT0001";
/// What a dump of both halves begins with.
pub const MAGIC_WITH_KERNEL: &[u8; 8] = b"NWPT0002";
/// What a zstd frame begins with.
const ZSTD_MAGIC: [u8; 4] = 0xfd2f_b528_u32.to_le_bytes();
const HEADER_BYTES: usize = 16;
const ENTRIES: usize = 512;
const NODE_WORDS: usize = 3 + ENTRIES;
/// The most that a dump may unpack to: the tables of 1 TiB in 4 KiB pages.
const BYTES_MAX: usize = 1 << 31;

// x86 page-table entries (Intel SDM volume 3A, section 4.5).
const PRESENT: u64 = 1;
const WRITABLE: u64 = 1 << 1;
const LARGE: u64 = 1 << 7;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

/// What a dump holds. The root is in the user half's nodes; pages of the kernel's half have as many
/// bits as the tables translate (the sign bits are left out).
#[derive(Clone, Debug, Default)]
pub struct Dumped {
    /// The user half.
    pub user: FrozenTable,
    /// The kernel's half, if the dump has it.
    pub kernel: FrozenTable,
}

/// Reads the user half of the dump `path`, plain or packed by zstd.
///
/// # Errors
/// When it cannot be read, or is not the whole of one page table.
pub fn read(path: &Path) -> Result<FrozenTable, MachineError> {
    read_whole(path).map(|dumped| dumped.user)
}

/// Reads the dump `path`, both halves.
///
/// # Errors
/// As [`read`].
pub fn read_whole(path: &Path) -> Result<Dumped, MachineError> {
    whole_from_bytes(&std::fs::read(path).map_err(|source| MachineError::Io { path: path.into(), source })?, path)
}

/// The user half of what the file `path` holds.
///
/// # Errors
/// When it is not the whole of one page table.
pub fn from_bytes(bytes: &[u8], path: &Path) -> Result<FrozenTable, MachineError> {
    whole_from_bytes(bytes, path).map(|dumped| dumped.user)
}

/// Both halves of what the file `path` holds.
///
/// # Errors
/// When it is not the whole of one page table.
pub fn whole_from_bytes(bytes: &[u8], path: &Path) -> Result<Dumped, MachineError> {
    if !bytes.starts_with(&ZSTD_MAGIC) {
        return parse(bytes).map_err(|what| fault(path, what));
    }
    let whole = unpack(bytes).map_err(|error| fault(path, format!("the zstd frame is damaged or cut ({error})")))?;
    parse(&whole).map_err(|what| fault(path, what))
}

fn unpack(bytes: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut whole = Vec::new();
    let decoder = zstd::stream::read::Decoder::with_buffer(bytes)?;
    std::io::copy(&mut std::io::Read::take(decoder, BYTES_MAX as u64), &mut whole)?;
    Ok(whole)
}

fn fault(path: &Path, what: String) -> MachineError {
    MachineError::Dump { path: PathBuf::from(path), what }
}

/// A node of the dump.
struct Node<'a> {
    level: Level,
    first: Va,
    frame: Frame,
    entries: &'a [u8],
}

fn word(bytes: &[u8], index: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[index * 8..][..8]);
    u64::from_le_bytes(word)
}

fn parse(bytes: &[u8]) -> Result<Dumped, String> {
    let kernel = bytes.starts_with(MAGIC_WITH_KERNEL);
    if !kernel && !bytes.starts_with(MAGIC) {
        return Err("not a dump of page tables (its first bytes are others): nestwalk vm tables makes them".into());
    }
    let count = if bytes.len() < HEADER_BYTES { 0 } else { word(bytes, 1) };
    let body = bytes.get(HEADER_BYTES..).unwrap_or(&[]);
    if count == 0 || body.len() as u64 != count.saturating_mul(NODE_WORDS as u64 * 8) {
        return Err(format!("{count} nodes in {} bytes: the dump is cut or damaged, make it again", bytes.len()));
    }
    let nodes: Vec<_> = body.chunks_exact(NODE_WORDS * 8).map(node).collect::<Result<_, _>>()?;
    let root = nodes.iter().map(|node| node.level).max().unwrap_or(Level::PTE);
    check_tree(&nodes, root, if kernel { ENTRIES } else { ENTRIES / 2 })?;
    let mut dumped = Dumped::default();
    for node in &nodes {
        let table = if is_kernel(node.first, root) { &mut dumped.kernel } else { &mut dumped.user };
        table.nodes.push(FrozenNode { level: node.level, first: node.first.page(), frame: node.frame });
        add_leaves(node, &mut table.leaves)?;
    }
    dumped.user.leaves.sort_unstable_by_key(|leaf| leaf.page);
    dumped.kernel.leaves.sort_unstable_by_key(|leaf| leaf.page);
    Ok(dumped)
}

/// Whether `va` is in the half of the kernel under a root of level `root`.
const fn is_kernel(va: Va, root: Level) -> bool {
    va.0 >> (9 * root.0 + 11) & 1 != 0
}

fn node(bytes: &[u8]) -> Result<Node<'_>, String> {
    let (level, first, gpa) = (word(bytes, 0), word(bytes, 1), word(bytes, 2));
    let geometry = Geometry::X86_5;
    let known = (1..=u64::from(geometry.levels())).contains(&level);
    let span_bits = 12 + 9 * level.min(5);
    if !known || first >> span_bits << span_bits != first || first >= 1 << 57 || gpa & !ADDRESS != 0 {
        return Err(format!("a node of level {level} for {first:#x} at {gpa:#x}, which no x86 page table has"));
    }
    Ok(Node { level: Level(level as u8), first: Va(first), frame: Frame(gpa >> 12), entries: &bytes[24..] })
}

/// What `entry` of a node of `level` points to: `None` if not present, else whether it is a leaf.
fn is_leaf(entry: u64, level: Level) -> Option<bool> {
    (entry & PRESENT != 0).then_some(level == Level::PTE || entry & LARGE != 0 && level <= Level::PUD)
}

fn add_leaves(node: &Node<'_>, leaves: &mut Vec<FrozenLeaf>) -> Result<(), String> {
    let size = match node.level {
        Level::PTE => PageSize::Small,
        Level::PMD => PageSize::Huge,
        _ => PageSize::Giant,
    };
    for index in 0..ENTRIES {
        let entry = word(node.entries, index);
        if is_leaf(entry, node.level) != Some(true) {
            continue;
        }
        let page = Vpn(node.first.page().0 + index as u64 * size.pages());
        // Bit 12 of a large entry is no part of the address (PAT).
        let frame = Frame((entry & ADDRESS) >> 12);
        let frame = if size == PageSize::Small { frame } else { Frame(frame.0 & !1) };
        if frame.0 % size.pages() != 0 {
            return Err(format!(
                "the page at {:#x} lies at frame {:#x}, no multiple of its size",
                page.0 << 12,
                frame.0
            ));
        }
        leaves.push(FrozenLeaf { page, frame, size, writable: entry & WRITABLE != 0 });
    }
    Ok(())
}

/// Every node but the root is pointed to once, from the entry that its place says; every pointer
/// has its node.
///
/// `followed`: entries of the root that the dump follows.
fn check_tree(nodes: &[Node<'_>], root: Level, followed: usize) -> Result<(), String> {
    let mut places = BTreeMap::new();
    for node in nodes {
        if places.insert((node.level, node.first), node.frame).is_some() {
            return Err(format!("two nodes of level {} for {:#x}", node.level.0, node.first.0));
        }
    }
    let mut reached = 1;
    for node in nodes {
        let span = 1_u64 << (12 + 9 * (node.level.0 - 1));
        for index in 0..if node.level == root { followed } else { ENTRIES } {
            let entry = word(node.entries, index);
            if is_leaf(entry, node.level) != Some(false) {
                continue;
            }
            let first = node.first.0 + index as u64 * span;
            let place = (node.level.down(), Va(first));
            if places.get(&place) != Some(&Frame((entry & ADDRESS) >> 12)) {
                return Err(format!("the node of level {} for {first:#x} is missing or lies elsewhere", place.0.0));
            }
            reached += 1;
        }
    }
    if reached != nodes.len() || !places.contains_key(&(root, Va(0))) {
        return Err(format!(
            "{} nodes of which {reached} hang together: this is not the whole of one table",
            nodes.len()
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table of 4 levels that maps address 0x1000 to 0x5000 and 0x200000 to a huge page.
    fn sound() -> Vec<u64> {
        let mut words = vec![u64::from_le_bytes(*MAGIC), 4];
        for (level, gpa, entries) in [
            (4, 0x1000, [(0, 0x2007), (300, 0xf_f007)]),
            (3, 0x2000, [(0, 0x3007), (0, 0x3007)]),
            (2, 0x3000, [(0, 0x4007), (1, 0x40_0087)]),
            (1, 0x4000, [(1, 0x5007), (2, 0x6005)]),
        ] {
            let mut node = [0; ENTRIES];
            entries.iter().for_each(|&(index, entry)| node[index] = entry);
            words.extend([level, 0, gpa]);
            words.extend(node);
        }
        words
    }

    fn parsed(words: &[u64]) -> Result<FrozenTable, String> {
        parse(&words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>()).map(|dumped| dumped.user)
    }

    #[test]
    fn nodes_and_pages_stand_where_the_entries_say() {
        let table = parsed(&sound()).unwrap();
        assert_eq!(table.nodes[3], FrozenNode { level: Level::PTE, first: Vpn(0), frame: Frame(4) });
        let leaf = |page, frame, size, writable| FrozenLeaf { page: Vpn(page), frame: Frame(frame), size, writable };
        assert_eq!(
            table.leaves,
            [
                leaf(1, 5, PageSize::Small, true),
                leaf(2, 6, PageSize::Small, false),
                leaf(512, 1024, PageSize::Huge, true),
            ]
        );
        assert_eq!((table.root(), table.memory().0), (Some(Level(4)), 1536));
    }

    #[test]
    fn what_is_no_whole_table_is_refused() {
        let node = |number: usize| 2 + number * NODE_WORDS;
        for (place, value, what) in [
            (0, 0, "not a dump"),
            (1, 5, "cut or damaged"),
            (1, 0, "cut or damaged"),
            (node(0), 6, "which no x86"),
            (node(3) + 1, 0x1000, "which no x86"),
            (node(3) + 2, 0x7000, "missing or lies elsewhere"),
            (node(2) + 3, 0, "hang together"),
            (node(2) + 4, 0x40_1087, "is fine: PAT"),
            (node(2) + 4, 0x40_2087, "no multiple"),
            (node(2) + 5, 0x9007, "missing or lies elsewhere"),
            (node(1), 4, "two nodes"),
        ] {
            let mut words = sound();
            words[place] = value;
            match parsed(&words) {
                Ok(_) => assert!(what.contains("fine"), "{what}"),
                Err(error) => assert!(error.contains(what), "{error} / {what}"),
            }
        }
        let whole: Vec<u8> = sound().iter().flat_map(|word| word.to_le_bytes()).collect();
        for cut in [0, 4, 12, 16, 1000, whole.len() - 8] {
            assert!(parse(&whole[..cut]).is_err(), "{cut}");
        }
    }
}
