// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state in which a kernel's memory begins, before there is a process.

use nestwalk_mem::PageCount;
use nestwalk_mem::physical::{Aging, BuddyInfo, Fragmentation};

use crate::config::{KernelConfig, StartState, scaled};
use crate::state::KernelState;

/// Brings fresh memory into the state that `config`, which has been checked, asks for.
pub(crate) fn prepare(state: &mut KernelState, config: &KernelConfig) {
    let seed = config.seed;
    match config.start {
        // A process does it, when there is something below that backs its memory:
        // [`Kernel::inhabit`].
        StartState::Fresh | StartState::Frag { .. } => {}
        StartState::Fragmented { blocks_permille, frames_per_block, unmovable_permille } => {
            let how = Fragmentation { blocks_permille, frames_per_block, unmovable_permille, seed };
            let blocks = state.memory.fragment(&how);
            let unmovable = blocks * u64::from(unmovable_permille) / 1000;
            let frames = u64::from(frames_per_block);
            state.pinned = PageCount(unmovable * frames);
            state.cache = PageCount((blocks - unmovable) * frames);
        }
        StartState::Aged { used_permille, kept_permille, kernel_permille, kernel_kept_permille } => {
            let how = Aging { used_permille, kept_permille, kernel_permille, kernel_kept_permille, seed };
            let in_use = state.memory.age(&how);
            (state.cache, state.pinned) = (in_use.cache, in_use.kernel);
        }
        StartState::BuddyInfo { free_blocks, of, kernel_permille, kernel_kept_permille } => {
            let free_blocks = scaled(&free_blocks, of, state.memory.frames());
            let in_use = state.memory.lay_out(&BuddyInfo { free_blocks, kernel_permille, kernel_kept_permille, seed });
            (state.cache, state.pinned) = (in_use.cache, in_use.kernel);
        }
    }
}
