// SPDX-License-Identifier: MIT OR Apache-2.0
//! The text of valgrind's `--tool=lackey --trace-mem=yes`: `I  ADDRESS,SIZE` for an instruction,
//! then its accesses: ` L` (load), ` S` (store) or ` M` (load and store) with `ADDRESS,SIZE`.
//! Addresses are hexadecimal, sizes decimal. Valgrind's own lines begin with `==`; the program's
//! output may lie between.

use super::import::{ADDRESS_END, BATCH, Batch, Instructions, Reader, Seen};
use super::lines::{Lines, decimal, hexadecimal};
use crate::stream::WorkloadError;

/// What the format is called.
pub const NAME: &str = "lackey";
/// What writes it.
pub const TOOL: &str = "valgrind lackey";

/// What a line says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Line {
    Instruction(u64),
    Load(u64, u16),
    Store(u64, u16),
    Modify(u64, u16),
}

fn parse(line: &[u8]) -> Option<Line> {
    let (mark, rest) = line.split_at_checked(3)?;
    let comma = memchr::memchr(b',', rest)?;
    let address = hexadecimal(&rest[..comma])?;
    let bytes = u16::try_from(decimal(rest[comma + 1..].trim_ascii_end())?).ok()?;
    match mark {
        b"I  " => Some(Line::Instruction(address)),
        b" L " => Some(Line::Load(address, bytes)),
        b" S " => Some(Line::Store(address, bytes)),
        b" M " => Some(Line::Modify(address, bytes)),
        _ => None,
    }
}

/// Whether one of the lines of `head` is lackey's.
pub fn is_in(head: &[u8]) -> bool {
    head.split(|&byte| byte == b'\n').any(|line| parse(line.strip_suffix(b"\r").unwrap_or(line)).is_some())
}

/// See the [module's documentation](self).
pub struct Lackey {
    lines: Lines,
    instructions: Instructions,
    site: u32,
    /// Instructions since the access before.
    since: u64,
    foreign: Seen,
}

impl Lackey {
    /// Reads `lines`.
    pub fn new(lines: Lines) -> Self {
        let foreign = Seen::default();
        Self { lines, instructions: Instructions::default(), site: 0, since: 0, foreign }
    }
}

impl Reader for Lackey {
    fn fill(&mut self, batch: &mut Batch) -> Result<bool, WorkloadError> {
        while batch.accesses.len() < BATCH {
            let Some(line) = self.lines.next()? else { break };
            let Some(parsed) = parse(line) else {
                if !(line.is_empty() || line.starts_with(b"==") || line.starts_with(b"--")) {
                    self.foreign.at(self.lines.number());
                }
                continue;
            };
            let (address, bytes) = match parsed {
                Line::Instruction(address) => {
                    self.site = self.instructions.number(address);
                    self.since += 1;
                    continue;
                }
                Line::Load(address, bytes) | Line::Store(address, bytes) | Line::Modify(address, bytes) => {
                    (address, bytes)
                }
            };
            if address >= ADDRESS_END {
                return Err(self.lines.corrupt("an address that no program has: make the trace again with lackey"));
            }
            let since = std::mem::take(&mut self.since);
            match parsed {
                Line::Modify(..) => {
                    batch.push(address, self.site, since, bytes, false);
                    batch.push(address, self.site, 0, bytes, true);
                }
                _ => batch.push(address, self.site, since, bytes, matches!(parsed, Line::Store(..))),
            }
        }
        if batch.accesses.is_empty() {
            batch.more = std::mem::take(&mut self.since);
        }
        Ok(!batch.accesses.is_empty() || batch.more > 0)
    }

    fn warnings(&self) -> Vec<String> {
        let mut all = vec![
            "lackey's text names no threads and no memory map: its accesses are taken for one thread's, and mappings follow \
             from the accesses"
                .to_owned(),
        ];
        if self.foreign.count > 0 {
            let Seen { count, first } = self.foreign;
            all.push(format!("left out: {count} lines that are not lackey's (the first is line {first})"));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_told_from_other_text() {
        assert_eq!(parse(b"I  0401ab70,3"), Some(Line::Instruction(0x401_ab70)));
        assert_eq!(parse(b" S 1fff0006e8,8"), Some(Line::Store(0x1f_ff00_06e8, 8)));
        assert_eq!(parse(b" L 10,16 "), Some(Line::Load(16, 16)));
        assert_eq!(parse(b" M 10,1"), Some(Line::Modify(16, 1)));
        for other in [&b"==1== Command: ls"[..], b"", b" L", b" L 10", b" X 10,1", b"I 10,1", b" L 10,99999"] {
            assert_eq!(parse(other), None);
        }
    }
}
