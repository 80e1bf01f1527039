// SPDX-License-Identifier: MIT OR Apache-2.0
//! A manager's fact sheet, held against what the manager is seen to do. A program runs under it,
//! and each fault and each tick is looked at from outside: frames taken, pages prepared, leaves
//! that became large, frames that came back.

use nestwalk_mem::{Cpu, Frame, FrameRange, Nanoseconds, PageCount, PageSize, Vpn, VpnRange};
use nestwalk_os::manager::quicksilver::QuicksilverConfig;
use nestwalk_os::manager::{Cause, Deallocation, Facts, Fault, Fill, MemoryManager, Preparation, Promotion, When};
use nestwalk_os::state::{KernelState, Moved};
use nestwalk_os::{Advice, Bare, Context, Kernel, KernelConfig, ManagerConfig, OsError, ProcessId, VmaFlags};

use crate::pages;

const MEMORY: PageCount = PageCount(16_384);
const HUGE: u64 = 512;
const SECOND_NS: u64 = 1_000_000_000;

/// What one fault, one call or one tick did.
#[derive(Clone, Copy, Debug)]
struct Step {
    /// Frames that were taken, those of page-table nodes left out. Negative: they came back.
    taken: i64,
    /// Pages that were zeroed or copied to.
    prepared: u64,
    /// A 2 MiB leaf was made, and how, if there were small ones.
    large: Option<Promotion>,
    /// A small page of the block that was looked at lies elsewhere now.
    relocated: bool,
}

/// A program under a manager.
struct Watch {
    kernel: Kernel,
    process: ProcessId,
    now_ns: u64,
}

impl Watch {
    fn new(manager: Box<dyn MemoryManager>) -> Self {
        let mut kernel = Kernel::with_manager(&KernelConfig::new(MEMORY), manager).unwrap();
        let process = kernel.spawn(&mut Bare).unwrap();
        Self { kernel, process, now_ns: 0 }
    }

    fn map(&mut self, range: VpnRange) {
        self.kernel.mmap(self.process, range, VmaFlags::ANONYMOUS, &mut Bare).unwrap();
    }

    /// Sizes and frames of the leaves of the 2 MiB from `block` on.
    fn leaves(&self, block: Vpn) -> Vec<Option<(PageSize, Frame)>> {
        let table = self.kernel.table(self.process).unwrap();
        let leaf = |page| table.leaf(page).map(|leaf| (leaf.size(), leaf.frame_of(page)));
        (0..HUGE).map(|i| leaf(block + i)).collect()
    }

    /// Looks at what `act` does to memory and to the 2 MiB from `block` on.
    fn see(&mut self, block: Vpn, act: impl FnOnce(&mut Self)) -> Step {
        let (free, counters, leaves) =
            (self.kernel.memory().free_frames().0, *self.kernel.counters(), self.leaves(block));
        act(self);
        let done = self.kernel.counters().since(&counters);
        let nodes = done.nodes_made as i64 - done.nodes_freed as i64;
        let prepared = done.zeroed_4k + HUGE * done.zeroed_2m + done.copied_collapse - done.nodes_made;
        let (mut large, mut relocated) = (None, false);
        for (old, new) in leaves.iter().zip(self.leaves(block)) {
            match (old, new) {
                (Some((PageSize::Small, from)), Some((PageSize::Huge, to))) => {
                    large = Some(if *from == to { Promotion::InPlace } else { Promotion::OutOfPlace });
                }
                (None, Some((PageSize::Huge, _))) => large = large.or(Some(Promotion::None)),
                (Some((PageSize::Small, from)), Some((PageSize::Small, to))) => relocated |= *from != to,
                _ => {}
            }
        }
        let taken = free as i64 - self.kernel.memory().free_frames().0 as i64 - nodes;
        Step { taken, prepared, large, relocated }
    }

    fn touch(&mut self, page: Vpn) -> Step {
        self.see(page.align_down(9), |watch| {
            watch.kernel.touch(watch.process, page, true, Cpu(0), &mut Bare).unwrap();
        })
    }

    fn tick(&mut self, block: Vpn) -> Step {
        self.now_ns += SECOND_NS;
        let now_ns = self.now_ns;
        self.see(block, |watch| watch.kernel.tick(Nanoseconds(now_ns), &mut Bare).unwrap())
    }
}

/// What a manager was seen to do at the five events.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    block: u64,
    taken_in_fault: u64,
    prepared_first: u64,
    prepared_later_max: u64,
    mapped_in_fault: bool,
    mapped_in_tick: bool,
    acquired_in_tick: bool,
    in_place: bool,
    out_of_place: bool,
    comes_back_on_unmap: bool,
    relocated: bool,
}

impl Seen {
    /// Runs the programs.
    fn of(make: &dyn Fn() -> Box<dyn MemoryManager>) -> Self {
        let mut seen = Self::default();
        seen.fill_a_block(&mut Watch::new(make()));
        seen.grow_into_a_block(&mut Watch::new(make()));
        seen.give_back(&mut Watch::new(make()));
        seen.give_back_under_pressure(&mut Watch::new(make()));
        seen.be_idle(&mut Watch::new(make()));
        seen
    }

    fn note_fault(&mut self, step: Step) {
        self.block = self.block.max(step.taken.max(0) as u64);
        self.mapped_in_fault |= step.large.is_some();
        self.note_large(step);
    }

    fn note_tick(&mut self, step: Step) {
        self.mapped_in_tick |= step.large.is_some();
        self.acquired_in_tick |= step.large == Some(Promotion::OutOfPlace);
        if self.acquired_in_tick && self.taken_in_fault < HUGE {
            (self.prepared_first, self.prepared_later_max) = (step.prepared.max(self.prepared_first), 0);
        }
        self.note_large(step);
    }

    fn note_large(&mut self, step: Step) {
        self.block = self.block.max(if step.large.is_some() { HUGE } else { 1 });
        self.in_place |= step.large == Some(Promotion::InPlace);
        self.out_of_place |= step.large == Some(Promotion::OutOfPlace);
    }

    /// The program goes on using the block while daemons have their turns.
    fn use_for_a_while(&mut self, watch: &mut Watch, block: Vpn) {
        for _ in 0..60 {
            for page in (0..HUGE).map(|i| block + i) {
                if watch.kernel.backed_span(watch.process, page, true).unwrap() == PageCount(0) {
                    self.note_fault(watch.touch(page));
                }
            }
            let step = watch.tick(block);
            self.note_tick(step);
        }
        watch.kernel.check_invariants();
    }

    /// A program that fills its mapping in order.
    fn fill_a_block(&mut self, watch: &mut Watch) {
        let block = Vpn(1024);
        watch.map(VpnRange::new(block, PageCount(2 * HUGE)));
        let first = watch.touch(block);
        (self.taken_in_fault, self.prepared_first) = (first.taken as u64, first.prepared);
        self.note_fault(first);
        for i in 1..HUGE {
            let step = watch.touch(block + i);
            if i < first.taken.max(1) as u64 {
                self.prepared_later_max = self.prepared_later_max.max(step.prepared);
            }
            self.note_fault(step);
        }
        self.use_for_a_while(watch, block);
    }

    /// A program whose mapping reaches the end of a 2 MiB block after it has used what was there
    /// before.
    fn grow_into_a_block(&mut self, watch: &mut Watch) {
        let block = Vpn(4096);
        watch.map(VpnRange::new(block, PageCount(HUGE - 1)));
        (0..HUGE - 1).for_each(|i| self.note_fault(watch.touch(block + i)));
        watch.map(pages(block.0 + HUGE - 1, 1));
        self.use_for_a_while(watch, block);
    }

    /// A program that gives one of three pages back, and then all.
    fn give_back(&mut self, watch: &mut Watch) {
        let block = Vpn(2048);
        let range = VpnRange::new(block, PageCount(HUGE));
        watch.map(range);
        let before = watch.kernel.memory().free_frames();
        (0..3).for_each(|i| self.note_fault(watch.touch(block + i)));
        let step = watch.see(block, |watch| {
            watch.kernel.madvise(watch.process, pages(block.0 + 1, 1), Advice::DontNeed, &mut Bare).unwrap();
        });
        assert!(matches!(step.taken, 0 | -1), "one page was given back, and {} frames came", -step.taken);
        self.comes_back_on_unmap = step.taken == -1;
        watch.kernel.munmap(watch.process, range, &mut Bare).unwrap();
        assert_eq!(watch.kernel.memory().free_frames(), before, "all that was taken comes back with the last page");
        watch.kernel.check_invariants();
    }

    /// What is set aside comes back when memory is short, and no page of the program's goes.
    fn give_back_under_pressure(&mut self, watch: &mut Watch) {
        let block = Vpn(2048);
        watch.map(VpnRange::new(block, PageCount(HUGE)));
        (0..3).for_each(|i| self.note_fault(watch.touch(block + i)));
        watch.kernel.reclaim(MEMORY, Cpu(0), &mut Bare).unwrap();
        assert_eq!(watch.kernel.manager().reserved(), PageCount(0), "nothing is held back from those in need");
        assert!(watch.leaves(block)[..3].iter().all(Option::is_some), "what the program wrote stays");
        watch.kernel.check_invariants();
    }

    /// A program that leaves most of a block unused, whose mapping ends before the block does, and
    /// goes idle.
    fn be_idle(&mut self, watch: &mut Watch) {
        let block = Vpn(2048);
        watch.map(VpnRange::new(block, PageCount(HUGE - 1)));
        (0..3).for_each(|i| self.note_fault(watch.touch(block + i)));
        for _ in 0..60 {
            let step = watch.tick(block);
            self.relocated |= step.relocated && step.taken < 0;
        }
        watch.kernel.check_invariants();
    }

    /// The fact sheet of what was seen; its name and source are those of `sheet`.
    fn facts(&self, sheet: &Facts) -> Facts {
        let when = |fault, daemon| match (fault, daemon) {
            (false, false) => When::Never,
            (true, false) => When::Fault,
            (false, true) => When::Daemon,
            (true, true) => When::FaultOrDaemon,
        };
        Facts {
            block: PageCount(self.block),
            allocation: when(self.taken_in_fault == self.block, self.acquired_in_tick),
            preparation: match (self.prepared_first, self.prepared_later_max) {
                (first, _) if first == self.block => Preparation::Full,
                (1, 0 | 1) => Preparation::Incremental,
                _ => Preparation::IncrementalThenFull,
            },
            mapping: when(self.mapped_in_fault, self.mapped_in_tick),
            promotion: match (self.in_place, self.out_of_place) {
                (false, false) => Promotion::None,
                (true, false) => Promotion::InPlace,
                (false, true) => Promotion::OutOfPlace,
                (true, true) => panic!("{} promotes in place and by copying", sheet.name),
            },
            deallocation: match (self.comes_back_on_unmap, self.relocated) {
                (true, false) => Deallocation::OnUnmap,
                (false, false) => Deallocation::Deferred,
                (false, true) => Deallocation::Evicted,
                (true, true) => panic!("{} frees pages one by one and moves others for it", sheet.name),
            },
            ..*sheet
        }
    }
}

/// Which facts are false, in one line each.
fn falsehoods(sheet: &Facts, seen: &Facts) -> Vec<String> {
    let mut wrong = Vec::new();
    macro_rules! hold {
        ($($field:ident),*) => {
            $(if sheet.$field != seen.$field {
                wrong.push(format!("{}: {} is {:?} on the sheet and {:?} in fact",
                    sheet.name, stringify!($field), sheet.$field, seen.$field));
            })*
        };
    }
    hold!(block, allocation, preparation, mapping, promotion, deallocation);
    // A new fact has to be held above before this compiles again.
    let Facts {
        name: _,
        source: _,
        block: _,
        allocation: _,
        preparation: _,
        mapping: _,
        promotion: _,
        deallocation: _,
    } = sheet;
    wrong
}

/// Every manager as it is by default, and those whose facts depend on a key.
fn managers() -> Vec<ManagerConfig> {
    let sync_1 = QuicksilverConfig { threshold: 1, ..QuicksilverConfig::default() };
    ManagerConfig::all().into_iter().chain([ManagerConfig::Quicksilver(sync_1)]).collect()
}

#[test]
fn a_fact_sheet_says_what_the_manager_does() {
    for config in managers() {
        let sheet = config.build().facts();
        let seen = Seen::of(&|| config.build());
        assert_eq!(falsehoods(sheet, &seen.facts(sheet)), Vec::<String>::new(), "{seen:?}");
    }
}

/// Does what another manager does and says something else.
#[derive(Debug)]
struct Liar {
    does: Box<dyn MemoryManager>,
    says: &'static Facts,
}

impl MemoryManager for Liar {
    fn facts(&self) -> &'static Facts {
        self.says
    }

    fn keeps_for_huge_pages(&self) -> bool {
        self.does.keeps_for_huge_pages()
    }

    fn keeps_compounds(&self) -> bool {
        self.does.keeps_compounds()
    }

    fn shrink(&mut self, cx: &mut Context<'_>, priority: u32) -> PageCount {
        self.does.shrink(cx, priority)
    }

    fn can_shrink(&self) -> bool {
        self.does.can_shrink()
    }

    fn fault(&mut self, cx: &mut Context<'_>, fault: &Fault) -> Result<PageSize, OsError> {
        self.does.fault(cx, fault)
    }

    fn frame_for(&mut self, cx: &mut Context<'_>, fault: &Fault, fill: Fill) -> Result<Frame, OsError> {
        self.does.frame_for(cx, fault, fill)
    }

    fn remapped(&mut self, cx: &mut Context<'_>, fault: &Fault) -> Result<(), OsError> {
        self.does.remapped(cx, fault)
    }

    fn release(&mut self, cx: &mut Context<'_>, process: ProcessId, page: Vpn, frames: FrameRange, cause: Cause) {
        self.does.release(cx, process, page, frames, cause);
    }

    fn moved(&mut self, cx: &mut Context<'_>, moved: Moved) {
        self.does.moved(cx, moved);
    }

    fn exited(&mut self, cx: &mut Context<'_>, process: ProcessId) {
        self.does.exited(cx, process);
    }

    fn pressure(&mut self, cx: &mut Context<'_>, want: PageCount) -> PageCount {
        self.does.pressure(cx, want)
    }

    fn tick(&mut self, cx: &mut Context<'_>) -> Result<(), OsError> {
        self.does.tick(cx)
    }

    fn reserved(&self) -> PageCount {
        self.does.reserved()
    }

    fn check_invariants(&self, state: &KernelState) {
        self.does.check_invariants(state);
    }
}

/// Every fact sheet that differs from a true one in one field.
fn lies(truth: &Facts) -> Vec<(&'static str, Facts)> {
    let mut lies = Vec::new();
    for block in [1, 8, 512].map(PageCount) {
        lies.push(("block", Facts { block, ..*truth }));
    }
    for when in [When::Never, When::Fault, When::Daemon, When::FaultOrDaemon] {
        lies.push(("allocation", Facts { allocation: when, ..*truth }));
        lies.push(("mapping", Facts { mapping: when, ..*truth }));
    }
    for preparation in [Preparation::Full, Preparation::Incremental, Preparation::IncrementalThenFull] {
        lies.push(("preparation", Facts { preparation, ..*truth }));
    }
    for promotion in [Promotion::None, Promotion::InPlace, Promotion::OutOfPlace] {
        lies.push(("promotion", Facts { promotion, ..*truth }));
    }
    for deallocation in [Deallocation::OnUnmap, Deallocation::Deferred, Deallocation::Evicted] {
        lies.push(("deallocation", Facts { deallocation, ..*truth }));
    }
    lies.retain(|(_, lie)| lie != truth);
    lies
}

#[test]
fn a_false_fact_is_found_out() {
    for config in managers() {
        let truth = config.build().facts();
        // A manager does the same whatever it says, so one look serves all lies; one liar is looked
        // at by itself.
        let seen = Seen::of(&|| Box::new(Liar { does: config.build(), says: truth }));
        for (field, lie) in lies(truth) {
            let liar = Liar { does: config.build(), says: Box::leak(Box::new(lie)) };
            let wrong = falsehoods(liar.facts(), &seen.facts(liar.facts()));
            assert_eq!(wrong.len(), 1, "{wrong:?}");
            assert!(wrong[0].contains(&format!("{}: {field} is", truth.name)), "{wrong:?}");
        }
    }
}
