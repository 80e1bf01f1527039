// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cores and their shared cache, who uses them, and the one place where accesses meet a
//! program's tables.

use nestwalk_mem::{Hpa, VpnRange};
use nestwalk_mmu::{
    Accelerator, AcceleratorConfig, AcceleratorCounters, Accesses, Account, Asap, Asid, CoRunner, Core, Counters,
    Cuckoo, Engine, Llc, LlcPolicy, MmuConfig, MmuError, Native, Nested, PomTlb, PrivateCaches, RunEnd, Segmented,
    Taken,
};
use nestwalk_os::{Invalidation, OsError, Scope};

use crate::accesses::Detail;
use crate::chain::KernelChain;
use crate::range_registers::Follower;
use crate::scenario::{CoRunnerConfig, Scenario};
use crate::stack::{Stack, Translation};
use crate::walk_time::Counted;

/// A program that uses cores.
#[derive(Clone, Debug)]
struct User {
    /// The core of each of its threads.
    cores: Vec<usize>,
    /// The kernels and processes whose tables are loaded for it.
    chain: KernelChain,
}

impl User {
    /// Tells its host's entries from those of other VMs.
    fn vm(&self) -> Asid {
        match self.chain.floors() {
            [.., host, _] => Asid(host.process.0),
            _ => Asid(0),
        }
    }
}

/// All of one type: what a core does not have is compiled away.
#[derive(Debug)]
enum Cores {
    Plain(Vec<Core>),
    /// With what each one's range registers were loaded with.
    Asap(Vec<(Core<Asap>, Follower)>, Box<Asap>),
    /// Over one structure in memory.
    PomTlb(Vec<Core<PomTlb>>, Box<PomTlb>),
    /// Over the same hashed tables.
    Cuckoo(Vec<Core<Cuckoo>>, Box<Cuckoo>),
}

/// The accelerator that all cores of a machine have.
#[derive(Clone, Debug)]
pub enum AnyAccelerator {
    /// Nothing.
    None,
    /// ASAP's range registers and its prefetcher.
    Asap(Box<Asap>),
    /// A part-of-memory TLB.
    PomTlb(Box<PomTlb>),
    /// Hashed page tables.
    Cuckoo(Box<Cuckoo>),
}

impl AnyAccelerator {
    /// The accelerator of `scenario`, over a memory that ends at `memory_end`; and where memory
    /// ends with the accelerator's own part of it.
    ///
    /// # Errors
    /// What is impossible about it.
    pub(crate) fn of(scenario: &Scenario, memory_end: Hpa) -> Result<(Self, Hpa), String> {
        if let Some(asap) = &scenario.asap {
            return Ok((Self::Asap(Box::new(asap.build()?)), memory_end));
        }
        Ok(match &scenario.accelerator {
            None => (Self::None, memory_end),
            Some(config @ AcceleratorConfig::PomTlb(pom)) => {
                let end = memory_end + config.memory_bytes(memory_end);
                (Self::PomTlb(Box::new(PomTlb::new(pom, memory_end))), end)
            }
            Some(config @ AcceleratorConfig::ElasticCuckoo(cuckoo)) => {
                let end = memory_end + config.memory_bytes(memory_end);
                (Self::Cuckoo(Box::new(Cuckoo::new(cuckoo, memory_end..end))), end)
            }
        })
    }
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
            Cores::PomTlb(list, _) => {
                let $core = &mut list[$number];
                $act
            }
            Cores::Cuckoo(list, _) => {
                let $core = &mut list[$number];
                $act
            }
        }
    };
}

impl Cores {
    fn push(&mut self, config: &MmuConfig) -> Result<(), MmuError> {
        match self {
            Self::Plain(list) => list.push(Core::new(config)?),
            Self::Asap(list, asap) => {
                list.push((Core::with_accelerator(config, (**asap).clone())?, Follower::default()));
            }
            Self::PomTlb(list, pom) => list.push(Core::with_accelerator(config, (**pom).clone())?),
            Self::Cuckoo(list, cuckoo) => list.push(Core::with_accelerator(config, (**cuckoo).clone())?),
        }
        Ok(())
    }

    /// The caches of core `number`.
    fn caches(&self, number: usize) -> &PrivateCaches {
        match self {
            Self::Plain(list) => list[number].caches(),
            Self::Asap(list, _) => list[number].0.caches(),
            Self::PomTlb(list, _) => list[number].caches(),
            Self::Cuckoo(list, _) => list[number].caches(),
        }
    }

    /// What core `number` counts, or has put away in an account.
    fn counters(&self, number: usize, account: Option<&Account>) -> Counters {
        fn of<P: Accelerator<Counters: AcceleratorCounters>>(core: &Core<P>, account: Option<&Account>) -> Counters {
            account.map_or_else(|| core.counters(), |account| core.counters_of(account))
        }
        match self {
            Self::Plain(list) => of(&list[number], account),
            Self::Asap(list, _) => of(&list[number].0, account),
            Self::PomTlb(list, _) => of(&list[number], account),
            Self::Cuckoo(list, _) => of(&list[number], account),
        }
    }
}

/// Who uses a core.
#[derive(Clone, Debug)]
struct Use {
    /// Whose entries it uses.
    space: Asid,
    /// Whose accesses it counts.
    counting: Asid,
    /// What it has counted for others.
    accounts: Vec<(Asid, Account)>,
}

/// See the [module's documentation](self).
#[derive(Debug)]
pub struct Hardware {
    config: MmuConfig,
    cores: Cores,
    /// Of each core.
    uses: Vec<Use>,
    llc: Llc,
    corunner: Option<CoRunner>,
    /// By address-space number.
    users: Vec<User>,
}

/// How full the caches are at which a line from memory arrives: see [`Hardware::llc_fill`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Fill {
    /// Lines that they hold.
    pub held: u64,
    /// Lines that they have room for.
    pub places: u64,
}

impl Hardware {
    /// The first program that gets cores. The random co-runner is the second thread of its cores.
    pub const FIRST: Asid = Asid(0);

    /// The machine `config` without cores, whose physical memory ends at `memory_end`. Its cores
    /// will have `accelerator`.
    ///
    /// # Errors
    /// When the machine cannot be built.
    pub fn new(
        config: &MmuConfig,
        accelerator: AnyAccelerator,
        corunner: CoRunnerConfig,
        memory_end: Hpa,
        seed: u64,
    ) -> Result<Self, MmuError> {
        let corunner = match corunner {
            CoRunnerConfig::None => None,
            // As much memory as the machine has: far more than any cache holds, which is all that
            // matters.
            CoRunnerConfig::Random => Some(CoRunner::new(memory_end, memory_end.0, seed)),
        };
        config.validate_memory(corunner.as_ref().map_or(memory_end, CoRunner::end))?;
        let cores = match accelerator {
            AnyAccelerator::None => Cores::Plain(Vec::new()),
            AnyAccelerator::Asap(asap) => Cores::Asap(Vec::new(), asap),
            AnyAccelerator::PomTlb(pom) => Cores::PomTlb(Vec::new(), pom),
            AnyAccelerator::Cuckoo(cuckoo) => Cores::Cuckoo(Vec::new(), cuckoo),
        };
        let (uses, users) = (Vec::new(), Vec::new());
        Ok(Self { config: config.clone(), cores, uses, llc: Llc::new(config)?, corunner, users })
    }

    /// A program with cores of its own, one for each of its `threads`.
    ///
    /// # Errors
    /// When a core cannot be built.
    pub fn add(&mut self, chain: &KernelChain, threads: u16) -> Result<Asid, MmuError> {
        let first = self.uses.len();
        // No user has it yet: the first one switches it over.
        let unused = Use { space: Asid(u16::MAX), counting: self.next(), accounts: Vec::new() };
        for _ in 0..threads {
            self.cores.push(&self.config)?;
            self.uses.push(unused.clone());
        }
        Ok(self.add_user(chain, (first..self.uses.len()).collect()))
    }

    /// A program whose threads are the second hardware threads of the first program's cores, in
    /// turn. Without a first program it has no core, and runs nothing.
    pub fn add_sharing(&mut self, chain: &KernelChain, threads: u16) -> Asid {
        let first = self.users.first().map_or(&[][..], |user| &user.cores);
        let shared = first.iter().copied().cycle().take(threads.into()).collect();
        self.add_user(chain, shared)
    }

    fn next(&self) -> Asid {
        Asid(self.users.len() as u16)
    }

    fn add_user(&mut self, chain: &KernelChain, cores: Vec<usize>) -> Asid {
        let user = self.next();
        self.users.push(User { cores, chain: *chain });
        user
    }

    /// The program is another process now: nothing of the one before may be used.
    pub fn load(&mut self, user: Asid, chain: &KernelChain) {
        self.users[usize::from(user.0)].chain = *chain;
        self.forget(user, Forget::Process);
    }

    /// All cores of a program forget something of it.
    fn forget(&mut self, user: Asid, what: Forget) {
        for index in 0..self.users[usize::from(user.0)].cores.len() {
            let number = self.users[usize::from(user.0)].cores[index];
            self.switch(number, user);
            with_core!(&mut self.cores, number, core => match what {
                Forget::Pages(range) => core.invalidate(range),
                Forget::Process => core.flush_guest(),
                Forget::Vm => core.flush_nested(),
            });
        }
    }

    fn switch(&mut self, core: usize, user: Asid) {
        if self.uses[core].space != user {
            self.uses[core].space = user;
            let vm = self.users[usize::from(user.0)].vm();
            with_core!(&mut self.cores, core, core => core.switch_to(user, vm));
        }
    }

    /// What the core counts from now on is the program's: its account is lent to the core.
    fn count_for(&mut self, core: usize, user: Asid) {
        let Use { counting, accounts, .. } = &mut self.uses[core];
        if *counting == user {
            return;
        }
        let found = accounts.iter().position(|(owner, _)| *owner == user).unwrap_or_else(|| {
            accounts.push((user, Account::default()));
            accounts.len() - 1
        });
        let (owner, account) = &mut accounts[found];
        with_core!(&mut self.cores, core, core => core.exchange_account(account));
        std::mem::swap(owner, counting);
    }

    /// The core on which a program's `thread` runs.
    fn core_of(&self, user: Asid, thread: u16) -> usize {
        let cores = &self.users[usize::from(user.0)].cores;
        cores[usize::from(thread) % cores.len()]
    }

    /// Runs `accesses` of a program's `thread` over its tables, until they are done or one needs a
    /// page fault.
    ///
    /// # Errors
    /// When the program has exited.
    pub fn run(
        &mut self,
        user: Asid,
        thread: u16,
        stack: &mut Stack,
        accesses: Accesses<'_>,
        detail: Detail,
    ) -> Result<RunEnd, OsError> {
        let core = self.core_of(user, thread);
        self.switch(core, user);
        self.count_for(core, user);
        let corunner = self.corunner.as_mut().filter(|_| user == Self::FIRST);
        let how = How { detail, llc: &mut self.llc, corunner };
        let chain = &self.users[usize::from(user.0)].chain;
        match &mut self.cores {
            Cores::Plain(list) => run_on(&mut list[core], how, stack, chain, accesses),
            Cores::Asap(list, _) => {
                let (core, follower) = &mut list[core];
                follower.follow(stack, chain, core);
                run_on(core, how, stack, chain, accesses)
            }
            Cores::PomTlb(list, _) => run_on(&mut list[core], how, stack, chain, accesses),
            Cores::Cuckoo(list, _) => run_on(&mut list[core], how, stack, chain, accesses),
        }
    }

    /// How long the accesses took that a program's `thread` last ran on its core, and all before
    /// them.
    pub fn taken(&mut self, user: Asid, thread: u16) -> Taken {
        let number = self.core_of(user, thread);
        with_core!(&mut self.cores, number, core => core.taken())
    }

    /// Counts stores among the absorbed accesses that a program's `thread` ran.
    pub fn count_absorbed_stores(&mut self, user: Asid, thread: u16, stores: u64, detail: Detail) {
        if stores == 0 {
            return;
        }
        let number = self.core_of(user, thread);
        self.count_for(number, user);
        let functional = detail == Detail::TlbOnly;
        with_core!(&mut self.cores, number, core => core.count_absorbed_stores(stores, functional));
    }

    /// What a program has counted so far.
    pub fn counters(&self, user: Asid) -> Counters {
        let mut sum = Counters::default();
        for (core, Use { counting, accounts, .. }) in self.uses.iter().enumerate() {
            let put_away = accounts.iter().find(|(owner, _)| *owner == user).map(|(_, account)| account);
            if *counting == user || put_away.is_some() {
                sum.add(&self.cores.counters(core, put_away));
            }
        }
        sum
    }

    /// What a program, which has run `instructions`, has counted so far of its walks.
    pub(crate) fn counted(&self, user: Asid, instructions: u64) -> Counted {
        Counted::new(instructions, &self.counters(user), &self.config)
    }

    /// What its cores are.
    pub(crate) fn config(&self) -> &MmuConfig {
        &self.config
    }

    /// How full the last-level cache is. An exclusive one gets nothing but what L2s evict, so that
    /// it is empty, and does not fill either, until they are full: the L2s of the first program's
    /// cores are counted with it. Looks at all of them.
    pub fn llc_fill(&self) -> Fill {
        let (mut held, mut places) = self.llc.held();
        if self.config.llc.policy == LlcPolicy::Exclusive {
            for &number in self.users.first().map_or(&[][..], |user| &user.cores) {
                let l2 = self.cores.caches(number).l2().held();
                held += l2.0;
                places += l2.1;
            }
        }
        Fill { held, places }
    }

    /// A shootdown that the kernel of that number asks for, of a process of its own: every core
    /// that runs on the process, or on a VM that the process is, forgets what it names.
    pub fn shoot_down(&mut self, kernel: usize, invalidation: &Invalidation) {
        let named = (kernel, invalidation.process);
        for number in 0..self.users.len() {
            let chain = &self.users[number].chain;
            let is_named = |floor: &crate::chain::Floor| (floor.kernel, floor.process) == named;
            let Some(layer) = chain.floors().iter().position(is_named) else { continue };
            let what = match invalidation.scope {
                _ if layer < chain.top() => Forget::Vm,
                Scope::Pages(range) => Forget::Pages(range),
                Scope::All => Forget::Process,
            };
            self.forget(Asid(number as u16), what);
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
    corunner: Option<&'a mut CoRunner>,
}

/// Runs `accesses` on `core`, whatever accelerator it has.
fn run_on<P: Engine>(
    core: &mut Core<P>,
    how: How<'_>,
    stack: &mut Stack,
    chain: &KernelChain,
    accesses: Accesses<'_>,
) -> Result<RunEnd, OsError> {
    let (How { detail, llc, corunner }, Accesses { all, absorbed, .. }) = (how, accesses);
    macro_rules! with_walker {
        ($walker:expr) => {
            match (detail, absorbed.is_empty()) {
                (Detail::TlbOnly, true) => core.run_functional($walker, all),
                (Detail::TlbOnly, false) => core.run_functional_filtered($walker, all, absorbed),
                (Detail::Full | Detail::Timed, true) => core.run(llc, $walker, all, corunner),
                (Detail::Full | Detail::Timed, false) => core.run_filtered(llc, $walker, accesses, corunner),
            }
        };
    }
    Ok(match stack.translation(chain)? {
        Translation::OneTable(table) => with_walker!(&mut Native { table }),
        Translation::TwoTables { guest, host, base } => with_walker!(&mut Nested { guest, host, base }),
        Translation::Segments(guest, segments) => with_walker!(&mut Segmented { guest, segments }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::add_process;
    use crate::testing::{FIRST, kernels, load, machine_config, map};
    use nestwalk_mem::{Access, Cpu, PageCount};
    use nestwalk_os::ProcessId;

    const PAGES: u64 = 8;

    fn populate(stack: &mut Stack, chain: &KernelChain) {
        map(stack, chain, PAGES);
        for page in 0..PAGES {
            stack.fault(chain, chain.top(), FIRST + page, true, Cpu(0)).unwrap();
        }
    }

    /// A VM with two programs whose pages are all there.
    fn two_programs() -> (Stack, [KernelChain; 2]) {
        let (mut stack, first) = kernels(2);
        let floor = add_process(&mut stack, first.floors(), None).unwrap();
        let second = KernelChain::new(&[*first.bottom_floor(), floor]);
        let chains = [first, second];
        chains.iter().for_each(|chain| populate(&mut stack, chain));
        stack.drain_invalidations(|_, _| {});
        (stack, chains)
    }

    fn hardware(corunner: CoRunnerConfig) -> Hardware {
        Hardware::new(&machine_config().mmu, AnyAccelerator::None, corunner, Hpa(1 << 28), 1).unwrap()
    }

    fn run(hardware: &mut Hardware, stack: &mut Stack, user: Asid, pages: u64) {
        let all: Vec<Access> = (0..pages).map(load).collect();
        let accesses = Accesses::unfiltered(&all);
        assert_eq!(hardware.run(user, 0, stack, accesses, Detail::Full).unwrap(), RunEnd::Done);
    }

    /// Walks of one more access to each of the first `pages`.
    fn walks(hardware: &mut Hardware, stack: &mut Stack, user: Asid, pages: u64) -> u64 {
        let before = hardware.counters(user).tlb.walks();
        run(hardware, stack, user, pages);
        hardware.counters(user).tlb.walks() - before
    }

    #[test]
    fn programs_that_share_a_core_count_apart() {
        let (mut stack, [first, second]) = two_programs();
        let mut hardware = hardware(CoRunnerConfig::None);
        let first = hardware.add(&first, 1).unwrap();
        let second = hardware.add_sharing(&second, 3);
        let mut sum = 0;
        for _ in 0..3 {
            run(&mut hardware, &mut stack, first, 5);
            run(&mut hardware, &mut stack, second, 2);
            hardware.count_absorbed_stores(second, 0, 7, Detail::Full);
            sum += 1;
            let counted = [first, second].map(|user| hardware.counters(user).tlb.accesses);
            assert_eq!(counted, [sum * 5, sum * 2]);
        }
        let counters = [first, second].map(|user| hardware.counters(user));
        assert_eq!(counters.each_ref().map(|counters| counters.tlb.walks()), [5, 2], "each has its own entries");
        assert_eq!(counters.map(|counters| counters.tlb.stores), [0, 21]);
    }

    #[test]
    fn a_shootdown_reaches_those_on_the_process_and_in_the_vm() {
        let (mut stack, chains) = two_programs();
        let mut hardware = hardware(CoRunnerConfig::None);
        let [first, second] = chains.map(|chain| hardware.add(&chain, 1).unwrap());
        let mut walked = |hardware: &mut Hardware| [first, second].map(|user| walks(hardware, &mut stack, user, PAGES));
        assert_eq!(walked(&mut hardware), [PAGES; 2]);
        assert_eq!(walked(&mut hardware), [0; 2]);
        let (guest, host) = (chains[0].top_floor(), chains[0].bottom_floor());
        let scope = Scope::Pages(VpnRange::new(FIRST, PageCount(3)));
        hardware.shoot_down(guest.kernel, &Invalidation { process: guest.process, scope, nodes: false });
        assert_eq!(walked(&mut hardware), [3, 0]);
        let scope = Scope::All;
        hardware.shoot_down(guest.kernel, &Invalidation { process: guest.process, scope, nodes: true });
        assert_eq!(walked(&mut hardware), [PAGES, 0]);
        hardware.shoot_down(host.kernel, &Invalidation { process: host.process, scope, nodes: true });
        assert_eq!(walked(&mut hardware), [PAGES; 2], "both are in the VM");
        let other = ProcessId(host.process.0 + 1);
        hardware.shoot_down(host.kernel, &Invalidation { process: other, scope, nodes: true });
        assert_eq!(walked(&mut hardware), [0; 2]);
    }

    #[test]
    fn a_program_that_becomes_another_process_uses_nothing_of_the_one_before() {
        let (mut stack, [first, second]) = two_programs();
        let mut hardware = hardware(CoRunnerConfig::None);
        let user = hardware.add(&first, 1).unwrap();
        assert_eq!(walks(&mut hardware, &mut stack, user, PAGES), PAGES);
        hardware.load(user, &second);
        assert_eq!(walks(&mut hardware, &mut stack, user, PAGES), PAGES);
        assert_eq!(walks(&mut hardware, &mut stack, user, PAGES), 0);
    }

    #[test]
    fn threads_have_cores_of_their_own_in_turn() {
        let (mut stack, [first, _]) = two_programs();
        let mut hardware = hardware(CoRunnerConfig::None);
        let user = hardware.add(&first, 2).unwrap();
        let all: Vec<Access> = (0..PAGES).map(load).collect();
        let accesses = Accesses::unfiltered(&all);
        let walks = [0, 1, 0, 3].map(|thread| {
            let before = hardware.counters(user).tlb.walks();
            let _ = hardware.run(user, thread, &mut stack, accesses, Detail::Full).unwrap();
            hardware.counters(user).tlb.walks() - before
        });
        assert_eq!(walks, [PAGES, PAGES, 0, 0]);
    }

    #[test]
    fn the_random_co_runner_is_beside_the_first_program_only() {
        let (mut stack, chains) = two_programs();
        let mut hardware = hardware(CoRunnerConfig::Random);
        let [first, second] = chains.map(|chain| hardware.add(&chain, 1).unwrap());
        run(&mut hardware, &mut stack, first, 6);
        run(&mut hardware, &mut stack, second, 6);
        let of = |user| hardware.counters(user).caches.corunner.iter().sum::<u64>();
        assert_eq!((of(first), of(second)), (6, 0));
    }
}
