// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is known of a sample of a program, and of all of it, before anything is simulated.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What the model of a capture counted, of a sample and of what it is a sample of.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ModelledSample {
    /// Of the program from where sampling begins, as far as the model saw that.
    pub program: Modelled,
    /// Of the measured part of each window.
    pub windows: Vec<Modelled>,
}

/// What the model of a capture counted in a part of the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Modelled {
    /// Accesses.
    pub accesses: u64,
    /// Misses of its TLB.
    pub walks: u64,
    /// What they cost.
    pub walk_cycles: u64,
    /// What the accesses that the filter kept cost in its caches.
    pub data_cycles: u64,
}

impl ModelledSample {
    /// How far the windows are from the program, in walks, walk cycles or data cycles an access,
    /// whichever is furthest off, as a share.
    pub fn off(&self) -> f64 {
        let sum = self.windows.iter().fold(Modelled::default(), |sum, window| sum.plus(window));
        sum.relative_to(&self.program).into_iter().map(|relative| (relative - 1.0).abs()).fold(0.0, f64::max)
    }
}

impl Modelled {
    /// Walks an access, walk cycles an access and data cycles an access, as multiples of those of
    /// `all`; 1 where both have none.
    pub fn relative_to(&self, all: &Self) -> [f64; 3] {
        let rate = |sum: u64, of: &Self| sum as f64 / of.accesses.max(1) as f64;
        let relative = |part: fn(&Self) -> u64| {
            let (mine, its) = (rate(part(self), self), rate(part(all), all));
            if mine == its { 1.0 } else { mine / its }
        };
        [relative(|it| it.walks), relative(|it| it.walk_cycles), relative(|it| it.data_cycles)]
    }

    /// All that was counted: of time, but for the instructions and what the filter absorbed.
    pub const fn cycles(&self) -> u64 {
        self.walk_cycles + self.data_cycles
    }

    /// Both together.
    #[must_use]
    pub const fn plus(&self, other: &Self) -> Self {
        Self {
            accesses: self.accesses + other.accesses,
            walks: self.walks + other.walks,
            walk_cycles: self.walk_cycles + other.walk_cycles,
            data_cycles: self.data_cycles + other.data_cycles,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_held_against_those_of_all() {
        let all = Modelled { accesses: 1000, walks: 100, walk_cycles: 5000, data_cycles: 0 };
        let part = Modelled { accesses: 100, walks: 20, walk_cycles: 250, data_cycles: 0 };
        assert_eq!(part.relative_to(&all), [2.0, 0.5, 1.0]);
        assert_eq!(all.relative_to(&all), [1.0; 3]);
        assert_eq!(part.plus(&all).walks, 120);
        assert_eq!(part.cycles(), 250);
        assert_eq!(ModelledSample { program: all, windows: vec![part, part] }.off(), 1.0);
        assert_eq!(ModelledSample { program: all, windows: vec![all, all] }.off(), 0.0);
    }
}
