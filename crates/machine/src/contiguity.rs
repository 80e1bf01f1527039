// SPDX-License-Identifier: MIT OR Apache-2.0
//! How much of each kernel's memory is free, and in blocks of which sizes, at three moments of a
//! run.

use nestwalk_mem::Order;
use nestwalk_os::Kernel;
use serde::Serialize;

use crate::chain::{KernelChain, role};
use crate::stack::Stack;

/// The free memory of one kernel at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct FreeMemory {
    /// Frames that are free.
    pub frames: u64,
    /// Frames of the page cache, which are free as soon as memory is short.
    pub cached: u64,
    /// Free blocks of each order, 4 KiB first (as in `/proc/buddyinfo`).
    pub blocks: [u64; 11],
    /// The external fragmentation index for 2 MiB, in thousandths (`__fragmentation_index`, Linux's
    /// `extfrag_index`): towards 0 such a request fails for want of memory, towards 1000 for
    /// fragmentation; -1000 where it would succeed.
    pub fragmentation_index_permille: i64,
}

impl FreeMemory {
    fn of(kernel: &Kernel) -> Self {
        let memory = kernel.memory();
        Self {
            cached: kernel.cached().0,
            frames: memory.free_frames().0,
            blocks: memory.free_blocks(),
            fragmentation_index_permille: memory.fragmentation_index(Order::HUGE),
        }
    }
}

/// The free memory of one kernel in the course of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Contiguity {
    /// `host`, `middle`, `guest` or `native`.
    pub role: &'static str,
    /// When the program began.
    pub started: FreeMemory,
    /// When it had touched all memory that it touches before its first access.
    pub populated: FreeMemory,
    /// When measuring ended.
    pub ended: FreeMemory,
}

/// Of the kernels of `chain`, bottom first.
pub(crate) fn look(stack: &Stack, chain: &KernelChain) -> Vec<FreeMemory> {
    chain.floors().iter().map(|floor| FreeMemory::of(stack.kernel(floor))).collect()
}

/// The three moments together.
pub(crate) fn course(started: &[FreeMemory], populated: &[FreeMemory], ended_of: &[FreeMemory]) -> Vec<Contiguity> {
    let moments = started.iter().zip(populated).zip(ended_of).enumerate();
    moments
        .map(|(layer, ((&started, &populated), &ended))| Contiguity {
            role: role(layer, ended_of.len()),
            started,
            populated,
            ended,
        })
        .collect()
}
