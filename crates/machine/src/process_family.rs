// SPDX-License-Identifier: MIT OR Apache-2.0
//! A program as its kernels see it: a process, the children that it forks and the parents that wait
//! for them. This file has their life cycle; `faults` and `events` turn faults and memory events
//! into calls of the kernels.

mod events;
mod faults;

use nestwalk_mem::{Cpu, Cycles, Nanoseconds, PageCount};
use nestwalk_os::{Below, Kernel, OsError, ProcessId};

use crate::chain::KernelChain;
use crate::error::MachineError;
use crate::meter::{Meter, Work};
use crate::stack::Stack;

/// See the [module's documentation](self).
#[derive(Debug)]
pub(crate) struct ProcessFamily {
    scenario: String,
    chain: KernelChain,
    /// Children that are alive, oldest first.
    children: Vec<ProcessId>,
    /// Parents that wait for the child that goes on in their place, oldest first.
    waiting: Vec<ProcessId>,
    adopted_pages: u64,
    refused_events: u64,
    work: Work,
    /// The memory limit of its cgroup, which it keeps when it begins anew.
    cgroup_limit: Option<PageCount>,
    /// Whether its page table was dumped from a running machine. Its memory events, most of which
    /// made that table, then change nothing.
    frozen: bool,
}

impl ProcessFamily {
    /// A program of the scenario of that name, on the kernels of `chain`.
    pub fn new(scenario: String, chain: KernelChain) -> Self {
        Self {
            scenario,
            chain,
            children: Vec::new(),
            waiting: Vec::new(),
            adopted_pages: 0,
            refused_events: 0,
            work: Work::default(),
            cgroup_limit: None,
            frozen: false,
        }
    }

    /// The same, with a page table that was dumped from a running machine.
    pub fn frozen(mut self, frozen: bool) -> Self {
        self.frozen = frozen;
        self
    }

    /// The same in a cgroup with that memory limit, if it has one.
    ///
    /// # Errors
    /// When its process is gone.
    pub fn limited(mut self, limit: Option<PageCount>, stack: &mut Stack) -> Result<Self, MachineError> {
        self.cgroup_limit = limit;
        self.set_limit(stack)?;
        Ok(self)
    }

    fn set_limit(&self, stack: &mut Stack) -> Result<(), MachineError> {
        let limit = self.cgroup_limit;
        let top = self.chain.top();
        let set = |kernel: &mut Kernel, process, _: &mut dyn Below| kernel.set_cgroup_limit(process, limit);
        stack.with(&self.chain, top, Cpu(0), set).map_err(|error| self.failed(top, error))
    }

    /// It goes on in the scenario of that name.
    pub fn rename(&mut self, scenario: &str) {
        scenario.clone_into(&mut self.scenario);
    }

    /// The kernels that it runs on.
    pub fn chain(&self) -> &KernelChain {
        &self.chain
    }

    /// Whether a child goes on in the place of its parent.
    pub fn is_child(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether its page table was dumped from a running machine.
    pub fn is_frozen(&self) -> bool {
        self.frozen
    }

    /// Pages that the program used without ever having mapped them.
    pub fn adopted_pages(&self) -> u64 {
        self.adopted_pages
    }

    /// Memory events that the kernel refused, because the trace does not know what they refer to.
    pub fn refused_events(&self) -> u64 {
        self.refused_events
    }

    /// What the kernels did for it, as far as it has been read.
    pub fn work(&self) -> &Work {
        &self.work
    }

    /// Charges this program for what the kernels did since they were last read. Returns its cost.
    pub fn read(&mut self, meter: &mut Meter, stack: &Stack) -> Cycles {
        meter.read(stack, &self.chain, &mut self.work)
    }

    fn fork(&mut self, stack: &mut Stack, cpu: Cpu) -> Result<ProcessId, OsError> {
        let top = self.chain.top();
        stack.with(&self.chain, top, cpu, |kernel, process, below| kernel.fork(process, below))
    }

    fn spawn(&mut self, stack: &mut Stack, cpu: Cpu) -> Result<ProcessId, OsError> {
        let top = self.chain.top();
        stack.with(&self.chain, top, cpu, |kernel, process, below| kernel.spawn_beside(process, below))
    }

    fn child_exit(&mut self, stack: &mut Stack, cpu: Cpu) -> Result<(), OsError> {
        let child = match self.waiting.pop() {
            Some(parent) => {
                let child = self.chain.process();
                self.chain.become_process(parent);
                child
            }
            None => match self.children.pop() {
                Some(child) => child,
                None => return Ok(()),
            },
        };
        let top = self.chain.top();
        stack.with(&self.chain, top, cpu, |kernel, _, below| kernel.exit(child, below))
    }

    /// The program is killed, with the children that it waits for or has left behind.
    ///
    /// # Errors
    /// When nothing below a kernel backs a frame.
    pub fn exit(&mut self, stack: &mut Stack, cpu: Cpu) -> Result<(), MachineError> {
        let top = self.chain.top();
        let family = std::iter::once(self.chain.process()).chain(self.waiting.drain(..)).chain(self.children.drain(..));
        for process in family {
            let gone = stack.with(&self.chain, top, cpu, |kernel, _, below| kernel.exit(process, below));
            gone.map_err(|source| failed(&self.scenario, &self.chain, top, source))?;
        }
        Ok(())
    }

    /// The program begins anew, as a process without memory.
    ///
    /// # Errors
    /// When a kernel is out of memory.
    pub fn restart(&mut self, stack: &mut Stack, cpu: Cpu) -> Result<(), MachineError> {
        self.exit(stack, cpu)?;
        let top = self.chain.top();
        let process = stack.with(&self.chain, top, cpu, |kernel, _, below| kernel.spawn(below));
        self.chain.become_process(process.map_err(|error| self.failed(top, error))?);
        self.set_limit(stack)
    }

    /// Lets the daemons of its kernels work until `now`, bottom first.
    ///
    /// # Errors
    /// When a kernel is out of memory.
    pub fn tick(&mut self, stack: &mut Stack, now: Nanoseconds) -> Result<(), MachineError> {
        (0..self.chain.depth()).try_for_each(|layer| self.tick_layer(stack, layer, now))
    }

    /// The same for its topmost kernel only.
    ///
    /// # Errors
    /// When a kernel is out of memory.
    pub fn tick_top(&mut self, stack: &mut Stack, now: Nanoseconds) -> Result<(), MachineError> {
        self.tick_layer(stack, self.chain.top(), now)
    }

    fn tick_layer(&mut self, stack: &mut Stack, layer: usize, now: Nanoseconds) -> Result<(), MachineError> {
        let ticked = stack.with(&self.chain, layer, Cpu(0), |kernel, _, below| kernel.tick(now, below));
        ticked.map_err(|error| self.failed(layer, error))
    }

    /// An error of the kernel at `layer`, with where it happened.
    #[cold]
    pub fn failed(&self, layer: usize, source: OsError) -> MachineError {
        failed(&self.scenario, &self.chain, layer, source)
    }
}

#[cold]
fn failed(scenario: &str, chain: &KernelChain, layer: usize, source: OsError) -> MachineError {
    MachineError::Os {
        place: format!("scenario {}", scenario.escape_debug()),
        kernel: chain.role(layer).into(),
        source,
    }
}
