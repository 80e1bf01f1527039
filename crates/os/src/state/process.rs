// SPDX-License-Identifier: MIT OR Apache-2.0
//! Processes: an address space each, that is mappings and a page table.

use std::collections::BTreeSet;

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

/// All processes of a kernel. What goes over them takes as long as some are alive, however many
/// there have been: numbers are used up before one comes again.
#[derive(Debug, Default)]
pub struct Processes {
    slots: Vec<Option<Box<Process>>>,
    next: usize,
    /// Numbers of those alive.
    alive: BTreeSet<ProcessId>,
}

impl Processes {
    /// Numbers that there are.
    const NUMBERS: usize = 1 << 15;

    pub(crate) fn insert(&mut self, process: Process) -> Result<ProcessId, OsError> {
        if self.alive.len() == Self::NUMBERS {
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
        self.alive.insert(id);
        Ok(id)
    }

    pub(crate) fn remove(&mut self, id: ProcessId) -> Option<Box<Process>> {
        self.alive.remove(&id);
        self.slots.get_mut(usize::from(id.0))?.take()
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
        self.alive.len()
    }

    /// Whether none is alive.
    pub fn is_empty(&self) -> bool {
        self.alive.is_empty()
    }

    /// Those alive, by number.
    pub fn iter(&self) -> impl Iterator<Item = (ProcessId, &Process)> {
        self.alive.iter().filter_map(|&id| Some((id, self.slots[usize::from(id.0)].as_deref()?)))
    }

    /// The first one alive whose number is `from` or more, else the first of all: for daemons that
    /// go round.
    pub fn round_robin(&self, from: ProcessId) -> Option<ProcessId> {
        self.alive.range(from..).next().or_else(|| self.alive.first()).copied()
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

    #[test]
    fn those_alive_come_by_number_whatever_was_there_before() {
        let mut all = Processes::default();
        for _ in 0..Processes::NUMBERS + 3 {
            let id = all.insert(process()).unwrap();
            if id.0 % 1000 != 7 {
                all.remove(id);
            }
        }
        let alive: Vec<u16> = all.iter().map(|(id, _)| id.0).collect();
        assert_eq!(alive, (0..33).map(|i| 1000 * i + 7).filter(|&i| i < 1 << 15).collect::<Vec<_>>());
        let round = [0, 7, 8, 32_007, 32_008].map(|from| all.round_robin(ProcessId(from)).unwrap().0);
        assert_eq!((all.len(), round), (33, [7, 7, 1007, 32_007, 7]));
    }
}
