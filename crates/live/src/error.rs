// SPDX-License-Identifier: MIT OR Apache-2.0
//! What can be wrong with a process or a recording: one line each, with the remedy.

use std::io;
use std::path::PathBuf;

/// Why something could not be inspected.
#[derive(Debug, thiserror::Error)]
pub enum InspectError {
    /// No such process.
    #[error("there is no process {pid}; give the pid or the name of a running one")]
    NoProcess {
        /// The process.
        pid: u32,
    },
    /// It ended while it was read.
    #[error("process {pid} ended while it was read; nothing is known of it")]
    Gone {
        /// The process.
        pid: u32,
    },
    /// It has no user memory.
    #[error("process {pid} has no memory of its own: it is a thread of the kernel, or has ended")]
    NoMemory {
        /// The process.
        pid: u32,
    },
    /// A file may not be read.
    #[error("{}: no permission; run as the owner of the process, or as root (CAP_SYS_PTRACE)", path.display())]
    Refused {
        /// The file.
        path: PathBuf,
    },
    /// A file cannot be read or written.
    #[error("{}: {}", path.display(), nestwalk_mem::reason(source))]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A line of `maps` is none.
    #[error("maps: line {line}: {what}; record /proc/PID/maps as it is")]
    Maps {
        /// Its number, from 1.
        line: usize,
        /// What is wrong with it.
        what: &'static str,
    },
    /// A recording is none.
    #[error("{}: {what}; record it again (nestwalk inspect PID --record FILE)", path.display())]
    Recording {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// Pages of another size.
    #[error("pages have {bytes} bytes here, and inspect knows pages of 4096 bytes only; inspect a recording instead")]
    PageSize {
        /// Bytes of a page.
        bytes: u64,
    },
    /// No such NUMA node, or none at all.
    #[error("{}: {}", path.display(), no_zone(*node, nodes))]
    NoZone {
        /// The file that lists them.
        path: PathBuf,
        /// The one that was asked for.
        node: Option<u32>,
        /// Those that there are.
        nodes: Vec<u32>,
    },
    /// What frames are used for is for root to see.
    #[error("{}: no permission; run as root, outside of containers", path.display())]
    FramesHidden {
        /// The file that says it.
        path: PathBuf,
    },
}

fn no_zone(node: Option<u32>, nodes: &[u32]) -> String {
    match node {
        Some(node) if !nodes.is_empty() => {
            format!("no zone of node {node} has 4 MiB; there is memory on nodes {nodes:?}")
        }
        _ => "it names no zone of 4 MiB or more; give a copy of /proc/zoneinfo".to_owned(),
    }
}
