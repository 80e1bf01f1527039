// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a batch of accesses refers to, in order: written while the batch is translated, then played
//! through the caches.
//!
//! Which lines a walk refers to does not depend on what serves them. So TLBs, page-walk caches and
//! tables work through a whole batch first, and the data caches after them, each in a tight loop of
//! its own.

use nestwalk_mem::{Hpa, addr::LINE_SHIFT};

use crate::events::WalkEvents;

/// A reference to a line. From the lowest bit: its code (8 bits), its address (46), cycles of
/// look-ups since the reference before (9), and whether it is to the host's table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Reference(u64);

impl Reference {
    const ADDRESS: u32 = 8;
    /// Bits of an address.
    pub const ADDRESS_BITS: u32 = 46;
    const WAIT: u32 = Self::ADDRESS + Self::ADDRESS_BITS;
    /// The longest wait.
    pub const WAIT_MAX: u64 = (1 << (63 - Self::WAIT)) - 1;
    const HOST: u64 = 1 << 63;

    #[inline(always)]
    fn new(hpa: Hpa, code: u8, wait: u64) -> Self {
        debug_assert!(hpa.0 < 1 << Self::ADDRESS_BITS, "{hpa:?}");
        debug_assert!(wait <= Self::WAIT_MAX, "{wait} cycles between two references");
        Self(hpa.0 << Self::ADDRESS | wait << Self::WAIT | u64::from(code))
    }

    /// One to `line` (address / 64).
    #[inline(always)]
    pub fn of_line(line: u32, code: u8) -> Self {
        Self(u64::from(line) << (Self::ADDRESS + LINE_SHIFT) | u64::from(code))
    }

    /// The same, to the host's table.
    #[inline(always)]
    #[must_use]
    pub fn of_host(self) -> Self {
        Self(self.0 | Self::HOST)
    }

    /// The same to another line, where this one is to line 0, with more added to the code.
    #[inline(always)]
    #[must_use]
    pub fn at(self, line: u32, more_code: u64) -> Self {
        Self((self.0 + more_code) | u64::from(line) << (Self::ADDRESS + LINE_SHIFT))
    }

    /// The same after so many cycles of look-ups, where this one was after none.
    #[inline(always)]
    #[must_use]
    pub fn after(self, wait: u64) -> Self {
        debug_assert!(wait <= Self::WAIT_MAX, "{wait} cycles between two references");
        Self(self.0 | wait << Self::WAIT)
    }

    /// The line: address / 64.
    #[inline(always)]
    pub fn line(self) -> u64 {
        (self.0 & ((1 << Self::WAIT) - 1)) >> (Self::ADDRESS + LINE_SHIFT)
    }

    /// What it is: the place where its being served by the L1-D is counted.
    #[inline(always)]
    pub fn code(self) -> u8 {
        self.0 as u8
    }

    /// Cycles of look-ups since the reference before, if a prefetcher wants to know.
    #[inline(always)]
    pub fn wait(self) -> u64 {
        (self.0 & !Self::HOST) >> Self::WAIT
    }

    /// All ones for an entry of the host's table, else 0.
    #[inline(always)]
    pub fn host_mask(self) -> u64 {
        (self.0.cast_signed() >> 63).cast_unsigned()
    }
}

/// A walk that ended well: its references, and cycles of its look-ups.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct WalkSpan {
    /// Its first reference.
    pub begin: u32,
    /// One past its last one.
    pub end: u32,
    /// Cycles in the guest's page-walk caches.
    pub guest_lookup_cycles: u32,
    /// Cycles in the host's page-walk caches and the nested TLB.
    pub host_lookup_cycles: u32,
}

/// References for which a tape has room.
const LEN_MAX: usize = 1 << 16;

/// See the [module's documentation](self).
#[derive(Clone, Debug)]
pub(crate) struct Tape {
    /// The length is a constant and indices wrap around, so the compiler drops the bounds check. A
    /// tape that has overflowed is caught by [`Tape::pad`], which panics.
    references: Box<[Reference; LEN_MAX]>,
    len: usize,
    pub walks: Vec<WalkSpan>,
    /// Where the references of a walk begin that ended in a page fault; they are the last ones.
    pub aborted: Option<usize>,
}

impl Default for Tape {
    fn default() -> Self {
        let references = vec![Reference(0); LEN_MAX].into_boxed_slice().try_into().expect("that many");
        Self { references, len: 0, walks: Vec::new(), aborted: None }
    }
}

impl Tape {
    /// The most references of one access: a walk has 35 at most, each with one prefetch; then the
    /// data access and that of the co-runner.
    const OF_ACCESS_MAX: usize = 128;
    /// The most accesses of a batch.
    pub const BATCH: usize = LEN_MAX / Self::OF_ACCESS_MAX;

    /// Puts `reference` behind all others.
    #[inline(always)]
    pub fn push(&mut self, reference: Reference) {
        self.references[self.len % LEN_MAX] = reference;
        self.len += 1;
    }

    /// A reference of a walk to an entry; `step` is its [`WalkEvents::step_code`].
    #[inline(always)]
    pub fn entry(&mut self, hpa: Hpa, step: u8, host: bool, wait: u64) {
        let reference = Reference::new(hpa, step, wait);
        self.push(if host { Reference(reference.0 | Reference::HOST) } else { reference });
    }

    /// A prefetch, asked for while a walk goes on.
    #[inline(always)]
    pub fn prefetch(&mut self, hpa: Hpa, wait: u64) {
        self.push(Reference::new(hpa, WalkEvents::PREFETCH, wait));
    }

    /// The program's own reference.
    #[inline(always)]
    pub fn data(&mut self, hpa: Hpa) {
        self.push(Reference::new(hpa, WalkEvents::DATA, 0));
    }

    /// The co-runner's.
    #[inline(always)]
    pub fn corunner(&mut self, hpa: Hpa) {
        self.push(Reference::new(hpa, WalkEvents::CORUNNER, 0));
    }

    /// To put references behind all others in a loop that does little else.
    #[inline(always)]
    pub fn writer(&mut self) -> TapeWriter<'_> {
        TapeWriter { references: &mut self.references, len: self.len, end: &mut self.len }
    }

    /// Takes over all references of `other`, and hands it those of its own: for a tape that has
    /// none.
    #[inline(always)]
    pub fn take(&mut self, other: &mut Self) {
        debug_assert!(self.len == 0);
        std::mem::swap(&mut self.references, &mut other.references);
        std::mem::swap(&mut self.len, &mut other.len);
    }

    /// Puts `references` behind all others.
    #[inline(always)]
    pub fn extend(&mut self, references: &[Reference]) {
        self.references[self.len..][..references.len()].copy_from_slice(references);
        self.len += references.len();
    }

    /// The whole array of references, the number in use, and the walks: for a caller that writes at
    /// most `count` references. It may write past what it finally adds to the number in use.
    ///
    /// # Panics
    /// When there is no room for that.
    #[inline(always)]
    pub fn parts(&mut self, count: usize) -> (&mut [Reference], &mut usize, &mut Vec<WalkSpan>) {
        assert!(self.len + count <= LEN_MAX, "more references than a tape has room for");
        (&mut *self.references, &mut self.len, &mut self.walks)
    }

    /// How many references there are.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// All references, and what [`Tape::pad`] put behind them.
    #[inline(always)]
    pub fn references(&self) -> &[Reference] {
        &*self.references
    }

    /// The highest of all lines that are referred to.
    #[inline(always)]
    pub fn highest_line(&self) -> u64 {
        self.references[..self.len].iter().fold(0, |highest, reference| highest.max(reference.line()))
    }

    /// How many prefetches `walk` has.
    #[inline(always)]
    pub fn prefetches(&self, walk: &WalkSpan) -> usize {
        let its = &self.references[walk.begin as usize..walk.end as usize];
        its.iter().filter(|reference| reference.code() == WalkEvents::PREFETCH).count()
    }

    /// References of walks that ended well, and of the program.
    #[inline(always)]
    pub fn done(&self) -> usize {
        self.aborted.unwrap_or(self.len())
    }

    /// Appends `count` empty references as padding for a reader that looks ahead. They are not
    /// played.
    ///
    /// # Panics
    /// If the batch had more references than there is room for.
    #[inline(always)]
    pub fn pad(&mut self, count: usize) {
        self.references[self.len..][..count].fill(Reference(0));
    }

    /// A new batch begins.
    #[inline(always)]
    pub fn clear(&mut self) {
        self.len = 0;
        self.walks.clear();
        self.aborted = None;
    }
}

/// See [`Tape::writer`]. The tape has the references only after [`TapeWriter::finish`].
pub(crate) struct TapeWriter<'a> {
    references: &'a mut [Reference; LEN_MAX],
    /// A number of its own, so that it can stay in a register.
    len: usize,
    end: &'a mut usize,
}

impl TapeWriter<'_> {
    /// [`Tape::data`], if it is `wanted`.
    #[inline(always)]
    pub fn data_if(&mut self, hpa: Hpa, wanted: bool) {
        self.references[self.len % LEN_MAX] = Reference::new(hpa, WalkEvents::DATA, 0);
        self.len += usize::from(wanted);
    }

    /// [`Tape::corunner`].
    #[inline(always)]
    pub fn corunner(&mut self, hpa: Hpa) {
        self.references[self.len % LEN_MAX] = Reference::new(hpa, WalkEvents::CORUNNER, 0);
        self.len += 1;
    }

    /// The end of the loop.
    #[inline(always)]
    pub fn finish(self) {
        *self.end = self.len;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_keeps_all_that_was_said_of_it() {
        let far = Hpa((1 << 44) - 64);
        let mut tape = Tape::default();
        tape.entry(far, 143, true, 511);
        tape.entry(far, 140, false, 0);
        tape.prefetch(Hpa(0x1040), 3);
        tape.data(Hpa(64));
        let told: Vec<_> = tape.references()[..tape.len()]
            .iter()
            .map(|r| (r.line(), r.code(), r.wait(), r.host_mask() == u64::MAX))
            .collect();
        let expected = [
            ((1 << 38) - 1, 143, 511, true),
            ((1 << 38) - 1, 140, 0, false),
            (0x41, WalkEvents::PREFETCH, 3, false),
            (1, WalkEvents::DATA, 0, false),
        ];
        assert_eq!(told, expected);
        assert_eq!(tape.highest_line(), (1 << 38) - 1);
        assert_eq!(tape.references[1].host_mask(), 0);
    }

    #[test]
    #[should_panic(expected = "out of range")]
    fn a_batch_with_too_many_references_is_caught() {
        let mut tape = Tape::default();
        (0..=LEN_MAX as u64).for_each(|line| tape.data(Hpa(line << LINE_SHIFT)));
        tape.pad(1);
    }
}
