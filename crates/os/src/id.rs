// SPDX-License-Identifier: MIT OR Apache-2.0
//! The names of processes and files.

/// A process of one kernel. Numbers are handed out in a circle, as Linux does, so that one that has
/// exited is not soon used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, serde::Serialize)]
#[repr(transparent)]
pub struct ProcessId(pub u16);

/// A file of one kernel.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(transparent)]
pub struct FileId(pub u32);

/// What a file is called, the same in all kernels: a number that a path stands for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(transparent)]
pub struct FileName(pub u64);

impl FileName {
    /// The name of the file with that path (FNV-1a).
    pub const fn of(path: &str) -> Self {
        let (bytes, mut hash, mut at) = (path.as_bytes(), 0xcbf2_9ce4_8422_2325_u64, 0);
        while at < bytes.len() {
            hash = (hash ^ bytes[at] as u64).wrapping_mul(0x100_0000_01b3);
            at += 1;
        }
        Self(hash)
    }
}
