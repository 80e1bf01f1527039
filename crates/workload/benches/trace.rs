// SPDX-License-Identifier: MIT OR Apache-2.0
//! How fast traces are decoded and encoded, in accesses a second, and how many bytes an access
//! takes.
//!
//! `NESTWALK_SHARED` names a folder with real captures in `data/memory-traces/raw`; without it, a
//! made-up program takes its place: two arrays walked in turn, with one random access in eight.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use nestwalk_mem::Va;
use nestwalk_workload::ThreadId;
use nestwalk_workload::trace::recorder::Recorder;
use nestwalk_workload::trace::source::SourceAccess;
use nestwalk_workload::trace::{ConvertOptions, Decoder, Metadata, Trace, convert};

const ACCESSES: usize = 1 << 21;

fn made_up() -> Vec<SourceAccess> {
    let mut random = 1u64;
    (0..ACCESSES as u64)
        .map(|i| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let address = match i % 8 {
                7 => 0x7000_0000_0000 + (random >> 34) * 8,
                n => 0x5000_0000_0000 + ((n % 2) << 30) + i / 8 * 8,
            };
            SourceAccess::new(Va(address), (i % 8) as u32, 3, 3, i % 4 == 1)
        })
        .collect()
}

/// Traces by name: the real ones if they are there.
fn traces(place: &Path) -> Vec<(String, PathBuf)> {
    let mut traces = Vec::new();
    let path = place.join("made-up.nwt");
    write(&path, &made_up());
    traces.push(("made-up".to_owned(), path));
    let shared = std::env::var_os("NESTWALK_SHARED").map(PathBuf::from);
    let shared = shared.unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared"));
    for name in ["redis", "bfs"] {
        let source = shared.join(format!("data/memory-traces/raw/{name}.raw16.zst"));
        let path = place.join(name);
        if convert(&source, &path, &ConvertOptions::default(), &mut |_| ControlFlow::Continue(())).is_ok() {
            traces.push((name.to_owned(), path));
        }
    }
    traces
}

fn write(path: &Path, accesses: &[SourceAccess]) {
    let mut recorder = Recorder::create(path, 1, None, None, None).expect("a temporary file");
    recorder.accesses(ThreadId(0), accesses, 0).expect("a temporary file");
    recorder.finish(Metadata::default()).expect("a temporary file");
}

fn decode(trace: &Trace, decoder: &mut Decoder, out: &mut Vec<nestwalk_mem::Access>) {
    for record in trace.records() {
        decoder.begin(trace, record).expect("a sound trace");
        while decoder.left() > 0 {
            out.clear();
            decoder.fill(trace, out, 1 << 14).expect("a sound trace");
        }
    }
}

fn benches(criterion: &mut Criterion) {
    let place = tempfile::tempdir().expect("a temporary directory");
    let mut group = criterion.benchmark_group("trace_decode");
    for (name, path) in traces(place.path()) {
        let trace = Trace::open(&path).expect("a sound trace");
        let accesses = trace.metadata().accesses;
        println!("{name}: {:.3} bytes an access", trace.bytes() as f64 / accesses as f64);
        group.throughput(Throughput::Elements(accesses));
        let (mut decoder, mut out) = (Decoder::new(&trace).expect("zstd"), Vec::new());
        group.bench_function(&name, |bencher| bencher.iter(|| decode(&trace, &mut decoder, &mut out)));
    }
    group.finish();
    let accesses = made_up();
    let mut group = criterion.benchmark_group("trace_encode");
    group.throughput(Throughput::Elements(accesses.len() as u64)).sample_size(10);
    group.bench_function("made-up", |bencher| bencher.iter(|| write(&place.path().join("encode.nwt"), &accesses)));
    group.finish();
}

criterion_group!(all, benches);
criterion_main!(all);
