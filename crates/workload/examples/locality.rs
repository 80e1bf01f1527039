// SPDX-License-Identifier: MIT OR Apache-2.0
//! What share of a trace's accesses goes to few hot lines: its stack, locals and static data.
//!
//! `cargo run --release -p nestwalk-workload --example locality -- TRACE.nwt` (one that is not filtered)
//!
//! Every window of 2^20 measured accesses is looked at on its own: its accesses to its `HOT_LINES` most used lines are its
//! local ones, the rest go to data structures. The generators take `local_permille` from here (docs/model.md, "Made-up programs").

use std::collections::{BTreeMap, BTreeSet};

use nestwalk_mem::Access;
use nestwalk_workload::trace::{PlayOptions, TraceWorkload};
use nestwalk_workload::{Batch, Phase, Step, Workload};

/// An L1-D's worth.
const HOT_LINES: usize = 512;
const WINDOW: usize = 1 << 20;

#[derive(Default)]
struct Sums {
    accesses: u64,
    stores: u64,
    instructions: u64,
    local: u64,
    local_stores: u64,
    /// Local accesses to the hottest 8, 64 and 512 lines.
    hottest: [u64; 3],
    /// Pages that hold the hot lines, over all windows.
    hot_pages: u64,
    windows: u64,
    /// Distinct hot lines, and pages of them, in every 1000 accesses, over all windows.
    lines_at_a_time: u64,
    pages_at_a_time: u64,
    /// Distinct lines and pages, over all windows.
    lines: u64,
    pages: u64,
}

impl Sums {
    fn window(&mut self, accesses: &[Access]) {
        let mut counts: BTreeMap<u64, u64> = BTreeMap::new();
        let mut pages: BTreeMap<u64, u64> = BTreeMap::new();
        for access in accesses {
            *counts.entry(access.gva().0 >> 6).or_default() += 1;
            *pages.entry(access.gva().0 >> 12).or_default() += 1;
        }
        let mut order: Vec<(u64, u64)> = counts.iter().map(|(&line, &count)| (count, line)).collect();
        order.sort_unstable_by(|a, b| b.cmp(a));
        let sum = |count: usize| order.iter().take(count).map(|(count, _)| count).sum::<u64>();
        let hot: BTreeSet<u64> = order.iter().take(HOT_LINES).map(|&(_, line)| line).collect();
        self.local += sum(HOT_LINES);
        self.hot_pages += hot.iter().map(|line| line >> 6).collect::<BTreeSet<_>>().len() as u64;
        self.windows += 1;
        for part in accesses.chunks(1000) {
            let lines: BTreeSet<u64> =
                part.iter().map(|access| access.gva().0 >> 6).filter(|l| hot.contains(l)).collect();
            self.lines_at_a_time += lines.len() as u64;
            self.pages_at_a_time += lines.iter().map(|line| line >> 6).collect::<BTreeSet<_>>().len() as u64;
        }
        for (to, count) in self.hottest.iter_mut().zip([8, 64, 512]) {
            *to += sum(count);
        }
        let local_store = |access: &&Access| access.is_store() && hot.contains(&(access.gva().0 >> 6));
        self.local_stores += accesses.iter().filter(local_store).count() as u64;
        self.stores += accesses.iter().filter(|access| access.is_store()).count() as u64;
        self.accesses += accesses.len() as u64;
        self.lines += counts.len() as u64;
        self.pages += pages.len() as u64;
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for path in std::env::args().skip(1) {
        let mut workload = TraceWorkload::open(path.as_ref(), PlayOptions::default())?;
        let (mut sums, mut batch, mut window, mut measuring) = (Sums::default(), Batch::default(), Vec::new(), false);
        loop {
            match workload.next(&mut batch)? {
                Step::Accesses if measuring => {
                    assert!(
                        batch.absorbed.is_empty(),
                        "{path}: a filtered trace; convert the capture without --filter"
                    );
                    sums.instructions += batch.instructions;
                    window.extend_from_slice(&batch.accesses);
                }
                Step::Phase(phase) => {
                    measuring = phase == Phase::Measure;
                }
                Step::End => break,
                _ => {}
            }
            if window.len() >= WINDOW {
                sums.window(&window);
                window.clear();
            }
        }
        if sums.accesses == 0 {
            sums.window(&window);
        }
        let permille = |count: u64| count * 1000 / sums.accesses.max(1);
        println!(
            "{path}: {} accesses, {} instructions a kiloaccess\n  local {} permille (hottest 8, 64, 512 lines: {:?}), their stores {} permille of them, on {} pages; {} lines on {} pages in every kiloaccess\n  \
             data: stores {} permille of them; {} lines and {} pages a kiloaccess",
            sums.accesses,
            permille(sums.instructions),
            permille(sums.local),
            sums.hottest.map(permille),
            sums.local_stores * 1000 / sums.local.max(1),
            sums.hot_pages / sums.windows.max(1),
            permille(sums.lines_at_a_time),
            permille(sums.pages_at_a_time),
            (sums.stores - sums.local_stores) * 1000 / (sums.accesses - sums.local).max(1),
            permille(sums.lines),
            permille(sums.pages),
        );
    }
    Ok(())
}
