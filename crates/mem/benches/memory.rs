// SPDX-License-Identifier: MIT OR Apache-2.0
//! Frames and table entries a second: what the page-fault path of both kernels is made of.

use std::hint::black_box;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use nestwalk_mem::physical::{Aging, MemoryConfig};
use nestwalk_mem::{Cpu, Frame, MigrateType, Order, Owner, PageCount, PhysicalMemory, Vpn};

const PAGES: u64 = 1 << 20;

fn memory(gib: u64, cpus: u16) -> PhysicalMemory {
    PhysicalMemory::new(&MemoryConfig::new(PageCount(gib << 18), cpus)).expect("a possible size")
}

fn take(memory: &mut PhysicalMemory, page: u64, cpu: Cpu) -> Frame {
    let frame = memory.alloc(Order::PAGE, MigrateType::Movable, cpu).expect("enough memory");
    memory.set_owner(frame, Owner::Page { process: 1, page: Vpn(page) });
    frame
}

fn first_touch(memory: &mut PhysicalMemory, cpu_of: impl Fn(u64) -> Cpu) {
    for page in 0..PAGES {
        black_box(take(memory, page, cpu_of(page)));
    }
}

fn pages(c: &mut Criterion) {
    let mut group = c.benchmark_group("frames");
    group.throughput(Throughput::Elements(PAGES)).sample_size(10);
    group.bench_function("first_touch", |b| {
        b.iter_batched_ref(|| memory(16, 1), |memory| first_touch(memory, |_| Cpu(0)), BatchSize::PerIteration);
    });
    group.bench_function("first_touch_on_12_processors", |b| {
        b.iter_batched_ref(
            || memory(16, 12),
            |memory| first_touch(memory, |page| Cpu((page % 12) as u16)),
            BatchSize::PerIteration,
        );
    });
    group.bench_function("first_touch_of_aged_memory", |b| {
        b.iter_batched_ref(
            || {
                let mut memory = memory(8, 4);
                memory.age(&Aging { used_permille: 900, kept_permille: 50, seed: 1, ..Aging::default() });
                memory
            },
            |memory| first_touch(memory, |_| Cpu(0)),
            BatchSize::PerIteration,
        );
    });
    group.bench_function("free_and_reuse", |b| {
        let mut memory = memory(16, 1);
        let mut frames: Vec<Frame> = (0..PAGES).map(|page| take(&mut memory, page, Cpu(0))).collect();
        b.iter(|| {
            frames.iter().for_each(|&frame| memory.free(frame, Order::PAGE, Cpu(0)));
            frames.iter_mut().enumerate().for_each(|(page, frame)| *frame = take(&mut memory, page as u64, Cpu(0)));
        });
    });
    group.finish();
}

fn blocks(c: &mut Criterion) {
    let mut group = c.benchmark_group("blocks");
    group.bench_function("huge_alloc_and_free", |b| {
        let mut memory = memory(16, 1);
        b.iter(|| {
            let frame = memory.alloc(Order::HUGE, MigrateType::Movable, Cpu(0)).expect("enough memory");
            memory.free(black_box(frame), Order::HUGE, Cpu(0));
        });
    });
    group.bench_function("new_400_gib", |b| b.iter_with_large_drop(|| memory(400, 20)));
    group.finish();
}

criterion_group!(benches, pages, blocks);
criterion_main!(benches);
