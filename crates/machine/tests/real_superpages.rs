// SPDX-License-Identifier: MIT OR Apache-2.0
//! The simulated `thp` gets huge pages on fragmented memory as the real kernel did:
//! `linux/data/superpages-6.1.192.json`, measured by `make -C linux superpages` (Linux 6.1,
//! `linux/guest/superpages.c`), the same recipe on the simulated kernel.
//!
//! And as Linux 4.3 did after all steps of the scripts by which the authors of Quicksilver's paper
//! fragment memory (`linux/data/superpages-4.3.json`).
//!
//! `cargo test -p nestwalk-machine --test real_superpages -- --nocapture` prints both side by side.

use nestwalk_mem::{Cpu, Order, PageCount, Vpn, VpnRange};
use nestwalk_os::below::Bare;
use nestwalk_os::config::{FragSteps, StartState};
use nestwalk_os::manager::thp::{Defrag, KhugepagedConfig, Release, ThpConfig};
use nestwalk_os::{Advice, Kernel, KernelConfig, ManagerConfig, OsCounters, ProcessId, VmaFlags};
use serde::Deserialize;

const BLOCK: u64 = 512;
const KEPT: u64 = 16;
const SECOND_NS: u64 = 1_000_000_000;
/// Daemons are woken this often, as in the machine.
const TICK_NS: u64 = 10_000_000;
/// What a 4 KiB fault takes under emulation, ns: how far the daemons get meanwhile (`fault_ns` of
/// `linux/guest/frag.c`).
const FAULT_NS: u64 = 16_000;
/// Where the programs' memory lies.
const HOLDER: Vpn = Vpn(0x7_0000_0000);
const PROGRAM: Vpn = Vpn(0x6_0000_0000);

#[derive(Deserialize)]
struct Document {
    memory_mib: u64,
    need_mib: u64,
    scan_sleep_ms: u64,
    alloc_sleep_ms: u64,
    runs: Vec<Run>,
}

#[derive(Deserialize, Clone)]
struct Run {
    case: String,
    boot: u64,
    watermarks: Watermarks,
    percent: String,
    defrag: String,
    advice: String,
    fill: String,
    proactiveness: u16,
    wait: u64,
    /// Of the authors' scripts only: MiB of the guest and of the program, and the steps before the
    /// last one.
    memory: Option<u64>,
    need: Option<u64>,
    steps: Option<String>,
    seen: Vec<Seen>,
}

#[derive(Deserialize, Clone)]
struct Seen {
    when: String,
    second: u64,
    huge: u64,
    compact_stall: u64,
    compact_fail: u64,
    pgmigrate_success: u64,
    // Not kept of each second.
    #[serde(default)]
    free_pages: u64,
    #[serde(default)]
    free_blocks: Vec<u64>,
    #[serde(default)]
    thp_split_page: u64,
    #[serde(default)]
    thp_deferred_split_page: u64,
    #[serde(default)]
    compact_success: u64,
    #[serde(default)]
    thp_fault_alloc: u64,
    #[serde(default)]
    thp_fault_fallback: u64,
}

#[derive(Deserialize, Clone)]
struct Watermarks {
    min: u64,
}

/// What is compared of a run.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Outcome {
    /// Free pages after the recipe, and huge pages that then waited to be split.
    free: u64,
    waiting: u64,
    /// Pages that kcompactd moved between the recipe and the first fault.
    moved_before: u64,
    /// Free 2 MiB blocks at the first fault.
    blocks: u64,
    /// Huge pages when all is written.
    faulted: u64,
    fallbacks: u64,
    stalls: u64,
    failures: u64,
    migrated: u64,
    /// Huge pages that were split for want of memory until all was written.
    split: u64,
    /// Huge pages each second after.
    later: Vec<u64>,
}

fn load(name: &str) -> Document {
    let path = format!("{}/../../linux/data/{name}", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn document() -> Document {
    load("superpages-6.1.192.json")
}

fn huge_blocks(counts: &[u64]) -> u64 {
    let order = usize::from(Order::HUGE.0);
    counts.iter().enumerate().skip(order).map(|(at, count)| count << (at - order)).sum()
}

fn real(run: &Run) -> Outcome {
    let at = |when: &str| run.seen.iter().find(|seen| seen.when == when).unwrap();
    let (fragmented, before, after) = (at("fragmented"), at("before"), at("faulted"));
    assert_eq!(
        after.compact_stall - before.compact_stall,
        after.compact_success - before.compact_success + after.compact_fail - before.compact_fail
    );
    assert_eq!(after.thp_fault_alloc - before.thp_fault_alloc, after.huge);
    Outcome {
        free: fragmented.free_pages,
        waiting: fragmented.thp_deferred_split_page - fragmented.thp_split_page,
        moved_before: before.pgmigrate_success - fragmented.pgmigrate_success,
        blocks: huge_blocks(&before.free_blocks),
        faulted: after.huge,
        fallbacks: after.thp_fault_fallback - before.thp_fault_fallback,
        stalls: after.compact_stall - before.compact_stall,
        failures: after.compact_fail - before.compact_fail,
        migrated: after.pgmigrate_success - before.pgmigrate_success,
        split: after.thp_split_page - before.thp_split_page,
        later: run.seen.iter().filter(|seen| seen.when == "later").map(|seen| seen.huge).collect(),
    }
}

/// The simulated guest.
struct Guest {
    kernel: Kernel,
    now_ns: u64,
}

impl Guest {
    fn free_huge_blocks(&self) -> u64 {
        huge_blocks(&self.kernel.memory().free_blocks())
    }

    fn map(&mut self, process: ProcessId, range: VpnRange, advice: Option<Advice>) {
        self.kernel.mmap(process, range, VmaFlags::ANONYMOUS, &mut Bare).unwrap();
        if let Some(advice) = advice {
            self.kernel.madvise(process, range, advice, &mut Bare).unwrap();
        }
    }

    fn store(&mut self, process: ProcessId, page: Vpn) {
        self.kernel.touch(process, page, true, Cpu(0), &mut Bare).unwrap();
        // As the machine does after each step.
        if self.kernel.has_background_work() {
            self.tick(0);
        }
    }

    fn unmap(&mut self, process: ProcessId, first: Vpn, pages: u64) {
        self.kernel.munmap(process, VpnRange::new(first, PageCount(pages)), &mut Bare).unwrap();
    }

    /// `fragment` of `superpages.c`, of at most `most` blocks.
    fn fragment(&mut self, wanted: u64, advice: Advice, most: u64) {
        let process = self.kernel.spawn(&mut Bare).unwrap();
        let blocks = self.kernel.memory().frames().0 / BLOCK;
        self.map(process, VpnRange::new(HOLDER, PageCount(blocks * BLOCK)), Some(advice));
        let least = self.kernel.memory().watermarks().high.0 + 2 * BLOCK;
        let mut written = 0;
        while written < blocks.min(most) && self.kernel.memory().free_frames().0 > least {
            (0..BLOCK).for_each(|page| self.store(process, HOLDER + written * BLOCK + page));
            written += 1;
        }
        self.unmap(process, HOLDER + written * BLOCK, (blocks - written) * BLOCK);
        for block in 0..written {
            let whole = self.free_huge_blocks() < wanted;
            self.unmap(process, HOLDER + block * BLOCK, if whole { BLOCK } else { BLOCK - KEPT });
        }
        let mut at = HOLDER + blocks * BLOCK;
        while advice == Advice::NoHugePage && self.free_huge_blocks() > wanted {
            let before = self.kernel.counters().faults_2m;
            self.map(process, VpnRange::new(at, PageCount(BLOCK)), Some(Advice::HugePage));
            self.store(process, at);
            if self.kernel.counters().faults_2m == before {
                break;
            }
            self.unmap(process, at, BLOCK - KEPT);
            // The program writes to debugfs' split_huge_pages.
            self.kernel.reclaim(PageCount(1), Cpu(0), &mut Bare).unwrap();
            at += BLOCK;
        }
        self.kernel.take_invalidations();
    }

    fn tick(&mut self, ns: u64) {
        self.now_ns += ns;
        self.kernel.tick(nestwalk_mem::Nanoseconds(self.now_ns), &mut Bare).unwrap();
        self.kernel.take_invalidations();
    }
}

fn defrag(name: &str) -> Defrag {
    serde_json::from_value(name.into()).unwrap()
}

/// Huge pages of the program.
fn huge_pages(kernel: &Kernel, process: ProcessId, need: u64) -> u64 {
    let table = kernel.table(process).unwrap();
    let huge = |block: &u64| table.leaf(PROGRAM + block * BLOCK).is_some_and(|leaf| leaf.size().pages() == BLOCK);
    (0..need / BLOCK).filter(huge).count() as u64
}

/// The memory of the simulated guest, and how many huge pages its recipe writes at most.
///
/// How many huge pages wait to be split decides how many the shrinker takes at once: of 463, as in
/// the real guest, it takes 256, and of 464 or more 128 (two batches or one). So a fill by huge
/// pages begins with as much free memory as the real guest has once it is up, and writes as many.
/// All other runs have the whole GiB.
fn sizes(document: &Document, run: &Run) -> (PageCount, u64) {
    if run.fill == "small" {
        return (PageCount(document.memory_mib << 8), u64::MAX);
    }
    let fresh = document.runs.iter().find(|run| run.percent == "fresh").unwrap();
    (PageCount(fresh.seen[0].free_pages), run.seen[0].thp_fault_alloc)
}

fn simulated(document: &Document, run: &Run) -> Outcome {
    let (memory, most) = sizes(document, run);
    let mut config = KernelConfig::new(memory);
    let khugepaged = KhugepagedConfig {
        scan_sleep_ms: document.scan_sleep_ms,
        alloc_sleep_ms: document.alloc_sleep_ms,
        ..KhugepagedConfig::default()
    };
    config.min_free = Some(PageCount(run.watermarks.min));
    config.compaction_proactiveness = run.proactiveness;
    config.manager = ManagerConfig::Thp(ThpConfig { defrag: defrag(&run.defrag), khugepaged, ..ThpConfig::default() });
    let mut guest = Guest { kernel: Kernel::new(&config).unwrap(), now_ns: 0 };
    let need = document.need_mib << 8;
    if let Ok(percent) = run.percent.parse::<u64>() {
        let advice = if run.fill == "small" { Advice::NoHugePage } else { Advice::HugePage };
        guest.fragment(need / BLOCK * (100 - percent) / 100, advice, most);
    }
    let fragmented: OsCounters = *guest.kernel.counters();
    let free = guest.kernel.memory().free_frames().0;
    // There is nothing yet that khugepaged may touch.
    (0..run.wait * SECOND_NS / TICK_NS).for_each(|_| guest.tick(TICK_NS));
    let process = guest.kernel.spawn(&mut Bare).unwrap();
    guest.map(process, VpnRange::new(PROGRAM, PageCount(need)), (run.advice == "advised").then_some(Advice::HugePage));
    let blocks = guest.free_huge_blocks();
    let before: OsCounters = *guest.kernel.counters();
    let mut since = 0;
    for page in 0..need {
        let faults = guest.kernel.counters().faults_4k;
        guest.store(process, PROGRAM + page);
        since += (guest.kernel.counters().faults_4k - faults) * FAULT_NS;
        if since >= TICK_NS {
            since -= TICK_NS;
            // khugepaged's clock does not advance: it is woken when all is written.
            guest.tick(0);
        }
    }
    let done = guest.kernel.counters().since(&before);
    let faulted = huge_pages(&guest.kernel, process, need);
    // It is woken now. The real one is looked at every second after its scan, so this one half a
    // second after.
    guest.tick(document.scan_sleep_ms * 1_000_000);
    let mut later = Vec::new();
    (0..SECOND_NS / TICK_NS / 2).for_each(|_| guest.tick(TICK_NS));
    for _ in 0..run.seen.iter().map(|seen| seen.second).max().unwrap() {
        later.push(huge_pages(&guest.kernel, process, need));
        (0..SECOND_NS / TICK_NS).for_each(|_| guest.tick(TICK_NS));
    }
    guest.kernel.check_invariants();
    Outcome {
        free,
        waiting: fragmented.splits_deferred - fragmented.splits_whole,
        moved_before: before.since(&fragmented).migrated,
        blocks,
        faulted,
        fallbacks: done.huge_fallbacks,
        stalls: done.compactions_direct,
        failures: done.compactions_failed,
        migrated: done.migrated,
        split: done.splits_whole,
        later,
    }
}

/// By how much a number of huge pages, of 128, or of direct compactions may differ.
const MARGIN: u64 = 3;
/// The same where a daemon runs beside the faults: when it runs is the emulator's matter.
const DAEMON_MARGIN: u64 = 12;
/// The real guest has movable pages of its own in the way (the file of `t-superpages.sh`, the
/// initramfs), at most so many.
const OWN_PAGES_MAX: u64 = 3_000;

#[test]
fn huge_pages_and_compaction_are_those_of_linux() {
    let document = document();
    for run in document.runs.iter().filter(|run| run.proactiveness == 0) {
        let (real, ours) = (real(run), simulated(&document, run));
        println!("{} {}\n real      {real:?}\n simulated {ours:?}", run.case, run.boot);
        let place = format!("{}, boot {}", run.case, run.boot);
        let near = |what: &str, ours: u64, real: u64, margin: u64| {
            assert!(ours.abs_diff(real) <= margin, "{place}: {what}: {ours}, the real kernel {real}");
        };
        let margin = if run.defrag == "defer" { DAEMON_MARGIN } else { MARGIN };
        near("huge pages at the faults", ours.faulted, real.faulted, margin);
        near("faults that fell back", ours.fallbacks, real.fallbacks, margin);
        assert_eq!((ours.failures, real.failures), (0, 0), "{place}");
        if run.fill == "small" {
            near("direct compactions", ours.stalls, real.stalls, MARGIN);
            let more = real.migrated.checked_sub(ours.migrated);
            let within = more.is_some_and(|more| more <= OWN_PAGES_MAX);
            assert!(within, "{place}: {} pages moved, by the real kernel {}", ours.migrated, real.migrated);
        }
        if run.fill == "huge" {
            near("free pages after the recipe", ours.free, real.free, BLOCK);
            near("huge pages that wait to be split", ours.waiting, real.waiting, 0);
        }
        near("huge pages split", ours.split, real.split, 0);
        for (second, (&ours, &real)) in ours.later.iter().zip(&real.later).enumerate() {
            near(&format!("huge pages {} s later", second + 1), ours, real, DAEMON_MARGIN);
        }
    }
}

/// kcompactd makes blocks before a request (`compaction_proactiveness`, 20 by default). How many
/// differs from boot to boot by more than 2.
#[test]
fn proactive_compaction_is_that_of_linux() {
    let document = document();
    let runs: Vec<&Run> = document.runs.iter().filter(|run| run.proactiveness > 0).collect();
    let real: Vec<Outcome> = runs.iter().map(|run| real(run)).collect();
    let ours = simulated(&document, runs[0]);
    real.iter().for_each(|real| println!("{} real      {real:?}", runs[0].case));
    println!("{} simulated {ours:?}", runs[0].case);
    let within = |what: &str, value: fn(&Outcome) -> u64, margin: u64| {
        let least = real.iter().map(value).min().unwrap();
        let most = real.iter().map(value).max().unwrap();
        let ours = value(&ours);
        assert!(
            (least.saturating_sub(margin)..=most + margin).contains(&ours),
            "{what}: {ours}, real {least} to {most}"
        );
    };
    within("free blocks a minute after", |outcome| outcome.blocks, 0);
    within("pages moved", |outcome| outcome.moved_before, OWN_PAGES_MAX);
    within("huge pages at the faults", |outcome| outcome.faulted, MARGIN);
    assert_eq!((ours.stalls, real[0].stalls), (0, 0));
}

/// A kernel with pageblocks of 4 MiB (without `CONFIG_HUGETLB_PAGE`) compacts half as often: a
/// direct compaction goes on to the end of the pageblock, so that it makes two huge pages. That
/// alone differs between the two files.
#[test]
fn a_compaction_ends_with_the_pageblock() {
    let large = load("superpages-4m-pageblocks-6.1.192.json");
    for run in &large.runs {
        let small = document().runs.into_iter().find(|small| small.case == run.case).unwrap();
        let (large, small) = (real(run), real(&small));
        assert_eq!(large.faulted, small.faulted, "{}", run.case);
        assert!((2 * large.stalls).abs_diff(small.stalls) <= MARGIN, "{}: {large:?}, {small:?}", run.case);
    }
}

/// MiB that the guest of 6.1 has more than its shares are of: step 1 meets the OOM killer else.
const MORE_ON_6_1: u64 = 96;

fn after_the_scripts(release: Release, document: &Document) -> u64 {
    let mut compared = 0;
    for run in document.runs.iter().filter(|run| run.fill == "scripts") {
        let steps = match run.steps.as_deref().unwrap() {
            "pa" => FragSteps::All,
            "" => FragSteps::Last,
            // The second step without the first is none of a simulated kernel's.
            _ => continue,
        };
        let need = PageCount(run.need.unwrap() << 8);
        let more = if release == Release::V6_1 { MORE_ON_6_1 } else { 0 };
        let mut config = KernelConfig::new(PageCount((run.memory.unwrap() + more) << 8));
        config.min_free = Some(PageCount(run.watermarks.min));
        let (percent, wait_ms) = (run.percent.parse().unwrap(), run.wait * 1000);
        config.start = StartState::Frag { percent, need, kept_pages: KEPT as u16, wait_ms, steps };
        config.manager = ManagerConfig::Thp(ThpConfig { release, defrag: defrag(&run.defrag), ..ThpConfig::default() });
        let mut guest = Guest { kernel: Kernel::new(&config).unwrap(), now_ns: 0 };
        guest.kernel.inhabit(&mut Bare).unwrap();
        let process = guest.kernel.spawn(&mut Bare).unwrap();
        guest.map(process, VpnRange::new(PROGRAM, need), None);
        let before: OsCounters = *guest.kernel.counters();
        (0..need.0).for_each(|page| guest.store(process, PROGRAM + page));
        guest.kernel.check_invariants();
        let done = guest.kernel.counters().since(&before);
        let (huge, real) = (huge_pages(&guest.kernel, process, need.0), real(run));
        println!("{} {}\n real      {real:?}\n simulated {huge} huge, {done:?}", run.case, run.boot);
        let place = format!("{release:?}, {}, boot {}", run.case, run.boot);
        let near = |what: &str, ours: u64, real: u64, margin: u64| {
            assert!(ours.abs_diff(real) <= margin, "{place}: {what}: {ours}, the real kernel {real}");
        };
        // On 6.1 kswapd splits huge pages beside the faults.
        let margin = if release == Release::V6_1 { DAEMON_MARGIN } else { MARGIN };
        near("huge pages", huge, real.faulted, margin);
        near("faults that fell back", done.huge_fallbacks, real.fallbacks, margin);
        near("failed compactions", done.compactions_failed, real.failures, 2 * MARGIN);
        if release == Release::V4_3 {
            near("compactions", done.compactions_direct, real.stalls, 2 * MARGIN);
        }
        compared += 1;
    }
    compared
}

#[test]
fn after_the_authors_scripts_linux_4_3_gets_what_is_free_and_no_more() {
    assert_eq!(after_the_scripts(Release::V4_3, &load("superpages-4.3.json")), 6);
}

#[test]
fn after_the_same_scripts_linux_6_1_gets_nearly_all() {
    assert_eq!(after_the_scripts(Release::V6_1, &load("superpages-scripts-6.1.192.json")), 2);
}
