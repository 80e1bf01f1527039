// SPDX-License-Identifier: MIT OR Apache-2.0
//! A program that ends, played for the tests of generators.

use std::collections::BTreeSet;

use nestwalk_mem::Vpn;

use crate::stream::{Batch, MemoryEvent, Phase, Step, Workload};

/// The parameters of a small program, and `more`.
pub(in crate::generator) fn config<T: serde::de::DeserializeOwned>(more: &str) -> T {
    let common = "footprint = '24 MiB'\nwarm_accesses = 40_000\nmeasured_accesses = 200_000";
    let mut table: toml::Table = toml::from_str(common).unwrap();
    table.extend(toml::from_str::<toml::Table>(more).unwrap());
    table.try_into().unwrap()
}

/// All that a run does, page by page.
#[derive(Default)]
pub(in crate::generator) struct Played {
    pub(in crate::generator) mapped: BTreeSet<Vpn>,
    /// Pages that its mappings have in use, at the most of all moments.
    pub(in crate::generator) used: BTreeSet<Vpn>,
    pub(in crate::generator) used_max: usize,
    /// Accesses to pages that were not touched before.
    pub(in crate::generator) early: u64,
    pub(in crate::generator) measured: u64,
    pub(in crate::generator) warmed: u64,
    pub(in crate::generator) windows: u64,
    pub(in crate::generator) instructions: u64,
    pub(in crate::generator) read: Vec<u64>,
    pub(in crate::generator) accesses: u64,
}

/// Plays a program to its end. What it uses is mapped, and touched by stores.
pub(in crate::generator) fn play(mut program: impl Workload) -> Played {
    let (mut played, mut batch) = (Played::default(), Batch::default());
    let mut phase = Phase::Populate;
    loop {
        let step = program.next(&mut batch).unwrap();
        played.instructions += batch.instructions;
        match step {
            Step::Phase(next) => {
                phase = next;
                played.windows += u64::from(phase == Phase::Measure);
            }
            Step::Event(MemoryEvent::Mmap { range, writable: true, anonymous: true }) => {
                for page in (range.start.0..range.end.0).map(Vpn) {
                    assert!(played.mapped.insert(page), "{page:?} is mapped twice");
                }
            }
            Step::Event(MemoryEvent::Munmap { range }) => {
                for page in (range.start.0..range.end.0).map(Vpn) {
                    assert!(played.mapped.remove(&page), "{page:?} is not mapped");
                    played.used.remove(&page);
                }
            }
            Step::Event(MemoryEvent::ReadFile { file, .. }) => played.read.push(file),
            Step::Event(event) => panic!("{event:?}"),
            Step::Touches => {
                assert!(!batch.touches.is_empty());
                for &(page, store) in &batch.touches {
                    assert!(store && played.mapped.contains(&page), "{page:?} is not mapped");
                    played.used.insert(page);
                }
            }
            Step::Accesses => {
                for access in &batch.accesses {
                    let page = Vpn(access.gva().page().0);
                    assert!(played.mapped.contains(&page), "{access:?} is not mapped");
                    played.early += u64::from(played.used.insert(page));
                }
                let count = batch.accesses.len() as u64;
                if phase == Phase::Measure { played.measured += count } else { played.warmed += count }
            }
            Step::End => {
                played.accesses = program.program_accesses().unwrap();
                return played;
            }
        }
        played.used_max = played.used_max.max(played.used.len());
    }
}
