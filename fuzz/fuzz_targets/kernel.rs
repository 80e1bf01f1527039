// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whatever a program does, under whatever memory manager and table placement, the kernel stays sound.
#![no_main]

use nestwalk_mem::{PageCount, Vpn};
use nestwalk_os::op::Op;
use nestwalk_os::{Bare, Kernel, KernelConfig, ManagerConfig, TablesConfig};

const MEMORY: PageCount = PageCount(1 << 13);

fn config(choice: u8) -> KernelConfig {
    let managers = ["linux4k", "thp", "mthp", "ptemagnet"];
    let tables = ["buddy", "hugegpt", "asap"];
    let (manager, tables) = (managers[usize::from(choice % 4)], tables[usize::from(choice / 4 % 3)]);
    let text = |kind: &str| format!("kind = '{kind}'");
    KernelConfig {
        manager: toml::from_str::<ManagerConfig>(&text(manager)).expect("a manager of this kind"),
        tables: toml::from_str::<TablesConfig>(&text(tables)).expect("a placement of this kind"),
        swap: PageCount(u64::from(choice / 12 % 2) << 10),
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
