// SPDX-License-Identifier: MIT OR Apache-2.0
//! A guest and its host, with a shadow table between them.

use nestwalk_mem::{Cpu, Entry, Frame, FrameRange, Geometry, PageCount, Vpn, VpnRange};
use proptest::prelude::*;

use super::memory::ShadowedMemory;
use super::{Filled, Miss, Shadows};
use crate::manager::ManagerConfig;
use crate::{Bare, Below, HostMemory, Kernel, KernelConfig, OsCounters, ProcessId, VmaFlags};

struct Pair {
    host: Kernel,
    guest: Kernel,
    vm: ProcessId,
    base: Vpn,
    program: ProcessId,
    shadows: Shadows,
}

const PAGES: VpnRange = VpnRange { start: Vpn(0x1000), end: Vpn(0x1400) };

impl Pair {
    fn new() -> Self {
        Self::with_host(ManagerConfig::Linux4k)
    }

    fn with_host(manager: ManagerConfig) -> Self {
        let config = KernelConfig { manager, swap: PageCount(1 << 16), ..KernelConfig::new(PageCount(1 << 16)) };
        let mut host = Kernel::new(&config).unwrap();
        let (vm, base) = host.host_vm(PageCount(1 << 15), &mut Bare).unwrap();
        let mut guest = Kernel::new(&KernelConfig::new(PageCount(1 << 15))).unwrap();
        let mut shadows = Shadows::new((vm, base), Geometry::X86_4, false);
        let memory = &mut HostMemory { host: &mut host, process: vm, base, cpu: Cpu(0), below: &mut Bare };
        let memory = &mut ShadowedMemory { memory, shadows: &mut shadows };
        let program = guest.spawn(memory).unwrap();
        guest.mmap(program, PAGES, VmaFlags::ANONYMOUS, memory).unwrap();
        Self { host, guest, vm, base, program, shadows }
    }

    fn with_guest<R>(&mut self, act: impl FnOnce(&mut Kernel, ProcessId, &mut dyn Below) -> R) -> R {
        let Self { host, guest, vm, base, program, shadows } = self;
        let memory = &mut HostMemory { host, process: *vm, base: *base, cpu: Cpu(0), below: &mut Bare };
        let done = act(guest, *program, &mut ShadowedMemory { memory, shadows });
        self.drain();
        done
    }

    fn with_host_do<R>(&mut self, act: impl FnOnce(&mut Kernel, ProcessId) -> R) -> R {
        let done = act(&mut self.host, self.vm);
        self.drain();
        done
    }

    /// As the machine does it.
    fn drain(&mut self) {
        let changed: Vec<_> = self.host.take_invalidations().collect();
        for invalidation in changed {
            self.host.host_changed(&mut self.shadows, &mut self.guest, invalidation.scope);
        }
        let flushed: Vec<_> = self.guest.take_invalidations().collect();
        for invalidation in flushed {
            self.host.guest_flushed(&mut self.shadows, &mut self.guest, &invalidation);
        }
    }

    fn fill(&mut self, page: Vpn, store: bool) -> Filled {
        let Self { host, guest, program, shadows, .. } = self;
        let upper = guest.table_mut(*program).unwrap();
        host.fill_shadow(shadows, (*program, upper), Miss { page, store, cpu: Cpu(0) }).unwrap()
    }

    fn entry(&mut self, page: Vpn) -> Option<Entry> {
        let upper = self.guest.table_mut(self.program).unwrap();
        self.host.synchronise_shadow(&mut self.shadows, (self.program, upper));
        self.shadows.table(self.program).leaf(page).map(|leaf| leaf.entry)
    }

    fn check(&self) {
        let Ok(upper) = self.guest.table(self.program) else { return };
        self.shadows.check_invariants(self.program, upper, self.host.table(self.vm).unwrap());
        self.host.check_invariants();
    }

    /// As the hardware and both kernels would. Only what misses the shadow is an exit.
    fn access(&mut self, page: Vpn, store: bool) {
        for _ in 0..4 {
            if self.entry(page).is_some_and(|entry| !store || entry.has(Entry::WRITABLE)) {
                return;
            }
            match self.fill(page, store) {
                Filled::Done => return self.check(),
                Filled::Upper => {
                    self.with_guest(|guest, program, memory| {
                        guest.fault(program, page, store, Cpu(0), memory).unwrap()
                    });
                }
                Filled::Lower(page) => {
                    self.with_host_do(|host, vm| host.fault(vm, page, store, Cpu(0), &mut Bare).unwrap());
                }
            }
        }
        panic!("{page:?} never gets filled");
    }

    /// What the host counts for `act`.
    fn counted(&mut self, act: impl FnOnce(&mut Self)) -> OsCounters {
        let before = *self.host.counters();
        act(self);
        let upper = self.guest.table_mut(self.program);
        if let Ok(upper) = upper {
            self.host.synchronise_shadow(&mut self.shadows, (self.program, upper));
        }
        self.host.counters().since(&before)
    }

    fn gfn(&self, page: Vpn) -> Frame {
        self.guest.table(self.program).unwrap().translate(page).unwrap()
    }
}

#[test]
fn a_first_touch_is_a_fault_of_the_guest_and_fills() {
    let mut pair = Pair::new();
    assert_eq!(pair.fill(PAGES.start, false), Filled::Upper);
    pair.access(PAGES.start, false);
    // The first page of a table: three nodes of the guest's, and the page, are used by its kernel.
    let first = pair.counted(|pair| pair.access(PAGES.start + 1, false));
    assert_eq!((first.shadow_reflected, first.shadow_fills), (1, 2), "the guest's kernel zeroes, the program reads");
    assert_eq!(first.faults_4k, 1, "one host fault, within the first fill");
    assert_eq!(first.shadow_unsyncs, 1, "the PTE node was write-protected");
    let second = pair.counted(|pair| pair.access(PAGES.start + 2, false));
    assert_eq!((second.shadow_fills, second.shadow_unsyncs, second.shadow_writes), (2, 0, 0), "written freely");
}

#[test]
fn a_page_is_read_only_in_the_shadow_until_the_guest_has_it_dirty() {
    let mut pair = Pair::new();
    pair.access(PAGES.start, false);
    let writable = |pair: &mut Pair| pair.entry(PAGES.start).unwrap().has(Entry::WRITABLE);
    let dirty =
        |pair: &Pair| pair.guest.table(pair.program).unwrap().leaf(PAGES.start).unwrap().entry.has(Entry::DIRTY);
    assert!(!writable(&mut pair) && !dirty(&pair));
    pair.access(PAGES.start, true);
    assert!(writable(&mut pair) && dirty(&pair));
}

#[test]
fn what_the_guest_unmaps_page_by_page_leaves_the_shadow_with_an_exit_each() {
    let mut pair = Pair::new();
    (0..64).for_each(|page| pair.access(PAGES.start + page, true));
    let gone = VpnRange::new(PAGES.start, PageCount(32));
    let counted = pair.counted(|pair| {
        pair.with_guest(|guest, program, memory| guest.munmap(program, gone, memory).unwrap());
    });
    assert!(pair.entry(PAGES.start).is_none() && pair.entry(PAGES.start + 32).is_some());
    assert_eq!((counted.shadow_invlpgs, counted.shadow_flushes, counted.shadow_zaps), (32, 0, 32));
    assert_eq!((counted.shadow_unsyncs, counted.shadow_writes), (0, 0), "the node was unsynchronised already");
    pair.check();
}

#[test]
fn a_longer_stretch_is_flushed_whole_and_synchronises_nodes() {
    let mut pair = Pair::new();
    (0..600).for_each(|page| pair.access(PAGES.start + page, true));
    let gone = VpnRange::new(PAGES.start, PageCount(34));
    let unmap = |pair: &mut Pair, gone: VpnRange| {
        pair.counted(|pair| {
            pair.with_guest(|guest, program, memory| guest.munmap(program, gone, memory).unwrap());
        })
    };
    let counted = unmap(&mut pair, gone);
    assert_eq!((counted.shadow_invlpgs, counted.shadow_flushes, counted.shadow_zaps), (0, 1, 34));
    assert_eq!(counted.shadow_syncs, 2, "both PTE nodes had been written to");
    pair.check();
    // They are write-protected again: the next write to one is an exit, and only that node is
    // looked at.
    let again = unmap(&mut pair, VpnRange::new(PAGES.start + 34, PageCount(34)));
    assert_eq!((again.shadow_unsyncs, again.shadow_syncs, again.shadow_zaps), (1, 1, 34));
    pair.check();
}

#[test]
fn a_fork_makes_what_was_writable_read_only_at_the_flush() {
    let mut pair = Pair::new();
    (0..16).for_each(|page| pair.access(PAGES.start + page, true));
    pair.with_guest(|guest, program, memory| guest.fork(program, memory).unwrap());
    assert!((0..16).all(|page| !pair.entry(PAGES.start + page).unwrap().has(Entry::WRITABLE)));
    pair.check();
    // A store copies the page, for which the guest takes the old one out of its TLB; the new one is
    // filled with that.
    let old = pair.entry(PAGES.start).unwrap().frame();
    let counted = pair.counted(|pair| pair.access(PAGES.start, true));
    assert_ne!(pair.entry(PAGES.start).unwrap().frame(), old);
    assert_eq!((counted.shadow_reflected, counted.shadow_unsyncs, counted.shadow_invlpgs), (1, 1, 1));
    assert_eq!(counted.shadow_prefetches, 1, "no exit of its own");
    pair.check();
}

#[test]
fn a_process_that_exits_has_no_shadow_any_more() {
    let mut pair = Pair::new();
    (0..600).for_each(|page| pair.access(PAGES.start + page, true));
    let counted = pair.counted(|pair| {
        pair.with_guest(|guest, program, memory| guest.exit(program, memory).unwrap());
    });
    assert_eq!((counted.shadow_zaps, counted.shadow_unsyncs), (600, 0));
    assert!(counted.shadow_writes >= 3, "higher nodes were emptied: {counted:?}");
    assert!(pair.shadows.tables.is_empty());
    pair.host.check_invariants();
}

#[test]
fn a_change_below_takes_out_what_maps_the_page_and_nothing_else() {
    let mut pair = Pair::new();
    (0..8).for_each(|page| pair.access(PAGES.start + page, true));
    let lower = pair.base + pair.gfn(PAGES.start + 3).0;
    let gone = VpnRange::new(lower, PageCount(1));
    let counted = pair.counted(|pair| {
        pair.with_host_do(|host, vm| host.madvise(vm, gone, crate::Advice::DontNeed, &mut Bare)).unwrap()
    });
    assert_eq!(counted.shadow_zaps, 2, "the program's entry and that of the guest's kernel");
    assert_eq!((0..8).filter(|&page| pair.entry(PAGES.start + page).is_none()).count(), 1);
    let counted = pair.counted(|pair| pair.access(PAGES.start + 3, false));
    assert_eq!((counted.shadow_fills, counted.faults_4k), (1, 1));
    pair.check();
}

#[test]
fn after_a_change_below_neighbours_come_back_together() {
    let mut pair = Pair::new();
    (0..8).for_each(|page| pair.access(PAGES.start + page, true));
    let all = VpnRange::new(pair.base, PageCount(1 << 15));
    // Everything is read-only now, which changes what lies behind every frame.
    pair.with_host_do(|host, vm| host.fork(vm, &mut Bare).unwrap());
    assert!((0..8).all(|page| pair.entry(PAGES.start + page).is_none()), "{all:?}");
    let counted = pair.counted(|pair| (0..8).for_each(|page| pair.access(PAGES.start + page, false)));
    assert_eq!((counted.shadow_fills, counted.shadow_prefetches), (1, 7));
}

#[test]
fn what_the_guest_s_kernel_uses_is_filled_once_and_in_large_pieces_where_no_node_lies() {
    let mut pair = Pair::with_host(ManagerConfig::Thp(Default::default()));
    let frames = FrameRange::new(Frame(0x2000), PageCount(1024));
    let touch =
        |pair: &mut Pair| pair.counted(|pair| pair.with_guest(|_, _, memory| memory.touch(frames, true).unwrap()));
    let first = touch(&mut pair);
    assert_eq!((first.shadow_fills, first.faults_2m), (2, 2));
    assert_eq!(touch(&mut pair).shadow_fills, 0);
    // A node in one of the two: it cannot be mapped in one piece any more.
    let zapped = pair.shadows.direct.as_mut().unwrap().protect(Frame(0x2000 + 5));
    assert_eq!(zapped, 1);
    let again = touch(&mut pair);
    assert_eq!((again.shadow_fills, again.shadow_prefetches), (64, 448), "eight at a time, the node's neighbours too");
    // Where the host takes a page away, the next use of it is an exit again.
    let page = VpnRange::new(pair.base + 0x2200, PageCount(512));
    pair.with_host_do(|host, vm| host.madvise(vm, page, crate::Advice::DontNeed, &mut Bare).unwrap());
    assert_eq!(touch(&mut pair).shadow_fills, 1);
}

#[test]
fn a_hypervisor_s_guest_has_no_direct_map_and_flushes_whole() {
    let mut pair = Pair::new();
    pair.shadows = Shadows::new((pair.vm, pair.base), Geometry::X86_4, true);
    let counted = pair.counted(|pair| (0..8).for_each(|page| pair.access(PAGES.start + page, true)));
    assert_eq!(counted.shadow_fills, 8);
    let gone = VpnRange::new(PAGES.start, PageCount(4));
    let counted = pair.counted(|pair| {
        pair.with_guest(|guest, program, memory| guest.munmap(program, gone, memory).unwrap());
    });
    assert_eq!((counted.shadow_invlpgs, counted.shadow_flushes, counted.shadow_zaps), (0, 1, 4));
}

#[derive(Clone, Debug)]
enum Do {
    Access(u64, bool),
    Unmap(u64, u64),
    Protect(u64, u64),
    ForkAndExit,
    HostDrop(u64, u64),
    HostReclaim,
}

fn doing() -> impl Strategy<Value = Do> {
    let pages = PAGES.len();
    prop_oneof![
        8 => (0..pages, any::<bool>()).prop_map(|(page, store)| Do::Access(page, store)),
        2 => (0..pages, 1..80_u64).prop_map(|(page, count)| Do::Unmap(page, count)),
        1 => (0..pages, 1..80_u64).prop_map(|(page, count)| Do::Protect(page, count)),
        1 => Just(Do::ForkAndExit),
        2 => (0..1_u64 << 15, 1..2000_u64).prop_map(|(frame, count)| Do::HostDrop(frame, count)),
        1 => Just(Do::HostReclaim),
    ]
}

impl Pair {
    fn act(&mut self, what: &Do) {
        let part = |page: u64, count: u64| {
            let start = PAGES.start + page;
            VpnRange { start, end: (start + count).min(PAGES.end) }
        };
        match *what {
            // Few pages, so that they are met again.
            Do::Access(page, store) => self.access(PAGES.start + page / 16 * 17 % PAGES.len(), store),
            Do::Unmap(page, count) => self.with_guest(|guest, program, memory| {
                let range = part(page, count);
                guest.munmap(program, range, memory).unwrap();
                guest.mmap(program, range, VmaFlags::ANONYMOUS, memory).unwrap();
            }),
            Do::Protect(page, count) => self.with_guest(|guest, program, memory| {
                guest.mprotect(program, part(page, count), false, memory).unwrap();
                guest.mprotect(program, part(page, count), true, memory).unwrap();
            }),
            Do::ForkAndExit => {
                let child = self.with_guest(|guest, program, memory| guest.fork(program, memory).unwrap());
                self.with_guest(|guest, _, memory| guest.exit(child, memory).unwrap());
            }
            Do::HostDrop(frame, count) => {
                let (start, end) = (self.base + frame, self.base + (frame + count).min(1 << 15));
                let range = VpnRange { start, end };
                self.with_host_do(|host, vm| host.madvise(vm, range, crate::Advice::DontNeed, &mut Bare).unwrap());
            }
            Do::HostReclaim => {
                self.with_host_do(|host, _| host.reclaim(PageCount(64), Cpu(0), &mut Bare).unwrap());
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    /// Whatever guest and host do: what the hardware finds in the shadow is what the guest's table
    /// over the host's says.
    #[test]
    fn the_shadow_says_what_both_tables_say(doings in proptest::collection::vec(doing(), 1..60)) {
        let mut pair = Pair::new();
        for what in &doings {
            pair.act(what);
            pair.check();
            for page in (0..PAGES.len()).map(|page| PAGES.start + page) {
                let Some(entry) = pair.entry(page) else { continue };
                let gfn = pair.guest.table(pair.program).unwrap().translate(page);
                let below = gfn.and_then(|gfn| pair.host.table(pair.vm).unwrap().translate(pair.base + gfn.0));
                prop_assert_eq!(Some(entry.frame()), below, "{:?} after {:?}", page, what);
            }
        }
    }
}
