// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs that make their accesses up as they run, without a machine: those whose accesses take
//! the longest to find.

use nestwalk_workload::generator::{GraphConfig, LonestarAlgorithm, LonestarConfig, ShardsConfig, Traversal};
use nestwalk_workload::{Batch, GeneratorConfig, Phase, Step, Workload};

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
        "generate_lonestar" => {
            let algorithm = LonestarAlgorithm::BreadthFirst;
            Some(GeneratorConfig::Lonestar(LonestarConfig { footprint, algorithm, ..LonestarConfig::default() }))
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
    let program = program(name, scale).expect("the caller asked whether there is one");
    let prepare = || {
        let mut workload: Box<dyn Workload> = program.build()?;
        let mut batch = Batch::default();
        while !matches!(workload.next(&mut batch)?, Step::Phase(Phase::Warm | Phase::Measure) | Step::End) {}
        Ok(workload)
    };
    repeat(repetitions, watch, prepare, |workload| drain(&mut **workload, scale.accesses as u64))
}
