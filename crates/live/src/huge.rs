// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory in pages larger than 4 KiB: mapped by PMDs, in large folios, in hugetlb pages; and 2 MiB
//! pages of which little is used.

use serde::Serialize;

use crate::known::Known;
use crate::kpageflags::{COMPOUND_HEAD, COMPOUND_TAIL, HUGETLB, KSM};

/// Pages of a 2 MiB page.
pub const HUGE_PAGES: u64 = 512;
/// Limits of how full a 2 MiB region is: pages present, from this many on.
const FILLS: [u64; 4] = [1, 64, 256, 512];
/// 2 MiB pages whose contents are looked at, at the most.
pub(crate) const LOOKED_AT_MAX: usize = 256;
/// A 2 MiB page with fewer used pages than this counts as little used: an eighth.
const FEW: u32 = 64;

/// Memory in large pages.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct HugePages {
    /// Bytes of the process that PMDs (or PUDs) map, hugetlb included.
    pub pmd_mapped_bytes: Known<u64>,
    /// The same as a share of the memory that is present.
    pub pmd_mapped_share: Known<f64>,
    /// Bytes in hugetlb pages.
    pub hugetlb_bytes: Known<u64>,
    /// Pages mapped by PTEs that belong to large folios: what the kernel has in one piece though
    /// the TLB does not know it.
    pub large_folios: Known<LargeFolios>,
    /// 2 MiB regions of the process by how many of their 512 pages are present, mapped by PTEs:
    /// what huge pages would cost.
    pub regions: Vec<Fill>,
    /// 2 MiB pages of which little is used.
    pub few_used: Known<FewUsed>,
}

/// Regions that are so full.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Fill {
    /// From so many present pages on, up to the next line's.
    pub pages_min: u64,
    /// Regions.
    pub regions: u64,
}

/// How many pages are in large folios, as far as it was looked at.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct LargeFolios {
    /// Share of the pages that PTEs map.
    pub share: f64,
    /// Half of its 95 % interval, for pages that are drawn independently; 0 when all were looked
    /// at.
    pub share_ci95: f64,
    /// Share merged by KSM.
    pub ksm_share: f64,
    /// Pages whose flags were read.
    pub sampled: u64,
    /// Pages that they were drawn from.
    pub pages: u64,
}

/// 2 MiB pages whose contents were looked at.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct FewUsed {
    /// 2 MiB pages that were looked at: all, or so many evenly spaced ones.
    pub looked_at: u64,
    /// Those with fewer than 64 pages of 4 KiB that hold anything but zeros.
    pub few: u64,
    /// Share of the 4 KiB pages in all of them that hold nothing but zeros.
    pub zero_share: f64,
}

/// Counts regions by how full they are.
pub(crate) fn fills(present: impl Iterator<Item = u64>) -> Vec<Fill> {
    let mut fills = FILLS.map(|pages_min| Fill { pages_min, regions: 0 });
    for pages in present {
        if let Some(fill) = fills.iter_mut().rev().find(|fill| pages >= fill.pages_min) {
            fill.regions += 1;
        }
    }
    fills.to_vec()
}

/// What the flags of the frames that were drawn say, of `pages` pages in all.
pub(crate) fn large_folios(flags: &[u64], pages: u64) -> Known<LargeFolios> {
    if flags.is_empty() {
        return Known::not("no page is mapped by a PTE");
    }
    let count = |bits: u64| flags.iter().filter(|&&flag| flag & bits != 0).count() as f64;
    let large =
        flags.iter().filter(|&&flag| flag & (COMPOUND_HEAD | COMPOUND_TAIL) != 0 && flag & HUGETLB == 0).count();
    let sampled = flags.len() as f64;
    let share = large as f64 / sampled;
    let whole = flags.len() as u64 >= pages;
    let share_ci95 = if whole { 0.0 } else { half_interval(share, sampled) };
    Known::Is(LargeFolios { share, share_ci95, ksm_share: count(KSM) / sampled, sampled: flags.len() as u64, pages })
}

/// Half of Wilson's 95 % interval of a share.
fn half_interval(share: f64, count: f64) -> f64 {
    let z = 1.96_f64;
    let spread = share * (1.0 - share) / count + z * z / (4.0 * count * count);
    z / (1.0 + z * z / count) * spread.sqrt()
}

/// What the contents of some 2 MiB pages say, given the pages of zeros in each.
pub(crate) fn few_used(zeros: &[u32]) -> Known<FewUsed> {
    if zeros.is_empty() {
        return Known::not("no anonymous memory is mapped by PMDs");
    }
    let few = zeros.iter().filter(|&&zero| HUGE_PAGES as u32 - zero < FEW).count() as u64;
    let zero: u64 = zeros.iter().map(|&zero| u64::from(zero)).sum();
    let looked_at = zeros.len() as u64;
    Known::Is(FewUsed { looked_at, few, zero_share: zero as f64 / (looked_at * HUGE_PAGES) as f64 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_are_counted_by_how_full_they_are() {
        let found: Vec<u64> =
            fills([1, 63, 64, 255, 256, 511, 512, 0].into_iter()).iter().map(|fill| fill.regions).collect();
        assert_eq!(found, [2, 2, 2, 1]);
    }

    #[test]
    fn flags_tell_large_folios_from_single_pages_and_from_hugetlb() {
        let flags = [COMPOUND_HEAD, COMPOUND_TAIL, COMPOUND_HEAD | HUGETLB, 0];
        let found = large_folios(&flags, 4).value().copied().unwrap();
        assert_eq!((found.share, found.share_ci95, found.sampled), (0.5, 0.0, 4));
        let found = large_folios(&flags, 400).value().copied().unwrap();
        assert!(found.share_ci95 > 0.2, "{found:?}");
        assert!(large_folios(&[], 0).value().is_none());
    }

    #[test]
    fn little_used_pages_are_those_with_zeros_in_most() {
        let found = few_used(&[511, 449, 448, 0]).value().copied().unwrap();
        assert_eq!((found.looked_at, found.few), (4, 2));
        assert!((found.zero_share - 1408.0 / 2048.0).abs() < 1e-12);
    }
}
