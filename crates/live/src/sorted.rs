// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where a kernel that sorts page tables says that those of a process lie.

use nestwalk_mem::sorted_regions::{self, PATH};
use serde::Serialize;

use crate::known::Known;
use crate::source::Source;
use crate::status::Status;

/// The regions of a process's sorted page tables, summed up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct SortedTables {
    /// Regions: as many range registers describe them all.
    pub regions: u64,
    /// Places of tables that are in use.
    pub used: u64,
    /// Places that are set aside and have no table.
    pub idle: u64,
    /// Places that the kernel gave back: their tables lie elsewhere.
    pub holes: u64,
}

impl SortedTables {
    /// What `source` says of the process `status`.
    pub(crate) fn read(source: &dyn Source, status: &Status) -> Known<Self> {
        find(source, status, |text, process| {
            let mut sums = Self::default();
            for region in sorted_regions::parse(text)?.iter().filter(|region| region.process == process) {
                sums.regions += 1;
                sums.used += region.used;
                sums.idle += region.idle;
                sums.holes += region.holes;
            }
            Ok(sums)
        })
    }
}

/// The lines about the process of `source` in the kernel's file, under its header.
pub fn sorted_lines(source: &dyn Source) -> Known<String> {
    find(source, &Status::read(source), sorted_regions::of_process)
}

/// What `of` makes of the kernel's file and the number of the process.
fn find<T>(source: &dyn Source, status: &Status, of: impl Fn(&str, u64) -> Result<T, String>) -> Known<T> {
    // Why is left out: a recording does not have it, and is to say the same as the process.
    let Ok(text) = source.system(PATH) else {
        let needs = "it needs root, debugfs, and a kernel with sorted page tables";
        return Known::not(format!("/{PATH} cannot be read: {needs}"));
    };
    let Known::Is(process) = &status.pid else { return Known::not("the number of the process is not known") };
    match of(&text, *process) {
        Ok(found) => Known::Is(found),
        Err(what) => Known::not(format!("/{PATH}: {what}")),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::recording::{MAGIC, Recording};

    /// A recording of process 71, with these files below `/`.
    fn recording(system: &[&str]) -> Recording {
        let mut bytes = MAGIC.to_vec();
        let mut add = |name: &str, body: &str| {
            bytes.extend((name.len() as u64).to_le_bytes());
            bytes.extend((body.len() as u64).to_le_bytes());
            bytes.extend([name.as_bytes(), body.as_bytes()].concat());
        };
        add("process/maps", "");
        add("process/status", "Name:\tx\nTgid:\t71\nPid:\t71\n");
        add("pages", "");
        system.iter().for_each(|body| add(&format!("system/{PATH}"), body));
        Recording::from_bytes(&bytes, Path::new("test")).unwrap()
    }

    fn read(system: &[&str]) -> Known<SortedTables> {
        let recording = recording(system);
        SortedTables::read(&recording, &Status::read(&recording))
    }

    #[test]
    fn the_lines_of_the_process_are_summed_up() {
        let head = sorted_regions::HEADER;
        let text = format!("{head}\n71 1 200000 800000 5 1 2 0\n7 1 200000 400000 9 1 0 0\n71 2 0 40000000 a 0 0 1\n");
        assert_eq!(read(&[&text]), Known::Is(SortedTables { regions: 2, used: 1, idle: 2, holes: 1 }));
        assert_eq!(read(&[&format!("{head}\n")]), Known::Is(SortedTables::default()));
        let Known::Is(lines) = sorted_lines(&recording(&[&text])) else { panic!("they are there") };
        assert_eq!(lines.lines().count(), 3);
    }

    #[test]
    fn what_is_not_there_is_unavailable_with_the_reason() {
        for (system, what) in [
            (&[][..], "cannot be read: it needs root, debugfs, and a kernel"),
            (&["something"], "regions: line 1 is not"),
        ] {
            let Known::Not { unavailable } = read(system) else { panic!("{what}") };
            assert!(unavailable.starts_with("unavailable, because /sys/kernel/debug/sorted_tables/"), "{unavailable}");
            assert!(unavailable.contains(what), "{unavailable}");
        }
    }
}
