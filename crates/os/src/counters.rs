// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a kernel has done, counted.
//!
//! Counts only: what an event costs stands in the machine's cost table. Counters never go back, so the work of a
//! phase is [`OsCounters::since`] its beginning.

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What a kernel has done since it began. See the [module](self).
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize)]
        pub struct OsCounters {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl OsCounters {
            /// The names, in the order of [`OsCounters::values`].
            pub const NAMES: &'static [&'static str] = &[$(stringify!($name)),*];

            /// All counts.
            pub fn values(&self) -> impl Iterator<Item = u64> + use<> {
                [$(self.$name),*].into_iter()
            }

            /// Counts what `other` counted, too.
            pub fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)*
            }

            /// Counts what is new in `now` since `seen`, which is brought up to date. Tells `each` of the place in
            /// [`OsCounters::NAMES`] of every count that went on, and by how much. Most did not: that is what makes it cheap.
            #[inline]
            pub fn take_news(&mut self, now: &Self, seen: &mut Self, mut each: impl FnMut(usize, u64)) {
                let mut place = 0;
                $(
                    if now.$name != seen.$name {
                        let more = now.$name - seen.$name;
                        self.$name += more;
                        seen.$name = now.$name;
                        each(place, more);
                    }
                    place += 1;
                )*
                debug_assert_eq!(place, Self::NAMES.len());
            }

            /// What was done after `earlier`, a copy that was taken of the same kernel's counters.
            #[must_use]
            pub fn since(&self, earlier: &Self) -> Self {
                Self { $($name: self.$name - earlier.$name,)* }
            }
        }
    };
}

counters! {
    /// Faults that mapped a fresh 4 KiB page.
    faults_4k,
    /// Faults that mapped a fresh 2 MiB page.
    faults_2m,
    /// Faults that mapped a fresh 1 GiB page.
    faults_1g,
    /// Faults on a page that was mapped already, with the right to do what was tried.
    faults_spurious,
    /// Stores to a shared page, which was copied.
    faults_copied,
    /// Stores to a page that had been write-protected and that nobody else shares (any more).
    faults_reused,
    /// Faults on a page that had been swapped out.
    faults_swapped_in,
    /// 4 KiB pages zeroed.
    zeroed_4k,
    /// 2 MiB pages zeroed at once.
    zeroed_2m,
    /// 4 KiB pages copied for copy-on-write.
    copied_4k,
    /// 4 KiB pages copied into a 2 MiB page (out-of-place promotion).
    copied_collapse,
    /// 4 KiB pages moved by compaction.
    migrated,
    /// Runs of direct compaction (in a fault or in a request).
    compactions_direct,
    /// Runs of background compaction.
    compactions_background,
    /// Runs of compaction after which no block of the wanted order was free.
    compactions_failed,
    /// Frames that compaction's scanners looked at.
    compaction_scanned,
    /// Faults that wanted a 2 MiB page, might have had one, and got a 4 KiB page for want of a block.
    huge_fallbacks,
    /// 2 MiB pages made of 4 KiB pages by copying them.
    collapses,
    /// 2 MiB pages made of 4 KiB pages that lay in place already.
    promotions,
    /// 2 MiB (or larger) leaves split.
    splits,
    /// Pages that a daemon looked at in page tables.
    pages_scanned,
    /// TLB shootdowns.
    shootdowns,
    /// Pages that shootdowns named.
    shootdown_pages,
    /// Page-table nodes made.
    nodes_made,
    /// Page-table nodes freed.
    nodes_freed,
    /// Page-table nodes moved to another frame.
    nodes_moved,
    /// Entries copied by fork.
    entries_copied,
    /// Entries moved by mremap.
    entries_moved,
    /// Pages that reclaim looked at.
    reclaim_scanned,
    /// Pages that reclaim dropped without writing them.
    reclaimed_clean,
    /// Pages that reclaim wrote to swap.
    swapped_out,
    /// Frames that the memory manager gave back under pressure.
    reclaimed_reserved,
    /// Times that a request had to reclaim memory itself.
    reclaims_direct,
    /// Times that the background daemon reclaimed memory.
    reclaims_background,
    /// Requests that failed for want of memory.
    out_of_memory,
    /// Hypercalls made to the kernel below.
    hypercalls,
    /// Entries of shadow tables filled: exits of the VM.
    shadow_fills,
    /// Misses of a shadow table that were the guest's own page faults, and were handed on to it: exits of the VM.
    shadow_reflected,
    /// Entries of shadow tables filled beside one that the hardware missed.
    shadow_prefetches,
    /// Writes of a guest to a node above the PTEs that is shadowed, and so write-protected: exits of the VM.
    shadow_writes,
    /// First writes of a guest to a PTE node that is shadowed, which may be written to freely from then on: exits of the VM.
    shadow_unsyncs,
    /// Pages that a guest took out of its TLB one by one, where its table is shadowed: exits of the VM.
    shadow_invlpgs,
    /// Times that a guest flushed its TLB whole, where its table is shadowed: exits of the VM.
    shadow_flushes,
    /// PTE nodes that were written to freely and brought up to date in the shadow at such a time.
    shadow_syncs,
    /// Entries of shadow tables taken out because what they were made from changed.
    shadow_zaps,
    /// System calls: mmap.
    mmaps,
    /// System calls: munmap.
    munmaps,
    /// System calls: all others that change an address space (brk, mremap, mprotect, madvise).
    other_calls,
    /// Processes made by fork.
    forks,
    /// Processes that exited.
    exits,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_is_a_difference() {
        let before = OsCounters { faults_4k: 3, ..Default::default() };
        let after = OsCounters { faults_4k: 10, splits: 1, ..Default::default() };
        let phase = after.since(&before);
        assert_eq!((phase.faults_4k, phase.splits, phase.exits), (7, 1, 0));
        let mut again = before;
        again.add(&phase);
        assert_eq!(again, after);
        let (mut taken, mut seen, mut news) = (OsCounters::default(), before, Vec::new());
        taken.take_news(&after, &mut seen, |place, more| news.push((OsCounters::NAMES[place], more)));
        assert_eq!((taken, seen), (phase, after));
        assert_eq!(news, [("faults_4k", 7), ("splits", 1)]);
        let at = OsCounters::NAMES.iter().position(|&name| name == "splits").unwrap();
        assert_eq!(phase.values().nth(at), Some(1));
    }
}
