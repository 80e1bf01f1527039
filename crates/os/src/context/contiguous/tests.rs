// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who sets the contiguous bit, what keeps it and what takes it away, seen in the tables.

use nestwalk_mem::{Cpu, PageCount, PageSize};

use crate::below::Bare;
use crate::config::KernelConfig;
use crate::kernel::Kernel;
use crate::kernel::madvise::Advice;
use crate::manager::ManagerConfig;
use crate::manager::mthp::{Folio, MThpConfig};
use crate::manager::quicksilver::QuicksilverConfig;
use crate::manager::thp::ThpConfig;
use crate::state::vma::VmaFlags;

use super::*;

/// A multiple of 512.
const FIRST: u64 = 4096;

type Change = fn(&mut Test);

/// A program that has mapped 2 MiB and touched nothing.
struct Test {
    kernel: Kernel,
    process: ProcessId,
}

impl Test {
    fn new(manager: ManagerConfig, contiguous: bool) -> Self {
        let config = KernelConfig { manager, contiguous, ..KernelConfig::new(PageCount(16_384)) };
        let mut kernel = Kernel::new(&config).unwrap();
        let process = kernel.spawn(&mut Bare).unwrap();
        let mut test = Self { kernel, process };
        test.map(0, 512);
        test
    }

    fn folios(folio: Folio) -> Self {
        Self::new(ManagerConfig::MThp(MThpConfig { folio }), true)
    }

    fn map(&mut self, start: u64, count: u64) {
        self.kernel.mmap(self.process, range(start, count), VmaFlags::ANONYMOUS, &mut Bare).unwrap();
    }

    fn store(&mut self, process: ProcessId, page: u64) {
        self.kernel.touch(process, Vpn(FIRST + page), true, Cpu(0), &mut Bare).unwrap();
    }

    /// The first pages of the blocks that are there, from the first page on.
    fn blocks_of(&self, process: ProcessId) -> Vec<u64> {
        self.kernel.check_invariants();
        let table = self.kernel.table(process).unwrap();
        (0..1024).step_by(16).filter(|&page| table.is_contiguous(Vpn(FIRST + page))).collect()
    }

    fn blocks(&self) -> Vec<u64> {
        self.blocks_of(self.process)
    }
}

fn range(start: u64, count: u64) -> VpnRange {
    VpnRange::new(Vpn(FIRST + start), PageCount(count))
}

#[test]
fn a_folio_of_64_kib_is_a_block_and_one_of_128_kib_two_where_there_is_such_a_bit() {
    for (folio, contiguous, blocks) in [
        (Folio::K64, true, vec![32]),
        (Folio::K128, true, vec![32, 48]),
        (Folio::K32, true, vec![]),
        (Folio::K64, false, vec![]),
    ] {
        let mut test = Test::new(ManagerConfig::MThp(MThpConfig { folio }), contiguous);
        test.store(test.process, 37);
        assert_eq!(test.blocks(), blocks, "{folio:?}, {contiguous}");
        assert_eq!(test.kernel.counters().shootdowns, 0, "no TLB holds what was not there before");
    }
}

#[test]
fn what_changes_all_of_a_block_keeps_it_and_what_changes_a_part_ends_it() {
    let changes: [(&str, Change, &[u64]); 8] = [
        ("nothing", |_| (), &[0, 16, 32, 48]),
        ("a page unmapped", |test| test.kernel.munmap(test.process, range(20, 1), &mut Bare).unwrap(), &[0, 32, 48]),
        (
            "a block read-only",
            |test| test.kernel.mprotect(test.process, range(16, 16), false, &mut Bare).unwrap(),
            &[0, 16, 32, 48],
        ),
        (
            "half a block read-only",
            |test| test.kernel.mprotect(test.process, range(16, 8), false, &mut Bare).unwrap(),
            &[0, 32, 48],
        ),
        (
            "a block freed lazily",
            |test| test.kernel.madvise(test.process, range(32, 16), Advice::Free, &mut Bare).unwrap(),
            &[0, 16, 32, 48],
        ),
        (
            "a page freed lazily",
            |test| test.kernel.madvise(test.process, range(40, 1), Advice::Free, &mut Bare).unwrap(),
            &[0, 16, 48],
        ),
        (
            "moved by 64 KiB",
            |test| test.kernel.mremap(test.process, range(0, 512), range(512 + 16, 512), &mut Bare).unwrap(),
            &[528, 544, 560, 576],
        ),
        (
            "moved by 4 KiB",
            |test| test.kernel.mremap(test.process, range(0, 512), range(512 + 1, 512), &mut Bare).unwrap(),
            &[],
        ),
    ];
    for (what, change, blocks) in changes {
        let mut test = Test::folios(Folio::K64);
        (0..64).step_by(16).for_each(|page| test.store(test.process, page));
        change(&mut test);
        assert_eq!(test.blocks(), blocks, "{what}");
    }
}

#[test]
fn a_fork_shares_blocks_as_such_and_a_copied_page_ends_one_of_its_own() {
    let mut test = Test::folios(Folio::K64);
    (0..48).step_by(16).for_each(|page| test.store(test.process, page));
    let child = test.kernel.fork(test.process, &mut Bare).unwrap();
    assert_eq!((test.blocks(), test.blocks_of(child)), (vec![0, 16, 32], vec![0, 16, 32]));
    test.store(child, 17);
    assert_eq!((test.blocks(), test.blocks_of(child)), (vec![0, 16, 32], vec![0, 32]));
    // Writable again where it is, page by page: not the same rights as its neighbours.
    test.kernel.exit(child, &mut Bare).unwrap();
    test.store(test.process, 0);
    assert_eq!(test.blocks(), [16, 32]);
}

#[test]
fn reclaim_takes_a_block_as_one_that_was_used_or_was_not() {
    let config = KernelConfig { swap: PageCount(16_384), ..Test::folios(Folio::K64).kernel.config().clone() };
    let mut kernel = Kernel::new(&config).unwrap();
    let process = kernel.spawn(&mut Bare).unwrap();
    let mut test = Test { kernel, process };
    test.map(0, 32);
    (0..32).step_by(16).for_each(|page| test.store(process, page));
    // First round: all are used, and bits are cleared. A page of the second block is used then.
    test.kernel.reclaim(PageCount(1), Cpu(0), &mut Bare).unwrap();
    let present = |test: &Test| -> Vec<u64> {
        let table = test.kernel.table(process).unwrap();
        (0..32).filter(|&page| table.translate(Vpn(FIRST + page)).is_some()).collect()
    };
    assert_eq!(present(&test), (1..32).collect::<Vec<_>>(), "one has gone, of the first block");
    assert_eq!(test.blocks(), [16]);
    test.store(process, 16 + 7);
    test.kernel.reclaim(PageCount(15), Cpu(0), &mut Bare).unwrap();
    assert_eq!(present(&test), (16..32).collect::<Vec<_>>(), "the others of it; all of the second were used");
    assert_eq!(test.blocks(), [16]);
}

#[test]
fn two_mebibytes_that_are_split_are_blocks_but_for_the_one_that_is_not_whole() {
    for contiguous in [true, false] {
        let mut test = Test::new(ManagerConfig::Thp(ThpConfig::default()), contiguous);
        test.store(test.process, 0);
        assert_eq!(test.kernel.table(test.process).unwrap().leaf(Vpn(FIRST)).unwrap().size(), PageSize::Huge);
        assert!(test.blocks().is_empty());
        test.kernel.munmap(test.process, range(100, 1), &mut Bare).unwrap();
        let whole: Vec<u64> = (0..512).step_by(16).filter(|&page| page != 96).collect();
        assert_eq!(test.blocks(), if contiguous { whole } else { vec![] });
    }
}

#[test]
fn quicksilvers_groups_are_blocks_once_their_pages_are_there() {
    let config = QuicksilverConfig { threshold: 512, small_threshold: 4, ..QuicksilverConfig::default() };
    let mut test = Test::new(ManagerConfig::Quicksilver(config), true);
    (0..3).for_each(|page| test.store(test.process, 64 + page * 5));
    assert!(test.blocks().is_empty());
    test.store(test.process, 64 + 15);
    assert_eq!(test.blocks(), [64]);
    assert_eq!(test.kernel.counters().shootdown_pages, 16, "its first pages may be in a TLB one by one");
    let off = QuicksilverConfig { small_threshold: 0, ..config };
    let mut test = Test::new(ManagerConfig::Quicksilver(off), true);
    (0..16).for_each(|page| test.store(test.process, page));
    assert!(test.blocks().is_empty(), "there is no lower level");
}
