// SPDX-License-Identifier: MIT OR Apache-2.0
//! The page tables of real guests, from `linux/data`: stock, with PTEMagnet, and with sorted page
//! tables; and stock ones whose PTE tables are put in order here.

use std::io::Read;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use nestwalk_machine::{MachineError, RunResult};
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
    run_with(trace, &data(tables), "").unwrap()
}

/// With `more` keys of the scenario.
fn run_with(trace: &Path, tables: &Path, more: &str) -> Result<RunResult, MachineError> {
    run_on(trace, tables, more, "")
}

/// The same, with keys of the guest's kernel.
fn run_on(trace: &Path, tables: &Path, more: &str, guest: &str) -> Result<RunResult, MachineError> {
    let text = format!(
        "schema = 1\nname = 'real'\nmachine = 'broadwell-asap'\nworkload = {{ trace = '{}' }}\n{more}\n[[kernels]]\n\
         [[kernels]]\ndump = '{}'\n{guest}\n",
        trace.display(),
        tables.display()
    );
    nestwalk_machine::run(&text, Path::new("real.toml"), Path::new("."), &mut |_| ControlFlow::Continue(()))
}

fn unpacked(name: &str) -> Vec<u8> {
    zstd::stream::decode_all(std::fs::File::open(data(name)).unwrap()).unwrap()
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// Bytes of a node in a dump.
const NODE: usize = (3 + 512) * 8;
/// Bits of an entry that are the address.
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
/// What a PTE table translates.
const SPAN: u64 = 2 << 20;

/// The dump of the stock guest with the region that a kernel with sorted page tables might have had
/// for its 96 or so PTE tables: from frame `base` on. They are moved there if `moved`.
fn sorted(base: u64, moved: bool) -> Vec<u8> {
    let mut bytes = unpacked("stock-tables.zst");
    bytes[..8].copy_from_slice(b"NWPT0003");
    // The root is first; the dump does not follow its upper half.
    bytes[16 + 24 + 256 * 8..16 + NODE].fill(0);
    let nodes: Vec<usize> = (16..bytes.len()).step_by(NODE).collect();
    let mut firsts: Vec<u64> =
        nodes.iter().filter(|&&at| word(&bytes, at) == 1).map(|&at| word(&bytes, at + 8)).collect();
    firsts.sort_unstable();
    // The longest stretch without a gap is the program's memory.
    let stretches = firsts.chunk_by(|one, two| one + SPAN == *two);
    let stretch = stretches.max_by_key(|stretch| stretch.len()).unwrap();
    let (start, count) = (stretch[0], stretch.len() as u64);
    let place = |first: u64| (base + (first - start) / SPAN) << 12;
    for &at in nodes.iter().filter(|_| moved) {
        let (level, first) = (word(&bytes, at), word(&bytes, at + 8));
        if level == 1 && (start..start + count * SPAN).contains(&first) {
            bytes[at + 16..at + 24].copy_from_slice(&place(first).to_le_bytes());
        }
        for index in (0..512).filter(|_| level == 2) {
            let (entry, below) = (at + 24 + index * 8, first + index as u64 * SPAN);
            if (start..start + count * SPAN).contains(&below) {
                let flags = word(&bytes, entry) & !ADDRESS;
                bytes[entry..entry + 8].copy_from_slice(&(place(below) | flags).to_le_bytes());
            }
        }
    }
    let text = format!(
        "tgid level start end first_pfn used idle holes\n99 1 {start:012x} {:012x} {base:x} {count} 0 0\n",
        start + count * SPAN
    );
    bytes.extend([7_u64.to_le_bytes(), (text.len() as u64).to_le_bytes()].concat());
    bytes.extend([b"regions".as_slice(), text.as_bytes()].concat());
    bytes
}

#[test]
fn the_tables_of_a_guest_that_sorts_them_lie_where_it_says() {
    let table = nestwalk_machine::dump::read(&data("sorted-tables.zst")).unwrap();
    let places: Vec<_> = table.regions.iter().map(|one| (one.tables().0, one.used, one.holes)).collect();
    assert_eq!(places, [(128, 96, 0), (1, 1, 0), (1, 1, 0)], "PTEs of 192 MiB, and of each PMD table the place");
    // All tables in use, as the kernel counts; and one whose place it calls idle lies elsewhere.
    assert_eq!(table.in_place(), (96 + 1 + 1, 1));
}

/// ASAP's hardware, for the guest's PTEs.
const P1: &str = "asap = { guest_levels = [1] }";

#[test]
fn asap_goes_by_the_regions_of_the_dump() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("real.nwt");
    let options = ConvertOptions::default();
    convert(&data("stock-trace.zst"), &trace, &options, &mut |_| ControlFlow::Continue(())).unwrap();
    let [right, wrong] = ["right", "wrong"].map(|name| folder.path().join(name));
    // Frames above all that the guest of 768 MiB has.
    let above = 3 << 16;
    std::fs::write(&right, sorted(above, true)).unwrap();
    std::fs::write(&wrong, sorted(above, false)).unwrap();
    let table = nestwalk_machine::dump::read(&right).unwrap();
    assert!(table.in_place().0 >= 96 && table.in_place().1 == 0, "{:?}", table.in_place());
    let table = nestwalk_machine::dump::read(&wrong).unwrap();
    assert!(table.in_place().0 == 0 && table.in_place().1 >= 96, "{:?}", table.in_place());

    let go = |path: &Path, more| run_with(&trace, path, more).unwrap();
    let cycles = |result: &RunResult| result.row.walk_latency_cycles.unwrap();
    let (plain, prefetched) = (go(&right, ""), go(&right, P1));
    assert!(cycles(&prefetched) < cycles(&plain), "{} is not shorter than {}", cycles(&prefetched), cycles(&plain));
    // A region that says what is not so: lines are fetched in vain, and walks read what they would
    // have read.
    let (plain, misled) = (go(&wrong, ""), go(&wrong, P1));
    assert!(cycles(&misled) >= cycles(&plain), "{} is shorter than {}", cycles(&misled), cycles(&plain));
    assert_eq!(plain.row.walks_per_kiloaccess, misled.row.walks_per_kiloaccess);
    assert_eq!(plain.row.guest_references_per_walk, misled.row.guest_references_per_walk);
    assert_eq!(plain.row.host_references_per_walk, misled.row.host_references_per_walk);

    // The dump of a stock kernel has nothing for registers.
    let error = run_with(&trace, &data("stock-tables.zst"), P1).unwrap_err().to_string();
    assert!(error.contains("guest_levels") && error.contains("vm tables --regions"), "{error}");
    // Regions of the simulated kernel's own do not have the dumped tables: nothing is gained.
    let stock = data("stock-tables.zst");
    let (plain, vain) = (go(&stock, ""), run_on(&trace, &stock, P1, "tables = { kind = 'asap' }").unwrap());
    assert!(cycles(&vain) >= cycles(&plain), "{} is shorter than {}", cycles(&vain), cycles(&plain));
    let error = run_on(&trace, &right, P1, "tables = { kind = 'asap' }").unwrap_err().to_string();
    assert!(error.contains("the regions of its own kernel"), "{error}");
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
