// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random programs of the allocator's caller, against a set of frames that are free.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::Vpn;

const FRAMES: u64 = 2048;
const CPUS: u16 = 3;

/// What a kernel does with its memory.
#[derive(Clone, Debug)]
enum Op {
    Alloc {
        order: u8,
        kind: MigrateType,
        cpu: u16,
        movable: bool,
    },
    /// Frees what the `nth` allocation holds, whole.
    Free {
        nth: usize,
        cpu: u16,
    },
    /// Frees one half of it.
    FreeHalf {
        nth: usize,
        upper: bool,
        cpu: u16,
    },
    Share {
        nth: usize,
    },
    Drain,
    Compact {
        order: u8,
    },
    Range {
        count: u64,
        align: u8,
    },
    At {
        start: u64,
        count: u64,
    },
    DropCache {
        count: u64,
    },
    Fragment {
        blocks_permille: u16,
        frames_per_block: u16,
        unmovable_permille: u16,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let kind = prop_oneof![
        3 => Just(MigrateType::Movable),
        1 => Just(MigrateType::Unmovable),
        1 => Just(MigrateType::Reclaimable)
    ];
    let order = prop_oneof![6 => Just(0u8), 3 => 1..=3u8, 1 => 4..=10u8];
    prop_oneof![
        12 => (order, kind, 0..CPUS, any::<bool>())
            .prop_map(|(order, kind, cpu, movable)| Op::Alloc { order, kind, cpu, movable }),
        8 => (any::<usize>(), 0..CPUS).prop_map(|(nth, cpu)| Op::Free { nth, cpu }),
        3 => (any::<usize>(), any::<bool>(), 0..CPUS).prop_map(|(nth, upper, cpu)| Op::FreeHalf { nth, upper, cpu }),
        1 => any::<usize>().prop_map(|nth| Op::Share { nth }),
        1 => Just(Op::Drain),
        1 => (0..=10u8).prop_map(|order| Op::Compact { order }),
        1 => (1..1500u64, 0..=11u8).prop_map(|(count, align)| Op::Range { count, align }),
        1 => (0..FRAMES, 1..700u64).prop_map(|(start, count)| Op::At { start, count }),
        1 => (0..100u64).prop_map(|count| Op::DropCache { count }),
        1 => (0..=1000u16, 1..=20u16, 0..=1000u16)
            .prop_map(|(blocks_permille, frames_per_block, unmovable_permille)| Op::Fragment { blocks_permille, frames_per_block, unmovable_permille }),
    ]
}

/// What the caller has, kept naively.
#[derive(Default)]
struct Model {
    /// Allocations by number: first frame and order.
    held: BTreeMap<u64, (u64, u8)>,
    next: u64,
    /// Frames that have an unmovable owner and are never given back.
    pinned: BTreeSet<u64>,
    /// Frames of page cache that are not held.
    cache: BTreeSet<u64>,
    /// Frames with a second mapping.
    shared: BTreeSet<u64>,
}

impl Model {
    fn hold(&mut self, start: u64, order: u8) -> u64 {
        self.next += 1;
        self.held.insert(self.next, (start, order));
        self.next
    }

    fn nth(&self, nth: usize) -> Option<u64> {
        let len = self.held.len();
        (len > 0).then(|| *self.held.keys().nth(nth % len).unwrap())
    }

    fn allocated(&self) -> BTreeSet<u64> {
        let mut all: BTreeSet<u64> = self.pinned.union(&self.cache).copied().collect();
        for &(start, order) in self.held.values() {
            (start..start + (1 << order)).for_each(|frame| assert!(all.insert(frame), "frame {frame} has two holders"));
        }
        all
    }

    fn check(&self, memory: &PhysicalMemory) {
        memory.check_invariants();
        let allocated = self.allocated();
        assert_eq!(memory.free_frames().0, FRAMES - allocated.len() as u64);
        for frame in 0..FRAMES {
            assert_eq!(memory.is_free(Frame(frame)), !allocated.contains(&frame), "frame {frame}");
            assert_eq!(memory.is_shared(Frame(frame)), self.shared.contains(&frame), "frame {frame}");
        }
        for (&id, &(start, order)) in self.held.iter().filter(|(_, (_, order))| *order == 0) {
            let owner = memory.owner(Frame(start));
            assert!(owner == Owner::Kernel || owner == page(id), "frame {start} of order {order}: {owner:?}");
        }
    }
}

fn page(id: u64) -> Owner {
    Owner::Page { process: 1, page: Vpn(id) }
}

/// Follows moves in the model and refuses every seventh page, and large ones.
impl Migrate for Model {
    fn migrate(&mut self, from: Frame, to: Frame, owner: Owner) -> bool {
        let Owner::Page { process: 1, page: Vpn(id) } = owner else { panic!("{owner:?} was to move") };
        assert!(!self.shared.contains(&from.0), "shared pages do not move");
        let (start, order) = self.held[&id];
        assert_eq!(start, from.0, "the owner names another frame");
        // A larger page does not move frame by frame.
        let moves = id % 7 != 0 && order == 0;
        if moves {
            self.held.insert(id, (to.0, 0));
        }
        moves
    }
}

fn alloc(memory: &mut PhysicalMemory, model: &mut Model, order: u8, kind: MigrateType, cpu: u16, movable: bool) {
    let blocks = memory.free_blocks();
    let Some(frame) = memory.alloc(Order(order), kind, Cpu(cpu)) else {
        assert!(blocks[order.into()..].iter().all(|&count| count == 0), "order {order} failed, free: {blocks:?}");
        assert!(order > 3 || memory.free_blocks()[order.into()..].iter().all(|&count| count == 0));
        return;
    };
    assert!(frame.is_aligned(order.into()));
    if !movable || order > 3 {
        model.hold(frame.0, order);
        memory.set_owner(frame, Owner::Kernel);
        return;
    }
    // Allocated whole, used and freed in parts.
    for part in 0..1 << order {
        let id = model.hold(frame.0 + part, 0);
        memory.set_owner(frame + part, page(id));
    }
}

fn free(memory: &mut PhysicalMemory, model: &mut Model, id: u64, part: (u64, u8), cpu: u16) {
    for frame in part.0..part.0 + (1 << part.1) {
        assert_eq!(memory.is_shared(Frame(frame)), model.shared.contains(&frame));
        if model.shared.remove(&frame) {
            assert!(memory.unshare(Frame(frame)));
        }
        assert!(!memory.unshare(Frame(frame)));
    }
    memory.free(Frame(part.0), Order(part.1), Cpu(cpu));
    model.held.remove(&id);
}

fn apply(memory: &mut PhysicalMemory, model: &mut Model, op: &Op) {
    match *op {
        Op::Alloc { order, kind, cpu, movable } => alloc(memory, model, order, kind, cpu, movable),
        Op::Free { nth, cpu } => {
            if let Some(id) = model.nth(nth) {
                free(memory, model, id, model.held[&id], cpu);
            }
        }
        Op::FreeHalf { nth, upper, cpu } => {
            if let Some((id, (start, order))) = model.nth(nth).map(|id| (id, model.held[&id])).filter(|h| h.1.1 > 0) {
                let half = 1 << (order - 1);
                let (gone, kept) = if upper { (start + half, start) } else { (start, start + half) };
                free(memory, model, id, (gone, order - 1), cpu);
                let id = model.hold(kept, order - 1);
                memory.set_owner(Frame(kept), page(id));
            }
        }
        Op::Share { nth } => {
            if let Some(frame) = model.nth(nth).map(|id| model.held[&id].0).filter(|f| !model.shared.contains(f)) {
                memory.share(Frame(frame));
                model.shared.insert(frame);
            }
        }
        Op::Drain => memory.drain(),
        Op::Compact { order } => {
            memory.compact(Order(order), model);
        }
        Op::Range { count, align } => range(memory, model, count, align),
        Op::At { start, count } => at(memory, model, start, count),
        Op::DropCache { count } => {
            let dropped = memory.drop_cache(PageCount(count), Cpu(0)).0;
            assert_eq!(dropped, count.min(model.cache.len() as u64));
        }
        Op::Fragment { blocks_permille, frames_per_block, unmovable_permille } => {
            let how = Fragmentation { blocks_permille, frames_per_block, unmovable_permille, seed: model.next };
            memory.fragment(&how);
        }
    }
    // Cache pages move and go without notice; kernel pages that are not held stay where
    // they are.
    let owned = |owner| (0..FRAMES).filter(|&f| memory.owner(Frame(f)) == owner).collect::<BTreeSet<_>>();
    model.cache = owned(Owner::Cache);
    let held: BTreeSet<u64> = model.held.values().map(|&(start, _)| start).collect();
    let pinned = &owned(Owner::Kernel) - &held;
    assert!(pinned.is_superset(&model.pinned), "an unmovable frame moved");
    model.pinned = pinned;
}

/// Whether `frame` is free, or can be made so unless its page refuses.
fn movable(memory: &PhysicalMemory, frame: u64) -> bool {
    let owner = memory.owner(Frame(frame));
    memory.is_free(Frame(frame))
        || (owner == Owner::Cache || matches!(owner, Owner::Page { .. })) && !memory.is_shared(Frame(frame))
}

fn at(memory: &mut PhysicalMemory, model: &mut Model, start: u64, count: u64) {
    let range = FrameRange::new(Frame(start), PageCount(count));
    let inside = |frame: &Frame| frame.0 < FRAMES;
    let before: Vec<bool> = range.iter().map(|frame| inside(&frame) && movable(memory, frame.0)).collect();
    let free: Vec<bool> = range.iter().map(|frame| inside(&frame) && memory.is_free(frame)).collect();
    let had = memory.alloc_at(range, model);
    for (i, frame) in range.iter().enumerate() {
        assert!(!had[i] || before[i], "an unmovable frame was taken");
        assert!(had[i] || !free[i], "a free frame was missed");
        if had[i] {
            assert_eq!(memory.owner(frame), Owner::Unknown);
            let id = model.hold(frame.0, 0);
            memory.set_owner(frame, page(id));
        }
    }
}

fn range(memory: &mut PhysicalMemory, model: &mut Model, count: u64, align: u8) {
    let before: Vec<bool> = (0..FRAMES).map(|frame| movable(memory, frame)).collect();
    let free: Vec<bool> = (0..FRAMES).map(|frame| memory.is_free(Frame(frame))).collect();
    match memory.alloc_range(PageCount(count), Order(align), model) {
        Some(range) => {
            assert!(range.start.is_aligned(align.into()) && range.count.0 == count);
            assert!(range.iter().all(|frame| before[frame.0 as usize]), "an unmovable frame was taken");
            for frame in range.iter() {
                assert_eq!(memory.owner(frame), Owner::Unknown);
                let id = model.hold(frame.0, 0);
                memory.set_owner(frame, page(id));
            }
        }
        None => {
            let start_fits = |start: &u64| start + count <= FRAMES;
            let all_free = |start: u64| (start..start + count).all(|frame| free[frame as usize]);
            let fits = (0..FRAMES).step_by(1 << align).filter(start_fits).find(|&start| all_free(start));
            assert_eq!(fits, None, "a free range was missed");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    #[test]
    fn memory_agrees_with_a_set_of_frames(ops in proptest::collection::vec(op(), 1..120)) {
        let mut memory = PhysicalMemory::new(&MemoryConfig::new(PageCount(FRAMES), CPUS)).unwrap();
        let mut model = Model::default();
        for op in &ops {
            apply(&mut memory, &mut model, op);
            model.check(&memory);
        }
        let held: Vec<_> = model.held.keys().copied().collect();
        for id in held {
            let block = model.held[&id];
            free(&mut memory, &mut model, id, block, 0);
        }
        memory.drop_cache(PageCount(FRAMES), Cpu(0));
        memory.drain();
        memory.check_invariants();
        prop_assert_eq!(memory.free_frames().0, FRAMES - model.pinned.len() as u64);
        if model.pinned.is_empty() {
            prop_assert_eq!(memory.free_blocks()[10], FRAMES / 1024);
        }
    }
}
