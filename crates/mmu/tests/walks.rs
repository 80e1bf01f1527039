// SPDX-License-Identifier: MIT OR Apache-2.0
//! Walks worked out by hand: how many references, at which levels, and how many cycles to the last
//! one. L1-D 4, L2 12, LLC 40, memory 191 cycles; 2 for a look-up in page-walk caches.

mod common;

use common::{
    Rig, TestTable, WRITABLE, load_native, load_nested, machine, machine_with_nested_tlb, machine_without_pwc,
};
use nestwalk_mem::{
    Access, Entry, Frame, Geometry, Gpa, Gva, Level, PageCount, PageSize, PageTable, Pfn, Vpn, VpnRange,
};
use nestwalk_mmu::{
    Fault, MmuConfig, Nested, PwcRules, RunEnd, Segmented, Segments, Served, Table, TlbConfig, TlbReplacement, Walker,
    WaysConfig,
};

const MEMORY: u64 = 191;
const L1D: u64 = 4;
const PWC: u64 = 2;

/// Where guest tables and hosts' tables put their nodes: far from each other and from the data.
const GUEST_NODES: u64 = 0x10;
const HOST_NODES: u64 = 0x4_0000;
/// Aligned for a 1 GiB page.
const DATA: u64 = 1 << 18;

fn cold_native(geometry: Geometry, size: PageSize) -> (u64, u64) {
    let mut table = TestTable::new(geometry, HOST_NODES, 1);
    table.map(DATA, DATA, size, WRITABLE);
    let mut rig = Rig::new(&machine());
    let counters = load_native(&mut rig, &mut table.table, DATA << 12);
    assert_eq!(rig.core.tlbs().peek(nestwalk_mem::Gva(DATA << 12)).unwrap().size(), size);
    (counters.walk_events.total_references(), counters.walk_cycles)
}

#[test]
fn native_cold_walk_of_four_levels_is_4_references() {
    assert_eq!(cold_native(Geometry::X86_4, PageSize::Small), (4, PWC + 4 * MEMORY));
}

#[test]
fn native_cold_walk_of_five_levels_is_5_references() {
    assert_eq!(cold_native(Geometry::X86_5, PageSize::Small), (5, PWC + 5 * MEMORY));
}

#[test]
fn native_large_leaves_end_the_walk_early() {
    assert_eq!(cold_native(Geometry::X86_4, PageSize::Huge), (3, PWC + 3 * MEMORY));
    assert_eq!(cold_native(Geometry::X86_4, PageSize::Giant), (2, PWC + 2 * MEMORY));
    assert_eq!(cold_native(Geometry::X86_5, PageSize::Giant), (3, PWC + 3 * MEMORY));
}

/// A cold nested walk without page-walk caches. The guest's nodes and its page lie so far apart,
/// `root_entries` entries of the host's root, that the host has nodes of its own for each. Returns
/// references and cycles.
fn cold_nested_far_apart(geometry: Geometry, root_entries: u64) -> (u64, u64) {
    let apart = root_entries << (9 * (u64::from(geometry.levels()) - 1));
    let mut guest = TestTable::new(geometry, 0, apart);
    let page = 0x1234;
    let gfn = u64::from(geometry.levels()) * apart;
    guest.map(page, gfn, PageSize::Small, WRITABLE);
    let mut host = TestTable::new(geometry, HOST_NODES, 1);
    for gfn in guest.nodes().into_iter().chain([gfn]) {
        host.map(gfn, gfn / apart + 8, PageSize::Small, WRITABLE);
    }
    let mut rig = Rig::new(&machine_without_pwc());
    let counters = load_nested(&mut rig, &mut guest.table, &mut host.table, page << 12);
    assert_eq!(counters.walk_events.of_table(Table::Guest).iter().sum::<u64>(), u64::from(geometry.levels()));
    (counters.walk_events.total_references(), counters.walk_cycles)
}

#[test]
fn nested_cold_walk_4x4_is_24_references() {
    // Eight entries are a line: no two references share one.
    assert_eq!(cold_nested_far_apart(Geometry::X86_4, 8), (24, 24 * MEMORY));
}

#[test]
fn nested_cold_walk_5x5_is_35_references() {
    // A physical address has 52 bits, which is 16 entries of the root: those of the six host walks
    // are in one line.
    assert_eq!(cold_nested_far_apart(Geometry::X86_5, 1), (35, 30 * MEMORY + 5 * L1D));
}

#[test]
fn nested_cold_walk_of_a_small_guest_repeats_lines_of_the_host_table() {
    let mut guest = TestTable::new(Geometry::X86_4, 0, 1);
    guest.map(0x1234, 4, PageSize::Small, WRITABLE);
    let mut host = TestTable::new(Geometry::X86_4, HOST_NODES, 1);
    (0..5).for_each(|gfn| host.map(gfn, 0x100 + gfn, PageSize::Small, WRITABLE));
    let mut rig = Rig::new(&machine_without_pwc());
    let counters = load_nested(&mut rig, &mut guest.table, &mut host.table, 0x1234 << 12);
    // The first host walk and the four guest entries come from memory, four more host walks from
    // the L1-D.
    assert_eq!(counters.walk_events.total_references(), 24);
    assert_eq!(counters.walk_cycles, 8 * MEMORY + 16 * L1D);
    assert_eq!(counters.guest_walk_cycles, 4 * MEMORY);
    for (guest_level, served) in [(4, Served::Memory), (3, Served::L1d), (1, Served::L1d), (0, Served::L1d)] {
        assert!((1..=4).all(|host_level| counters.walk_events.step(guest_level, host_level, served) == 1));
    }
}

/// References of a cold nested walk without page-walk caches, and the size of the TLB entry that it
/// ends in, for leaves of `guest` and `host` size and host leaves of `host_nodes` size under the
/// guest's nodes.
fn cold_nested_sizes(guest: PageSize, host: PageSize, host_nodes: PageSize) -> (u64, PageSize) {
    let mut guest_table = TestTable::new(Geometry::X86_4, GUEST_NODES, 1);
    guest_table.map(DATA, DATA, guest, WRITABLE);
    let mut host_table = TestTable::new(Geometry::X86_4, HOST_NODES, 1);
    host_table.map(DATA, 2 * DATA, host, WRITABLE);
    if host_nodes == PageSize::Small {
        (0..4).for_each(|node| host_table.map(GUEST_NODES + node, 0x100 + node, host_nodes, WRITABLE));
    } else {
        host_table.map(0, 3 * DATA, host_nodes, WRITABLE);
    }
    let mut rig = Rig::new(&machine_without_pwc());
    let counters = load_nested(&mut rig, &mut guest_table.table, &mut host_table.table, DATA << 12);
    let entry = rig.core.tlbs().peek(nestwalk_mem::Gva(DATA << 12)).unwrap();
    assert_eq!(entry.frame().0, 2 * DATA);
    (counters.walk_events.total_references(), entry.size())
}

#[test]
fn nested_large_leaves_at_either_level() {
    use PageSize::{Giant, Huge, Small};
    let cases = [
        // guest, host, host under the guest's nodes: references, size of the entry
        ((Small, Small, Small), (24, Small)),
        ((Huge, Small, Small), (3 * 5 + 4, Small)),
        ((Giant, Small, Small), (2 * 5 + 4, Small)),
        ((Small, Huge, Huge), (4 * 4 + 3, Small)),
        ((Small, Giant, Giant), (4 * 3 + 2, Small)),
        ((Huge, Huge, Huge), (3 * 4 + 3, Huge)),
        ((Giant, Huge, Huge), (2 * 4 + 3, Huge)),
        ((Huge, Giant, Giant), (3 * 3 + 2, Huge)),
        ((Giant, Giant, Giant), (2 * 3 + 2, Giant)),
        // HugeGPT: only the guest's tables lie on 2 MiB host pages.
        ((Small, Small, Huge), (20, Small)),
    ];
    for ((guest, host, host_nodes), expected) in cases {
        assert_eq!(cold_nested_sizes(guest, host, host_nodes), expected, "{guest:?} over {host:?}, {host_nodes:?}");
    }
}

#[test]
fn native_pwc_hits_at_each_level_shorten_the_walk() {
    let mut table = TestTable::new(Geometry::X86_5, HOST_NODES, 1);
    // Each page shares one level less with the first one. Entries are lines apart, so new ones come
    // from memory.
    let pages = [0, 8, 8 << 9, 8 << 18, 8 << 27, 8 << 36];
    pages.iter().for_each(|&page| table.map(page, 0x100 + (page % 97), PageSize::Small, WRITABLE));
    let mut config = machine();
    config.guest_pwc.pl5 = config.guest_pwc.pl4;
    let mut rig = Rig::new(&config);
    load_native(&mut rig, &mut table.table, pages[0] << 12);
    for (shared, &page) in pages.iter().enumerate().skip(1).take(4) {
        let counters = load_native(&mut rig, &mut table.table, page << 12);
        let level = Level(shared as u8 + 1);
        assert_eq!(counters.guest_pwc.hits_at(level), 1, "page {page:#x} hits at {level:?}");
        assert_eq!(counters.guest_pwc.misses, 0);
        assert_eq!(counters.walk_events.total_references(), shared as u64);
        assert_eq!(counters.walk_cycles, PWC + shared as u64 * MEMORY);
    }
    let counters = load_native(&mut rig, &mut table.table, pages[5] << 12);
    assert_eq!(counters.guest_pwc.misses, 1, "nothing is shared but the root");
    assert_eq!(counters.walk_events.total_references(), 5);
}

/// A guest and a host whose upper levels a first walk has brought into both page-walk caches.
fn small_vm() -> (TestTable, TestTable) {
    let mut guest = TestTable::new(Geometry::X86_4, 0, 1);
    for page in [0, 8, 8 << 9, 8 << 18] {
        guest.map(page, 64 + page % 63, PageSize::Small, WRITABLE);
    }
    let mut host = TestTable::new(Geometry::X86_4, HOST_NODES, 1);
    (0..128).for_each(|gfn| host.map(gfn, 0x100 + gfn, PageSize::Small, WRITABLE));
    (guest, host)
}

#[test]
fn nested_pwc_hits_in_both_tables() {
    let (mut guest, mut host) = small_vm();
    let mut rig = Rig::new(&machine());
    let first = load_nested(&mut rig, &mut guest.table, &mut host.table, 0);
    // The first host walk is whole, the four others find the host's PTE node: 4 + 4 and the four
    // guest entries.
    assert_eq!(first.walk_events.total_references(), 12);
    assert_eq!(first.host_pwc.hits_at(Level(2)), 4);
    // Next page: guest PMD entry known, so: host walk for the guest's PTE node (1), its entry (1),
    // host walk for data (1).
    let next = load_nested(&mut rig, &mut guest.table, &mut host.table, 8 << 12);
    assert_eq!(next.guest_pwc.hits_at(Level(2)), 1);
    assert_eq!(next.walk_events.total_references(), 3);
    assert_eq!(next.walk_events.step(1, 1, Served::L1d), 1, "the node's host entry was used by the first walk");
    assert_eq!(next.walk_events.step(1, 0, Served::Memory), 1);
    assert_eq!(next.walk_events.step(0, 1, Served::Memory), 1, "gfn 72 stands in another line than gfn 64");
    assert_eq!(next.walk_cycles, 3 * PWC + L1D + 2 * MEMORY);
    assert_eq!(next.guest_walk_cycles, PWC + MEMORY);
    assert_eq!(next.host_walk_cycles, 2 * PWC + L1D + MEMORY);
}

#[test]
fn nested_tlb_hits_replace_host_walks() {
    let (mut guest, mut host) = small_vm();
    let mut rig = Rig::new(&machine_with_nested_tlb());
    let first = load_nested(&mut rig, &mut guest.table, &mut host.table, 0);
    assert_eq!((first.nested_tlb.hits, first.nested_tlb.misses), (0, 5));
    let next = load_nested(&mut rig, &mut guest.table, &mut host.table, 8 << 12);
    // The guest's PTE node is known: no host reference for it, only for the data page.
    assert_eq!((next.nested_tlb.hits, next.nested_tlb.misses), (1, 1));
    assert_eq!(next.walk_events.total_references(), 2);
    assert_eq!(next.walk_cycles, PWC + 1 + MEMORY + 1 + PWC + MEMORY);
}

#[test]
fn a_second_access_to_a_page_does_not_walk() {
    let (mut guest, mut host) = small_vm();
    let mut rig = Rig::new(&machine());
    load_nested(&mut rig, &mut guest.table, &mut host.table, 0);
    let again = load_nested(&mut rig, &mut guest.table, &mut host.table, 64);
    assert_eq!((again.tlb.l1_hits, again.tlb.walks(), again.walk_cycles), ([1, 0, 0], 0, 0));
    assert_eq!(again.caches.data, [0, 0, 0, 1]);
}

/// A guest in two segments: its first 0x200 frames lie at 0x4000 of the host, the others at 0x1000.
fn two_segments() -> Segments {
    Segments::new(&[(Pfn(0x4000), 0x200), (Pfn(0x1000), 0x2000)], 1).unwrap()
}

#[test]
fn a_cold_walk_with_segment_registers_is_4_references() {
    let mut guest = TestTable::new(Geometry::X86_4, 0x1fe, 1);
    guest.map(0x1234, 0x777, PageSize::Small, WRITABLE);
    let mut rig = Rig::new(&machine_without_pwc());
    let mut walker = Segmented { guest: &mut guest.table, segments: &two_segments() };
    let load = [Access::load(Gva(0x1234 << 12))];
    assert_eq!(rig.core.run(&mut rig.llc, &mut walker, &load, None), RunEnd::Done);
    let counters = rig.core.counters();
    assert_eq!(counters.walk_events.total_references(), 4);
    assert_eq!(counters.walk_events.of_table(Table::Host), [0; 4]);
    // A translation for each node and one for the data.
    assert_eq!(counters.segments.translations, 5);
    assert_eq!((counters.walk_cycles, counters.host_walk_cycles), (4 * MEMORY + 5, 0));
    assert_eq!(rig.core.tlbs().peek(Gva(0x1234 << 12)).unwrap().frame(), Pfn(0x1000 + 0x577));
}

#[test]
fn a_guest_table_that_points_beyond_the_memory_is_a_boundary_violation() {
    let mut guest = TestTable::new(Geometry::X86_4, 0, 1);
    guest.map(0x1234, 0x2200, PageSize::Small, WRITABLE);
    let mut rig = Rig::new(&machine());
    let mut walker = Segmented { guest: &mut guest.table, segments: &two_segments() };
    let end = rig.core.run(&mut rig.llc, &mut walker, &[Access::load(Gva(0x0123_4010))], None);
    assert_eq!(end, RunEnd::Fault { index: 0, fault: Fault::Boundary { gpa: Gpa(0x2200 << 12 | 0x10) } });
    let counters = rig.core.counters();
    assert_eq!((counters.aborted_walks, counters.aborted_references, counters.tlb.walks()), (1, 4, 0));
    assert_eq!(counters.segments.translations, 0, "what an aborted walk counted is taken back");
}

#[test]
fn segments_translate_as_a_host_table_of_the_same_frames_does() {
    let segments = two_segments();
    let mut guest = TestTable::new(Geometry::X86_4, 0, 1);
    let mut host = TestTable::new(Geometry::X86_4, HOST_NODES, 1);
    for gfn in 0..0x800 {
        let hpa = segments.translate(Gpa(gfn << 12)).unwrap();
        host.map(gfn, hpa.0 >> 12, PageSize::Small, WRITABLE);
    }
    (0..0x400).for_each(|page| guest.map(0x5000 + page, 0x100 + page * 7 % 0x700, PageSize::Small, WRITABLE));
    for page in 0..0x400 {
        let gva = Gva((0x5000 + page) << 12);
        let nested = Nested { guest: &mut guest.table, host: &mut host.table, base: Vpn(0) }
            .resolve(gva, page % 2 == 0)
            .unwrap();
        let segmented = Segmented { guest: &mut guest.table, segments: &segments }.resolve(gva, page % 2 == 0).unwrap();
        assert_eq!((segmented.frame(), segmented.size()), (nested.frame(), nested.size()), "{gva:?}");
    }
}

/// Walks for one load of each of 64 pages, whose guest frames lie as `gfn_of` says, in a VM whose
/// frames lie as the guest's on pages of size `host_size`.
fn walks_for_64_pages(config: &MmuConfig, host_size: PageSize, gfn_of: impl Fn(u64) -> u64) -> u64 {
    let mut guest = TestTable::new(Geometry::X86_4, 0x10, 1);
    let mut host = TestTable::new(Geometry::X86_4, HOST_NODES, 1);
    let first_of_each = (0..0x1000).step_by(host_size.pages() as usize);
    first_of_each.for_each(|gfn| host.map(gfn, 0x8000 + gfn, host_size, WRITABLE));
    (0..64).for_each(|page| guest.map(0x2000 + page, gfn_of(page), PageSize::Small, WRITABLE));
    let mut rig = Rig::new(config);
    let mut load = |page: u64| {
        load_nested(&mut rig, &mut guest.table, &mut host.table, (0x2000 + page) << 12);
        assert_eq!(
            rig.core.tlbs().peek(Gva((0x2000 + page) << 12)).unwrap().frame(),
            Pfn(0x8000 + gfn_of(page)),
            "page {page}"
        );
    };
    // Once for the accessed bits, which neighbours in an entry must share, and again after the TLBs
    // were flushed.
    (0..64).for_each(&mut load);
    rig.core.flush_all();
    let before = rig.core.counters().tlb.walks();
    let mut again = |page: u64| {
        load_nested(&mut rig, &mut guest.table, &mut host.table, (0x2000 + page) << 12);
    };
    (0..64).for_each(&mut again);
    rig.core.check_invariants();
    rig.core.counters().tlb.walks() - before
}

#[test]
fn a_clustered_tlb_walks_once_for_8_neighbours_that_lie_together() {
    let clustered = machine().with_clustered_tlb().unwrap();
    // In order, and backwards within each group: an entry holds any order.
    assert_eq!(walks_for_64_pages(&clustered, PageSize::Small, |page| 0x200 + page), 8);
    assert_eq!(walks_for_64_pages(&clustered, PageSize::Small, |page| 0x200 + (page ^ 7)), 8);
    // Four to a group of frames: two entries, two walks.
    assert_eq!(walks_for_64_pages(&clustered, PageSize::Small, |page| 0x200 + page / 4 * 8 + page % 4), 16);
    // The host's leaf may be a larger page's: the entry is of the guest's small pages.
    assert_eq!(walks_for_64_pages(&clustered, PageSize::Huge, |page| 0x200 + page), 8);
    // Each elsewhere: as without.
    assert_eq!(walks_for_64_pages(&clustered, PageSize::Small, |page| 0x200 + page * 16), 64);
    assert_eq!(walks_for_64_pages(&machine(), PageSize::Small, |page| 0x200 + page), 64);
}

/// The test machine with contiguous blocks, and with TLBs of so few entries of a set that only
/// those of 64 KiB hold 64 pages.
fn contiguous_machine() -> MmuConfig {
    let array =
        |entries| vec![TlbConfig { sizes: vec![PageSize::Small], entries, ways: entries, ..TlbConfig::default() }];
    MmuConfig { l1_tlb: array(2), l2_tlb: array(4), ..machine() }.with_contiguous_tlb()
}

/// Walks for one load of each of 64 pages, in four blocks of 64 KiB, and for one more of each, with
/// the tables as `change` leaves them; with the fills of whole blocks among them.
fn walks_over_blocks(
    config: &MmuConfig,
    host: Option<PageSize>,
    change: impl Fn(&mut PageTable, Option<&mut PageTable>),
) -> (u64, u64) {
    let mut own = TestTable::new(Geometry::X86_4, 0x10, 1);
    (0..64).for_each(|page| own.map(0x2000 + page, 0x200 + page, PageSize::Small, WRITABLE));
    (0..64).step_by(16).for_each(|page| assert!(own.table.join(Vpn(0x2000 + page))));
    let mut below = host.map(|size| {
        let mut host = TestTable::new(Geometry::X86_4, HOST_NODES, 1);
        (0..0x400).step_by(size.pages() as usize).for_each(|gfn| host.map(gfn, 0x8000 + gfn, size, WRITABLE));
        if size == PageSize::Small {
            (0..0x400).step_by(16).for_each(|gfn| assert!(host.table.join(Vpn(gfn))));
        }
        host
    });
    change(&mut own.table, below.as_mut().map(|host| &mut host.table));
    let mut rig = Rig::new(config);
    let expected = |own: &PageTable, host: Option<&PageTable>, page: u64| {
        let frame = own.translate(Vpn(0x2000 + page)).unwrap();
        Pfn(host.map_or(frame, |host| host.translate(Vpn(frame.0)).unwrap()).0)
    };
    for page in (0..64).chain(0..64) {
        let gva = Gva((0x2000 + page) << 12);
        let end = match &mut below {
            None => rig.native(&mut own.table, &[Access::load(gva)]),
            Some(host) => rig.nested(&mut own.table, &mut host.table, &[Access::load(gva)]),
        };
        assert_eq!(end, RunEnd::Done);
        let held = rig.core.tlbs().peek(gva).unwrap();
        assert_eq!(held.frame(), expected(&own.table, below.as_ref().map(|host| &host.table), page), "page {page}");
        assert_eq!(held.size(), PageSize::Small);
    }
    rig.core.check_invariants();
    let counters = rig.core.counters();
    (counters.tlb.walks(), counters.contiguous.fills)
}

#[test]
fn one_entry_serves_16_pages_that_are_a_contiguous_block() {
    let contiguous = contiguous_machine();
    let nothing = |_: &mut PageTable, _: Option<&mut PageTable>| ();
    // Four blocks in four entries: walks for the first pages only, and none the second time.
    assert_eq!(walks_over_blocks(&contiguous, None, nothing), (4, 4));
    // Without the key, the bit in the tables does nothing.
    let plain = MmuConfig {
        l1_tlb: vec![TlbConfig { contiguous: None, ..contiguous.l1_tlb[0].clone() }],
        l2_tlb: vec![TlbConfig { contiguous: None, ..contiguous.l2_tlb[0].clone() }],
        ..contiguous.clone()
    };
    assert_eq!(walks_over_blocks(&plain, None, nothing), (128, 0));
    // One page of the second block lies elsewhere: that block has an entry a page, and they push
    // the others out in the first level only, and in the second, too.
    let move_one = |own: &mut PageTable, _: Option<&mut PageTable>| {
        own.update(Vpn(0x2000 + 20), |entry| Entry::leaf(Frame(0x999), entry.flags())).unwrap();
    };
    // 1 + 16 + 1 + 1 walks; the second time those for the first block and the second again, and for
    // the others, which the second's pages have pushed out.
    assert_eq!(walks_over_blocks(&contiguous, None, move_one), (2 * (1 + 16 + 1 + 1), 2 * 3));
    // Nothing but the kernel's word: pages that lie together without the bit are pages.
    let unmark_one = |own: &mut PageTable, _: Option<&mut PageTable>| {
        own.update(Vpn(0x2000 + 20), |entry| entry.without(Entry::WRITABLE)).unwrap();
        own.update(Vpn(0x2000 + 20), |entry| entry.with(Entry::WRITABLE)).unwrap();
    };
    assert_eq!(walks_over_blocks(&contiguous, None, unmark_one), (2 * (1 + 16 + 1 + 1), 2 * 3));
}

#[test]
fn in_a_vm_an_entry_covers_64_kib_only_where_guest_and_host_do() {
    let contiguous = contiguous_machine();
    let both = |_: &mut PageTable, _: Option<&mut PageTable>| ();
    let one_side = |own: &mut PageTable, host: Option<&mut PageTable>, guest: bool| {
        let (table, first) = if guest { (own, 0x2000) } else { (host.unwrap(), 0x200) };
        // Another right for a moment ends a block.
        for page in (first..first + 64).step_by(16) {
            table.update(Vpn(page), |entry| entry.without(Entry::WRITABLE)).unwrap();
            table.update(Vpn(page), |entry| entry.with(Entry::WRITABLE)).unwrap();
        }
    };
    assert_eq!(walks_over_blocks(&contiguous, Some(PageSize::Small), both), (4, 4));
    assert_eq!(walks_over_blocks(&contiguous, Some(PageSize::Small), |own, host| one_side(own, host, true)), (128, 0));
    assert_eq!(walks_over_blocks(&contiguous, Some(PageSize::Small), |own, host| one_side(own, host, false)), (128, 0));
    // A host's leaf of 2 MiB covers every 64 KiB in it; a guest's page without the bit is a page.
    assert_eq!(walks_over_blocks(&contiguous, Some(PageSize::Huge), both), (4, 4));
    assert_eq!(walks_over_blocks(&contiguous, Some(PageSize::Huge), |own, host| one_side(own, host, true)), (128, 0));
}

#[test]
fn a_guests_huge_page_over_blocks_of_the_host_is_held_64_kib_at_a_time() {
    let mut guest = TestTable::new(Geometry::X86_4, 0x10, 1);
    guest.map(0x2000, 0x200, PageSize::Huge, WRITABLE);
    let mut host = TestTable::new(Geometry::X86_4, HOST_NODES, 1);
    (0..0x400).for_each(|gfn| host.map(gfn, 0x8000 + gfn, PageSize::Small, WRITABLE));
    (0..0x400).step_by(16).filter(|gfn| gfn % 32 == 0).for_each(|gfn| assert!(host.table.join(Vpn(gfn))));
    let mut rig = Rig::new(&contiguous_machine());
    let walks = |rig: &mut Rig, guest: &mut PageTable, host: &mut PageTable, pages: std::ops::Range<u64>| {
        let before = rig.core.counters().tlb.walks();
        for page in pages {
            load_nested(rig, guest, host, (0x2000 + page) << 12);
        }
        rig.core.counters().tlb.walks() - before
    };
    assert_eq!(walks(&mut rig, &mut guest.table, &mut host.table, 0..16), 1, "a block of the host's");
    assert_eq!(walks(&mut rig, &mut guest.table, &mut host.table, 16..32), 16, "none");
    // A VM whose memory does not begin at a multiple of 64 KiB has no block that is one in both.
    let mut askew = TestTable::new(Geometry::X86_4, HOST_NODES, 1);
    (8..0x408).for_each(|gfn| askew.map(gfn, 0x8000 + gfn, PageSize::Small, WRITABLE));
    (16..0x400).step_by(16).for_each(|gfn| assert!(askew.table.join(Vpn(gfn))));
    let walker = Nested { guest: &mut guest.table, host: &mut askew.table, base: Vpn(8) };
    assert!(!walker.is_in_block(Gva(0x2000 << 12)));
}

#[test]
fn an_entry_of_64_kib_goes_with_any_of_its_pages_and_is_dirty_as_a_whole() {
    let mut table = TestTable::new(Geometry::X86_4, HOST_NODES, 1);
    (0..32).for_each(|page| table.map(0x2000 + page, 0x200 + page, PageSize::Small, WRITABLE));
    (0..32).step_by(16).for_each(|page| assert!(table.table.join(Vpn(0x2000 + page))));
    let mut rig = Rig::new(&contiguous_machine());
    let gva = |page: u64| Gva((0x2000 + page) << 12);
    assert_eq!(rig.native(&mut table.table, &[Access::load(gva(3)), Access::load(gva(20))]), RunEnd::Done);
    let dirty = |table: &PageTable| {
        (0..32).filter(|&page| table.leaf(Vpn(0x2000 + page)).unwrap().entry.has(Entry::DIRTY)).collect::<Vec<_>>()
    };
    assert!(dirty(&table.table).is_empty());
    // The first store to a clean block, by its entry: the table's 16 dirty bits, and the entry's.
    assert_eq!(rig.native(&mut table.table, &[Access::store(gva(7))]), RunEnd::Done);
    assert_eq!(dirty(&table.table), (0..16).collect::<Vec<_>>());
    assert!((0..16).all(|page| rig.core.tlbs().peek(gva(page)).unwrap().is_dirty()));
    assert!(!rig.core.tlbs().peek(gva(16)).unwrap().is_dirty());
    let held = |rig: &Rig| (0..32).filter(|&page| rig.core.tlbs().peek(gva(page)).is_some()).collect::<Vec<_>>();
    assert_eq!(held(&rig), (0..32).collect::<Vec<_>>());
    // INVLPG of one page, and a long range that covers one.
    rig.core.invalidate(VpnRange::new(Vpn(0x2000 + 15), PageCount(1)));
    assert_eq!(held(&rig), (16..32).collect::<Vec<_>>());
    rig.core.invalidate(VpnRange::new(Vpn(0x2000 + 31), PageCount(100)));
    assert!(held(&rig).is_empty());
    rig.core.check_invariants();
}

#[test]
fn pages_without_neighbours_leave_clusters_alone() {
    // 32 groups, all pages of each in frames of their own groups, and 32 groups whose pages lie
    // together: all in a TLB of 64 + 64 entries.
    let with = |clustered_alone: bool| {
        let mut config = machine();
        let array = |entries, clustered| TlbConfig {
            sizes: vec![PageSize::Small],
            entries,
            ways: 4,
            clustered,
            contiguous: None,
        };
        config.l1_tlb = vec![TlbConfig { entries: 4, ..array(4, false) }];
        config.l2_tlb = if clustered_alone { vec![array(128, true)] } else { vec![array(64, false), array(64, true)] };
        config
    };
    let frame = |page: u64| if page % 64 < 8 { 0x200 + page % 64 * 16 } else { 0x200 + page };
    let walks = |config: &MmuConfig| {
        let mut guest = TestTable::new(Geometry::X86_4, 0x10, 1);
        let mut host = TestTable::new(Geometry::X86_4, HOST_NODES, 1);
        (0..0x1000).for_each(|gfn| host.map(gfn, 0x8000 + gfn, PageSize::Small, WRITABLE));
        (0..128).for_each(|page| guest.map(0x2000 + page, frame(page), PageSize::Small, WRITABLE));
        let mut rig = Rig::new(config);
        let mut round = || {
            for page in 0..128 {
                load_nested(&mut rig, &mut guest.table, &mut host.table, (0x2000 + page) << 12);
            }
            rig.core.check_invariants();
            rig.core.counters().tlb.walks()
        };
        // Accessed bits, entries, and what is left of them.
        let before = [round(), round()][1];
        round() - before
    };
    assert_eq!(walks(&with(false)), 0, "16 single pages and 14 clusters have room");
    // One set has the 8 pages of a group, and 4 ways.
    assert!(walks(&with(true)) >= 16, "they push each other out");
}

/// References of native walks for `pages`, one after the other, with page-walk caches by `rules`
/// that have one PUD entry.
fn references_by(rules: PwcRules, pages: &[u64]) -> Vec<u64> {
    let mut config = machine();
    config.guest_pwc.rules = rules;
    config.guest_pwc.pl3 = Some(WaysConfig { entries: 1, ways: 1 });
    let mut table = TestTable::new(Geometry::X86_4, HOST_NODES, 1);
    pages.iter().for_each(|&page| table.map(page, DATA + page, PageSize::Small, WRITABLE));
    let mut rig = Rig::new(&config);
    pages
        .iter()
        .map(|&page| load_native(&mut rig, &mut table.table, page << 12).walk_events.total_references())
        .collect()
}

/// Pages that a PMD entry and a PUD entry stand for.
const PMD: u64 = 1 << 9;
const PUD: u64 = 1 << 18;

#[test]
fn a_tag_of_eight_entries_knows_neighbours_that_no_walk_has_read() {
    // The first PMD entry, the eighth, the ninth; the second PUD entry.
    let pages = [0, 7 * PMD, 8 * PMD, PUD];
    assert_eq!(references_by(PwcRules::default(), &pages), [4, 2, 2, 3]);
    let rules = PwcRules { entries_per_tag: Some(8), ..PwcRules::default() };
    assert_eq!(references_by(rules, &pages), [4, 1, 2, 2]);
}

#[test]
fn levels_above_a_hit_can_be_filled_too() {
    // The last walk needs the first PUD entry, which the second walk has pushed out and the third,
    // a hit in the level below, can bring back.
    let pages = [0, PUD, 1, PMD];
    assert_eq!(references_by(PwcRules::default(), &pages), [4, 3, 1, 3]);
    let rules = PwcRules { all_levels: true, ..PwcRules::default() };
    assert_eq!(references_by(rules, &pages), [4, 3, 1, 2]);
}

#[test]
fn a_hit_right_after_the_same_can_count_as_a_miss() {
    // The second PMD entry is not known, and those above it repeat; then the first is no repeat.
    let pages = [0, 1, PMD, 2, 3];
    assert_eq!(references_by(PwcRules::default(), &pages), [4, 1, 2, 1, 1]);
    let rules = PwcRules { repeats_miss: true, ..PwcRules::default() };
    assert_eq!(references_by(rules, &pages), [4, 4, 4, 1, 4]);
}

#[test]
fn the_walk_for_the_data_page_can_go_past_the_hosts_walk_caches() {
    let mut guest = TestTable::new(Geometry::X86_4, 0, 1);
    let mut host = TestTable::new(Geometry::X86_4, HOST_NODES, 1);
    (0..8).for_each(|page| guest.map(page, 0x100 + page, PageSize::Small, WRITABLE));
    (0..4).chain(0x100..0x108).for_each(|gfn| host.map(gfn, 0x1000 + gfn, PageSize::Small, WRITABLE));
    let mut second = |host_pwc_skips_data: bool| {
        let mut rig = Rig::new(&MmuConfig { host_pwc_skips_data, ..machine() });
        load_nested(&mut rig, &mut guest.table, &mut host.table, 0);
        let counters = load_nested(&mut rig, &mut guest.table, &mut host.table, 1 << 12);
        let data: u64 = (1..=4).map(|level| counters.walk_events.step(0, level, Served::L1d)).sum();
        (data, counters.walk_events.total_references(), counters.host_pwc.lookups(), counters.walk_cycles)
    };
    // The guest's PTE node is known, and so is the host's: its PTE, the guest's, the data's.
    assert_eq!(second(false), (1, 3, 2, 3 * L1D + 3 * PWC));
    assert_eq!(second(true), (4, 6, 1, 6 * L1D + 2 * PWC));
}

#[test]
fn tlbs_can_evict_what_was_used_least_often() {
    let mut table = TestTable::new(Geometry::X86_4, HOST_NODES, 1);
    (0..4).for_each(|page| table.map(page, DATA + page, PageSize::Small, WRITABLE));
    let mut walks = |tlb_replacement: TlbReplacement, accesses: &[u64]| {
        let one_set = |entries| {
            vec![TlbConfig { sizes: vec![PageSize::Small], entries, ways: entries, clustered: false, contiguous: None }]
        };
        let mut rig = Rig::new(&MmuConfig { l1_tlb: one_set(2), l2_tlb: vec![], tlb_replacement, ..machine() });
        let accesses: Vec<_> = accesses.iter().map(|&page| Access::load(Gva(page << 12))).collect();
        assert_eq!(rig.native(&mut table.table, &accesses), RunEnd::Done);
        rig.core.check_invariants();
        rig.core.counters().tlb.walks()
    };
    // Both uses of page 0 count, though they are of the same line: it stays, and 2 comes for 1.
    assert_eq!(walks(TlbReplacement::Lfu, &[0, 0, 1, 2, 0]), 3);
    assert_eq!(walks(TlbReplacement::Lru, &[0, 0, 1, 2, 0]), 4);
    // What was used much once stays, though it is the oldest.
    assert_eq!(walks(TlbReplacement::Lfu, &[0, 0, 0, 1, 1, 2, 3, 2, 3, 0]), 6);
    assert_eq!(walks(TlbReplacement::Lru, &[0, 0, 0, 1, 1, 2, 3, 2, 3, 0]), 5);
    // Where pages were used alike, the one in the first way goes, not the oldest: 2 for 0, 3 for 2.
    assert_eq!(walks(TlbReplacement::Lfu, &[0, 1, 2, 3, 1]), 4);
    assert_eq!(walks(TlbReplacement::Lru, &[0, 1, 2, 3, 1]), 5);
}
