// SPDX-License-Identifier: MIT OR Apache-2.0
//! ChampSim's traces: a record of fixed size an instruction, without any header, so what a file is
//! shows in its records. The stock record (`input_instr`) has 64 bytes; CloudSuite's
//! (`cloudsuite_instr`) has 96. Both begin with the address of the instruction (u64) and two
//! booleans; behind registers and padding come the addresses that it stores to, then those that it
//! loads from, 0 where there is none.

use super::import::{ADDRESS_END, BATCH, Batch, Instructions, Reader};
use super::input::Input;
use crate::stream::WorkloadError;
use crate::trace::format::u64_at;

/// What the format is called.
pub const NAME: &str = "champsim";
/// What writes it.
pub const TOOL: &str = "a ChampSim tracer";

/// Bytes that are looked at to tell what a file is.
pub const HEAD: usize = 96 * 2048;
/// Of an access, in bytes: an assumption, records do not say. The simulator looks at the page that
/// an access begins in.
const BYTES_ASSUMED: u16 = 8;
const READ_BYTES: usize = 1 << 20;
/// Of the operands of real programs' instructions, at least this share is not there: 1 in so many.
/// Arrays of addresses have all.
const ABSENT_MIN: usize = 4;
/// At most so many instructions address what no program may (the kernel's vsyscall page, for one):
/// 1 in so many.
const FAR_MAX: usize = 64;
/// Forks' record sizes that are tried, in bytes, to say which would fit.
const STRIDES: std::ops::RangeInclusive<usize> = 16..=256;

/// A record's layout.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    name: &'static str,
    bytes: usize,
    /// Where the addresses of stores begin, how many there are, and how many of loads follow.
    operands: usize,
    stores: usize,
    loads: usize,
}

/// The layouts that are read.
const LAYOUTS: [Layout; 2] = [
    Layout { name: "stock", bytes: 64, operands: 16, stores: 2, loads: 4 },
    Layout { name: "CloudSuite", bytes: 96, operands: 24, stores: 4, loads: 4 },
];

/// Whether the head of a record can be one: a user address, then two booleans.
#[inline]
fn is_instruction(record: &[u8]) -> bool {
    u64_at(record, 0) < ADDRESS_END && record[8] | record[9] <= 1
}

impl Layout {
    fn operand(&self, record: &[u8], index: usize) -> u64 {
        u64_at(record, self.operands + 8 * index)
    }

    /// Whether all records of `head` have this layout.
    fn fits(&self, head: &[u8]) -> bool {
        let (mut records, mut absent, mut far) = (0, 0, 0);
        let all = self.stores + self.loads;
        for record in head.chunks_exact(self.bytes) {
            if !is_instruction(record) {
                return false;
            }
            records += 1;
            far += usize::from((0..all).any(|index| self.operand(record, index) >= ADDRESS_END));
            absent += (0..all).filter(|&index| self.operand(record, index) == 0).count();
        }
        let instructions = head.chunks_exact(self.bytes).filter(|record| u64_at(record, 0) != 0).count();
        records > 0 && instructions * 2 > records && far <= records / FAR_MAX && absent >= records * all / ABSENT_MIN
    }
}

/// What `head`, the beginning of a file, is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fit {
    /// Of a layout that is read.
    Known(Layout),
    /// A fork's records of so many bytes, in all likelihood.
    Unknown(usize),
    /// No such trace.
    None,
}

/// Says what `head` is.
pub fn fit(head: &[u8]) -> Fit {
    if let Some(layout) = LAYOUTS.iter().find(|layout| layout.fits(head)) {
        return Fit::Known(*layout);
    }
    // Fewer records could pass by chance.
    const RECORDS_MIN: usize = 32;
    let looks = |stride: &usize| {
        let records = head.chunks_exact(*stride);
        // A record that is all zeros, or of small numbers, says nothing.
        let telling = records.clone().filter(|record| u64_at(record, 0) >= 4096).count();
        telling >= RECORDS_MIN && telling * 2 > records.len() && records.clone().all(is_instruction)
    };
    let Some(stride) = STRIDES.step_by(8).find(looks) else { return Fit::None };
    // Several records of a known layout at a time: one of them is damaged, and its reader says
    // which.
    let known = LAYOUTS.iter().find(|layout| stride % layout.bytes == 0);
    known.map_or(Fit::Unknown(stride), |layout| Fit::Known(*layout))
}

/// Why a file with records of `bytes` bytes is not read.
pub fn unknown_stride(bytes: usize) -> String {
    format!(
        "this looks like a ChampSim trace with records of {bytes} bytes (there the branch flags are 0 or 1), which a fork of ChampSim \
         wrote: convert it to the stock 64 bytes (ip, is_branch, branch_taken, 2 + 4 registers, 2 + 4 addresses); read are 64 and \
         CloudSuite's 96"
    )
}

/// See the [module's documentation](self).
pub struct ChampSim {
    input: Input,
    layout: Layout,
    buffer: Vec<u8>,
    /// What is left of the buffer.
    used: usize,
    filled: usize,
    instructions: Instructions,
    /// Instructions since the access before.
    since: u64,
    /// Accesses to addresses that no program may have.
    far: u64,
    /// Bytes behind the last whole record.
    rest: usize,
}

impl ChampSim {
    /// Reads `input`, whose records have this `layout`.
    pub fn new(input: Input, layout: Layout) -> Self {
        let buffer = vec![0; READ_BYTES / layout.bytes * layout.bytes];
        let instructions = Instructions::default();
        Self { input, layout, buffer, used: 0, filled: 0, instructions, since: 0, far: 0, rest: 0 }
    }

    /// Reads `input`, which should have the stock layout.
    pub fn stock(input: Input) -> Self {
        Self::new(input, LAYOUTS[0])
    }

    /// Fills the buffer with whole records; `false` at the end.
    fn refill(&mut self) -> Result<bool, WorkloadError> {
        if self.used < self.filled {
            return Ok(true);
        }
        let got = self.input.read(&mut self.buffer)?;
        let rest = got % self.layout.bytes;
        // Only the last read brings part of a record.
        self.rest += rest;
        (self.used, self.filled) = (0, got - rest);
        Ok(self.filled > 0)
    }

    #[cold]
    fn refuse(&self, at: usize) -> WorkloadError {
        let left = (self.filled - at + self.rest) as u64;
        let what = format!(
            "no record of a ChampSim trace with {} bytes a record ({}): a branch flag is neither 0 nor 1, or an instruction is where no \
             program has any; the file is damaged, or its records have another size",
            self.layout.bytes, self.layout.name
        );
        self.input.corrupt(self.input.position() - left, what)
    }
}

/// Reads the records of `bytes` into `batch`: with constants for the layout, so that the loops over
/// operands are unrolled. Says how many bytes it has taken; an error is where the record begins
/// that is none.
#[inline]
fn take<const BYTES: usize, const OPERANDS: usize, const STORES: usize, const LOADS: usize>(
    bytes: &[u8],
    instructions: &mut Instructions,
    since: &mut u64,
    far: &mut u64,
    batch: &mut Batch,
) -> Result<usize, usize> {
    let mut at = 0;
    for record in bytes.chunks_exact(BYTES) {
        if batch.accesses.len() >= BATCH {
            break;
        }
        if !is_instruction(record) {
            return Err(at);
        }
        *since += 1;
        at += BYTES;
        let operand = |index: usize| u64_at(record, OPERANDS + 8 * index);
        let any = (0..STORES + LOADS).fold(0, |any, index| any | operand(index));
        if any == 0 {
            continue;
        }
        let site = instructions.number(u64_at(record, 0));
        // Loads come first: what is stored is made of them.
        for index in (STORES..STORES + LOADS).chain(0..STORES) {
            if operand(index) >= ADDRESS_END {
                *far += 1;
            } else if operand(index) != 0 {
                batch.push(operand(index), site, std::mem::take(since), BYTES_ASSUMED, index < STORES);
            }
        }
    }
    Ok(at)
}

impl Reader for ChampSim {
    fn fill(&mut self, batch: &mut Batch) -> Result<bool, WorkloadError> {
        while batch.accesses.len() < BATCH && self.refill()? {
            let bytes = &self.buffer[self.used..self.filled];
            let (instructions, since, far) = (&mut self.instructions, &mut self.since, &mut self.far);
            let taken = match self.layout.bytes {
                64 => take::<64, 16, 2, 4>(bytes, instructions, since, far, batch),
                _ => take::<96, 24, 4, 4>(bytes, instructions, since, far, batch),
            };
            self.used += taken.map_err(|at| self.refuse(self.used + at))?;
        }
        if batch.accesses.is_empty() {
            batch.more = std::mem::take(&mut self.since);
        }
        Ok(!batch.accesses.is_empty() || batch.more > 0)
    }

    fn warnings(&self) -> Vec<String> {
        let mut all = vec![format!(
            "ChampSim records name no threads, sizes or memory map: one thread and {BYTES_ASSUMED} bytes an access are assumed, and \
             mappings follow from the accesses"
        )];
        if self.far > 0 {
            all.push(format!("left out: {} accesses to addresses that no program may use", self.far));
        }
        if self.rest > 0 {
            all.push(format!(
                "the file ends inside a record, {} bytes behind the last whole one: it is cut",
                self.rest
            ));
        }
        all
    }
}
