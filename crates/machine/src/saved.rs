// SPDX-License-Identifier: MIT OR Apache-2.0
//! Saved memories (`nestwalk memory`): a file with the state of a kernel's physical memory, packed
//! by zstd.
//!
//! The bytes are those of [`PhysicalMemory::save`], with their checksum; the format is described in
//! docs/scenarios.md.

use std::path::Path;

use nestwalk_mem::physical::PhysicalMemory;
use nestwalk_os::StartState;

use crate::build;
use crate::configuration::Configuration;
use crate::error::MachineError;
use crate::plans::TenantPlans;
use crate::workloads;

/// What was saved.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
pub struct Saved {
    /// Frames of the memory.
    pub frames: u64,
    /// Processors, each with its lists of free pages.
    pub cpus: u16,
    /// Frames that are free.
    pub free_frames: u64,
    /// Free blocks of each order, 4 KiB first.
    pub free_blocks: [u64; 11],
    /// A start with as much free, in blocks of the same orders.
    pub alike: StartState,
    /// Bytes of the file.
    pub bytes: u64,
}

/// The memory with which kernel `layer` of the scenario begins, before the program or the VM on it,
/// packed for a file.
///
/// # Errors
/// When the scenario cannot be made, or has no such kernel.
pub fn save(configuration: &Configuration, traces: &Path, layer: usize) -> Result<(Saved, Vec<u8>), MachineError> {
    let depth = configuration.scenario.kernels.len();
    if layer >= depth {
        return Err(configuration.scenario_error(format!("there is no kernel {layer}: it has {depth}, count from 0")));
    }
    let facts = workloads::workload(configuration, traces)?.facts();
    let needs = TenantPlans::open(configuration, facts.threads.max(1), traces)?.needs();
    let kernel = build::start_of(configuration, &facts, &needs, layer)?;
    Ok(pack(kernel.memory()))
}

/// What `memory` is, and it, packed for a file.
pub fn pack(memory: &PhysicalMemory) -> (Saved, Vec<u8>) {
    let packed = zstd::encode_all(&memory.save()[..], 3).expect("memory can be written to");
    let saved = Saved {
        frames: memory.frames().0,
        cpus: memory.cpus(),
        free_frames: memory.free_frames().0,
        free_blocks: memory.free_blocks(),
        alike: StartState::alike(memory),
        bytes: packed.len() as u64,
    };
    (saved, packed)
}
