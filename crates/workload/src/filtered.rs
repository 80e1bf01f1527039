// SPDX-License-Identifier: MIT OR Apache-2.0
//! Filters the accesses of any program while it runs: [`crate::trace::filter`] without a trace.

use nestwalk_mem::Access;

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
}

impl FilteredWorkload {
    /// Filters `inner`. What is filtered already stays as it is.
    pub fn new(inner: Box<dyn Workload>, options: FilterOptions) -> Self {
        Self { inner, options, filters: Vec::new() }
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
