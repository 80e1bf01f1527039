// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a kernel has done, counted.
//!
//! Counts only: what an event costs is in the machine's cost table. Counters never go back, so
//! the work of a phase is [`OsCounters::since`] its beginning.

nestwalk_mem::counters! {
    /// What a kernel has done since it began. See the [module](self).
    pub numbers OsCounters {
        /// Faults that mapped a fresh 4 KiB page.
        faults_4k ["faults"],
        /// Faults that mapped a fresh 2 MiB page.
        faults_2m ["faults"],
        /// Faults that mapped a fresh 1 GiB page.
        faults_1g ["faults"],
        /// Faults on a page that was mapped already, with the right to do what was tried.
        faults_spurious ["faults"],
        /// Stores to a shared page, which was copied.
        faults_copied ["faults"],
        /// Stores to a page that had been write-protected and that is not shared (any more).
        faults_reused ["faults"],
        /// Faults on a page that had been swapped out.
        faults_swapped_in ["faults"],
        /// Faults on a mapping of a file whose page was in the page cache.
        faults_file ["faults"],
        /// Faults on a mapping of a file whose page had to be read from storage.
        faults_file_read ["faults"],
        /// Pages of the page cache that a fault mapped beside its own (fault-around).
        pages_mapped_around ["pages"],
        /// Pages of files read from storage into the page cache.
        file_pages_read ["pages"],
        /// Times that a fault or a read waited for storage (at most 32 pages each).
        file_waits ["waits"],
        /// Pages of files written back to storage.
        file_pages_written ["pages"],
        /// 4 KiB pages copied between the page cache and a program by read and write.
        copied_file ["pages"],
        /// 4 KiB pages zeroed.
        zeroed_4k ["pages"],
        /// 2 MiB pages zeroed at once.
        zeroed_2m ["2 MiB pages"],
        /// 4 KiB pages copied for copy-on-write.
        copied_4k ["pages"],
        /// 4 KiB pages copied into a 2 MiB page (out-of-place promotion).
        copied_collapse ["pages"],
        /// 4 KiB pages moved by compaction.
        migrated ["pages"],
        /// Runs of direct compaction (in a fault or in a request).
        compactions_direct ["runs"],
        /// Runs of background compaction.
        compactions_background ["runs"],
        /// Runs of proactive compaction, which the background daemon begins by itself.
        compactions_proactive ["runs"],
        /// Runs of compaction after which no block of the wanted order was free.
        compactions_failed ["runs"],
        /// Frames that compaction's scanners looked at.
        compaction_scanned ["frames"],
        /// Faults that wanted a 2 MiB page, might have had one, and got a 4 KiB page for want of a
        /// block.
        huge_fallbacks ["faults"],
        /// 2 MiB pages made of 4 KiB pages by copying them.
        collapses ["2 MiB pages"],
        /// 2 MiB pages made of 4 KiB pages that lay in place already.
        promotions ["2 MiB pages"],
        /// 2 MiB (or larger) leaves split.
        splits ["leaves"],
        /// 2 MiB pages of which a part was unmapped for the first time, and which wait to be split
        /// (`thp_deferred_split_page`).
        splits_deferred ["2 MiB pages"],
        /// 2 MiB pages split into pages of their own, so that what was unmapped of them is free
        /// (`thp_split_page`).
        splits_whole ["2 MiB pages"],
        /// Pages that a daemon looked at in page tables.
        pages_scanned ["pages"],
        /// TLB shootdowns.
        shootdowns ["shootdowns"],
        /// Pages that shootdowns named.
        shootdown_pages ["pages"],
        /// Page-table nodes made.
        nodes_made ["nodes"],
        /// Page-table nodes freed.
        nodes_freed ["nodes"],
        /// Page-table nodes moved to another frame.
        nodes_moved ["nodes"],
        /// Entries copied by fork.
        entries_copied ["entries"],
        /// Entries moved by mremap.
        entries_moved ["entries"],
        /// Pages that reclaim looked at.
        reclaim_scanned ["pages"],
        /// Pages that reclaim dropped without writing them.
        reclaimed_clean ["pages"],
        /// Pages that reclaim wrote to swap.
        swapped_out ["pages"],
        /// Frames that the memory manager gave back under pressure.
        reclaimed_reserved ["frames"],
        /// Times that a request had to reclaim memory itself.
        reclaims_direct ["runs"],
        /// Times that the background daemon reclaimed memory.
        reclaims_background ["runs"],
        /// Requests that failed for want of memory.
        out_of_memory ["requests"],
        /// Hypercalls made to the kernel below.
        hypercalls ["calls"],
        /// Entries of shadow tables filled: exits of the VM.
        shadow_fills ["exits"],
        /// Misses of a shadow table that were the guest's own page faults, and were handed on to
        /// it: exits of the VM.
        shadow_reflected ["exits"],
        /// Entries of shadow tables filled beside one that the hardware missed.
        shadow_prefetches ["entries"],
        /// Writes of a guest to a node above the PTEs that is shadowed, and so write-protected:
        /// exits of the VM.
        shadow_writes ["exits"],
        /// First writes of a guest to a PTE node that is shadowed, which may be written to freely
        /// from then on: exits of the VM.
        shadow_unsyncs ["exits"],
        /// Pages that a guest took out of its TLB one by one, where its table is shadowed: exits of
        /// the VM.
        shadow_invlpgs ["exits"],
        /// Times that a guest flushed its TLB whole, where its table is shadowed: exits of the VM.
        shadow_flushes ["exits"],
        /// PTE nodes that were written to freely and brought up to date in the shadow at such a
        /// time.
        shadow_syncs ["nodes"],
        /// Entries of shadow tables taken out because what they were made from changed.
        shadow_zaps ["entries"],
        /// System calls: mmap.
        mmaps ["calls"],
        /// System calls: munmap.
        munmaps ["calls"],
        /// System calls: all others that change an address space (brk, mremap, mprotect, madvise).
        other_calls ["calls"],
        /// System calls: read and write of files.
        file_calls ["calls"],
        /// Processes made by fork.
        forks ["processes"],
        /// Processes that exited.
        exits ["processes"],
    }
}

impl OsCounters {
    /// What was done after `earlier`, a copy that was taken of the same kernel's counters.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        self.minus(earlier)
    }
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
