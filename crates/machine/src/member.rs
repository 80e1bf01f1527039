// SPDX-License-Identifier: MIT OR Apache-2.0
//! One program of the [`Crowd`](crate::crowd::Crowd), which goes on a step at a time.
//!
//! A step is what a program does without anybody noticing what the others do meanwhile: one first touch, one memory event, or
//! a short run of accesses.

use std::ops::Range;

use nestwalk_mem::{Cpu, Va};
use nestwalk_workload::{Batch, MemoryEvent, Step, Workload};

use crate::error::MachineError;
use crate::hardware::{Accesses, Detail, Hardware, Tenant};
use crate::meter::Meter;
use crate::program::{Program, shoot_down};
use crate::schedule::Seat;
use crate::spread::Spread;
use crate::stack::Stack;
use crate::timing::Timing;

/// Accesses of a step: few enough that lines of the shared cache come and go as if the programs ran at the same time.
pub(crate) const STEP_ACCESSES: u64 = 256;

/// Makes a program's stream from its beginning.
pub(crate) type Source = Box<dyn Fn() -> Result<Box<dyn Workload>, MachineError> + Send>;

/// A member of the crowd.
pub(crate) struct Member {
    pub program: Program,
    pub seat: Seat,
    /// Its cores; none where only its memory events matter.
    tenant: Option<Tenant>,
    /// The first processor of the machine of those among which it moves, if it does.
    first_cpu: Option<usize>,
    source: Source,
    workload: Box<dyn Workload>,
    batch: Batch,
    /// What the batch holds, and how much of it is done.
    pending: Option<Step>,
    done: usize,
    /// Accesses or touches of the program that what is done stands for.
    represented: u64,
    instructions: Spread,
    absorbed_stores: Spread,
    /// Whether it begins anew when it has ended.
    again: bool,
    /// It was told to end, and will as soon as it runs.
    dying: bool,
    /// What it did.
    pub tally: Tally,
}

/// What a member did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Tally {
    pub touches: u64,
    pub accesses: u64,
    pub instructions: u64,
    /// Times that it began anew.
    pub restarts: u64,
}

impl Tally {
    /// Counts what `other` did, too.
    pub fn add(&mut self, other: &Self) {
        self.touches += other.touches;
        self.accesses += other.accesses;
        self.instructions += other.instructions;
        self.restarts += other.restarts;
    }
}

/// How a program joins the crowd.
pub(crate) struct Joining {
    pub program: Program,
    pub tenant: Option<Tenant>,
    /// The processors of the machine among which it moves; `None` where its threads have processors of their own.
    pub among: Option<Range<usize>>,
    pub again: bool,
    pub source: Source,
}

/// What the crowd works with.
pub(crate) struct Workshop<'a> {
    pub stack: &'a mut Stack,
    pub hardware: Option<&'a mut Hardware>,
    pub meter: &'a mut Meter,
}

impl<'a> Workshop<'a> {
    /// Over these; without hardware, nobody's accesses are simulated.
    pub fn new(stack: &'a mut Stack, hardware: Option<&'a mut Hardware>, meter: &'a mut Meter) -> Self {
        Self { stack, hardware, meter }
    }

    /// Applies the shootdowns that kernels asked for.
    pub fn shoot_down(&mut self) {
        match &mut self.hardware {
            Some(hardware) => shoot_down(self.stack, hardware),
            None => self.stack.drain_invalidations(|_, _| {}),
        }
    }
}

/// How a step left its program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Went {
    /// It goes on.
    On,
    /// It waits for a child, which goes on in its place.
    Forked,
    /// The child is gone.
    Returned,
    /// It has ended, and does not begin again. Its memory is still there.
    Ended,
}

impl Member {
    /// A program that is about to begin, and has taken its `seat`.
    ///
    /// # Errors
    /// When its stream cannot be opened.
    pub fn new(joining: Joining, seat: Seat) -> Result<Self, MachineError> {
        let Joining { program, tenant, among, again, source } = joining;
        let mut member = Self {
            program,
            seat,
            tenant,
            first_cpu: among.map(|cpus| cpus.start),
            workload: source()?,
            source,
            batch: Batch::default(),
            pending: None,
            done: 0,
            represented: 0,
            instructions: Spread::default(),
            absorbed_stores: Spread::default(),
            again,
            dying: false,
            tally: Tally::default(),
        };
        member.fetch()?;
        Ok(member)
    }

    /// Sends it a signal that ends it. A child for which it waits lives on to its own end.
    pub fn terminate(&mut self) {
        self.dying = true;
    }

    /// Its cores, if its accesses are simulated.
    pub fn tenant(&self) -> Option<Tenant> {
        self.tenant
    }

    /// One step, on processor `cpu` of the machine: how it went and what it cost, in cycles.
    pub fn step(
        &mut self,
        cpu: usize,
        detail: Detail,
        timing: &Timing,
        shop: &mut Workshop<'_>,
    ) -> Result<(Went, u64), MachineError> {
        let cpu = self.cpu(cpu, shop.stack);
        if self.dying && !self.program.is_child() {
            return Ok((Went::Ended, 0));
        }
        let mut work = 0;
        let went = match self.fetch()? {
            Step::Touches => self.touch(cpu, timing, &mut work, shop)?,
            Step::Accesses => self.access(cpu, detail, timing, &mut work, shop)?,
            Step::Event(event) => {
                self.pending = None;
                self.program.event(shop.stack, &event, cpu)?;
                let went = match event {
                    MemoryEvent::ForkAndWait => Went::Forked,
                    MemoryEvent::ChildExit => Went::Returned,
                    _ => Went::On,
                };
                self.follow_process(went != Went::On, shop);
                went
            }
            Step::Phase(_) => {
                // Nobody measures it.
                self.workload.end_warm_up();
                self.pending = None;
                Went::On
            }
            Step::End => self.end(cpu, shop)?,
        };
        // A flush may be an exit (shadow paging), which is the work of whoever made it.
        shop.shoot_down();
        work += self.program.read(shop.meter, shop.stack);
        if went != Went::Ended {
            // Which thread comes next decides which processor the next step needs.
            self.fetch()?;
        }
        Ok((went, work))
    }

    /// What the batch holds, filled anew when it is used up.
    fn fetch(&mut self) -> Result<Step, MachineError> {
        if let Some(step) = self.pending {
            return Ok(step);
        }
        let step = self.workload.next(&mut self.batch)?;
        (self.pending, self.done, self.represented) = (Some(step), 0, 0);
        let all = self.batch.represented() + self.batch.touches.len() as u64;
        self.instructions = Spread::new(self.batch.instructions, all);
        self.absorbed_stores = Spread::new(self.batch.absorbed_stores, all);
        Ok(step)
    }

    fn touch(
        &mut self,
        cpu: Cpu,
        timing: &Timing,
        work: &mut u64,
        shop: &mut Workshop<'_>,
    ) -> Result<Went, MachineError> {
        let count = self.batch.touches.len();
        if let Some(&(page, store)) = self.batch.touches.get(self.done) {
            self.program.touch(shop.stack, page, store, cpu)?;
            *work += self.share(timing, 1);
            self.tally.touches += 1;
        }
        self.advance(1, count);
        Ok(Went::On)
    }

    fn access(
        &mut self,
        cpu: Cpu,
        detail: Detail,
        timing: &Timing,
        work: &mut u64,
        shop: &mut Workshop<'_>,
    ) -> Result<Went, MachineError> {
        let count = self.batch.accesses.len();
        let (taken, represented) = Accesses::of(&self.batch, self.done..count).standing_for(STEP_ACCESSES);
        let end = self.done + taken;
        let accesses = Accesses::of(&self.batch, self.done..end);
        match (self.tenant, &mut shop.hardware) {
            (Some(tenant), Some(hardware)) => {
                let thread = self.batch.thread;
                self.program.run(shop.stack, hardware, tenant, thread, accesses, detail)?;
                let stores = self.absorbed_stores.of(self.represented, represented);
                if stores > 0 {
                    hardware.count_absorbed_stores(tenant, thread.0, stores, detail);
                }
            }
            // Only its faults matter.
            _ => {
                for access in accesses.all {
                    self.program.touch(shop.stack, Va::from(access.gva()).page(), access.is_store(), cpu)?;
                }
            }
        }
        *work += self.share(timing, represented);
        self.tally.accesses += represented;
        self.advance(end - self.done, count);
        Ok(Went::On)
    }

    /// Cycles of the instructions of the next `part` of the accesses or touches that the batch stands for.
    fn share(&mut self, timing: &Timing, part: u64) -> u64 {
        let instructions = self.instructions.of(self.represented, part);
        self.represented += part;
        self.tally.instructions += instructions;
        timing.work(instructions)
    }

    fn advance(&mut self, by: usize, count: usize) {
        self.done += by;
        if self.done >= count {
            self.pending = None;
        }
    }

    fn end(&mut self, cpu: Cpu, shop: &mut Workshop<'_>) -> Result<Went, MachineError> {
        if !self.again {
            return Ok(Went::Ended);
        }
        self.program.restart(shop.stack, cpu)?;
        self.follow_process(true, shop);
        self.workload = (self.source)()?;
        self.pending = None;
        self.tally.restarts += 1;
        Ok(Went::On)
    }

    /// The program may be another process than before.
    fn follow_process(&mut self, changed: bool, shop: &mut Workshop<'_>) {
        if changed && let (Some(tenant), Some(hardware)) = (self.tenant, &mut shop.hardware) {
            hardware.replace(tenant, self.program.place());
        }
    }

    /// The processor of its kernel that is number `cpu` of the machine.
    fn cpu(&self, cpu: usize, stack: &Stack) -> Cpu {
        match self.first_cpu {
            Some(first) => stack.cpu(self.program.place(), (cpu - first) as u16),
            None => stack.cpu(self.program.place(), self.batch.thread.0),
        }
    }

    pub fn last_cpu(&self, stack: &Stack) -> Cpu {
        stack.cpu(self.program.place(), self.batch.thread.0)
    }

    /// The processor of the machine that its next step needs, if its threads are bound.
    pub fn next_cpu(&self, stack: &Stack) -> Option<usize> {
        if self.first_cpu.is_some() {
            return None;
        }
        let place = self.program.place();
        Some(stack.machine_cpu(place, stack.cpu(place, self.batch.thread.0)).0.into())
    }
}
