// SPDX-License-Identifier: MIT OR Apache-2.0
//! Cuts the measured part of a run into windows, for confidence intervals.
//!
//! A sampled run has windows by nature. A run that is measured in one go is cut into pieces;
//! whether it was, is known only at the end, so pieces are always recorded, and joined where there
//! is more than one natural window. Pieces of two windows are no substitute for more windows: they
//! say how one stretch of the program scatters, not how its stretches differ.

use nestwalk_workload::{Modelled, ModelledSample};
use schemars::JsonSchema;
use serde::Serialize;

use crate::waiting::Sampled;

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
    /// What the model of the capture counted in it, where that chose the windows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub modelled: Option<Modelled>,
    /// Latency of its data beyond L1-D hits, and what was sampled of its waiting.
    #[serde(skip)]
    pub(crate) latency: Latency,
}

/// What time is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Latency {
    /// Of data beyond L1-D hits, cycles.
    pub data: u64,
    /// What was sampled of waiting.
    pub sampled: Sampled,
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
    /// What is known of the natural windows beforehand.
    modelled: Option<ModelledSample>,
}

impl Windows {
    /// Pieces have at most `piece_accesses_max` accesses. `modelled`: what is known of the natural
    /// windows beforehand.
    pub fn new(piece_accesses_max: u64, modelled: Option<ModelledSample>) -> Self {
        Self { piece_accesses_max: piece_accesses_max.max(1), pieces: Vec::new(), natural: 0, modelled }
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
        if natural.len() < 2 {
            return self.pieces.into_iter().map(|(_, window)| window).collect();
        }
        natural.into_iter().map(|(id, window)| Window { modelled: self.modelled(id, &window), ..window }).collect()
    }

    /// What is known of the natural window `id`, counted from 1, if `window` is it and was measured
    /// whole: the last access of a stretch may stand for some beyond it.
    fn modelled(&self, id: u32, window: &Window) -> Option<Modelled> {
        let known = *self.modelled.as_ref()?.windows.get((id as usize).checked_sub(1)?)?;
        (known.accesses.abs_diff(window.accesses) <= known.accesses / 100).then_some(known)
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
            latency: Latency {
                data: self.latency.data + other.latency.data,
                sampled: self.latency.sampled.plus(&other.latency.sampled),
            },
            modelled: match (self.modelled, other.modelled) {
                (Some(mine), Some(its)) => Some(mine.plus(&its)),
                (None, its) if self.accesses == 0 => its,
                _ => None,
            },
        }
    }
}

impl Window {
    /// The same with the times that `whole`, what was sampled in all windows, says. Latencies are
    /// taken by its shares; by what the samples of this window are off from these, it is, too.
    #[must_use]
    pub(crate) fn timed(self, whole: &Sampled) -> Self {
        let Latency { data, sampled: own } = self.latency;
        let part = |time: fn(&Sampled) -> (u64, u64), latency: u64| {
            let ((time, per), (own_time, own_per)) = (time(whole), time(&own));
            if per == 0 {
                return 0;
            }
            let by_share = |latency: u64| time as f64 / per as f64 * latency as f64;
            let off = own_time as f64 - by_share(own_per);
            let scale = if own.accesses == 0 { 0.0 } else { self.accesses as f64 / own.accesses as f64 };
            // A float that is too large or negative becomes the nearest number.
            ((by_share(latency) + off * scale) / 1000.0) as u64
        };
        let cycles = CyclesByPart {
            work: part(|sampled| (sampled.work, sampled.instructions), self.instructions),
            data: part(|sampled| (sampled.data, sampled.data_latency), data),
            walk: part(|sampled| (sampled.walk, sampled.walk_latency), self.walk_cycles),
            os: self.cycles.os,
        };
        Self { cycles, ..self }
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
        let mut windows = Windows::new(10, None);
        windows.begin();
        (1..=4).for_each(|n| windows.add(piece(n)));
        assert_eq!(windows.finish().len(), 4);
    }

    #[test]
    fn two_windows_are_two_however_many_pieces_they_have() {
        let mut windows = Windows::new(10, None);
        for _ in 0..2 {
            windows.begin();
            (1..=4).for_each(|n| windows.add(piece(n)));
        }
        let found: Vec<(u64, u64)> = windows.finish().iter().map(|w| (w.accesses, 1)).collect();
        assert_eq!(found, [(10, 1), (10, 1)]);
        assert_eq!(crate::estimate::ratio(&found).unwrap().ci95, None);
    }

    #[test]
    fn what_is_known_of_a_window_goes_with_it_if_it_was_measured_whole() {
        let known = |accesses| Modelled { accesses, walks: accesses / 2, ..Modelled::default() };
        let known_windows = vec![known(200), known(300), known(400)];
        let sample = ModelledSample { program: known(5000), windows: known_windows };
        let mut windows = Windows::new(1000, Some(sample));
        for accesses in [201, 0, 390] {
            windows.begin();
            windows.add(piece(accesses));
        }
        let windows = windows.finish();
        let found: Vec<_> = windows.iter().map(|window| window.modelled).collect();
        assert_eq!(found, [Some(known(200)), None]);
        let sum = |windows: &[Window]| windows.iter().fold(Window::default(), |sum, window| sum.plus(window)).modelled;
        assert_eq!((sum(&windows[..1]), sum(&windows)), (Some(known(200)), None));
    }

    #[test]
    fn pieces_of_natural_windows_are_joined_and_empty_ones_dropped() {
        let mut windows = Windows::new(10, None);
        for _ in 0..3 {
            windows.begin();
            windows.add(piece(2));
            windows.add(piece(0));
            windows.add(piece(3));
        }
        assert_eq!(windows.finish().iter().map(|w| w.accesses).collect::<Vec<_>>(), [5, 5, 5]);
    }
}
