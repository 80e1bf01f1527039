// SPDX-License-Identifier: MIT OR Apache-2.0
//! How user memory is managed: one file a technique.
//!
//! A [`MemoryManager`] is stated along the five events in the life of a page or superpage (Zhu, Cox
//! and Rixner, USENIX ATC 2020, section 2): physical allocation, preparation, mapping creation,
//! mapping destruction, physical deallocation. Its [`Facts`] say what it does at each. What every
//! manager does alike (finding the mapping, copy-on-write, swapping in, splitting, walking tables
//! at unmap and fork) the kernel does; what differs is asked here.

pub mod contract;
pub mod freebsd;
pub mod hawkeye;
pub mod ingens;
pub mod linux4k;
pub mod mthp;
pub mod ptemagnet;
pub mod quicksilver;
mod radix;
mod reservation;
mod scan;
pub mod thp;

use serde::{Deserialize, Serialize};

pub use self::contract::{Deallocation, Facts, MemoryManager, Preparation, Promotion, When};
pub use crate::context::event::{Cause, Fault, Fill};

/// Which memory manager, and its parameters.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum ManagerConfig {
    /// 4 KiB pages only.
    #[default]
    #[serde(deserialize_with = "crate::keys::no_keys")]
    Linux4k,
    /// Linux's transparent huge pages.
    Thp(thp::ThpConfig),
    /// Linux's multi-size transparent huge pages: folios of 16 KiB to 1 MiB.
    MThp(mthp::MThpConfig),
    /// Groups of 8 neighbouring pages on 8 neighbouring frames.
    PteMagnet(ptemagnet::PteMagnetConfig),
    /// FreeBSD's superpages: reservations of 2 MiB, filled page by page.
    FreeBsd(freebsd::FreeBsdConfig),
    /// The same, the rest of which is prepared at once: Sync-1, Sync-64.
    Quicksilver(quicksilver::QuicksilverConfig),
    /// Huge pages that a daemon makes of 2 MiB that are 90 % in use.
    Ingens(ingens::IngensConfig),
    /// Huge pages that a daemon makes of 2 MiB that are used most densely.
    HawkEye(hawkeye::HawkEyeConfig),
}

impl ManagerConfig {
    /// Every manager, with default parameters: what lists show and the contract tests go over.
    pub fn all() -> Vec<Self> {
        vec![
            Self::Linux4k,
            Self::Thp(thp::ThpConfig::default()),
            Self::MThp(mthp::MThpConfig::default()),
            Self::PteMagnet(ptemagnet::PteMagnetConfig::default()),
            Self::FreeBsd(freebsd::FreeBsdConfig::default()),
            Self::Quicksilver(quicksilver::QuicksilverConfig::default()),
            Self::Ingens(ingens::IngensConfig::default()),
            Self::HawkEye(hawkeye::HawkEyeConfig::default()),
        ]
    }

    /// Makes the manager.
    pub fn build(&self) -> Box<dyn MemoryManager> {
        match self {
            Self::Linux4k => Box::new(linux4k::Linux4k),
            Self::Thp(config) => Box::new(thp::Thp::new(*config)),
            Self::MThp(config) => Box::new(mthp::MThp::new(*config)),
            Self::PteMagnet(config) => Box::new(ptemagnet::PteMagnet::new(*config)),
            Self::FreeBsd(config) => Box::new(freebsd::FreeBsd::new(*config)),
            Self::Quicksilver(config) => Box::new(quicksilver::Quicksilver::new(*config)),
            Self::Ingens(config) => Box::new(ingens::Ingens::new(*config)),
            Self::HawkEye(config) => Box::new(hawkeye::HawkEye::new(*config)),
        }
    }
}
