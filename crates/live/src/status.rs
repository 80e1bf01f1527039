// SPDX-License-Identifier: MIT OR Apache-2.0
//! `/proc/PID/status` and what else says which process it is.

use serde::Serialize;

use crate::known::Known;
use crate::source::Source;

/// Which process it is, and what the kernel counts for it anyway.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Status {
    /// Its number, as the reader's namespace has it.
    pub pid: Known<u64>,
    /// Its name, at most 15 letters.
    pub name: Known<String>,
    /// Bytes of its page tables (`VmPTE`).
    #[serde(skip)]
    pub page_table_bytes: Known<u64>,
    /// Bytes in hugetlb pages (`HugetlbPages`).
    #[serde(skip)]
    pub hugetlb_bytes: Known<u64>,
    /// Whether the process may have transparent huge pages (`THP_enabled`, which
    /// `prctl(PR_SET_THP_DISABLE)` changes).
    pub thp_allowed: Known<bool>,
}

impl Status {
    /// What `source` says.
    pub fn read(source: &dyn Source) -> Self {
        match source.process("status") {
            Ok(text) => Self::parse(&text),
            Err(error) => Self::absent(&format!("/proc/PID/status cannot be read ({error})")),
        }
    }

    fn absent(why: &str) -> Self {
        Self {
            pid: Known::not(why),
            name: Known::not(why),
            page_table_bytes: Known::not(why),
            hugetlb_bytes: Known::not(why),
            thp_allowed: Known::not(why),
        }
    }

    /// What the text of `/proc/PID/status` says (fs/proc/array.c and fs/proc/task_mmu.c).
    pub fn parse(text: &str) -> Self {
        let field = |name: &str| {
            let mut lines = text.lines().filter_map(|line| line.split_once(':'));
            let found = lines.find(|(key, _)| *key == name);
            found
                .map(|(_, value)| value.trim().to_owned())
                .ok_or_else(|| format!("/proc/PID/status has no line {name}"))
        };
        let number = |name: &str| {
            let value = field(name)?;
            let digits = value.split_whitespace().next().unwrap_or_default();
            digits.parse::<u64>().map_err(|_| format!("the line {name} of /proc/PID/status is no number"))
        };
        let bytes = |name: &str| number(name).map(|kib| kib.saturating_mul(1024));
        Self {
            pid: number("Pid").into(),
            name: field("Name").into(),
            page_table_bytes: bytes("VmPTE").into(),
            hugetlb_bytes: bytes("HugetlbPages").into(),
            thp_allowed: number("THP_enabled").map(|value| value != 0).into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_found_by_their_names() {
        let found = Status::parse("Name:\tredis-server\nPid:\t12\nVmPTE:\t     100 kB\nHugetlbPages:\t 2048 kB\n");
        assert_eq!((found.pid, found.name), (Known::Is(12), Known::Is("redis-server".into())));
        assert_eq!((found.page_table_bytes, found.hugetlb_bytes), (Known::Is(102_400), Known::Is(2 << 20)));
        let Known::Not { unavailable } = found.thp_allowed else { panic!("made up") };
        assert_eq!(unavailable, "unavailable, because /proc/PID/status has no line THP_enabled");
    }
}
