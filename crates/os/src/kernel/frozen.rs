// SPDX-License-Identifier: MIT OR Apache-2.0
//! A process whose page table is given: node by node and page by page where a real kernel had put
//! them.
//!
//! What becomes of such a process afterwards (a page that the table does not have, a fork, an
//! unmap) is this kernel's business, as if it had made the table itself. The kernel's half, if it
//! is given, stays as it is: it belongs to no mapping, nothing moves or frees what is in it, and
//! every page may be stored to.
//!
//! Where the real kernel kept nodes in the order of their addresses, and told so, hardware is told
//! the same ([`Kernel::table_regions`]) for as long as the process lives. Nothing checks that a
//! node lies at its place: hardware that computes the place of one that does not is wrong, as it
//! would be there. Places without a node belong to the regions and stay empty: what this kernel
//! adds to the table lies elsewhere.

use std::collections::{BTreeMap, HashMap};

use nestwalk_mem::{
    Cpu, Frame, FrameRange, Level, Owner, PageCount, PageSize, PageTable, SortedRegion, Vpn, VpnRange, sorted_regions,
};

use crate::below::{Below, Hypercall, HypercallReply};
use crate::context::placement::TableRegion;
use crate::error::OsError;
use crate::kernel::Kernel;
use crate::state::process::{Process, ProcessId, WalkTime};
use crate::state::vma::{VmaFlags, Vmas};
use crate::tables::TablesConfig;

/// A node of a page table that was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrozenNode {
    /// Its level.
    pub level: Level,
    /// The first page that it covers.
    pub first: Vpn,
    /// Where it lies.
    pub frame: Frame,
}

/// A page that such a table maps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrozenLeaf {
    /// The first 4 KiB page.
    pub page: Vpn,
    /// Where it lies.
    pub frame: Frame,
    /// Its size.
    pub size: PageSize,
    /// Whether stores are allowed.
    pub writable: bool,
}

/// A page table that was found: what [`Kernel::spawn_frozen`] makes a process of.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FrozenTable {
    /// All nodes, in any order, the root among them.
    pub nodes: Vec<FrozenNode>,
    /// All pages, by address, each under nodes that are there.
    pub leaves: Vec<FrozenLeaf>,
    /// Where nodes lie in order by what the kernel tells, if it does: of one process, disjoint.
    pub regions: Vec<SortedRegion>,
}

impl FrozenTable {
    /// The least memory that holds every frame it speaks of.
    pub fn memory(&self) -> PageCount {
        let nodes = self.nodes.iter().map(|node| node.frame.0 + 1);
        let leaves = self.leaves.iter().map(|leaf| leaf.frame.0 + leaf.size.pages());
        let regions = self.regions.iter().map(|region| region.base.0 + region.tables().0);
        PageCount(nodes.chain(leaves).chain(regions).max().unwrap_or(0))
    }

    /// Of the nodes that have a place in a region: how many lie there, and how many elsewhere.
    pub fn in_place(&self) -> (u64, u64) {
        sorted_regions::in_place(&self.regions, self.nodes.iter().map(|node| (node.level, node.first, node.frame)))
    }

    /// The level of its root; `None` if it has no node.
    pub fn root(&self) -> Option<Level> {
        self.nodes.iter().map(|node| node.level).max()
    }

    /// Its pages without the direct map (`page_offset_base`), which maps every frame at the same
    /// distance and owns none: the distance that most pages have.
    fn beside_direct_map(&self) -> impl Iterator<Item = &FrozenLeaf> {
        let distance = |leaf: &FrozenLeaf| leaf.page.0.wrapping_sub(leaf.frame.0);
        let mut pages: HashMap<u64, u64> = HashMap::new();
        self.leaves.iter().for_each(|leaf| *pages.entry(distance(leaf)).or_default() += leaf.size.pages());
        let direct = pages.into_iter().max_by_key(|&(distance, pages)| (pages, distance)).map(|(distance, _)| distance);
        self.leaves.iter().filter(move |leaf| Some(distance(leaf)) != direct)
    }

    /// The pages that it maps as stretches of one kind, by address: what its mappings must have
    /// been at least.
    fn mappings(&self) -> Vec<(VpnRange, bool)> {
        let mut found: Vec<(VpnRange, bool)> = Vec::new();
        for leaf in &self.leaves {
            let end = leaf.page + leaf.size.pages();
            match found.last_mut() {
                Some((range, writable)) if range.end == leaf.page && *writable == leaf.writable => range.end = end,
                _ => found.push((VpnRange { start: leaf.page, end }, leaf.writable)),
            }
        }
        found
    }
}

impl Kernel {
    /// A new process with the page table `found`: its nodes and pages in the very frames that it
    /// names, mapped as anonymous memory; and with the kernel's half `kernel` (without the root),
    /// which may be empty. Everything is backed below, by address, as in a machine that has run for
    /// a while. Call it before anything else has taken memory.
    ///
    /// The kernel below is asked to make each region contiguous in its memory, as ASAP's guests do
    /// (Margaritov et al., MICRO-52, 2019, section 3.6).
    ///
    /// # Errors
    /// When a frame that the table names does not exist or is taken, when the table has not as many
    /// levels as this kernel's tables, when this kernel sorts tables itself and the table has
    /// regions already, or when memory below is short.
    ///
    /// # Panics
    /// When a page lies under no node of the table.
    pub fn spawn_frozen(
        &mut self,
        found: &FrozenTable,
        kernel: &FrozenTable,
        below: &mut dyn Below,
    ) -> Result<ProcessId, OsError> {
        let geometry = self.config.geometry;
        let both = found.nodes.iter().chain(&kernel.nodes);
        let nodes: BTreeMap<_, _> = both.map(|node| ((node.level, node.first), node.frame)).collect();
        let Some(&root) = nodes.get(&(geometry.root(), Vpn(0))).filter(|_| found.root() == Some(geometry.root()))
        else {
            let levels = found.root().map_or(0, |level| level.0);
            return Err(refused(format!("it has {levels} levels and this kernel's tables have {}", geometry.levels())));
        };
        if !found.regions.is_empty() && matches!(self.config.tables, TablesConfig::Asap(_)) {
            return Err(refused("it has the regions of its own kernel: leave tables = { kind = \"asap\" } out".into()));
        }
        self.take_frames(found, below)?;
        self.take_kernel(kernel, below)?;
        self.take_places(&found.regions, below)?;
        let process = Process {
            vmas: Vmas::default(),
            table: PageTable::new(geometry, root),
            cpu: Cpu(0),
            heap: None,
            parent: None,
            last_node: None,
            walk_time: WalkTime::default(),
            cgroup_limit: None,
        };
        let id = self.state.processes.insert(process)?;
        for (range, writable) in found.mappings() {
            self.mmap(id, range, VmaFlags { writable, ..VmaFlags::ANONYMOUS }, below)?;
        }
        for node in &found.nodes {
            self.state.memory.set_owner(node.frame, Owner::TableNode { process: id.0 });
        }
        let space = self.state.processes.get_mut(id)?;
        let mut made = 1;
        for leaf in &found.leaves {
            let flags = if leaf.writable { nestwalk_mem::Entry::WRITABLE } else { 0 };
            space.table.map(leaf.page, leaf.frame, leaf.size, flags, |level, first| {
                made += 1;
                Ok::<_, OsError>(nodes[&(level, first)])
            })?;
        }
        self.state.counters.nodes_made += made;
        self.own_leaves(id, found);
        let table = &mut self.state.processes.get_mut(id)?.table;
        for leaf in &kernel.leaves {
            table.map(leaf.page, leaf.frame, leaf.size, nestwalk_mem::Entry::WRITABLE, |level, first| {
                Ok::<_, OsError>(nodes[&(level, first)])
            })?;
        }
        self.keep_regions(id, &found.regions, below);
        Ok(id)
    }

    /// Sets the places in `regions` that no node or page lies in aside, for good.
    fn take_places(&mut self, regions: &[SortedRegion], below: &mut dyn Below) -> Result<(), OsError> {
        for region in regions {
            for frame in FrameRange::new(region.base, region.tables()).iter() {
                if self.state.memory.take(frame) {
                    self.state.memory.set_owner(frame, Owner::Kernel);
                    self.state.pinned.0 += 1;
                    below.touch(FrameRange::single(frame), true)?;
                }
            }
        }
        Ok(())
    }

    /// Remembers what hardware is told of `process`.
    fn keep_regions(&mut self, process: ProcessId, regions: &[SortedRegion], below: &mut dyn Below) {
        if regions.is_empty() {
            return;
        }
        let mut kept = Vec::with_capacity(regions.len());
        for region in regions {
            self.state.counters.hypercalls += 1;
            let frames = FrameRange::new(region.base, region.tables());
            let below = match below.hypercall(Hypercall::MakeContiguous(frames)) {
                HypercallReply::Done { base, .. } => base,
                HypercallReply::Unsupported => None,
            };
            kept.push(TableRegion { pages: region.pages, level: region.level, base: region.base, below });
        }
        self.frozen_regions.insert(process, kept);
        self.frozen_generation += 1;
    }

    /// Forgets what hardware was told of `process`, which is gone.
    pub(super) fn drop_frozen_regions(&mut self, process: ProcessId) {
        if self.frozen_regions.remove(&process).is_some() {
            self.frozen_generation += 1;
        }
    }

    /// Takes every frame once, and backs them below.
    fn take_frames(&mut self, found: &FrozenTable, below: &mut dyn Below) -> Result<(), OsError> {
        let size = self.state.memory.frames();
        if found.memory() > size {
            let needed = nestwalk_mem::size::format(found.memory().bytes());
            return Err(refused(format!("it needs memory = \"{needed}\" or more")));
        }
        let nodes = found.nodes.iter().map(|node| FrameRange::single(node.frame));
        let leaves = found.leaves.iter().map(|leaf| FrameRange::new(leaf.frame, PageCount(leaf.size.pages())));
        let mut frames: Vec<_> = nodes.chain(leaves).flat_map(|range| range.iter()).collect();
        frames.sort_unstable();
        frames.dedup();
        for frame in frames {
            if !self.state.memory.take(frame) {
                return Err(refused(format!("frame {:#x} is taken: let the kernel start fresh", frame.0)));
            }
            below.touch(FrameRange::single(frame), true)?;
        }
        Ok(())
    }

    /// Takes what is the kernel's own, for good, and backs all that it maps below. Frames that the
    /// process has, too (as a shared zero page), stay the process's.
    fn take_kernel(&mut self, kernel: &FrozenTable, below: &mut dyn Below) -> Result<(), OsError> {
        let size = self.state.memory.frames();
        if kernel.memory() > size {
            let needed = nestwalk_mem::size::format(kernel.memory().bytes());
            return Err(refused(format!("the kernel's half needs memory = \"{needed}\" or more")));
        }
        let nodes = kernel.nodes.iter().map(|node| FrameRange::single(node.frame));
        let leaves = kernel.beside_direct_map().map(|leaf| FrameRange::new(leaf.frame, PageCount(leaf.size.pages())));
        for frame in nodes.chain(leaves).flat_map(|range| range.iter()) {
            // Tables are shared between places (espfix), and pages mapped at several.
            if self.state.memory.take(frame) {
                self.state.memory.set_owner(frame, Owner::Kernel);
                self.state.pinned.0 += 1;
            }
        }
        let mut all: Vec<_> = kernel.leaves.iter().map(|leaf| (leaf.frame, leaf.size.pages())).collect();
        all.extend(kernel.nodes.iter().map(|node| (node.frame, 1)));
        all.sort_unstable();
        let mut end = Frame(0);
        for (first, pages) in all {
            let (start, past) = (first.max(end), first + pages);
            if start < past {
                below.touch(FrameRange::new(start, PageCount(past.0 - start.0)), true)?;
                end = past;
            }
        }
        Ok(())
    }

    /// Says whose the pages are. A frame that is mapped more than once is shared.
    fn own_leaves(&mut self, process: ProcessId, found: &FrozenTable) {
        let mut seen = std::collections::BTreeSet::new();
        for leaf in &found.leaves {
            for i in 0..leaf.size.pages() {
                let frame = leaf.frame + i;
                if seen.insert(frame) {
                    self.state.memory.set_owner(frame, Owner::Page { process: process.0, page: leaf.page + i });
                } else {
                    self.state.memory.share(frame);
                }
            }
        }
    }
}

fn refused(what: String) -> OsError {
    OsError::Config { key: "dump", what }
}
