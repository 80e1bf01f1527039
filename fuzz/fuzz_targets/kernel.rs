// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whatever a program does, under whatever memory manager and table placement, the kernel stays sound.
#![no_main]

use nestwalk_mem::{PageCount, Vpn};
use nestwalk_os::manager::freebsd::FreeBsdConfig;
use nestwalk_os::manager::mthp::{Folio, MThpConfig};
use nestwalk_os::manager::quicksilver::QuicksilverConfig;
use nestwalk_os::op::Op;
use nestwalk_os::{Bare, Kernel, KernelConfig, ManagerConfig, TablesConfig};

const MEMORY: PageCount = PageCount(1 << 13);

fn config(choice: u8) -> KernelConfig {
    let (mut managers, mut tables) = (ManagerConfig::all(), TablesConfig::all());
    managers.extend([
        ManagerConfig::FreeBsd(FreeBsdConfig { promote_64k: true }),
        ManagerConfig::MThp(MThpConfig { folio: Folio::K64 }),
        ManagerConfig::Quicksilver(QuicksilverConfig { small_threshold: 2, ..QuicksilverConfig::default() }),
    ]);
    let choice = usize::from(choice);
    let (manager, choice) = (choice % managers.len(), choice / managers.len());
    let (table, choice) = (choice % tables.len(), choice / tables.len());
    KernelConfig {
        manager: managers.swap_remove(manager),
        tables: tables.swap_remove(table),
        swap: PageCount((choice as u64 % 2) << 10),
        contiguous: choice / 2 % 2 == 0,
        ..KernelConfig::new(MEMORY)
    }
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((&choice, data)) = data.split_first() else { return };
    let mut kernel = Kernel::new(&config(choice)).expect("a kernel of this kind");
    let mut bytes = data.iter().copied();
    while let Some(op) = Op::read(&mut bytes, Vpn(512), PageCount(3 << 10)) {
        // Operations may be refused: no memory, no such mapping.
        let _ = op.apply(&mut kernel, &mut Bare);
    }
    kernel.check_invariants();
});
