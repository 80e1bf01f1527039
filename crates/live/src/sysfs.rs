// SPDX-License-Identifier: MIT OR Apache-2.0
//! What Linux says of the first processor: its caches in sysfs, and its clock.

use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::Serialize;

use crate::processor::CacheKind;

/// What Linux says of a processor. What it does not say is absent.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Sysfs {
    /// Data and unified caches, nearest first (`/sys/devices/system/cpu/cpu0/cache`).
    pub caches: Vec<SysfsCache>,
    /// The highest `cpu MHz` of any processor in `/proc/cpuinfo`, rounded down.
    pub current_mhz: Option<u64>,
    /// The highest frequency that cpufreq may choose, MHz (`cpuinfo_max_freq`): with turbo, of one
    /// core.
    pub max_mhz: Option<u64>,
    /// The frequency without turbo, MHz (`base_frequency`).
    pub base_mhz: Option<u64>,
}

/// A cache as Linux describes it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct SysfsCache {
    /// 1 is next to the core.
    pub level: u8,
    /// What it holds.
    pub kind: CacheKind,
    /// Its size in bytes.
    pub bytes: u64,
    /// Ways of a set.
    pub ways: u32,
    /// The processors that share it, as Linux writes them: `"0-7,64-71"`.
    pub shared_by: String,
}

impl Sysfs {
    /// Reads below `root`, which is `/` unless a test says otherwise. What cannot be read is
    /// absent.
    pub fn read(root: &Path) -> Self {
        let processor = root.join("sys/devices/system/cpu/cpu0");
        let kilohertz = |name: &str| number::<u64>(&processor.join("cpufreq").join(name)).map(|khz| khz / 1000);
        let cpuinfo = fs::read_to_string(root.join("proc/cpuinfo")).unwrap_or_default();
        let mut caches: Vec<SysfsCache> =
            folders(&processor.join("cache")).iter().filter_map(|path| cache(path)).collect();
        caches.sort_by_key(|cache| cache.level);
        Self {
            caches,
            current_mhz: cpuinfo.lines().filter_map(megahertz).max(),
            max_mhz: kilohertz("cpuinfo_max_freq"),
            base_mhz: kilohertz("base_frequency"),
        }
    }
}

fn folders(path: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut found: Vec<PathBuf> = entries.filter(|path| path.is_dir()).collect();
    found.sort_unstable();
    found
}

fn word(path: &Path) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

fn number<T: FromStr>(path: &Path) -> Option<T> {
    word(path)?.parse().ok()
}

/// A line such as `cpu MHz : 2596.144`, with a tab before the colon.
fn megahertz(line: &str) -> Option<u64> {
    let (key, value) = line.split_once(':')?;
    if key.trim() != "cpu MHz" {
        return None;
    }
    value.trim().split('.').next()?.parse().ok().filter(|&mhz| mhz > 0)
}

fn cache(path: &Path) -> Option<SysfsCache> {
    let kind = match word(&path.join("type"))?.as_str() {
        "Data" => CacheKind::Data,
        "Unified" => CacheKind::Unified,
        _ => return None,
    };
    let size = word(&path.join("size"))?;
    let bytes = match size.strip_suffix('K') {
        Some(kibibytes) => kibibytes.parse::<u64>().ok()?.checked_mul(1 << 10)?,
        None => size.strip_suffix('M')?.parse::<u64>().ok()?.checked_mul(1 << 20)?,
    };
    let ways = number(&path.join("ways_of_associativity")).filter(|&ways| ways > 0)?;
    let shared_by = word(&path.join("shared_cpu_list")).unwrap_or_default();
    Some(SysfsCache { level: number(&path.join("level"))?, kind, bytes, ways, shared_by })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::tree;

    #[test]
    fn caches_and_the_clock_are_read() {
        let base = "sys/devices/system/cpu/cpu0";
        let files: Vec<(String, &str)> = [
            ("cache/index0/type", "Data\n"),
            ("cache/index0/level", "1\n"),
            ("cache/index0/size", "32K\n"),
            ("cache/index0/ways_of_associativity", "8\n"),
            ("cache/index0/shared_cpu_list", "0\n"),
            ("cache/index1/type", "Instruction\n"),
            ("cache/index2/type", "Unified\n"),
            ("cache/index2/level", "3\n"),
            ("cache/index2/size", "32768K\n"),
            ("cache/index2/ways_of_associativity", "16\n"),
            ("cache/index2/shared_cpu_list", "0-1\n"),
            ("cpufreq/cpuinfo_max_freq", "3700000\n"),
        ]
        .into_iter()
        .map(|(path, text)| (format!("{base}/{path}"), text))
        .collect();
        let mut files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (path.as_str(), *text)).collect();
        files.push(("proc/cpuinfo", "processor : 0\ncpu MHz\t\t: 1200.0\ncpu MHz\t\t: 2596.144\n"));
        let root = tree(&files);
        let found = Sysfs::read(root.path());
        assert_eq!((found.current_mhz, found.max_mhz, found.base_mhz), (Some(2596), Some(3700), None));
        let sizes: Vec<_> = found.caches.iter().map(|cache| (cache.level, cache.bytes, cache.ways)).collect();
        assert_eq!(sizes, [(1, 32 << 10, 8), (3, 32 << 20, 16)]);
        assert_eq!(found.caches[1].shared_by, "0-1");
    }

    #[test]
    fn what_is_not_there_is_absent() {
        assert_eq!(Sysfs::read(tree(&[]).path()), Sysfs::default());
        let odd = tree(&[("sys/devices/system/cpu/cpu0/cache/index0/type", "Data"), ("proc/cpuinfo", "cpu MHz : x")]);
        assert_eq!(Sysfs::read(odd.path()), Sysfs::default());
    }
}
