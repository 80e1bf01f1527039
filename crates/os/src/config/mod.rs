// SPDX-License-Identifier: MIT OR Apache-2.0
//! A kernel's configuration, as scenario files have it.

use nestwalk_mem::physical::{BuddyInfo, PhysicalMemory};
use nestwalk_mem::{Geometry, PageCount};
use serde::{Deserialize, Serialize};

pub mod geometry;

use crate::error::OsError;
use crate::manager::ManagerConfig;
use crate::tables::TablesConfig;

/// Everything that makes a kernel.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelConfig {
    /// Its physical memory: `"16 GiB"`, `"512 MiB"`, `"64 KiB"`, or a number of bytes.
    #[serde(with = "nestwalk_mem::size::pages")]
    pub memory: PageCount,
    /// Its processors.
    #[serde(default = "one")]
    pub cpus: u16,
    /// Levels of its page tables: 4 or 5 (or `{ levels, index_bits }` for odd ones).
    #[serde(default = "four_levels", with = "geometry")]
    pub geometry: Geometry,
    /// How user memory is managed.
    #[serde(default)]
    pub manager: ManagerConfig,
    /// Where page-table nodes are put.
    #[serde(default)]
    pub tables: TablesConfig,
    /// What the memory looks like before the first process begins.
    #[serde(default)]
    pub start: StartState,
    /// Swap space. None: pages that were written cannot be reclaimed.
    #[serde(default, with = "nestwalk_mem::size::pages")]
    pub swap: PageCount,
    /// Memory that is kept free (sysctl `min_free_kbytes`); as much as Linux keeps with this memory
    /// manager if it is left out.
    #[serde(default, with = "nestwalk_mem::size::optional_pages", skip_serializing_if = "Option::is_none")]
    pub min_free: Option<PageCount>,
    /// How readily kcompactd compacts memory before a block is asked for (sysctl
    /// `compaction_proactiveness`, since Linux 5.9), 0 to 100: it begins when of the free memory
    /// more than 110 less this, per cent, lies outside of blocks of 2 MiB. 0: not at all. Linux's
    /// default is 20.
    #[serde(default)]
    pub compaction_proactiveness: u16,
    /// Whether it answers hypercalls of its guests.
    #[serde(default = "yes")]
    pub hypercalls: bool,
    /// Whether PTEs have a contiguous bit, as arm64's, which its memory manager may set: 64 KiB in
    /// one TLB entry.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub contiguous: bool,
    /// The seed of everything random in it.
    #[serde(default)]
    pub seed: u64,
}

impl KernelConfig {
    /// A kernel with `memory`, and all else at its default: one processor, 4 levels, `linux4k`,
    /// nodes from the buddy allocator, fresh memory, no swap.
    pub fn new(memory: PageCount) -> Self {
        Self {
            memory,
            cpus: 1,
            geometry: Geometry::X86_4,
            manager: ManagerConfig::default(),
            tables: TablesConfig::default(),
            start: StartState::default(),
            swap: PageCount(0),
            min_free: None,
            compaction_proactiveness: 0,
            hypercalls: true,
            contiguous: false,
            seed: 0,
        }
    }
}

impl KernelConfig {
    /// Whether all values are possible.
    pub(crate) fn check(&self) -> Result<(), OsError> {
        let share = |key: &'static str, value: u16| match value {
            0..=1000 => Ok(()),
            _ => Err(OsError::Config { key, what: format!("{value} of 1000: give 0 to 1000") }),
        };
        if let TablesConfig::Asap(asap) = self.tables {
            asap.check()?;
        }
        match &self.manager {
            ManagerConfig::Quicksilver(quicksilver) => quicksilver.check()?,
            ManagerConfig::Ingens(ingens) => ingens.check()?,
            ManagerConfig::HawkEye(hawkeye) => hawkeye.check()?,
            _ => {}
        }
        if self.compaction_proactiveness > 100 {
            let what = format!("{}: give 0 to 100", self.compaction_proactiveness);
            return Err(OsError::Config { key: "compaction_proactiveness", what });
        }
        if let Some(min_free) = self.min_free
            && min_free.0 > self.memory.0 / 4
        {
            let what = format!("{} pages of {}: give at most a quarter", min_free.0, self.memory.0);
            return Err(OsError::Config { key: "min_free", what });
        }
        match self.start {
            StartState::Fresh => Ok(()),
            StartState::Fragmented { blocks_permille, frames_per_block, unmovable_permille } => {
                share("start.blocks_permille", blocks_permille)?;
                share("start.unmovable_permille", unmovable_permille)?;
                if !(1..=512).contains(&frames_per_block) {
                    let what = format!("{frames_per_block}: a 2 MiB block has 512 frames, give 1 to 512");
                    return Err(OsError::Config { key: "start.frames_per_block", what });
                }
                Ok(())
            }
            StartState::Aged { used_permille, kept_permille, kernel_permille, kernel_kept_permille } => {
                share("start.used_permille", used_permille)?;
                share("start.kept_permille", kept_permille)?;
                share("start.kernel_permille", kernel_permille)?;
                share("start.kernel_kept_permille", kernel_kept_permille)
            }
            StartState::BuddyInfo { free_blocks, of, kernel_permille, kernel_kept_permille } => {
                share("start.kernel_permille", kernel_permille)?;
                share("start.kernel_kept_permille", kernel_kept_permille)?;
                let here = scaled(&free_blocks, of, self.memory);
                if let Some(order) = BuddyInfo::too_many(self.memory.0, &here) {
                    let what = format!(
                        "{} blocks of order {} cannot be free in {} pages, beside the larger ones; say with `of` of \
                         which memory these are the numbers",
                        here[usize::from(order.0)],
                        order.0,
                        self.memory.0
                    );
                    return Err(OsError::Config { key: "start.free_blocks", what });
                }
                Ok(())
            }
            StartState::Frag { percent, need, kept_pages, .. } => {
                if percent > 100 {
                    let what = format!("{percent}: a share of what the program needs, give 0 to 100");
                    return Err(OsError::Config { key: "start.percent", what });
                }
                if !(1..=511).contains(&kept_pages) {
                    let what = format!("{kept_pages}: a 2 MiB block has 512 pages, give 1 to 511");
                    return Err(OsError::Config { key: "start.kept_pages", what });
                }
                if need >= self.memory {
                    let what = format!("{} pages of {}: give less than all memory", need.0, self.memory.0);
                    return Err(OsError::Config { key: "start.need", what });
                }
                Ok(())
            }
        }
    }
}

/// What the memory looks like before the first process begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum StartState {
    /// All free, in the largest blocks.
    #[default]
    #[serde(deserialize_with = "crate::keys::no_keys")]
    Fresh,
    /// In a share of all 2 MiB blocks some pages are in use, so that no such block can be had there
    /// without compaction or reclaim (Frag-50 and Frag-100 of Quicksilver's paper).
    Fragmented {
        /// Of 1000 blocks, how many: 500 for Frag-50, 1000 for Frag-100.
        blocks_permille: u16,
        /// Pages in use in each, 1 to 512.
        #[serde(default = "one")]
        frames_per_block: u16,
        /// Of 1000 such blocks, in how many the pages are the kernel's own and cannot be moved. In
        /// the others they are page cache.
        #[serde(default)]
        unmovable_permille: u16,
    },
    /// A machine that has run for a while: programs took memory page by page and gave it back in
    /// random order, but for some that stays as page cache.
    Aged {
        /// Of 1000 frames, how many were in use at once.
        used_permille: u16,
        /// Of 1000 of those, how many stay.
        kept_permille: u16,
        /// Of 1000 frames, how many the kernel itself had at once: page tables and slabs, in 2 MiB
        /// blocks of their own, where page tables of the program then come to lie.
        #[serde(default)]
        kernel_permille: u16,
        /// Of 1000 of those, how many it still has.
        #[serde(default)]
        kernel_kept_permille: u16,
    },
    /// As many free blocks of each order as a real machine has, at random places.
    BuddyInfo {
        /// Free blocks of each order, 4 KiB first: the eleven numbers of a line of
        /// `/proc/buddyinfo`. What is in none is in use, as page cache.
        free_blocks: [u64; 11],
        /// The memory of which these are the numbers (else this kernel's); another one has as many
        /// as is its share.
        #[serde(default, with = "nestwalk_mem::size::optional_pages", skip_serializing_if = "Option::is_none")]
        #[schemars(with = "Option<nestwalk_mem::schema::Pages>")]
        of: Option<PageCount>,
        /// Of 1000 frames, how many of these the kernel itself then took: page tables and slabs, in
        /// 2 MiB blocks of their own, where page tables of the program then come to lie.
        #[serde(default)]
        kernel_permille: u16,
        /// Of 1000 of those, how many it still has.
        #[serde(default)]
        kernel_kept_permille: u16,
    },
    /// The fragmented memory of Quicksilver's paper: a process writes all memory and unmaps all but
    /// the last pages of each 2 MiB, so that of what the program needs only a part lies in free
    /// 2 MiB blocks. What it keeps is anonymous memory of a process, which may be moved, and the
    /// memory manager treats it as it treats any other.
    Frag {
        /// Of the memory that the program needs, how many per cent have no free 2 MiB block: 50 for
        /// Frag-50, 100 for Frag-100.
        percent: u16,
        /// What the program needs.
        #[serde(with = "nestwalk_mem::size::pages")]
        #[schemars(with = "nestwalk_mem::schema::Pages")]
        need: PageCount,
        /// Pages that the process keeps of each 2 MiB (16 in the paper's runs: 64 KiB).
        #[serde(default = "sixteen")]
        kept_pages: u16,
        /// Simulated time between that and the program's start, in which daemons run (60 s in the
        /// paper's runs).
        #[serde(default = "a_minute")]
        wait_ms: u64,
        /// Which steps of the authors' scripts are made.
        #[serde(default)]
        steps: FragSteps,
    },
}

impl StartState {
    /// The one of which as much is free as of `memory`, in blocks of the same orders.
    pub fn alike(memory: &PhysicalMemory) -> Self {
        let BuddyInfo { free_blocks, kernel_permille, kernel_kept_permille, .. } = memory.buddyinfo();
        Self::BuddyInfo { free_blocks, of: Some(memory.frames()), kernel_permille, kernel_kept_permille }
    }
}

/// Blocks that `memory` has if one `of` such a size has `blocks`.
pub(crate) fn scaled(blocks: &[u64; 11], of: Option<PageCount>, memory: PageCount) -> [u64; 11] {
    let of = u128::from(of.unwrap_or(memory).0.max(1));
    let here = |count: u64| (u128::from(count) * u128::from(memory.0) + of / 2) / of;
    // More than that is too many for any memory.
    blocks.map(|count| here(count).min(1 << 50) as u64)
}

/// Steps by which the authors of Quicksilver's paper fragment memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum FragSteps {
    /// The last one, which leaves memory as the program finds it.
    #[default]
    Last,
    /// All three. Before that one, memory is written until nearly none is left and more huge pages
    /// are asked for than there can be; and all memory is fragmented and huge pages asked for. So
    /// what compaction remembers is of memory that had nothing for it.
    All,
}

const fn one() -> u16 {
    1
}

const fn sixteen() -> u16 {
    16
}

const fn a_minute() -> u64 {
    60_000
}

const fn yes() -> bool {
    true
}

const fn four_levels() -> Geometry {
    Geometry::X86_4
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_round_trips_and_unknown_keys_are_refused() {
        let text = "memory = \"1 GiB\"\ngeometry = 5\n[manager]\nkind = \"thp\"\nenabled = \"madvise\"\n";
        let config: KernelConfig = toml::from_str(text).unwrap();
        assert_eq!(config.geometry, Geometry::X86_5);
        let again: KernelConfig = toml::from_str(&toml::to_string(&config).unwrap()).unwrap();
        assert_eq!(again, config);
        let wrong = toml::from_str::<KernelConfig>("memory = \"1 GiB\"\nmanger = 1\n").unwrap_err();
        assert!(wrong.to_string().contains("manger"), "{wrong}");
        assert!(toml::from_str::<KernelConfig>("memory = \"1 GiB\"\ngeometry = 7\n").is_err());
        let wrong = toml::from_str::<KernelConfig>("memory = \"1 GiB\"\nstart = { kind = \"fresh\", percent = 5 }\n");
        assert!(wrong.unwrap_err().to_string().contains("percent"));
    }
}
