// SPDX-License-Identifier: MIT OR Apache-2.0
//! How the memory of a VM is translated: nested tables (EPT), a shadow table, or segment registers
//! (DS-n).

use nestwalk_mmu::Segments;
use nestwalk_os::{AllocatorKind, Shadows};
use serde::{Deserialize, Serialize};

/// What a host uses for the VM on it (`paging` of its kernel in a scenario).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, schemars::JsonSchema)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum PagingConfig {
    /// The hardware walks the guest's table and the host's (EPT, NPT). In a VM on a VM the lowest
    /// hypervisor keeps the composition of its own table and the middle one's for it, as KVM does.
    #[default]
    Ept,
    /// The hardware walks a table that the hypervisor keeps for it.
    Shadow,
    /// The VM's memory is at most `max` segments, which registers translate.
    Segments {
        /// `n` of DS-n: 1 to 8.
        max: usize,
        /// What the VM gets if free memory is in too many pieces.
        #[serde(default)]
        fallback: Fallback,
        /// By which rule the host chooses the segments: `compromis-opt1`, `compromis-opt2`,
        /// `best-fit` or `first-fit`.
        #[serde(default, skip_serializing_if = "is_default")]
        allocator: AllocatorKind,
    },
}

/// Results of runs without the key stay what they were before there was one.
fn is_default(allocator: &AllocatorKind) -> bool {
    *allocator == AllocatorKind::default()
}

/// What a VM gets that does not fit into segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Fallback {
    /// Nested tables.
    #[default]
    Ept,
    /// A shadow table.
    Shadow,
}

impl PagingConfig {
    /// Whether a VM that does not fit into segments gets a shadow table.
    pub(crate) fn falls_back_to_shadow(self) -> bool {
        matches!(self, Self::Segments { fallback: Fallback::Shadow, .. })
    }
}

/// What a kernel uses for a VM, if not its own table.
#[derive(Debug)]
pub enum VmPaging {
    /// Tables that compose what the VM's kernel keeps with its own.
    Shadow(Box<Shadows>),
    /// Segment registers.
    Segments(Segments),
}

impl VmPaging {
    /// Its name in results.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Shadow(_) => "shadow".into(),
            Self::Segments(segments) => format!("segments ({})", segments.count()),
        }
    }
}
