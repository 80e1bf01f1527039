// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory events as a trace keeps them: what the capture saw, word for word, and what it means for
//! the kernel.

use nestwalk_mem::addr::PAGE_BYTES;
use nestwalk_mem::{PageCount, Va, Vpn, VpnRange};

use super::format::{ADDRESS_END, Fault};
use crate::stream::{MemoryEvent, ThreadId};

/// Linux's `PROT_WRITE`.
const PROT_WRITE: u64 = 2;
/// Linux's `MAP_PRIVATE`.
const MAP_PRIVATE: u64 = 2;
/// Linux's `MAP_ANONYMOUS`.
const MAP_ANONYMOUS: u64 = 0x20;
/// Linux's `CLONE_VM`: the child shares the parent's memory.
const CLONE_VM: u64 = 0x100;

/// What kind of event it is. The numbers are those of the raw stream (`capture/README.md`) and of
/// the format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum EventOp {
    /// `mmap`: argument = protection | map flags << 32, result = address.
    Mmap = 1,
    /// `munmap`.
    Munmap = 2,
    /// `brk`: argument = break before (0 = not known), result = break after.
    Brk = 3,
    /// `mremap`: argument = new length, result = new address.
    Mremap = 4,
    /// `mprotect`: argument = protection.
    Mprotect = 5,
    /// `madvise`: argument = advice.
    Madvise = 6,
    /// `clone`, `fork`: argument = clone flags; flags = 0 for a thread, 1 for a process.
    Clone = 7,
    /// `exit`: flags = 0 for this thread, 1 for the process.
    Exit = 8,
    /// A mapping that is there when the program starts: argument = protection, flags = map flags.
    Vma = 9,
    /// The program, or its driver, says that its part number `argument` begins.
    Mark = 10,
    /// A forked child has exited.
    ChildExit = 11,
}

impl EventOp {
    /// The operation with this number.
    pub const fn of(number: u32) -> Option<Self> {
        match number {
            1 => Some(Self::Mmap),
            2 => Some(Self::Munmap),
            3 => Some(Self::Brk),
            4 => Some(Self::Mremap),
            5 => Some(Self::Mprotect),
            6 => Some(Self::Madvise),
            7 => Some(Self::Clone),
            8 => Some(Self::Exit),
            9 => Some(Self::Vma),
            10 => Some(Self::Mark),
            11 => Some(Self::ChildExit),
            _ => None,
        }
    }
}

/// An event, as captured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TraceEvent {
    /// What it is.
    pub op: EventOp,
    /// Whose system call it was.
    pub thread: ThreadId,
    /// See [`EventOp`].
    pub flags: u32,
    /// Where the range begins.
    pub address: Va,
    /// Length of the range in bytes.
    pub bytes: u64,
    /// See [`EventOp`].
    pub argument: u64,
    /// What the system call returned.
    pub result: u64,
}

impl TraceEvent {
    /// A private anonymous mapping of `range`: what a converter adds where a capture lacks one.
    pub fn mapping(thread: ThreadId, range: VpnRange) -> Self {
        Self {
            op: EventOp::Vma,
            thread,
            flags: (MAP_PRIVATE | MAP_ANONYMOUS) as u32,
            address: range.start.address(),
            bytes: PageCount(range.len()).bytes(),
            argument: 1 | PROT_WRITE,
            result: 0,
        }
    }

    /// Checks that it speaks of user addresses only, so that [`TraceEvent::meaning`] cannot go
    /// wrong.
    ///
    /// # Errors
    /// Says which part is impossible.
    pub fn check(&self) -> Result<(), Fault> {
        let bad = |what: &str| Err(format!("{:?} event with an impossible {what}: {self:x?}", self.op));
        let is_range = |start: u64, bytes: u64| start < ADDRESS_END && bytes <= ADDRESS_END - start;
        match self.op {
            EventOp::Mmap if !is_range(self.result, self.bytes) => bad("range"),
            EventOp::Mremap if !is_range(self.result, self.argument) => bad("new range"),
            EventOp::Brk if self.result >= ADDRESS_END => bad("break"),
            EventOp::Munmap | EventOp::Mremap | EventOp::Mprotect | EventOp::Madvise | EventOp::Vma
                if !is_range(self.address.0, self.bytes) =>
            {
                bad("range")
            }
            _ => Ok(()),
        }
    }

    /// Whether a child process began: a fork, or a program that another one starts.
    pub fn starts_process(&self) -> bool {
        self.op == EventOp::Clone && self.flags & 1 != 0
    }

    /// What it asks of a kernel; `None` if nothing that concerns memory. The event must pass
    /// [`TraceEvent::check`].
    pub fn meaning(&self) -> Option<MemoryEvent> {
        // Only where `check` looks at it: a hint or what is left over in a field may be anything.
        let range = || pages(self.address, self.bytes);
        let writable = self.argument & PROT_WRITE != 0;
        let event = match self.op {
            EventOp::Mmap => MemoryEvent::Mmap {
                range: pages(Va(self.result), self.bytes),
                writable,
                anonymous: is_anonymous(self.argument >> 32),
            },
            EventOp::Vma => {
                MemoryEvent::Mmap { range: range(), writable, anonymous: is_anonymous(u64::from(self.flags)) }
            }
            EventOp::Munmap => MemoryEvent::Munmap { range: range() },
            EventOp::Brk => MemoryEvent::Brk { end: Va(self.result) },
            EventOp::Mremap => MemoryEvent::Mremap { from: range(), to: pages(Va(self.result), self.argument) },
            EventOp::Mprotect => MemoryEvent::Mprotect { range: range(), writable },
            EventOp::Madvise => MemoryEvent::Madvise { range: range(), advice: self.argument as u32 },
            EventOp::Clone if self.flags & 1 != 0 && self.argument & CLONE_VM == 0 => MemoryEvent::Fork,
            EventOp::ChildExit => MemoryEvent::ChildExit,
            EventOp::Clone | EventOp::Exit | EventOp::Mark => return None,
        };
        let range = match &event {
            MemoryEvent::Mmap { range, .. }
            | MemoryEvent::Munmap { range }
            | MemoryEvent::Mprotect { range, .. }
            | MemoryEvent::Madvise { range, .. } => range,
            _ => return Some(event),
        };
        (!range.is_empty()).then_some(event)
    }
}

fn is_anonymous(map_flags: u64) -> bool {
    map_flags & MAP_ANONYMOUS != 0 && map_flags & MAP_PRIVATE != 0
}

/// The pages that `bytes` from `start` touch.
fn pages(start: Va, bytes: u64) -> VpnRange {
    VpnRange { start: start.page(), end: Vpn((start.0 + bytes).div_ceil(PAGE_BYTES)).max(start.page()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(op: EventOp, address: u64, bytes: u64, argument: u64, result: u64) -> TraceEvent {
        TraceEvent { op, thread: ThreadId(0), flags: 1, address: Va(address), bytes, argument, result }
    }

    #[test]
    fn a_mapping_lies_where_the_kernel_put_it_and_covers_its_last_page() {
        let mmap = event(EventOp::Mmap, 0, 4097, 3 | 0x22 << 32, 0x7000_0000);
        let range = VpnRange::new(Vpn(0x70000), PageCount(2));
        assert_eq!(mmap.meaning(), Some(MemoryEvent::Mmap { range, writable: true, anonymous: true }));
        assert_eq!(TraceEvent::mapping(ThreadId(0), range).meaning(), mmap.meaning());
        let file = event(EventOp::Mmap, 0, 4096, 1 | 2 << 32, 0x7000_0000);
        assert!(matches!(file.meaning(), Some(MemoryEvent::Mmap { writable: false, anonymous: false, .. })));
    }

    #[test]
    fn a_thread_and_a_vfork_like_clone_copy_nothing() {
        let fork = event(EventOp::Clone, 0, 0, 0, 77);
        assert_eq!(fork.meaning(), Some(MemoryEvent::Fork));
        assert_eq!(TraceEvent { flags: 0, ..fork }.meaning(), None);
        assert_eq!(TraceEvent { argument: CLONE_VM, ..fork }.meaning(), None);
    }

    #[test]
    fn a_field_that_says_nothing_may_hold_anything() {
        let page = VpnRange::new(Vpn(1), PageCount(1));
        let mmap = event(EventOp::Mmap, u64::MAX, 4096, 3 | 0x22 << 32, 4096);
        assert!(mmap.check().is_ok());
        assert_eq!(mmap.meaning(), Some(MemoryEvent::Mmap { range: page, writable: true, anonymous: true }));
        for op in [EventOp::Brk, EventOp::Clone, EventOp::ChildExit, EventOp::Exit, EventOp::Mark] {
            let odd = event(op, u64::MAX, u64::MAX, CLONE_VM, 0);
            assert!(odd.check().is_ok());
            let expected = match op {
                EventOp::Brk => Some(MemoryEvent::Brk { end: Va(0) }),
                EventOp::ChildExit => Some(MemoryEvent::ChildExit),
                _ => None,
            };
            assert_eq!(odd.meaning(), expected);
        }
    }

    #[test]
    fn impossible_ranges_are_refused() {
        assert!(event(EventOp::Munmap, ADDRESS_END - 4096, 4096, 0, 0).check().is_ok());
        assert!(event(EventOp::Munmap, ADDRESS_END - 4096, 4097, 0, 0).check().is_err());
        assert!(event(EventOp::Mmap, 0, u64::MAX, 0, 4096).check().is_err());
        assert!(event(EventOp::Mremap, 0, 4096, u64::MAX, 4096).check().is_err());
        assert!(event(EventOp::Brk, 0, 0, 0, u64::MAX).check().is_err());
    }
}
