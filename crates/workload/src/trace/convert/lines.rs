// SPDX-License-Identifier: MIT OR Apache-2.0
//! Text, line by line, in room that is kept.

use super::input::Input;
use crate::stream::WorkloadError;

/// The longest line, in bytes: what bounds memory when a file that is no text passes for one.
const LINE_MAX: usize = 1 << 20;

/// The lines of an [`Input`].
pub struct Lines {
    input: Input,
    buffer: Vec<u8>,
    /// What of the buffer has been handed out, and how much of it is filled.
    used: usize,
    filled: usize,
    number: u64,
    ended: bool,
    /// Whether the last line has no end.
    unfinished: bool,
}

impl Lines {
    /// Those of `input`.
    pub fn new(input: Input) -> Self {
        let buffer = vec![0; 2 * LINE_MAX];
        Self { input, buffer, used: 0, filled: 0, number: 0, ended: false, unfinished: false }
    }

    /// The number of the line that [`Lines::next`] gave last, from 1.
    pub const fn number(&self) -> u64 {
        self.number
    }

    /// Whether the last line that was given is the input's last and has no line feed: perhaps it is
    /// cut.
    pub const fn unfinished(&self) -> bool {
        self.unfinished
    }

    /// The next line, without its end.
    ///
    /// # Errors
    /// When the input cannot be read, or a line is longer than 1 MiB.
    pub fn next(&mut self) -> Result<Option<&[u8]>, WorkloadError> {
        let (begin, end) = loop {
            let rest = &self.buffer[self.used..self.filled];
            if let Some(length) = memchr::memchr(b'\n', rest) {
                let begin = self.used;
                self.used += length + 1;
                break (begin, begin + length);
            }
            if self.ended {
                if rest.is_empty() {
                    return Ok(None);
                }
                self.unfinished = true;
                let begin = self.used;
                self.used = self.filled;
                break (begin, self.filled);
            }
            if rest.len() >= LINE_MAX {
                return Err(self.corrupt("a line longer than 1 MiB: this is no trace in text form"));
            }
            self.refill()?;
        };
        self.number += 1;
        let line = &self.buffer[begin..end];
        Ok(Some(line.strip_suffix(b"\r").unwrap_or(line)))
    }

    fn refill(&mut self) -> Result<(), WorkloadError> {
        self.buffer.copy_within(self.used..self.filled, 0);
        self.filled -= self.used;
        self.used = 0;
        let got = self.input.read(&mut self.buffer[self.filled..])?;
        self.filled += got;
        self.ended = self.filled < self.buffer.len();
        Ok(())
    }

    /// An error on the line that was given last.
    pub fn corrupt(&self, what: &str) -> WorkloadError {
        let offset = self.input.position() - (self.filled - self.used) as u64;
        self.input.corrupt(offset, format!("line {}: {what}", self.number.max(1)))
    }
}

/// A number in hexadecimal, with or without `0x`, of the whole of `text`. `(nil)` is glibc's `%p`
/// of 0.
#[inline]
pub fn hexadecimal(text: &[u8]) -> Option<u64> {
    if text == b"(nil)" {
        return Some(0);
    }
    let digits = text.strip_prefix(b"0x").or_else(|| text.strip_prefix(b"0X")).unwrap_or(text);
    if digits.is_empty() || digits.len() > 16 {
        return None;
    }
    digits.iter().try_fold(0, |value, &digit| Some(value << 4 | u64::from((digit as char).to_digit(16)?)))
}

/// A number in decimal, of the whole of `text`.
#[inline]
pub fn decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter()
        .try_fold(0u64, |value, &digit| value.checked_mul(10)?.checked_add(u64::from((digit as char).to_digit(10)?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;
    use std::path::Path;

    #[test]
    fn lines_end_with_line_feeds_carriage_returns_or_the_file() {
        let text: &[u8] = b"one\r\n\ntwo\nlast";
        let mut lines = Lines::new(Input::of(Path::new("x"), Box::new(Cursor::new(text))));
        for (number, line) in ["one", "", "two", "last"].iter().enumerate() {
            assert_eq!(lines.next().unwrap(), Some(line.as_bytes()));
            assert_eq!((lines.number(), lines.unfinished()), (number as u64 + 1, number == 3));
        }
        assert!(lines.next().unwrap().is_none());
    }

    #[test]
    fn a_line_without_end_is_refused() {
        let mut lines = Lines::new(Input::of(Path::new("x"), Box::new(std::io::repeat(b'a'))));
        assert!(lines.next().unwrap_err().to_string().contains("line 1: a line longer"));
    }

    #[test]
    fn numbers_are_whole_or_none() {
        assert_eq!(hexadecimal(b"0x7fFf"), Some(0x7fff));
        assert_eq!(hexadecimal(b"ffffffffffffffff"), Some(u64::MAX));
        assert_eq!(hexadecimal(b"(nil)"), Some(0));
        for bad in [&b""[..], b"0x", b"0xg", b"10000000000000000", b"-1"] {
            assert_eq!(hexadecimal(bad), None);
        }
        assert_eq!(decimal(b"4096"), Some(4096));
        for bad in [&b""[..], b"1a", b"99999999999999999999", b"-1"] {
            assert_eq!(decimal(bad), None);
        }
    }
}
