// SPDX-License-Identifier: MIT OR Apache-2.0
//! Page faults a second: one kernel, and a guest on a host.

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use nestwalk_mem::{Cpu, PageCount, Vpn, VpnRange};
use nestwalk_os::manager::freebsd::FreeBsdConfig;
use nestwalk_os::manager::quicksilver::QuicksilverConfig;
use nestwalk_os::manager::thp::ThpConfig;
use nestwalk_os::{Bare, HostMemory, Kernel, KernelConfig, ManagerConfig, ProcessId, VmaFlags};

/// 1 GiB.
const PAGES: PageCount = PageCount(1 << 18);
const START: Vpn = Vpn(1 << 20);
/// Odd, so that all pages are touched, and without a pattern that a prefetcher follows.
const RANDOM: u64 = 0x9e37_79b9_7f4a_7c15;

fn kernel(pages: u64, manager: ManagerConfig) -> Kernel {
    let mut config = KernelConfig::new(PageCount(pages));
    config.manager = manager;
    Kernel::new(&config).expect("a possible configuration")
}

fn alone() -> (Kernel, ProcessId) {
    let mut kernel = kernel(PAGES.0 * 5 / 4, ManagerConfig::Linux4k);
    let process = kernel.spawn(&mut Bare).expect("memory");
    kernel.mmap(process, VpnRange::new(START, PAGES), VmaFlags::ANONYMOUS, &mut Bare).expect("room");
    (kernel, process)
}

/// Host, guest, the VM's process, the page of its frame 0, and the guest's process.
type Nested = (Kernel, Kernel, ProcessId, Vpn, ProcessId);

fn nested(manager: &ManagerConfig) -> Nested {
    let guest_pages = PAGES.0 * 5 / 4;
    let (mut host, mut guest) = (kernel(PAGES.0 * 3 / 2, manager.clone()), kernel(guest_pages, manager.clone()));
    let (vm, base) = host.host_vm(PageCount(guest_pages), &mut Bare).expect("memory");
    let mut bare = Bare;
    let mut below = HostMemory { host: &mut host, process: vm, base, cpu: Cpu(0), below: &mut bare };
    let process = guest.spawn(&mut below).expect("memory");
    guest.mmap(process, VpnRange::new(START, PAGES), VmaFlags::ANONYMOUS, &mut below).expect("room");
    (host, guest, vm, base, process)
}

/// Touches every page that is not mapped yet, `step` pages apart round and round.
fn populate((host, guest, vm, base, process): &mut Nested, step: u64) {
    let mut bare = Bare;
    let mut below = HostMemory { host, process: *vm, base: *base, cpu: Cpu(0), below: &mut bare };
    for i in 0..PAGES.0 {
        let page = Vpn(START.0 + (i.wrapping_mul(step) & (PAGES.0 - 1)));
        if guest.backed_span(*process, page, true).expect("a process") == PageCount(0) {
            guest.fault(*process, page, true, Cpu(0), &mut below).expect("memory");
        }
    }
}

fn faults(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("faults");
    group.throughput(Throughput::Elements(PAGES.0)).sample_size(10);
    group.bench_function("one_level", |bencher| {
        bencher.iter_batched_ref(
            alone,
            |(kernel, process)| {
                for i in 0..PAGES.0 {
                    kernel.fault(*process, START + i, true, Cpu(0), &mut Bare).expect("memory");
                }
            },
            BatchSize::PerIteration,
        );
    });
    // Fills reservations page by page.
    let reserving = ManagerConfig::Quicksilver(QuicksilverConfig { threshold: 512, ..QuicksilverConfig::default() });
    let huge = ManagerConfig::Thp(ThpConfig::default());
    for (name, manager, step) in [
        ("two_levels", ManagerConfig::Linux4k, 1),
        ("two_levels_random", ManagerConfig::Linux4k, RANDOM),
        ("two_levels_random_freebsd", ManagerConfig::FreeBsd(FreeBsdConfig::default()), RANDOM),
        ("two_levels_random_quicksilver", reserving, RANDOM),
        ("two_levels_thp", huge, 1),
    ] {
        group.bench_function(name, |bencher| {
            bencher.iter_batched_ref(|| nested(&manager), |nested| populate(nested, step), BatchSize::PerIteration);
        });
    }
    group.finish();
}

criterion_group!(benches, faults);
criterion_main!(benches);
