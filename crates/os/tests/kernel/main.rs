// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of whole kernels, over every memory manager and every table placement.

mod contents;
mod contract;
mod facts;
mod frozen;
mod nesting;
mod oracle;
mod strategy;

use nestwalk_mem::{PageCount, Vpn, VpnRange};
use nestwalk_os::manager::quicksilver::QuicksilverConfig;
use nestwalk_os::{KernelConfig, ManagerConfig, TablesConfig};

/// Every manager as it is by default, and reservations with a lower level of 64 KiB.
fn managers() -> Vec<ManagerConfig> {
    let small = QuicksilverConfig { threshold: 512, small_threshold: 2, ..QuicksilverConfig::default() };
    ManagerConfig::all().into_iter().chain([ManagerConfig::Quicksilver(small)]).collect()
}

/// Every manager with every placement, over `memory` with swap of the same size.
fn configurations(memory: PageCount) -> Vec<KernelConfig> {
    let all = |manager: ManagerConfig| {
        TablesConfig::all().into_iter().map(move |tables| {
            let mut config = KernelConfig::new(memory);
            (config.manager, config.tables, config.swap) = (manager.clone(), tables, memory);
            config.cpus = 2;
            config
        })
    };
    managers().into_iter().flat_map(all).collect()
}

fn pages(start: u64, count: u64) -> VpnRange {
    VpnRange::new(Vpn(start), PageCount(count))
}
