// SPDX-License-Identifier: MIT OR Apache-2.0
//! `/proc/PID/maps`: which ranges of addresses a process has, and what is behind them
//! (fs/proc/task_mmu.c, `show_map_vma`).

use crate::error::InspectError;

/// Bytes of a page. Other page sizes are refused when a process is opened.
pub const PAGE_BYTES: u64 = 4096;
/// Above all addresses of user space, with five levels of tables too.
const ADDRESS_MAX: u64 = 1 << 57;
/// The kernel's own pages: no memory of the process.
const SPECIAL: [&str; 5] = ["[vdso]", "[vvar]", "[vvar_vclock]", "[vsyscall]", "[uprobes]"];

/// A range of a process's addresses (a VMA).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// First address, bytes; a multiple of [`PAGE_BYTES`].
    pub start: u64,
    /// The address after the last one.
    pub end: u64,
    /// Permissions as the kernel writes them: `rw-p`, `r-xp`, `rw-s`.
    pub permissions: [u8; 4],
    /// Device and inode of its file, such as `08:01 1234`; empty where no file is behind it.
    pub file: String,
    /// The file's path, or a name such as `[heap]`; may be empty.
    pub name: String,
}

impl Mapping {
    /// Whether a write changes the file or memory that others see.
    pub fn shared(&self) -> bool {
        self.permissions[3] == b's'
    }

    /// Whether no file is behind it.
    pub fn anonymous(&self) -> bool {
        self.file.is_empty()
    }

    /// The number of its first page.
    pub fn first_page(&self) -> u64 {
        self.start / PAGE_BYTES
    }

    /// The number of the page after its last one.
    pub fn end_page(&self) -> u64 {
        self.end / PAGE_BYTES
    }

    /// How many pages of 4 KiB it has.
    pub fn pages(&self) -> u64 {
        self.end_page() - self.first_page()
    }

    /// Whether its name is one that the kernel gives hugetlb memory, or its file is on a mount that
    /// is called so.
    pub fn looks_hugetlb(&self) -> bool {
        self.name.starts_with("/anon_hugepage") || self.name.contains("hugepages") || self.name.contains("hugetlb")
    }
}

/// The mappings in `text`, ascending, without the kernel's own.
///
/// # Errors
/// When a line is no mapping, or begins within the one before it.
pub fn parse(text: &str) -> Result<Vec<Mapping>, InspectError> {
    let mut found: Vec<Mapping> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let wrong = |what| InspectError::Maps { line: index + 1, what };
        let fields = fields(line).ok_or_else(|| wrong("is not a mapping"))?;
        if SPECIAL.contains(&fields.name.as_str()) {
            continue;
        }
        let plain = fields.start < fields.end && fields.end <= ADDRESS_MAX;
        if !plain || !(fields.start | fields.end).is_multiple_of(PAGE_BYTES) {
            return Err(wrong("has addresses that no mapping has"));
        }
        if found.last().is_some_and(|last| fields.start < last.end) {
            return Err(wrong("begins within the mapping before it"));
        }
        found.push(fields);
    }
    Ok(found)
}

/// A line such as `7f0000000000-7f0000021000 rw-p 00000000 08:01 1234   /lib/a file`.
fn fields(line: &str) -> Option<Mapping> {
    let mut rest = line;
    let mut next = || {
        let (word, after) = rest.split_once(' ').unwrap_or((rest, ""));
        rest = after;
        word
    };
    let (start, end) = next().split_once('-')?;
    let permissions = next();
    let (_offset, device, inode) = (next(), next(), next());
    let address = |digits: &str| u64::from_str_radix(digits, 16).ok();
    Some(Mapping {
        start: address(start)?,
        end: address(end)?,
        permissions: permissions.as_bytes().try_into().ok().filter(|four: &[u8; 4]| four.is_ascii())?,
        file: if inode.parse::<u64>().ok()? == 0 { String::new() } else { format!("{device} {inode}") },
        name: rest.trim_start().to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lines_are_read_as_the_kernel_writes_them() {
        let text = "55d0c0000000-55d0c0021000 rw-p 00000000 00:00 0                          [heap]\n\
                    7f0000000000-7f0000200000 rw-s 00000000 00:01 1024                       /dev/shm/a file (deleted)\n\
                    7f0000300000-7f0000301000 r--p 00000000 00:00 0 \n\
                    7ffd00000000-7ffd00002000 r-xp 00000000 00:00 0                          [vdso]\n\
                    ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]\n";
        let found = parse(text).unwrap();
        let shape: Vec<_> =
            found.iter().map(|one| (one.pages(), one.shared(), one.anonymous(), one.name.as_str())).collect();
        assert_eq!(
            shape,
            [(33, false, true, "[heap]"), (512, true, false, "/dev/shm/a file (deleted)"), (1, false, true, "")]
        );
    }

    #[test]
    fn what_is_no_mapping_is_refused_with_its_line() {
        let good = "1000-2000 rw-p 00000000 00:00 0\n";
        for bad in
            ["x", "1000-800 rw-p 0 00:00 0", "1800-2000 rw-p 0 00:00 0", "1000-3000 rw-p 0 00:00 0", "3000-4000 rw"]
        {
            let error = parse(&format!("{good}{bad}\n")).unwrap_err().to_string();
            assert!(error.contains("line 2"), "{bad}: {error}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "[0-9a-f\\- rwxps:\n]{0,200}") {
            if let Ok(found) = parse(&text) {
                prop_assert!(found.windows(2).all(|pair| pair[0].end <= pair[1].start));
            }
        }
    }
}
