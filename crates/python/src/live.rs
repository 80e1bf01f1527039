// SPDX-License-Identifier: MIT OR Apache-2.0
//! What this machine shows of itself, for Python.

use std::fs::File;
use std::path::{Path, PathBuf};

use nestwalk_live::frames::{self, MemoryZone, Pageblocks};
use nestwalk_live::maps::{self, Mapping};
use nestwalk_live::{
    Host, Known, Leaf, Leaves, Nearest, Options, Piece, Processor, Recorder, Recording, Source, Sysfs, buddyinfo,
    inspect, nearest, sorted_lines, words,
};
use nestwalk_machine::saved::{Saved, pack};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use serde::Serialize;

#[cfg(target_os = "linux")]
use crate::cloud::Benchmarked;
use crate::{guarded, json, refuse};

#[derive(Serialize)]
struct Found {
    processor: Processor,
    nearest: Nearest,
    sysfs: Option<Sysfs>,
}

/// The processor that this runs on, as CPUID and Linux describe it; or the one whose CPUID was
/// recorded in the text `dump`, of the file `path`.
#[pyfunction]
#[pyo3(signature = (dump=None, path=None))]
pub(crate) fn processor(dump: Option<&str>, path: Option<PathBuf>) -> PyResult<String> {
    let (leaves, sysfs) = match dump {
        Some(text) => {
            let place = path.unwrap_or_default();
            let leaves = Leaves::parse(text).map_err(|error| refuse(format!("{}: {error}", place.display())))?;
            (leaves, None)
        }
        None => (Leaves::here().unwrap_or_default(), Some(Sysfs::read(Path::new("/")))),
    };
    let processor = Processor::decode(&leaves);
    let nearest = nearest(&processor);
    json(&Found { processor, nearest, sysfs })
}

/// What Python says that is to be inspected: a process, or the file of a recording.
fn source(pid: Option<u32>, path: Option<&Path>) -> PyResult<Box<dyn Source>> {
    match (pid, path) {
        #[cfg(target_os = "linux")]
        (Some(pid), None) => Ok(Box::new(nestwalk_live::Process::open(pid).map_err(refuse)?)),
        #[cfg(not(target_os = "linux"))]
        (Some(_), None) => Err(refuse("running processes can be inspected on Linux only; inspect a recording of one")),
        (None, Some(path)) => Ok(Box::new(Recording::open(path).map_err(refuse)?)),
        _ => Err(refuse("give either a pid or a recording")),
    }
}

/// What the memory of a process looks like, or of the recording `path` of one: JSON, and the
/// recording packed for a file if `keep`.
#[pyfunction]
#[pyo3(signature = (pid=None, path=None, all_flags=false, contents=false, keep=false))]
pub(crate) fn inspect_process<'py>(
    py: Python<'py>,
    pid: Option<u32>,
    path: Option<PathBuf>,
    all_flags: bool,
    contents: bool,
    keep: bool,
) -> PyResult<(String, Option<Bound<'py, PyBytes>>)> {
    let (text, kept) = guarded(py, || {
        let source = source(pid, path.as_deref())?;
        let options = Options { all_flags, contents };
        if !keep {
            return Ok((json(&inspect(source.as_ref(), options).map_err(refuse)?)?, None));
        }
        let recorder = Recorder::new(source.as_ref());
        let found = inspect(&recorder, options).map_err(refuse)?;
        let kept = recorder.recording(Path::new("")).to_bytes().map_err(refuse)?;
        Ok((json(&found)?, Some(kept)))
    })?;
    Ok((text, kept.map(|bytes| PyBytes::new(py, &bytes))))
}

/// What the kernel of the recording `path` says of where it sorts the page tables of the process:
/// the lines about it in `/sys/kernel/debug/sorted_tables/regions`, under the header.
#[pyfunction]
pub(crate) fn recorded_regions(path: PathBuf) -> PyResult<String> {
    let recording = Recording::open(&path).map_err(refuse)?;
    match sorted_lines(&recording) {
        Known::Is(lines) => Ok(lines),
        Known::Not { unavailable } => Err(refuse(format!("{}: regions are {unavailable}", path.display()))),
    }
}

/// The anonymous private memory of a process, or of the recording `path` of one: whether it is
/// known which pages PMDs map, and its pieces, ascending. Of each the first page of its mapping,
/// its own first page, whether PMDs map it, and entries as in `/proc/PID/pagemap`: one for each
/// page, or for each 2 MiB. The page of zeros is in none.
#[pyfunction]
#[pyo3(signature = (pid=None, path=None))]
pub(crate) fn anonymous_pages(
    py: Python<'_>,
    pid: Option<u32>,
    path: Option<PathBuf>,
) -> PyResult<(bool, Vec<AnonymousPiece>)> {
    let (leaves, pieces) = guarded(py, || {
        let source = source(pid, path.as_deref())?;
        let mappings = source.mappings().map_err(refuse)?;
        let mut found = Vec::new();
        let take = &mut |index: usize, piece: Piece<'_>| {
            let mapping: &Mapping = &mappings[index];
            if mapping.anonymous() && !mapping.shared() && !piece.zeros {
                let entries: Vec<u8> = piece.entries.iter().flat_map(|entry| entry.0.to_ne_bytes()).collect();
                found.push((mapping.first_page(), piece.first, piece.leaf == Leaf::Pmd, entries));
            }
        };
        let seen = source.pages(&mappings, take).map_err(refuse)?;
        Ok((seen.leaves, found))
    })?;
    let packed = |(mapping, first, pmd, entries): (u64, u64, bool, Vec<u8>)| {
        (mapping, first, pmd, PyBytes::new(py, &entries).unbind())
    };
    Ok((leaves, pieces.into_iter().map(packed).collect()))
}

/// The first page of a mapping, the piece's own, whether PMDs map it, its entries.
type AnonymousPiece = (u64, u64, bool, Py<PyBytes>);

/// First address, the address after the last one, permissions, device and inode, name.
type MappingRow = (u64, u64, String, String, String);

/// The mappings in the text of `/proc/PID/maps`: first address, the address after the last one,
/// permissions, device and inode (empty where no file is behind it), name.
#[pyfunction]
pub(crate) fn proc_mappings(text: &str) -> PyResult<Vec<MappingRow>> {
    let row =
        |one: Mapping| (one.start, one.end, String::from_utf8_lossy(&one.permissions).into_owned(), one.file, one.name);
    Ok(maps::parse(text).map_err(refuse)?.into_iter().map(row).collect())
}

/// Words of 64 bits of a file such as `/proc/PID/pagemap`, from number `first` on: `count` of them,
/// fewer where it ends.
#[pyfunction]
pub(crate) fn proc_words<'py>(
    py: Python<'py>,
    path: PathBuf,
    first: u64,
    count: usize,
) -> PyResult<Bound<'py, PyBytes>> {
    let mut read = vec![0; count];
    let got = words::read(&File::open(path)?, first, &mut read)?;
    let bytes: Vec<u8> = read[..got].iter().flat_map(|word| word.to_ne_bytes()).collect();
    Ok(PyBytes::new(py, &bytes))
}

/// Free blocks of the buddy allocator by order, of all nodes and zones, in the text of
/// `/proc/buddyinfo`.
#[pyfunction]
pub(crate) fn proc_buddyinfo(text: &str) -> PyResult<Vec<u64>> {
    Ok(buddyinfo(text).map_err(refuse)?.blocks)
}

/// Whether the file `path` begins like a recording.
#[pyfunction]
pub(crate) fn inspect_is_recording(path: PathBuf) -> bool {
    Recording::is_one(&path)
}

/// The VMs of this KVM host; JSON. `root` is `/` unless a test says otherwise.
#[pyfunction]
#[pyo3(signature = (root=None))]
pub(crate) fn inspect_host(py: Python<'_>, root: Option<PathBuf>) -> PyResult<String> {
    guarded(py, || json(&Host::read(root.as_deref().unwrap_or(Path::new("/")))))
}

/// What was saved of this machine's memory.
#[derive(Serialize)]
struct SavedZone {
    #[serde(flatten)]
    saved: Saved,
    #[serde(flatten)]
    zone: MemoryZone,
    /// Pageblocks by the type that was told from what lies in them.
    pageblocks: Pageblocks,
    /// The same as the kernel counts them.
    pageblocks_counted: Option<Pageblocks>,
}

/// The memory of the largest zone (of `node`, if one is given) of the machine whose `/proc` is
/// `proc`, for a kernel with `cpus` processors and its free lists in an order that `seed` chooses:
/// what it is, as JSON, and the bytes of its file.
#[pyfunction]
pub(crate) fn save_real_memory<'py>(
    py: Python<'py>,
    proc: PathBuf,
    node: Option<u32>,
    cpus: u16,
    seed: u64,
) -> PyResult<(String, Bound<'py, PyBytes>)> {
    let (about, packed) = guarded(py, || {
        let zone = frames::largest_zone(&proc, node).map_err(refuse)?;
        let found = frames::read(&proc, &zone).map_err(refuse)?;
        let pageblocks_counted = frames::pageblocks_counted(&proc, &zone);
        let (saved, packed) = pack(&found.memory(cpus, seed).map_err(refuse)?);
        Ok((json(&SavedZone { saved, zone, pageblocks: found.pageblocks(), pageblocks_counted })?, packed))
    })?;
    Ok((about, PyBytes::new(py, &packed)))
}

/// The best of `repetitions` runs of the benchmark `name`, as JSON; `None` if it is none of
/// inspection's.
#[cfg(target_os = "linux")]
pub(crate) fn benchmark(name: &str, repetitions: u32) -> Option<PyResult<String>> {
    use nestwalk_live::bench;

    (name == bench::NAME).then(|| {
        let mut value = 0_f64;
        for _ in 0..repetitions.max(1) {
            value = value.max(bench::run().map_err(refuse)?);
        }
        json(&Benchmarked::new(bench::NAME, value, "pages/s"))
    })
}

/// Other systems have no processes that could be inspected.
#[cfg(not(target_os = "linux"))]
pub(crate) fn benchmark(_name: &str, _repetitions: u32) -> Option<PyResult<String>> {
    None
}

/// The names of inspection's benchmarks.
pub(crate) const BENCHMARKS: &[&str] = if cfg!(target_os = "linux") { &["inspect_gib"] } else { &[] };
