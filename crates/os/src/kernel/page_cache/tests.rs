// SPDX-License-Identifier: MIT OR Apache-2.0
use super::*;
use crate::below::Bare;
use crate::config::KernelConfig;
use crate::kernel::madvise::Advice;
use crate::state::vma::{VmaFlags, VmaKind};

/// Where files are mapped: a multiple of 2 MiB.
const AT: Vpn = Vpn(1 << 18);

fn kernel(pages: u64) -> Kernel {
    Kernel::new(&KernelConfig::new(PageCount(pages))).unwrap()
}

fn open(kernel: &mut Kernel, pages: u64) -> FileId {
    kernel.open_file(FileName::of("usr/bin/cc"), PageCount(pages))
}

/// A process that maps all `pages` of the file from [`AT`] on.
fn mapped(kernel: &mut Kernel, pages: u64, shared: bool) -> ProcessId {
    let file = open(kernel, pages);
    let process = kernel.spawn(&mut Bare).unwrap();
    let kind = VmaKind::Mapped(FileView::new(file, shared, AT, 0));
    let flags = VmaFlags { kind, ..VmaFlags::ANONYMOUS };
    kernel.mmap(process, VpnRange::new(AT, PageCount(pages)), flags, &mut Bare).unwrap();
    process
}

fn fault(kernel: &mut Kernel, process: ProcessId, page: u64, store: bool) -> FaultKind {
    let kind = kernel.fault(process, AT + page, store, Cpu(0), &mut Bare).unwrap();
    kernel.check_invariants();
    kind
}

fn frame(kernel: &Kernel, process: ProcessId, page: u64) -> Option<Frame> {
    kernel.table(process).unwrap().translate(AT + page)
}

const FOUND: FaultKind = FaultKind::File { read: false };
const READ: FaultKind = FaultKind::File { read: true };

#[test]
fn a_fault_reads_32_pages_and_maps_its_own_and_the_next_maps_those_around() {
    let mut kernel = kernel(4096);
    let process = mapped(&mut kernel, 200, false);
    assert_eq!(fault(&mut kernel, process, 100, false), READ);
    let done = *kernel.counters();
    assert_eq!((done.file_pages_read, done.file_waits, done.pages_mapped_around), (32, 1, 0));
    assert_eq!(kernel.cached(), PageCount(32));
    let file = open(&mut kernel, 200);
    let cached = |kernel: &Kernel, page| kernel.files().page(file, page).is_some();
    assert_eq!([83, 84, 115, 116].map(|page| cached(&kernel, page)), [false, true, true, false]);
    assert_eq!([99, 101].map(|page| frame(&kernel, process, page)), [None, None]);
    // The 16 aligned pages from 96 on; 100 is mapped.
    assert_eq!(fault(&mut kernel, process, 97, false), FOUND);
    assert_eq!([95, 96, 111, 112].map(|page| frame(&kernel, process, page).is_some()), [false, true, true, false]);
    assert_eq!(kernel.counters().pages_mapped_around, 14);
    // Half of these are not in the cache: that is no reason to read them.
    assert_eq!(fault(&mut kernel, process, 113, false), FOUND);
    assert_eq!([112, 115, 116].map(|page| frame(&kernel, process, page).is_some()), [true, true, false]);
    assert_eq!((kernel.counters().faults_file, kernel.counters().faults_file_read), (2, 1));
    assert_eq!((kernel.counters().zeroed_4k, kernel.counters().faults_4k), (done.zeroed_4k, 0), "nothing is zeroed");
}

#[test]
fn at_both_ends_of_a_file_less_is_read_and_mapped() {
    let mut kernel = kernel(4096);
    let process = mapped(&mut kernel, 50, false);
    assert_eq!(fault(&mut kernel, process, 3, false), READ);
    assert_eq!(kernel.cached(), PageCount(32), "0 to 31");
    assert_eq!(fault(&mut kernel, process, 49, false), READ);
    assert_eq!(kernel.cached(), PageCount(49), "and 33 to 49");
    assert_eq!(fault(&mut kernel, process, 48, false), FOUND);
    let past =
        kernel.mmap(process, VpnRange::new(AT, PageCount(51)), kernel.vma(process, AT).unwrap().flags, &mut Bare);
    assert!(matches!(past, Err(OsError::BadRange(_))), "{past:?}");
}

#[test]
fn processes_share_the_page_and_it_stays_when_they_are_gone() {
    let mut kernel = kernel(4096);
    let one = mapped(&mut kernel, 64, false);
    let free = kernel.memory().free_frames();
    fault(&mut kernel, one, 20, false);
    let two = mapped(&mut kernel, 64, false);
    assert_eq!(fault(&mut kernel, two, 20, false), FOUND);
    assert_eq!(frame(&kernel, one, 20), frame(&kernel, two, 20));
    assert_eq!(kernel.counters().file_pages_read, 32);
    kernel.exit(two, &mut Bare).unwrap();
    kernel.munmap(one, VpnRange::new(AT, PageCount(64)), &mut Bare).unwrap();
    kernel.check_invariants();
    assert_eq!((kernel.cached(), kernel.memory().free_frames()), (PageCount(32), PageCount(free.0 - 32)));
}

#[test]
fn a_store_to_a_private_mapping_leaves_the_file_as_it_is() {
    let mut kernel = kernel(4096);
    let process = mapped(&mut kernel, 64, false);
    let file = open(&mut kernel, 64);
    fault(&mut kernel, process, 1, false);
    let shared = frame(&kernel, process, 1);
    assert_eq!(fault(&mut kernel, process, 1, true), FaultKind::Copied, "of a page that is mapped");
    assert_eq!(fault(&mut kernel, process, 2, true), FaultKind::Copied, "of one that is not");
    assert_ne!(frame(&kernel, process, 1), shared);
    assert_eq!(kernel.files().page(file, 1).map(|cached| (Some(cached.frame), cached.dirty)), Some((shared, false)));
    assert_eq!(kernel.counters().copied_4k, 2);
    let child = kernel.fork(process, &mut Bare).unwrap();
    fault(&mut kernel, child, 3, false);
    assert_eq!(frame(&kernel, child, 1), frame(&kernel, process, 1), "the copy is inherited");
    assert_eq!(frame(&kernel, child, 20), None, "pages of the file are found in the cache");
    kernel.madvise(process, VpnRange::new(AT, PageCount(4)), crate::Advice::DontNeed, &mut Bare).unwrap();
    assert_eq!(fault(&mut kernel, process, 1, false), FOUND);
    assert_eq!(frame(&kernel, process, 1), shared);
}

#[test]
fn stores_to_a_shared_mapping_are_written_back_when_the_page_goes() {
    let mut kernel = kernel(4096);
    let process = mapped(&mut kernel, 64, true);
    fault(&mut kernel, process, 5, false);
    assert_eq!(fault(&mut kernel, process, 5, true), FaultKind::Reused, "a load does not give the right to store");
    assert_eq!(fault(&mut kernel, process, 40, true), READ);
    let other = mapped(&mut kernel, 64, true);
    fault(&mut kernel, other, 5, true);
    assert_eq!(frame(&kernel, other, 5), frame(&kernel, process, 5));
    assert_eq!((kernel.cached(), kernel.counters().copied_4k), (PageCount(56), 0));
    kernel.exit(process, &mut Bare).unwrap();
    kernel.reclaim(PageCount(4096), Cpu(0), &mut Bare).unwrap();
    kernel.check_invariants();
    assert_eq!((kernel.cached(), kernel.counters().file_pages_written), (PageCount(0), 2));
    assert_eq!(frame(&kernel, other, 5), None, "it went out of the page table, too");
}

#[test]
fn pages_in_use_outlive_pages_that_were_read_once() {
    let mut kernel = kernel(4096);
    let process = mapped(&mut kernel, 96, false);
    for page in [0, 32, 64] {
        fault(&mut kernel, process, page, false);
    }
    fault(&mut kernel, process, 33, false);
    // 0 to 79 are in the cache; of them 0, 32 to 47 and 64 are mapped and used. The first look
    // takes note of that and lets them stay.
    let given = kernel.reclaim(PageCount(62), Cpu(0), &mut Bare).unwrap();
    kernel.check_invariants();
    assert_eq!(given, PageCount(62));
    let left: Vec<u64> = (0..96).filter(|&page| frame(&kernel, process, page).is_some()).collect();
    assert_eq!(left, [0].into_iter().chain(32..48).chain([64]).collect::<Vec<_>>());
    assert_eq!(kernel.counters().reclaimed_clean, 62);
}

#[test]
fn the_cache_goes_before_anonymous_memory_fails() {
    let mut kernel = kernel(4096);
    let reader = kernel.spawn(&mut Bare).unwrap();
    let file = open(&mut kernel, 3000);
    kernel.read_file(reader, file, 0..3000, &mut Bare).unwrap();
    assert_eq!((kernel.cached(), kernel.counters().file_waits), (PageCount(3000), 94));
    assert_eq!((kernel.counters().copied_file, kernel.counters().file_calls), (3000, 1));
    let heap = VpnRange::new(Vpn(512), PageCount(3500));
    kernel.mmap(reader, heap, VmaFlags::ANONYMOUS, &mut Bare).unwrap();
    for page in 0..3500 {
        kernel.fault(reader, heap.start + page, true, Cpu(0), &mut Bare).unwrap();
    }
    kernel.check_invariants();
    assert!(kernel.cached() < PageCount(600), "{:?}", kernel.cached());
    assert_eq!((kernel.counters().out_of_memory, kernel.counters().swapped_out), (0, 0));
}

/// Without this, reading 32 pages where there is memory for fewer began anew for ever.
#[test]
fn a_file_is_read_where_there_is_memory_for_a_few_of_its_pages_only() {
    let mut kernel = kernel(1024);
    let reader = kernel.spawn(&mut Bare).unwrap();
    let file = open(&mut kernel, 64);
    let heap = VpnRange::new(Vpn(512), PageCount(1024));
    kernel.mmap(reader, heap, VmaFlags::ANONYMOUS, &mut Bare).unwrap();
    // Without swap nothing can be had from it.
    let fails = |&page: &u64| kernel.fault(reader, heap.start + page, true, Cpu(0), &mut Bare).is_err();
    let used = (0..1024).find(fails).expect("it does not fit");
    let given = VpnRange::new(heap.start + (used - 8), PageCount(8));
    kernel.madvise(reader, given, Advice::DontNeed, &mut Bare).unwrap();
    kernel.read_file(reader, file, 0..64, &mut Bare).unwrap();
    kernel.check_invariants();
    let counters = kernel.counters();
    assert_eq!((counters.file_pages_read, counters.copied_file), (64, 64), "each page once");
    assert!((1..32).contains(&kernel.cached().0), "{:?}", kernel.cached());
}

#[test]
fn what_a_program_writes_is_in_the_cache_and_not_read() {
    let mut kernel = kernel(4096);
    let writer = kernel.spawn(&mut Bare).unwrap();
    let file = open(&mut kernel, 40);
    kernel.write_file(writer, file, 0..40, &mut Bare).unwrap();
    assert_eq!((kernel.cached(), kernel.counters().file_pages_read), (PageCount(40), 0));
    kernel.read_file(writer, file, 10..20, &mut Bare).unwrap();
    assert_eq!(kernel.counters().file_waits, 0);
    kernel.reclaim(PageCount(4096), Cpu(0), &mut Bare).unwrap();
    assert_eq!(kernel.counters().file_pages_written, 40);
    let beyond = kernel.read_file(writer, file, 39..41, &mut Bare);
    assert!(matches!(beyond, Err(OsError::BadRange(_))), "{beyond:?}");
}

#[test]
fn compaction_moves_pages_of_files_with_all_their_mappings() {
    let mut kernel = kernel(4096);
    let (one, two) = (mapped(&mut kernel, 600, false), mapped(&mut kernel, 600, false));
    for process in [one, two] {
        for page in 0..600 {
            fault(&mut kernel, process, page, false);
        }
    }
    let pages =
        |kernel: &Kernel, process| (0..600).map(|page| frame(kernel, process, page).unwrap()).collect::<Vec<_>>();
    let before = pages(&kernel, one);
    let wanted = FrameRange::new(before[300].align_down(9), PageCount(512));
    let had = crate::context::migrate::alloc_at(&mut kernel.state, &mut Bare, wanted);
    assert!(kernel.counters().migrated > 100 && kernel.has_invalidations());
    let after = pages(&kernel, one);
    assert_eq!(after, pages(&kernel, two));
    assert_ne!(after, before);
    assert!(after.iter().all(|frame| !wanted.contains(*frame) || !had[(frame.0 - wanted.start.0) as usize]));
    for (frame, had) in wanted.iter().zip(had) {
        if had {
            kernel.state.memory.free(frame, nestwalk_mem::Order::PAGE, Cpu(0));
        }
    }
    kernel.settle(Cpu(0), &mut Bare);
    kernel.check_invariants();
}

#[test]
fn a_file_that_is_always_missed_is_read_page_by_page() {
    let mut kernel = kernel(65_536);
    let process = mapped(&mut kernel, 40_000, false);
    // Pages that no read-around before has brought.
    for i in 0..110 {
        fault(&mut kernel, process, 350 * i, false);
    }
    let read = kernel.counters().file_pages_read;
    assert_eq!(read, 32 * 100 + 10, "100 times around it, then alone");
}
