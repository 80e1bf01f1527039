// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files that are arrays of words of 64 bits: `/proc/PID/pagemap`, `/proc/kpageflags`, and
//! recordings of them.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Bytes of a word.
pub const WORD_BYTES: u64 = 8;

/// Reads the words from number `first` on into `words`. Returns how many there were: fewer where
/// the file ends.
///
/// # Errors
/// When the file cannot be read.
pub fn read(file: &File, first: u64, words: &mut [u64]) -> io::Result<usize> {
    let Some(start) = first.checked_mul(WORD_BYTES) else { return Ok(0) };
    // SAFETY: the same memory as bytes; any bytes are words, and `words` is not used while this
    // lives.
    let bytes = unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast::<u8>(), size_of_val(words)) };
    let mut got = 0;
    while got < bytes.len() {
        match file.read_at(&mut bytes[got..], start.saturating_add(got as u64)) {
            Ok(0) => break,
            Ok(more) => got += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(got / WORD_BYTES as usize)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn words_are_read_up_to_the_end_of_the_file() {
        let mut file = tempfile::tempfile().unwrap();
        for word in 0..10_u64 {
            file.write_all(&(word << 40).to_ne_bytes()).unwrap();
        }
        file.write_all(&[1, 2, 3]).unwrap();
        let mut words = [7; 4];
        assert_eq!((read(&file, 3, &mut words).unwrap(), words), (4, [3 << 40, 4 << 40, 5 << 40, 6 << 40]));
        assert_eq!((read(&file, 8, &mut words).unwrap(), &words[..2]), (2, &[8 << 40, 9 << 40][..]));
        assert_eq!(read(&file, 1 << 40, &mut words).unwrap(), 0);
        assert_eq!(read(&file, u64::MAX, &mut words).unwrap(), 0);
    }
}
