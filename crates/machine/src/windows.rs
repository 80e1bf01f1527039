// SPDX-License-Identifier: MIT OR Apache-2.0
//! Cuts the measured part of a run into windows, for confidence intervals.
//!
//! A sampled run has windows by nature. A run that is measured in one go is cut into pieces;
//! whether it was, is known only at the end, so pieces are always recorded, and joined where there
//! is more than one natural window. Pieces of two windows are no substitute for more windows: they
//! say how one stretch of the program scatters, not how its stretches differ.

use schemars::JsonSchema;
use serde::Serialize;

/// The counters of one measured window.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, JsonSchema)]
pub struct Window {
    /// Data accesses.
    pub accesses: u64,
    /// Instructions, the accesses' own included.
    pub instructions: u64,
    /// TLB misses that went to a walker.
    pub walks: u64,
    /// Their latency.
    pub walk_cycles: u64,
    /// References to tables.
    pub walk_references: u64,
    /// Estimated time by what it is spent on.
    pub cycles: CyclesByPart,
}

/// Estimated cycles by what they are spent on (`docs/model.md`, "Time").
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, JsonSchema)]
#[schemars(rename = "Cycles")]
pub struct CyclesByPart {
    /// The program's own instructions.
    pub work: u64,
    /// Data latency beyond L1 that is not overlapped.
    pub data: u64,
    /// Walk cycles on the critical path.
    pub walk: u64,
    /// Kernel events.
    pub os: u64,
}

impl CyclesByPart {
    /// All of them.
    pub const fn total(self) -> u64 {
        self.work + self.data + self.walk + self.os
    }
}

/// Collects windows.
#[derive(Debug)]
pub struct Windows {
    piece_accesses_max: u64,
    /// The natural window of each piece, and the piece.
    pieces: Vec<(u32, Window)>,
    natural: u32,
}

impl Windows {
    /// Pieces have at most `piece_accesses_max` accesses.
    pub fn new(piece_accesses_max: u64) -> Self {
        Self { piece_accesses_max: piece_accesses_max.max(1), pieces: Vec::new(), natural: 0 }
    }

    /// How many accesses a piece has at the most.
    pub fn piece_accesses_max(&self) -> u64 {
        self.piece_accesses_max
    }

    /// A natural window begins.
    pub fn begin(&mut self) {
        self.natural += 1;
    }

    /// A piece of the present natural window.
    pub fn add(&mut self, piece: Window) {
        if piece.accesses > 0 {
            self.pieces.push((self.natural, piece));
        }
    }

    /// The windows: the natural ones if there are several, else the pieces.
    pub fn finish(self) -> Vec<Window> {
        let mut natural: Vec<(u32, Window)> = Vec::new();
        for &(id, piece) in &self.pieces {
            match natural.last_mut() {
                Some((last, window)) if *last == id => *window = window.plus(&piece),
                _ => natural.push((id, piece)),
            }
        }
        let windows = if natural.len() > 1 { natural } else { self.pieces };
        windows.into_iter().map(|(_, window)| window).collect()
    }
}

impl Window {
    /// Both together.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        Self {
            accesses: self.accesses + other.accesses,
            instructions: self.instructions + other.instructions,
            walks: self.walks + other.walks,
            walk_cycles: self.walk_cycles + other.walk_cycles,
            walk_references: self.walk_references + other.walk_references,
            cycles: CyclesByPart {
                work: self.cycles.work + other.cycles.work,
                data: self.cycles.data + other.cycles.data,
                walk: self.cycles.walk + other.cycles.walk,
                os: self.cycles.os + other.cycles.os,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(accesses: u64) -> Window {
        Window { accesses, ..Default::default() }
    }

    #[test]
    fn pieces_of_one_long_window_stay_apart() {
        let mut windows = Windows::new(10);
        windows.begin();
        (1..=4).for_each(|n| windows.add(piece(n)));
        assert_eq!(windows.finish().len(), 4);
    }

    #[test]
    fn two_windows_are_two_however_many_pieces_they_have() {
        let mut windows = Windows::new(10);
        for _ in 0..2 {
            windows.begin();
            (1..=4).for_each(|n| windows.add(piece(n)));
        }
        let found: Vec<(u64, u64)> = windows.finish().iter().map(|w| (w.accesses, 1)).collect();
        assert_eq!(found, [(10, 1), (10, 1)]);
        assert_eq!(crate::estimate::ratio(&found).unwrap().ci95, None);
    }

    #[test]
    fn pieces_of_natural_windows_are_joined_and_empty_ones_dropped() {
        let mut windows = Windows::new(10);
        for _ in 0..3 {
            windows.begin();
            windows.add(piece(2));
            windows.add(piece(0));
            windows.add(piece(3));
        }
        assert_eq!(windows.finish().iter().map(|w| w.accesses).collect::<Vec<_>>(), [5, 5, 5]);
    }
}
