// SPDX-License-Identifier: MIT OR Apache-2.0
//! Accesses a second of the three cases: `cargo bench -p nestwalk-mmu`.

mod cases;

use cases::{Case, GUEST_ORDER, Machine, machine_config};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

fn hot_path(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("hot_path");
    let mut machine = Machine::new(&machine_config("broadwell-asap").unwrap(), GUEST_ORDER);
    for case in Case::ALL {
        let accesses = case.accesses(1 << 20, GUEST_ORDER);
        group.throughput(Throughput::Elements(accesses.len() as u64));
        group.sample_size(10);
        group.bench_function(case.name(), |bencher| bencher.iter(|| machine.run(&accesses)));
    }
    group.finish();
    machine.core().check_invariants();
}

criterion_group!(benches, hot_path);
criterion_main!(benches);
