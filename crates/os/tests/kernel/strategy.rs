// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random programs.

use nestwalk_mem::{Cpu, Nanoseconds, PageCount, Va, Vpn, VpnRange};
use nestwalk_os::op::{FILE_PAGES, Nth, Op};
use nestwalk_os::{Advice, FileName, HugeAdvice, VmaFlags, VmaKind};
use proptest::prelude::*;

/// Programs use pages from here on.
const FIRST: u64 = 512;
/// This many: a few huge pages' worth.
const COUNT: u64 = 2560;

fn nth() -> impl Strategy<Value = Nth> {
    (0u16..4).prop_map(Nth)
}

fn page() -> impl Strategy<Value = Vpn> {
    // Half of the accesses fall on few pages, so that they meet each other.
    prop_oneof![0..COUNT, 0u64..24, 500u64..530].prop_map(|page| Vpn(FIRST + page))
}

/// Small ranges, ranges of whole huge pages, and ranges in between.
fn range() -> impl Strategy<Value = VpnRange> {
    let small = (page(), 1u64..24).prop_map(|(start, count)| (start, count));
    let whole = (0u64..5, 1u64..3).prop_map(|(block, count)| (Vpn(FIRST + block * 512), count * 512));
    let odd = (page(), 1u64..1400);
    prop_oneof![small, whole, odd].prop_map(|(start, count)| {
        let count = count.min(FIRST + COUNT - start.0).max(1);
        VpnRange::new(start, PageCount(count))
    })
}

fn flags() -> impl Strategy<Value = VmaFlags> {
    let advice = prop_oneof![Just(HugeAdvice::None), Just(HugeAdvice::Huge), Just(HugeAdvice::NoHuge)];
    (prop::bool::weighted(0.9), prop::bool::weighted(0.9), advice).prop_map(|(anonymous, writable, advice)| VmaFlags {
        kind: if anonymous { VmaKind::Anonymous } else { VmaKind::File },
        writable,
        advice,
    })
}

fn file() -> impl Strategy<Value = FileName> {
    (0u64..3).prop_map(FileName)
}

fn advice() -> impl Strategy<Value = Advice> {
    use Advice::{Collapse, DontNeed, Free, HugePage, NoHugePage, PopulateWrite};
    prop::sample::select(vec![DontNeed, Free, HugePage, NoHugePage, Collapse, PopulateWrite])
}

/// One operation.
pub fn op() -> impl Strategy<Value = Op> {
    let touch = (nth(), page(), any::<bool>(), 0u16..2);
    prop_oneof![
        2 => Just(Op::Spawn),
        6 => (nth(), range(), flags()).prop_map(|(n, r, f)| Op::Mmap(n, r, f)),
        5 => (nth(), range(), file(), 0..FILE_PAGES.0, any::<bool>(), any::<bool>())
            .prop_map(|(n, r, f, first, shared, w)| Op::MmapFile(n, r, f, first, shared, w)),
        1 => (nth(), file(), 0..FILE_PAGES.0, 1u64..80).prop_map(|(n, f, first, count)| Op::ReadFile(n, f, first, count)),
        1 => (nth(), file(), 0..FILE_PAGES.0, 1u64..80)
            .prop_map(|(n, f, first, count)| Op::WriteFile(n, f, first, count)),
        24 => touch.prop_map(|(n, p, store, cpu)| Op::Touch(n, p, store, Cpu(cpu))),
        4 => (nth(), range()).prop_map(|(n, r)| Op::Unmap(n, r)),
        1 => (nth(), 0u64..80).prop_map(|(n, p)| Op::Brk(n, Va((FIRST + COUNT + p) << 12))),
        3 => (nth(), range(), page(), 1u64..600).prop_map(|(n, from, to, len)| {
            let end = Vpn((to.0 + len).min(FIRST + COUNT));
            Op::Mremap(n, from, VpnRange { start: to, end })
        }),
        2 => (nth(), range(), any::<bool>()).prop_map(|(n, r, w)| Op::Mprotect(n, r, w)),
        8 => (nth(), range(), advice()).prop_map(|(n, r, a)| Op::Madvise(n, r, a)),
        3 => nth().prop_map(Op::Fork),
        1 => nth().prop_map(Op::Exit),
        2 => (1u64..400).prop_map(|pages| Op::Pressure(PageCount(pages))),
        2 => (0u64..40_000_000_000).prop_map(|ns| Op::Tick(Nanoseconds(ns))),
    ]
}

/// A program: it begins with a process that has a mapping.
pub fn program() -> impl Strategy<Value = Vec<Op>> {
    let all = VpnRange::new(Vpn(FIRST), PageCount(COUNT));
    let start = [Op::Spawn, Op::Mmap(Nth(0), all, VmaFlags::ANONYMOUS)];
    prop::collection::vec(op(), 1..90).prop_map(move |ops| start.iter().copied().chain(ops).collect())
}
