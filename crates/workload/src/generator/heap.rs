// SPDX-License-Identifier: MIT OR Apache-2.0
//! A heap that grows while the program fills it, as `malloc` and a collector get memory: in steps,
//! each mapped when the program first needs a page beyond those before.
//!
//! What it decides: a kernel that makes a huge page at the first touch can only do so where the
//! 2 MiB around it are mapped by then (Linux: `thp_vma_suitable_order`, and `pmd_none` of what was
//! touched before), so a heap that grows by less gets none that way. A reservation may reach beyond
//! the end of the mapping (FreeBSD: `vm_reserv_alloc_page` for anonymous objects), so the same heap
//! grows into it.
//!
//! - `brk`: upwards, by the program break. glibc's `malloc` (`sysmalloc`) asks for what it needs
//!   and `DEFAULT_TOP_PAD`, 128 KiB, in whole pages: 132 KiB each time for small objects.
//! - `below`: mappings, each right below the one before and aligned to nothing, as Linux up to 6.6
//!   places them (`vm_unmapped_area`, top down). Filled in ascending order each. gcc's collected
//!   heap: `GGC_QUIRE_SIZE`, 256 pages up to gcc 4.6 and 512 since.
//! - `above`: mappings, each right above the one before, the first one aligned to 2 MiB, as FreeBSD
//!   places them (`vm_map_find`, `VMFS_OPTIMAL_SPACE`).
//!
//! Nothing is given back. One thread fills it, the first: it builds what all work on.

use std::collections::VecDeque;

use nestwalk_mem::addr::PAGE_BYTES;
use nestwalk_mem::{Access, Gva, PageCount, Vpn, VpnRange};
use serde::{Deserialize, Serialize};

use super::memory::Region;
use crate::stream::{Batch, MemoryEvent, Step, Workload, WorkloadError, WorkloadFacts};

/// Where the heap grows to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum HeapGrowth {
    /// Upwards, by the program break.
    #[default]
    Brk,
    /// In mappings, each right below the one before, aligned to nothing.
    Below,
    /// In mappings, each right above the one before, the first one aligned to 2 MiB.
    Above,
}

/// How a heap grows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct GrowingHeapConfig {
    /// By how much at a time: at most the heap's size. The default is glibc's, for small objects.
    #[serde(with = "nestwalk_mem::size::pages")]
    #[schemars(with = "nestwalk_mem::schema::Pages")]
    pub step: PageCount,
    /// Where to.
    pub grows: HeapGrowth,
}

impl Default for GrowingHeapConfig {
    fn default() -> Self {
        Self { step: PageCount(33), grows: HeapGrowth::Brk }
    }
}

/// A region that a program finds mapped as far as it has filled it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct GrowingRegion {
    /// Where the program believes it to be, in the order in which it fills it.
    pub(super) region: Region,
    /// How it grows.
    pub(super) config: GrowingHeapConfig,
}

impl GrowingRegion {
    /// Where a page of the region is. In mappings below each other the last step is the first.
    #[inline]
    fn place(&self, page: Vpn) -> Vpn {
        if self.config.grows != HeapGrowth::Below || !self.region.pages.contains(page) {
            return page;
        }
        let VpnRange { start, end } = self.region.pages;
        let step = self.config.step.0;
        let (nth, within) = ((page.0 - start.0) / step, (page.0 - start.0) % step);
        let last = (end.0 - start.0) % step;
        // The last step may be a part of one only: it is mapped as such.
        let bottom = end.0.checked_sub((nth + 1) * step).filter(|&bottom| bottom >= start.0).unwrap_or(start.0);
        debug_assert!(bottom > start.0 || last == 0 || within < last);
        Vpn(bottom + within)
    }

    /// The step that follows when `grown` pages are mapped, and what asks the kernel for it.
    fn grow(&self, grown: u64) -> (u64, MemoryEvent) {
        let VpnRange { start, end } = self.region.pages;
        let step = self.config.step.0.min(end.0 - start.0 - grown);
        let event = match self.config.grows {
            HeapGrowth::Brk => MemoryEvent::Brk { end: (start + grown + step).address() },
            HeapGrowth::Below | HeapGrowth::Above => {
                let range = VpnRange::new(self.place(start + grown), PageCount(step));
                MemoryEvent::Mmap { range, writable: true, anonymous: true }
            }
        };
        (step, event)
    }
}

/// A program whose heap grows.
pub(super) struct Growing {
    inner: Box<dyn Workload>,
    heap: GrowingRegion,
    /// Pages of the heap that are mapped; `None`: not even its beginning is known to the kernel.
    grown: Option<u64>,
    /// Touches that wait for the heap to grow.
    waiting: VecDeque<(Vpn, bool)>,
}

impl Growing {
    /// `inner`, which does not map the heap by itself.
    pub(super) fn new(inner: Box<dyn Workload>, heap: GrowingRegion) -> Self {
        Self { inner, heap, grown: None, waiting: VecDeque::new() }
    }

    /// Whether nothing has to be done before `page` is touched.
    fn is_mapped(&self, page: Vpn) -> bool {
        let pages = self.heap.region.pages;
        !pages.contains(page) || page.0 - pages.start.0 < self.grown.unwrap_or(0)
    }

    /// Asks for the next step, or says where the program break begins.
    fn grow(&mut self) -> Step {
        let Some(grown) = self.grown else {
            self.grown = Some(0);
            if self.heap.config.grows == HeapGrowth::Brk {
                return Step::Event(MemoryEvent::Brk { end: self.heap.region.pages.start.address() });
            }
            return self.grow();
        };
        let (step, event) = self.heap.grow(grown);
        self.grown = Some(grown + step);
        Step::Event(event)
    }

    /// Hands out the touches that wait, up to the first that needs a larger heap.
    fn touch(&mut self, batch: &mut Batch) -> Step {
        while let Some(&(page, store)) = self.waiting.front() {
            if !self.is_mapped(page) {
                break;
            }
            batch.touches.push((self.heap.place(page), store));
            self.waiting.pop_front();
        }
        if batch.touches.is_empty() { self.grow() } else { Step::Touches }
    }

    /// The access, where its page is.
    #[inline]
    fn moved(&self, access: Access) -> Access {
        let gva = access.gva();
        let place = self.heap.place(Vpn(gva.page().0));
        Access::new(Gva(place.address().0 + gva.0 % PAGE_BYTES), access.is_store())
    }
}

impl Workload for Growing {
    fn facts(&self) -> WorkloadFacts {
        self.inner.facts()
    }

    fn end_warm_up(&mut self) {
        self.inner.end_warm_up();
    }

    fn next(&mut self, batch: &mut Batch) -> Result<Step, WorkloadError> {
        if self.waiting.is_empty() {
            let step = self.inner.next(batch)?;
            if step == Step::Accesses && self.heap.config.grows == HeapGrowth::Below {
                batch.accesses.iter_mut().for_each(|access| *access = self.moved(*access));
            }
            if step != Step::Touches {
                return Ok(step);
            }
            self.waiting.extend(batch.touches.drain(..));
        } else {
            batch.clear();
        }
        Ok(self.touch(batch))
    }
}
