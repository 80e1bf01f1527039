// SPDX-License-Identifier: MIT OR Apache-2.0
//! The simulated kernel scatters memory as the real one did: the patterns of `linux/data`, measured
//! on Linux 6.1, replayed.

use std::collections::BTreeMap;

use nestwalk_machine::patterns::{TouchOrder, boot};
use nestwalk_os::ManagerConfig;
use nestwalk_os::fragmentation::Fragmentation;
use nestwalk_os::manager::ptemagnet::PteMagnetConfig;

/// By how much the means over the boots may differ, in lines a group. The real boots among
/// themselves differ by up to 1.8.
const MEAN_MARGIN: f64 = 0.75;
/// By how much the share of groups on a number of lines may differ.
const SHARE_MARGIN: f64 = 0.15;

type Cells = BTreeMap<(String, bool), Vec<Fragmentation>>;

/// What the real kernel gave, by pattern and whether the order was random, boot by boot.
fn real(kind: &str) -> Cells {
    let path = format!("{}/../../linux/data/{kind}-6.1.192.json", env!("CARGO_MANIFEST_DIR"));
    let document: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let mut cells = Cells::new();
    for run in document["runs"].as_array().unwrap() {
        let distribution = serde_json::from_value(run["distribution"].clone()).unwrap();
        let cell = (run["tag"].as_str().unwrap().to_owned(), run["order"] == "rand");
        cells.entry(cell).or_default().push(Fragmentation { distribution });
    }
    cells
}

/// The same on the simulated kernel, with as many boots.
fn simulated(manager: &ManagerConfig, boots: u64) -> Cells {
    let mut cells = Cells::new();
    for seed in 1..=boots {
        for one in boot(manager.clone(), seed).unwrap() {
            let cell = (one.tag.to_owned(), one.order == TouchOrder::Random);
            cells.entry(cell).or_default().push(one.fragmentation);
        }
    }
    cells
}

fn mean(boots: &[Fragmentation]) -> f64 {
    boots.iter().map(|one| one.average().unwrap()).sum::<f64>() / boots.len() as f64
}

/// The share of all groups that lie on `lines` lines.
fn share(boots: &[Fragmentation], lines: usize) -> f64 {
    let on_lines: u64 = boots.iter().map(|one| one.distribution[lines - 1]).sum();
    on_lines as f64 / boots.iter().map(Fragmentation::groups).sum::<u64>() as f64
}

#[test]
fn the_stock_kernel_scatters_as_linux_does() {
    let (real, simulated) = (real("stock"), simulated(&ManagerConfig::Linux4k, 5));
    assert_eq!(real.keys().collect::<Vec<_>>(), simulated.keys().collect::<Vec<_>>());
    for (cell, boots) in &simulated {
        let (ours, theirs) = (mean(boots), mean(&real[cell]));
        let margin = if cell.1 { 0.01 } else { MEAN_MARGIN };
        assert!((ours - theirs).abs() <= margin, "{cell:?}: {ours:.3}, the real kernel {theirs:.3}");
        for lines in 1..=8 {
            let (ours, theirs) = (share(boots, lines), share(&real[cell], lines));
            let differ = (ours - theirs).abs();
            assert!(differ <= SHARE_MARGIN, "{cell:?}: {ours:.3} on {lines} lines, the real kernel {theirs:.3}");
        }
    }
}

#[test]
fn with_ptemagnet_every_pattern_is_exactly_one_as_with_the_kernel_series() {
    let magnet = ManagerConfig::PteMagnet(PteMagnetConfig::default());
    let (real, simulated) = (real("nestwalk"), simulated(&magnet, 2));
    for (cell, boots) in &simulated {
        assert_eq!(boots, &real[cell], "{cell:?}");
        assert!(boots.iter().all(|one| one.distribution == [4096, 0, 0, 0, 0, 0, 0, 0]), "{cell:?}");
    }
}

#[test]
fn a_boot_is_the_same_every_time() {
    let again = || simulated(&ManagerConfig::Linux4k, 1);
    assert_eq!(again(), again());
}
