// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cores, their shared cache and who uses them, and the one place where a slice of accesses meets a program's tables.

use std::ops::Range;

use nestwalk_mem::{Access, Frame, Hpa, VpnRange};
use nestwalk_mmu::{
    Asap, Asid, Core, Counters, Llc, MmuConfig, MmuError, Native, Nested, NoCoRunner, Prefetcher, RandomCoRunner,
    RunEnd, Segmented,
};
use nestwalk_os::{Invalidation, OsError, ProcessId, Scope};
use nestwalk_workload::Batch;

use crate::asap::{AsapScenario, Follower};
use crate::chain::KernelChain;
use crate::error::MachineError;
use crate::scenario::{CoRunnerConfig, Configuration};
use crate::stack::{Stack, Translation};
use crate::warm_up::Fill;

/// How closely accesses are looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Detail {
    /// Only the TLBs see them.
    TlbOnly,
    /// Everything does.
    Full,
}

/// Accesses of a thread, one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Accesses<'a> {
    /// Those that are there.
    pub all: &'a [Access],
    /// How many a filter absorbed after each of them; empty if they are not filtered.
    pub absorbed: &'a [u32],
}

impl<'a> Accesses<'a> {
    /// The part of a batch between two of its accesses.
    pub fn of(batch: &'a Batch, part: Range<usize>) -> Self {
        let absorbed = if batch.absorbed.is_empty() { &[][..] } else { &batch.absorbed[part.clone()] };
        Self { all: &batch.accesses[part], absorbed }
    }

    /// Those from `index` on.
    pub fn from(self, index: usize) -> Self {
        Self { all: &self.all[index..], absorbed: self.absorbed.get(index..).unwrap_or(&[]) }
    }

    /// The first `count` of them.
    pub fn first(self, count: usize) -> Self {
        Self { all: &self.all[..count], absorbed: self.absorbed.get(..count).unwrap_or(&[]) }
    }

    /// How many of them stand for at least `wanted` accesses of the program, and for how many they do; all of them if they
    /// stand for fewer.
    pub fn standing_for(self, wanted: u64) -> (usize, u64) {
        if self.absorbed.is_empty() {
            let count = usize::try_from(wanted).unwrap_or(usize::MAX).min(self.all.len());
            return (count, count as u64);
        }
        let mut represented = 0;
        for (index, &absorbed) in self.absorbed.iter().enumerate() {
            if represented >= wanted {
                return (index, represented);
            }
            represented += 1 + u64::from(absorbed);
        }
        (self.all.len(), represented)
    }
}

/// A program, as the hardware knows it: its number. The first one is the measured program.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Tenant(usize);

impl Tenant {
    /// The program that the run is about.
    pub const MEASURED: Self = Self(0);

    const fn asid(self) -> Asid {
        Asid(self.0 as u16)
    }
}

/// Where a tenant's threads run, and of which processes it uses the tables.
#[derive(Clone, Debug)]
struct Tenancy {
    /// The core of each thread; none for a program that makes no accesses.
    cores: Vec<usize>,
    /// The kernel and the process of each floor, bottom first.
    processes: Vec<(usize, ProcessId)>,
    /// Tells its host's entries from those of other VMs.
    vm: Asid,
    /// What it has counted on cores that it shares with the measured program.
    shared: Counters,
}

/// All of one type: what a core does not have is compiled away.
#[derive(Debug)]
enum Cores {
    Plain(Vec<Core>),
    /// With what each one's range registers were loaded with.
    Asap(Vec<(Core<Asap>, Follower)>, Box<Asap>),
}

/// Does the same with a core of either type.
macro_rules! with_core {
    ($cores:expr, $number:expr, $core:ident => $act:expr) => {
        match $cores {
            Cores::Plain(list) => {
                let $core = &mut list[$number];
                $act
            }
            Cores::Asap(list, _) => {
                let ($core, _) = &mut list[$number];
                $act
            }
        }
    };
}

impl Cores {
    fn len(&self) -> usize {
        match self {
            Self::Plain(list) => list.len(),
            Self::Asap(list, _) => list.len(),
        }
    }

    fn push(&mut self, config: &MmuConfig) -> Result<(), MmuError> {
        match self {
            Self::Plain(list) => list.push(Core::new(config)?),
            Self::Asap(list, asap) => {
                list.push((Core::with_prefetcher(config, (**asap).clone())?, Follower::default()));
            }
        }
        Ok(())
    }

    fn counters(&self, number: usize) -> Counters {
        match self {
            Self::Plain(list) => list[number].counters(),
            Self::Asap(list, _) => list[number].0.counters(),
        }
    }
}

/// See the [module's documentation](self).
#[derive(Debug)]
pub struct Hardware {
    config: MmuConfig,
    cores: Cores,
    /// Who ran last on each core.
    users: Vec<Tenant>,
    llc: Llc,
    corunner: Option<RandomCoRunner>,
    tenants: Vec<Tenancy>,
}

impl Hardware {
    /// The machine `config` without cores, whose physical memory ends at `memory_end`. Its cores will have ASAP's prefetcher
    /// if `asap` is given.
    ///
    /// # Errors
    /// When the machine cannot be built.
    pub fn new(
        config: &MmuConfig,
        asap: Option<Asap>,
        corunner: CoRunnerConfig,
        memory_end: Hpa,
        seed: u64,
    ) -> Result<Self, MmuError> {
        let corunner = match corunner {
            CoRunnerConfig::None => None,
            // As much memory as the machine has: far more than any cache holds, which is all that matters.
            CoRunnerConfig::Random => Some(RandomCoRunner::new(memory_end, memory_end.0, seed)),
        };
        config.validate_memory(corunner.as_ref().map_or(memory_end, RandomCoRunner::end))?;
        let cores = asap.map_or(Cores::Plain(Vec::new()), |asap| Cores::Asap(Vec::new(), Box::new(asap)));
        let (users, tenants) = (Vec::new(), Vec::new());
        Ok(Self { config: config.clone(), cores, users, llc: Llc::new(config)?, corunner, tenants })
    }

    /// The hardware of `configuration` under the kernels of `stack`, with cores for the `threads` of the measured program.
    ///
    /// # Errors
    /// When the machine cannot be built.
    pub fn of(
        configuration: &Configuration,
        stack: &Stack,
        place: &KernelChain,
        threads: u16,
    ) -> Result<Self, MachineError> {
        let memory_end: Hpa = Frame(stack.kernel(place.bottom_floor()).memory().frames().0).address().into();
        let Configuration { scenario, machine, .. } = configuration;
        let asap = scenario.asap.as_ref().map(AsapScenario::build).transpose();
        let asap = asap.map_err(|what| configuration.scenario_error(what))?;
        let failed = |source| MachineError::Mmu { name: machine.name.clone(), source };
        let hardware = Self::new(&machine.mmu, asap, scenario.corunner, memory_end, scenario.seed);
        let mut hardware = hardware.map_err(failed)?;
        hardware.add(place, threads).map_err(failed)?;
        Ok(hardware)
    }

    /// A program with cores of its own, one for each of its `threads`. The first one to be added is the measured program.
    ///
    /// # Errors
    /// When a core cannot be built.
    pub fn add(&mut self, place: &KernelChain, threads: u16) -> Result<Tenant, MmuError> {
        let first = self.cores.len();
        for _ in 0..threads {
            self.cores.push(&self.config)?;
            self.users.push(Tenant(self.tenants.len()));
        }
        Ok(self.settle(place, (first..self.cores.len()).collect()))
    }

    /// A program whose threads are the second hardware threads of the measured program's cores, in turn.
    pub fn add_sharing(&mut self, place: &KernelChain, threads: u16) -> Tenant {
        let cores = &self.tenants[Tenant::MEASURED.0].cores;
        let shared = (0..usize::from(threads)).map(|thread| cores[thread % cores.len()]).collect();
        self.settle(place, shared)
    }

    fn settle(&mut self, place: &KernelChain, cores: Vec<usize>) -> Tenant {
        let tenant = Tenant(self.tenants.len());
        let vm = match place.floors() {
            [.., host, _] => Asid(host.process.0),
            _ => Asid(0),
        };
        self.tenants.push(Tenancy { cores, processes: processes(place), vm, shared: Counters::default() });
        let own: Vec<usize> = self.tenants[tenant.0].cores.clone();
        for core in own.into_iter().filter(|&core| self.users[core] == tenant) {
            with_core!(&mut self.cores, core, core => core.switch_to(tenant.asid(), vm));
        }
        tenant
    }

    /// The program is another process now: nothing of the one before may be used.
    pub fn replace(&mut self, tenant: Tenant, place: &KernelChain) {
        self.tenants[tenant.0].processes = processes(place);
        self.forget(tenant, Forget::Process);
    }

    /// All cores of a program forget something of it.
    fn forget(&mut self, tenant: Tenant, what: Forget) {
        for index in 0..self.tenants[tenant.0].cores.len() {
            let number = self.tenants[tenant.0].cores[index];
            self.use_core(tenant, number);
            with_core!(&mut self.cores, number, core => match what {
                Forget::Pages(range) => core.invalidate(range),
                Forget::Process => core.flush_guest(),
                Forget::Vm => core.flush_nested(),
            });
        }
    }

    fn use_core(&mut self, tenant: Tenant, core: usize) {
        if self.users[core] != tenant {
            self.users[core] = tenant;
            let vm = self.tenants[tenant.0].vm;
            with_core!(&mut self.cores, core, core => core.switch_to(tenant.asid(), vm));
        }
    }

    /// Runs `accesses` of a program's `thread` over its tables, until they are done or one needs a page fault.
    ///
    /// # Errors
    /// When the program has exited.
    pub fn run(
        &mut self,
        tenant: Tenant,
        thread: u16,
        stack: &mut Stack,
        place: &KernelChain,
        accesses: Accesses<'_>,
        detail: Detail,
    ) -> Result<RunEnd, OsError> {
        let cores = &self.tenants[tenant.0].cores;
        let core = cores[usize::from(thread) % cores.len()];
        self.use_core(tenant, core);
        let measured = tenant == Tenant::MEASURED;
        let before = (!measured && self.is_shared(core)).then(|| self.cores.counters(core));
        // The random co-runner is the other thread of the measured program's cores.
        let how = How { detail, llc: &mut self.llc, corunner: self.corunner.as_mut().filter(|_| measured) };
        let end = match &mut self.cores {
            Cores::Plain(list) => run_on(&mut list[core], how, stack, place, accesses),
            Cores::Asap(list, _) => {
                let (core, follower) = &mut list[core];
                follower.follow(stack, place, core);
                run_on(core, how, stack, place, accesses)
            }
        };
        if let Some(before) = before {
            let done = self.cores.counters(core).minus(&before);
            let shared = &mut self.tenants[tenant.0].shared;
            *shared = shared.plus(&done);
        }
        end
    }

    /// Counts stores among the absorbed accesses that a program's `thread` ran.
    pub fn count_absorbed_stores(&mut self, tenant: Tenant, thread: u16, stores: u64, detail: Detail) {
        let cores = &self.tenants[tenant.0].cores;
        let number = cores[usize::from(thread) % cores.len()];
        let functional = detail == Detail::TlbOnly;
        with_core!(&mut self.cores, number, core => core.count_absorbed_stores(stores, functional));
        if tenant != Tenant::MEASURED && self.is_shared(number) {
            let shared = &mut self.tenants[tenant.0].shared;
            let tlb = if functional { &mut shared.functional } else { &mut shared.tlb };
            tlb.stores += stores;
        }
    }

    fn is_shared(&self, core: usize) -> bool {
        self.tenants[Tenant::MEASURED.0].cores.contains(&core)
    }

    /// What a program has counted so far.
    pub fn counters(&self, tenant: Tenant) -> Counters {
        let all =
            |cores: &[usize]| cores.iter().fold(Counters::default(), |sum, &core| sum.plus(&self.cores.counters(core)));
        if tenant == Tenant::MEASURED {
            let of_others = self.tenants.iter().map(|other| &other.shared);
            let all = all(&self.tenants[0].cores);
            return of_others.fold(all, |left, shared| left.minus(shared));
        }
        let own: Vec<usize> =
            self.tenants[tenant.0].cores.iter().copied().filter(|&core| !self.is_shared(core)).collect();
        all(&own).plus(&self.tenants[tenant.0].shared)
    }

    /// How full the last-level cache is. Looks at all of it.
    pub fn llc_fill(&self) -> Fill {
        let (held, places) = self.llc.held();
        Fill { held, places }
    }

    /// A shootdown that the kernel of that number asks for, of a process of its own: every core that runs on the process, or
    /// on a VM that the process is, forgets what it names.
    pub fn shoot_down(&mut self, kernel: usize, invalidation: &Invalidation) {
        let named = (kernel, invalidation.process);
        for number in 0..self.tenants.len() {
            let processes = &self.tenants[number].processes;
            let Some(layer) = processes.iter().position(|&process| process == named) else { continue };
            let is_top = layer + 1 == processes.len();
            let what = match invalidation.scope {
                _ if !is_top => Forget::Vm,
                Scope::Pages(range) => Forget::Pages(range),
                Scope::All => Forget::Process,
            };
            self.forget(Tenant(number), what);
        }
    }
}

/// What a shootdown takes from a core.
#[derive(Clone, Copy)]
enum Forget {
    /// Translations of pages of the process.
    Pages(VpnRange),
    /// All of the process.
    Process,
    /// All that came from the VM's host.
    Vm,
}

/// How and beside what a slice of accesses runs.
struct How<'a> {
    detail: Detail,
    llc: &'a mut Llc,
    corunner: Option<&'a mut RandomCoRunner>,
}

/// Runs `accesses` on `core`, whatever prefetcher it has.
fn run_on<P: Prefetcher>(
    core: &mut Core<P>,
    how: How<'_>,
    stack: &mut Stack,
    place: &KernelChain,
    accesses: Accesses<'_>,
) -> Result<RunEnd, OsError> {
    let (How { detail, llc, corunner }, Accesses { all, absorbed }) = (how, accesses);
    macro_rules! with_walker {
        ($walker:expr) => {
            match (detail, corunner, absorbed.is_empty()) {
                (Detail::TlbOnly, _, true) => core.run_functional($walker, all),
                (Detail::TlbOnly, _, false) => core.run_functional_filtered($walker, all, absorbed),
                (Detail::Full, None, true) => core.run(llc, $walker, all, &mut NoCoRunner),
                (Detail::Full, None, false) => core.run_filtered(llc, $walker, all, absorbed, &mut NoCoRunner),
                (Detail::Full, Some(corunner), true) => core.run(llc, $walker, all, corunner),
                (Detail::Full, Some(corunner), false) => core.run_filtered(llc, $walker, all, absorbed, corunner),
            }
        };
    }
    Ok(match stack.translation(place)? {
        Translation::OneTable(table) => with_walker!(&mut Native { table }),
        Translation::TwoTables { guest, host, base } => with_walker!(&mut Nested { guest, host, base }),
        Translation::Segments(guest, segments) => with_walker!(&mut Segmented { guest, segments }),
    })
}

fn processes(place: &KernelChain) -> Vec<(usize, ProcessId)> {
    place.floors().iter().map(|floor| (floor.kernel, floor.process)).collect()
}
