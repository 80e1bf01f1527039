// SPDX-License-Identifier: MIT OR Apache-2.0
//! New processes, and VMs, which are processes of their host.

use nestwalk_mem::{Cpu, Frame, PageCount, PageTable, Vpn, VpnRange};

use crate::below::Below;
use crate::context::placement::TableContext;
use crate::error::OsError;
use crate::kernel::Kernel;
use crate::state::process::{Process, ProcessId, WalkTime};
use crate::state::vma::{VmaFlags, Vmas};

impl Kernel {
    /// A new process without mappings.
    ///
    /// # Errors
    /// When there is no memory for the root of its page table, or no number left.
    pub fn spawn(&mut self, below: &mut dyn Below) -> Result<ProcessId, OsError> {
        let geometry = self.config.geometry;
        // The number is not known before the process exists, and placements want to know whose root
        // it is.
        let process = Process {
            vmas: Vmas::default(),
            table: PageTable::new(geometry, Frame(0)),
            cpu: Cpu(0),
            heap: None,
            cgroup_limit: None,
            parent: None,
            last_node: None,
            walk_time: WalkTime::default(),
        };
        let id = self.state.processes.insert(process)?;
        let root = self.retrying(Cpu(0), below, |cx, _| {
            let mut inner = TableContext { state: cx.state, below: cx.below, cpu: cx.cpu };
            inner.place_node(cx.tables, id, geometry.root(), Vpn(0))
        });
        match root {
            Ok(frame) => {
                let table = &mut self.state.processes.get_mut(id)?.table;
                table.relocate(table.root(), frame);
                Ok(id)
            }
            Err(error) => {
                self.state.processes.remove(id);
                Err(error)
            }
        }
    }

    /// A new process without mappings, a child of `parent` and in its cgroup: what `vfork` and
    /// `execve` make. It counts as a fork.
    ///
    /// # Errors
    /// As [`Kernel::spawn`], and when there is no such parent.
    pub fn spawn_beside(&mut self, parent: ProcessId, below: &mut dyn Below) -> Result<ProcessId, OsError> {
        let space = self.state.processes.get(parent)?;
        let (cpu, limit) = (space.cpu, space.cgroup_limit);
        let child = self.spawn(below)?;
        let space = self.state.processes.get_mut(child)?;
        (space.cpu, space.cgroup_limit, space.parent) = (cpu, limit, Some(parent));
        self.state.counters.forks += 1;
        Ok(child)
    }

    /// A process that is a virtual machine with `memory`: one writable mapping, whose start is a
    /// multiple of 1 GiB. Returns the process and the page at which the guest's frame 0 lies.
    /// Whether it is advised to be huge is for [`Kernel::madvise`] to say.
    ///
    /// # Errors
    /// When there is no memory for a table node, or no gap of that size in an address space.
    pub fn host_vm(&mut self, memory: PageCount, below: &mut dyn Below) -> Result<(ProcessId, Vpn), OsError> {
        let process = self.spawn(below)?;
        let base = self.find_free(process, memory, 18)?;
        let range = VpnRange::new(base, memory);
        self.mmap(process, range, VmaFlags::ANONYMOUS, below)?;
        Ok((process, base))
    }
}
