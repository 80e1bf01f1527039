// SPDX-License-Identifier: MIT OR Apache-2.0
//! Page faults, accessed and dirty bits, and flushes.

mod common;

use common::{Rig, TestTable, WRITABLE, load_native, machine, machine_with_nested_tlb};
use nestwalk_mem::{Access, Entry, Geometry, Gpa, Gva, PageCount, PageSize, Vpn, VpnRange};
use nestwalk_mmu::{Asid, Counters, Fault, Nested, RunEnd};

const PAGE: u64 = 0x1234;
const AT: Gva = Gva(PAGE << 12 | 0x88);

fn guest() -> TestTable {
    let mut guest = TestTable::new(Geometry::X86_4, 0, 1);
    guest.map(PAGE, 64, PageSize::Small, WRITABLE);
    guest
}

fn host() -> TestTable {
    TestTable::new(Geometry::X86_4, 0x4_0000, 1)
}

/// All that is counted but what aborted walks are counted in.
fn without_aborted(counters: &Counters) -> Counters {
    Counters { aborted_walks: 0, aborted_references: 0, ..counters.clone() }
}

#[test]
fn a_fault_stops_before_its_access_is_counted() {
    let mut table = guest();
    let mut rig = Rig::new(&machine());
    let missing = Gva((PAGE + 1) << 12);
    let accesses = [Access::load(AT), Access::load(AT), Access::store(missing), Access::load(AT)];
    let fault = Fault::Guest { gva: missing, store: true };
    assert_eq!(rig.native(&mut table.table, &accesses), RunEnd::Fault { index: 2, fault });
    let counters = rig.core.counters();
    assert_eq!((counters.tlb.accesses, counters.tlb.stores, counters.tlb.walks()), (2, 0, 1));
    assert_eq!(
        (counters.aborted_walks, counters.aborted_references),
        (1, 1),
        "the PMD entry was in the page-walk cache"
    );
    assert_eq!(counters.walk_events.total_references(), 4);
    table.map(PAGE + 1, 65, PageSize::Small, WRITABLE);
    assert_eq!(rig.native(&mut table.table, &accesses[2..]), RunEnd::Done);
    let counters = rig.core.counters();
    assert_eq!((counters.tlb.accesses, counters.tlb.stores, counters.tlb.walks()), (4, 1, 2));
    rig.core.check_invariants();
}

#[test]
fn a_fault_deep_in_a_long_run_has_the_right_index() {
    let mut table = guest();
    let mut rig = Rig::new(&machine());
    let mut accesses = vec![Access::load(AT); 1000];
    accesses[777] = Access::load(Gva(0));
    let fault = Fault::Guest { gva: Gva(0), store: false };
    assert_eq!(rig.native(&mut table.table, &accesses), RunEnd::Fault { index: 777, fault });
    assert_eq!(rig.core.counters().tlb.accesses, 777);
    assert_eq!(
        rig.core.run_functional(&mut nestwalk_mmu::Native { table: &mut table.table }, &accesses),
        RunEnd::Fault { index: 777, fault }
    );
    assert_eq!(rig.core.counters().functional.accesses, 777);
}

#[test]
fn the_host_faults_for_nodes_and_data_one_after_the_other() {
    for config in [machine(), machine_with_nested_tlb()] {
        let (mut guest, mut host) = (guest(), host());
        let mut rig = Rig::new(&config);
        let clean = rig.core.counters();
        let mut faults = Vec::new();
        while let RunEnd::Fault { index: 0, fault } = rig.nested(&mut guest.table, &mut host.table, &[Access::load(AT)])
        {
            let Fault::Host { gpa, store } = fault else { panic!("{fault:?}") };
            assert_eq!(without_aborted(&rig.core.counters()), clean);
            faults.push((gpa.page().0, store));
            host.map(gpa.page().0, 0x1000 + gpa.page().0, PageSize::Small, WRITABLE);
        }
        // References to the guest's nodes count as writes, the program's load does not.
        assert_eq!(faults, [(0, true), (1, true), (2, true), (3, true), (64, false)]);
        assert_eq!(rig.core.counters().aborted_walks, 5);
        assert_eq!(rig.core.counters().tlb.accesses, 1);
    }
}

#[test]
fn a_store_to_a_read_only_page_faults_in_the_kernel_that_protects_it() {
    let (mut guest, mut host) = (guest(), host());
    (0..4).for_each(|gfn| host.map(gfn, 0x1000 + gfn, PageSize::Small, WRITABLE));
    host.map(64, 0x2000, PageSize::Small, 0);
    let mut rig = Rig::new(&machine());
    assert_eq!(rig.nested(&mut guest.table, &mut host.table, &[Access::load(AT)]), RunEnd::Done);
    let store = [Access::store(AT)];
    let fault = Fault::Host { gpa: Gpa(64 << 12 | 0x88), store: true };
    assert_eq!(rig.nested(&mut guest.table, &mut host.table, &store), RunEnd::Fault { index: 0, fault });
    // The host breaks its copy-on-write: the store finds the new frame without a flush.
    host.table.update(Vpn(64), |_| Entry::leaf(nestwalk_mem::Frame(0x3000), WRITABLE));
    assert_eq!(rig.nested(&mut guest.table, &mut host.table, &store), RunEnd::Done);
    assert_eq!(rig.core.tlbs().peek(AT).unwrap().frame().0, 0x3000);
    guest.table.update(Vpn(PAGE), |entry| entry.without(WRITABLE));
    rig.core.invalidate(VpnRange::new(Vpn(PAGE), PageCount(1)));
    let fault = Fault::Guest { gva: AT, store: true };
    assert_eq!(rig.nested(&mut guest.table, &mut host.table, &store), RunEnd::Fault { index: 0, fault });
    rig.core.check_invariants();
}

#[test]
fn accessed_and_dirty_bits_are_set_in_guest_and_host() {
    for functional in [false, true] {
        let (mut guest, mut host) = (guest(), host());
        (0..4).chain([64]).for_each(|gfn| host.map(gfn, 0x1000 + gfn, PageSize::Small, WRITABLE));
        let mut rig = Rig::new(&machine());
        let mut run = |guest: &mut TestTable, host: &mut TestTable, access: Access| {
            let mut walker = Nested { guest: &mut guest.table, host: &mut host.table, base: Vpn(0) };
            let end = if functional {
                rig.core.run_functional(&mut walker, &[access])
            } else {
                rig.core.run(&mut rig.llc, &mut walker, &[access], None)
            };
            assert_eq!(end, RunEnd::Done);
            let flags = |table: &TestTable, page| {
                let entry = table.table.leaf(Vpn(page)).unwrap().entry;
                (entry.has(Entry::ACCESSED), entry.has(Entry::DIRTY))
            };
            (flags(guest, PAGE), flags(host, 64))
        };
        let loaded = run(&mut guest, &mut host, Access::load(AT));
        assert_eq!(loaded, ((true, false), (true, false)), "functional: {functional}");
        // The translation is in the TLB by now; the first store has to set the dirty bits all the
        // same.
        let stored = run(&mut guest, &mut host, Access::store(AT));
        assert_eq!(stored, ((true, true), (true, true)), "functional: {functional}");
    }
}

#[test]
fn invalidating_a_page_takes_out_it_alone() {
    let mut table = guest();
    table.map(PAGE + 1, 65, PageSize::Small, WRITABLE);
    table.map(512 * 16, 512, PageSize::Huge, WRITABLE);
    for pages in [1, 100] {
        let mut rig = Rig::new(&machine());
        let load = |rig: &mut Rig, table: &mut TestTable, page: u64| {
            load_native(rig, &mut table.table, page << 12).tlb.walks()
        };
        assert_eq!([PAGE, PAGE + 1, 512 * 16].map(|page| load(&mut rig, &mut table, page)), [1; 3]);
        assert_eq!([PAGE, PAGE + 1, 512 * 16].map(|page| load(&mut rig, &mut table, page)), [0; 3]);
        rig.core.invalidate(VpnRange::new(Vpn(PAGE - pages + 1), PageCount(pages)));
        assert_eq!([PAGE, PAGE + 1, 512 * 16].map(|page| load(&mut rig, &mut table, page)), [1, 0, 0]);
        // One page of a large one takes out all of it.
        rig.core.invalidate(VpnRange::new(Vpn(512 * 16 + 77), PageCount(pages)));
        assert_eq!([PAGE, PAGE + 1, 512 * 16].map(|page| load(&mut rig, &mut table, page)), [0, 0, 1]);
        rig.core.flush_all();
        assert_eq!([PAGE, PAGE + 1, 512 * 16].map(|page| load(&mut rig, &mut table, page)), [1; 3]);
        rig.core.check_invariants();
    }
}

#[test]
fn processes_do_not_see_each_others_translations() {
    let (mut one, mut other) = (guest(), TestTable::new(Geometry::X86_4, 0x100, 1));
    other.map(PAGE, 99, PageSize::Small, WRITABLE);
    let mut rig = Rig::new(&machine());
    let frame = |rig: &mut Rig, asid: u16, table: &mut TestTable| {
        rig.core.switch_to(Asid(asid), Asid(0));
        let walks = load_native(rig, &mut table.table, AT.0).tlb.walks();
        (rig.core.tlbs().peek(AT).unwrap().frame().0, walks)
    };
    assert_eq!(frame(&mut rig, 1, &mut one), (64, 1));
    assert_eq!(frame(&mut rig, 2, &mut other), (99, 1));
    assert_eq!(frame(&mut rig, 1, &mut one), (64, 0));
    rig.core.flush_guest();
    assert_eq!(frame(&mut rig, 2, &mut other), (99, 0), "the flush was for process 1");
    assert_eq!(frame(&mut rig, 1, &mut one), (64, 1));
    rig.core.check_invariants();
}

#[test]
fn a_flush_of_the_nested_translations_forgets_the_host() {
    let (mut guest, mut host) = (guest(), host());
    (0..4).chain([64]).for_each(|gfn| host.map(gfn, 0x1000 + gfn, PageSize::Small, WRITABLE));
    let mut rig = Rig::new(&machine_with_nested_tlb());
    assert_eq!(rig.nested(&mut guest.table, &mut host.table, &[Access::load(AT)]), RunEnd::Done);
    // The host moves the guest's PTE node and its page elsewhere.
    host.table.update(Vpn(3), |_| Entry::leaf(nestwalk_mem::Frame(0x5003), WRITABLE));
    host.table.update(Vpn(64), |_| Entry::leaf(nestwalk_mem::Frame(0x5064), WRITABLE));
    rig.core.flush_nested();
    let before = rig.core.counters();
    assert_eq!(rig.nested(&mut guest.table, &mut host.table, &[Access::load(AT)]), RunEnd::Done);
    let counters = rig.core.counters().minus(&before);
    assert_eq!(rig.core.tlbs().peek(AT).unwrap().frame().0, 0x5064);
    assert_eq!((counters.tlb.walks(), counters.nested_tlb.hits), (1, 0));
}
