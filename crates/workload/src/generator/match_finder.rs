// SPDX-License-Identifier: MIT OR Apache-2.0
//! `match_finder`: SPEC CPU's xz, LZMA compression with the binary-tree match finder (`bt4` of
//! `xz -9`).
//!
//! Memory, as liblzma has it for a dictionary of D bytes: the window (D and a half), the hash table
//! (4 bytes for each of about D/4 slots), and the trees (`son`: two 4-byte positions a byte of the
//! window, 8 D); one mapping. With 64 MiB that is the 674 MiB of `xz -9`.
//!
//! An operation handles a position: eight bytes of the window in order, a slot of the hash table
//! (random: a hash of four bytes), then down the tree of that hash: at each node its pair of sons
//! and the window there, compared word by word. Positions in a tree are far back as often as near
//! (distances uniform in their logarithm); a descent takes 8 nodes (assumed; `nice_len` and `depth`
//! bound it at 48).

use nestwalk_mem::{Access, Vpn};

use super::bijection::{Dice, mix};
use super::config::parameters;
use super::layout::Layout;
use super::memory::{Region, Sweep};
use super::pattern::Pattern;
use crate::stream::WorkloadError;

const DESCENT: u64 = 8;
const SON: u64 = 8;
const SLOT: u64 = 4;
/// Pages in a thousand: window 1.5 D, slots D (4 bytes for each of D/4), sons 8 D.
const WINDOW_PERMILLE: u64 = 143;
const SLOTS_PERMILLE: u64 = 95;

parameters! {
    /// LZMA's match finder. Local accesses and instructions as measured of `xz -9`.
    MatchFinderConfig mixed(934, 3722, 8) {}
}

pub(super) struct MatchFinder {
    layout: Layout,
    window: Region,
    slots: Region,
    sons: Region,
    dictionary: u64,
    /// Of each thread (each compresses a block of its own): the position.
    positions: Vec<u64>,
    sweep: Sweep,
    dice: Vec<Dice>,
}

impl MatchFinder {
    pub(super) fn new(config: &MatchFinderConfig) -> Result<Self, WorkloadError> {
        let mut layout = Layout::new(Self::NAME, config.common(), config.mixture())?;
        let all = layout.left();
        let window = layout.map_share(all, WINDOW_PERMILLE);
        let slots = layout.map_share(all, SLOTS_PERMILLE);
        let sons = layout.map(layout.left());
        let dictionary = (sons.bytes() / SON).min(window.bytes()) - 64;
        let threads = u64::from(config.threads);
        Ok(Self {
            sweep: Sweep::new(vec![vec![slots], vec![window, sons]], config.threads),
            layout,
            window,
            slots,
            sons,
            dictionary,
            positions: (0..threads).map(|thread| dictionary * thread / threads).collect(),
            dice: Dice::of_threads(config.seed, config.threads),
        })
    }

    /// A position some way back from `from`: half of the draws in each power of two of distance.
    fn back(&self, from: u64, dice: &mut Dice) -> u64 {
        let power = dice.below(u64::from(self.dictionary.ilog2()) - 2) + 2;
        let distance = (1 << power) + dice.below(1 << power);
        (from + self.dictionary - distance % self.dictionary) % self.dictionary
    }
}

impl Pattern for MatchFinder {
    const NAME: &'static str = "match_finder";

    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn touch(&mut self, thread: u16, touches: &mut Vec<(Vpn, bool)>, most: usize) {
        self.sweep.touch(thread, touches, most);
    }

    fn operate(&mut self, thread: usize, accesses: &mut Vec<Access>) {
        let position = self.positions[thread];
        self.positions[thread] = (position + 1) % self.dictionary;
        let mut dice = self.dice[thread].clone();
        accesses.extend((0..8).map(|byte| Access::load(self.window.at(position + byte))));
        let slot = mix(dice.below(u64::MAX)) % (self.slots.bytes() / SLOT);
        let slot = self.slots.at(slot * SLOT);
        accesses.extend([Access::load(slot), Access::store(slot)]);
        let mut node = position;
        for _ in 0..DESCENT {
            node = self.back(node, &mut dice);
            accesses.push(Access::load(self.window.at(node)));
            accesses.push(Access::load(self.window.at(node + 8)));
            let pair = self.sons.at(node * SON);
            accesses.push(Access::load(pair));
        }
        accesses.push(Access::store(self.sons.at(position * SON)));
        accesses.push(Access::store(self.sons.at(node * SON)));
        self.dice[thread] = dice;
    }
}
