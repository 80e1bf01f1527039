// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which processes a guest has, from its memory alone.
//!
//! On x86-64 Linux the kernel's half of every process's root is the same (`pgd_ctor` copies it), so
//! a page whose upper half is that of a root that was seen in CR3 is a root as well. A process's
//! file name is at the top of its stack, by the user ABI: `fs/exec.c` puts it eight bytes below the
//! end of the stack's last page.

use serde::Serialize;

use super::memory::{Memory, PAGE_BYTES, Page, Words, words};
use super::tables::walk;
use super::{ADDRESS, ENTRIES, PRESENT, is_leaf, page_address};
use crate::error::MachineError;

/// Bytes that are read at a time while memory is searched.
const CHUNK: u64 = 1 << 20;
/// Bits of an entry that the processor sets by itself: accessed, dirty.
const MARKS: u64 = 0x60;
/// Pages from the top of the user half that are looked at for the end of the stack; vDSO and vvar
/// may be above it.
const TOP_PAGES: usize = 64;
/// The end of the stack's last page that is empty.
const STACK_GAP: usize = 8;

/// A process that was found.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Process {
    /// Guest-physical address of its root: what CR3 has, without flags.
    pub cr3: u64,
    /// The file that it was started as; `None` where the stack does not tell.
    pub program: Option<String>,
    /// Bytes that its user half maps.
    pub mapped_bytes: u64,
    /// Bytes of these in huge pages.
    pub huge_bytes: u64,
}

/// All processes of a guest whose CR3 was, on some processor at some time, `reference`. Tables have
/// `levels` levels.
///
/// # Errors
/// When memory cannot be read.
pub fn processes(memory: &Memory, reference: u64, levels: u8) -> Result<Vec<Process>, MachineError> {
    let Some(kernel) = memory.page(reference & ADDRESS)? else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    let mut buffer = vec![0; CHUNK as usize];
    for piece in memory.pieces() {
        let mut at = 0;
        while at + PAGE_BYTES <= piece.bytes {
            let bytes = CHUNK.min(piece.bytes - at) / PAGE_BYTES * PAGE_BYTES;
            let chunk = &mut buffer[..bytes as usize];
            memory.read(piece.gpa + at, chunk)?;
            for (page, index) in chunk.chunks_exact(PAGE_BYTES as usize).zip(0..) {
                if shares_kernel(page, &kernel) {
                    let gpa = piece.gpa + at + index * PAGE_BYTES;
                    found.extend(process(memory, gpa, &words(page), levels)?);
                }
            }
            at += bytes;
        }
    }
    Ok(found)
}

/// Whether the upper half of `page` is that of the root `kernel`. Parts that came later may be
/// missing in one of them.
fn shares_kernel(page: &[u8], kernel: &Words) -> bool {
    let last = kernel[ENTRIES - 1];
    // The last entry maps the kernel's code: all roots have it.
    let bytes: [u8; 8] = page[page.len() - 8..].try_into().unwrap_or([0; 8]);
    if last & PRESENT == 0 || (u64::from_le_bytes(bytes) ^ last) & !MARKS != 0 {
        return false;
    }
    let root = words(page);
    let differs = |(&one, &other): (&u64, &u64)| one != 0 && other != 0 && (one ^ other) & !MARKS != 0;
    !root.iter().zip(kernel).skip(ENTRIES / 2).any(differs)
        && root[..ENTRIES / 2].iter().any(|entry| entry & PRESENT != 0)
}

/// The process with the root `root` at `gpa`; `None` if it is none that runs: a root that was given
/// up, or is the kernel's own.
fn process(memory: &Memory, gpa: u64, root: &Words, levels: u8) -> Result<Option<Process>, MachineError> {
    let user = |entry: &u64| entry & PRESENT == 0 || memory.contains(entry & ADDRESS);
    if !root[..ENTRIES / 2].iter().all(user) {
        return Ok(None);
    }
    let Ok(tables) = walk(memory, gpa, levels, false) else { return Ok(None) };
    let pages = tables.summary().user_pages;
    let bytes = |level: usize| pages[level] * (PAGE_BYTES << (9 * level));
    let mut tops = Vec::new();
    top_pages(memory, gpa, levels, true, &mut tops)?;
    let mut program = None;
    for page in tops {
        program = program_at(memory, page)?;
        if program.is_some() {
            break;
        }
    }
    let huge_bytes = bytes(1) + bytes(2);
    Ok((pages != [0; 3]).then(|| Process { cr3: gpa, program, mapped_bytes: bytes(0) + huge_bytes, huge_bytes }))
}

/// Adds the highest 4 KiB pages of the user half below the table at `gpa`, highest first.
fn top_pages(memory: &Memory, gpa: u64, level: u8, root: bool, found: &mut Vec<u64>) -> Result<(), MachineError> {
    let Some(entries) = memory.page(gpa)? else { return Ok(()) };
    for &entry in entries[..if root { ENTRIES / 2 } else { ENTRIES }].iter().rev() {
        if found.len() >= TOP_PAGES {
            break;
        }
        match is_leaf(entry, level) {
            Some(true) if level == 1 => found.push(page_address(entry, level)),
            Some(false) => top_pages(memory, entry & ADDRESS, level - 1, false, found)?,
            _ => {}
        }
    }
    Ok(())
}

/// The file name at the end of the page at `gpa`, if that is the last page of a stack.
fn program_at(memory: &Memory, gpa: u64) -> Result<Option<String>, MachineError> {
    if !memory.contains(gpa) {
        return Ok(None);
    }
    let mut page = [0; PAGE_BYTES as usize];
    memory.read(gpa, &mut page)?;
    Ok(file_name(&page))
}

/// The text that ends, with its zero byte, [`STACK_GAP`] empty bytes before the end of `page`.
pub(super) fn file_name(page: &[u8]) -> Option<String> {
    let (text, gap) = page.split_at_checked(page.len().checked_sub(STACK_GAP + 1)?)?;
    if gap.iter().any(|&byte| byte != 0) {
        return None;
    }
    let start = text.iter().rposition(|&byte| byte == 0).map_or(0, |zero| zero + 1);
    let name = std::str::from_utf8(&text[start..]).ok()?;
    (!name.is_empty() && !name.chars().any(char::is_control)).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_name_stands_eight_bytes_before_the_end() {
        let page = |end: &[u8]| [vec![0; 64], end.to_vec()].concat();
        assert_eq!(
            file_name(&page(b"HOME=/\0/usr/bin/redis-server\0\0\0\0\0\0\0\0\0")),
            Some("/usr/bin/redis-server".into())
        );
        assert_eq!(file_name(&page(b"HOME=/\0\0\0\0\0\0\0\0\0\0")), None);
        assert_eq!(file_name(&page(b"/init\0\0\0\0\0\0\0\0")), None, "seven bytes");
        assert_eq!(file_name(&page(b"\x01\x02\0\0\0\0\0\0\0\0\0")), None);
        assert_eq!(file_name(b""), None);
    }

    #[test]
    fn a_process_is_found_by_its_kernel_half_and_named_by_its_stack() {
        const ROOT: u64 = 0x5000;
        let mut bytes = vec![0_u8; 64 * 4096];
        let mut put = |gpa: u64, index: usize, entry: u64| {
            let at = gpa as usize + 8 * index;
            bytes[at..at + 8].copy_from_slice(&entry.to_le_bytes());
        };
        // The reference has no user half; 0x5000 is a process; 0x9000 has another kernel.
        for (root, kernel) in [(0x4000, 0x3067), (ROOT, 0x3047), (0x9000, 0x2067)] {
            put(root, 511, kernel);
        }
        put(ROOT, 255, 0x6067);
        put(ROOT, 0, 0x6067);
        put(0x9000, 255, 0x6067);
        put(0x6000, 511, 0x7067);
        put(0x7000, 511, 0x8067);
        put(0x7000, 3, 0x20_0000 | 0x80 | 0x67);
        put(0x8000, 511, 0xa067);
        put(0x8000, 510, 0xb067);
        let name = b"/usr/bin/one\0\0\0\0\0\0\0\0\0";
        bytes[0xc000 - name.len()..0xc000].copy_from_slice(name);
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("memory");
        std::fs::write(&file, &bytes).unwrap();
        let piece = super::super::Piece { gpa: 0, bytes: bytes.len() as u64, file, offset: 0, ram_offset: 0 };
        let memory = Memory::open(vec![piece]).unwrap();
        let found = processes(&memory, 0x4000, 4).unwrap();
        // The huge page is not memory of this guest, and left out; both user entries lead to the
        // same two pages.
        let program = Some("/usr/bin/one".into());
        assert_eq!(found, [Process { cr3: ROOT, program, mapped_bytes: 4 * 4096, huge_bytes: 0 }]);
    }
}
