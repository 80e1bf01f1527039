// SPDX-License-Identifier: MIT OR Apache-2.0
//! A kernel, as a scenario describes it.

use nestwalk_mem::{Geometry, PageCount};
use nestwalk_os::{ManagerConfig, StartState, TablesConfig};
use serde::{Deserialize, Serialize};

use crate::paging::PagingConfig;

/// The most kernels on top of each other: as many as there is hardware that walks their tables.
pub(crate) const KERNELS_MAX: usize = 3;

/// One kernel of the stack.
#[derive(Clone, Debug, Default, Deserialize, Serialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct KernelScenario {
    /// Its physical memory; by default as much as what runs on it needs.
    #[serde(with = "nestwalk_mem::size::optional_pages")]
    #[schemars(with = "Option<nestwalk_mem::schema::Pages>")]
    pub memory: Option<PageCount>,
    /// Levels of its page tables: 4 or 5; by default as many as a dump has, else 4.
    pub levels: Option<u8>,
    /// Processors, each with its lists of free pages; by default as many as the program has
    /// threads.
    pub cpus: Option<u16>,
    /// Its memory manager.
    pub manager: ManagerConfig,
    /// Where it places page-table nodes.
    pub tables: TablesConfig,
    /// What its memory looks like before anything runs.
    pub start: StartState,
    /// A memory that `nestwalk memory` has saved: the file (relative to the scenario). The kernel's
    /// memory begins in that state, in place of `start`.
    pub saved: Option<String>,
    /// Memory that is kept free (sysctl `min_free_kbytes`); by default as much as Linux keeps.
    #[serde(with = "nestwalk_mem::size::optional_pages")]
    #[schemars(with = "Option<nestwalk_mem::schema::Pages>")]
    pub min_free: Option<PageCount>,
    /// How readily kcompactd compacts memory before a block is asked for, 0 (not at all) to 100
    /// (sysctl `compaction_proactiveness`, since Linux 5.9, 20 by default there): it begins when of
    /// the free memory more than 110 less this, per cent, lies outside of blocks of 2 MiB.
    pub compaction_proactiveness: u16,
    /// Page tables of a real process, dumped from a running machine: the file (relative to the
    /// scenario). The program's process then begins with them, frame by frame, and its memory
    /// events change nothing. Of the topmost kernel only.
    pub dump: Option<String>,
    /// Swap space; none by default.
    #[serde(with = "nestwalk_mem::size::optional_pages")]
    #[schemars(with = "Option<nestwalk_mem::schema::Pages>")]
    pub swap: Option<PageCount>,
    /// How the memory of the VM on it is translated.
    pub paging: PagingConfig,
}

impl KernelScenario {
    /// The shape of its page tables.
    pub(crate) fn geometry(&self) -> Result<Geometry, String> {
        match self.levels {
            None | Some(4) => Ok(Geometry::X86_4),
            Some(5) => Ok(Geometry::X86_5),
            Some(other) => Err(format!("levels = {other}: page tables have 4 or 5 levels")),
        }
    }
}
