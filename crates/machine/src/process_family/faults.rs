// SPDX-License-Identifier: MIT OR Apache-2.0
//! Page faults of a program: which kernel serves each, under nested and shadow paging, and pages
//! that the program never mapped.

use nestwalk_mem::{Cpu, Gfn, PageCount, Va, Vpn, VpnRange};
use nestwalk_mmu::Fault;
use nestwalk_os::{OsError, VmaFlags};

use super::ProcessFamily;
use crate::error::MachineError;
use crate::stack::Stack;

impl ProcessFamily {
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

    /// The same where the hardware walks a shadow table: with all exits that an access to the data
    /// page would cause.
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

    /// The hardware's walk for `page` ended in a fault: a page fault of the program, or a miss of
    /// the shadow table that the hardware walks.
    fn walk_fault(&mut self, stack: &mut Stack, page: Vpn, store: bool, cpu: Cpu) -> Result<(), MachineError> {
        let shadowed = self.chain.depth() == 2 && stack.shadows(&self.chain);
        if shadowed && self.shadow_fault(stack, page, store, cpu)? {
            return Ok(());
        }
        self.fault(stack, page, store, cpu)
    }

    /// A page fault of the program. A page that it never mapped is mapped for it, because a trace
    /// may lack mappings.
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
            // The lowest kernel sees every EPT violation first, and passes on those that the middle
            // kernel has to serve.
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
}
