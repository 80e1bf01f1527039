// SPDX-License-Identifier: MIT OR Apache-2.0
//! The VMs of a KVM host: with what leaves the EPT (NPT) maps them, what the VMM's memory is made
//! of, and what splits pages.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::known::Known;
use crate::maps::PAGE_BYTES;
#[cfg(target_os = "linux")]
use crate::stats_file::of_vm as statistics;

const DEBUGFS: &str = "sys/kernel/debug/kvm";
/// What the link of a VM's file says.
const VM_LINK: &str = "anon_inode:kvm-vm";
/// A share of the memory from which it counts as huge.
const MOST: f64 = 0.5;

/// A KVM host.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Host {
    /// What KVM is told.
    pub kvm: Known<Kvm>,
    /// The kernel's merging of equal pages.
    pub ksm: Known<Ksm>,
    /// Transparent huge pages of this host: `always`, `madvise` or `never`.
    pub thp_enabled: Known<String>,
    /// Its VMs, by the number of their VMM.
    pub vms: Vec<Vm>,
    /// Why some VMs may be missing: a sentence each.
    pub notes: Vec<String>,
}

/// Parameters of KVM (`/sys/module/kvm*/parameters`), as they are written there.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Kvm {
    /// Against iTLB multihit: executable huge pages are split into 4 KiB pages (`Y`), or not (`N`).
    pub nx_huge_pages: Known<String>,
    /// Whether dirty logging splits huge pages when it begins (`Y`), or at the first write to each
    /// (`N`).
    pub eager_page_split: Known<String>,
    /// Whether the newer page-table code (TDP MMU) is on.
    pub tdp_mmu: Known<String>,
    /// Nested paging: `ept` of kvm_intel or `npt` of kvm_amd; without it KVM keeps shadow page
    /// tables.
    pub nested_paging: Known<String>,
    /// Whether this kernel can back a guest's page tables with huge pages (HugeGPT;
    /// linux/README.md).
    pub hugegpt: bool,
}

/// KSM (`/sys/kernel/mm/ksm`): merged pages are 4 KiB pages, and huge pages are split for them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Ksm {
    /// 0 off, 1 on, 2 off and everything unmerged.
    pub run: u64,
    /// Bytes that are saved: addresses that share a page with others.
    pub sharing_bytes: u64,
}

/// A VM.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Vm {
    /// Its VMM.
    pub pid: u32,
    /// The VMM's name.
    pub name: String,
    /// Leaves that map guest memory now.
    pub leaves: Known<Leaves>,
    /// The VMM's memory.
    pub memory: Known<VmmMemory>,
    /// What splits its pages, as far as it shows.
    pub splitting: Vec<Cause>,
    /// Whether the host could back the guest's page tables with huge pages (HugeGPT): `already`,
    /// `possible` or `not`.
    pub guest_tables: Verdict,
}

/// Leaves of EPT, NPT or shadow page tables.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Leaves {
    /// Of 4 KiB.
    pub pages_4k: u64,
    /// Of 2 MiB.
    pub pages_2m: u64,
    /// Of 1 GiB.
    pub pages_1g: u64,
    /// Share of the mapped bytes in leaves of 2 MiB and 1 GiB; null if nothing is mapped.
    pub huge_share: Option<f64>,
    /// Huge leaves that are split against iTLB multihit at the moment.
    pub nx_splits: Option<u64>,
    /// Where the figures are from: `debugfs` or `statistics file`.
    pub source: &'static str,
}

/// Memory of a VMM, which is its guest's (`/proc/PID/smaps_rollup`).
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct VmmMemory {
    /// In memory, hugetlb included.
    pub present_bytes: u64,
    /// Of it in 2 MiB pages (transparent ones and hugetlb).
    pub huge_bytes: u64,
    /// The same as a share.
    pub huge_share: f64,
    /// Of it in hugetlb pages.
    pub hugetlb_bytes: u64,
    /// Of it merged by KSM.
    pub ksm_bytes: u64,
    /// Swapped out.
    pub swapped_bytes: u64,
}

/// Something that splits pages.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Cause {
    /// `dirty_logging`, `nx_huge_pages`, `ksm`.
    pub cause: &'static str,
    /// `yes`, `no`, `likely`, `unknown`.
    pub found: &'static str,
    /// By what it shows: a sentence.
    pub why: String,
}

/// An answer with its reason.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Verdict {
    /// The answer.
    pub answer: &'static str,
    /// The reason: a sentence.
    pub why: String,
}

impl Host {
    /// Looks below `root`, which is `/` unless a test says otherwise.
    pub fn read(root: &Path) -> Self {
        let ksm = ksm(root);
        let kvm = kvm(root);
        let thp_enabled = choice(root);
        let (pids, notes) = vmms(root);
        let context = Context { root, kvm: &kvm, ksm: &ksm, thp: &thp_enabled };
        let vms = pids.into_iter().map(|(pid, folder)| context.vm(pid, folder.as_deref())).collect();
        Self { vms, kvm, ksm, thp_enabled, notes }
    }
}

fn text(path: &Path) -> Result<String, String> {
    let text = fs::read_to_string(path).map_err(|error| format!("{} cannot be read ({error})", path.display()))?;
    Ok(text.trim().to_owned())
}

fn number(path: &Path) -> Result<u64, String> {
    text(path)?.parse().map_err(|_| format!("{} is no number", path.display()))
}

fn choice(root: &Path) -> Known<String> {
    let path = root.join("sys/kernel/mm/transparent_hugepage/enabled");
    let found = text(&path).and_then(|text| {
        let inside = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
        inside.map(|(word, _)| word.to_owned()).ok_or_else(|| format!("{} names no choice", path.display()))
    });
    found.into()
}

fn kvm(root: &Path) -> Known<Kvm> {
    let modules = root.join("sys/module");
    let parameters = modules.join("kvm/parameters");
    if !parameters.is_dir() {
        return Known::not("the module kvm is not loaded: this machine hosts no VMs of KVM's");
    }
    let of_kvm = |name: &str| Known::from(text(&parameters.join(name)));
    let nested = [("kvm_intel", "ept"), ("kvm_amd", "npt")].into_iter().find_map(|(module, name)| {
        Some(format!("{name} {}", text(&modules.join(module).join("parameters").join(name)).ok()?))
    });
    Known::Is(Kvm {
        nx_huge_pages: of_kvm("nx_huge_pages"),
        eager_page_split: of_kvm("eager_page_split"),
        tdp_mmu: of_kvm("tdp_mmu"),
        nested_paging: nested.ok_or_else(|| "neither kvm_intel nor kvm_amd is loaded".to_owned()).into(),
        hugegpt: parameters.join("hugegpt").exists(),
    })
}

fn ksm(root: &Path) -> Known<Ksm> {
    let folder = root.join("sys/kernel/mm/ksm");
    let read = || {
        let sharing = number(&folder.join("pages_sharing"))?;
        Ok(Ksm { run: number(&folder.join("run"))?, sharing_bytes: sharing.saturating_mul(PAGE_BYTES) })
    };
    read().into()
}

/// The VMMs, each with the folder of debugfs that is about its VM, if it can be read.
fn vmms(root: &Path) -> (BTreeMap<u32, Option<PathBuf>>, Vec<String>) {
    let mut found = BTreeMap::new();
    let mut notes = Vec::new();
    for pid in holders(root) {
        found.insert(pid, None);
    }
    match fs::read_dir(root.join(DEBUGFS)) {
        Ok(entries) => {
            for entry in entries.flatten().filter(|entry| entry.path().is_dir()) {
                // A folder is called PID-FD.
                let name = entry.file_name();
                let pid = name.to_str().and_then(|name| name.split_once('-')).and_then(|(pid, _)| pid.parse().ok());
                if let Some(pid) = pid {
                    found.insert(pid, Some(entry.path()));
                }
            }
        }
        Err(error) => notes.push(format!(
            "/{DEBUGFS} cannot be read ({error}): as root, mount -t debugfs debugfs /sys/kernel/debug shows the leaves of every VM."
        )),
    }
    (found, notes)
}

/// Processes that hold a VM of KVM's.
fn holders(root: &Path) -> BTreeSet<u32> {
    let numbers = fs::read_dir(root.join("proc")).into_iter().flatten().flatten();
    let pids = numbers.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let holds = |pid: &u32| {
        let files = fs::read_dir(root.join(format!("proc/{pid}/fd"))).into_iter().flatten().flatten();
        files.filter_map(|file| fs::read_link(file.path()).ok()).any(|link| link.as_os_str() == VM_LINK)
    };
    pids.filter(holds).collect()
}

/// What is the same for all VMs of a host.
struct Context<'a> {
    root: &'a Path,
    kvm: &'a Known<Kvm>,
    ksm: &'a Known<Ksm>,
    thp: &'a Known<String>,
}

impl Context<'_> {
    fn vm(&self, pid: u32, folder: Option<&Path>) -> Vm {
        let process = self.root.join(format!("proc/{pid}"));
        let name = text(&process.join("comm")).unwrap_or_else(|_| "(ended)".into());
        let leaves = leaves(pid, folder, self.root == Path::new("/"));
        let memory = memory(&process);
        let splitting = vec![self.dirty_logging(&leaves, &memory), self.nx(&leaves), self.ksm(&memory)];
        let guest_tables = self.guest_tables(&leaves, &memory);
        Vm { pid, name, leaves, memory, splitting, guest_tables }
    }

    /// KVM says nowhere whether it logs dirty pages. What shows: memory that is huge, mapped by
    /// leaves that are not.
    fn dirty_logging(&self, leaves: &Known<Leaves>, memory: &Known<VmmMemory>) -> Cause {
        let cause = |found, why: String| Cause { cause: "dirty_logging", found, why };
        let (Some(leaves), Some(memory)) = (leaves.value(), memory.value()) else {
            return cause(
                "unknown",
                "KVM does not show it, and the leaves or the memory of the VM are not known.".into(),
            );
        };
        match leaves.huge_share {
            Some(share) if memory.huge_share >= MOST && share < memory.huge_share / 2.0 => cause(
                "likely",
                format!(
                    "{:.0} % of the memory is huge and {:.0} % of it mapped so: dirty logging (a migration, a snapshot) or \
                     a guest that touched little yet; the VMM knows (QEMU: query-migrate).",
                    100.0 * memory.huge_share,
                    100.0 * share
                ),
            ),
            Some(_) if memory.huge_share < MOST => {
                cause("unknown", "Little of the memory is huge, so that splitting would not show.".into())
            }
            Some(_) => cause("no", "No sign of it: leaves are about as large as the memory behind them.".into()),
            None => cause("unknown", "KVM maps nothing of the guest yet.".into()),
        }
    }

    fn nx(&self, leaves: &Known<Leaves>) -> Cause {
        let cause = |found, why: String| Cause { cause: "nx_huge_pages", found, why };
        let setting = self.kvm.value().and_then(|kvm| kvm.nx_huge_pages.value().cloned());
        match (setting.as_deref(), leaves.value().and_then(|leaves| leaves.nx_splits)) {
            (Some("N" | "0" | "never"), _) => cause("no", "The mitigation of iTLB multihit is off.".into()),
            (Some(_), Some(0)) => cause("no", "The mitigation of iTLB multihit is on, and has split nothing.".into()),
            (Some(_), Some(splits)) => {
                cause("yes", format!("{splits} huge leaves are split because the guest ran code from them."))
            }
            _ => cause("unknown", "Neither the setting nor the count of split leaves can be read.".into()),
        }
    }

    fn ksm(&self, memory: &Known<VmmMemory>) -> Cause {
        let cause = |found, why: String| Cause { cause: "ksm", found, why };
        match (self.ksm.value(), memory.value()) {
            (_, Some(memory)) if memory.ksm_bytes > 0 => {
                cause("yes", format!("{} MiB of this VM are merged with equal pages.", memory.ksm_bytes >> 20))
            }
            (Some(Ksm { run: 1, .. }), _) => cause("no", "KSM is on, and has merged nothing of this VM.".into()),
            (Some(_), _) => cause("no", "KSM is off.".into()),
            (None, _) => cause("unknown", "The settings of KSM cannot be read.".into()),
        }
    }

    fn guest_tables(&self, leaves: &Known<Leaves>, memory: &Known<VmmMemory>) -> Verdict {
        let verdict = |answer, why: &str| Verdict { answer, why: why.into() };
        let huge = leaves.value().and_then(|leaves| leaves.huge_share).unwrap_or_default();
        let backing = memory.value().map_or(0.0, |memory| memory.huge_share);
        if huge > 0.99 || (backing > 0.99 && huge > 0.9) {
            return verdict("already", "All of the guest's memory is mapped by huge leaves, its page tables with it.");
        }
        match self.thp.value().map(String::as_str) {
            Some("never") => verdict("not", "Transparent huge pages are off on this host: enabled=madvise is enough."),
            Some(_) if self.kvm.value().is_some_and(|kvm| kvm.hugegpt) => {
                verdict("possible", "This kernel has HugeGPT: a guest with the same series asks for it.")
            }
            Some(_) => verdict(
                "possible",
                "Huge pages can be had here; it takes HugeGPT's series on host and guest (linux/README.md), or huge pages \
                 for all of the VM.",
            ),
            None => verdict("not", "Whether this host has transparent huge pages cannot be read."),
        }
    }
}

fn leaves(pid: u32, folder: Option<&Path>, live: bool) -> Known<Leaves> {
    if let Some(folder) = folder {
        let value = |name: &str| number(&folder.join(name));
        let read = || {
            let sizes = [value("pages_4k")?, value("pages_2m")?, value("pages_1g")?];
            Ok(counted(sizes, value("nx_lpage_splits").ok(), "debugfs"))
        };
        return read().into();
    }
    if !live {
        return Known::not("there is no debugfs");
    }
    let read = || {
        let found = statistics(pid)?;
        let value = |name: &str| found.get(name).copied().ok_or_else(|| format!("KVM's statistics have no {name}"));
        let sizes = [value("pages_4k")?, value("pages_2m")?, value("pages_1g")?];
        Ok(counted(sizes, value("nx_lpage_splits").ok(), "statistics file"))
    };
    let found: Result<Leaves, String> = read();
    found.map_err(|why| format!("debugfs has nothing about this VM, and {why}")).into()
}

#[cfg(not(target_os = "linux"))]
fn statistics(_pid: u32) -> Result<BTreeMap<String, u64>, String> {
    Err("this is not Linux".into())
}

fn counted([pages_4k, pages_2m, pages_1g]: [u64; 3], nx_splits: Option<u64>, source: &'static str) -> Leaves {
    let huge = pages_2m as f64 * 512.0 + pages_1g as f64 * 512.0 * 512.0;
    let all = huge + pages_4k as f64;
    Leaves { pages_4k, pages_2m, pages_1g, huge_share: (all > 0.0).then(|| huge / all), nx_splits, source }
}

fn memory(process: &Path) -> Known<VmmMemory> {
    let path = process.join("smaps_rollup");
    text(&path).and_then(|text| rollup(&text).ok_or_else(|| format!("{} has no line Rss", path.display()))).into()
}

/// What the text of `smaps_rollup` says; `None` if it is another file.
pub fn rollup(text: &str) -> Option<VmmMemory> {
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
    };
    let bytes = |name: &str| field(name).unwrap_or(0);
    let sum = |names: &[&str]| names.iter().fold(0_u64, |sum, name| sum.saturating_add(bytes(name)));
    let hugetlb_bytes = sum(&["Shared_Hugetlb", "Private_Hugetlb"]);
    let present_bytes = field("Rss")?.saturating_add(hugetlb_bytes);
    let huge_bytes = sum(&["AnonHugePages", "ShmemPmdMapped", "FilePmdMapped"]).saturating_add(hugetlb_bytes);
    let huge_share = if present_bytes == 0 { 0.0 } else { huge_bytes as f64 / present_bytes as f64 };
    let (ksm_bytes, swapped_bytes) = (bytes("KSM"), bytes("Swap"));
    Some(VmmMemory { present_bytes, huge_bytes, huge_share, hugetlb_bytes, ksm_bytes, swapped_bytes })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use proptest::prelude::*;

    use super::*;
    use crate::testing::tree;

    const ROLLUP: &str =
        "5581-7ffc ---p 00000000 00:00 0 [rollup]\nRss: 2097152 kB\nAnonHugePages: 1048576 kB\nKSM: 0 kB\nSwap: 4 kB\n";

    #[test]
    fn a_vm_is_found_by_debugfs_with_its_leaves() {
        let root = tree(&[
            ("proc/812/comm", "qemu-system-x86\n"),
            ("proc/812/smaps_rollup", ROLLUP),
            ("sys/kernel/debug/kvm/812-11/pages_4k", "512\n"),
            ("sys/kernel/debug/kvm/812-11/pages_2m", "1\n"),
            ("sys/kernel/debug/kvm/812-11/pages_1g", "0\n"),
            ("sys/kernel/debug/kvm/812-11/nx_lpage_splits", "3\n"),
            ("sys/kernel/mm/ksm/run", "0\n"),
            ("sys/kernel/mm/ksm/pages_sharing", "0\n"),
            ("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n"),
            ("sys/module/kvm/parameters/nx_huge_pages", "Y\n"),
        ]);
        let found = Host::read(root.path());
        let vm = &found.vms[0];
        assert_eq!((vm.pid, vm.name.as_str()), (812, "qemu-system-x86"));
        assert_eq!(vm.leaves.value().unwrap().huge_share, Some(0.5));
        assert_eq!(vm.memory.value().unwrap().huge_share, 0.5);
        let causes: Vec<_> = vm.splitting.iter().map(|cause| (cause.cause, cause.found)).collect();
        assert_eq!(causes, [("dirty_logging", "no"), ("nx_huge_pages", "yes"), ("ksm", "no")]);
        assert_eq!(vm.guest_tables.answer, "possible");
    }

    #[test]
    fn huge_memory_under_small_leaves_looks_like_dirty_logging() {
        let root = tree(&[
            ("proc/812/smaps_rollup", ROLLUP),
            ("sys/kernel/debug/kvm/812-11/pages_4k", "262144\n"),
            ("sys/kernel/debug/kvm/812-11/pages_2m", "0\n"),
            ("sys/kernel/debug/kvm/812-11/pages_1g", "0\n"),
        ]);
        assert_eq!(Host::read(root.path()).vms[0].splitting[0].found, "likely");
    }

    #[test]
    fn without_debugfs_a_vm_is_found_by_its_file_and_says_why_it_has_no_leaves() {
        let root = tree(&[("proc/812/comm", "cloud-hyperviso\n"), ("proc/812/fd/0", "")]);
        symlink(VM_LINK, root.path().join("proc/812/fd/11")).unwrap();
        let found = Host::read(root.path());
        assert_eq!(found.vms.len(), 1);
        assert!(found.vms[0].leaves.value().is_none() && found.vms[0].memory.value().is_none());
        assert!(found.kvm.value().is_none() && found.notes[0].contains("mount -t debugfs"), "{:?}", found.notes);
    }

    proptest! {
        #[test]
        fn any_text_is_a_rollup_or_none(text in "(Rss:|AnonHugePages:|[ 0-9kB\n]){0,40}") {
            if let Some(found) = rollup(&text) {
                prop_assert!(found.huge_share >= 0.0);
            }
        }
    }
}
