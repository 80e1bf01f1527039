// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is computed, and how much of the graph is active in each step of it.

use serde::{Deserialize, Serialize};

use crate::generator::bijection::mix;

/// What is computed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Algorithm {
    /// PageRank, all edges in each step.
    PageRank,
    /// Connected components by label propagation, until no label changes.
    Components,
    /// Breadth-first search.
    BreadthFirst,
    /// PageRank-Nibble (local clustering), ten steps from one vertex.
    Nibble,
}

/// One pass of scatter and gather. Shares are in millionths.
pub(super) struct Step {
    /// Of partitions, those in which scatter is dense.
    pub(super) dense: u32,
    /// Of the others' vertices and edges, those that are active.
    pub(super) vertices: u32,
    pub(super) edges: u32,
    /// Of gathered edges, those that change their target; and those that make it active.
    pub(super) changes: u32,
    pub(super) activates: u32,
}

const fn step(dense: u32, vertices: u32, edges: u32, changes: u32, activates: u32) -> Step {
    Step { dense, vertices, edges, changes, activates }
}

/// Which vertices are active where a step is sparse: of a share of all (in millionths, in random
/// order) those whose lists are not longer than so many edges. Short lists are more often active
/// than long ones in what GPOP counted, as nibble's threshold grows with the degree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Activity {
    pub(super) candidates: u32,
    pub(super) longest: u64,
}

impl Activity {
    /// That of `step`, so that both its vertices and its edges are as many as counted. `lengths`
    /// has the length of each list, ascending. Where long lists are more often active, all lengths
    /// are alike.
    pub(super) fn of(step: &Step, lengths: &[u64]) -> Self {
        let all = lengths.iter().sum::<u64>() as f64 / lengths.len() as f64;
        let wanted = all * f64::from(step.edges) / f64::from(step.vertices.max(1));
        let mut sum = 0;
        let short = lengths.iter().zip(1..).take_while(|&(length, count)| {
            sum += length;
            wanted >= all || sum as f64 <= wanted * f64::from(count)
        });
        let Some((&longest, count)) = short.last() else { return Self { candidates: step.vertices, longest: 0 } };
        let longest = if count as usize == lengths.len() { u64::MAX } else { longest };
        let candidates = f64::from(step.vertices) * lengths.len() as f64 / f64::from(count);
        Self { candidates: candidates.min(1e6) as u32, longest }
    }
}

impl Algorithm {
    /// Its steps. Those with less than a thousandth of the edges are left out: the last ones of
    /// components and search, the first ones of search and nibble. Not counted but assumed: which
    /// share of vertices is active where components are sparse (58,000), and how many edges of
    /// nibble's last step make their target active (85,000).
    pub(super) const fn steps(self) -> &'static [Step] {
        const ALL: u32 = 1_000_000;
        match self {
            Self::PageRank => const { &[step(ALL, 0, 0, ALL, 0)] },
            Self::Components => const { &[step(ALL, 0, 0, 161_331, 18_665), step(718_750, 58_000, 37_000, 174, 57)] },
            Self::BreadthFirst => {
                const {
                    &[
                        step(0, 9_970, 7_918, 615_160, 615_160),
                        step(218_750, 170_000, 146_440, 65_159, 65_159),
                        step(ALL, 0, 0, 1_779, 1_779),
                        step(31_250, 62_000, 72_530, 2, 2),
                    ]
                }
            }
            Self::Nibble => {
                const {
                    &[
                        step(0, 9_827, 5_163, ALL, 618_043),
                        step(0, 70_432, 22_340, ALL, 394_463),
                        step(0, 177_988, 46_726, ALL, 263_444),
                        step(0, 284_264, 73_161, ALL, 187_157),
                        step(0, 380_989, 99_822, ALL, 137_912),
                        step(0, 462_543, 124_870, ALL, 105_352),
                        step(0, 527_916, 147_039, ALL, 85_000),
                    ]
                }
            }
        }
    }
}

/// Whether one of many is among a `share` in millionths.
pub(super) fn among(share: u32, random: u64) -> bool {
    random % 1_000_000 < share.into()
}

/// Whether a partition's scatter is dense in a step.
pub(super) fn is_dense(step: &Step, partition: u64) -> bool {
    among(step.dense, mix(partition))
}
