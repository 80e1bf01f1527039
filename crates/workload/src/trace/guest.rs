// SPDX-License-Identifier: MIT OR Apache-2.0
//! The stream of the plugin for whole guests (`nestwalk vm capture`; `docs/whole-vms.md` describes
//! it): accesses of one process of a guest, by user and by kernel code, with the frame that each of
//! them went to.
//!
//! A trace gets the accesses to the user half, and to the kernel's half if asked for; a vCPU is a
//! thread of it. The frames are counted by page, to check them against page tables.

use std::ops::ControlFlow;
use std::path::Path;

use nestwalk_mem::Va;
use rustc_hash::FxHashMap;
use serde::Serialize;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use super::convert::input::Input;
use super::convert::{ConvertOptions, Progress};
use super::metadata::Metadata;
use super::recorder::Recorder;
use super::source::SourceAccess;
use crate::stream::WorkloadError;

/// What a stream begins with; a word follows that is reserved.
pub const MAGIC: &[u8; 8] = b"NWSM0003";
/// What a trace says where its accesses come from.
pub const NAME: &str = "guest";

const TOOL: &str = "nestwalk vm capture (QEMU system mode)";
const BLOCK_MAGIC: u32 = u32::from_le_bytes(*b"NWVB");
/// Of a block: the plugin's buffer.
const RECORDS_MAX: u32 = 1 << 20;
const VCPUS_MAX: u32 = 1 << 10;
/// Executed between two blocks: days of work.
const INSTRUCTIONS_MAX: u64 = 1 << 48;
const GVA_BITS: u32 = 57;
/// Of a gva that so many levels of tables translate.
const fn bits_of(levels: u32) -> u32 {
    PAGE_SHIFT + 9 * levels
}
const PAGE_SHIFT: u32 = 12;
const FRAME_UNKNOWN: u64 = (1 << 28) - 1;
/// log2 of the bytes of an access, at most.
const SIZE_MASK: u64 = 3;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Header {
    magic: U32,
    vcpu: U32,
    records: U32,
    /// Of the page tables: 4 or 5.
    levels: U32,
    /// Executed by the process on this vCPU since its block before.
    user_instructions: U64,
    kernel_instructions: U64,
}

/// An access as the plugin writes it.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Record {
    /// Bits 0 to 56: gva. 57: by kernel code. 58: a store. 59, 60: log2 of its bytes. 62: to a
    /// device.
    place: U64,
    /// Bits 0 to 27: frame. 28 to 51: site. 52 to 63: instructions of the same mode since the
    /// record before.
    what: U64,
}

impl Record {
    fn gva(self) -> u64 {
        self.place.get() & ((1 << GVA_BITS) - 1)
    }

    /// Whether it is to the kernel's half of the address space.
    fn is_kernel_address(self) -> bool {
        self.place.get() >> (GVA_BITS - 1) & 1 != 0
    }

    fn is_by_kernel(self) -> bool {
        self.place.get() >> 57 & 1 != 0
    }

    fn is_device(self) -> bool {
        self.place.get() >> 62 & 1 != 0
    }

    fn frame(self) -> Option<u64> {
        let frame = self.what.get() & FRAME_UNKNOWN;
        (frame != FRAME_UNKNOWN && !self.is_device()).then_some(frame)
    }

    fn instructions(self) -> u64 {
        self.what.get() >> 52
    }

    /// As a trace has it: without the sign bits that tables of `levels` levels do not translate.
    fn access(self, levels: u32) -> SourceAccess {
        let place = self.place.get();
        let site = (self.what.get() >> 28 & 0xff_ffff) as u32;
        let (size_log2, store) = ((place >> 59 & SIZE_MASK) as u8, place >> 58 & 1 != 0);
        SourceAccess::new(
            Va(self.gva() & ((1 << bits_of(levels)) - 1)),
            site,
            self.instructions() as u16,
            size_log2,
            store,
        )
    }
}

/// Accesses to a page while it was at a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameCount {
    /// gva >> 12; the gva has 57 bits.
    pub page: u64,
    /// QEMU's physical address of it >> 12, if it could tell.
    pub frame: Option<u64>,
    /// How many.
    pub accesses: u64,
}

/// Counts accesses by page and frame.
#[derive(Debug, Default)]
struct Frames {
    counts: FxHashMap<(u64, u64), u64>,
    /// Of the last page, not yet counted: programs stay on a page for a while.
    last: (u64, u64),
    run: u64,
}

impl Frames {
    fn note(&mut self, record: Record) {
        let key = (record.gva() >> PAGE_SHIFT, record.frame().unwrap_or(FRAME_UNKNOWN));
        if key != self.last {
            self.flush();
            self.last = key;
        }
        self.run += 1;
    }

    fn flush(&mut self) {
        if self.run > 0 {
            *self.counts.entry(self.last).or_default() += self.run;
        }
        self.run = 0;
    }

    /// All of it, by page.
    fn finish(mut self) -> Vec<FrameCount> {
        self.flush();
        let known = |frame| (frame != FRAME_UNKNOWN).then_some(frame);
        let counts = self.counts.into_iter();
        let mut all: Vec<_> =
            counts.map(|((page, frame), accesses)| FrameCount { page, frame: known(frame), accesses }).collect();
        all.sort_unstable_by_key(|one| (one.page, one.frame));
        all
    }
}

/// What a stream held.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Counts {
    /// Accesses in the stream.
    pub recorded: u64,
    /// By user code.
    pub by_user: u64,
    /// By kernel code to the user half: what it copies from and to the program.
    pub by_kernel_to_user: u64,
    /// By kernel code to its own half.
    pub by_kernel_to_kernel: u64,
    /// To devices.
    pub to_devices: u64,
    /// Instructions that the process executed in user mode.
    pub user_instructions: u64,
    /// In the kernel, interrupts included.
    pub kernel_instructions: u64,
}

/// What became of a stream.
#[derive(Clone, Debug)]
pub struct GuestReport {
    /// What the stream held.
    pub counts: Counts,
    /// Where its accesses went.
    pub frames: Vec<FrameCount>,
    /// Accesses in the trace.
    pub accesses: u64,
    /// Bytes of the trace.
    pub bytes: u64,
    /// What the trace says of itself.
    pub metadata: Metadata,
}

/// What of a stream a trace gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kept {
    /// What user code accesses.
    UserCode,
    /// The user half, accessed by user or kernel code.
    UserHalf,
    /// Both halves.
    BothHalves,
}

impl Kept {
    fn has(self, record: Record) -> bool {
        let asked = match self {
            Self::UserCode => !(record.is_by_kernel() || record.is_kernel_address()),
            Self::UserHalf => !record.is_kernel_address(),
            Self::BothHalves => true,
        };
        asked && !record.is_device()
    }
}

/// Reads the stream `source` (a file or a FIFO) and writes the trace `destination`. `progress` is
/// told of accesses read and ends the work by breaking. A stream that is cut is kept up to there,
/// with a warning in the metadata.
///
/// # Errors
/// When the stream is none or is damaged, the trace cannot be written, or `progress` broke.
pub fn record(
    source: &Path,
    destination: &Path,
    options: &ConvertOptions,
    kept: Kept,
    progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Result<GuestReport, WorkloadError> {
    let mut input = Input::open(source)?;
    let recorder = Recorder::create(destination, options.level, options.sample, options.filter, options.total)?;
    let mut reader = Reader { recorder, counts: Counts::default(), frames: Frames::default(), kept };
    let mut head = [0; 16];
    if input.read(&mut head)? < head.len() || !head.starts_with(MAGIC) {
        return Err(input.corrupt(0, "not a stream of accesses of a guest: nestwalk vm capture makes them".into()));
    }
    let warning = loop {
        match reader.block(&mut input)? {
            Outcome::Block => {}
            Outcome::End => break None,
            Outcome::Cut => break Some("the guest ended in the middle of a record; all before it was kept".to_owned()),
        }
        let now =
            Progress { accesses: reader.counts.recorded, total: options.total, bytes: reader.recorder.totals().bytes };
        if progress(now).is_break() {
            return Err(WorkloadError::Io { path: source.into(), source: std::io::ErrorKind::Interrupted.into() });
        }
    };
    let metadata = Metadata {
        program: if options.program.is_empty() { "guest".into() } else { options.program.clone() },
        command: options.command.clone(),
        tool: if options.tool.is_empty() { TOOL.into() } else { options.tool.clone() },
        date: options.date.clone(),
        source_format: NAME.into(),
        kernel_half: kept == Kept::BothHalves,
        warning,
        ..Metadata::default()
    };
    let recorded = reader.recorder.finish(metadata)?;
    Ok(GuestReport {
        counts: reader.counts,
        frames: reader.frames.finish(),
        accesses: recorded.totals.accesses,
        bytes: recorded.totals.bytes,
        metadata: recorded.metadata,
    })
}

enum Outcome {
    Block,
    End,
    Cut,
}

struct Reader {
    recorder: Recorder,
    counts: Counts,
    frames: Frames,
    kept: Kept,
}

impl Reader {
    fn block(&mut self, input: &mut Input) -> Result<Outcome, WorkloadError> {
        let at = input.position();
        let mut header = Header::new_zeroed();
        let got = input.read(header.as_mut_bytes())?;
        if got == 0 {
            return Ok(Outcome::End);
        }
        if got < size_of::<Header>() {
            return Ok(Outcome::Cut);
        }
        let (vcpu, records) = (header.vcpu.get(), header.records.get());
        let levels = header.levels.get();
        let (user, kernel) = (header.user_instructions.get(), header.kernel_instructions.get());
        let known = header.magic.get() == BLOCK_MAGIC && (4..=5).contains(&levels);
        if !known || records > RECORDS_MAX || vcpu >= VCPUS_MAX || user.max(kernel) > INSTRUCTIONS_MAX {
            return Err(input.corrupt(at, "no block of accesses begins here: capture the guest again".into()));
        }
        let mut block = vec![Record::new_zeroed(); records as usize];
        let whole = input.read(block.as_mut_bytes())? / size_of::<Record>();
        self.counts.user_instructions += user;
        self.counts.kernel_instructions += kernel;
        let counted = if self.kept == Kept::BothHalves { user + kernel } else { user };
        self.records(vcpu, levels, &block[..whole], counted)?;
        Ok(if whole < block.len() { Outcome::Cut } else { Outcome::Block })
    }

    /// `instructions`: of the modes whose every instruction the trace counts.
    fn records(&mut self, vcpu: u32, levels: u32, block: &[Record], instructions: u64) -> Result<(), WorkloadError> {
        let mut kept = Vec::with_capacity(block.len());
        let mut told = 0;
        for &record in block {
            self.count(record);
            let is_kept = self.kept.has(record);
            if is_kept {
                kept.push(record.access(levels));
            }
            if is_kept && (self.kept == Kept::BothHalves || !record.is_by_kernel()) {
                told += record.instructions();
            }
        }
        let Some(thread) = self.recorder.thread(vcpu) else { unreachable!("vCPUs are at most {VCPUS_MAX}") };
        self.recorder.accesses(thread, &kept, instructions.saturating_sub(told))
    }

    fn count(&mut self, record: Record) {
        let counts = &mut self.counts;
        counts.recorded += 1;
        let slot = match (record.is_device(), record.is_by_kernel(), record.is_kernel_address()) {
            (true, ..) => &mut counts.to_devices,
            (_, false, _) => &mut counts.by_user,
            (_, true, false) => &mut counts.by_kernel_to_user,
            (_, true, true) => &mut counts.by_kernel_to_kernel,
        };
        *slot += 1;
        if !record.is_device() {
            self.frames.note(record);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use proptest::prelude::*;

    use super::*;

    fn word(gva: u64, kernel: bool, store: bool) -> u64 {
        gva & ((1 << GVA_BITS) - 1) | u64::from(kernel) << 57 | u64::from(store) << 58 | 3 << 59
    }

    fn block(vcpu: u32, user_instructions: u64, records: &[(u64, u64)]) -> Vec<u8> {
        let mut bytes = BLOCK_MAGIC.to_le_bytes().to_vec();
        for number in [vcpu, records.len() as u32, 4] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend([user_instructions, 1000].iter().flat_map(|word| word.to_le_bytes()));
        bytes.extend(records.iter().flat_map(|&(place, what)| [place.to_le_bytes(), what.to_le_bytes()].concat()));
        bytes
    }

    fn stream(blocks: &[Vec<u8>]) -> Vec<u8> {
        [MAGIC.to_vec(), vec![0; 8], blocks.concat()].concat()
    }

    struct Place(tempfile::TempDir);

    impl Place {
        fn trace(&self) -> PathBuf {
            self.0.path().join("t.nwt")
        }

        fn record(&self, bytes: &[u8], kept: Kept) -> Result<GuestReport, WorkloadError> {
            let source = self.0.path().join("stream");
            std::fs::write(&source, bytes).unwrap();
            let options = ConvertOptions::default();
            record(&source, &self.trace(), &options, kept, &mut |_| ControlFlow::Continue(()))
        }
    }

    fn place() -> Place {
        Place(tempfile::tempdir().unwrap())
    }

    fn sample() -> Vec<u8> {
        let records = [
            (word(0x7fff_0000_1000, false, true), 77 | 5 << 28 | 3 << 52),
            (word(0x7fff_0000_1008, true, false), 77 | 6 << 28 | 9 << 52),
            (word(0xffff_8880_0000_2000, true, true), 2 | 7 << 28 | 9 << 52),
            (word(0xffff_c900_0000_0000, true, false) | 1 << 62, FRAME_UNKNOWN),
            (word(0x7fff_0000_2000, false, false), FRAME_UNKNOWN | 4 << 52),
        ];
        stream(&[block(0, 20, &records), block(3, 1, &records[..1])])
    }

    #[test]
    fn the_trace_has_the_user_half_and_the_counts_have_all() {
        let place = place();
        let report = place.record(&sample(), Kept::UserHalf).unwrap();
        let counts = report.counts;
        assert_eq!((counts.recorded, counts.by_user, counts.to_devices), (6, 3, 1));
        assert_eq!((counts.by_kernel_to_user, counts.by_kernel_to_kernel), (1, 1));
        assert_eq!((counts.user_instructions, counts.kernel_instructions), (21, 2000));
        assert_eq!((report.accesses, report.metadata.threads), (4, 2));
        // 3 + 4 told by user records, 13 of the rest of the block, 9 in the kernel; 3 of the second
        // block.
        assert_eq!(report.metadata.instructions, 3 + 4 + 13 + 9 + 3);
        let frames: Vec<_> = report.frames.iter().map(|one| (one.page, one.frame, one.accesses)).collect();
        let kernel = 0x1ff_8880_0000_2000 >> 12;
        assert_eq!(frames, [(0x7_fff0_0001, Some(77), 3), (0x7_fff0_0002, None, 1), (kernel, Some(2), 1)]);
        assert_eq!(place.record(&sample(), Kept::UserCode).unwrap().accesses, 3);
        super::super::check(&place.trace()).unwrap();
    }

    #[test]
    fn the_kernels_half_is_in_the_trace_if_asked_for() {
        let place = place();
        let report = place.record(&sample(), Kept::BothHalves).unwrap();
        assert_eq!(report.accesses, 5);
        assert!(report.metadata.kernel_half);
        // All that both modes executed.
        assert_eq!(report.metadata.instructions, 21 + 2000);
        let addresses = |levels: u8| {
            let mut bytes = sample();
            bytes[16 + 12] = levels;
            place.record(&bytes, Kept::BothHalves).unwrap();
            let reader = super::super::Trace::open(&place.trace()).unwrap();
            reader.metadata().implied.iter().map(|vma| vma.start).max().unwrap()
        };
        // Without sign bits, of as many bits as the tables translate.
        assert_eq!((addresses(4), addresses(5)), (0x8880_0000_2000, 0x1ff_8880_0000_2000));
        let again = place.0.path().join("again.nwt");
        let options = ConvertOptions::default();
        let converted =
            super::super::convert(&place.trace(), &again, &options, &mut |_| ControlFlow::Continue(())).unwrap();
        assert_eq!(converted.metadata.implied.last().unwrap().start, 0x1ff_8880_0000_2000);
        assert!(converted.metadata.kernel_half);
        let mut bytes = sample();
        bytes[16 + 12] = 3;
        assert!(place.record(&bytes, Kept::BothHalves).unwrap_err().to_string().contains("no block of accesses"));
    }

    #[test]
    fn what_is_no_stream_is_refused_and_a_cut_one_kept() {
        let place = place();
        let whole = sample();
        let cut = place.record(&whole[..whole.len() - 5], Kept::UserHalf).unwrap();
        assert_eq!(cut.accesses, 3);
        assert!(cut.metadata.warning.unwrap().contains("in the middle of a record"));
        let error = place.record(b"something else entirely", Kept::UserHalf).unwrap_err().to_string();
        assert!(error.contains("not a stream"), "{error}");
        let mut damaged = whole;
        damaged[16] ^= 1;
        let error = place.record(&damaged, Kept::UserHalf).unwrap_err().to_string();
        assert!(error.contains("no block of accesses"), "{error}");
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600), keep in 0_usize..200, kernel in any::<bool>()) {
            let place = place();
            let mut whole = sample();
            whole.truncate(whole.len().min(keep + 16));
            whole.extend(bytes);
            if place.record(&whole, if kernel { Kept::BothHalves } else { Kept::UserHalf }).is_ok() {
                super::super::check(&place.trace()).unwrap();
            }
        }
    }
}
