// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a text does to the match finder of xz: shares that `capture/programs/match_trees.c` counts
//! in a file, and prints as the table `text` of a scenario.
//!
//! A *way* is the nodes that a position meets as it goes down the tree of its four bytes, from near
//! to far. Its first node is where these four bytes were last, that one's first node where they
//! were before, and so on: the *chain*. All nodes of a tree are on its chain.

use std::slice;

use serde::{Deserialize, Serialize};

use super::config::impossible;
use crate::stream::WorkloadError;

/// Octaves at most: a dictionary is smaller than 2 GiB.
const OCTAVES_MAX: usize = 31;

/// Counts of a text, as shares of a thousand. Octave n is the distances from 2^n to 2^(n+1) bytes.
/// The defaults are those of a tar file of Linux' source, with a dictionary of 64 MiB.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TextConfig {
    /// For each octave of the first node of the position before: those whose first node is the
    /// same one, as far back, if the position before had not done so itself.
    pub again: Vec<u16>,
    /// The same, if it had.
    pub again_after: Vec<u16>,
    /// For each octave of the first node of the position before, if it is not the same and there
    /// were others: those whose first node is one of these, as far back.
    pub next: Vec<u16>,
    /// For each octave: nodes of the position before, further than the first node, that are met
    /// again, as far back, if the first node is not the same.
    pub kept: Vec<u16>,
    /// The same, if it is.
    pub kept_again: Vec<u16>,
    /// Of all other positions, those whose first node is in each octave. What is missing to 1000
    /// has no node.
    pub first: Vec<u16>,
    /// For each octave: positions that meet a node there that the position before did not, of those
    /// whose first node is nearer, and not the same as the one before's.
    pub others: Vec<u16>,
    /// The same of those whose first node is the same.
    pub others_again: Vec<u16>,
    /// How often such another node was on the way of the first one up the chain, if that way had
    /// any node in the octave; of the second one up, if it was not on the first one's; and so on.
    pub chain: Vec<u16>,
    /// Nodes whose text agrees where it is compared first.
    pub agree: u16,
    /// Positions in a match of 64 bytes or more, which is passed over (`lzma_mf_skip`).
    pub passed: u16,
    /// Of the others, those where the hash of three bytes found another place than that of two.
    pub other_place: u16,
}

impl Default for TextConfig {
    fn default() -> Self {
        Self {
            again: vec![
                689, 308, 394, 722, 749, 730, 653, 627, 601, 581, 535, 476, 425, 390, 339, 317, 253, 217, 193, 147,
                125, 100, 79, 78, 57, 45,
            ],
            again_after: vec![
                934, 250, 420, 691, 789, 844, 806, 773, 719, 682, 643, 606, 567, 551, 519, 472, 415, 360, 351, 268,
                256, 212, 176, 165, 165, 148,
            ],
            next: vec![
                873, 918, 835, 862, 805, 675, 569, 460, 403, 357, 319, 305, 297, 286, 272, 236, 215, 176, 148, 129,
                115, 97, 79, 70, 46, 29,
            ],
            kept: vec![
                0, 0, 358, 293, 553, 689, 617, 659, 667, 670, 655, 634, 615, 590, 555, 545, 513, 510, 499, 486, 462,
                434, 443, 466, 450, 429,
            ],
            kept_again: vec![
                0, 0, 321, 854, 848, 922, 951, 948, 942, 933, 922, 910, 900, 892, 866, 854, 826, 816, 805, 783, 757,
                713, 717, 722, 696, 683,
            ],
            first: vec![
                14, 0, 7, 29, 61, 102, 89, 81, 77, 68, 54, 47, 44, 43, 41, 40, 37, 33, 26, 21, 17, 16, 12, 13, 8, 7,
            ],
            others: vec![
                0, 0, 3, 23, 135, 184, 315, 257, 267, 270, 270, 270, 267, 268, 275, 302, 314, 363, 364, 362, 365, 431,
                469, 588, 518, 536,
            ],
            others_again: vec![
                0, 0, 0, 1, 8, 14, 29, 47, 35, 41, 46, 52, 58, 63, 69, 82, 89, 110, 117, 118, 120, 146, 164, 218, 196,
                217,
            ],
            chain: vec![381, 226, 155, 124, 103, 90, 76, 71, 62, 59, 52, 51, 45, 44, 40, 38],
            agree: 574,
            passed: 223,
            other_place: 446,
        }
    }
}

impl TextConfig {
    /// Of an octave's share of a list; none beyond its end.
    pub(super) fn of(shares: &[u16], distance: u64) -> u64 {
        shares.get(distance.ilog2() as usize).copied().unwrap_or(0).into()
    }

    /// # Errors
    /// When a share is above 1000, shares of first nodes are so together (a little more is taken
    /// for rounding), there are more octaves than a dictionary has, or `others` and `others_again`
    /// have not as many.
    pub(super) fn check(&self, name: &str) -> Result<(), WorkloadError> {
        let lists: [(&str, &[u16], usize); 12] = [
            ("again", &self.again, OCTAVES_MAX),
            ("again_after", &self.again_after, OCTAVES_MAX),
            ("next", &self.next, OCTAVES_MAX),
            ("kept", &self.kept, OCTAVES_MAX),
            ("kept_again", &self.kept_again, OCTAVES_MAX),
            ("first", &self.first, OCTAVES_MAX),
            ("others", &self.others, OCTAVES_MAX),
            ("others_again", &self.others_again, OCTAVES_MAX),
            ("chain", &self.chain, usize::MAX),
            ("agree", slice::from_ref(&self.agree), 1),
            ("passed", slice::from_ref(&self.passed), 1),
            ("other_place", slice::from_ref(&self.other_place), 1),
        ];
        for (key, shares, most) in lists {
            if let Some(share) = shares.iter().find(|share| **share > 1000) {
                return Err(impossible(name, format!("text.{key}: {share} of a thousand")));
            }
            if shares.len() > most {
                return Err(impossible(name, format!("text.{key}: {} octaves, at most {most}", shares.len())));
            }
        }
        let first: u32 = self.first.iter().map(|share| u32::from(*share)).sum();
        if first > 1000 + OCTAVES_MAX as u32 / 2 {
            return Err(impossible(name, format!("text.first: {first} of a thousand in all")));
        }
        if self.others.len() != self.others_again.len() {
            return Err(impossible(name, "text.others_again: has not as many octaves as text.others"));
        }
        Ok(())
    }
}
