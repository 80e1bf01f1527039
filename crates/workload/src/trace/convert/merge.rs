// SPDX-License-Identifier: MIT OR Apache-2.0
//! A folder of drmemtrace files, one a thread or a core: the stretches between their timestamps, in
//! the order of time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::path::{Path, PathBuf};

use super::archive;
use super::drmemtrace::{Notes, Processes, Shard, Step, is_in};
use super::import::{Batch, Reader};
use super::input::Input;
use crate::stream::WorkloadError;

/// Where `drmemtrace` puts final traces, and what they are made of.
const FINAL: &str = "trace";
const UNFINISHED: &str = "raw";

/// Reads a folder: a file for each thread, or each core. Of several processes it takes the one that
/// is `wanted`.
///
/// # Errors
/// When there is no such file in it, or one cannot be read.
pub fn folder(path: &Path, wanted: Option<u64>) -> Result<Box<dyn Reader>, WorkloadError> {
    Ok(Box::new(Merge::open(path, wanted)?))
}

/// See the [module's documentation](self).
pub struct Merge {
    shards: Vec<Shard>,
    /// When the next stretch of each shard began, and which it is.
    next: BinaryHeap<Reverse<(u64, usize)>>,
    path: PathBuf,
    processes: Processes,
    notes: Notes,
}

impl Merge {
    /// Opens the files of the folder `path`, or of the folder `trace` in it: all of them, or of
    /// several processes the one that is `wanted`.
    ///
    /// # Errors
    /// When there are none, or one cannot be read.
    pub fn open(path: &Path, wanted: Option<u64>) -> Result<Self, WorkloadError> {
        let inner = path.join(FINAL);
        let folder = if inner.is_dir() { inner } else { path.to_owned() };
        let mut shards = Vec::new();
        for file in files(&folder)? {
            if let Some(input) = trace(&file)? {
                shards.push(Shard::new(input, wanted)?.timed());
            }
        }
        if shards.is_empty() {
            let raw = path.join(UNFINISHED).is_dir() || path.file_name().is_some_and(|name| name == UNFINISHED);
            let what = if raw {
                "raw drmemtrace files, which are to be made into final ones first: drraw2trace -indir FOLDER"
            } else {
                "no file of this folder is a drmemtrace file (one a thread or a core): name a file, or another folder"
            };
            return Err(WorkloadError::Corrupt { path: path.into(), offset: 0, what: what.into() });
        }
        let next = (0..shards.len()).map(|index| Reverse((0, index))).collect();
        let processes = Processes::new(wanted);
        Ok(Self { shards, next, path: path.into(), processes, notes: Notes::default() })
    }
}

/// The files of `folder`, by name.
fn files(folder: &Path) -> Result<Vec<PathBuf>, WorkloadError> {
    let io = |source| WorkloadError::Io { path: folder.into(), source };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(io)? {
        let path = entry.map_err(io)?.path();
        if path.is_file() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// What is in `path`, if it is a trace. Logs and schedules lie in the same folder; they are none,
/// whatever is in them.
fn trace(path: &Path) -> Result<Option<Input>, WorkloadError> {
    let mut input = Input::open(path)?;
    let Ok(zip) = archive::is_zip(&mut input) else { return Ok(None) };
    if zip {
        input = match archive::open(path) {
            Ok(input) => input,
            // An archive without chunks is a schedule; a damaged one is what a user has to know of.
            Err(WorkloadError::Corrupt { what, .. }) if what.contains("without a trace") => return Ok(None),
            Err(error) => return Err(error),
        };
    }
    let is_trace = input.peek(64).is_ok_and(is_in);
    Ok(is_trace.then_some(input))
}

impl Reader for Merge {
    fn fill(&mut self, batch: &mut Batch) -> Result<bool, WorkloadError> {
        while let Some(Reverse((_, index))) = self.next.pop() {
            let shard = &mut self.shards[index];
            if shard.step(batch)? == Step::End {
                self.notes.add(&shard.notes());
                self.processes.add(shard.processes()).map_err(|what| shard.input().corrupt(0, what))?;
                continue;
            }
            self.processes.add(shard.processes()).map_err(|what| shard.input().corrupt(0, what))?;
            self.next.push(Reverse((shard.time(), index)));
            if !batch.accesses.is_empty() || batch.more > 0 {
                return Ok(true);
            }
        }
        let none = |what| WorkloadError::Corrupt { path: self.path.clone(), offset: 0, what };
        self.processes.check().map_err(none)?;
        Ok(false)
    }

    fn warnings(&self) -> Vec<String> {
        self.notes.warnings()
    }
}
