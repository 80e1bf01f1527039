// SPDX-License-Identifier: MIT OR Apache-2.0
//! The text of Pin's example tool pinatrace, `0xIP: R 0xADDRESS` a line, and of the many tools made
//! from it: with the size (and the value) behind the address, without the instruction, with commas,
//! with words for R and W, with the address before them. Which column is what follows from the
//! first line that has an access.

use super::import::{ADDRESS_END, BATCH, Batch, Instructions, Reader, Seen};
use super::lines::{Lines, decimal, hexadecimal};
use crate::stream::WorkloadError;

/// What the format is called.
pub const NAME: &str = "pin";
/// What writes it.
pub const TOOL: &str = "Pin (pinatrace or like it)";

/// The most columns of a line that are looked at.
const COLUMNS_MAX: usize = 12;
/// Of an access whose size is not known, in bytes: an assumption. The simulator looks at the page
/// that an access begins in.
const BYTES_ASSUMED: u16 = 8;
/// A decimal number behind the address is taken for a size up to here, in bytes: an AVX-512
/// register is 64, XSAVE takes up to 11 KiB.
const BYTES_MAX: u64 = 16_384;

/// The words of a line.
struct Words<'a> {
    all: [&'a [u8]; COLUMNS_MAX],
    count: usize,
}

impl<'a> Words<'a> {
    #[inline]
    fn of(line: &'a [u8]) -> Self {
        let mut words = Self { all: [&[]; COLUMNS_MAX], count: 0 };
        let separates = |byte: &u8| matches!(byte, b' ' | b'\t' | b',' | b':' | b';' | b'|' | b'=');
        for word in line.split(separates).filter(|word| !word.is_empty()).take(COLUMNS_MAX) {
            words.all[words.count] = word;
            words.count += 1;
        }
        words
    }

    fn get(&self, index: usize) -> Option<&'a [u8]> {
        self.all[..self.count].get(index).copied()
    }
}

/// Whether a word says that an access is a store, or a load; `None` if it says neither.
fn is_store(word: &[u8]) -> Option<bool> {
    let is = |names: &[&[u8]]| names.iter().any(|name| word.eq_ignore_ascii_case(name));
    if is(&[b"R", b"L", b"READ", b"LOAD", b"RD", b"LD"]) {
        Some(false)
    } else if is(&[b"W", b"S", b"WRITE", b"STORE", b"WR", b"ST"]) {
        Some(true)
    } else {
        None
    }
}

/// Which column is what.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Columns {
    kind: usize,
    address: usize,
    instruction: Option<usize>,
    bytes: Option<usize>,
    /// Columns that are none of these.
    others: usize,
}

impl Columns {
    /// Those of `line`, if it has an access.
    fn of(line: &[u8]) -> Option<Self> {
        let words = Words::of(line);
        let kind = words.all[..words.count].iter().position(|word| is_store(word).is_some())?;
        let is_number = |index: usize| words.get(index).is_some_and(|word| hexadecimal(word).is_some());
        let (address, instruction) = if is_number(kind + 1) {
            (kind + 1, kind.checked_sub(1).filter(|&index| is_number(index)))
        } else {
            let address = kind.checked_sub(1).filter(|&index| is_number(index))?;
            (address, address.checked_sub(1).filter(|&index| is_number(index)))
        };
        let behind = address.max(kind) + 1;
        let bytes = words.get(behind).and_then(decimal).filter(|bytes| (1..=BYTES_MAX).contains(bytes));
        let bytes = bytes.map(|_| behind);
        let known = 2 + usize::from(instruction.is_some()) + usize::from(bytes.is_some());
        Some(Self { kind, address, instruction, bytes, others: words.count - known })
    }

    /// Those of the first line of `head` that has an access.
    pub fn of_text(head: &[u8]) -> Option<Self> {
        head.split(|&byte| byte == b'\n')
            .filter(|line| !line.starts_with(b"#"))
            .find_map(|line| Self::of(line.trim_ascii()))
    }
}

/// See the [module's documentation](self).
pub struct Pin {
    lines: Lines,
    columns: Columns,
    instructions: Instructions,
    /// Instruction and kind of the access before.
    before: Option<(u64, bool)>,
    foreign: Seen,
    ended: bool,
}

impl Pin {
    /// Reads `lines`, of which one has an access with these `columns`.
    pub fn new(lines: Lines, columns: Columns) -> Self {
        let (instructions, foreign) = (Instructions::default(), Seen::default());
        Self { lines, columns, instructions, before: None, foreign, ended: false }
    }

    /// Instruction, address, size, store.
    #[inline]
    fn parse(columns: &Columns, line: &[u8]) -> Option<(u64, u64, u16, bool)> {
        let words = Words::of(line);
        let store = is_store(words.get(columns.kind)?)?;
        let address = hexadecimal(words.get(columns.address)?)?;
        let instruction = columns.instruction.map_or(Some(0), |at| hexadecimal(words.get(at)?))?;
        let bytes = columns.bytes.and_then(|at| u16::try_from(decimal(words.get(at)?)?).ok());
        Some((instruction, address, bytes.unwrap_or(BYTES_ASSUMED), store))
    }
}

impl Reader for Pin {
    fn fill(&mut self, batch: &mut Batch) -> Result<bool, WorkloadError> {
        while batch.accesses.len() < BATCH {
            let Some(line) = self.lines.next()? else { break };
            let Some((instruction, address, bytes, store)) = Self::parse(&self.columns, line) else {
                self.ended |= line.starts_with(b"#eof");
                if !(line.is_empty() || line.starts_with(b"#")) {
                    self.foreign.at(self.lines.number());
                }
                continue;
            };
            if address >= ADDRESS_END {
                return Err(self.lines.corrupt("an address that no program has: make the trace again"));
            }
            // A store that follows a load by the same instruction belongs to it, as in
            // `add %rax, (%rbx)`.
            let same = self.columns.instruction.is_some() && store && self.before == Some((instruction, false));
            self.before = Some((instruction, store));
            batch.push(address, self.instructions.number(instruction), u64::from(!same), bytes, store);
        }
        Ok(!batch.accesses.is_empty())
    }

    fn warnings(&self) -> Vec<String> {
        let mut all = vec![
            "the text names no threads, no memory map and no instructions without accesses: one thread is assumed, mappings follow \
             from the accesses, and instructions are those that access memory (too few)"
                .to_owned(),
        ];
        if self.columns.instruction.is_none() {
            all.push("it does not say which instruction makes an access either".into());
        }
        if self.columns.bytes.is_none() {
            all.push(format!("sizes are not in it; {BYTES_ASSUMED} bytes are assumed"));
        }
        if self.columns.others > 0 {
            all.push(format!("{} more columns are not understood, and left out", self.columns.others));
        }
        if self.foreign.count > 0 {
            let Seen { count, first } = self.foreign;
            all.push(format!("left out: {count} lines without an access (the first is line {first})"));
        }
        if !self.ended && self.lines.unfinished() {
            all.push("its last line has no end: perhaps the file is cut".into());
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variants_are_read() {
        for (line, expected) in [
            ("0x7fcad536b2d3: W 0x7ffff9a66638", (0x7fca_d536_b2d3, 0x7fff_f9a6_6638, 8, true)),
            ("0x401000: R 0x7000  4 0x1234", (0x40_1000, 0x7000, 4, false)),
            ("0x401000,read,0x7000,16", (0x40_1000, 0x7000, 16, false)),
            ("0000000000401000: W 0000000000007000", (0x40_1000, 0x7000, 8, true)),
            ("R 0x7000", (0, 0x7000, 8, false)),
            ("store 7000 64", (0, 0x7000, 64, true)),
            ("0x401000 0x7000 W", (0x40_1000, 0x7000, 8, true)),
            ("0x401000: W (nil)", (0x40_1000, 0, 8, true)),
        ] {
            let columns = Columns::of(line.as_bytes()).unwrap();
            assert_eq!(Pin::parse(&columns, line.as_bytes()), Some(expected), "{line}");
            assert_eq!(columns.others, usize::from(line.contains("0x1234")), "{line}");
        }
        for other in ["", "hello", "R", "#eof", "0x1: X 0x2", "W hello"] {
            assert_eq!(Columns::of(other.as_bytes()), None, "{other}");
        }
    }
}
