// SPDX-License-Identifier: MIT OR Apache-2.0
//! Two programs of one guest fault at the same time, each on a processor of its own.

use nestwalk_mem::{Cpu, Nanoseconds, PageCount, VpnRange};
use nestwalk_os::KernelConfig;
use nestwalk_workload::{Batch, MemoryEvent, Step, Workload, WorkloadError, WorkloadFacts};

use super::{FIRST_PAGE, Scale, Watch, repeat};
use crate::accesses::Detail;
use crate::build::{add_kernel, add_process};
use crate::catalog::Shelf;
use crate::chain::{Floor, KernelChain};
use crate::error::MachineError;
use crate::machine::Machine;
use crate::meter::Meter;
use crate::platform::Platform;
use crate::process_family::ProcessFamily;
use crate::scenario::MachineConfig;
use crate::schedule::Schedule;
use crate::stack::Stack;
use crate::tenant::Tenant;
use crate::timing::Costs;

/// Programs, and processors.
const PROGRAMS: u16 = 2;

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
            tells_dependences: false,
            modelled: None,
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
            while machine.step_next(Detail::TlbOnly)?.is_some() {}
            Ok(machine.ids().map(|id| machine.tenant(id).tally.touches).sum())
        },
    )
}

fn machine(scale: Scale) -> Result<Machine, MachineError> {
    let failed = |source| MachineError::Os { place: "bench".into(), kernel: "bench".into(), source };
    let base = std::path::Path::new("");
    let costs: Costs = Shelf::Costs.load("linux-6.1", base)?;
    let config: MachineConfig = Shelf::Machines.load("broadwell-asap", base)?;
    let times = costs.scheduler.clone().expect("the bundled cost table has a scheduler");
    let schedule = Schedule::new(PROGRAMS.into(), times, config.frequency_mhz);
    let mut stack = Stack::default();
    let two = |memory| KernelConfig { cpus: PROGRAMS, ..KernelConfig::new(memory) };
    let host = add_kernel(&mut stack, &[], &two(scale.host()), Some(scale.guest()), Cpu(0)).map_err(failed)?;
    let guest = add_kernel(&mut stack, &[host], &two(scale.guest()), None, Cpu(0)).map_err(failed)?;
    let meter = Meter::new(costs.weights()?);
    let platform = Platform { stack, hardware: None, meter, timing: config.timing };
    let mut machine = Machine::new(platform, Nanoseconds(0), config.frequency_mhz);
    machine.share(schedule);
    for number in 0..PROGRAMS {
        let floor = Floor { first_cpu: Cpu(number), ..guest };
        let floor = add_process(&mut machine.platform.stack, &[host, floor], None).map_err(failed)?;
        let family = ProcessFamily::new("bench".into(), KernelChain::new(&[host, floor]));
        let pages = scale.footprint.0 / u64::from(PROGRAMS);
        let toucher = Toucher { pages, next: 0, mapped: false };
        machine.join(Tenant::new(family, Box::new(toucher), None), None)?;
    }
    Ok(machine)
}
