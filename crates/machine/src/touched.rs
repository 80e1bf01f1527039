// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where a program's memory is: the 2 MiB regions of its addresses that it touches until it is
//! populated.
//!
//! Page tables of another process can then be put under the program
//! ([`KernelScenario::dump`](crate::kernel_scenario)).

use std::collections::BTreeSet;
use std::path::Path;

use nestwalk_workload::{Batch, Phase, Step};

use crate::configuration::Configuration;
use crate::error::MachineError;
use crate::workloads;

/// log2 of the bytes of a region.
const REGION_BYTES_BITS: u32 = 21;
/// log2 of the 4 KiB pages of a region.
const REGION_BITS: u32 = 9;
/// Of a program that never says that it is populated, so many accesses are looked at.
const ACCESSES_MAX: u64 = 100_000_000;

/// Numbers (address >> 21) of the regions that the workload of `configuration` touches while it
/// populates its memory or, where it has no such phase, with its first accesses. Ascending. Bundled
/// traces are in the folder `traces`.
///
/// # Errors
/// When the workload cannot be made or read.
pub fn regions(configuration: &Configuration, traces: &Path) -> Result<Vec<u64>, MachineError> {
    let mut workload = workloads::workload(configuration, traces)?;
    let mut found = BTreeSet::new();
    let (mut batch, mut accesses) = (Batch::default(), 0);
    while accesses < ACCESSES_MAX {
        match workload.next(&mut batch)? {
            Step::End => break,
            Step::Phase(phase) if phase != Phase::Populate && !found.is_empty() => break,
            Step::Phase(_) | Step::Event(_) => {}
            Step::Touches => found.extend(batch.touches.iter().map(|(page, _)| page.0 >> REGION_BITS)),
            Step::Accesses => {
                accesses += batch.represented();
                found.extend(batch.accesses.iter().map(|access| access.gva().0 >> REGION_BYTES_BITS));
            }
        }
    }
    Ok(found.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generator_touches_as_many_regions_as_its_footprint_has() {
        let text = "schema = 1\nname = \"t\"\nmachine = \"zen4\"\n[workload.generator]\nkind = \"gups\"\n\
                    footprint = \"64 MiB\"\n[[kernels]]\n";
        let configuration = Configuration::parse(text, Path::new("t.toml")).unwrap();
        let found = regions(&configuration, Path::new(".")).unwrap();
        assert!((32..=34).contains(&found.len()), "{}", found.len());
        assert!(found.windows(2).all(|pair| pair[0] < pair[1]));
    }
}
