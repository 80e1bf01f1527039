// SPDX-License-Identifier: MIT OR Apache-2.0
//! How many accesses a second each kind of generator produces, of a program of 4 GiB, once it has
//! filled its memory.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use nestwalk_workload::{Batch, GeneratorConfig, Step, Workload};

const ACCESSES: u64 = 1 << 20;

/// The program of that kind, at the beginning of its accesses.
fn begun(kind: &str) -> Box<dyn Workload> {
    let text = format!("kind = '{kind}'\nfootprint = '4 GiB'\nwarm_accesses = 0\nmeasured_accesses = 1000000000000");
    let config: GeneratorConfig = toml::from_str(&text).expect("keys that all programs have");
    let mut workload = config.build().expect("a program of 4 GiB");
    let mut batch = Batch::default();
    while workload.next(&mut batch).expect("generators do not fail") != Step::Accesses {}
    workload
}

fn benches(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("generator");
    group.throughput(Throughput::Elements(ACCESSES)).sample_size(10);
    // A neighbour makes no accesses.
    for (kind, _) in GeneratorConfig::KINDS.iter().filter(|(kind, _)| *kind != "neighbour") {
        let (mut workload, mut batch) = (begun(kind), Batch::default());
        group.bench_function(*kind, |bencher| {
            bencher.iter(|| {
                let mut made = 0;
                while made < ACCESSES {
                    workload.next(&mut batch).expect("generators do not fail");
                    made += batch.accesses.len() as u64;
                }
            });
        });
    }
    group.finish();
}

criterion_group!(all, benches);
criterion_main!(all);
