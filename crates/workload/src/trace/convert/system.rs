// SPDX-License-Identifier: MIT OR Apache-2.0
//! The stream of the system-mode plugin: accesses of a process in a running guest, with the
//! guest-physical addresses that they had; `linux/data/README.md` describes it. The physical
//! addresses serve to check page tables; a trace has none.

use nestwalk_mem::Va;
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use super::input::Input;
use super::sink::Sink;
use crate::stream::WorkloadError;
use crate::trace::source::SourceAccess;

/// What the format is called.
pub const NAME: &str = "system";
/// What writes it.
pub const TOOL: &str = "linux/harness/memtrace.c (QEMU system mode)";
/// What a file begins with; the number of records follows.
pub const MAGIC: &[u8; 8] = b"NWSM0001";

const REMEDY: &str = "make it again with linux/harness/outside.py";
/// Records read at a time.
const BLOCK: usize = 1 << 16;
/// The accesses are known by 8 bytes, and the plugin does not say by which instruction they are
/// made.
const SIZE_LOG2: u8 = 3;

/// An access as the plugin writes it.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Record {
    address: U64,
    /// Bit 0: a store. Bits 3 to 51: guest-physical address. Bits 52 to 63: instructions since the
    /// record before.
    rest: U64,
}

impl Record {
    fn access(self) -> SourceAccess {
        let store = self.rest.get() & 1;
        // The recorder wants sites that either load or store.
        SourceAccess::new(Va(self.address.get()), store as u32, (self.rest.get() >> 52) as u16, SIZE_LOG2, store != 0)
    }
}

/// Counts the accesses of a capture.
pub fn count(mut input: Input) -> Result<u64, WorkloadError> {
    header(&mut input)
}

fn header(input: &mut Input) -> Result<u64, WorkloadError> {
    let mut words = [U64::new(0); 2];
    let read = input.read(words.as_mut_bytes())?;
    if read < size_of_val(&words) || words[0].as_bytes() != MAGIC {
        return Err(input.corrupt(0, format!("the capture ends inside its header: {REMEDY}")));
    }
    Ok(words[1].get())
}

/// Reads a capture into `recorder`. Returns a warning if the capture ended early; what it has up to
/// there is kept.
pub fn read<S: Sink>(
    mut input: Input,
    recorder: &mut S,
    progress: &mut dyn FnMut(&mut S) -> Result<(), WorkloadError>,
) -> Result<Option<String>, WorkloadError> {
    let count = header(&mut input)?;
    let Some(thread) = recorder.thread(0) else { unreachable!("there is room for one thread") };
    let mut records = vec![Record::new_zeroed(); BLOCK];
    let mut left = count;
    while left > 0 {
        let now = usize::try_from(left).unwrap_or(BLOCK).min(BLOCK);
        let at = input.position();
        let got = input.read(records[..now].as_mut_bytes())? / size_of::<Record>();
        let accesses: Vec<_> = records[..got].iter().map(|record| record.access()).collect();
        SourceAccess::check_all(&accesses)
            .map_err(|(index, what)| input.corrupt(at + (index * size_of::<Record>()) as u64, what))?;
        recorder.accesses(thread, &accesses, 0)?;
        progress(recorder)?;
        left -= got as u64;
        if got < now {
            let have = count - left;
            return Ok(Some(format!("the capture ends after {have} of its {count} accesses; these were kept")));
        }
    }
    Ok(None)
}
