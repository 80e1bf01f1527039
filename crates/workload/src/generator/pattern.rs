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
use crate::stream::Batch;

/// What an algorithm does to its data structures.
pub(super) trait Pattern: Send {
    /// The program's name.
    const NAME: &'static str;

    /// See [`Program::TELLS_DEPENDENCES`]; local accesses are free.
    const TELLS_DEPENDENCES: bool = false;

    /// Its address space.
    fn layout(&self) -> &Layout;

    /// Appends the next first touches of `thread` to data structures until there are about `most`;
    /// nothing when it has touched all that it has to.
    fn touch(&mut self, thread: u16, touches: &mut Vec<(Vpn, bool)>, most: usize);

    /// Appends the accesses of the next operation of `thread`: at least one, at most some
    /// thousands.
    fn operate(&mut self, thread: usize, accesses: &mut Vec<Access>);

    /// Whether its operations are requests of a server that are told apart.
    fn tells_requests(&self) -> bool {
        false
    }

    /// See [`Program::filling`].
    fn filling(&self) -> u64 {
        0
    }

    /// See [`Program::touch_request`].
    fn touch_request(&mut self, _touches: &mut Vec<(Vpn, bool)>) -> u64 {
        0
    }
}

/// A [`Pattern`] with local accesses.
pub(super) struct Mixed<P> {
    pattern: P,
    mixture: Mixture,
    /// Local accesses, in thousandths, that come with each access to a data structure.
    each: u64,
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
        let local = u64::from(mixture.local_permille);
        Self { pattern, mixture, each: local * 1000 / (1000 - local), threads }
    }

    /// The data structures.
    pub(super) fn pattern(&self) -> &P {
        &self.pattern
    }

    /// The data structures, which the program comes to from somewhere else: what is left of
    /// operations under way is dropped.
    pub(super) fn restart(&mut self) -> &mut P {
        self.threads.iter_mut().for_each(Thread::clear);
        &mut self.pattern
    }

    /// Appends the local accesses that are due, or an access to a data structure.
    #[inline]
    fn go_on(&mut self, index: u16, accesses: &mut Vec<Access>, most: usize) {
        let thread = &mut self.threads[usize::from(index)];
        if thread.due >= 1000 {
            let count = (thread.due / 1000).min((most - accesses.len()) as u64);
            thread.locals.take(count as usize, accesses);
            thread.due -= count * 1000;
            return;
        }
        if thread.out == thread.operation.len() {
            thread.clear();
            self.pattern.operate(usize::from(index), &mut thread.operation);
            debug_assert!(!thread.operation.is_empty());
        }
        accesses.push(thread.operation[thread.out]);
        thread.out += 1;
        thread.due += self.each;
    }

    /// Instructions that come with so many accesses.
    fn instructions_of(&mut self, index: u16, accesses: u64) -> u64 {
        let thread = &mut self.threads[usize::from(index)];
        thread.instructions += accesses * u64::from(self.mixture.instructions_per_kiloaccess);
        let whole = thread.instructions / 1000;
        thread.instructions %= 1000;
        whole
    }
}

impl Thread {
    /// Whether the operation under way is out, with its local accesses.
    fn has_ended(&self) -> bool {
        !self.operation.is_empty() && self.out == self.operation.len() && self.due < 1000
    }

    fn clear(&mut self) {
        self.operation.clear();
        self.out = 0;
    }
}

impl<P: Pattern> Program for Mixed<P> {
    const NAME: &'static str = P::NAME;
    const TELLS_DEPENDENCES: bool = P::TELLS_DEPENDENCES;

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
        let room = (most - accesses.len()) as u64;
        while accesses.len() < most {
            self.go_on(index, accesses, most);
        }
        self.instructions_of(index, room)
    }

    fn fill_requests(&mut self, index: u16, batch: &mut Batch, most: usize) {
        if !self.pattern.tells_requests() {
            batch.instructions = self.fill(index, &mut batch.accesses, most);
            return;
        }
        while batch.accesses.len() < most {
            self.go_on(index, &mut batch.accesses, most);
            if self.threads[usize::from(index)].has_ended() {
                batch.requests.push(batch.accesses.len() as u64);
                self.threads[usize::from(index)].clear();
            }
        }
        batch.instructions = self.instructions_of(index, most as u64);
    }

    fn filling(&self) -> u64 {
        self.pattern.filling()
    }

    fn touch_request(&mut self, touches: &mut Vec<(Vpn, bool)>) -> u64 {
        self.pattern.touch_request(touches)
    }

    fn serve(&mut self, accesses: &mut Vec<Access>, most: usize) -> (u64, bool) {
        let mut ended = false;
        while accesses.len() < most && !ended {
            self.go_on(0, accesses, most);
            ended = self.threads[0].has_ended();
        }
        if ended {
            self.threads[0].clear();
        }
        (self.instructions_of(0, accesses.len() as u64), ended)
    }
}
