// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel's settings that decide whether memory becomes huge, and what free memory is left to
//! make it of.

use serde::Serialize;

use crate::known::Known;
use crate::source::Source;

const THP: &str = "sys/kernel/mm/transparent_hugepage";
/// Linux has 11 orders of free blocks by default; a file with more than this is something else.
const ORDERS_MAX: usize = 64;
/// Pages of an order-3 block are what PTEMagnet and a 32 KiB folio take; of order 9, a 2 MiB page.
const ORDERS: [usize; 2] = [3, 9];

/// Settings of the kernel that the process runs on.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Settings {
    /// The kernel's release, as `uname -r` prints it.
    pub kernel: Known<String>,
    /// Transparent huge pages: `always`, `madvise` or `never`.
    pub thp_enabled: Known<String>,
    /// What a fault does when no huge page is free: `always`, `defer`, `defer+madvise`, `madvise`,
    /// `never`.
    pub thp_defrag: Known<String>,
    /// The same for shared memory.
    pub thp_shmem: Known<String>,
    /// Folios of other sizes (mTHP, Linux 6.8), smallest first.
    pub mthp: Known<Vec<Mthp>>,
    /// The daemon that collapses small pages into huge ones.
    pub khugepaged: Known<Khugepaged>,
    /// How readily anonymous memory is swapped out, against files: 0 to 200.
    pub swappiness: Known<u64>,
    /// How readily memory is compacted before it is needed: 0 to 100.
    pub compaction_proactiveness: Known<u64>,
    /// Free blocks of the buddy allocator.
    pub buddyinfo: Known<Buddy>,
}

/// A size of folios.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Mthp {
    /// Its size in KiB.
    pub kib: u64,
    /// `always`, `inherit`, `madvise` or `never`.
    pub enabled: String,
}

/// Settings of khugepaged.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Khugepaged {
    /// Pages that it looks at each time it wakes.
    pub pages_to_scan: u64,
    /// How long it sleeps between, ms.
    pub scan_sleep_ms: u64,
    /// Pages of the 512 that may be absent when it collapses: each of them becomes memory that is
    /// used.
    pub max_ptes_none: u64,
    /// Whether it compacts memory to get a huge page.
    pub defrag: u64,
}

/// Free memory by the size of its blocks, of all nodes and zones.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Buddy {
    /// Free blocks of order 0, 1, 2, ...; a block of order n has 4 KiB << n.
    pub blocks: Vec<u64>,
    /// Free bytes in blocks of order 3 and more: each can give 32 KiB.
    pub order3_bytes: u64,
    /// Free bytes in blocks of order 9 and more: each can give 2 MiB.
    pub order9_bytes: u64,
    /// All free bytes of the buddy allocator.
    pub free_bytes: u64,
}

impl Settings {
    /// What `source` says.
    pub fn read(source: &dyn Source) -> Self {
        let chosen = |name: &str| text(source, &format!("{THP}/{name}")).and_then(|text| choice(&text, name)).into();
        Self {
            kernel: text(source, "proc/sys/kernel/osrelease").into(),
            thp_enabled: chosen("enabled"),
            thp_defrag: chosen("defrag"),
            thp_shmem: chosen("shmem_enabled"),
            mthp: mthp(source),
            khugepaged: khugepaged(source).into(),
            swappiness: number(source, "proc/sys/vm/swappiness").into(),
            compaction_proactiveness: number(source, "proc/sys/vm/compaction_proactiveness").into(),
            buddyinfo: text(source, "proc/buddyinfo").and_then(|text| buddyinfo(&text)).into(),
        }
    }
}

/// The text of a file below `/`, without its line end; or why it is not known.
pub(crate) fn text(source: &dyn Source, path: &str) -> Result<String, String> {
    let text = source.system(path).map_err(|error| format!("/{path} cannot be read ({error})"))?;
    Ok(text.trim_end().to_owned())
}

pub(crate) fn number(source: &dyn Source, path: &str) -> Result<u64, String> {
    text(source, path)?.trim().parse().map_err(|_| format!("/{path} is no number"))
}

/// The word in brackets of `always [madvise] never`.
fn choice(text: &str, name: &str) -> Result<String, String> {
    let inside = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    inside.map(|(word, _)| word.to_owned()).ok_or_else(|| format!("{name} names no choice in brackets"))
}

fn mthp(source: &dyn Source) -> Known<Vec<Mthp>> {
    let mut sizes: Vec<Mthp> = Vec::new();
    for folder in source.folders(THP) {
        let kib = folder.strip_prefix("hugepages-").and_then(|rest| rest.strip_suffix("kB")).map(str::parse);
        let enabled = text(source, &format!("{THP}/{folder}/enabled")).and_then(|text| choice(&text, &folder));
        if let (Some(Ok(kib)), Ok(enabled)) = (kib, enabled) {
            sizes.push(Mthp { kib, enabled });
        }
    }
    sizes.sort_unstable_by_key(|size| size.kib);
    if sizes.is_empty() {
        return Known::not("this kernel has no folios of several sizes (mTHP; Linux 6.8 and later)");
    }
    Known::Is(sizes)
}

fn khugepaged(source: &dyn Source) -> Result<Khugepaged, String> {
    let value = |name: &str| number(source, &format!("{THP}/khugepaged/{name}"));
    Ok(Khugepaged {
        pages_to_scan: value("pages_to_scan")?,
        scan_sleep_ms: value("scan_sleep_millisecs")?,
        max_ptes_none: value("max_ptes_none")?,
        defrag: value("defrag")?,
    })
}

/// Free blocks in the text of `/proc/buddyinfo` (mm/vmstat.c, `frag_show`): lines such as
/// `Node 0, zone DMA 1 0 2`.
///
/// # Errors
/// When it is another file.
pub fn buddyinfo(text: &str) -> Result<Buddy, String> {
    let other = || "/proc/buddyinfo is not one of Linux".to_owned();
    let mut blocks: Vec<u64> = Vec::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let (_, rest) = line.split_once("zone").ok_or_else(other)?;
        let counts = rest.split_whitespace().skip(1).map(|word| word.parse::<u32>().map(u64::from));
        let counts: Vec<u64> = counts.collect::<Result<_, _>>().map_err(|_| other())?;
        if counts.is_empty() || counts.len() > ORDERS_MAX {
            return Err(other());
        }
        blocks.resize(blocks.len().max(counts.len()), 0);
        blocks.iter_mut().zip(counts).for_each(|(sum, count)| *sum = sum.saturating_add(count));
    }
    if blocks.is_empty() {
        return Err(other());
    }
    let bytes_from = |least: usize| {
        let large = blocks.iter().enumerate().skip(least);
        large.fold(0_u64, |sum, (order, &count)| {
            sum.saturating_add(count.saturating_mul(4096_u64.saturating_mul(1 << order.min(40))))
        })
    };
    let [order3_bytes, order9_bytes] = ORDERS.map(bytes_from);
    let free_bytes = bytes_from(0);
    Ok(Buddy { blocks, order3_bytes, order9_bytes, free_bytes })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn free_blocks_are_added_over_zones() {
        let text = "Node 0, zone      DMA      1      0      0      2\nNode 1, zone   Normal      4      0      0      0 0 0 0 0 0 3\n";
        let found = buddyinfo(text).unwrap();
        assert_eq!(found.blocks, [5, 0, 0, 2, 0, 0, 0, 0, 0, 3]);
        assert_eq!((found.order3_bytes, found.order9_bytes), (2 * 32768 + 3 * (2 << 20), 3 * (2 << 20)));
        assert_eq!(found.free_bytes, found.order3_bytes + 5 * 4096);
    }

    #[test]
    fn another_file_is_no_buddyinfo() {
        for bad in ["", "x", "Node 0, zone DMA", "Node 0, zone DMA 1 -2", "Node 0, zone DMA 1 x"] {
            assert!(buddyinfo(bad).is_err(), "{bad}");
        }
        assert_eq!(choice("always [madvise] never", "enabled"), Ok("madvise".into()));
        assert!(choice("always", "enabled").is_err());
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "(Node 0, zone|[ 0-9\n]){0,60}") {
            let _ = buddyinfo(&text);
        }
    }
}
