// SPDX-License-Identifier: MIT OR Apache-2.0
//! Multi-size transparent huge pages (Linux 6.8 and later): a fault takes a folio of 16 KiB to
//! 1 MiB, zeroes all of it and maps all its pages, which stay 4 KiB leaves (`alloc_anon_folio`,
//! `do_anonymous_page`).
//!
//! What a user of a new kernel would try before PTEMagnet: neighbours lie side by side, at the
//! price of memory for pages that may never be touched. After a fork, copies are made page by page
//! (`wp_page_copy`) and lie anywhere.
//!
//! Where PTEs have a contiguous bit (arm64), `set_ptes` sets it in each aligned 64 KiB of a folio
//! (`contpte_set_ptes`): folios of 64 KiB and more.

use nestwalk_mem::counters::{Counter, list};
use nestwalk_mem::{CONTIGUOUS_PAGES, FrameRange, Order, PageCount, PageSize, Vpn};
use serde::{Deserialize, Serialize};

use crate::context::Context;
use crate::context::event::Fault;
use crate::error::OsError;
use crate::manager::contract::{Deallocation, Facts, MemoryManager, Preparation, Promotion, When};
use crate::manager::linux4k::map_one_page;
use crate::state::vma::{HugeAdvice, VmaKind};

/// Its choices at the five events.
pub const FACTS: Facts = Facts {
    name: "mthp",
    source: "Linux 6.8, mm/memory.c, alloc_anon_folio",
    block: PageCount(8),
    allocation: When::Fault,
    preparation: Preparation::Full,
    mapping: When::Never,
    promotion: Promotion::None,
    deallocation: Deallocation::OnUnmap,
};

/// Its parameters.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct MThpConfig {
    /// The folio's size, as one of `/sys/kernel/mm/transparent_hugepage/hugepages-*kB`: 16 KiB to
    /// 1 MiB, a power of two.
    pub folio: Folio,
}

impl Default for MThpConfig {
    fn default() -> Self {
        Self { folio: Folio::K32 }
    }
}

/// A folio's size.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub enum Folio {
    /// 4 pages.
    #[serde(rename = "16 KiB")]
    K16,
    /// 8 pages: a line of PTEs.
    #[serde(rename = "32 KiB")]
    K32,
    /// 16 pages.
    #[serde(rename = "64 KiB")]
    K64,
    /// 32 pages.
    #[serde(rename = "128 KiB")]
    K128,
    /// 64 pages.
    #[serde(rename = "256 KiB")]
    K256,
    /// 128 pages.
    #[serde(rename = "512 KiB")]
    K512,
    /// 256 pages.
    #[serde(rename = "1 MiB")]
    M1,
}

impl Folio {
    const fn order(self) -> Order {
        Order(self as u8 + 2)
    }
}

nestwalk_mem::counters! {
    /// What mTHP counts.
    pub numbers MThpCounters {
        /// Folios mapped.
        folios ["folios"],
        /// Faults that were to map a folio, and got a single page for want of a block.
        fallbacks ["faults"],
    }
}

/// See the [module](self).
#[derive(Clone, Copy, Debug)]
pub struct MThp {
    order: Order,
    counters: MThpCounters,
}

impl MThp {
    /// With folios of the size that `config` says.
    pub fn new(config: MThpConfig) -> Self {
        Self { order: config.folio.order(), counters: MThpCounters::default() }
    }

    /// The first page of the folio for the fault, if the mapping holds all of it and none of it is
    /// in use (`thp_vma_suitable_orders`, `pte_range_none`).
    fn first_page(&self, cx: &Context<'_>, fault: &Fault) -> Option<Vpn> {
        let order = u32::from(self.order.0);
        let flags = fault.vma.flags;
        if flags.kind != VmaKind::Anonymous
            || flags.advice == HugeAdvice::NoHuge
            || !fault.vma.holds_block(fault.page, order)
        {
            return None;
        }
        let first = fault.page.align_down(order);
        let table = &cx.state.processes.get(fault.process).ok()?.table;
        table.is_bare(first, order).then_some(first)
    }

    /// Maps all pages of the folio at `frames`; the first may fail, for want of a table node.
    fn map_folio(cx: &mut Context<'_>, fault: &Fault, first: Vpn, frames: FrameRange) -> Result<(), OsError> {
        for (place, frame) in frames.iter().enumerate() {
            cx.zero(FrameRange::single(frame))?;
            let page = first + place as u64;
            if let Err(error) = cx.map(fault.process, page, frame, PageSize::Small, fault.leaf_flags()) {
                let table = &mut cx.state.processes.get_mut(fault.process)?.table;
                for done in 0..place as u64 {
                    table.unmap(first + done);
                }
                return Err(error);
            }
        }
        if frames.count.0 >= CONTIGUOUS_PAGES {
            for place in (0..frames.count.0).step_by(CONTIGUOUS_PAGES as usize) {
                cx.join(fault.process, first + place, true)?;
            }
        }
        Ok(())
    }
}

impl MemoryManager for MThp {
    fn facts(&self) -> &'static Facts {
        &FACTS
    }

    fn keeps_for_huge_pages(&self) -> bool {
        true
    }

    fn fault(&mut self, cx: &mut Context<'_>, fault: &Fault) -> Result<PageSize, OsError> {
        let Some(first) = self.first_page(cx, fault) else { return map_one_page(cx, fault) };
        let Some(frame) = cx.state.alloc(self.order, cx.cpu) else {
            self.counters.fallbacks += 1;
            return map_one_page(cx, fault);
        };
        let frames = FrameRange::new(frame, PageCount(self.order.frames()));
        if let Err(error) = Self::map_folio(cx, fault, first, frames) {
            cx.free(frames);
            return Err(error);
        }
        self.counters.folios += 1;
        Ok(PageSize::Small)
    }

    fn counters(&self) -> Vec<Counter> {
        list(&self.counters)
    }
}

#[cfg(test)]
mod tests;
