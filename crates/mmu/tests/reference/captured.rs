// SPDX-License-Identifier: MIT OR Apache-2.0
//! The same on the accesses of real programs: the bundled traces, from where they are measured on.

use std::path::Path;

use nestwalk_mem::{Access, Geometry};
use nestwalk_mmu::MmuConfig;
use nestwalk_workload::trace::{PlayOptions, TraceWorkload};
use nestwalk_workload::{Batch, Phase, Step, Workload};

use crate::common::{TestTable, machine, machine_with_nested_tlb};
use crate::machine::{Counted, counted_by};
use crate::{GUEST_NODES, HOST_NODES, Program, Rig, assert_same};

const ACCESSES: usize = 300_000;

/// The first measured accesses of a bundled trace.
fn accesses_of(name: &str) -> Vec<Access> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data/traces").join(name).with_extension("nwt");
    let mut trace = TraceWorkload::open(&file, PlayOptions::default()).unwrap();
    let (mut accesses, mut batch, mut measured) = (Vec::new(), Batch::default(), false);
    while accesses.len() < ACCESSES {
        match trace.next(&mut batch).unwrap() {
            Step::Phase(phase) => measured |= phase == Phase::Measure,
            Step::Accesses if measured => accesses.extend_from_slice(&batch.accesses),
            Step::End => break,
            _ => {}
        }
    }
    accesses
}

/// Runs them over tables that are empty to begin with, natively or in a VM. What they counted.
fn run(config: &MmuConfig, accesses: &[Access], nested: bool) -> Counted {
    let table = |first| TestTable::new(Geometry::X86_4, first, 1);
    let host = nested.then(|| table(HOST_NODES));
    let mut program = Program::over((1, 1), table(if nested { GUEST_NODES } else { HOST_NODES }), host);
    let mut rig = Rig::new(config);
    program.run(&mut rig, 0, accesses, true, None);
    let found = counted_by(&rig.cores[0].counters());
    assert_same(&found, &rig.reference.counted(0), 0);
    program.assert_same_bits();
    found
}

fn of_kind(counted: &Counted, kind: &str) -> u64 {
    counted.iter().filter(|(name, _)| name.starts_with(kind)).map(|(_, count)| count).sum()
}

#[test]
fn every_counter_of_real_programs_is_that_of_the_machine_said_plainly() {
    for name in ["redis", "bfs"] {
        let accesses = accesses_of(name);
        assert!(accesses.len() >= ACCESSES, "{name} has {}", accesses.len());
        for config in [machine(), machine().with_clustered_tlb().unwrap(), machine_with_nested_tlb()] {
            let [native, nested] = [false, true].map(|nested| run(&config, &accesses, nested));
            assert!(of_kind(&native, "full miss") > 1000 && of_kind(&native, "full l2") > 1000, "{name}: {native:?}");
            if !config.l2_tlb.iter().any(|array| array.clustered) {
                assert_eq!(of_kind(&native, "full miss"), of_kind(&nested, "full miss"), "{name}: a VM changes no TLB");
            }
            assert!(of_kind(&nested, "step") > 2 * of_kind(&native, "step"), "{name}");
        }
    }
}
