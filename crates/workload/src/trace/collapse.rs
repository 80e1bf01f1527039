// SPDX-License-Identifier: MIT OR Apache-2.0
//! A collapsed stretch: of each line that it accesses, only the last access.
//!
//! What an LRU cache or TLB holds is decided by the order of the last accesses alone, however large
//! it is. So the last access to each line, in order, fills all caches behind the first level as the
//! whole stretch would have, for about a byte a line. It can only warm up: how often something hit
//! or missed meanwhile is not in it.
//!
//! To be compact the lines are written in groups of neighbours in time, each sorted by address:
//! within a group the order is lost. A filtered warm-up after it puts the small structures (TLBs,
//! L1-D, L2) right. All are loads by one made-up site: what stores do to pages is known from first
//! touches.

use nestwalk_mem::addr::LINE_SHIFT;
use nestwalk_mem::{Gva, Va, VpnRange};
use rustc_hash::FxHashMap;

use super::source::SourceAccess;
use crate::stream::ThreadId;

/// Lines of a group.
const GROUP_LINES: usize = 1 << 15;

/// The last accesses of a stretch, of which the lines stand for all accesses: more than any
/// last-level cache of the bundled machines has lines, so that a co-runner, which makes one access
/// for each of them, leaves nothing of what it did before. The lines from before stand for one
/// access each: to play the co-runner for all of them would take long and change nothing.
const NEAR_ACCESSES: u64 = 4_000_000;

/// Lines of a group among them.
const NEAR_GROUP_LINES: usize = 1 << 12;

/// The most lines that are written, the latest: 96 MiB of them, more than the largest last level of
/// the bundled machines.
pub const LINES_MAX: usize = 3 << 19;

/// The last access to each line of the stretch so far.
#[derive(Debug, Default)]
pub struct Collapse {
    lines: FxHashMap<(ThreadId, u64), u64>,
    /// Where the stretch begins.
    begun: Option<Position>,
    stores: u64,
}

/// A place in the program: accesses and instructions before it.
#[derive(Clone, Copy, Debug)]
pub struct Position {
    /// Accesses of all threads.
    pub access: u64,
    /// Instructions of all threads.
    pub instructions: u64,
}

/// An access that is written, and what goes with it.
#[derive(Clone, Copy, Debug)]
pub struct Kept {
    /// Whose it is.
    pub thread: ThreadId,
    /// The line's first byte.
    pub address: Gva,
    /// Accesses before the next one that it stands for, besides itself.
    pub absorbed: u32,
    /// How many of them are stores.
    pub absorbed_stores: u64,
    /// Instructions meanwhile.
    pub instructions: u64,
}

impl Collapse {
    /// A stretch begins at `position`.
    pub fn begin(&mut self, position: Position) {
        self.lines.clear();
        (self.begun, self.stores) = (Some(position), 0);
    }

    /// Access number `position` of the program.
    #[inline]
    pub fn note(&mut self, thread: ThreadId, position: u64, access: &SourceAccess) {
        self.note_line(thread, position, access.address(), u64::from(access.is_store()));
    }

    /// The same of an access to `address`; it and what it stands for are so many stores.
    #[inline]
    pub fn note_line(&mut self, thread: ThreadId, position: u64, address: Va, stores: u64) {
        self.lines.insert((thread, address.0 >> LINE_SHIFT), position);
        self.stores += stores;
    }

    /// The pages of `range` lose their memory: to access them would be a first touch.
    pub fn forget(&mut self, range: VpnRange) {
        self.lines.retain(|&(_, line), _| !range.contains(Va(line << LINE_SHIFT).page()));
    }

    /// The stretch ends before `end`. Where what is written begins, and what that is; `None` if no
    /// stretch had begun, or it had no accesses.
    pub fn finish(&mut self, end: Position) -> Option<(Position, Vec<Kept>)> {
        let begun = self.begun.take()?;
        let mut last: Vec<_> = self.lines.drain().map(|((thread, line), position)| (position, thread, line)).collect();
        last.sort_unstable_by_key(|&(position, ..)| position);
        let latest = last.split_off(last.len().saturating_sub(LINES_MAX));
        let all = end.access - begun.access;
        let share =
            |total: u64, accesses: u64| (u128::from(total) * u128::from(accesses) / u128::from(all.max(1))) as u64;
        let instructions = end.instructions - begun.instructions;
        let mut kept = Vec::with_capacity(latest.len());
        let near_from = begun.access.max(end.access.saturating_sub(NEAR_ACCESSES));
        let (far, near) = latest.split_at(latest.partition_point(|&(position, ..)| position < near_from));
        for group in far.chunks(GROUP_LINES) {
            let count = group.len() as u64;
            put_group(group, count, 0, share(instructions, count), &mut kept);
        }
        let mut from = near_from;
        for (index, group) in near.chunks(NEAR_GROUP_LINES).enumerate() {
            let is_last = (index + 1) * NEAR_GROUP_LINES >= near.len();
            let until = if is_last { end.access } else { group.last().map_or(from, |&(position, ..)| position + 1) };
            let part = |total| share(total, until - begun.access) - share(total, from - begun.access);
            put_group(group, until - from, part(self.stores), part(instructions), &mut kept);
            from = until;
        }
        let represented = far.len() as u64 + end.access - near_from;
        let instructions = end.instructions - kept.iter().map(|kept| kept.instructions).sum::<u64>();
        (!kept.is_empty()).then_some((Position { access: end.access - represented, instructions }, kept))
    }
}

/// Appends `group`, which represents so many accesses, sorted by thread and line. These are spread
/// over it evenly.
fn put_group(group: &[(u64, ThreadId, u64)], accesses: u64, stores: u64, instructions: u64, kept: &mut Vec<Kept>) {
    let mut group = group.to_vec();
    group.sort_unstable_by_key(|&(_, thread, line)| (thread, line));
    let count = group.len() as u64;
    let (absorbed, absorbed_stores) = (accesses - count, stores.min(accesses - count));
    let share = |total: u64, at: u64| total * (at + 1) / count - total * at / count;
    kept.extend(group.into_iter().zip(0..).map(|((_, thread, line), at)| Kept {
        thread,
        address: Gva(line << LINE_SHIFT),
        absorbed: u32::try_from(share(absorbed, at)).unwrap_or(u32::MAX),
        absorbed_stores: share(absorbed_stores, at),
        instructions: share(instructions, at),
    }));
}

#[cfg(test)]
mod tests {
    use super::*;
    use nestwalk_mem::Vpn;

    #[test]
    fn the_last_access_to_each_line_stands_for_all() {
        let mut collapse = Collapse::default();
        assert!(collapse.finish(Position { access: 9, instructions: 9 }).is_none());
        collapse.begin(Position { access: 100, instructions: 1000 });
        // Every line once in a round of `lines` accesses; the last few accesses leave the first
        // lines out.
        let (lines, all) = (3 * GROUP_LINES as u64, NEAR_ACCESSES + 200_000);
        let line = |n: u64| if n < 200_000 { n % lines } else { n % 5000 };
        for n in 0..all {
            let access = SourceAccess::new(Va((line(n) << 6) | (n % 64)), 1, 3, 3, n % 4 == 0);
            collapse.note(ThreadId(0), 100 + n, &access);
        }
        let end = Position { access: 100 + all, instructions: 1000 + 3 * all };
        let (start, kept) = collapse.finish(end).unwrap();
        assert_eq!(kept.len() as u64, lines);
        let sum = |of: fn(&Kept) -> u64| kept.iter().map(of).sum::<u64>();
        let represented = sum(|kept| 1 + u64::from(kept.absorbed));
        assert_eq!(
            represented,
            lines - 5000 + NEAR_ACCESSES,
            "all of the last accesses, and the older lines themselves"
        );
        assert_eq!(
            (start.access, start.instructions),
            (end.access - represented, end.instructions - sum(|k| k.instructions))
        );
        // The last group stands for nothing but its own lines, which are loads.
        assert!(sum(|kept| kept.absorbed_stores).abs_diff(NEAR_ACCESSES / 4) < 5000);
        // The lines come in the order of their last accesses, but for the order within a group.
        let last = |line: u64| {
            if line < 5000 { all - 1 - (all - 1 - line) % 5000 } else { 199_999 - (199_999 - line) % lines }
        };
        let order: Vec<u64> = kept.iter().map(|kept| last(kept.address.0 >> 6)).collect();
        let (far, near) = order.split_at(order.len() - 5000);
        let groups: Vec<&[u64]> = far.chunks(GROUP_LINES).chain(near.chunks(NEAR_GROUP_LINES)).collect();
        groups.windows(2).for_each(|pair| assert!(pair[0].iter().max() < pair[1].iter().min()));

        collapse.begin(end);
        collapse.note(ThreadId(0), end.access, &SourceAccess::new(Va(0x5000), 1, 1, 3, false));
        collapse.note(ThreadId(0), end.access + 1, &SourceAccess::new(Va(0x7000), 1, 1, 3, false));
        collapse.forget(VpnRange { start: Vpn(5), end: Vpn(6) });
        let (_, rest) = collapse.finish(Position { access: end.access + 2, ..end }).unwrap();
        assert_eq!(rest.iter().map(|kept| kept.address).collect::<Vec<_>>(), [Gva(0x7000)]);
    }
}
