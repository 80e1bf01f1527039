// SPDX-License-Identifier: MIT OR Apache-2.0
//! A tenant of the machine: a program with its processes, its stream and its cores, from its
//! beginning to its end. The measured program is one, and so is each program beside it.
//!
//! A tenant goes on in steps. A step is what it does while no other tenant notices: one memory
//! event, some first touches, or a run of accesses.

use nestwalk_mem::{Access, Cpu, Cycles, Va};
use nestwalk_mmu::{Accesses, Asid, RunEnd, Taken};
use nestwalk_workload::{MemoryEvent, Phase, Step, Workload};

use crate::accesses::Detail;
use crate::colocated::{UntilConfig, VmConfig};
use crate::error::MachineError;
use crate::platform::Platform;
use crate::process_family::ProcessFamily;
use crate::spread::Spread;
use crate::stack::Stack;
use crate::stream::{Share, Stream};
use crate::waiting::{Sampled, Waiting};
use crate::walk_time::Counted;

/// Makes a program's stream from its beginning.
pub(crate) type Source = Box<dyn Fn() -> Result<Box<dyn Workload>, MachineError> + Send>;

/// How much a tenant does in a step, and how closely its accesses are looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Budget {
    pub touches: usize,
    pub accesses: u64,
    pub detail: Detail,
    /// No other tenant runs. The kernels' work for a memory event is then read with the next step.
    pub is_alone: bool,
}

impl Budget {
    /// A slice: few enough accesses that lines of the shared cache come and go as if tenants ran at
    /// the same time.
    pub const fn slice(detail: Detail) -> Self {
        Self { touches: 1, accesses: 256, detail, is_alone: false }
    }

    /// All that there is: for a tenant that has the machine to itself.
    pub const fn alone(detail: Detail) -> Self {
        Self { touches: usize::MAX, accesses: u64::MAX, detail, is_alone: true }
    }
}

/// How a step left its tenant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum StepOutcome {
    /// It touched memory, or ran accesses.
    Worked,
    /// It asked its kernel for something.
    Asked,
    /// It waits for a child, which goes on in its place.
    Forked,
    /// The child is gone.
    Returned,
    /// It entered another phase.
    Entered(Phase),
    /// It has ended, and does not begin again. Its memory is still there.
    Ended,
}

/// Whether a tenant goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Life {
    Alive,
    /// It was told to end, and will as soon as it runs. A child that it waits for lives on.
    Dying,
    /// Its processes have exited.
    Gone,
}

/// What a tenant did.
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

/// What a scenario says of a program beside the measured one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Company {
    /// Which of the scenario's entries it is.
    pub entry: usize,
    pub until: UntilConfig,
    pub vm: VmConfig,
}

/// See the [module's documentation](self).
pub(crate) struct Tenant {
    pub family: ProcessFamily,
    pub stream: Stream,
    /// By which cores know it; none where only its memory events and faults matter.
    user: Option<Asid>,
    /// The first processor of the machine of those among which it moves, if it does.
    first_cpu: Option<usize>,
    /// Where it begins anew when it has ended, if it does.
    source: Option<Source>,
    company: Option<Company>,
    is_measured: bool,
    life: Life,
    pub tally: Tally,
    /// What its kernels have been told of its walks.
    told: Counted,
    /// How long it waits, if it says which access needs which.
    waiting: Option<Waiting>,
}

impl Tenant {
    /// A program that is about to begin, and ends when `workload` does. Cores know it as `user`.
    pub fn new(family: ProcessFamily, workload: Box<dyn Workload>, user: Option<Asid>) -> Self {
        Self {
            family,
            stream: Stream::new(workload),
            user,
            first_cpu: None,
            source: None,
            company: None,
            is_measured: false,
            life: Life::Alive,
            tally: Tally::default(),
            told: Counted::default(),
            waiting: None,
        }
    }

    /// The same as the program that the run is about.
    pub fn measured(self) -> Self {
        Self { is_measured: true, ..self }
    }

    /// Its waiting is looked at from now on, if there is what does it.
    pub fn look_at_waiting(&mut self, waiting: Option<Waiting>) {
        self.waiting = waiting;
    }

    /// What was counted of its waiting; none if that is not looked at.
    pub fn sampled(&self) -> Sampled {
        self.waiting.as_ref().map(|waiting| *waiting.sampled()).unwrap_or_default()
    }

    /// The same, which begins anew from `source` whenever it has ended.
    pub fn again(self, source: Source) -> Self {
        Self { source: Some(source), ..self }
    }

    /// The same, which moves among processors of the machine, of which this is the first.
    pub fn moving(self, first_cpu: Option<usize>) -> Self {
        Self { first_cpu, ..self }
    }

    /// The same as a program beside the measured one.
    pub fn beside(self, company: Company) -> Self {
        Self { company: Some(company), ..self }
    }

    /// What the scenario says of it, if it is beside the measured program.
    pub fn company(&self) -> Option<&Company> {
        self.company.as_ref()
    }

    /// Whether the run is about it.
    pub fn is_measured(&self) -> bool {
        self.is_measured
    }

    /// By which cores know it.
    pub fn user(&self) -> Option<Asid> {
        self.user
    }

    /// Whether its processes are there.
    pub fn is_alive(&self) -> bool {
        self.life != Life::Gone
    }

    /// Sends it a signal that ends it: its next step is its last. A child for which it waits lives
    /// on to its own end.
    pub fn terminate(&mut self) {
        if self.is_alive() {
            self.life = Life::Dying;
        }
    }

    /// Its processes exit: its memory is free.
    ///
    /// # Errors
    /// When nothing below a kernel backs a frame.
    pub fn kill(&mut self, platform: &mut Platform) -> Result<(), MachineError> {
        self.life = Life::Gone;
        let cpu = self.thread_cpu(&platform.stack);
        self.family.exit(&mut platform.stack, cpu)?;
        platform.shoot_down();
        self.family.read(&mut platform.meter, &platform.stack);
        Ok(())
    }

    /// Tells its kernels how long it has walked and run since they were told last.
    pub fn tell_walk_time(&mut self, platform: &mut Platform) {
        let (Some(user), Some(hardware)) = (self.user, &platform.hardware) else { return };
        let now = hardware.counted(user, self.tally.instructions);
        let more = now.since(&self.told, hardware.config(), &platform.timing);
        self.told = now;
        if self.is_alive() {
            platform.stack.add_walk_time(self.family.chain(), more);
        }
    }

    /// One step, on processor `at` of the machine (where a program that moves is). Returns its
    /// outcome, and the cost of its instructions and of the kernels' work for it.
    ///
    /// # Errors
    /// When its stream cannot be read on, or a kernel is out of memory.
    pub fn step(
        &mut self,
        at: usize,
        budget: Budget,
        platform: &mut Platform,
    ) -> Result<(StepOutcome, Cycles), MachineError> {
        let cpu = match self.first_cpu {
            Some(first) => platform.stack.cpu(self.family.chain(), (at - first) as u16),
            None => self.thread_cpu(&platform.stack),
        };
        if self.life == Life::Dying && !self.family.is_child() {
            return Ok((StepOutcome::Ended, Cycles(0)));
        }
        let mut cycles = Cycles(0);
        let outcome = match self.stream.fetch()? {
            Step::Touches => {
                cycles += self.touch(cpu, budget, platform)?;
                StepOutcome::Worked
            }
            Step::Accesses => {
                cycles += self.access(cpu, budget, platform)?;
                StepOutcome::Worked
            }
            Step::Event(event) => {
                self.stream.finish();
                self.ask(event, cpu, platform)?
            }
            Step::Phase(phase) => {
                self.stream.finish();
                StepOutcome::Entered(phase)
            }
            Step::End => self.end(cpu, platform)?,
        };
        // A flush may be an exit (shadow paging), which belongs to the tenant that caused it.
        platform.shoot_down();
        if outcome == StepOutcome::Worked || !budget.is_alone {
            cycles += self.family.read(&mut platform.meter, &platform.stack);
        }
        Ok((outcome, cycles))
    }

    fn touch(&mut self, cpu: Cpu, budget: Budget, platform: &mut Platform) -> Result<Cycles, MachineError> {
        let (part, share) = self.stream.take_touches(budget.touches);
        for &(page, store) in self.stream.touches(part) {
            self.family.touch(&mut platform.stack, page, store, cpu)?;
        }
        self.tally.touches += share.represented;
        Ok(self.work(share.instructions, platform))
    }

    /// The one way of accesses to a core, with all the faults that they need.
    fn access(&mut self, cpu: Cpu, budget: Budget, platform: &mut Platform) -> Result<Cycles, MachineError> {
        let (part, share) = self.stream.take_accesses(budget.accesses);
        let whole = self.stream.accesses(part);
        let thread = self.stream.thread().0;
        if let (Some(user), Some(_)) = (self.user, &platform.hardware) {
            let mut cores = Cores { family: &mut self.family, user, thread, cpu, platform };
            match &mut self.waiting {
                Some(waiting) if budget.detail == Detail::Timed => cores.run_timed(waiting, whole, share)?,
                _ => cores.run(whole, budget.detail)?,
            }
            if let Some(hardware) = &mut platform.hardware {
                hardware.count_absorbed_stores(user, thread, share.absorbed_stores, budget.detail);
            }
        } else {
            // Only its faults matter.
            for access in whole.all {
                self.family.touch(&mut platform.stack, Va::from(access.gva()).page(), access.is_store(), cpu)?;
            }
        }
        if platform.stack.watches_stores(self.family.chain()) {
            // Of the accesses that a filter absorbed it is not known which were stores.
            let may_store = |access: &&Access| access.is_store() || !whole.absorbed.is_empty();
            for access in whole.all.iter().filter(may_store) {
                platform.stack.note_store(self.family.chain(), Va::from(access.gva()).page());
            }
        }
        self.tally.accesses += share.represented;
        Ok(self.work(share.instructions, platform))
    }

    fn work(&mut self, instructions: u64, platform: &Platform) -> Cycles {
        self.tally.instructions += instructions;
        platform.timing.work(instructions)
    }

    fn ask(&mut self, event: MemoryEvent, cpu: Cpu, platform: &mut Platform) -> Result<StepOutcome, MachineError> {
        self.family.event(&mut platform.stack, &event, cpu)?;
        let outcome = match event {
            MemoryEvent::ForkAndWait | MemoryEvent::SpawnAndWait => StepOutcome::Forked,
            MemoryEvent::ChildExit => StepOutcome::Returned,
            _ => return Ok(StepOutcome::Asked),
        };
        self.load(platform);
        Ok(outcome)
    }

    fn end(&mut self, cpu: Cpu, platform: &mut Platform) -> Result<StepOutcome, MachineError> {
        let Some(source) = &self.source else { return Ok(StepOutcome::Ended) };
        self.stream.restart(source()?);
        self.family.restart(&mut platform.stack, cpu)?;
        self.load(platform);
        self.tally.restarts += 1;
        Ok(StepOutcome::Asked)
    }

    /// Its cores use the tables of the process that it is now.
    fn load(&self, platform: &mut Platform) {
        if let (Some(user), Some(hardware)) = (self.user, &mut platform.hardware) {
            hardware.load(user, self.family.chain());
        }
    }

    /// The processor of its kernel on which the thread of its next step runs.
    pub fn thread_cpu(&self, stack: &Stack) -> Cpu {
        stack.cpu(self.family.chain(), self.stream.thread().0)
    }

    /// The processor of the machine that its next step needs, if its threads are bound.
    pub fn bound_cpu(&self, stack: &Stack) -> Option<usize> {
        let cpu = || stack.machine_cpu(self.family.chain(), self.thread_cpu(stack));
        self.first_cpu.is_none().then(|| cpu().0.into())
    }
}

/// A tenant on its way to a core.
struct Cores<'a> {
    family: &'a mut ProcessFamily,
    user: Asid,
    thread: u16,
    cpu: Cpu,
    platform: &'a mut Platform,
}

impl Cores<'_> {
    /// Runs `accesses`, with all the faults that they need.
    fn run(&mut self, mut accesses: Accesses<'_>, detail: Detail) -> Result<(), MachineError> {
        let Self { family, user, thread, cpu, platform } = self;
        loop {
            let Platform { hardware: Some(hardware), stack, .. } = &mut **platform else { return Ok(()) };
            let ran = hardware.run(*user, *thread, stack, accesses, detail);
            match ran.map_err(|error| family.failed(family.chain().top(), error))? {
                RunEnd::Done => return Ok(()),
                RunEnd::Fault { index, fault } => {
                    accesses = accesses.from(index);
                    family.serve(stack, fault, *cpu)?;
                    platform.shoot_down();
                }
            }
        }
    }

    /// The same, and looks at how long the program waits for some of them.
    fn run_timed(&mut self, waiting: &mut Waiting, accesses: Accesses<'_>, share: Share) -> Result<(), MachineError> {
        debug_assert!(accesses.absorbed.is_empty(), "what filtered accesses need is not known");
        let all = accesses.all;
        let instructions = Spread::new(share.instructions, all.len() as u64);
        let mut done = 0;
        while done < all.len() {
            let (count, one_by_one) = waiting.ahead(self.thread, all.len() - done);
            let some = &all[done..done + count];
            if one_by_one {
                for (index, one) in (done as u64..).zip(some.chunks(1)) {
                    let before = self.taken();
                    self.run(Accesses::unfiltered(one), Detail::Timed)?;
                    waiting.pass(one[0], instructions.of(index, 1), &self.taken().since(&before));
                }
            } else {
                self.run(Accesses::unfiltered(some), Detail::Timed)?;
                waiting.skip(count);
            }
            done += count;
        }
        Ok(())
    }

    fn taken(&mut self) -> Taken {
        self.platform.hardware.as_mut().map(|hardware| hardware.taken(self.user, self.thread)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::add_kernel;
    use crate::chain::KernelChain;
    use crate::hardware::{AnyAccelerator, Hardware};
    use crate::scenario::CoRunnerConfig;
    use crate::testing::{FIRST, Line, Script, kernels, machine_config, map, mmap, platform};
    use nestwalk_mem::{Hpa, Nanoseconds, PageCount};
    use nestwalk_os::manager::hawkeye::HawkEyeConfig;
    use nestwalk_os::{KernelConfig, ManagerConfig};

    const SLICE: Budget = Budget::slice(Detail::TlbOnly);

    fn tenant(lines: &[Line]) -> (Tenant, Platform) {
        let (stack, chain) = kernels(2);
        let tenant = Tenant::new(ProcessFamily::new("test".into(), chain), Script::of(lines), None);
        (tenant, platform(stack))
    }

    fn free(tenant: &Tenant, platform: &Platform) -> u64 {
        platform.stack.top_kernel(tenant.family.chain()).memory().free_frames().0
    }

    #[test]
    fn a_slice_is_one_touch_and_alone_a_tenant_takes_all() {
        let (mut sliced, mut shared) = tenant(&[mmap(8), Line::Touch(8, 8000)]);
        sliced.step(0, SLICE, &mut shared).unwrap();
        let slices = [1, 2, 3, 4, 5, 6, 7, 8].map(|touches| {
            let (_, cycles) = sliced.step(0, SLICE, &mut shared).unwrap();
            assert_eq!(sliced.tally.touches, touches);
            cycles
        });
        assert_eq!(sliced.step(0, SLICE, &mut shared).unwrap().0, StepOutcome::Ended);
        let (mut whole, mut own) = tenant(&[mmap(8), Line::Touch(8, 8000)]);
        let alone = Budget::alone(Detail::TlbOnly);
        let (outcome, of_event) = whole.step(0, alone, &mut own).unwrap();
        assert_eq!((outcome, of_event), (StepOutcome::Asked, Cycles(0)), "read with what comes next");
        let (outcome, cycles) = whole.step(0, alone, &mut own).unwrap();
        assert_eq!((outcome, whole.tally), (StepOutcome::Worked, sliced.tally));
        assert!(cycles > slices.into_iter().sum(), "with the event's cost: {cycles:?} > {slices:?}");
    }

    #[test]
    fn instructions_are_spread_evenly_over_touches() {
        let (other, mut platform) = tenant(&[mmap(4), Line::Touch(4, 4_000_000)]);
        let mut measured = other.measured();
        measured.step(0, SLICE, &mut platform).unwrap();
        let of_steps = [(); 4].map(|()| {
            let before = measured.tally.instructions;
            measured.step(0, SLICE, &mut platform).unwrap();
            measured.tally.instructions - before
        });
        assert_eq!(of_steps, [1_000_000; 4]);
    }

    #[test]
    fn its_kernel_is_told_once_how_long_it_has_walked() {
        let (mut stack, chain) = kernels(1);
        stack.drain_invalidations(|_, _| {});
        let (accelerator, config) = (AnyAccelerator::None, machine_config().mmu);
        let mut hardware = Hardware::new(&config, accelerator, CoRunnerConfig::None, Hpa(1 << 28), 1).unwrap();
        let user = hardware.add(&chain, 1).unwrap();
        let lines = [mmap(8), Line::Touch(8, 8), Line::Load(8), Line::Load(8)];
        let mut tenant = Tenant::new(ProcessFamily::new("test".into(), chain), Script::of(&lines), Some(user));
        let mut platform = Platform { hardware: Some(hardware), ..platform(stack) };
        let alone = Budget::alone(Detail::Full);
        let mut told = |tenant: &mut Tenant, steps: usize| {
            for _ in 0..steps {
                tenant.step(0, alone, &mut platform).unwrap();
            }
            tenant.tell_walk_time(&mut platform);
            platform.stack.top_kernel(&chain).walk_time(chain.process()).unwrap()
        };
        let populated = told(&mut tenant, 2);
        assert!(populated.walk_cycles == 0 && populated.cycles > 0, "{populated:?}");
        let walked = told(&mut tenant, 1);
        assert!(walked.walk_cycles > 0 && walked.cycles > populated.cycles, "{walked:?}");
        assert_eq!(told(&mut tenant, 0), walked);
        let again = told(&mut tenant, 1);
        assert_eq!(again.walk_cycles, walked.walk_cycles, "the TLB has all of it");
    }

    /// Pages of zeroes that HawkEye takes out of a huge page, 64 pages of which were populated,
    /// when the program has done the accesses of `line`.
    fn recovered_after(line: Line) -> u64 {
        let (mut stack, mut config) = (Stack::default(), KernelConfig::new(PageCount(1 << 14)));
        let hawkeye = HawkEyeConfig {
            recovery_sleep_ms: 15_000,
            recovery_above_permille: 0,
            recovery_down_to_permille: 0,
            ..HawkEyeConfig::default()
        };
        config.manager = ManagerConfig::HawkEye(hawkeye);
        let chain = KernelChain::new(&[add_kernel(&mut stack, &[], &config, None, Cpu(0)).unwrap()]);
        map(&mut stack, &chain, 512);
        let tick = |stack: &mut Stack, second: u64| {
            let now = Nanoseconds::from_ms(1000 * second);
            stack.with(&chain, 0, Cpu(0), |kernel, _, below| kernel.tick(now, below)).unwrap();
        };
        for second in 1..=12 {
            (0..64).for_each(|page| stack.touch(&chain, FIRST + page, true, Cpu(0)).unwrap());
            tick(&mut stack, second);
        }
        stack.drain_invalidations(|_, _| {});
        assert!(stack.watches_stores(&chain));
        let (accelerator, mmu) = (AnyAccelerator::None, machine_config().mmu);
        let mut hardware = Hardware::new(&mmu, accelerator, CoRunnerConfig::None, Hpa(1 << 28), 1).unwrap();
        let user = hardware.add(&chain, 1).unwrap();
        let mut tenant = Tenant::new(ProcessFamily::new("test".into(), chain), Script::of(&[line]), Some(user));
        let mut platform = Platform { hardware: Some(hardware), ..platform(stack) };
        tenant.step(0, Budget::alone(Detail::Full), &mut platform).unwrap();
        tick(&mut platform.stack, 15);
        let counters = platform.stack.top_kernel(&chain).manager().counters();
        nestwalk_mem::counters::value(&counters, "recovered_pages")
    }

    #[test]
    fn its_kernel_hears_of_stores_to_huge_pages_that_no_fault_tells_of() {
        assert_eq!(recovered_after(Line::Load(100)), 512 - 64);
        assert_eq!(recovered_after(Line::Store(100)), 512 - 100);
    }

    #[test]
    fn one_that_begins_anew_is_another_process_without_memory() {
        let lines = vec![mmap(8), Line::Touch(8, 8)];
        let (once, mut platform) = tenant(&lines);
        let source: Source = Box::new(move || Ok(Script::of(&lines)));
        let mut tenant = once.again(source);
        let process = tenant.family.chain().process();
        let before = free(&tenant, &platform);
        for _ in 0..9 {
            tenant.step(0, SLICE, &mut platform).unwrap();
        }
        assert!(free(&tenant, &platform) <= before - 8);
        assert_eq!(tenant.step(0, SLICE, &mut platform).unwrap().0, StepOutcome::Asked);
        assert_eq!((tenant.tally.restarts, free(&tenant, &platform)), (1, before));
        assert_ne!(tenant.family.chain().process(), process);
        assert!(platform.stack.table(tenant.family.chain(), 1).is_ok());
    }

    #[test]
    fn a_signal_ends_a_tenant_when_the_child_that_it_waits_for_is_gone() {
        let events = [MemoryEvent::ForkAndWait, MemoryEvent::ChildExit].map(Line::Event);
        let [fork, exit] = events;
        let (mut tenant, mut platform) = tenant(&[fork, mmap(4), exit, Line::Touch(1, 1)]);
        let mut step = |tenant: &mut Tenant| tenant.step(0, SLICE, &mut platform).unwrap().0;
        assert_eq!(step(&mut tenant), StepOutcome::Forked);
        tenant.terminate();
        assert_eq!(step(&mut tenant), StepOutcome::Asked, "the child");
        assert_eq!(step(&mut tenant), StepOutcome::Returned);
        assert_eq!(step(&mut tenant), StepOutcome::Ended);
        assert_eq!(tenant.tally.touches, 0);
        assert!(tenant.is_alive(), "its memory is still there");
    }

    #[test]
    fn a_killed_tenants_processes_are_gone() {
        let (mut tenant, mut platform) = tenant(&[mmap(8), Line::Touch(8, 8)]);
        let before = free(&tenant, &platform);
        for _ in 0..9 {
            tenant.step(0, SLICE, &mut platform).unwrap();
        }
        tenant.kill(&mut platform).unwrap();
        assert!(!tenant.is_alive());
        assert!(free(&tenant, &platform) > before, "the root of its table is free, too");
        let gone = platform.stack.translation(tenant.family.chain()).unwrap_err();
        assert!(matches!(gone, nestwalk_os::OsError::NoProcess(_)), "{gone}");
        tenant.terminate();
        assert!(!tenant.is_alive());
    }

    #[test]
    fn accesses_without_cores_only_fault() {
        let (mut tenant, mut platform) = tenant(&[Line::Load(600)]);
        let chain = *tenant.family.chain();
        map(&mut platform.stack, &chain, 600);
        assert_eq!(tenant.step(0, SLICE, &mut platform).unwrap().0, StepOutcome::Worked);
        assert_eq!(tenant.tally.accesses, 256);
        let mapped = |platform: &Platform| {
            let table = platform.stack.table(&chain, 1).unwrap();
            (0..600).filter(|&page| table.translate(FIRST + page).is_some()).count()
        };
        assert_eq!(mapped(&platform), 256);
        for _ in 0..2 {
            tenant.step(0, SLICE, &mut platform).unwrap();
        }
        assert_eq!((tenant.tally.accesses, mapped(&platform)), (600, 600));
    }
}
