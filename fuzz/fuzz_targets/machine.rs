// SPDX-License-Identifier: MIT OR Apache-2.0
//! No machine file makes the reader panic: it is refused in one line, or a core can be built as it says.
#![no_main]

use nestwalk_machine::MachineConfig;
use nestwalk_mmu::{Core, Llc};

libfuzzer_sys::fuzz_target!(|text: &str| {
    let Ok(machine) = toml::from_str::<MachineConfig>(text) else { return };
    if let Err(error) = machine.mmu.validate() {
        assert!(!error.to_string().contains('\n'));
        return;
    }
    Llc::new(&machine.mmu).expect("it was found to be possible");
    Core::new(&machine.mmu).expect("it was found to be possible");
});
