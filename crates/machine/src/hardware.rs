// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cores, their shared cache and the co-runner, and the one place where a slice of accesses meets a stack's tables.

use nestwalk_mem::{Access, Hpa};
use nestwalk_mmu::{
    Asap, Core, Counters, Llc, MmuConfig, MmuError, Native, Nested, NoCoRunner, Prefetcher, RandomCoRunner, RunEnd,
    Segmented,
};
use nestwalk_os::{Invalidation, Scope};

use crate::asap::Follower;
use crate::scenario::CoRunnerConfig;
use crate::stack::{Stack, Translation};

/// How closely accesses are looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Detail {
    /// Only the TLBs see them.
    TlbOnly,
    /// Everything does.
    Full,
}

/// All of one type: what a core does not have is compiled away.
#[derive(Debug)]
enum Cores {
    Plain(Vec<Core>),
    Asap(Vec<Core<Asap>>, Follower),
}

/// Does the same with cores of either type.
macro_rules! with_cores {
    ($cores:expr, $list:ident => $act:expr) => {
        match $cores {
            Cores::Plain($list) => $act,
            Cores::Asap($list, _) => $act,
        }
    };
}

/// See the [module's documentation](self).
#[derive(Debug)]
pub struct Hardware {
    cores: Cores,
    llc: Llc,
    corunner: Option<RandomCoRunner>,
}

impl Hardware {
    /// `cores` cores of the machine `config`, whose physical memory ends at `memory_end`.
    ///
    /// # Errors
    /// When the machine cannot be built.
    pub fn new(
        config: &MmuConfig,
        cores: usize,
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
        Ok(Self {
            cores: Cores::Plain((0..cores).map(|_| Core::new(config)).collect::<Result<_, _>>()?),
            llc: Llc::new(config)?,
            corunner,
        })
    }

    /// The same machine, before it has run, with ASAP's prefetcher in each core.
    ///
    /// # Errors
    /// As [`Hardware::new`].
    pub fn with_asap(self, config: &MmuConfig, asap: &Asap) -> Result<Self, MmuError> {
        let core = |_| Core::with_prefetcher(config, asap.clone());
        let cores = (0..self.core_count()).map(core).collect::<Result<_, _>>()?;
        Ok(Self { cores: Cores::Asap(cores, Follower::default()), ..self })
    }

    /// How many cores there are.
    pub fn core_count(&self) -> usize {
        with_cores!(&self.cores, cores => cores.len())
    }

    /// Runs `accesses` on `core` over the tables of `stack`, until they are done or one needs a page fault.
    pub fn run(&mut self, core: usize, stack: &mut Stack, accesses: &[Access], detail: Detail) -> RunEnd {
        let how = (detail, &mut self.llc, &mut self.corunner);
        match &mut self.cores {
            Cores::Plain(cores) => run_on(&mut cores[core], how, stack, accesses),
            Cores::Asap(cores, follower) => {
                follower.follow(stack, cores);
                run_on(&mut cores[core], how, stack, accesses)
            }
        }
    }

    /// What all cores have counted so far.
    pub fn counters(&self) -> Counters {
        with_cores!(&self.cores, cores => cores.iter().fold(Counters::default(), |sum, core| sum.plus(&core.counters())))
    }

    /// Accesses that were simulated in full, on all cores.
    pub fn accesses(&self) -> u64 {
        with_cores!(&self.cores, cores => cores.iter().map(|core| core.counters().tlb.accesses).sum())
    }

    /// A shootdown of the program's kernel.
    pub fn invalidate(&mut self, invalidation: &Invalidation) {
        with_cores!(&mut self.cores, cores => for core in cores {
            match invalidation.scope {
                Scope::Pages(range) => core.invalidate(range),
                Scope::All => core.flush_guest(),
            }
        });
    }

    /// A shootdown of a kernel below the program's.
    pub fn invalidate_nested(&mut self) {
        with_cores!(&mut self.cores, cores => cores.iter_mut().for_each(Core::flush_nested));
    }
}

/// Runs `accesses` on `core`, whatever prefetcher it has.
fn run_on<P: Prefetcher>(
    core: &mut Core<P>,
    (detail, llc, corunner): (Detail, &mut Llc, &mut Option<RandomCoRunner>),
    stack: &mut Stack,
    accesses: &[Access],
) -> RunEnd {
    macro_rules! with_walker {
        ($walker:expr) => {
            match (detail, corunner) {
                (Detail::TlbOnly, _) => core.run_functional($walker, accesses),
                (Detail::Full, None) => core.run(llc, $walker, accesses, &mut NoCoRunner),
                (Detail::Full, Some(corunner)) => core.run(llc, $walker, accesses, corunner),
            }
        };
    }
    match stack.translation() {
        Translation::OneTable(table) => with_walker!(&mut Native { table }),
        Translation::TwoTables { guest, host, base } => with_walker!(&mut Nested { guest, host, base }),
        Translation::Segments(guest, segments) => with_walker!(&mut Segmented { guest, segments }),
    }
}
