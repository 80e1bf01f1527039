// SPDX-License-Identifier: MIT OR Apache-2.0
use super::*;

/// A table of `geometry` and a source of frames for its nodes, counting up from 1000.
fn table(geometry: Geometry) -> (PageTable, impl FnMut(Level, Vpn) -> Result<Frame, ()>) {
    let mut next = 1000;
    let source = move |_: Level, _: Vpn| {
        next += 1;
        Ok(Frame(next))
    };
    (PageTable::new(geometry, Frame(1000)), source)
}

#[test]
fn a_mapped_page_translates_and_its_neighbour_does_not() {
    for geometry in [Geometry::X86_4, Geometry::X86_5, Geometry::new(2, 3).unwrap(), Geometry::new(3, 1).unwrap()] {
        let (mut t, mut source) = table(geometry);
        let page = Vpn(geometry.end().0 - 2);
        t.map(page, Frame(77), PageSize::Small, Entry::WRITABLE, &mut source).unwrap();
        assert_eq!(t.translate(page), Some(Frame(77)));
        assert_eq!(t.translate(page + 1), None);
        assert_eq!(t.node_count(), u64::from(geometry.levels()));
        t.check_invariants();
    }
}

#[test]
fn large_leaves_cover_all_their_pages() {
    let (mut t, mut source) = table(Geometry::X86_4);
    t.map(Vpn(512), Frame(1024), PageSize::Huge, 0, &mut source).unwrap();
    t.map(Vpn(1 << 18), Frame(1 << 18), PageSize::Giant, 0, &mut source).unwrap();
    assert_eq!(t.translate(Vpn(512 + 511)), Some(Frame(1024 + 511)));
    assert_eq!(t.translate(Vpn((1 << 18) + 70_000)), Some(Frame((1 << 18) + 70_000)));
    assert_eq!(t.leaf(Vpn(600)).unwrap().size(), PageSize::Huge);
    t.check_invariants();
}

#[test]
#[should_panic(expected = "mapped already")]
fn mapping_twice_is_caught() {
    let (mut t, mut source) = table(Geometry::X86_4);
    t.map(Vpn(5), Frame(1), PageSize::Small, 0, &mut source).unwrap();
    t.map(Vpn(5), Frame(2), PageSize::Small, 0, &mut source).unwrap();
}

#[test]
fn what_stands_at_a_spot_is_the_page_s_entry() {
    let (mut t, mut source) = table(Geometry::X86_4);
    let (spot, entry) = t.find(Vpn(700));
    assert_eq!((spot.node, spot.level, entry), (t.root(), Level(4), Entry::NONE));
    t.map(Vpn(512), Frame(9), PageSize::Small, 0, &mut source).unwrap();
    let (spot, entry) = t.find(Vpn(700));
    assert_eq!((spot.level, entry), (Level::PTE, Entry::NONE));
    t.set_at(spot, Vpn(700), Entry::leaf(Frame(5), 0));
    t.mark_at(spot, Entry::ACCESSED);
    assert_eq!(t.find(Vpn(700)), (spot, Entry::leaf(Frame(5), Entry::ACCESSED)));
    assert_eq!(t.translate(Vpn(700)), Some(Frame(5)));
    t.check_invariants();
}

#[test]
#[should_panic(expected = "mapped already")]
fn setting_a_spot_twice_is_caught() {
    let (mut t, mut source) = table(Geometry::X86_4);
    t.map(Vpn(512), Frame(9), PageSize::Small, 0, &mut source).unwrap();
    t.set_at(t.find(Vpn(512)).0, Vpn(512), Entry::leaf(Frame(5), 0));
}

#[test]
fn a_block_is_bare_when_none_of_its_pages_is_mapped() {
    for geometry in [Geometry::X86_4, Geometry::new(3, 3).unwrap(), Geometry::new(4, 2).unwrap()] {
        let (mut t, mut source) = table(geometry);
        assert!(t.is_bare(Vpn(0), 3) && t.is_bare(Vpn(100), 6));
        t.map(Vpn(37), Frame(9), PageSize::Small, 0, &mut source).unwrap();
        for page in 0..128 {
            for order in 0..7 {
                let bare = page >> order != 37 >> order;
                assert_eq!(t.is_bare(Vpn(page), order), bare, "page {page}, order {order}, {geometry:?}");
            }
        }
        t.unmap(Vpn(37)).unwrap();
        assert!(t.is_bare(Vpn(37), 6), "its node is there still");
    }
    let (mut t, mut source) = table(Geometry::X86_4);
    t.map(Vpn(512), Frame(512), PageSize::Huge, 0, &mut source).unwrap();
    assert!(!t.is_bare(Vpn(600), 3) && !t.is_bare(Vpn(3), 10) && t.is_bare(Vpn(3), 9));
}

#[test]
fn pruning_frees_empty_nodes_only() {
    let (mut t, mut source) = table(Geometry::X86_4);
    for page in [Vpn(0), Vpn(512), Vpn(1 << 18)] {
        t.map(page, Frame(page.0 + 1), PageSize::Small, 0, &mut source).unwrap();
    }
    t.unmap(Vpn(0)).unwrap();
    t.unmap(Vpn(1 << 18)).unwrap();
    let mut freed = Vec::new();
    t.prune(VpnRange { start: Vpn(0), end: Vpn(1 << 20) }, |level, first, _| freed.push((level.0, first.0)));
    assert_eq!(freed, [(1, 0), (1, 1 << 18), (2, 1 << 18)]);
    assert_eq!(t.translate(Vpn(512)), Some(Frame(513)));
    t.check_invariants();
}

#[test]
fn split_and_collapse_are_inverse() {
    let (mut t, mut source) = table(Geometry::X86_4);
    t.map(Vpn(1024), Frame(512), PageSize::Huge, Entry::WRITABLE, &mut source).unwrap();
    let nodes = t.node_count();
    t.split(Vpn(1030), Frame(9)).unwrap();
    assert_eq!(t.leaf(Vpn(1030)).unwrap().size(), PageSize::Small);
    assert_eq!(t.translate(Vpn(1030)), Some(Frame(518)));
    t.check_invariants();
    assert_eq!(t.collapse(Vpn(1024), Frame(512), Entry::WRITABLE), Some(Frame(9)));
    assert_eq!(t.node_count(), nodes);
    assert_eq!(t.leaf(Vpn(1030)).unwrap().size(), PageSize::Huge);
    t.check_invariants();
}

#[test]
fn leaves_are_visited_in_order_and_within_the_range() {
    let (mut t, mut source) = table(Geometry::new(3, 2).unwrap());
    for page in [3, 4, 17, 40] {
        t.map(Vpn(page), Frame(page), PageSize::Small, 0, &mut source).unwrap();
    }
    let mut seen = Vec::new();
    t.for_each_leaf(VpnRange { start: Vpn(4), end: Vpn(40) }, |leaf| seen.push(leaf.page.0));
    assert_eq!(seen, [4, 17]);
}
