// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs that make their accesses up as they run, without a machine: those whose accesses take
//! the longest to find.

use nestwalk_workload::generator::{GraphConfig, ShardsConfig, Traversal};
use nestwalk_workload::{GeneratorConfig, Phase, Step, Workload};

use super::{Scale, Watch, drain, repeat};
use crate::error::MachineError;

/// A benchmark's program.
fn program(name: &str, scale: Scale) -> Option<GeneratorConfig> {
    let footprint = scale.footprint;
    match name {
        "generate_graph" => {
            let traversal = Traversal::Sweep;
            Some(GeneratorConfig::Graph(GraphConfig { footprint, traversal, ..GraphConfig::default() }))
        }
        "generate_shards" => Some(GeneratorConfig::Shards(ShardsConfig { footprint, ..ShardsConfig::default() })),
        _ => None,
    }
}

/// Whether `name` is one of these benchmarks.
pub(super) fn has(name: &str) -> bool {
    program(name, Scale::SMALL).is_some()
}

/// Lets the program of a benchmark make accesses, once its memory is populated.
pub(super) fn generate(name: &str, scale: Scale, repetitions: u32, watch: &mut dyn Watch) -> Result<u64, MachineError> {
    let known = || ["generate_graph", "generate_shards"].into_iter();
    let program = program(name, scale).ok_or_else(|| MachineError::unknown("benchmark", name, known()))?;
    let prepare = || {
        let mut workload: Box<dyn Workload> = program.build()?;
        let mut batch = nestwalk_workload::Batch::default();
        while !matches!(workload.next(&mut batch)?, Step::Phase(Phase::Warm | Phase::Measure) | Step::End) {}
        Ok(workload)
    };
    repeat(repetitions, watch, prepare, |workload| drain(&mut **workload, scale.accesses as u64))
}
