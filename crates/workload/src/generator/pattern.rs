// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs stated as operations on data structures, and what makes a [`Program`] of such a
//! statement: the accesses of the operations, with local ones between them in the program's
//! measured proportion.

use nestwalk_mem::{Access, PageCount, Vpn};

use super::config::{Common, Mixture};
use super::layout::Layout;
use super::locals::Locals;
use super::memory::Region;
use super::program::Program;

/// What an algorithm does to its data structures.
pub(super) trait Pattern: Send {
    /// The program's name.
    const NAME: &'static str;

    /// Its address space.
    fn layout(&self) -> &Layout;

    /// Appends the next first touches of `thread` to data structures until there are about `most`;
    /// nothing when it has touched all that it has to.
    fn touch(&mut self, thread: u16, touches: &mut Vec<(Vpn, bool)>, most: usize);

    /// Appends the accesses of the next operation of `thread`: at least one, at most some
    /// thousands.
    fn operate(&mut self, thread: usize, accesses: &mut Vec<Access>);
}

/// A [`Pattern`] with local accesses.
pub(super) struct Mixed<P> {
    pattern: P,
    mixture: Mixture,
    threads: Vec<Thread>,
}

struct Thread {
    locals: Locals,
    /// Accesses of its operation under way, and how many of them are out.
    operation: Vec<Access>,
    out: usize,
    /// Local accesses that are due, in thousandths.
    due: u64,
    /// Instructions that are due, in thousandths.
    instructions: u64,
    touched: bool,
}

impl<P: Pattern> Mixed<P> {
    pub(super) fn new(common: Common, mixture: Mixture, pattern: P) -> Self {
        let thread = |index: usize| Thread {
            locals: Locals::new(pattern.layout().locals(index), common.seed ^ index as u64),
            operation: Vec::new(),
            out: 0,
            due: 0,
            instructions: 0,
            touched: false,
        };
        let threads = (0..usize::from(common.threads)).map(thread).collect();
        Self { pattern, mixture, threads }
    }
}

impl<P: Pattern> Program for Mixed<P> {
    const NAME: &'static str = P::NAME;

    fn regions(&self) -> Vec<Region> {
        self.pattern.layout().regions()
    }

    fn footprint(&self) -> PageCount {
        self.pattern.layout().pages()
    }

    fn touch(&mut self, thread: u16, touches: &mut Vec<(Vpn, bool)>, most: usize) {
        if !std::mem::replace(&mut self.threads[usize::from(thread)].touched, true) {
            self.pattern.layout().touch(thread, touches);
        }
        if touches.len() < most {
            self.pattern.touch(thread, touches, most);
        }
    }

    fn fill(&mut self, index: u16, accesses: &mut Vec<Access>, most: usize) -> u64 {
        let thread = &mut self.threads[usize::from(index)];
        let local = u64::from(self.mixture.local_permille);
        // Local accesses, in thousandths, that come with each access to a data structure.
        let each = local * 1000 / (1000 - local);
        let room = (most - accesses.len()) as u64;
        while accesses.len() < most {
            if thread.due >= 1000 {
                let count = (thread.due / 1000).min((most - accesses.len()) as u64);
                thread.locals.take(count as usize, accesses);
                thread.due -= count * 1000;
                continue;
            }
            if thread.out == thread.operation.len() {
                thread.operation.clear();
                thread.out = 0;
                self.pattern.operate(usize::from(index), &mut thread.operation);
                debug_assert!(!thread.operation.is_empty());
            }
            accesses.push(thread.operation[thread.out]);
            thread.out += 1;
            thread.due += each;
        }
        thread.instructions += room * u64::from(self.mixture.instructions_per_kiloaccess);
        let whole = thread.instructions / 1000;
        thread.instructions %= 1000;
        whole
    }
}
