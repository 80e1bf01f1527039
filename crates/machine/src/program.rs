// SPDX-License-Identifier: MIT OR Apache-2.0
//! The program's process on its stack of kernels: its faults and memory events become calls of the kernels.

use nestwalk_mem::{Cpu, Gfn, PageCount, Vpn, VpnRange};
use nestwalk_os::{HugeAdvice, Kernel, OsCounters, OsError, ProcessId, VmaFlags, VmaKind};
use nestwalk_workload::{MemoryEvent, ThreadId};

use crate::build::role;
use crate::error::MachineError;
use crate::hardware::Hardware;
use crate::stack::Stack;

/// See the [module's documentation](self).
#[derive(Debug)]
pub struct Program {
    scenario: String,
    stack: Stack,
    /// Children that are alive, oldest first.
    children: Vec<ProcessId>,
    adopted_pages: u64,
    refused_events: u64,
}

/// How many processors the topmost kernel has, and so over how many the threads are spread.
fn cpus(stack: &Stack) -> u16 {
    stack.layers()[stack.top()].kernel.config().cpus
}

impl Program {
    /// The program of the scenario of that name, on the topmost kernel of `stack`.
    pub fn new(scenario: String, stack: Stack) -> Self {
        Self { scenario, stack, children: Vec::new(), adopted_pages: 0, refused_events: 0 }
    }

    /// Its kernels.
    pub fn stack(&mut self) -> &mut Stack {
        &mut self.stack
    }

    /// How many kernels there are.
    pub fn depth(&self) -> usize {
        self.stack.depth()
    }

    /// The processor on which `thread` runs.
    pub fn cpu(&self, thread: ThreadId) -> Cpu {
        Cpu(thread.0 % cpus(&self.stack))
    }

    /// Pages that the program used without ever having mapped them.
    pub fn adopted_pages(&self) -> u64 {
        self.adopted_pages
    }

    /// Memory events that the kernel refused, because the trace does not know what they refer to.
    pub fn refused_events(&self) -> u64 {
        self.refused_events
    }

    /// What each kernel has counted so far, bottom first.
    pub fn counters(&self) -> Vec<OsCounters> {
        self.stack.layers().iter().map(|layer| *layer.kernel.counters()).collect()
    }

    /// The first touch of a page in a stretch whose accesses are not known.
    ///
    /// # Errors
    /// When a kernel cannot serve it.
    #[inline]
    pub fn touch(&mut self, page: Vpn, store: bool, cpu: Cpu) -> Result<(), MachineError> {
        let top = self.stack.top();
        let backed =
            self.stack.with(top, cpu, |kernel, process, _| kernel.backed_span(process, page, store)) > PageCount(0);
        if self.stack.shadows() {
            return self.touch_shadow(page, store, cpu);
        }
        if backed { Ok(()) } else { self.fault(page, store, cpu) }
    }

    /// The same where the hardware walks a shadow table: all exits that the access would make, the data page's.
    fn touch_shadow(&mut self, page: Vpn, store: bool, cpu: Cpu) -> Result<(), MachineError> {
        if self.depth() == 2 {
            while !self.stack.shadow_fault(page, store, cpu).map_err(|error| self.failed(0, error))? {
                self.fault(page, store, cpu)?;
            }
            return Ok(());
        }
        let top = self.stack.top();
        loop {
            let frame = self.stack.with(top, cpu, |kernel, process, _| {
                let backed = kernel.backed_span(process, page, store) > PageCount(0);
                kernel.table(process).ok().and_then(|table| table.translate(page)).filter(|_| backed)
            });
            match frame {
                Some(frame) => return self.host_fault(Gfn::from(frame), store, cpu),
                None => self.fault(page, store, cpu)?,
            }
        }
    }

    /// A page fault of the program. A page that it never mapped is mapped for it: a trace need not know all mappings.
    ///
    /// # Errors
    /// When a kernel is out of memory.
    pub fn fault(&mut self, page: Vpn, store: bool, cpu: Cpu) -> Result<(), MachineError> {
        let top = self.stack.top();
        match self.stack.fault(top, page, store, cpu) {
            Ok(_) => return Ok(()),
            Err(OsError::Segfault { .. } | OsError::ReadOnly { .. }) => {}
            Err(error) => return Err(self.failed(top, error)),
        }
        self.adopted_pages += 1;
        let range = VpnRange::new(page, PageCount(1));
        let adopted = self.stack.with(top, cpu, |kernel, process, below| match kernel.vma(process, page) {
            None => kernel.mmap(process, range, VmaFlags::ANONYMOUS, below),
            Some(_) => kernel.mprotect(process, range, true, below),
        });
        adopted.and_then(|()| self.stack.fault(top, page, store, cpu)).map(|_| ()).map_err(|e| self.failed(top, e))
    }

    /// The hardware's walk for `page` of the program ended in a fault: a page fault of the program, or one of the shadow table that
    /// the hardware walks.
    ///
    /// # Errors
    /// When a kernel is out of memory.
    pub fn walk_fault(&mut self, page: Vpn, store: bool, cpu: Cpu) -> Result<(), MachineError> {
        if self.depth() == 2 && self.stack.shadows() {
            let filled = self.stack.shadow_fault(page, store, cpu).map_err(|error| self.failed(0, error))?;
            if filled {
                return Ok(());
            }
        }
        self.fault(page, store, cpu)
    }

    /// A fault of the host: the guest used a frame that the host does not back (an EPT violation).
    ///
    /// # Errors
    /// When a kernel is out of memory.
    pub fn host_fault(&mut self, gfn: Gfn, store: bool, cpu: Cpu) -> Result<(), MachineError> {
        let host = self.stack.top() - 1;
        let page = self.stack.layers()[host].base + gfn.0;
        if self.stack.shadows() {
            // The lowest kernel sees every EPT violation first, and hands on to the middle one what that has to serve.
            while !self.stack.shadow_fault(page, store, cpu).map_err(|error| self.failed(0, error))? {
                self.stack.fault(host, page, store, cpu).map_err(|error| self.failed(host, error))?;
            }
            return Ok(());
        }
        self.stack.fault(host, page, store, cpu).map(|_| ()).map_err(|error| self.failed(host, error))
    }

    /// The program asks its kernel for something.
    ///
    /// # Errors
    /// When a kernel is out of memory.
    pub fn event(&mut self, hardware: &mut Hardware, event: &MemoryEvent) -> Result<(), MachineError> {
        let top = self.stack.top();
        let result = match *event {
            MemoryEvent::Fork => self.fork(),
            MemoryEvent::ChildExit => self.child_exit(),
            _ => self.stack.with(top, Cpu(0), |kernel, process, below| match *event {
                MemoryEvent::Mmap { range, writable, anonymous } => {
                    let kind = if anonymous { VmaKind::Anonymous } else { VmaKind::File };
                    kernel.mmap(process, range, VmaFlags { kind, writable, advice: HugeAdvice::None }, below)
                }
                MemoryEvent::Munmap { range } => kernel.munmap(process, range, below),
                MemoryEvent::Brk { end } => kernel.brk(process, end, below),
                MemoryEvent::Mremap { from, to } => kernel.mremap(process, from, to, below),
                MemoryEvent::Mprotect { range, writable } => kernel.mprotect(process, range, writable, below),
                MemoryEvent::Madvise { range, advice } => madvise(kernel, process, range, advice, below),
                MemoryEvent::Fork | MemoryEvent::ChildExit => Ok(()),
            }),
        };
        match result {
            Ok(()) => {}
            Err(OsError::Segfault { .. } | OsError::BadRange(_) | OsError::ReadOnly { .. }) => self.refused_events += 1,
            Err(error) => return Err(self.failed(top, error)),
        }
        self.shoot_down(hardware);
        Ok(())
    }

    fn fork(&mut self) -> Result<(), OsError> {
        let top = self.stack.top();
        let child = self.stack.with(top, Cpu(0), |kernel, process, below| kernel.fork(process, below))?;
        self.children.push(child);
        Ok(())
    }

    fn child_exit(&mut self) -> Result<(), OsError> {
        let Some(child) = self.children.pop() else { return Ok(()) };
        let top = self.stack.top();
        self.stack.with(top, Cpu(0), |kernel, _, below| kernel.exit(child, below))
    }

    /// Lets the daemons of all kernels work until `now_ns`.
    ///
    /// # Errors
    /// When a kernel is out of memory.
    pub fn tick(&mut self, now_ns: u64) -> Result<(), MachineError> {
        self.stack.tick(now_ns).map_err(|error| self.failed(self.stack.top(), error))
    }

    /// Applies the shootdowns that the kernels asked for to the cores.
    pub fn shoot_down(&mut self, hardware: &mut Hardware) {
        let top = self.stack.top();
        self.stack.drain_invalidations(|layer, process, invalidation| {
            if invalidation.process != process {
                // Another process than the one that runs: this core holds nothing of it.
            } else if layer == top {
                hardware.invalidate(&invalidation);
            } else {
                hardware.invalidate_nested();
            }
        });
    }

    #[cold]
    fn failed(&self, layer: usize, source: OsError) -> MachineError {
        MachineError::Os { name: self.scenario.clone(), kernel: role(layer, self.depth()).into(), source }
    }
}

fn madvise(
    kernel: &mut Kernel,
    process: ProcessId,
    range: VpnRange,
    advice: u32,
    below: &mut dyn nestwalk_os::Below,
) -> Result<(), OsError> {
    match nestwalk_os::Advice::from_linux(advice) {
        Some(advice) => kernel.madvise(process, range, advice, below),
        // Advice that no manager acts on.
        None => Ok(()),
    }
}
