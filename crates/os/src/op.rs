// SPDX-License-Identifier: MIT OR Apache-2.0
//! One language of operations on a kernel, for property tests, fuzzing and the replay of failures.
//!
//! Processes are named by their place among those alive, so that any list of operations means
//! something: tools may shorten it freely.

use nestwalk_mem::{Cpu, Nanoseconds, PageCount, Va, Vpn, VpnRange};

use crate::below::Below;
use crate::error::OsError;
use crate::kernel::Kernel;
use crate::kernel::fault::FaultKind;
use crate::kernel::madvise::Advice;
use crate::state::files::FileName;
use crate::state::process::ProcessId;
use crate::state::vma::{FileView, VmaFlags, VmaKind};

/// Which process: the n-th of those alive, modulo their number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Nth(pub u16);

/// Pages of each file that operations name.
pub const FILE_PAGES: PageCount = PageCount(1200);
/// Files that [`Op::read`] names.
const FILES: u64 = 3;

/// An operation on a kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// A new process.
    Spawn,
    /// [`Kernel::mmap`].
    Mmap(Nth, VpnRange, VmaFlags),
    /// A load or store: a [fault](Kernel::fault) if the hardware cannot do it by itself.
    Touch(Nth, Vpn, bool, Cpu),
    /// [`Kernel::mmap`] of a file from one of its pages on; whether stores go to the file, and
    /// whether there may be any.
    MmapFile(Nth, VpnRange, FileName, u64, bool, bool),
    /// [`Kernel::read_file`] from a page on.
    ReadFile(Nth, FileName, u64, u64),
    /// [`Kernel::write_file`] from a page on.
    WriteFile(Nth, FileName, u64, u64),
    /// [`Kernel::munmap`].
    Unmap(Nth, VpnRange),
    /// [`Kernel::brk`].
    Brk(Nth, Va),
    /// [`Kernel::mremap`].
    Mremap(Nth, VpnRange, VpnRange),
    /// [`Kernel::mprotect`].
    Mprotect(Nth, VpnRange, bool),
    /// [`Kernel::madvise`].
    Madvise(Nth, VpnRange, Advice),
    /// [`Kernel::fork`].
    Fork(Nth),
    /// [`Kernel::exit`].
    Exit(Nth),
    /// [`Kernel::reclaim`].
    Pressure(PageCount),
    /// [`Kernel::tick`], that many ns later.
    Tick(Nanoseconds),
}

/// What an operation did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// There is no process to do it, or it is done.
    Done,
    /// There is a new process.
    New(ProcessId),
    /// The hardware did it by itself, or with the help of this fault.
    Touched(Option<FaultKind>),
}

impl Op {
    /// Reads one operation of a program that works on the `count` pages from `first` on, out of
    /// bytes of any kind: for fuzzing. `None` when they have run out.
    pub fn read(bytes: &mut impl Iterator<Item = u8>, first: Vpn, count: PageCount) -> Option<Self> {
        let mut next = || bytes.next();
        let (what, nth) = (next()?, Nth(next()?.into()));
        let mut number = || Some(u64::from(next()?) << 8 | u64::from(next()?));
        let (a, b) = (number()?, number()?);
        let page = |n: u64| Vpn(first.0 + n % count.0);
        let end = first.0 + count.0;
        let range = |start: Vpn, n: u64| VpnRange { start, end: Vpn(start.0 + 1 + n % (end - start.0)) };
        let set = what & 0x80 != 0;
        let advice = [
            Advice::DontNeed,
            Advice::Free,
            Advice::HugePage,
            Advice::NoHugePage,
            Advice::Collapse,
            Advice::PopulateWrite,
        ];
        Some(match what & 0x1f {
            0 => Self::Spawn,
            1..3 => Self::Mmap(nth, range(page(a), b), VmaFlags { writable: !set, ..VmaFlags::ANONYMOUS }),
            3..5 => Self::Unmap(nth, range(page(a), b)),
            5 => Self::Brk(nth, Vpn(end + a % count.0).address()),
            6 | 7 => Self::Mremap(nth, range(page(a), b & 0xff), range(page(b), a & 0xff)),
            8 => Self::Mprotect(nth, range(page(a), b), set),
            9..13 => Self::Madvise(nth, range(page(a), b), advice[usize::from(nth.0) % advice.len()]),
            13 => Self::Fork(nth),
            14 => Self::Exit(nth),
            15 => Self::Pressure(PageCount(a)),
            16 => Self::Tick(Nanoseconds(a << 20)),
            17 | 18 => {
                let (file, shared) = (FileName(b % FILES), b & 0x8000 != 0);
                Self::MmapFile(nth, range(page(a), b >> 4 & 0x3ff), file, a % FILE_PAGES.0, shared, set)
            }
            19 => Self::ReadFile(nth, FileName(b % FILES), a % FILE_PAGES.0, 1 + (b >> 4 & 0x7f)),
            20 => Self::WriteFile(nth, FileName(b % FILES), a % FILE_PAGES.0, 1 + (b >> 4 & 0x7f)),
            _ => Self::Touch(nth, page(a), set, Cpu(0)),
        })
    }

    /// The process that it concerns.
    pub fn process(&self, kernel: &Kernel) -> Option<ProcessId> {
        let (Self::Mmap(nth, ..)
        | Self::MmapFile(nth, ..)
        | Self::ReadFile(nth, ..)
        | Self::WriteFile(nth, ..)
        | Self::Touch(nth, ..)
        | Self::Unmap(nth, ..)
        | Self::Brk(nth, ..)
        | Self::Mremap(nth, ..)
        | Self::Mprotect(nth, ..)
        | Self::Madvise(nth, ..)
        | Self::Fork(nth)
        | Self::Exit(nth)) = self
        else {
            return None;
        };
        let alive: Vec<ProcessId> = kernel.processes().collect();
        (!alive.is_empty()).then(|| alive[usize::from(nth.0) % alive.len()])
    }

    /// Does it.
    ///
    /// # Errors
    /// Those of the kernel's method.
    pub fn apply(&self, kernel: &mut Kernel, below: &mut dyn Below) -> Result<Outcome, OsError> {
        match *self {
            Self::Spawn => return kernel.spawn(below).map(Outcome::New),
            Self::Pressure(pages) => return kernel.reclaim(pages, Cpu(0), below).map(|_| Outcome::Done),
            Self::Tick(ns) => return kernel.tick(kernel.clock() + ns, below).map(|()| Outcome::Done),
            _ => {}
        }
        let Some(process) = self.process(kernel) else { return Ok(Outcome::Done) };
        match *self {
            Self::Mmap(_, range, flags) => kernel.mmap(process, range, flags, below)?,
            Self::MmapFile(_, range, name, first, shared, writable) => {
                let view = FileView::new(kernel.open_file(name, FILE_PAGES), shared, range.start, first);
                let flags = VmaFlags { kind: VmaKind::Mapped(view), writable, ..VmaFlags::ANONYMOUS };
                kernel.mmap(process, range, flags, below)?;
            }
            Self::ReadFile(_, name, first, count) => {
                let file = kernel.open_file(name, FILE_PAGES);
                kernel.read_file(process, file, first..first + count, below)?;
            }
            Self::WriteFile(_, name, first, count) => {
                let file = kernel.open_file(name, FILE_PAGES);
                kernel.write_file(process, file, first..first + count, below)?;
            }
            Self::Unmap(_, range) => kernel.munmap(process, range, below)?,
            Self::Brk(_, end) => kernel.brk(process, end, below)?,
            Self::Mremap(_, from, to) => kernel.mremap(process, from, to, below)?,
            Self::Mprotect(_, range, writable) => kernel.mprotect(process, range, writable, below)?,
            Self::Madvise(_, range, advice) => kernel.madvise(process, range, advice, below)?,
            Self::Exit(_) => kernel.exit(process, below)?,
            Self::Fork(_) => return kernel.fork(process, below).map(Outcome::New),
            Self::Touch(_, page, store, cpu) => {
                let fault = if kernel.backed_span(process, page, store)? == PageCount(0) {
                    Some(kernel.fault(process, page, store, cpu, below)?)
                } else {
                    None
                };
                return Ok(Outcome::Touched(fault));
            }
            Self::Spawn | Self::Pressure(_) | Self::Tick(_) => unreachable!("done above"),
        }
        Ok(Outcome::Done)
    }
}

#[cfg(test)]
mod tests;
