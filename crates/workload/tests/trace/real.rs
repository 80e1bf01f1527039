// SPDX-License-Identifier: MIT OR Apache-2.0
//! The format samples: 2 M accesses each of redis-server and GAPBS BFS. They are no part of the
//! repository; where they are absent the tests say so and pass. `NESTWALK_SHARED` names the folder
//! that has them in `data/memory-traces/raw`.

use std::path::PathBuf;

use nestwalk_mem::{Access, Gva};
use nestwalk_workload::trace::{ConvertOptions, SampleOptions, SteadyFrom, Strata, check, info};

use crate::capture::{Item, Place, convert_file, items};

fn sample(name: &str) -> Option<PathBuf> {
    let shared = std::env::var_os("NESTWALK_SHARED").map(PathBuf::from);
    let shared = shared.unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared"));
    let path = shared.join("data/memory-traces/raw").join(name);
    if !path.is_file() {
        println!("skipped: {} is absent (NESTWALK_SHARED names the folder of real inputs)", path.display());
        return None;
    }
    Some(path)
}

/// Address and store bit of every access, straight from the bytes.
fn raw_accesses(path: &std::path::Path) -> Vec<Access> {
    let bytes = zstd::decode_all(std::fs::File::open(path).unwrap()).unwrap();
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let (mut at, mut all) = (0, Vec::new());
    while at + 32 <= bytes.len() {
        let end = at + 32 + (word(at + 16) & 0xffff_ffff) as usize;
        for record in (at + 32..end.min(bytes.len() - 15)).step_by(16) {
            all.push(Access::new(Gva(word(record)), word(record + 8) >> 56 & 1 != 0));
        }
        at = end;
    }
    all
}

#[test]
fn real_captures_are_kept_without_loss_in_little_room() {
    // Bytes an access over 50 M accesses of the same programs, by the measurement that chose the
    // encoding: 0.19 and 0.33. Two million accesses have more beginnings in them.
    for (name, most) in [("redis.raw16.zst", 0.20), ("bfs.raw16.zst", 0.40)] {
        let Some(path) = sample(name) else { continue };
        let place = Place::new();
        let report = convert_file(&path, &place.path("trace.nwt"), &ConvertOptions::default()).unwrap();
        let wanted = raw_accesses(&path);
        let got: Vec<_> = items(&place.trace())
            .iter()
            .filter_map(|item| if let Item::Access(_, access) = item { Some(*access) } else { None })
            .collect();
        assert!(got == wanted, "{name}: other accesses");
        assert!(report.bytes_per_access < most, "{name}: {} bytes an access", report.bytes_per_access);
        let pages: std::collections::BTreeSet<_> = wanted.iter().map(|access| access.gva().page()).collect();
        let info = info(&place.path("trace.nwt")).unwrap();
        assert_eq!(info.footprint_bytes, pages.len() as u64 * 4096);
        assert_eq!((info.accesses, info.threads), (wanted.len() as u64, 1));
        assert!(info.vmas.iter().map(|vma| vma.end - vma.start).sum::<u64>() >= info.footprint_bytes);
        println!("{name}: {:.3} bytes an access", report.bytes_per_access);
    }
}

#[test]
fn a_sample_of_a_real_capture_keeps_its_footprint() {
    for name in ["redis.raw16.zst", "bfs.raw16.zst"] {
        let Some(path) = sample(name) else { continue };
        let place = Place::new();
        let options = SampleOptions {
            steady_from: SteadyFrom::Access(100_000),
            strata: Strata::Windows(8),
            collapse: 0,
            warm: 50_000,
            window: 20_000,
            seed: 1,
            budget: None,
        };
        let options = ConvertOptions { sample: Some(options), ..ConvertOptions::default() };
        let report = convert_file(&path, &place.path("trace.nwt"), &options).unwrap();
        let wanted = raw_accesses(&path);
        let pages: std::collections::BTreeSet<_> = wanted.iter().map(|access| access.gva().page().0).collect();
        let all = items(&place.trace());
        let seen: std::collections::BTreeSet<_> = all
            .iter()
            .filter_map(|item| match item {
                Item::Access(_, access) => Some(access.gva().page().0),
                Item::Touch(_, page, _) => Some(*page),
                _ => None,
            })
            .collect();
        assert_eq!(seen, pages);
        assert_eq!(report.metadata.footprint_pages, pages.len() as u64);
        assert_eq!(report.accesses, 8 * 70_000);
        check(&place.path("trace.nwt")).unwrap();
    }
}
