// SPDX-License-Identifier: MIT OR Apache-2.0
//! Filters the accesses of any program while it runs: [`crate::trace::filter`] without a trace.

use std::sync::Arc;

use nestwalk_mem::{Access, Reuse};

use crate::stream::{Batch, Step, Workload, WorkloadError, WorkloadFacts};
use crate::trace::FilterOptions;
use crate::trace::filter::Filter;

impl std::fmt::Debug for FilteredWorkload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FilteredWorkload").field("options", &self.options).finish_non_exhaustive()
    }
}

/// A program of whose accesses only those come through that a filter keeps, with the numbers of the
/// others.
pub struct FilteredWorkload {
    inner: Box<dyn Workload>,
    options: FilterOptions,
    /// By thread.
    filters: Vec<Filter>,
    /// What the filters' samples say together, as it was when it was half as large or larger.
    reuse: Arc<Reuse>,
}

impl FilteredWorkload {
    /// Filters `inner`. What is filtered already stays as it is.
    pub fn new(inner: Box<dyn Workload>, options: FilterOptions) -> Self {
        Self { inner, options, filters: Vec::new(), reuse: Arc::default() }
    }

    fn sum_up(&mut self) {
        let mut sum = self.options.reuse();
        self.filters.iter().for_each(|filter| sum.add(filter.reuse()));
        self.reuse = Arc::new(sum);
    }

    fn filter(&mut self, batch: &mut Batch) {
        let index = usize::from(batch.thread.0);
        if self.filters.len() <= index {
            self.filters.resize_with(index + 1, || Filter::new(&self.options));
        }
        let filter = &mut self.filters[index];
        let (accesses, absorbed) = (&mut batch.accesses, &mut batch.absorbed);
        let mut kept = 0;
        for at in 0..accesses.len() {
            let access: Access = accesses[at];
            // There must be one to count the others behind.
            if filter.keeps(access.gva().0, access.is_store(), kept == 0) {
                accesses[kept] = access;
                kept += 1;
                absorbed.push(0);
            } else {
                absorbed[kept - 1] += 1;
                batch.absorbed_stores += u64::from(access.is_store());
            }
        }
        accesses.truncate(kept);
        let samples: u64 = self.filters.iter().map(|filter| filter.reuse().absorbed.total()).sum();
        if samples >= 2 * self.reuse.absorbed.total().max(1) {
            self.sum_up();
        }
        batch.reuse = Some(Arc::clone(&self.reuse));
    }
}

impl Workload for FilteredWorkload {
    fn facts(&self) -> WorkloadFacts {
        self.inner.facts()
    }

    fn end_warm_up(&mut self) {
        self.inner.end_warm_up();
    }

    fn next(&mut self, batch: &mut Batch) -> Result<Step, WorkloadError> {
        let step = self.inner.next(batch)?;
        match step {
            Step::Accesses if batch.absorbed.is_empty() => self.filter(batch),
            // Skipped accesses, or other mappings: nothing is absorbed because of what was there
            // before.
            Step::Touches | Step::Event(_) => self.filters.iter_mut().for_each(Filter::forget),
            _ => {}
        }
        Ok(step)
    }
}
