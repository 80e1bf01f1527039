// SPDX-License-Identifier: MIT OR Apache-2.0
use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::addr::{Vpn, VpnRange};
use crate::geometry::{Level, PageSize};

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
fn a_slot_holds_the_page_s_entry() {
    let (mut t, mut source) = table(Geometry::X86_4);
    let (slot, entry) = t.find(Vpn(700));
    assert_eq!((slot.node, slot.level, entry), (t.root(), Level(4), Entry::NONE));
    t.map(Vpn(512), Frame(9), PageSize::Small, 0, &mut source).unwrap();
    let (slot, entry) = t.find(Vpn(700));
    assert_eq!((slot.level, entry), (Level::PTE, Entry::NONE));
    t.set_at(slot, Vpn(700), Entry::leaf(Frame(5), 0));
    t.mark_at(slot, Entry::ACCESSED);
    assert_eq!(t.find(Vpn(700)), (slot, Entry::leaf(Frame(5), Entry::ACCESSED)));
    assert_eq!(t.translate(Vpn(700)), Some(Frame(5)));
    t.check_invariants();
}

#[test]
#[should_panic(expected = "mapped already")]
fn setting_a_slot_twice_is_caught() {
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

#[test]
fn a_node_above_an_existing_one_is_found_and_not_made_again() {
    let (mut t, mut source) = table(Geometry::X86_5);
    t.map(Vpn(512), Frame(9), PageSize::Small, 0, &mut source).unwrap();
    let made = t.node_count();
    for level in 1..=5 {
        let node = t.ensure_node(Vpn(700), Level(level), |_, _| -> Result<Frame, ()> { panic!("it exists") }).unwrap();
        let (mut expected, mut at) = t.lowest_node(Vpn(512));
        while at < Level(level) {
            (expected, at) = (t.parent(expected), at.up());
        }
        assert_eq!(node, expected);
    }
    assert_eq!(t.node_count(), made);
}

#[test]
fn each_write_is_recorded_once_with_the_pages_it_concerns() {
    let (mut t, mut source) = table(Geometry::X86_4);
    t.map(Vpn(0), Frame(9), PageSize::Small, 0, &mut source).unwrap();
    t.watch();
    t.map(Vpn(512), Frame(512), PageSize::Huge, 0, &mut source).unwrap();
    t.split(Vpn(600), Frame(8)).unwrap();
    t.update(Vpn(600), |entry| entry.with(Entry::DIRTY)).unwrap();
    t.mark(t.lowest_node(Vpn(0)).0, 0, Entry::ACCESSED);
    t.collapse(Vpn(600), Frame(512), 0).unwrap();
    t.unmap(Vpn(600)).unwrap();
    t.unmap(Vpn(0)).unwrap();
    t.prune(VpnRange { start: Vpn(0), end: Vpn(512) }, |_, _, _| ());
    let pages: Vec<_> = t.take_writes().iter().map(|write| (write.pages.start.0, write.pages.len())).collect();
    let (small, huge, pud, pgd) = (1, 512, 1 << 18, 1 << 27);
    assert_eq!(
        pages,
        [(512, huge), (512, huge), (600, small), (512, huge), (512, huge), (0, small), (0, huge), (0, pud), (0, pgd)]
    );
    assert!(t.take_writes().is_empty());
}

/// One change of the table and of the map that is its model.
#[derive(Clone, Copy, Debug)]
enum Change {
    Map(u64, u8),
    Unmap(u64),
    Split(u64),
    Collapse(u64),
    Prune(u64, u64),
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let page = 0..96u64;
    let change = prop_oneof![
        4 => (page.clone(), 1..=3u8).prop_map(|(page, level)| Change::Map(page, level)),
        3 => page.clone().prop_map(Change::Unmap),
        2 => page.clone().prop_map(Change::Split),
        1 => page.clone().prop_map(Change::Collapse),
        1 => (page.clone(), page).prop_map(|(start, end)| Change::Prune(start, end)),
    ];
    proptest::collection::vec(change, 1..80)
}

proptest! {
    /// Any sequence of changes leaves the table with what a map from page to leaf holds, on odd
    /// shapes with 2, 4 and 8 entries a node.
    #[test]
    fn a_table_agrees_with_a_map(changes in changes(), bits in 1..=3u8) {
        let geometry = Geometry::new(4, bits).unwrap();
        let (mut t, mut source) = table(geometry);
        let mut model: BTreeMap<u64, (u8, u64)> = BTreeMap::new();
        let order = |level: u8| geometry.entry_order(Level(level));
        let end = geometry.end().0;
        let covering = |model: &BTreeMap<u64, (u8, u64)>, page: u64| {
            model.range(..=page).next_back().map(|(&first, &leaf)| (first, leaf))
                .filter(|&(first, (level, _))| page < first + (1 << order(level)))
        };
        for change in changes {
            match change {
                Change::Map(page, level) => {
                    let first = Vpn(page % end).align_down(order(level)).0;
                    let pages = first..first + (1 << order(level));
                    // A node of the table may be in the way of a large page even where nothing is
                    // mapped.
                    t.prune(VpnRange { start: Vpn(0), end: geometry.end() }, |_, _, _| ());
                    if pages.clone().all(|page| covering(&model, page).is_none()) {
                        let frame = Frame(1 << 20 | first);
                        t.set(Vpn(first), Level(level), Entry::leaf(frame, 0), &mut source).unwrap();
                        model.insert(first, (level, frame.0));
                    }
                }
                Change::Unmap(page) => {
                    let page = page % end;
                    let found = covering(&model, page);
                    let leaf = t.unmap(Vpn(page));
                    prop_assert_eq!(leaf.map(|l| (l.page.0, (l.level.0, l.entry.frame().0))), found);
                    if let Some((first, _)) = found {
                        model.remove(&first);
                    }
                }
                Change::Split(page) => {
                    let page = page % end;
                    let found = covering(&model, page).filter(|&(_, (level, _))| level > 1);
                    let split = t.split(Vpn(page), Frame(5));
                    prop_assert_eq!(split.map(|l| (l.page.0, l.level.0)), found.map(|(first, (level, _))| (first, level)));
                    if let Some((first, (level, frame))) = found {
                        let step = 1u64 << order(level - 1);
                        for offset in (0..1 << order(level)).step_by(step as usize) {
                            model.insert(first + offset, (level - 1, frame + offset));
                        }
                    }
                }
                Change::Collapse(page) => {
                    let page = page % end;
                    let first = Vpn(page).align_down(order(2)).0;
                    let is_pte_node = t.lowest_node(Vpn(page)).1 == Level::PTE;
                    let frame = Frame(2 << 20 | first);
                    prop_assert_eq!(t.collapse(Vpn(page), frame, 0).is_some(), is_pte_node);
                    if is_pte_node {
                        model.retain(|page, _| !(first..first + (1 << order(2))).contains(page));
                        model.insert(first, (2, frame.0));
                    }
                }
                Change::Prune(start, stop) => {
                    t.prune(VpnRange { start: Vpn(start % end), end: Vpn(stop % end) }, |_, _, _| ());
                }
            }
            t.check_invariants();
            let mut leaves = Vec::new();
            t.for_each_leaf(VpnRange { start: Vpn(0), end: geometry.end() }, |leaf| {
                leaves.push((leaf.page.0, (leaf.level.0, leaf.entry.frame().0)));
            });
            prop_assert_eq!(leaves, model.iter().map(|(&page, &leaf)| (page, leaf)).collect::<Vec<_>>());
        }
    }
}
