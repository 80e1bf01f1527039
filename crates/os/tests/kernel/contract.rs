// SPDX-License-Identifier: MIT OR Apache-2.0
//! What every memory manager and every table placement must keep to. A new one is in here as soon
//! as its enum's `all` names it.

use nestwalk_mem::{Cpu, Entry, Frame, Nanoseconds, PageCount, Vpn};
use nestwalk_os::{
    Advice, Bare, FileName, FileView, HugeAdvice, Kernel, KernelConfig, OsError, ProcessId, StartState, VmaFlags,
    VmaKind,
};

use crate::{configurations, pages};

const MEMORY: PageCount = PageCount(8192);

/// Runs `test` on a fresh kernel of every kind, and checks it afterwards.
fn every(change: impl Fn(&mut KernelConfig), test: impl Fn(&mut Kernel, ProcessId)) {
    for mut config in configurations(MEMORY) {
        change(&mut config);
        let mut kernel = Kernel::new(&config).unwrap();
        let process = kernel.spawn(&mut Bare).unwrap();
        test(&mut kernel, process);
        kernel.check_invariants();
    }
}

fn store(kernel: &mut Kernel, process: ProcessId, page: u64) {
    if kernel.backed_span(process, Vpn(page), true).unwrap() == PageCount(0) {
        kernel.fault(process, Vpn(page), true, Cpu(0), &mut Bare).unwrap();
    }
}

fn frame(kernel: &Kernel, process: ProcessId, page: u64) -> Option<Frame> {
    kernel.table(process).unwrap().translate(Vpn(page))
}

#[test]
fn the_fact_sheet_bears_the_name_of_the_configuration() {
    every(
        |_| (),
        |kernel, _| {
            let text = toml::to_string(kernel.config()).unwrap();
            let (manager, tables) = (kernel.manager().facts(), kernel.table_placement());
            assert!(text.contains(&format!("[manager]\nkind = \"{}\"", manager.name)), "{text}");
            assert!(text.contains(&format!("[tables]\nkind = \"{}\"", tables.name())), "{text}");
            assert!(!manager.source.is_empty() && manager.block.0.is_power_of_two());
            let again: KernelConfig = toml::from_str(&text).unwrap();
            assert_eq!(again, *kernel.config());
        },
    );
}

#[test]
fn keys_that_a_technique_does_not_have_are_refused() {
    every(
        |_| (),
        |kernel, _| {
            let text = toml::to_string(kernel.config()).unwrap();
            for table in ["[manager]\n", "[tables]\n"] {
                let wrong = text.replace(table, &format!("{table}no_such_key = 1\n"));
                let error = toml::from_str::<KernelConfig>(&wrong).expect_err("an unknown key is an error").to_string();
                assert!(error.contains("no_such_key"), "{error}");
            }
        },
    );
}

#[test]
fn a_fault_serves_its_page_and_nothing_outside_of_the_mapping() {
    every(
        |_| (),
        |kernel, process| {
            kernel.mmap(process, pages(515, 700), VmaFlags::ANONYMOUS, &mut Bare).unwrap();
            for page in [515, 600, 1023, 1024, 1214] {
                store(kernel, process, page);
                assert!(frame(kernel, process, page).is_some(), "page {page}");
            }
            for page in [514, 1215] {
                assert_eq!(frame(kernel, process, page), None, "page {page}");
                let result = kernel.fault(process, Vpn(page), false, Cpu(0), &mut Bare);
                assert_eq!(result, Err(OsError::Segfault { process, page: Vpn(page) }));
            }
        },
    );
}

#[test]
fn a_read_only_mapping_stays_read_only() {
    every(
        |_| (),
        |kernel, process| {
            let flags = VmaFlags { writable: false, ..VmaFlags::ANONYMOUS };
            kernel.mmap(process, pages(512, 512), flags, &mut Bare).unwrap();
            kernel.fault(process, Vpn(700), false, Cpu(0), &mut Bare).unwrap();
            let leaf = kernel.table(process).unwrap().leaf(Vpn(700)).unwrap();
            assert!(!leaf.entry.has(Entry::WRITABLE));
            let result = kernel.fault(process, Vpn(700), true, Cpu(0), &mut Bare);
            assert_eq!(result, Err(OsError::ReadOnly { process, page: Vpn(700) }));
        },
    );
}

#[test]
fn all_memory_comes_back_when_processes_exit() {
    let starts = [
        StartState::Fresh,
        StartState::Fragmented { blocks_permille: 1000, frames_per_block: 2, unmovable_permille: 100 },
        StartState::Aged { used_permille: 900, kept_permille: 50, kernel_permille: 0, kernel_kept_permille: 0 },
        StartState::Aged { used_permille: 900, kept_permille: 50, kernel_permille: 30, kernel_kept_permille: 300 },
        StartState::BuddyInfo {
            free_blocks: [90, 80, 70, 60, 50, 30, 10, 6, 3, 1, 1],
            of: None,
            kernel_permille: 60,
            kernel_kept_permille: 300,
        },
    ];
    for start in starts {
        every(
            |config| config.start = start,
            |kernel, first| {
                kernel.exit(first, &mut Bare).unwrap();
                kernel.reclaim(MEMORY, Cpu(0), &mut Bare).unwrap();
                let all = kernel.memory().free_frames();
                let parent = kernel.spawn(&mut Bare).unwrap();
                kernel.mmap(parent, pages(512, 2048), VmaFlags::ANONYMOUS, &mut Bare).unwrap();
                (0..2048).step_by(3).for_each(|i| store(kernel, parent, 512 + i));
                let child = kernel.fork(parent, &mut Bare).unwrap();
                (0..2048).step_by(5).for_each(|i| store(kernel, child, 512 + i));
                kernel.munmap(parent, pages(700, 900), &mut Bare).unwrap();
                kernel.exit(parent, &mut Bare).unwrap();
                kernel.exit(child, &mut Bare).unwrap();
                kernel.reclaim(MEMORY, Cpu(0), &mut Bare).unwrap();
                assert_eq!(kernel.memory().free_frames(), all, "{:?}", kernel.config());
                assert_eq!(kernel.counters().nodes_made, kernel.counters().nodes_freed);
            },
        );
    }
}

#[test]
fn parent_and_child_share_until_one_of_them_stores() {
    every(
        |_| (),
        |kernel, parent| {
            kernel.mmap(parent, pages(512, 512), VmaFlags::ANONYMOUS, &mut Bare).unwrap();
            (512..1024).for_each(|page| store(kernel, parent, page));
            let child = kernel.fork(parent, &mut Bare).unwrap();
            let before = frame(kernel, parent, 800);
            assert_eq!(frame(kernel, child, 800), before);
            store(kernel, child, 800);
            assert_ne!(frame(kernel, child, 800), before, "the child has a copy");
            assert_eq!(frame(kernel, parent, 800), before);
            assert_eq!(frame(kernel, child, 801), frame(kernel, parent, 801), "its neighbour is shared still");
            store(kernel, parent, 800);
            assert_eq!(frame(kernel, parent, 800), before, "the parent is alone with its page: no copy");
            assert_eq!((kernel.counters().faults_copied, kernel.counters().faults_reused), (1, 1));
        },
    );
}

#[test]
fn pressure_without_swap_ends_in_an_error_and_not_in_a_panic() {
    every(
        |config| config.swap = PageCount(0),
        |kernel, process| {
            kernel.mmap(process, pages(1024, 2 * MEMORY.0), VmaFlags::ANONYMOUS, &mut Bare).unwrap();
            let results = (0..2 * MEMORY.0).map(|i| kernel.fault(process, Vpn(1024 + i), true, Cpu(0), &mut Bare));
            let error = results.filter_map(Result::err).next().expect("memory is full");
            assert!(matches!(error, OsError::OutOfMemory { .. }), "{error}");
            kernel.check_invariants();
            let reserve = kernel.memory().watermarks().min;
            assert!(kernel.memory().free_frames() <= PageCount(reserve.0 + 1), "memory was free still");
            kernel.munmap(process, pages(1024, 1024), &mut Bare).unwrap();
            store(kernel, process, 1024 + 2 * MEMORY.0 - 1);
        },
    );
}

#[test]
fn with_swap_a_program_may_be_larger_than_memory() {
    every(
        |config| config.swap = PageCount(4 * MEMORY.0),
        |kernel, process| {
            kernel.mmap(process, pages(1024, 2 * MEMORY.0), VmaFlags::ANONYMOUS, &mut Bare).unwrap();
            (0..2 * MEMORY.0).for_each(|i| store(kernel, process, 1024 + i));
            assert!(kernel.counters().swapped_out >= MEMORY.0);
            store(kernel, process, 1024);
            assert!(kernel.counters().faults_swapped_in > 0);
        },
    );
}

#[test]
fn daemons_change_no_program_s_memory() {
    every(
        |_| (),
        |kernel, process| {
            let flags = VmaFlags { advice: HugeAdvice::Huge, ..VmaFlags::ANONYMOUS };
            kernel.mmap(process, pages(512, 2048), VmaFlags::ANONYMOUS, &mut Bare).unwrap();
            (0..2048).step_by(2).for_each(|i| store(kernel, process, 512 + i));
            kernel.mmap(process, pages(4096, 700), flags, &mut Bare).unwrap();
            (0..700).for_each(|i| store(kernel, process, 4096 + i));
            for second in (0..600).step_by(5) {
                kernel.tick(Nanoseconds(second * 1_000_000_000), &mut Bare).unwrap();
            }
            (0..2048).step_by(2).for_each(|i| assert!(frame(kernel, process, 512 + i).is_some()));
        },
    );
}

#[test]
fn a_moved_mapping_keeps_its_frames() {
    every(
        |_| (),
        |kernel, process| {
            kernel.mmap(process, pages(512, 1024), VmaFlags::ANONYMOUS, &mut Bare).unwrap();
            (512..1536).for_each(|page| store(kernel, process, page));
            for (from, to) in [(512, 8192), (8192, 20_001)] {
                let before: Vec<_> = (0..1024).map(|i| frame(kernel, process, from + i)).collect();
                kernel.mremap(process, pages(from, 1024), pages(to, 1100), &mut Bare).unwrap();
                let after: Vec<_> = (0..1024).map(|i| frame(kernel, process, to + i)).collect();
                assert_eq!(before, after);
                assert!((0..1024).all(|i| frame(kernel, process, from + i).is_none()));
                store(kernel, process, to + 1099);
                kernel.munmap(process, pages(to + 1024, 76), &mut Bare).unwrap();
                kernel.check_invariants();
            }
        },
    );
}

#[test]
fn pages_that_were_given_back_are_made_anew() {
    every(
        |_| (),
        |kernel, process| {
            kernel.mmap(process, pages(512, 1024), VmaFlags::ANONYMOUS, &mut Bare).unwrap();
            (512..1536).for_each(|page| store(kernel, process, page));
            kernel.madvise(process, pages(600, 500), Advice::DontNeed, &mut Bare).unwrap();
            assert!(frame(kernel, process, 599).is_some() && frame(kernel, process, 600).is_none());
            assert!(frame(kernel, process, 1099).is_none() && frame(kernel, process, 1100).is_some());
            let before = *kernel.counters();
            kernel.madvise(process, pages(600, 500), Advice::PopulateWrite, &mut Bare).unwrap();
            let done = kernel.counters().since(&before);
            assert!(done.faults_4k + done.faults_2m > 0 && done.zeroed_4k + done.zeroed_2m * 512 >= 500);
        },
    );
}

#[test]
fn the_same_calls_give_the_same_frames() {
    let run = |config: &KernelConfig| {
        let mut kernel = Kernel::new(config).unwrap();
        let mut frames = Vec::new();
        for round in 0..6u64 {
            let process = kernel.spawn(&mut Bare).unwrap();
            kernel.mmap(process, pages(512, 1500), VmaFlags::ANONYMOUS, &mut Bare).unwrap();
            (0..1500).step_by(1 + round as usize).for_each(|i| store(&mut kernel, process, 512 + i * 7 % 1500));
            kernel.tick(Nanoseconds(round * 20_000_000_000), &mut Bare).unwrap();
            frames.extend((512..2012).map(|page| frame(&kernel, process, page)));
            if round % 2 == 0 {
                kernel.exit(process, &mut Bare).unwrap();
            }
        }
        (frames, *kernel.counters())
    };
    for mut config in configurations(MEMORY) {
        config.start =
            StartState::Aged { used_permille: 700, kept_permille: 100, kernel_permille: 0, kernel_kept_permille: 0 };
        assert_eq!(run(&config), run(&config));
    }
}

#[test]
fn calls_on_processes_and_ranges_that_do_not_exist_are_errors() {
    every(
        |_| (),
        |kernel, process| {
            let absent = ProcessId(77);
            let beyond = kernel.fault(process, Vpn(512), true, Cpu(2), &mut Bare);
            assert_eq!(beyond, Err(OsError::NoCpu { cpu: Cpu(2), cpus: 2 }));
            assert_eq!(kernel.fork(absent, &mut Bare), Err(OsError::NoProcess(absent)));
            assert_eq!(kernel.exit(absent, &mut Bare), Err(OsError::NoProcess(absent)));
            assert_eq!(
                kernel.mmap(absent, pages(1, 1), VmaFlags::ANONYMOUS, &mut Bare),
                Err(OsError::NoProcess(absent))
            );
            let end = kernel.config().geometry.end();
            for range in [pages(5, 0), pages(end.0 - 1, 2)] {
                assert_eq!(kernel.munmap(process, range, &mut Bare), Err(OsError::BadRange(range)));
            }
            let moved = kernel.mremap(process, pages(512, 4), pages(1024, 4), &mut Bare);
            assert_eq!(moved, Err(OsError::Segfault { process, page: Vpn(512) }));
        },
    );
}

#[test]
fn pages_of_a_file_are_one_for_all_and_the_cache_keeps_them_until_memory_is_short() {
    every(
        |config| config.swap = PageCount(0),
        |kernel, first| {
            let file = kernel.open_file(FileName::of("lib/libc.so"), PageCount(1500));
            let second = kernel.spawn(&mut Bare).unwrap();
            let view = FileView::new(file, false, Vpn(4096), 0);
            let flags = VmaFlags { kind: VmaKind::Mapped(view), ..VmaFlags::ANONYMOUS };
            for process in [first, second] {
                kernel.mmap(process, pages(4096, 1500), flags, &mut Bare).unwrap();
                for page in 4096..4096 + 1500 {
                    kernel.touch(process, Vpn(page), false, Cpu(0), &mut Bare).unwrap();
                }
            }
            assert!((4096..4096 + 1500).all(|page| frame(kernel, first, page) == frame(kernel, second, page)));
            assert_eq!((kernel.counters().file_pages_read, kernel.cached()), (1500, PageCount(1500)));
            store(kernel, second, 4100);
            assert_ne!(frame(kernel, first, 4100), frame(kernel, second, 4100));
            kernel.check_invariants();
            kernel.exit(second, &mut Bare).unwrap();
            kernel.munmap(first, pages(4096, 1500), &mut Bare).unwrap();
            assert_eq!(kernel.cached(), PageCount(1500));
            kernel.mmap(first, pages(8192, MEMORY.0), VmaFlags::ANONYMOUS, &mut Bare).unwrap();
            let stored = (8192..8192 + MEMORY.0)
                .take_while(|&page| kernel.touch(first, Vpn(page), true, Cpu(0), &mut Bare).is_ok())
                .count() as u64;
            assert_eq!(kernel.cached(), PageCount(0), "anonymous memory failed before ({stored})");
        },
    );
}
