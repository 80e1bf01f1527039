// SPDX-License-Identifier: MIT OR Apache-2.0
//! A program as its kernels see it: a process, the children that it forks and the parents that wait
//! for them. Its faults and memory events become calls of the kernels.

use nestwalk_mem::{Cpu, Gfn, Nanoseconds, PageCount, Va, Vpn, VpnRange};
use nestwalk_mmu::Fault;
use nestwalk_os::{Below, HugeAdvice, Kernel, OsError, ProcessId, VmaFlags, VmaKind};
use nestwalk_workload::MemoryEvent;

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
    /// Whether its page table was found as it is: then its memory events, most of which made that table, change nothing.
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

    /// The same, with a page table that was found as it is.
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

    /// Whether its page table was found as it is.
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

    /// Reads what the kernels did since they were read last: it was for this program. Returns its cost in cycles.
    pub fn read(&mut self, meter: &mut Meter, stack: &Stack) -> u64 {
        meter.read(stack, &self.chain, &mut self.work)
    }

    /// The first touch of a page in a stretch whose accesses are not known.
    ///
    /// # Errors
    /// When a kernel cannot serve it.
    #[inline]
    pub fn touch(&mut self, stack: &mut Stack, page: Vpn, store: bool, cpu: Cpu) -> Result<(), MachineError> {
        if stack.shadows(&self.chain) {
            return self.touch_shadow(stack, page, store, cpu);
        }
        match stack.touch(&self.chain, page, store, cpu) {
            Ok(()) => Ok(()),
            Err(error) => self.adopt(stack, error, page, store, cpu),
        }
    }

    /// The same where the hardware walks a shadow table: with all exits that the access would make for the data page.
    fn touch_shadow(&mut self, stack: &mut Stack, page: Vpn, store: bool, cpu: Cpu) -> Result<(), MachineError> {
        if self.chain.depth() == 2 {
            while !self.shadow_fault(stack, page, store, cpu)? {
                self.fault(stack, page, store, cpu)?;
            }
            return Ok(());
        }
        let top = self.chain.top();
        loop {
            let frame = stack.with(&self.chain, top, cpu, |kernel, process, _| {
                let backed = kernel.backed_span(process, page, store).is_ok_and(|span| span > PageCount(0));
                kernel.table(process).ok().and_then(|table| table.translate(page)).filter(|_| backed)
            });
            match frame {
                Some(frame) => return self.host_fault(stack, Gfn::from(frame), store, cpu),
                None => self.fault(stack, page, store, cpu)?,
            }
        }
    }

    /// See [`Stack::shadow_fault`]. `cpu` is one of the program's kernel.
    fn shadow_fault(&mut self, stack: &mut Stack, page: Vpn, store: bool, cpu: Cpu) -> Result<bool, MachineError> {
        let cpu = stack.machine_cpu(&self.chain, cpu);
        stack.shadow_fault(&self.chain, page, store, cpu).map_err(|error| self.failed(0, error))
    }

    /// The hardware's walk for `page` ended in a fault: a page fault of the program, or a miss of the shadow table that the
    /// hardware walks.
    fn walk_fault(&mut self, stack: &mut Stack, page: Vpn, store: bool, cpu: Cpu) -> Result<(), MachineError> {
        let shadowed = self.chain.depth() == 2 && stack.shadows(&self.chain);
        if shadowed && self.shadow_fault(stack, page, store, cpu)? {
            return Ok(());
        }
        self.fault(stack, page, store, cpu)
    }

    /// A page fault of the program. A page that it never mapped is mapped for it: a trace need not know all mappings.
    ///
    /// # Errors
    /// When a kernel is out of memory.
    pub fn fault(&mut self, stack: &mut Stack, page: Vpn, store: bool, cpu: Cpu) -> Result<(), MachineError> {
        match stack.fault(&self.chain, self.chain.top(), page, store, cpu) {
            Ok(_) => Ok(()),
            Err(error) => self.adopt(stack, error, page, store, cpu),
        }
    }

    /// The program's kernel did not serve a fault. A page that was never mapped is mapped now.
    #[cold]
    #[inline(never)]
    fn adopt(
        &mut self,
        stack: &mut Stack,
        error: OsError,
        page: Vpn,
        store: bool,
        cpu: Cpu,
    ) -> Result<(), MachineError> {
        let top = self.chain.top();
        if !matches!(error, OsError::Segfault { .. } | OsError::ReadOnly { .. }) {
            return Err(self.failed(top, error));
        }
        self.adopted_pages += 1;
        let range = VpnRange::new(page, PageCount(1));
        let adopted = stack.with(&self.chain, top, cpu, |kernel, process, below| match kernel.vma(process, page) {
            None => kernel.mmap(process, range, VmaFlags::ANONYMOUS, below),
            Some(_) => kernel.mprotect(process, range, true, below),
        });
        let served = adopted.and_then(|()| stack.fault(&self.chain, top, page, store, cpu));
        served.map(|_| ()).map_err(|error| self.failed(top, error))
    }

    /// A fault of the host: the guest used a frame that the host does not back (an EPT violation).
    ///
    /// # Errors
    /// When a kernel is out of memory.
    fn host_fault(&mut self, stack: &mut Stack, gfn: Gfn, store: bool, cpu: Cpu) -> Result<(), MachineError> {
        let host = self.chain.top() - 1;
        let page = self.chain.floors()[host].base + gfn.0;
        if stack.shadows(&self.chain) {
            // The lowest kernel sees every EPT violation first, and hands on to the middle one what that has to serve.
            while !self.shadow_fault(stack, page, store, cpu)? {
                let served = stack.fault(&self.chain, host, page, store, cpu);
                served.map_err(|error| self.failed(host, error))?;
            }
            return Ok(());
        }
        let cpu = stack.machine_cpu(&self.chain, cpu);
        let served = stack.fault(&self.chain, host, page, store, cpu);
        served.map(|_| ()).map_err(|error| self.failed(host, error))
    }

    /// Serves a fault that a core met, on the program's processor `cpu`.
    ///
    /// # Errors
    /// When a kernel is out of memory, or the fault is the program's own.
    pub fn serve(&mut self, stack: &mut Stack, fault: Fault, cpu: Cpu) -> Result<(), MachineError> {
        match fault {
            Fault::Guest { gva, store } => self.walk_fault(stack, Va::from(gva).page(), store, cpu),
            Fault::Host { gpa, store } => self.host_fault(stack, gpa.page(), store, cpu),
            Fault::Boundary { gpa } => Err(MachineError::Scenario {
                place: format!("scenario {}", self.scenario.escape_debug()),
                what: format!("a DS-n violation: the guest refers to {gpa:?}, beyond its memory"),
            }),
        }
    }

    /// The program, running on `cpu`, asks its kernel for something.
    ///
    /// # Errors
    /// When a kernel is out of memory.
    pub fn event(&mut self, stack: &mut Stack, event: &MemoryEvent, cpu: Cpu) -> Result<(), MachineError> {
        if self.frozen {
            return Ok(());
        }
        let top = self.chain.top();
        let result = match *event {
            MemoryEvent::Fork => self.fork(stack, cpu).map(|child| self.children.push(child)),
            MemoryEvent::ForkAndWait => self.fork(stack, cpu).map(|child| {
                self.waiting.push(self.chain.process());
                self.chain.become_process(child);
            }),
            MemoryEvent::ChildExit => self.child_exit(stack, cpu),
            _ => stack.with(&self.chain, top, cpu, |kernel, process, below| match *event {
                MemoryEvent::Mmap { range, writable, anonymous } => {
                    let kind = if anonymous { VmaKind::Anonymous } else { VmaKind::File };
                    kernel.mmap(process, range, VmaFlags { kind, writable, advice: HugeAdvice::None }, below)
                }
                MemoryEvent::Munmap { range } => kernel.munmap(process, range, below),
                MemoryEvent::Brk { end } => kernel.brk(process, end, below),
                MemoryEvent::Mremap { from, to } => kernel.mremap(process, from, to, below),
                MemoryEvent::Mprotect { range, writable } => kernel.mprotect(process, range, writable, below),
                MemoryEvent::Madvise { range, advice } => madvise(kernel, process, range, advice, below),
                MemoryEvent::Fork | MemoryEvent::ForkAndWait | MemoryEvent::ChildExit => Ok(()),
            }),
        };
        match result {
            Ok(()) => Ok(()),
            Err(OsError::Segfault { .. } | OsError::BadRange(_) | OsError::ReadOnly { .. }) => {
                self.refused_events += 1;
                Ok(())
            }
            Err(error) => Err(self.failed(top, error)),
        }
    }

    fn fork(&mut self, stack: &mut Stack, cpu: Cpu) -> Result<ProcessId, OsError> {
        let top = self.chain.top();
        stack.with(&self.chain, top, cpu, |kernel, process, below| kernel.fork(process, below))
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

    /// Lets the daemons of its kernels work until `now_ns`, bottom first.
    ///
    /// # Errors
    /// When a kernel is out of memory.
    pub fn tick(&mut self, stack: &mut Stack, now_ns: u64) -> Result<(), MachineError> {
        (0..self.chain.depth()).try_for_each(|layer| self.tick_layer(stack, layer, now_ns))
    }

    /// The same for its topmost kernel only.
    ///
    /// # Errors
    /// When a kernel is out of memory.
    pub fn tick_top(&mut self, stack: &mut Stack, now_ns: u64) -> Result<(), MachineError> {
        self.tick_layer(stack, self.chain.top(), now_ns)
    }

    fn tick_layer(&mut self, stack: &mut Stack, layer: usize, now_ns: u64) -> Result<(), MachineError> {
        let ticked = stack.with(&self.chain, layer, Cpu(0), |kernel, _, below| kernel.tick(Nanoseconds(now_ns), below));
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

fn madvise(
    kernel: &mut Kernel,
    process: ProcessId,
    range: VpnRange,
    advice: u32,
    below: &mut dyn Below,
) -> Result<(), OsError> {
    match nestwalk_os::Advice::from_linux(advice) {
        Some(advice) => kernel.madvise(process, range, advice, below),
        // Advice that no manager acts on.
        None => Ok(()),
    }
}
