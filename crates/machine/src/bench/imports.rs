// SPDX-License-Identifier: MIT OR Apache-2.0
//! How fast other tools' files become traces: records a second, from a plain file to a written
//! trace. The accesses are those of real programs, half a million of each in one piece
//! (`data/traces/whole`), so that they are as hard to predict as users' own.
//!
//! `import_raw_missed` is the hardest input: only accesses that miss a filter of 512 lines and 64
//! pages, such as the bundled traces consist of. No tool writes such a file.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use nestwalk_workload::WorkloadError;
use nestwalk_workload::trace::format::RecordKind;
use nestwalk_workload::trace::{ConvertOptions, Decoder, Trace, convert};

use super::{Watch, repeat};
use crate::error::MachineError;

/// The benchmarks, in the order of [`super::run`]'s names.
pub const NAMES: [&str; 5] = ["import_champsim", "import_drmemtrace", "import_addresses", "import_raw", MISSED];

const MISSED: &str = "import_raw_missed";
/// The folder of traces of every access, in that of the bundled ones.
const WHOLE: &str = "whole";

/// Accesses of a file: enough for the fixed costs not to show, and few enough to be written in a
/// moment.
const ACCESSES: usize = 1 << 20;
/// Instructions for each access, which ChampSim and drmemtrace have records of.
const INSTRUCTIONS: usize = 3;

/// An access: address, instruction, store.
type One = (u64, u64, bool);

/// Converts a file of the format that `name` says.
///
/// # Errors
/// When a bundled trace cannot be read, or there is no room for temporary files.
pub fn import(name: &str, traces: &Path, repetitions: u32, watch: &mut dyn Watch) -> Result<u64, MachineError> {
    let folder = tempfile::tempdir().map_err(|source| io(&std::env::temp_dir(), source))?;
    let (source, destination) = (folder.path().join(name), folder.path().join("trace.nwt"));
    let accesses = if name == MISSED { accesses(traces)? } else { accesses(&traces.join(WHOLE))? };
    let records = write(name, &accesses, &source).map_err(|error| io(&source, error))?;
    repeat(
        repetitions,
        watch,
        || Ok(()),
        |()| {
            let options = ConvertOptions::default();
            convert(&source, &destination, &options, &mut |_| ControlFlow::Continue(())).map_err(MachineError::from)?;
            Ok(records)
        },
    )
}

fn io(path: &Path, source: std::io::Error) -> MachineError {
    WorkloadError::Io { path: path.to_owned(), source }.into()
}

/// The first accesses of the traces in a folder.
fn accesses(traces: &Path) -> Result<Vec<One>, MachineError> {
    let mut all = Vec::with_capacity(ACCESSES);
    let names = crate::bundled_traces(traces);
    for name in &names {
        let path: PathBuf = crate::trace_path(name, Path::new(""), traces)?;
        let trace = Trace::open(&path)?;
        let (mut decoder, mut some) = (Decoder::new(&trace)?, Vec::new());
        let wanted = all.len() + ACCESSES / names.len();
        for record in trace.records() {
            if !matches!(record.kind, RecordKind::Accesses | RecordKind::Filtered) || all.len() >= wanted {
                continue;
            }
            some.clear();
            decoder.begin(&trace, record)?;
            decoder.fill_sites(&trace, &mut some)?;
            let store = |site: usize| trace.sites().attributes[site].is_store();
            let one = |&(site, address): &(_, nestwalk_mem::Gva)| {
                let nestwalk_workload::trace::sites::SiteId(site) = site;
                (address.0, 0x40_0000 + u64::from(site) * 4, store(site as usize))
            };
            all.extend(some.iter().map(one));
        }
        all.truncate(wanted);
    }
    Ok(all)
}

/// Writes the file, and says how many records it has.
fn write(name: &str, accesses: &[One], path: &Path) -> std::io::Result<u64> {
    let mut out = BufWriter::with_capacity(1 << 20, File::create(path)?);
    let mut records = 0;
    let put = |out: &mut BufWriter<File>, bytes: &[u8]| out.write_all(bytes);
    match name {
        "import_champsim" => {
            for one in accesses {
                for before in (0..INSTRUCTIONS as u64).rev() {
                    put(&mut out, &champsim(one, before))?;
                    records += 1;
                }
            }
        }
        "import_drmemtrace" => {
            for head in [(25, 0, 7), (28, 12, 7), (22, 4, 1), (24, 4, 1)] {
                put(&mut out, &drmemtrace(head.0, head.1, head.2))?;
            }
            for &(address, instruction, store) in accesses {
                for before in (0..INSTRUCTIONS as u64).rev() {
                    put(&mut out, &drmemtrace(47, 4, 0x9090_9090))?;
                    put(&mut out, &drmemtrace(10, 4, instruction.wrapping_sub(before * 4)))?;
                }
                put(&mut out, &drmemtrace(u16::from(store), 8, address))?;
                records += 2 * INSTRUCTIONS as u64 + 1;
            }
            put(&mut out, &drmemtrace(26, 0, 0))?;
        }
        "import_addresses" => {
            for (address, ..) in accesses {
                put(&mut out, &address.to_le_bytes())?;
                records += 1;
            }
        }
        _ => {
            for block in accesses.chunks(1 << 16) {
                put(&mut out, &raw_header(block.len() as u64, (records + block.len() as u64) * INSTRUCTIONS as u64))?;
                for &(address, instruction, store) in block {
                    let packed =
                        instruction & 0xffff_ffff | (INSTRUCTIONS as u64) << 32 | 3 << 48 | u64::from(store) << 56;
                    put(&mut out, &[address.to_le_bytes(), packed.to_le_bytes()].concat())?;
                }
                records += block.len() as u64;
            }
        }
    }
    out.flush()?;
    Ok(records)
}

/// A record of ChampSim's for the instruction `before` that of the access; 0 = its own.
fn champsim(&(address, instruction, store): &One, before: u64) -> [u8; 64] {
    let mut record = [0; 64];
    record[..8].copy_from_slice(&instruction.wrapping_sub(before * 4).to_le_bytes());
    if before == 0 {
        let at = if store { 16 } else { 32 };
        record[at..at + 8].copy_from_slice(&address.to_le_bytes());
    }
    record
}

fn drmemtrace(kind: u16, size: u16, value: u64) -> [u8; 12] {
    let mut record = [0; 12];
    record[..2].copy_from_slice(&kind.to_le_bytes());
    record[2..4].copy_from_slice(&size.to_le_bytes());
    record[4..].copy_from_slice(&value.to_le_bytes());
    record
}

/// The header of a block of the capture plugin's (`capture/README.md`).
fn raw_header(records: u64, instructions: u64) -> Vec<u8> {
    let (magic, bytes) = (u64::from(0x4352_5441_u32), 16 * records);
    [magic, records, bytes, instructions].map(u64::to_le_bytes).concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_as_what_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let accesses: Vec<One> =
            (0..5000u64).map(|i| (0x7000_0000_0000 + i * 712, 0x40_0000 + i % 9, i % 3 == 0)).collect();
        for name in NAMES {
            let path = folder.path().join(name);
            write(name, &accesses, &path).unwrap();
            let trace = folder.path().join("trace.nwt");
            let report =
                convert(&path, &trace, &ConvertOptions::default(), &mut |_| ControlFlow::Continue(())).unwrap();
            assert!(name.starts_with(&format!("import_{}", report.metadata.source_format)), "{name}");
            assert_eq!(report.accesses, 5000, "{name}");
        }
    }
}
