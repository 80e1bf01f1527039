// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of whole kernels, over every memory manager and every table placement.

mod contents;
mod contract;
mod facts;
mod frozen;
mod long;
mod nesting;
mod oracle;
mod strategy;

use nestwalk_mem::{PageCount, Vpn, VpnRange};
use nestwalk_os::manager::freebsd::FreeBsdConfig;
use nestwalk_os::manager::hawkeye::HawkEyeConfig;
use nestwalk_os::manager::ingens::IngensConfig;
use nestwalk_os::manager::mthp::{Folio, MThpConfig};
use nestwalk_os::manager::quicksilver::QuicksilverConfig;
use nestwalk_os::manager::thp::{Defrag, ThpConfig};
use nestwalk_os::{KernelConfig, ManagerConfig, TablesConfig};

/// Every manager as it is by default, reservations with a lower level of 64 KiB, folios of that
/// size, huge pages with one of zeroes, Ingens and HawkEye with all that is off by default, of
/// which HawkEye's daemons have much to do.
fn managers() -> Vec<ManagerConfig> {
    let small = QuicksilverConfig { threshold: 512, small_threshold: 2, ..QuicksilverConfig::default() };
    let folios = MThpConfig { folio: Folio::K64 };
    let zeroes = ThpConfig { use_zero_page: true, defrag: Defrag::Always, ..ThpConfig::default() };
    let hawkeye = HawkEyeConfig {
        sample_sleep_ms: 10,
        sample_ms: 10,
        scan_sleep_ms: 10,
        zeroed_pages_per_s: 1024,
        recovery_sleep_ms: 2000,
        recovery_above_permille: 600,
        recovery_down_to_permille: 300,
        ..HawkEyeConfig::default()
    };
    let ingens = IngensConfig { access_sleep_ms: 4000, fairness: true, ..IngensConfig::default() };
    let more = [
        ManagerConfig::Quicksilver(small),
        ManagerConfig::FreeBsd(FreeBsdConfig { promote_64k: true }),
        ManagerConfig::MThp(folios),
        ManagerConfig::Thp(zeroes),
        ManagerConfig::Ingens(ingens),
        ManagerConfig::HawkEye(hawkeye),
    ];
    ManagerConfig::all().into_iter().chain(more).collect()
}

/// Every manager with every placement, over `memory` with swap of the same size. PTEs have a
/// contiguous bit where the manager is not as by default.
fn configurations(memory: PageCount) -> Vec<KernelConfig> {
    let all = |manager: ManagerConfig| {
        TablesConfig::all().into_iter().map(move |tables| {
            let mut config = KernelConfig::new(memory);
            (config.manager, config.tables, config.swap) = (manager.clone(), tables, memory);
            config.cpus = 2;
            config.contiguous = !ManagerConfig::all().contains(&config.manager);
            config.compaction_proactiveness = 20;
            config
        })
    };
    managers().into_iter().flat_map(all).collect()
}

#[test]
fn all_has_every_manager_and_every_placement() {
    // A new arm does not compile until it is counted here.
    let manager = |config: ManagerConfig| match config {
        ManagerConfig::Linux4k => 0,
        ManagerConfig::Thp(_) => 1,
        ManagerConfig::MThp(_) => 2,
        ManagerConfig::PteMagnet(_) => 3,
        ManagerConfig::FreeBsd(_) => 4,
        ManagerConfig::Quicksilver(_) => 5,
        ManagerConfig::Ingens(_) => 6,
        ManagerConfig::HawkEye(_) => 7,
    };
    let placement = |config: TablesConfig| match config {
        TablesConfig::Buddy => 0,
        TablesConfig::Scattered(_) => 1,
        TablesConfig::HugeGpt(_) => 2,
        TablesConfig::Asap(_) => 3,
    };
    assert!(ManagerConfig::all().into_iter().map(manager).eq(0..8));
    assert!(TablesConfig::all().into_iter().map(placement).eq(0..4));
}

fn pages(start: u64, count: u64) -> VpnRange {
    VpnRange::new(Vpn(start), PageCount(count))
}
