// SPDX-License-Identifier: MIT OR Apache-2.0
//! Processes: an address space each, that is mappings and a page table.

use nestwalk_mem::{Cpu, Frame, PageCount, PageTable, Vpn};

use crate::error::OsError;
pub use crate::id::ProcessId;
use crate::state::vma::Vmas;

/// What a processor's counters say of a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WalkTime {
    /// Cycles of its page walks, of loads and of stores.
    pub walk_cycles: u64,
    /// Cycles that it ran, in user mode.
    pub cycles: u64,
}

/// An address space.
#[derive(Debug)]
pub struct Process {
    /// Its mappings.
    pub vmas: Vmas,
    /// Its page table.
    pub table: PageTable,
    /// Where it ran last: its freed pages go to that processor's lists.
    pub cpu: Cpu,
    /// Start and end of its heap, once it has one.
    pub(crate) heap: Option<(Vpn, Vpn)>,
    /// The memory limit of its cgroup (`memory.max`), if that has one. Nothing enforces it: it
    /// marks a process.
    pub cgroup_limit: Option<PageCount>,
    /// The parent, if a fork made it.
    pub parent: Option<ProcessId>,
    /// The node of its table that was written last, and
    /// [`Below::epoch`](crate::below::Below::epoch) then: until that changes, the next write to the
    /// node is nothing new to what lies below.
    pub(crate) last_node: Option<(Frame, u64)>,
    /// What the machine [has told](crate::Kernel::add_walk_time) of it so far.
    pub walk_time: WalkTime,
}

/// All processes of a kernel.
#[derive(Debug, Default)]
pub struct Processes {
    slots: Vec<Option<Box<Process>>>,
    next: usize,
    live: usize,
}

impl Processes {
    /// Numbers that there are.
    const NUMBERS: usize = 1 << 15;

    pub(crate) fn insert(&mut self, process: Process) -> Result<ProcessId, OsError> {
        if self.live == Self::NUMBERS {
            return Err(OsError::TooManyProcesses(Self::NUMBERS as u32));
        }
        while self.slots.get(self.next).is_some_and(Option::is_some) {
            self.next = (self.next + 1) % Self::NUMBERS;
        }
        if self.next == self.slots.len() {
            self.slots.push(None);
        }
        let id = ProcessId(self.next as u16);
        self.slots[self.next] = Some(Box::new(process));
        self.next = (self.next + 1) % Self::NUMBERS;
        self.live += 1;
        Ok(id)
    }

    pub(crate) fn remove(&mut self, id: ProcessId) -> Option<Box<Process>> {
        let process = self.slots.get_mut(usize::from(id.0))?.take();
        self.live -= usize::from(process.is_some());
        process
    }

    /// The process `id`.
    ///
    /// # Errors
    /// When there is none.
    #[inline]
    pub fn get(&self, id: ProcessId) -> Result<&Process, OsError> {
        match self.slots.get(usize::from(id.0)) {
            Some(Some(process)) => Ok(process),
            _ => Err(OsError::NoProcess(id)),
        }
    }

    /// The process `id`.
    ///
    /// # Errors
    /// When there is none.
    #[inline]
    pub fn get_mut(&mut self, id: ProcessId) -> Result<&mut Process, OsError> {
        match self.slots.get_mut(usize::from(id.0)) {
            Some(Some(process)) => Ok(process),
            _ => Err(OsError::NoProcess(id)),
        }
    }

    /// How many are alive.
    pub fn len(&self) -> usize {
        self.live
    }

    /// Whether none is alive.
    pub fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// Those alive, by number.
    pub fn iter(&self) -> impl Iterator<Item = (ProcessId, &Process)> {
        self.slots.iter().enumerate().filter_map(|(i, slot)| Some((ProcessId(i as u16), slot.as_deref()?)))
    }

    /// The first one alive whose number is `from` or more, else the first of all: for daemons that
    /// go round.
    pub fn round_robin(&self, from: ProcessId) -> Option<ProcessId> {
        let alive = |&i: &usize| self.slots[i].is_some();
        let from = usize::from(from.0).min(self.slots.len());
        (from..self.slots.len()).chain(0..from).find(alive).map(|i| ProcessId(i as u16))
    }
}

#[cfg(test)]
mod tests {
    use nestwalk_mem::Geometry;

    use super::*;

    fn process() -> Process {
        Process {
            vmas: Vmas::default(),
            table: PageTable::new(Geometry::X86_4, Frame(0)),
            cpu: Cpu(0),
            heap: None,
            cgroup_limit: None,
            parent: None,
            last_node: None,
            walk_time: WalkTime::default(),
        }
    }

    #[test]
    fn numbers_are_not_used_again_at_once() {
        let mut all = Processes::default();
        let a = all.insert(process()).unwrap();
        assert!(all.remove(a).is_some() && all.remove(a).is_none());
        let b = all.insert(process()).unwrap();
        assert_ne!(a, b);
        assert_eq!(all.get(a).err(), Some(OsError::NoProcess(a)));
        assert_eq!((all.len(), all.round_robin(ProcessId(7))), (1, Some(b)));
    }
}
