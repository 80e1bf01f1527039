// SPDX-License-Identifier: MIT OR Apache-2.0
use std::collections::{BTreeMap, BTreeSet};

use super::*;

/// A process as the stream shows it: what it maps, touches, reads.
#[derive(Default)]
struct Seen {
    mapped: BTreeSet<Vpn>,
    touched: BTreeSet<Vpn>,
    files: Vec<u64>,
    reads: Vec<u64>,
    brk: Option<Vpn>,
    maps_2m: Vec<Vpn>,
}

/// All processes up to the first access, in the order of their ends, and how many were alive at
/// once.
fn run(config: &BuildConfig) -> (Vec<Seen>, usize, Build) {
    let mut build = Build::new(config).unwrap();
    let (mut batch, mut alive, mut gone, mut most) = (Batch::default(), vec![Seen::default()], Vec::new(), 0);
    loop {
        let step = build.next(&mut batch).unwrap();
        let process = alive.last_mut().unwrap();
        match step {
            Step::Event(MemoryEvent::SpawnAndWait) => alive.push(Seen::default()),
            Step::Event(MemoryEvent::ChildExit) => gone.push(alive.pop().unwrap()),
            Step::Event(MemoryEvent::Mmap { range, .. }) => {
                process.mapped.extend((range.start.0..range.end.0).map(Vpn));
                if range.len() == CHUNK {
                    process.maps_2m.push(range.start);
                }
            }
            Step::Event(MemoryEvent::MmapFile { range, file, .. }) => {
                process.mapped.extend((range.start.0..range.end.0).map(Vpn));
                process.files.push(file);
            }
            Step::Event(MemoryEvent::Brk { end }) => {
                let start = process.brk.replace(end.page()).unwrap_or(BRK);
                process.mapped.extend((start.0..end.page().0).map(Vpn));
            }
            Step::Event(MemoryEvent::ReadFile { file, .. }) => process.reads.push(file),
            Step::Touches => {
                for (page, _) in &batch.touches {
                    assert!(process.mapped.contains(page), "{page:?} is touched but not mapped");
                    process.touched.insert(*page);
                }
            }
            Step::Accesses | Step::End => break,
            Step::Event(MemoryEvent::WriteFile { .. }) | Step::Phase(_) => {}
            other => panic!("{other:?}"),
        }
        most = most.max(alive.len());
    }
    gone.extend(alive);
    (gone, most, build)
}

fn config(units: u64, heap: Heap) -> BuildConfig {
    BuildConfig { units, heap, ..BuildConfig::default() }
}

#[test]
fn a_unit_is_four_processes_and_the_last_compiler_goes_on() {
    for heap in [Heap::Chunks, Heap::Brk] {
        let (seen, most, _) = run(&config(3, heap));
        // The job itself, and at most sh, gcc and one more below it.
        assert_eq!((seen.len(), most), (3 * 4 + 2, 4));
        for unit in seen[..12].chunks(4) {
            let [cc1, assembler, gcc, sh] = unit else { panic!() };
            assert!(cc1.touched.len() > 10 * assembler.touched.len());
            assert!(cc1.reads.len() > 200 && gcc.reads.is_empty());
            assert_eq!([cc1, assembler, gcc, sh].map(|process| process.files.len()), [3, 3, 2, 2]);
            assert_eq!(cc1.files[1], sh.files[1], "libc is one file");
        }
    }
}

#[test]
fn a_compiler_has_the_memory_that_was_measured() {
    let (seen, ..) = run(&config(40, Heap::Chunks));
    let cc1: Vec<&Seen> = seen[..160].iter().step_by(4).collect();
    let pages = |process: &Seen| process.touched.range(CHUNKS..CHUNKS + (1 << 20)).count() as u64;
    let mean = cc1.iter().map(|process| pages(process)).sum::<u64>() / 40;
    assert!((9000..17_000).contains(&mean), "{mean} pages; measured: 13,000");
    let measured: BTreeSet<u64> = UNITS.iter().map(|&(collected, malloc, ..)| collected / 4 + malloc / 4).collect();
    assert!(cc1.iter().all(|process| measured.contains(&pages(process))));
    // 21.8 of 32.6 MiB of the executable, in windows of 64 KiB.
    let windows = |process: &Seen| {
        let code = process.touched.range(EXECUTABLE..EXECUTABLE + 8141);
        code.map(|page| (page.0 - EXECUTABLE.0) / WINDOW).collect::<BTreeSet<u64>>()
    };
    let used = windows(cc1[0]);
    assert!((315..365).contains(&used.len()), "{} of 509", used.len());
    assert!(cc1.iter().all(|process| windows(process) == used), "each runs the same code");
    let mean = (0..22).map(|i| UNITS[i].0 + UNITS[i].1).sum::<u64>() / 22;
    assert_eq!(mean, MEAN_KIB);
}

#[test]
fn most_headers_are_read_again_and_again() {
    let (seen, ..) = run(&config(30, Heap::Chunks));
    let mut readers: BTreeMap<u64, u64> = BTreeMap::new();
    for process in &seen {
        process
            .reads
            .iter()
            .collect::<BTreeSet<_>>()
            .into_iter()
            .for_each(|&file| *readers.entry(file).or_default() += 1);
    }
    let often = readers.values().filter(|&&units| units >= 24).count();
    assert!((350..=410).contains(&often), "{often}");
    assert!(readers.len() < 1137 + 31);
}

#[test]
fn memory_grows_in_aligned_chunks_or_as_glibc_and_linux_have_it() {
    let (chunks, ..) = run(&config(1, Heap::Chunks));
    assert!(chunks[0].maps_2m.iter().all(|start| start.is_aligned(9)) && chunks[0].brk.is_none());
    assert_eq!(chunks[3].maps_2m.len(), 1, "a shell has a chunk as well");
    let (brk, ..) = run(&config(1, Heap::Brk));
    let maps = &brk[0].maps_2m;
    assert!(maps.len() > 3 && maps.windows(2).all(|pair| pair[1] + CHUNK == pair[0]), "each below the one before");
    assert!(maps.iter().all(|start| !start.is_aligned(9)));
    assert!(brk[0].brk.is_some() && brk[3].brk.is_some() && brk[3].maps_2m.is_empty());
}

#[test]
fn accesses_of_the_last_compiler_stay_in_its_memory() {
    for heap in [Heap::Chunks, Heap::Brk] {
        let (seen, _, mut build) = run(&config(1, heap));
        let last = seen.last().unwrap();
        let aligned = last.maps_2m.iter().filter(|start| start.is_aligned(9)).count();
        assert_eq!(aligned > 3, heap == Heap::Chunks, "{aligned} of {}", last.maps_2m.len());
        let mut batch = Batch::default();
        for _ in 0..20 {
            if build.next(&mut batch).unwrap() == Step::Accesses {
                let inside = |access: &Access| last.touched.contains(&nestwalk_mem::Va::from(access.gva()).page());
                assert!(!batch.accesses.is_empty() && batch.accesses.iter().all(inside));
            }
        }
    }
}

#[test]
fn a_job_beside_the_measured_one_ends_with_its_units() {
    let (seen, ..) = run(&BuildConfig { measures: false, ..config(2, Heap::Chunks) });
    assert_eq!(seen.len(), 9);
    assert!(Build::new(&config(0, Heap::Chunks)).is_err());
    let other = run(&BuildConfig { seed: 2, ..config(2, Heap::Chunks) }).0;
    assert_ne!(seen[0].reads, other[0].reads, "jobs build other units");
}
