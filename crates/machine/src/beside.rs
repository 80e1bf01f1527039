// SPDX-License-Identifier: MIT OR Apache-2.0
//! The programs beside the measured one during a run, and what is known of them at its end.

use nestwalk_mem::Cpu;
use nestwalk_mmu::Counters;

use crate::chain::KernelChain;
use crate::colocated::{ColocatedConfig, UntilConfig, VmConfig};
use crate::crowd::Crowd;
use crate::error::MachineError;
use crate::hardware::{Detail, Hardware};
use crate::member::{Member, Tally, Workshop};
use crate::meter::Work;
use crate::neighbours::Neighbours;
use crate::scenario::Configuration;
use crate::schedule::{Schedule, Seat};
use crate::stack::Stack;

/// Steps between two looks at the clock while nobody is measured.
const LEAD_STEPS: usize = 1 << 12;

/// See the [module's documentation](self).
pub(crate) struct Beside {
    crowd: Crowd,
    /// The measured program's.
    seat: Option<Seat>,
    /// By entry of the scenario.
    entries: Vec<Entry>,
    /// Those that were killed, with their entry.
    gone: Vec<(usize, Member)>,
}

struct Entry {
    name: String,
    /// The numbers of its members.
    members: Vec<usize>,
    until: UntilConfig,
    vm: VmConfig,
}

/// What all programs of one entry of the scenario did, from beginning to end.
pub(crate) struct Companion {
    /// The program's name.
    pub name: String,
    /// What they did, added up.
    pub tally: Tally,
    /// What the kernels did for them.
    pub work: Work,
    /// Their kernels, from a native program's one on.
    pub depth: usize,
    /// What their cores counted; `None` where their accesses were not simulated.
    pub counters: Option<Counters>,
    /// Those that are alive at the end.
    pub places: Vec<KernelChain>,
}

impl Beside {
    /// Gives all of them their places.
    ///
    /// # Errors
    /// When the parts of the configuration do not fit together.
    pub fn new(
        configuration: &Configuration,
        neighbours: Neighbours<'_>,
        place: &KernelChain,
        threads: u16,
        stack: &mut Stack,
        hardware: &mut Hardware,
    ) -> Result<Self, MachineError> {
        let Some(times) = configuration.costs.scheduler.clone() else {
            let what =
                format!("costs {}: no [scheduler], which programs beside each other need", configuration.costs.name);
            return Err(configuration.scenario_error(what));
        };
        let cpus = stack.kernel(place.bottom_floor()).config().cpus;
        let schedule = Schedule::new(cpus.into(), times, configuration.machine.frequency_mhz);
        let mut crowd = Crowd::new(schedule, configuration.machine.timing.clone());
        let names = neighbours.names();
        let members = neighbours.settle(place, threads, stack, hardware, &mut crowd)?;
        let configs = &configuration.scenario.colocated;
        let describe = |((members, name), config): ((Vec<usize>, String), &ColocatedConfig)| Entry {
            name,
            members,
            until: config.until,
            vm: config.vm,
        };
        let entries = members.into_iter().zip(names).zip(configs).map(describe).collect();
        Ok(Self { crowd, seat: None, entries, gone: Vec::new() })
    }

    /// The time, in cycles.
    pub fn now(&self) -> u64 {
        self.crowd.now()
    }

    /// Lets them run for a while alone. Whether it is not yet `until_cycles`.
    ///
    /// # Errors
    /// When a stream cannot be read on, or a kernel is out of memory.
    pub fn lead(&mut self, until_cycles: u64, shop: &mut Workshop<'_>) -> Result<bool, MachineError> {
        for _ in 0..LEAD_STEPS {
            if self.now() >= until_cycles || self.crowd.step(Detail::TlbOnly, shop)?.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The measured program begins, on that processor of the machine.
    pub fn seat(&mut self, cpu: Cpu) {
        self.seat = Some(self.crowd.seat(cpu));
    }

    /// Lets them go on until it is the measured program's turn, on that processor of the machine.
    ///
    /// # Errors
    /// When a stream cannot be read on, or a kernel is out of memory.
    pub fn until_turn(&mut self, cpu: Cpu, detail: Detail, shop: &mut Workshop<'_>) -> Result<(), MachineError> {
        match self.seat {
            Some(seat) => self.crowd.until_turn(seat, cpu, detail, shop),
            None => Ok(()),
        }
    }

    /// The measured program's step took so many cycles.
    pub fn charge(&mut self, cycles: u64) {
        if let Some(seat) = self.seat {
            self.crowd.charge(seat, cycles);
        }
    }

    /// The measured program has touched all its memory: those that were to run until then are killed.
    ///
    /// # Errors
    /// When nothing below a kernel backs a frame.
    pub fn populated(&mut self, shop: &mut Workshop<'_>) -> Result<(), MachineError> {
        for (entry, Entry { members, until, .. }) in self.entries.iter().enumerate() {
            if *until == UntilConfig::Populated {
                for &number in members {
                    let killed = self.crowd.kill(number, shop)?;
                    self.gone.extend(killed.map(|member| (entry, member)));
                }
            }
        }
        Ok(())
    }

    /// Lets the daemons of their VMs' kernels work until `now_ns`.
    ///
    /// # Errors
    /// When a kernel is out of memory.
    pub fn tick(&mut self, now_ns: u64, shop: &mut Workshop<'_>) -> Result<(), MachineError> {
        for Entry { members, vm, .. } in &self.entries {
            if *vm == VmConfig::Own {
                members.iter().try_for_each(|&number| self.crowd.tick(number, now_ns, shop))?;
            }
        }
        Ok(())
    }

    /// What they did, by entry of the scenario.
    pub fn finish(self, hardware: &Hardware) -> Vec<Companion> {
        let mut gone = self.gone;
        let mut companions = Vec::new();
        for (entry, Entry { name, members, .. }) in self.entries.iter().enumerate() {
            let alive: Vec<&Member> = members.iter().filter_map(|&n| self.crowd.members()[n].as_ref()).collect();
            let places: Vec<KernelChain> = alive.iter().map(|member| *member.program.place()).collect();
            let dead: Vec<Member> = gone.extract_if(.., |(of, _)| *of == entry).map(|(_, member)| member).collect();
            let all = || alive.iter().copied().chain(&dead);
            let mut companion = Companion {
                name: name.clone(),
                tally: Tally::default(),
                work: Work::default(),
                depth: all().next().map_or(1, |member| member.program.place().depth()),
                counters: None,
                places,
            };
            for member in all() {
                companion.tally.add(&member.tally);
                companion.work.iter_mut().zip(member.program.work()).for_each(|(sum, work)| sum.add(work));
                if let Some(tenant) = member.tenant() {
                    let counters = hardware.counters(tenant);
                    companion.counters = Some(companion.counters.map_or(counters.clone(), |sum| sum.plus(&counters)));
                }
            }
            companions.push(companion);
        }
        companions
    }
}
