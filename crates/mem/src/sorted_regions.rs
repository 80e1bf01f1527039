// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where a running kernel keeps page tables in the order of their addresses, as it says itself:
//! `/sys/kernel/debug/sorted_tables/regions` of the kernel series
//! (`Documentation/mm/sorted_page_tables.rst` in it).
//!
//! A line for each region, or each part of one that a hole in the mapping divides:
//!
//! | column | meaning |
//! | --- | --- |
//! | `tgid` | the process |
//! | `level` | 1: its tables hold PTEs |
//! | `start`, `end` | the addresses that the tables translate, hexadecimal, without `end` itself |
//! | `first_pfn` | frame of the first table, hexadecimal; the others follow it |
//! | `used`, `idle`, `holes` | places of tables in use, set aside for one, and given back |
//!
//! The text is kept as it is wherever it is stored, so that this is the only parser of it.

use crate::addr::{Frame, PageCount, Va, Vpn, VpnRange};
use crate::geometry::{Geometry, Level};

/// Where the kernel exports them, below `/`.
pub const PATH: &str = "sys/kernel/debug/sorted_tables/regions";
/// What the file begins with.
pub const HEADER: &str = "tgid level start end first_pfn used idle holes";

/// Levels that a region may have: all below the root of five-level tables.
const LEVEL_MAX: u8 = 4;
/// Addresses of processes end here, with five levels (Intel SDM volume 3A, section 4.5).
const ADDRESS_MAX: u64 = 1 << 56;
/// Frames end here: 52 bits of physical address.
const FRAME_MAX: u64 = 1 << 40;

/// A region: table `i` of those over `pages` belongs in the frame `base + i`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SortedRegion {
    /// The process (`tgid`).
    pub process: u64,
    /// The tables' level.
    pub level: Level,
    /// The pages that the tables translate: those of whole tables.
    pub pages: VpnRange,
    /// The first table's place.
    pub base: Frame,
    /// Places of tables in use.
    pub used: u64,
    /// Places set aside, without a table.
    pub idle: u64,
    /// Places that the region has given back: their tables lie elsewhere.
    pub holes: u64,
}

impl SortedRegion {
    /// How many tables have a place in it.
    pub const fn tables(&self) -> PageCount {
        PageCount(self.pages.len() >> table_order(self.level))
    }

    /// Where the table that translates the pages from `first` on belongs; `None` if not in here.
    pub fn place_of(&self, level: Level, first: Vpn) -> Option<Frame> {
        let inside = level == self.level && self.pages.contains(first);
        inside.then(|| self.base + ((first.0 - self.pages.start.0) >> table_order(level)))
    }
}

/// log2 of the pages that a table of `level` translates.
const fn table_order(level: Level) -> u32 {
    Geometry::X86_5.entry_order(level.up())
}

/// The regions of all processes that the file `text` has, in its order.
///
/// # Errors
/// Names the line and what is wrong with it.
pub fn parse(text: &str) -> Result<Vec<SortedRegion>, String> {
    let mut lines = (1..).zip(text.lines());
    match lines.next() {
        Some((_, HEADER)) => {}
        _ => return Err(format!("line 1 is not \"{HEADER}\": give the kernel's file /{PATH} as it is")),
    }
    let mut found = Vec::new();
    for (number, line) in lines {
        found.push(region(line).map_err(|what| format!("line {number}: {what}"))?);
    }
    check_disjoint(&found)?;
    Ok(found)
}

/// The lines of `text` that are about `process`, under the header; the text again has this form.
///
/// # Errors
/// As [`parse`].
pub fn of_process(text: &str, process: u64) -> Result<String, String> {
    let found = parse(text)?;
    let lines = text.lines().skip(1).zip(&found).filter(|(_, region)| region.process == process);
    Ok(std::iter::once(HEADER).chain(lines.map(|(line, _)| line)).flat_map(|line| [line, "\n"]).collect())
}

/// Of the table nodes (level, first page, frame) that have a place in one of `regions`: how many
/// lie there, and how many elsewhere.
pub fn in_place(regions: &[SortedRegion], nodes: impl Iterator<Item = (Level, Vpn, Frame)>) -> (u64, u64) {
    let (mut there, mut elsewhere) = (0, 0);
    for (level, first, frame) in nodes {
        let place = regions.iter().find_map(|region| region.place_of(level, first));
        there += u64::from(place == Some(frame));
        elsewhere += u64::from(place.is_some_and(|place| place != frame));
    }
    (there, elsewhere)
}

fn region(line: &str) -> Result<SortedRegion, String> {
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    let names: Vec<&str> = HEADER.split(' ').collect();
    if words.len() != names.len() {
        return Err(format!("{} columns, and there are {}: {HEADER}", words.len(), names.len()));
    }
    let number = |column: usize| {
        let radix = if (2..=4).contains(&column) { 16 } else { 10 };
        let digits = words[column];
        // A sign is no digit, and from_str_radix would take one.
        let plain = digits.bytes().all(|byte| byte.is_ascii_alphanumeric());
        let value = u64::from_str_radix(digits, radix).ok().filter(|_| plain);
        value.ok_or_else(|| format!("{} = {digits:?} is no number", names[column]))
    };
    let [process, level, start, end, base, used, idle, holes] =
        [number(0)?, number(1)?, number(2)?, number(3)?, number(4)?, number(5)?, number(6)?, number(7)?];
    let level = u8::try_from(level).ok().filter(|level| (1..=LEVEL_MAX).contains(level));
    let level = Level(level.ok_or_else(|| format!("level = {}: levels are 1 to {LEVEL_MAX}", words[1]))?);
    let bytes = PageCount(1 << table_order(level)).bytes();
    if start >= end || end > ADDRESS_MAX || start % bytes != 0 || end % bytes != 0 {
        return Err(format!("{start:#x} to {end:#x} is no range of whole tables of level {}", level.0));
    }
    let pages = VpnRange { start: Va(start).page(), end: Va(end).page() };
    let region = SortedRegion { process, level, pages, base: Frame(base), used, idle, holes };
    let tables = region.tables().0;
    if base.checked_add(tables).is_none_or(|end| end > FRAME_MAX) {
        return Err(format!("first_pfn = {base:#x}: {tables} frames from there on are no memory"));
    }
    if used.checked_add(idle).and_then(|sum| sum.checked_add(holes)) != Some(tables) {
        return Err(format!("used, idle and holes are {used}, {idle} and {holes}, of {tables} places"));
    }
    Ok(region)
}

/// No table has two places.
fn check_disjoint(found: &[SortedRegion]) -> Result<(), String> {
    let mut sorted: Vec<_> = found.iter().collect();
    sorted.sort_unstable_by_key(|region| (region.process, region.level, region.pages.start));
    for pair in sorted.windows(2) {
        let (one, two) = (pair[0], pair[1]);
        if (one.process, one.level) == (two.process, two.level) && two.pages.start < one.pages.end {
            let at = two.pages.start.0 << crate::addr::PAGE_SHIFT;
            return Err(format!("two regions of level {} of process {} have {at:#x}", one.level.0, one.process));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text(lines: &[&str]) -> String {
        [&[HEADER], lines].concat().join("\n") + "\n"
    }

    #[test]
    fn a_line_is_a_region() {
        let lines = [
            "71 1 7ffff0000000 7ffff0800000 1a200 3 1 0",
            "71 2 7fff80000000 800000000000 5c 1 0 1",
            "72 1 7ffff0000000 7ffff0200000 7 1 0 0",
        ];
        let found = parse(&text(&lines)).unwrap();
        let [first, second, third] = found[..] else { panic!("{found:?}") };
        assert_eq!(
            (first.process, first.level, first.base, first.tables()),
            (71, Level::PTE, Frame(0x1a200), PageCount(4))
        );
        assert_eq!(first.pages, VpnRange { start: Vpn(0x7_ffff_0000), end: Vpn(0x7_ffff_0800) });
        assert_eq!((first.used, first.idle, first.holes), (3, 1, 0));
        assert_eq!((second.level, second.tables()), (Level::PMD, PageCount(2)));
        assert_eq!(first.place_of(Level::PTE, Vpn(0x7_ffff_0400)), Some(Frame(0x1a202)));
        assert_eq!(first.place_of(Level::PTE, Vpn(0x7_ffff_0800)), None);
        assert_eq!(first.place_of(Level::PMD, Vpn(0x7_ffff_0400)), None);
        assert_eq!(second.place_of(Level::PMD, Vpn(0x7_fffc_0000)), Some(Frame(0x5d)));
        assert_eq!(third.process, 72);
        assert_eq!(of_process(&text(&lines), 72).unwrap(), text(&lines[2..]));
        assert_eq!(of_process(&text(&lines), 1).unwrap(), text(&[]));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        for (line, what) in [
            ("71 1 200000 400000 7 1 0", "line 2: 7 columns"),
            ("", "line 2: 0 columns"),
            ("71 0 200000 400000 7 1 0 0", "level = 0: levels are 1 to 4"),
            ("71 257 200000 400000 7 1 0 0", "level = 257"),
            ("71 1 200000 200000 7 0 0 0", "no range of whole tables"),
            ("71 1 201000 400000 7 1 0 0", "no range of whole tables"),
            ("71 2 200000 400000 7 1 0 0", "no range of whole tables of level 2"),
            ("71 1 200000 200000000000000 7 1 0 0", "no range of whole tables"),
            ("71 1 200000 400000 +7 1 0 0", "first_pfn = \"+7\" is no number"),
            ("71 1 200000 400000 xyz 1 0 0", "first_pfn = \"xyz\""),
            ("71 1 200000 400000 10000000000 1 0 0", "are no memory"),
            ("71 1 200000 400000 ffffffffffffffff 1 0 0", "are no memory"),
            ("71 1 200000 400000 7 1 1 0", "1, 1 and 0, of 1 places"),
            ("71 1 200000 400000 7 18446744073709551615 1 1", "of 1 places"),
        ] {
            let error = parse(&text(&[line])).unwrap_err();
            assert!(error.contains(what), "{error} / {what}");
        }
        let twice = ["71 1 200000 600000 7 2 0 0", "71 1 400000 800000 9 2 0 0"];
        assert_eq!(parse(&text(&twice)).unwrap_err(), "two regions of level 1 of process 71 have 0x400000");
        for other in ["", "tgid\n", "71 1 200000 400000 7 1 0 0\n"] {
            assert!(parse(other).unwrap_err().contains("as it is"), "{other:?}");
        }
    }

    proptest! {
        /// Any text is read or refused in one line.
        #[test]
        fn any_text_is_read_or_refused(lines in prop::collection::vec("[ 0-9a-f+-]{0,40}", 0..5)) {
            let lines: Vec<_> = lines.iter().map(String::as_str).collect();
            if let Err(error) = parse(&text(&lines)) {
                prop_assert!(!error.contains('\n'));
            }
        }

        /// What is written is read.
        #[test]
        fn regions_come_back(parts in prop::collection::vec((0u64..4, 1u64..9, 0u64..1 << 30, 1u8..=2), 1..9)) {
            let (mut at, mut lines, mut wanted) = (0, Vec::new(), Vec::new());
            for &(gap, tables, base, level) in &parts {
                let bytes = PageCount(1 << table_order(Level(level))).bytes();
                let start = (at + gap * bytes).next_multiple_of(bytes);
                at = start + tables * bytes;
                lines.push(format!("9 {level} {start:012x} {at:012x} {base:x} {} 1 0", tables - 1));
                wanted.push((start >> 12, at >> 12, Frame(base), tables));
            }
            let lines: Vec<_> = lines.iter().map(String::as_str).collect();
            let found = parse(&text(&lines)).unwrap();
            let found: Vec<_> = found.iter().map(|one| (one.pages.start.0, one.pages.end.0, one.base, one.tables().0)).collect();
            prop_assert_eq!(found, wanted);
        }
    }
}
