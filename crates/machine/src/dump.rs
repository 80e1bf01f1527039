// SPDX-License-Identifier: MIT OR Apache-2.0
//! Page tables that were dumped from a running machine (`nestwalk vm tables`, [`crate::guest`]; the
//! format is described in `docs/whole-vms.md`).

use std::collections::BTreeMap;
use std::io::{BufRead, Read};
use std::path::{Path, PathBuf};

use nestwalk_mem::addr::PAGE_SHIFT;
use nestwalk_mem::{Frame, Geometry, Level, PageSize, SortedRegion, Va, Vpn, sorted_regions};
use nestwalk_os::{FrozenLeaf, FrozenNode, FrozenTable};

use crate::error::MachineError;

/// What a dump of the user half begins with.
pub const MAGIC: &[u8; 8] = b"NWPT0001";
/// What a dump of both halves begins with.
pub const MAGIC_WITH_KERNEL: &[u8; 8] = b"NWPT0002";
/// What a dump begins with that has sections after the page tables. The root's upper half is 0 if
/// the kernel's half is not in it.
pub const MAGIC_WITH_SECTIONS: &[u8; 8] = b"NWPT0003";
/// The section that has the lines of the process in
/// [`sorted_regions::PATH`](nestwalk_mem::sorted_regions::PATH), with the header.
pub const REGIONS: &str = "regions";
/// What a zstd frame begins with.
const ZSTD_MAGIC: [u8; 4] = 0xfd2f_b528_u32.to_le_bytes();
const HEADER_BYTES: usize = 16;
const SECTION_HEAD_BYTES: usize = 16;
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

/// Whether the dump `path` has sections, such as that of regions: what its first bytes say. A file
/// that is no dump, or is damaged, has none: [`read_whole`] says what is wrong with it.
///
/// # Errors
/// When it cannot be read.
pub fn has_sections(path: &Path) -> Result<bool, MachineError> {
    let io = |source| MachineError::Io { path: path.into(), source };
    let mut start = [0; MAGIC.len()];
    let mut file = std::io::BufReader::new(std::fs::File::open(path).map_err(io)?);
    let packed = file.fill_buf().map_err(io)?.starts_with(&ZSTD_MAGIC);
    let read = if packed {
        zstd::stream::read::Decoder::with_buffer(file).and_then(|mut whole| whole.read_exact(&mut start))
    } else {
        file.read_exact(&mut start)
    };
    Ok(read.is_ok() && &start == MAGIC_WITH_SECTIONS)
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
    std::io::copy(&mut decoder.take(BYTES_MAX as u64), &mut whole)?;
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
    let with_sections = bytes.starts_with(MAGIC_WITH_SECTIONS);
    let kernel = with_sections || bytes.starts_with(MAGIC_WITH_KERNEL);
    if !kernel && !bytes.starts_with(MAGIC) {
        return Err("not a dump of page tables (its first bytes are others): nestwalk vm tables makes them".into());
    }
    let count = if bytes.len() < HEADER_BYTES { 0 } else { word(bytes, 1) };
    let body = bytes.get(HEADER_BYTES..).unwrap_or(&[]);
    let node_bytes = usize::try_from(count.saturating_mul(NODE_WORDS as u64 * 8)).unwrap_or(usize::MAX);
    let (body, sections) = match body.split_at_checked(node_bytes) {
        Some((body, rest)) if count > 0 && (with_sections || rest.is_empty()) => (body, rest),
        _ => return Err(format!("{count} nodes in {} bytes: the dump is cut or damaged, make it again", bytes.len())),
    };
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
    dumped.user.regions = regions(sections, root)?;
    Ok(dumped)
}

/// The regions among the sections, under a root of level `root`; none if there is no such section.
fn regions(mut sections: &[u8], root: Level) -> Result<Vec<SortedRegion>, String> {
    let mut found = None;
    while !sections.is_empty() {
        let (name, body, rest) = section(sections).ok_or("a section is cut or damaged, make the dump again")?;
        sections = rest;
        let name = String::from_utf8_lossy(name);
        if name != REGIONS {
            return Err(format!("a section {name:?}, which this version does not know: take a newer nestwalk"));
        }
        let wrong = |what: String| format!("section {REGIONS}: {what}");
        let text = std::str::from_utf8(body).map_err(|_| wrong("it is no text".into()))?;
        let regions = sorted_regions::parse(text).map_err(wrong)?;
        if let Some(other) = regions.iter().find(|region| region.process != regions[0].process) {
            let (one, two) = (regions[0].process, other.process);
            return Err(wrong(format!("processes {one} and {two}: keep the lines of the one that was dumped")));
        }
        if let Some(high) = regions
            .iter()
            .find(|region| region.level >= root || is_kernel(Va((region.pages.end.0 - 1) << PAGE_SHIFT), root))
        {
            let start = high.pages.start.0 << PAGE_SHIFT;
            return Err(wrong(format!(
                "a region of level {} at {start:#x}, which these tables cannot have",
                high.level.0
            )));
        }
        if found.replace(regions).is_some() {
            return Err(format!("two sections {REGIONS}: keep one"));
        }
    }
    Ok(found.unwrap_or_default())
}

/// The name and the body of the first of `sections`, and those after it.
fn section(sections: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let (head, rest) = sections.split_at_checked(SECTION_HEAD_BYTES)?;
    let (name, rest) = rest.split_at_checked(usize::try_from(word(head, 0)).ok()?)?;
    let (body, rest) = rest.split_at_checked(usize::try_from(word(head, 1)).ok()?)?;
    Some((name, body, rest))
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

    /// [`sound`] with sections.
    fn with(sections: &[(&str, &[u8])]) -> Vec<u8> {
        let mut words = sound();
        words[0] = u64::from_le_bytes(*MAGIC_WITH_SECTIONS);
        words[2 + 3 + 300] = 0;
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        for (name, body) in sections {
            bytes.extend((name.len() as u64).to_le_bytes());
            bytes.extend((body.len() as u64).to_le_bytes());
            bytes.extend([name.as_bytes(), body].concat());
        }
        bytes
    }

    fn lines(lines: &str) -> Vec<u8> {
        format!("{}\n{lines}", sorted_regions::HEADER).into_bytes()
    }

    #[test]
    fn regions_are_those_of_the_section() {
        assert_eq!(parse(&with(&[])).unwrap().user, parsed(&sound()).unwrap());
        assert_eq!(parse(&with(&[(REGIONS, &lines(""))])).unwrap().user.regions, []);
        let two = lines("71 1 000000000000 000000800000 4 2 1 1\n71 2 000000000000 000080000000 9 0 1 1\n");
        let table = parse(&with(&[(REGIONS, &two)])).unwrap().user;
        let found: Vec<_> = table.regions.iter().map(|one| (one.level, one.base, one.tables().0)).collect();
        assert_eq!(found, [(Level::PTE, Frame(4), 4), (Level::PMD, Frame(9), 2)]);
        // The PTE table is in place, the PMD table elsewhere.
        assert_eq!(table.in_place(), (1, 1));
    }

    #[test]
    fn regions_that_cannot_be_are_refused() {
        let one = "71 1 000000000000 000000200000 4 1 0 0\n";
        for (body, what) in [
            (b"\xff".to_vec(), "section regions: it is no text"),
            (b"nothing".to_vec(), "section regions: line 1 is not"),
            (lines("71 1 0 200000 4\n"), "section regions: line 2: 5 columns"),
            (lines(&format!("{one}72 1 200000 400000 5 1 0 0\n")), "processes 71 and 72: keep the lines"),
            (lines("71 4 000000000000 001000000000000 4 1 0 0\n"), "which these tables cannot have"),
            (lines("71 1 800000000000 800000200000 4 1 0 0\n"), "which these tables cannot have"),
        ] {
            let error = parse(&with(&[(REGIONS, &body)])).unwrap_err();
            assert!(error.contains(what), "{error} / {what}");
        }
        let body = lines(one);
        let error = |sections: &[(&str, &[u8])]| parse(&with(sections)).unwrap_err();
        assert!(error(&[("later", b"x")]).contains("\"later\", which this version does not know"));
        assert!(error(&[(REGIONS, &body), (REGIONS, &body)]).contains("two sections"));
        let whole = with(&[(REGIONS, &body)]);
        let sections = with(&[]).len();
        for cut in sections + 1..whole.len() {
            assert!(parse(&whole[..cut]).unwrap_err().contains("a section is cut"), "{cut}");
        }
        for place in [sections, sections + 8] {
            let mut damaged = whole.clone();
            damaged[place..place + 8].fill(0xff);
            assert!(parse(&damaged).unwrap_err().contains("a section is cut"));
        }
    }

    #[test]
    fn sections_show_in_the_first_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("dump");
        let plain: Vec<u8> = sound().iter().flat_map(|word| word.to_le_bytes()).collect();
        for (bytes, has) in [(with(&[]), true), (plain, false), (b"NWPT".to_vec(), false), (Vec::new(), false)] {
            let packed = zstd::stream::encode_all(&bytes[..], 1).unwrap();
            for file in [bytes, packed] {
                std::fs::write(&path, file).unwrap();
                assert_eq!(has_sections(&path).unwrap(), has);
            }
        }
        assert!(has_sections(&folder.path().join("none")).is_err());
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
