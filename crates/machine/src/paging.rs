// SPDX-License-Identifier: MIT OR Apache-2.0
//! How the memory of a VM is translated: nested tables (EPT), a shadow table, or segment registers (DS-n).

use nestwalk_mmu::Segments;
use nestwalk_os::{AllocatorKind, Shadows};
use serde::{Deserialize, Serialize};

use crate::scenario::Configuration;

/// What a host uses for the VM on it (`paging` of its kernel in a scenario).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum PagingConfig {
    /// The hardware walks the guest's table and the host's (EPT, NPT). In a VM on a VM the lowest hypervisor keeps the
    /// composition of its own table and the middle one's for it, as KVM does.
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
        /// By which rule the host chooses the segments: `compromis-opt1`, `compromis-opt2`, `best-fit` or `first-fit`.
        #[serde(default, skip_serializing_if = "is_default")]
        allocator: AllocatorKind,
    },
}

/// Results of runs without the key stay what they were before there was one.
fn is_default(allocator: &AllocatorKind) -> bool {
    *allocator == AllocatorKind::default()
}

/// What a VM gets that does not fit into segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
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

    /// Whether it goes together with the rest of `configuration`, as the paging of the kernel at `layer`.
    ///
    /// # Errors
    /// What does not fit, and what would.
    pub(crate) fn check(self, configuration: &Configuration, layer: usize) -> Result<(), String> {
        let depth = configuration.scenario.kernels.len();
        if self == Self::Ept {
            return Ok(());
        }
        if layer + 1 == depth {
            return Err("paging: the topmost kernel hosts no VM; give the key to the kernel below".into());
        }
        if depth > 2 {
            return Err("paging: a VM on a VM is modelled with EPT at both levels only; leave the key out".into());
        }
        if configuration.scenario.asap.is_some() {
            return Err(
                "asap: its registers describe tables that the hardware walks in two dimensions; use paging = { kind = \"ept\" }"
                    .into(),
            );
        }
        if let Self::Segments { max, allocator, .. } = self {
            if !(1..=Segments::MAX).contains(&max) {
                return Err(format!("paging: max = {max} segments: there are registers for 1 to {}", Segments::MAX));
            }
            if !allocator.keeps_whole() {
                return Err("paging: allocator: give one of compromis-opt1, compromis-opt2, best-fit, first-fit".into());
            }
            if configuration.machine.mmu.segment_latency_cycles.is_none() {
                return Err("paging: the machine file does not say segment_latency_cycles, the time of a translation \
                            by segment registers"
                    .into());
            }
        }
        Ok(())
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
