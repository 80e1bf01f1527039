// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a trace holds, and whether it is whole.

use std::path::Path;

use nestwalk_mem::{Access, PageCount, Vpn, VpnRange};
use serde::Serialize;

use super::block::BlockDecoder;
use super::filter::FilterOptions;
use super::filtered::take_gaps;
use super::format::{RECORD_BYTES, RecordKind};
use super::head::phase_name;
use super::index;
use super::log::{LogDecoder, LogStep};
use super::metadata::{Metadata, Sampling, Vma};
use super::play::represented;
use super::reader::{Decoder, Trace};
use super::sites::{SiteAttributes, SiteTable};
use crate::stream::{Batch, Phase, WorkloadError};

/// What `trace info` says.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct TraceInfo {
    /// The format and its version.
    pub format: String,
    /// Name of the program.
    pub program: String,
    /// The command line that ran.
    pub command: String,
    /// What captured it.
    pub tool: String,
    /// When it was captured, if the trace says so.
    pub date: Option<String>,
    /// The format that it was converted from.
    pub source_format: String,
    /// Accesses in the file.
    pub accesses: u64,
    /// Accesses of the program that those in the file stand for: more, where stretches are
    /// filtered.
    pub represented_accesses: u64,
    /// Instructions executed during them.
    pub instructions: u64,
    /// What kinds of stretches the file has, in this order: whole, filtered, skipped.
    pub stretches: Vec<Stretches>,
    /// The filter of the filtered ones.
    pub filter: Option<FilterOptions>,
    /// Accesses of the whole program.
    pub program_accesses: u64,
    /// Instructions of the whole program.
    pub program_instructions: u64,
    /// Threads.
    pub threads: u64,
    /// Bytes of the distinct 4 KiB pages that an access of the program begins in.
    pub footprint_bytes: u64,
    /// Mappings at the end, and those that the capture lacks but the program uses, in order of
    /// address.
    pub vmas: Vec<Vma>,
    /// Whether it has accesses to the kernel's half of the address space.
    pub kernel_half: bool,
    /// Memory events of the capture.
    pub events: u64,
    /// First touches in the file (of a sampled trace).
    pub touches: u64,
    /// Windows of a sampled trace; 0 of a whole one.
    pub windows: u64,
    /// How it was sampled.
    pub sampling: Option<Sampling>,
    /// Sites: instructions that access memory.
    pub sites: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// Bytes of the file for each access in it, all included.
    pub bytes_per_access: f64,
    /// What is to be known of its source: why it was not whole, what its format lacks, what was
    /// left out.
    pub warning: Option<String>,
}

/// Stretches of a trace of one kind.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Stretches {
    /// `whole`: every access is there; `filtered`: those that a filter keeps; `skipped`: only first
    /// touches and events.
    pub kind: &'static str,
    /// `warm` or `measure`; `populate` of skipped ones.
    pub phase: &'static str,
    /// How many there are.
    pub count: u64,
    /// Accesses in the file.
    pub accesses: u64,
    /// Accesses of the program that they stand for.
    pub represented_accesses: u64,
}

/// Says what the trace `path` holds. Reads its tables only.
///
/// # Errors
/// As for [`Trace::open`].
pub fn info(path: &Path) -> Result<TraceInfo, WorkloadError> {
    let trace = Trace::open(path)?;
    let stretches = stretches(&trace)?;
    Ok(describe(&trace, stretches))
}

/// Goes from mark to mark. A trace without marks is one stretch.
fn stretches(trace: &Trace) -> Result<Vec<Stretches>, WorkloadError> {
    let mut decoder = Decoder::new(trace)?;
    let (mut kinds, mut open) = (Vec::new(), Open::at(0, "measure"));
    for record in trace.records() {
        match record.kind {
            RecordKind::Mark => {
                let mark = decoder.mark(trace, record)?;
                open.close(mark.access, &mut kinds);
                open = Open::at(mark.access, phase_name(mark.phase));
            }
            RecordKind::Accesses | RecordKind::Filtered => {
                open.kind = Some(record.kind);
                open.accesses = open.accesses.saturating_add(record.items.into());
                open.represented = open.represented.saturating_add(record.represented());
            }
            _ => {}
        }
    }
    open.close(trace.metadata().program_accesses, &mut kinds);
    Ok(kinds)
}

/// A stretch whose end has not been seen.
struct Open {
    /// Accesses of the program before it.
    begun: u64,
    phase: &'static str,
    kind: Option<RecordKind>,
    accesses: u64,
    represented: u64,
}

impl Open {
    const fn at(begun: u64, phase: &'static str) -> Self {
        Self { begun, phase, kind: None, accesses: 0, represented: 0 }
    }

    /// It ends before access `end` of the program: counts it among those of its kind.
    fn close(&self, end: u64, kinds: &mut Vec<Stretches>) {
        let (kind, phase, represented) = match self.kind {
            Some(RecordKind::Accesses) => ("whole", self.phase, self.represented),
            Some(_) => ("filtered", self.phase, self.represented),
            None => ("skipped", phase_name(Phase::Populate), end.saturating_sub(self.begun)),
        };
        if represented == 0 {
            return;
        }
        let known = kinds.iter().position(|known| (known.kind, known.phase) == (kind, phase));
        let index = known.unwrap_or_else(|| {
            kinds.push(Stretches { kind, phase, count: 0, accesses: 0, represented_accesses: 0 });
            kinds.len() - 1
        });
        let of_kind = &mut kinds[index];
        of_kind.count += 1;
        of_kind.accesses = of_kind.accesses.saturating_add(self.accesses);
        of_kind.represented_accesses = of_kind.represented_accesses.saturating_add(represented);
    }
}

fn describe(trace: &Trace, stretches: Vec<Stretches>) -> TraceInfo {
    let Metadata { program, command, tool, date, source_format, vmas, implied, sampling, filter, warning, .. } =
        trace.metadata().clone();
    let metadata = trace.metadata();
    let mut vmas: Vec<Vma> = vmas.into_iter().chain(implied).collect();
    vmas.sort_by_key(|vma| (vma.start, vma.end));
    TraceInfo {
        format: format!("nwt {}", trace.version()),
        program,
        command,
        tool,
        date,
        source_format,
        accesses: metadata.accesses,
        represented_accesses: represented(metadata),
        instructions: metadata.instructions,
        stretches,
        filter,
        program_accesses: metadata.program_accesses,
        program_instructions: metadata.program_instructions,
        threads: metadata.threads,
        footprint_bytes: PageCount(metadata.footprint_pages).0.saturating_mul(PageCount(1).bytes()),
        vmas,
        kernel_half: metadata.kernel_half,
        events: metadata.events,
        touches: metadata.touches,
        windows: sampling.as_ref().map_or(0, |sampling| sampling.windows),
        sampling,
        sites: trace.sites().attributes.len() as u64,
        bytes: trace.bytes(),
        bytes_per_access: trace.bytes() as f64 / metadata.accesses.max(1) as f64,
        warning,
    }
}

/// What a check counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CheckReport {
    /// Accesses decoded.
    pub accesses: u64,
    /// Accesses that a filter absorbed between them.
    pub absorbed: u64,
    /// Records checked.
    pub records: u64,
    /// First touches.
    pub touches: u64,
    /// Memory events (those that the converter added included).
    pub events: u64,
    /// Instructions during the accesses.
    pub instructions: u64,
}

/// Reads the whole trace `path` and checks every checksum, every record, and that the totals agree.
///
/// # Errors
/// With the first thing that is wrong.
pub fn check(path: &Path) -> Result<CheckReport, WorkloadError> {
    check_trace(&Trace::open(path)?)
}

fn check_trace(trace: &Trace) -> Result<CheckReport, WorkloadError> {
    let mut decoder = Decoder::new(trace)?;
    let mut report = CheckReport::default();
    let mut accesses: Vec<Access> = Vec::new();
    let mut touches: Vec<(Vpn, bool)> = Vec::new();
    for (i, record) in trace.records().iter().enumerate() {
        match record.kind {
            RecordKind::Accesses | RecordKind::Filtered => {
                decoder.begin(trace, record)?;
                while decoder.left() > 0 {
                    accesses.clear();
                    report.accesses += decoder.fill(trace, &mut accesses, Batch::ACCESSES_MAX)? as u64;
                }
                report.absorbed = report.absorbed.saturating_add(record.absorbed);
                report.instructions = report.instructions.saturating_add(record.instructions);
            }
            RecordKind::Log => {
                decoder.begin_log(trace, record)?;
                loop {
                    touches.clear();
                    match decoder.log_step(trace, &mut touches, Batch::ACCESSES_MAX)? {
                        LogStep::Touches(_) => report.touches += touches.len() as u64,
                        LogStep::Event(_) => report.events += 1,
                        LogStep::End => break,
                    }
                }
            }
            _ => {
                decoder.mark(trace, record)?;
            }
        }
        report.records += 1;
        let next = trace.records().get(i + 1).map_or(trace.records_end(), |next| next.offset);
        let end = record.offset + RECORD_BYTES as u64 + decoder.stored_bytes();
        if end != next {
            return Err(trace.corrupt(end, "bytes that belong to no record: convert the trace again".into()));
        }
    }
    let metadata = trace.metadata();
    if (report.accesses, report.absorbed, report.touches, report.instructions)
        != (metadata.accesses, metadata.absorbed, metadata.touches, metadata.instructions)
    {
        return Err(trace
            .corrupt(trace.records_end(), "totals that the records do not add up to: convert the trace again".into()));
    }
    Ok(report)
}

/// Does everything that a reader does with `data`, as a whole file and as the payload of each kind
/// of record (so that a fuzzer need not guess checksums). Must return, whatever the data.
pub fn fuzz_one(data: &[u8]) {
    if let Ok(trace) = Trace::from_bytes(data.to_vec()) {
        let _ = check_trace(&trace);
        if let Ok(stretches) = stretches(&trace) {
            std::hint::black_box(describe(&trace, stretches));
        }
        for vma in trace.metadata().implied.iter().take(1000) {
            std::hint::black_box(super::play::implied_mapping(vma));
        }
    }
    let Some((&items, plain)) = data.split_first() else { return };
    let items = u32::from(items) * 8;
    let attributes: Vec<_> = (0..64).filter_map(|i| SiteAttributes::new(i % 2 == 0, i % 8)).collect();
    let mut decoder = BlockDecoder::default();
    decoder.plain.extend_from_slice(plain);
    if decoder.begin(items, &attributes).is_ok() {
        let mut out = Vec::new();
        while decoder.left() > 0 && decoder.fill(&mut out, 7).is_ok() {}
    }
    let mut gaps = Vec::new();
    let mut filtered = plain.to_vec();
    let _ = take_gaps(&mut filtered, items / 8, u64::from(items) * 3, &mut gaps);
    let mut log = LogDecoder::default();
    log.plain.extend_from_slice(plain);
    if log.begin(items).is_ok() {
        let mut touches = Vec::new();
        while let Ok(step) = log.step(&mut touches, 7) {
            match step {
                LogStep::Touches(_) => {
                    touches.drain(..).for_each(|(page, _)| assert!(VpnRange::new(page, PageCount(1)).contains(page)));
                }
                LogStep::Event(event) => drop(event.meaning()),
                LogStep::End => break,
            }
        }
    }
    let _ = SiteTable::default().decode(plain, items);
    let _ = index::decode(plain, items, 32, 1 << 20, &mut Vec::new());
    let _ = index::Mark::from_bytes(plain);
}
