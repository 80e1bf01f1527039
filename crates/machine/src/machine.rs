// SPDX-License-Identifier: MIT OR Apache-2.0
//! A machine and its tenants: whose step comes next, and how time goes on with it.
//!
//! A tenant that has the machine to itself goes on in long steps, and the clock with it. Tenants
//! that share it take turns as the [`Schedule`] says, in slices.

use std::ops::Range;

use nestwalk_mem::{Cycles, Nanoseconds};
use nestwalk_mmu::Counters;
use nestwalk_workload::Step;

use crate::accesses::Detail;
use crate::clock::Clock;
use crate::colocated::{UntilConfig, VmConfig};
use crate::error::MachineError;
use crate::hardware::{Fill, Hardware};
use crate::meter::Work;
use crate::platform::Platform;
use crate::reserved::{Reserved, ReservedSeries};
use crate::schedule::{Schedule, Seat};
use crate::tenant::{Budget, StepOutcome, Tenant};

/// Which of a machine's tenants.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct TenantId(usize);

/// The turns of tenants that share the machine.
struct Turns {
    schedule: Schedule,
    /// Who has each seat.
    seats: Vec<TenantId>,
}

impl Turns {
    fn seat_of(&self, id: TenantId) -> Option<Seat> {
        self.seats.iter().position(|&other| other == id).map(|number| self.schedule.seat(number))
    }

    fn join(&mut self, id: TenantId, cpus: Range<usize>) {
        self.schedule.join(cpus);
        self.seats.push(id);
    }

    fn charge(&mut self, id: TenantId, cycles: Cycles) {
        if let Some(seat) = self.seat_of(id) {
            self.schedule.charge(seat, cycles);
        }
    }
}

/// See the [module's documentation](self).
pub(crate) struct Machine {
    pub platform: Platform,
    tenants: Vec<Tenant>,
    /// None while the first tenant has the machine to itself.
    turns: Option<Turns>,
    clock: Clock,
    reserved: ReservedSeries,
    frequency_mhz: u64,
}

impl Machine {
    /// The only tenant, or the measured one: the first to be added.
    pub const FIRST: TenantId = TenantId(0);

    /// A machine of `frequency_mhz` without tenants, whose kernels' clocks read `started`.
    pub fn new(platform: Platform, started: Nanoseconds, frequency_mhz: u64) -> Self {
        let (clock, reserved) = (Clock::from(started), ReservedSeries::default());
        Self { platform, tenants: Vec::new(), turns: None, clock, reserved, frequency_mhz }
    }

    /// Tenants take turns from now on.
    pub fn share(&mut self, schedule: Schedule) {
        self.turns = Some(Turns { schedule, seats: Vec::new() });
    }

    /// Whether tenants take turns.
    pub fn is_shared(&self) -> bool {
        self.turns.is_some()
    }

    /// A tenant is there, but does not take turns yet.
    pub fn add(&mut self, tenant: Tenant) -> TenantId {
        self.tenants.push(tenant);
        TenantId(self.tenants.len() - 1)
    }

    /// A tenant begins that is bound to the processors of its threads, or moves `among` processors
    /// of the machine.
    ///
    /// # Errors
    /// When its stream cannot be read.
    pub fn join(&mut self, tenant: Tenant, among: Option<Range<usize>>) -> Result<TenantId, MachineError> {
        let first_cpu = among.as_ref().map(|cpus| cpus.start);
        let id = self.add(tenant.moving(first_cpu));
        self.seat(id, among);
        self.prepare(id)?;
        Ok(id)
    }

    /// A tenant that is there takes turns from now on.
    pub fn seat(&mut self, id: TenantId, among: Option<Range<usize>>) {
        let (chain, stack) = (self.tenants[id.0].family.chain(), &self.platform.stack);
        let cpu = usize::from(stack.machine_cpu(chain, stack.cpu(chain, 0)).0);
        if let Some(turns) = &mut self.turns {
            turns.join(id, among.unwrap_or(cpu..cpu + 1));
        }
    }

    /// Reads the next step of a tenant: which thread comes next decides which processor it needs.
    fn prepare(&mut self, id: TenantId) -> Result<(), MachineError> {
        let tenant = &mut self.tenants[id.0];
        tenant.stream.fetch()?;
        if let (Some(turns), Some(cpu)) = (&mut self.turns, tenant.bound_cpu(&self.platform.stack))
            && let Some(seat) = turns.seat_of(id)
        {
            turns.schedule.bind(seat, cpu);
        }
        Ok(())
    }

    /// A tenant.
    pub fn tenant(&self, id: TenantId) -> &Tenant {
        &self.tenants[id.0]
    }

    /// A tenant, to change it.
    pub fn tenant_mut(&mut self, id: TenantId) -> &mut Tenant {
        &mut self.tenants[id.0]
    }

    /// All tenants, those that are gone included.
    pub fn ids(&self) -> impl Iterator<Item = TenantId> + use<> {
        (0..self.tenants.len()).map(TenantId)
    }

    /// What a tenant's cores have counted for it so far; `None` if it has none.
    pub fn counters(&self, id: TenantId) -> Option<Counters> {
        let user = self.tenants[id.0].user()?;
        self.platform.hardware.as_ref().map(|hardware| hardware.counters(user))
    }

    /// What `work` of the kernels for a tenant cost.
    pub fn cycles_of(&self, id: TenantId, work: &Work) -> Cycles {
        let Platform { stack, meter, .. } = &self.platform;
        meter.cycles(stack, self.tenants[id.0].family.chain(), work)
    }

    /// Reads what the kernels have done for a tenant until now.
    pub fn read_work(&mut self, id: TenantId) {
        let Platform { stack, meter, .. } = &mut self.platform;
        self.tenants[id.0].family.read(meter, stack);
    }

    /// One step of a tenant, on processor `at` of the machine: its outcome and its cost.
    ///
    /// # Errors
    /// When its stream cannot be read on, or a kernel is out of memory.
    pub fn step(&mut self, id: TenantId, at: usize, budget: Budget) -> Result<(StepOutcome, Cycles), MachineError> {
        self.tenants[id.0].step(at, budget, &mut self.platform)
    }

    /// The next step of the tenant whose turn it is, and its outcome. `None` when it is the turn of
    /// the measured tenant, which its run steps, or when no tenant is left.
    ///
    /// # Errors
    /// As [`Machine::step`].
    pub fn step_next(&mut self, detail: Detail) -> Result<Option<(TenantId, StepOutcome)>, MachineError> {
        let Some(turns) = &mut self.turns else { return Ok(None) };
        let Some((seat, cpu)) = turns.schedule.next() else { return Ok(None) };
        let id = turns.seats[seat.number()];
        let tenant = &mut self.tenants[id.0];
        if tenant.is_measured() {
            return Ok(None);
        }
        let (outcome, cycles) = tenant.step(cpu, Budget::slice(detail), &mut self.platform)?;
        if matches!(outcome, StepOutcome::Entered(_)) {
            // Its phases are not measured.
            tenant.stream.end_warm_up();
        }
        // A step that cost nothing would be chosen again and again before everybody else's.
        turns.schedule.charge(seat, cycles.max(Cycles(1)));
        if outcome != StepOutcome::Ended {
            self.prepare(id)?;
        }
        if let Some(Turns { schedule, .. }) = &mut self.turns {
            match outcome {
                StepOutcome::Ended => schedule.leave(seat),
                StepOutcome::Forked => schedule.fork(seat),
                StepOutcome::Returned => schedule.wake_parent(seat),
                StepOutcome::Worked | StepOutcome::Asked | StepOutcome::Entered(_) => {}
            }
        }
        Ok(Some((id, outcome)))
    }

    /// The next step of the measured tenant, which is not taken yet.
    ///
    /// # Errors
    /// When its stream cannot be read on.
    pub fn peek(&mut self, id: TenantId) -> Result<Step, MachineError> {
        self.tenants[id.0].stream.fetch()
    }

    /// A part of the measured tenant's next step, as soon as it is its turn. Its cost makes time go
    /// on: that of its instructions and of all kernel work for it. Waiting for memory is left out:
    /// it would make the daemons' pace, and who faults when, depend on the very latencies that are
    /// compared.
    ///
    /// # Errors
    /// As [`Machine::step`].
    pub fn step_measured(&mut self, id: TenantId, detail: Detail) -> Result<StepOutcome, MachineError> {
        Ok(self.step_measured_within(id, Budget::alone(detail))?.0)
    }

    /// The same with a part of at most `most` touches or accesses, and what its instructions and
    /// the kernel work in it cost.
    ///
    /// # Errors
    /// As [`Machine::step`].
    pub fn step_measured_within(&mut self, id: TenantId, most: Budget) -> Result<(StepOutcome, Cycles), MachineError> {
        self.prepare(id)?;
        if !self.is_shared() {
            let (outcome, cycles) = self.step(id, 0, most)?;
            self.clock.advance(cycles, self.frequency_mhz);
            return Ok((outcome, cycles));
        }
        while self.step_next(most.detail)?.is_some() {}
        let slice = Budget::slice(most.detail);
        let budget =
            Budget { touches: slice.touches.min(most.touches), accesses: slice.accesses.min(most.accesses), ..slice };
        let (outcome, cycles) = self.step(id, 0, budget)?;
        if let Some(turns) = &mut self.turns {
            turns.charge(id, cycles);
            self.clock.advance_to(turns.schedule.now(), self.frequency_mhz);
        }
        Ok((outcome, cycles))
    }

    /// The measured tenant's next step as a whole.
    ///
    /// # Errors
    /// As [`Machine::step`].
    pub fn finish_step(&mut self, id: TenantId) -> Result<(), MachineError> {
        while self.tenants[id.0].stream.pending().is_some() {
            self.step_measured(id, Detail::TlbOnly)?;
        }
        Ok(())
    }

    /// How full the last-level cache is, an exclusive one with the L2s above it.
    pub fn llc_fill(&self) -> Fill {
        self.platform.hardware.as_ref().map(Hardware::llc_fill).unwrap_or_default()
    }

    /// Lets tenants run until it is `until`, for some steps. Whether there is more to run.
    ///
    /// # Errors
    /// As [`Machine::step`].
    pub fn lead(&mut self, until: Cycles, steps: usize) -> Result<bool, MachineError> {
        for _ in 0..steps {
            let now = self.turns.as_ref().map_or(Cycles(u64::MAX), |turns| turns.schedule.now());
            if now >= until || self.step_next(Detail::TlbOnly)?.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Kills a tenant: its memory is free.
    ///
    /// # Errors
    /// When nothing below a kernel backs a frame.
    pub fn kill(&mut self, id: TenantId) -> Result<(), MachineError> {
        if !self.tenants[id.0].is_alive() {
            return Ok(());
        }
        if let Some(turns) = &mut self.turns
            && let Some(seat) = turns.seat_of(id)
        {
            turns.schedule.leave(seat);
        }
        self.tenants[id.0].kill(&mut self.platform)
    }

    /// The measured tenant has touched all its memory: those that were to run until then are
    /// killed.
    ///
    /// # Errors
    /// When nothing below a kernel backs a frame.
    pub fn populated(&mut self) -> Result<(), MachineError> {
        for number in 0..self.tenants.len() {
            let company = self.tenants[number].company();
            if company.is_some_and(|company| company.until == UntilConfig::Populated) {
                self.kill(TenantId(number))?;
            }
        }
        Ok(())
    }

    /// Lets `time` pass for the kernels' daemons: their clocks advance, and no tenant is charged
    /// for work.
    pub fn pass(&mut self, time: Nanoseconds) {
        self.clock.pass(time);
    }

    /// Wakes the daemons that are due, and looks at the memory in reserve of the tenant's kernel.
    ///
    /// # Errors
    /// When a kernel is out of memory.
    pub fn tick(&mut self, id: TenantId) -> Result<(), MachineError> {
        if self.clock.is_tick_due() || self.platform.stack.has_background_work() {
            self.wake_daemons(id)?;
        }
        let chain = self.tenants[id.0].family.chain();
        self.reserved.sample(self.clock.now(), self.platform.stack.top_kernel(chain));
        Ok(())
    }

    fn wake_daemons(&mut self, id: TenantId) -> Result<(), MachineError> {
        self.clock.ticked();
        if self.platform.stack.wants_walk_time() {
            self.tenants.iter_mut().for_each(|tenant| tenant.tell_walk_time(&mut self.platform));
        }
        let now = self.clock.now();
        self.tenants[id.0].family.tick(&mut self.platform.stack, now)?;
        self.platform.shoot_down();
        let Some(turns) = &mut self.turns else { return Ok(()) };
        // What the daemons did for the tenant's kernels is the tenant's; what they do for other VMs
        // is theirs.
        let Platform { stack, meter, .. } = &mut self.platform;
        turns.charge(id, self.tenants[id.0].family.read(meter, stack));
        for (number, tenant) in self.tenants.iter_mut().enumerate() {
            let has_own_vm = tenant.company().is_some_and(|company| company.vm == VmConfig::Own);
            if has_own_vm && tenant.is_alive() {
                tenant.family.tick_top(&mut self.platform.stack, now)?;
                self.platform.shoot_down();
                let Platform { stack, meter, .. } = &mut self.platform;
                turns.charge(TenantId(number), tenant.family.read(meter, stack));
            }
        }
        Ok(())
    }

    /// Memory in reserve over time.
    pub fn take_reserved(&mut self) -> Reserved {
        std::mem::take(&mut self.reserved).finish()
    }
}
