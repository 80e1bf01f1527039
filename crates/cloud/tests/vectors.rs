// SPDX-License-Identifier: MIT OR Apache-2.0
//! The two options of Compromis against vectors that an independent program made, some by hand:
//! those that hold the Nova plugin to the same rule (`nova/tests/vectors.json`).

use std::path::Path;

use nestwalk_cloud::allocator::AllocatorOptions;
use nestwalk_cloud::{AllocatorKind, SegmentAllocator};
use nestwalk_mem::{Frame, FrameRange, PageCount};
use serde::Deserialize;

#[derive(Deserialize)]
struct Vectors {
    vectors: Vec<Vector>,
}

#[derive(Deserialize)]
struct Vector {
    name: String,
    free: Vec<(u64, u64)>,
    request: u64,
    opt1: Option<Expected>,
    opt2: Option<Expected>,
}

#[derive(Deserialize)]
struct Expected {
    segments: usize,
    pieces: Vec<(u64, u64)>,
    free_after: Vec<(u64, u64)>,
}

fn pairs(ranges: impl IntoIterator<Item = FrameRange>) -> Vec<(u64, u64)> {
    ranges.into_iter().map(|range| (range.start.0, range.count.0)).collect()
}

#[test]
fn both_options_give_what_the_nova_plugin_expects() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../nova/tests/vectors.json");
    let Ok(text) = std::fs::read_to_string(&path) else {
        eprintln!("skipped: there is no {}", path.display());
        return;
    };
    let Vectors { vectors } = serde_json::from_str(&text).expect("the vectors are well-formed");
    assert!(vectors.len() > 20);
    for vector in &vectors {
        let free: Vec<FrameRange> =
            vector.free.iter().map(|&(start, count)| FrameRange::new(Frame(start), PageCount(count))).collect();
        let options = [(AllocatorKind::CompromisOpt1, &vector.opt1), (AllocatorKind::CompromisOpt2, &vector.opt2)];
        for (kind, expected) in options {
            let mut allocator = kind.build(&free, &AllocatorOptions::default());
            let mut extents = Vec::new();
            let done = allocator.allocate(PageCount(vector.request), 0, &mut extents);
            assert_eq!(done, expected.is_some(), "{}: {kind:?}", vector.name);
            let Some(expected) = expected else { continue };
            assert_eq!(
                pairs(extents.iter().map(|extent| extent.range())),
                expected.pieces,
                "{}: {kind:?}",
                vector.name
            );
            assert_eq!(extents.len(), expected.segments);
            assert_eq!(pairs(allocator.free_segments()), expected.free_after, "{}: {kind:?}", vector.name);
        }
    }
}
