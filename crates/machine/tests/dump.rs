// SPDX-License-Identifier: MIT OR Apache-2.0
//! The page tables of real guests, from `linux/data`: stock and with PTEMagnet.

use std::io::Read;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use nestwalk_machine::RunResult;
use nestwalk_mem::{Cpu, PageCount, Va};
use nestwalk_os::{Bare, FrozenTable, HostMemory, Kernel, KernelConfig};
use nestwalk_workload::trace::{ConvertOptions, convert};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../linux/data").join(name)
}

/// The accesses that were recorded: virtual and guest-physical addresses.
fn accesses(name: &str) -> Vec<(Va, u64)> {
    let mut bytes = Vec::new();
    let file = std::fs::File::open(data(name)).unwrap();
    zstd::stream::read::Decoder::new(file).unwrap().read_to_end(&mut bytes).unwrap();
    let words: Vec<_> = bytes[16..].chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
    words.chunks_exact(2).map(|pair| (Va(pair[0]), pair[1] & 0x000f_ffff_ffff_fff8)).collect()
}

#[test]
fn the_simulated_guest_translates_as_the_real_one_did() {
    for kind in ["stock", "nestwalk"] {
        let table = nestwalk_machine::dump::read(&data(&format!("{kind}-tables.zst"))).unwrap();
        let mut host = Kernel::new(&KernelConfig::new(PageCount(1 << 18))).unwrap();
        let (vm, base) = host.host_vm(PageCount(3 << 16), &mut Bare).unwrap();
        let mut guest = Kernel::new(&KernelConfig::new(PageCount(3 << 16))).unwrap();
        let mut below = HostMemory { host: &mut host, process: vm, base, cpu: Cpu(0), below: &mut Bare };
        let process = guest.spawn_frozen(&table, &FrozenTable::default(), &mut below).unwrap();
        guest.check_invariants();
        let recorded = accesses(&format!("{kind}-trace.zst"));
        assert!(recorded.len() > 40_000, "{kind}: {} accesses", recorded.len());
        for (address, physical) in recorded {
            let frame = guest.table(process).unwrap().translate(address.page());
            assert_eq!(frame.map(|frame| frame.0), Some(physical >> 12), "{kind}: {address:?}");
        }
    }
}

fn run(trace: &Path, tables: &str) -> RunResult {
    let text = format!(
        "schema = 1\nname = 'real'\nmachine = 'broadwell-asap'\nworkload = {{ trace = '{}' }}\n[[kernels]]\n\
         [[kernels]]\ndump = '{}'\n",
        trace.display(),
        data(tables).display()
    );
    nestwalk_machine::run(&text, Path::new("real.toml"), Path::new("."), &mut |_| ControlFlow::Continue(())).unwrap()
}

#[test]
fn the_packed_tables_of_the_patched_kernel_make_walks_shorter() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("real.nwt");
    let options = ConvertOptions::default();
    convert(&data("stock-trace.zst"), &trace, &options, &mut |_| ControlFlow::Continue(())).unwrap();
    let [stock, patched] = ["stock-tables.zst", "nestwalk-tables.zst"].map(|tables| run(&trace, tables));
    // The metric as the real guest counted it itself: linux/data/README.md.
    let [scattered, packed] = [&stock, &patched].map(|result| result.row.host_pt_fragmentation.unwrap());
    assert!(scattered > 4.0 && packed < 1.05, "{scattered} {packed}");
    assert_eq!(stock.row.walks_per_kiloaccess, patched.row.walks_per_kiloaccess);
    assert_eq!(stock.row.guest_references_per_walk, patched.row.guest_references_per_walk);
    let [long, short] = [&stock, &patched].map(|result| result.row.walk_latency_cycles.unwrap());
    assert!(short < long, "{short} is not shorter than {long}");
    // Nothing of the process but what the dump has was needed.
    assert_eq!((stock.statistics.adopted_pages, patched.statistics.adopted_pages), (0, 0));
}
