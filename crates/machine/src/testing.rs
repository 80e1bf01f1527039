// SPDX-License-Identifier: MIT OR Apache-2.0
//! What unit tests build on: small kernels, and programs that do as they are told.

use nestwalk_mem::{Access, Cpu, Gva, PageCount, Vpn, VpnRange};
use nestwalk_os::KernelConfig;
use nestwalk_workload::{Batch, MemoryEvent, Step, Workload, WorkloadError, WorkloadFacts};

use crate::build::add_kernel;
use crate::catalog::Shelf;
use crate::chain::{Floor, KernelChain};
use crate::meter::Meter;
use crate::platform::Platform;
use crate::scenario::MachineConfig;
use crate::stack::Stack;
use crate::timing::Costs;

/// The first page of a program's memory.
pub(crate) const FIRST: Vpn = Vpn(0x10_0000);

pub(crate) fn machine_config() -> MachineConfig {
    Shelf::Machines.load("broadwell-asap", std::path::Path::new("")).unwrap()
}

/// A stack of `depth` kernels, each with half the memory of the one below, and a program on top.
pub(crate) fn kernels(depth: usize) -> (Stack, KernelChain) {
    let (mut stack, mut floors) = (Stack::default(), Vec::<Floor>::new());
    for layer in 0..depth {
        let config = KernelConfig { cpus: 4, ..KernelConfig::new(PageCount(1 << (16 - layer))) };
        let above = (layer + 1 < depth).then_some(PageCount(1 << (15 - layer)));
        floors.push(add_kernel(&mut stack, &floors, &config, above, Cpu(0)).unwrap());
    }
    (stack, KernelChain::new(&floors))
}

/// Maps `pages` of memory for the program on `chain`.
pub(crate) fn map(stack: &mut Stack, chain: &KernelChain, pages: u64) {
    let range = VpnRange::new(FIRST, PageCount(pages));
    let flags = nestwalk_os::VmaFlags::ANONYMOUS;
    let act = |kernel: &mut nestwalk_os::Kernel, process, below: &mut dyn nestwalk_os::Below| {
        kernel.mmap(process, range, flags, below)
    };
    stack.with(chain, chain.top(), Cpu(0), act).unwrap();
}

/// Kernels without cores, whose work has its usual cost.
pub(crate) fn platform(stack: Stack) -> Platform {
    let costs: Costs = Shelf::Costs.load("linux-6.1", std::path::Path::new("")).unwrap();
    let meter = Meter::new(costs.weights().unwrap());
    Platform { stack, hardware: None, meter, timing: machine_config().timing }
}

/// A load of the word at the beginning of page number `page` of the program.
pub(crate) fn load(page: u64) -> Access {
    Access::load(Gva((FIRST + page).address().0))
}

/// A step of a [`Script`].
#[derive(Clone, Debug)]
pub(crate) enum Line {
    Event(MemoryEvent),
    /// First touches of so many pages, and their instructions.
    Touch(u64, u64),
    /// Loads of the first so many pages.
    Load(u64),
    /// Stores to them.
    Store(u64),
}

/// Its memory, of so many pages.
pub(crate) fn mmap(pages: u64) -> Line {
    let range = VpnRange::new(FIRST, PageCount(pages));
    Line::Event(MemoryEvent::Mmap { range, writable: true, anonymous: true })
}

/// A program that does what is written here, and ends.
pub(crate) struct Script(std::vec::IntoIter<Line>);

impl Script {
    pub fn of(lines: &[Line]) -> Box<dyn Workload> {
        Box::new(Self(Vec::from(lines).into_iter()))
    }
}

impl Workload for Script {
    fn facts(&self) -> WorkloadFacts {
        WorkloadFacts {
            name: "script".into(),
            footprint: PageCount(1),
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
        Ok(match self.0.next() {
            None => Step::End,
            Some(Line::Event(event)) => Step::Event(event),
            Some(Line::Touch(pages, instructions)) => {
                batch.touches.extend((0..pages).map(|page| (FIRST + page, true)));
                batch.instructions = instructions;
                Step::Touches
            }
            Some(Line::Load(pages)) => {
                batch.accesses.extend((0..pages).map(load));
                Step::Accesses
            }
            Some(Line::Store(pages)) => {
                batch.accesses.extend((0..pages).map(|page| Access::store(load(page).gva())));
                Step::Accesses
            }
        })
    }
}
