// SPDX-License-Identifier: MIT OR Apache-2.0
//! `page_touch`: the two micro-benchmarks of HugeGPT's evaluation. One array; an access loads one
//! word. With no locality the page is drawn uniformly; with weak locality every page is touched
//! once, one after the other, `stride_pages` apart, and then all again from the next one. Nothing
//! else happens, local accesses are left out: they exist to do nothing but walk.

use nestwalk_mem::addr::PAGE_BYTES;
use nestwalk_mem::{Access, PageCount, Vpn};
use serde::{Deserialize, Serialize};

use super::bijection::{Dice, mix};
use super::config::{impossible, parameters};
use super::memory::{MmapArea, Region, Sweep};
use super::program::Program;
use crate::stream::WorkloadError;

/// Instructions of an access (assumed): index, load, count, branch.
const INSTRUCTIONS_PER_ACCESS: u64 = 4;
const LINE: u64 = 64;

/// In which order pages are touched.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Locality {
    /// At random.
    None,
    /// Each once, in strides.
    Weak,
}

parameters! {
    /// An access a page.
    PageTouchConfig {
        /// In which order.
        locality: Locality = Locality::None,
        /// With weak locality, pages from one to the next: 1 to 65536.
        stride_pages: u64 = 1,
    }
}

pub(super) struct PageTouch {
    array: Region,
    locality: Locality,
    stride: u64,
    sweep: Sweep,
    /// Of each thread: accesses made.
    done: Vec<u64>,
    dice: Vec<Dice>,
}

impl PageTouch {
    pub(super) fn new(config: &PageTouchConfig) -> Result<Self, WorkloadError> {
        config.common().check(Self::NAME)?;
        if !(1..=65_536).contains(&config.stride_pages) {
            return Err(impossible(Self::NAME, format!("stride_pages = {}: from 1 to 65536", config.stride_pages)));
        }
        let array = MmapArea::new().map(config.footprint);
        Ok(Self {
            sweep: Sweep::new(vec![vec![array]], config.threads),
            array,
            locality: config.locality,
            stride: config.stride_pages,
            done: vec![0; config.threads.into()],
            dice: Dice::of_threads(config.seed, config.threads),
        })
    }

    /// The page of a thread's access number `nth` of its `pages` pages.
    fn strided(&self, nth: u64, pages: u64) -> u64 {
        let nth = nth % pages;
        // Rows of pages a stride apart; the last rows may be one shorter.
        let (stride, full) = (self.stride.min(pages), pages / self.stride.min(pages));
        let longer = pages % stride;
        let row =
            if nth < longer * (full + 1) { nth / (full + 1) } else { longer + (nth - longer * (full + 1)) / full };
        let before = row * full + row.min(longer);
        row + (nth - before) * stride
    }
}

impl Program for PageTouch {
    const NAME: &'static str = "page_touch";

    fn regions(&self) -> Vec<Region> {
        vec![self.array]
    }

    fn footprint(&self) -> PageCount {
        PageCount(self.array.pages.len())
    }

    fn touch(&mut self, thread: u16, touches: &mut Vec<(Vpn, bool)>, most: usize) {
        self.sweep.touch(thread, touches, most);
    }

    fn fill(&mut self, thread: u16, accesses: &mut Vec<Access>, most: usize) -> u64 {
        let index = usize::from(thread);
        let (all, threads) = (self.array.pages.len(), self.done.len() as u64);
        let (start, end) = (all * u64::from(thread) / threads, all * (u64::from(thread) + 1) / threads);
        let room = (most - accesses.len()) as u64;
        for _ in 0..room {
            let nth = self.done[index];
            self.done[index] += 1;
            let page = match self.locality {
                Locality::None => self.dice[index].below(all),
                Locality::Weak => start + self.strided(nth, end - start),
            };
            accesses.push(Access::load(self.array.at(page * PAGE_BYTES + mix(page) % (PAGE_BYTES / LINE) * LINE)));
        }
        room * INSTRUCTIONS_PER_ACCESS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_is_touched_once_whatever_the_stride() {
        for stride_pages in [1, 3, 8, 500, 60_000] {
            let config = PageTouchConfig {
                footprint: PageCount(1000),
                locality: Locality::Weak,
                stride_pages,
                ..PageTouchConfig::default()
            };
            let touch = PageTouch::new(&config).unwrap();
            let order: Vec<u64> = (0..1000).map(|nth| touch.strided(nth, 1000)).collect();
            let mut pages = order.clone();
            pages.sort_unstable();
            assert!(pages.into_iter().eq(0..1000), "{stride_pages}");
            let step = if stride_pages < 1000 { stride_pages } else { 1 };
            assert_eq!(order[1] - order[0], step, "{stride_pages}");
        }
    }
}
