// SPDX-License-Identifier: MIT OR Apache-2.0
//! The allocation patterns that were measured on a real Linux 6.1 (`linux/data/README.md`),
//! replayed on the simulated kernel.
//!
//! One boot: a program fills memory alone, beside 2 and beside 12 co-runners, and alone again after
//! they were killed, each time in order and at random; each time the fragmentation of a host's page
//! table under it is measured. All programs compete for two processors. Nothing here depends on the
//! real kernel's results.

use nestwalk_mem::physical::huge_min_free;
use nestwalk_mem::{Cpu, Nanoseconds, PageCount, Vpn, VpnRange};
use nestwalk_os::fragmentation::Fragmentation;
use nestwalk_os::{KernelConfig, ManagerConfig};
use nestwalk_workload::churn::{Churn, ChurnConfig};
use nestwalk_workload::{Batch, MemoryEvent, Step, Workload, WorkloadError, WorkloadFacts};

use crate::accesses::Detail;
use crate::build::{add_kernel, add_process};
use crate::catalog::Shelf;
use crate::chain::{Floor, KernelChain};
use crate::error::MachineError;
use crate::machine::{Machine, TenantId};
use crate::meter::Meter;
use crate::platform::Platform;
use crate::process_family::ProcessFamily;
use crate::scenario::MachineConfig;
use crate::schedule::Schedule;
use crate::stack::Stack;
use crate::tenant::{Source, StepOutcome, Tenant};
use crate::timing::Costs;

/// Memory of the guest.
const GUEST: PageCount = PageCount(1 << 18);
/// Its processors.
const CPUS: u16 = 2;
/// Memory of the measured program.
const MEASURED: PageCount = PageCount(1 << 15);
/// Its start, a multiple of 2 MiB.
const FIRST: Vpn = Vpn(0x7_f000_0000);
/// Where its arrays lie: the order of the pages before, what it reads about them after.
const ORDER_ARRAY: Vpn = Vpn(0x7_e000_0000);
/// The speed of a processor under QEMU's emulation, MHz: at this clock, the cost table's fault of
/// 3200 cycles takes 16 us; alone in such a guest, the measured program sees 13 to 16 us
/// (`fault_ns` of `linux/guest/frag.c`).
const EMULATED_MHZ: u64 = 200;

/// In which order the pages are touched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TouchOrder {
    /// Ascending.
    Sequential,
    /// Fisher-Yates.
    Random,
}

/// One measurement.
#[derive(Clone, Debug)]
pub struct Measurement {
    /// `alone`, `co2`, `co12`, `aged`.
    pub tag: &'static str,
    /// In which order the pages were touched.
    pub order: TouchOrder,
    /// What came out.
    pub fragmentation: Fragmentation,
}

/// Runs all patterns one after the other on one kernel with that memory manager. `seed` is the
/// boot's.
///
/// # Errors
/// When the kernel is out of memory.
pub fn boot(manager: ManagerConfig, seed: u64) -> Result<Vec<Measurement>, MachineError> {
    let mut guest = Guest::new(manager)?;
    let mut all = Vec::new();
    guest.both_orders("alone", seed, &mut all)?;
    for (tag, count, size, first_seed) in
        [("co2", 2, PageCount(32 << 8), seed * 100), ("co12", 12, PageCount(8 << 8), seed * 100 + 50)]
    {
        let tenants = guest.start_corunners(count, size, first_seed)?;
        guest.both_orders(tag, seed, &mut all)?;
        guest.stop_corunners(&tenants)?;
    }
    guest.both_orders("aged", seed, &mut all)?;
    guest.machine.platform.stack.kernel(&guest.floor).check_invariants();
    Ok(all)
}

/// The guest and what runs in it.
struct Guest {
    machine: Machine,
    floor: Floor,
}

impl Guest {
    fn new(manager: ManagerConfig) -> Result<Self, MachineError> {
        let mut config = KernelConfig::new(GUEST);
        // The guest has transparent huge pages on, though the measured memory has none.
        (config.manager, config.cpus, config.min_free) = (manager, CPUS, Some(huge_min_free(GUEST)));
        let mut stack = Stack::default();
        let floor = add_kernel(&mut stack, &[], &config, None, Cpu(0)).map_err(failed)?;
        let base = std::path::Path::new("");
        let costs: Costs = Shelf::Costs.load("linux-6.1", base)?;
        let config: MachineConfig = Shelf::Machines.load("broadwell-asap", base)?;
        let times = costs.scheduler.clone().expect("the bundled cost table has a scheduler");
        let meter = Meter::new(costs.weights()?);
        let platform = Platform { stack, hardware: None, meter, timing: config.timing };
        let mut machine = Machine::new(platform, Nanoseconds(0), EMULATED_MHZ);
        machine.share(Schedule::new(CPUS.into(), times, EMULATED_MHZ));
        Ok(Self { machine, floor })
    }

    fn join(&mut self, source: Source, again: bool) -> Result<TenantId, MachineError> {
        let floor = add_process(&mut self.machine.platform.stack, &[self.floor], None).map_err(failed)?;
        let family = ProcessFamily::new("patterns".into(), KernelChain::new(&[floor]));
        let tenant = Tenant::new(family, source()?, None);
        let tenant = if again { tenant.again(source) } else { tenant };
        self.machine.join(tenant, Some(0..usize::from(CPUS)))
    }

    /// One step of the tenant whose turn it is. Returns the tenant if that was its last.
    fn step(&mut self) -> Result<Option<TenantId>, MachineError> {
        let next = self.machine.step_next(Detail::TlbOnly)?;
        Ok(next.and_then(|(tenant, outcome)| (outcome == StepOutcome::Ended).then_some(tenant)))
    }

    /// Runs until `tenant` has ended; its memory is still there then. Other tenants that end
    /// meanwhile are gone.
    fn run_to_end(&mut self, tenant: TenantId) -> Result<(), MachineError> {
        loop {
            match self.step()? {
                Some(ended) if ended == tenant => return Ok(()),
                Some(other) => self.machine.kill(other)?,
                None => {}
            }
        }
    }

    /// Ends co-runners as a signal does; children that they wait for live on to their end.
    fn stop_corunners(&mut self, tenants: &[TenantId]) -> Result<(), MachineError> {
        tenants.iter().for_each(|&id| self.machine.tenant_mut(id).terminate());
        let is_parent = |machine: &Machine, id: TenantId| {
            let tenant = machine.tenant(id);
            tenant.is_alive() && !tenant.family.is_child()
        };
        while tenants.iter().any(|&id| is_parent(&self.machine, id)) {
            if let Some(ended) = self.step()? {
                self.machine.kill(ended)?;
            }
        }
        Ok(())
    }

    /// Starts co-runners, and waits until each has finished a round.
    fn start_corunners(&mut self, count: u64, size: PageCount, seed: u64) -> Result<Vec<TenantId>, MachineError> {
        let mut tenants = Vec::new();
        for number in 0..count {
            let config = ChurnConfig { size, seed: seed + number };
            let source: Source = Box::new(move || Ok(Box::new(Churn::new(&config)?)));
            tenants.push(self.join(source, true)?);
        }
        let rounds = |machine: &Machine, id: TenantId| machine.tenant(id).family.work()[0].exits;
        while tenants.iter().any(|&id| rounds(&self.machine, id) == 0) {
            self.step()?;
        }
        Ok(tenants)
    }

    fn both_orders(&mut self, tag: &'static str, seed: u64, all: &mut Vec<Measurement>) -> Result<(), MachineError> {
        for order in [TouchOrder::Sequential, TouchOrder::Random] {
            let random = seed * 7919 + 1;
            let source: Source = Box::new(move || Ok(Box::new(Filler::new(order, random))));
            let tenant = self.join(source, false)?;
            self.run_to_end(tenant)?;
            let chain = self.machine.tenant(tenant).family.chain();
            let table = self.machine.platform.stack.table(chain, 0).map_err(failed)?;
            let fragmentation = Fragmentation::of_small(table, VpnRange::new(FIRST, MEASURED));
            all.push(Measurement { tag, order, fragmentation });
            self.machine.kill(tenant)?;
        }
        Ok(())
    }
}

fn failed(source: nestwalk_os::OsError) -> MachineError {
    MachineError::Os { place: "patterns".into(), kernel: "guest".into(), source }
}

/// `linux/guest/frag.c`: touches every page of its memory once.
struct Filler {
    steps: std::vec::IntoIter<Step>,
    order: Vec<u32>,
    next: usize,
}

impl Filler {
    fn new(order: TouchOrder, mut seed: u64) -> Self {
        let mut pages: Vec<u32> = (0..MEASURED.0 as u32).collect();
        if order == TouchOrder::Random {
            for last in (1..pages.len()).rev() {
                let other = nestwalk_workload::churn::draw(&mut seed) % (last as u64 + 1);
                pages.swap(last, other as usize);
            }
        }
        let map = |range| Step::Event(MemoryEvent::Mmap { range, writable: true, anonymous: true });
        let array = VpnRange::new(ORDER_ARRAY, PageCount(MEASURED.0 * 4 / 4096 + 1));
        let steps = vec![map(VpnRange::new(FIRST, MEASURED)), map(array), Step::Touches];
        Self { steps: steps.into_iter(), order: pages, next: 0 }
    }
}

impl Workload for Filler {
    fn facts(&self) -> WorkloadFacts {
        WorkloadFacts {
            name: "filler".into(),
            footprint: MEASURED,
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
        if let Some(step) = self.steps.next() {
            if step == Step::Touches {
                batch.touches.extend((0..MEASURED.0 * 4 / 4096 + 1).map(|page| (ORDER_ARRAY + page, true)));
            }
            return Ok(step);
        }
        let end = self.order.len().min(self.next + Batch::ACCESSES_MAX);
        batch.touches.extend(self.order[self.next..end].iter().map(|&page| (FIRST + u64::from(page), true)));
        self.next = end;
        Ok(if batch.touches.is_empty() { Step::End } else { Step::Touches })
    }
}
