// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory events of a program: each becomes a call of its kernel.

use nestwalk_mem::{Cpu, VpnRange};
use nestwalk_os::{Below, FileName, FileView, HugeAdvice, Kernel, OsError, ProcessId, VmaFlags, VmaKind};
use nestwalk_workload::MemoryEvent;

use super::ProcessFamily;
use crate::error::MachineError;
use crate::stack::Stack;

impl ProcessFamily {
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
            MemoryEvent::SpawnAndWait => self.spawn(stack, cpu).map(|child| {
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
                MemoryEvent::MmapFile { range, file, size, first, shared, writable } => {
                    let view = FileView::new(kernel.open_file(FileName(file), size), shared, range.start, first);
                    let kind = VmaKind::Mapped(view);
                    kernel.mmap(process, range, VmaFlags { kind, writable, advice: HugeAdvice::None }, below)
                }
                MemoryEvent::ReadFile { file, pages } => {
                    let file = kernel.open_file(FileName(file), pages);
                    kernel.read_file(process, file, 0..pages.0, below)
                }
                MemoryEvent::WriteFile { file, pages } => {
                    let file = kernel.open_file(FileName(file), pages);
                    kernel.write_file(process, file, 0..pages.0, below)
                }
                MemoryEvent::Fork | MemoryEvent::ForkAndWait | MemoryEvent::SpawnAndWait | MemoryEvent::ChildExit => {
                    Ok(())
                }
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
