// SPDX-License-Identifier: MIT OR Apache-2.0
//! Two programs of one guest fault at the same time, each on a processor of its own.

use nestwalk_mem::{Cpu, PageCount, VpnRange};
use nestwalk_os::KernelConfig;
use nestwalk_workload::{Batch, MemoryEvent, Step, Workload, WorkloadError, WorkloadFacts};

use super::{FIRST_PAGE, Scale, Watch, repeat};
use crate::build::{add_kernel, add_process};
use crate::catalog::Shelf;
use crate::chain::{Floor, KernelChain};
use crate::crowd::Crowd;
use crate::error::MachineError;
use crate::hardware::Detail;
use crate::member::{Joining, Source, Workshop};
use crate::meter::Meter;
use crate::program::Program;
use crate::scenario::MachineConfig;
use crate::schedule::Schedule;
use crate::stack::Stack;
use crate::timing::Costs;

/// Programs, and processors.
const PROGRAMS: u16 = 2;

/// Guest, host, and the programs that are about to begin.
struct Machine {
    stack: Stack,
    meter: Meter,
    crowd: Crowd,
}

/// Touches its memory once, in order.
struct Toucher {
    pages: u64,
    next: u64,
    mapped: bool,
}

impl Workload for Toucher {
    fn facts(&self) -> WorkloadFacts {
        WorkloadFacts {
            name: "toucher".into(),
            footprint: PageCount(self.pages),
            accesses: None,
            threads: 1,
            warms_until_told: false,
            kernel_half: false,
        }
    }

    fn next(&mut self, batch: &mut Batch) -> Result<Step, WorkloadError> {
        batch.clear();
        if !std::mem::replace(&mut self.mapped, true) {
            let range = VpnRange::new(FIRST_PAGE, PageCount(self.pages));
            return Ok(Step::Event(MemoryEvent::Mmap { range, writable: true, anonymous: true }));
        }
        let end = self.pages.min(self.next + Batch::ACCESSES_MAX as u64);
        batch.touches.extend((self.next..end).map(|page| (FIRST_PAGE + page, true)));
        self.next = end;
        Ok(if batch.touches.is_empty() { Step::End } else { Step::Touches })
    }
}

/// Faults of both programs together.
///
/// # Errors
/// When the bundled tables cannot be read.
pub(super) fn faults(scale: Scale, repetitions: u32, watch: &mut dyn Watch) -> Result<u64, MachineError> {
    repeat(
        repetitions,
        watch,
        || machine(scale),
        |machine| {
            let Machine { stack, meter, crowd } = machine;
            let mut shop = Workshop::new(stack, None, meter);
            while crowd.step(Detail::TlbOnly, &mut shop)?.is_some() {}
            Ok(crowd.members().iter().flatten().map(|member| member.tally.touches).sum())
        },
    )
}

fn machine(scale: Scale) -> Result<Machine, MachineError> {
    let failed = |source| MachineError::Os { place: "bench".into(), kernel: "bench".into(), source };
    let base = std::path::Path::new("");
    let costs: Costs = Shelf::Costs.load("linux-6.1", base)?;
    let machine: MachineConfig = Shelf::Machines.load("broadwell-asap", base)?;
    let times = costs.scheduler.clone().expect("the bundled cost table has a scheduler");
    let schedule = Schedule::new(PROGRAMS.into(), times, machine.frequency_mhz);
    let (mut stack, mut crowd) = (Stack::default(), Crowd::new(schedule, machine.timing));
    let two = |memory| KernelConfig { cpus: PROGRAMS, ..KernelConfig::new(memory) };
    let host = add_kernel(&mut stack, &[], &two(scale.host()), Some(scale.guest()), Cpu(0)).map_err(failed)?;
    let guest = add_kernel(&mut stack, &[host], &two(scale.guest()), None, Cpu(0)).map_err(failed)?;
    for number in 0..PROGRAMS {
        let floor = Floor { first_cpu: Cpu(number), ..guest };
        let floor = add_process(&mut stack, &[host, floor], None).map_err(failed)?;
        let program = Program::new("bench".into(), KernelChain::new(&[host, floor]));
        let pages = scale.footprint.0 / u64::from(PROGRAMS);
        let source: Source = Box::new(move || Ok(Box::new(Toucher { pages, next: 0, mapped: false })));
        crowd.join(&stack, Joining { program, tenant: None, among: None, again: false, source })?;
    }
    Ok(Machine { stack, meter: Meter::new(costs.weights()?), crowd })
}
