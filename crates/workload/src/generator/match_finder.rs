// SPDX-License-Identifier: MIT OR Apache-2.0
//! `match_finder`: SPEC CPU's xz, LZMA compression with the binary-tree match finder (`bt4` of
//! `xz -9`).
//!
//! **Memory**, as liblzma 5.4 has it (`lz_encoder.c`) for a dictionary of D bytes, in the order in
//! which it is mapped: the window (D and a half), the hash tables (positions of 4 bytes: 1024 by
//! two bytes, 65,536 by three, and by four bytes about D/2 for dictionaries up to 32 MiB, D/4
//! above), and the trees (`son`: two positions a byte of the dictionary, 8 D). With 64 MiB that is
//! the 674 MiB of `xz -9`. A thread has its own.
//!
//! **A position** (`lzma_mf_bt4_find`, `bt_find_func`) hashes its next 2, 3 and 4 bytes, takes the
//! last position of each hash and puts itself there, and looks at the text at the first two. From
//! the third it goes down the tree of that hash: at each node it compares the text there with its
//! own, hangs the node to the side where it belongs, and goes on with one of its two sons. A node
//! is older than the one above it, so distances grow on the way. The way ends where there is no
//! node, or none in the dictionary, or where 64 bytes agree (`nice_len`), and after 48 nodes.
//!
//! **What a text does to that**, counted in a tar file of Linux' source with a dictionary of 64 MiB
//! that is full (`docs/model.md`): while the text repeats, a position finds what the one before it
//! found, a byte further. So most nodes have the distance of a node of the way before ([`AGAIN`],
//! [`KEPT`]), their pairs and their text lie right behind those, and only the others are drawn: the
//! first by [`FIRST`], as far back as the same four bytes were seen last, which also says whose
//! slot of the hash table it is; the rest by [`OTHERS`], some of which lie on the way that the
//! first node went ([`ON_ITS_WAY`]).

use nestwalk_mem::addr::PAGE_SHIFT;
use nestwalk_mem::{Access, Gva, PageCount, Vpn};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;

use super::bijection::{Dice, mix};
use super::config::{Mixture, impossible, parameters};
use super::layout::Layout;
use super::memory::{Region, Sweep};
use super::pattern::Pattern;
use crate::stream::WorkloadError;

const SON: u64 = 8;
const SLOT: u64 = 4;
/// Slots of the hashes of two and of three bytes, before those of four.
const SHORT_HASHES: [u64; 2] = [1 << 10, 1 << 16];
/// `depth` of `nice_len` 64.
const DEPTH: usize = 48;
/// Positions of which a thread knows the slot: what was used longer ago is in no cache.
const SLOTS_KNOWN: u64 = 1 << 18;

/// Of a thousand positions, those whose first node is at the distance of the one before, if that
/// one's was drawn and if it was not.
const AGAIN: [u64; 2] = [597, 827];
/// If the first node is drawn, and if it is not: of a thousand other nodes of the way before, those
/// that come again.
const KEPT: [u64; 2] = [342, 797];
/// Distances are drawn from 2^n to 2^(n+1), with `n` below this.
const OCTAVES: usize = 26;
/// Of a thousand first nodes that are drawn, those of each octave. The rest finds no node.
const FIRST: [u64; OCTAVES] =
    [13, 0, 7, 28, 61, 102, 88, 81, 77, 68, 54, 47, 44, 43, 40, 40, 36, 32, 26, 21, 17, 16, 12, 14, 8, 7];
/// If the first node is drawn, and if it is not: of a thousand positions whose first node is nearer
/// than an octave, those with a drawn node in it.
const OTHERS: [[u64; OCTAVES]; 2] = [
    [
        0, 0, 3, 22, 120, 220, 324, 300, 334, 356, 370, 379, 378, 382, 393, 431, 445, 511, 509, 500, 496, 574, 623,
        784, 671, 668,
    ],
    [0, 0, 0, 1, 5, 13, 29, 41, 34, 39, 44, 50, 56, 61, 67, 79, 88, 108, 116, 120, 124, 154, 171, 224, 207, 233],
];
/// Of a thousand of those drawn nodes, how many were on the way of the first node when that was
/// where the position is now.
const ON_ITS_WAY: u64 = 224;
/// Positions of which a thread knows the way, and as many of its nodes as it knows.
const WAYS_KNOWN: usize = 1 << 16;
const NODES_KNOWN: usize = 16;
/// Of a thousand nodes, those whose text agrees where it is compared first, so that it is compared
/// further.
const AGREE: u64 = 573;
/// Bytes into the text at which a node is compared (an assumption: they share their line mostly).
const COMPARED: u64 = 4;
/// Of a thousand positions, those that a match of 64 bytes or more passes over: they go down the
/// tree, but do not look at the text that the hashes of two and three bytes found.
const PASSED: u64 = 223;
/// Of a thousand others, those where the hash of three bytes found another place than that of two.
const OTHER_PLACE: u64 = 446;
/// What those two hashes found is mostly within so many octaves: more than 0.9.
const SHORT_OCTAVES: [u64; 2] = [10, 15];
/// Accesses of a position to stack, locals and static data, as counted: what is left of 424 when
/// those are taken away that the tree, the hashes and the text took there (7.8 nodes).
const LOCALS: u64 = 360;
/// Positions that say how many accesses one makes.
const SAMPLE: u64 = 20_000;

parameters! {
    /// LZMA's match finder. Local accesses and instructions as measured of `xz -9`.
    MatchFinderConfig {
        /// Of a thousand accesses, those to stack, locals and static data; at most 995. If left
        /// out, as many as were counted of `xz -9` a byte.
        #[serde(skip_serializing_if = "Option::is_none")]
        local_permille: Option<u16> = None,
        /// Instructions of a thousand accesses, their own included.
        instructions_per_kiloaccess: u32 = 3505,
        /// Mappings of code, libraries and their data.
        small_mappings: u16 = 8,
    }
}

impl MatchFinderConfig {
    /// Local accesses and instructions: as configured, or as counted.
    pub(super) fn mixture(&self) -> Mixture {
        let permille = || {
            let pages = self.footprint.0 / u64::from(self.threads.max(1));
            let mut way = Way::new(Sizes::of(pages).dictionary << PAGE_SHIFT, mix(self.seed));
            let nodes: u64 = (0..SAMPLE).map(|_| way.next().len() as u64).sum();
            // The hashes and the position's own pair; each node: four, four more if it agrees.
            let own = SAMPLE * (4 + 6 + 2) + SAMPLE * (1000 - PASSED) * (1000 + OTHER_PLACE) / 1_000_000;
            let own = own + nodes * 4 + nodes * 4 * AGREE / 1000;
            (SAMPLE * LOCALS * 1000 / (SAMPLE * LOCALS + own)) as u16
        };
        Mixture {
            local_permille: self.local_permille.unwrap_or_else(permille),
            instructions_per_kiloaccess: self.instructions_per_kiloaccess,
            small_mappings: self.small_mappings,
        }
    }

    /// Of a thousand accesses, those to locals.
    #[must_use]
    pub fn local_permille_in_effect(&self) -> u16 {
        self.mixture().local_permille
    }
}

/// Pages of an encoder's arrays.
struct Sizes {
    dictionary: u64,
    window: u64,
    hashes: u64,
}

impl Sizes {
    /// With so many in all.
    fn of(pages: u64) -> Self {
        // Half pages of window, hashes and trees for a page of the dictionary.
        let (small, large) = (pages * 2 / (3 + 4 + 16), pages * 2 / (3 + 2 + 16));
        let is_small = small << PAGE_SHIFT <= 32 << 20;
        let (dictionary, hashes) = if is_small { (small, 2 * small) } else { (large, large) };
        Self { dictionary, window: dictionary * 3 / 2, hashes }
    }
}

/// The way down the tree, from one position to the next.
struct Way {
    /// Bytes.
    dictionary: u64,
    /// Of its nodes, from near to far.
    distances: Vec<u64>,
    /// Whether the first was at the same distance for the position before.
    again: bool,
    /// Positions so far.
    position: u64,
    /// The ways of the last ones; 0 where there is no node.
    known: Vec<[u32; NODES_KNOWN]>,
    dice: Dice,
}

impl Way {
    fn new(dictionary: u64, seed: u64) -> Self {
        let dice = Dice(Xoshiro256PlusPlus::seed_from_u64(seed));
        let (distances, known) = (Vec::with_capacity(2 * DEPTH), vec![[0; NODES_KNOWN]; WAYS_KNOWN]);
        Self { dictionary, distances, again: false, position: 0, known, dice }
    }

    /// A distance of `octave`.
    fn within(&mut self, octave: usize) -> u64 {
        (1 << octave) + self.dice.below(1 << octave)
    }

    /// The distance of a first node that is drawn, if there is a node.
    fn first(&mut self) -> Option<u64> {
        let drawn = self.dice.below(1000);
        let up_to = |octave: usize| FIRST[..=octave].iter().sum::<u64>();
        let octave = (0..OCTAVES).find(|&octave| drawn < up_to(octave))?;
        Some(self.within(octave)).filter(|&first| first < self.dictionary)
    }

    /// The distance of a node on the way of the one at `first`, if there is one that is known.
    fn on_its_way(&mut self, first: u64) -> Option<u64> {
        let position = self.position.checked_sub(first).filter(|_| first < WAYS_KNOWN as u64)?;
        let way = &self.known[position as usize % WAYS_KNOWN];
        let nodes = way.iter().position(|&distance| distance == 0).unwrap_or(NODES_KNOWN) as u64;
        (nodes > 0).then(|| first + u64::from(way[self.dice.below(nodes) as usize]))
    }

    /// Goes on to the next position. The distances of its nodes.
    fn next(&mut self) -> &[u64] {
        self.position += 1;
        self.go_down();
        let known = &mut self.known[self.position as usize % WAYS_KNOWN];
        known.fill(0);
        known.iter_mut().zip(&self.distances).for_each(|(known, &distance)| *known = distance as u32);
        &self.distances
    }

    fn go_down(&mut self) {
        let first_before = self.distances.first().copied();
        let again = first_before.filter(|_| self.dice.chance(AGAIN[usize::from(self.again)]));
        self.again = again.is_some();
        let Some(first) = again.or_else(|| self.first()) else {
            self.distances.clear();
            return;
        };
        let (kind, dice) = (usize::from(self.again), &mut self.dice);
        self.distances.retain(|&distance| distance > first && dice.chance(KEPT[kind]));
        self.distances.push(first);
        for (octave, &permille) in OTHERS[kind].iter().enumerate().skip(first.ilog2() as usize + 1) {
            if self.dice.chance(permille) {
                let known = if self.dice.chance(ON_ITS_WAY) { self.on_its_way(first) } else { None };
                let distance = known.unwrap_or_else(|| self.within(octave));
                self.distances.push(distance);
            }
        }
        self.distances.retain(|&distance| distance < self.dictionary);
        self.distances.sort_unstable();
        self.distances.dedup();
        self.distances.truncate(DEPTH);
    }
}

/// A thread's encoder.
struct Encoder {
    window: Region,
    hashes: Region,
    sons: Region,
    way: Way,
    /// Of the last positions: the slot of the hash of four bytes.
    slots: Vec<u32>,
}

pub(super) struct MatchFinder {
    layout: Layout,
    encoders: Vec<Encoder>,
    sweep: Sweep,
}

impl MatchFinder {
    pub(super) fn new(config: &MatchFinderConfig) -> Result<Self, WorkloadError> {
        let mut layout = Layout::new(Self::NAME, config.common(), config.mixture())?;
        let threads = u64::from(config.threads);
        let own = layout.left() / threads;
        let (slots, short) = (PageCount(Sizes::of(own).hashes).bytes() / SLOT, SHORT_HASHES.iter().sum::<u64>());
        if slots <= short {
            let what =
                format!("footprint: too small, a thread has {slots} slots for hashes and needs more than {short}");
            return Err(impossible(Self::NAME, what));
        }
        let seeds = (0..threads).map(|thread| mix(config.seed).wrapping_add(mix(thread)));
        let encoders: Vec<_> = seeds.map(|seed| Encoder::new(&mut layout, own, seed)).collect();
        let groups = encoders.iter().flat_map(|encoder| [vec![encoder.hashes], vec![encoder.window, encoder.sons]]);
        Ok(Self { sweep: Sweep::new(groups.collect(), config.threads), layout, encoders })
    }
}

impl Encoder {
    /// One of `pages`.
    fn new(layout: &mut Layout, pages: u64, seed: u64) -> Self {
        let Sizes { dictionary, window, hashes } = Sizes::of(pages);
        Self {
            window: layout.map(window),
            hashes: layout.map(hashes),
            sons: layout.map(pages - window - hashes),
            way: Way::new(dictionary << PAGE_SHIFT, seed),
            slots: vec![0; SLOTS_KNOWN as usize],
        }
    }

    /// The text `distance` bytes before the position. The window moves on by half a dictionary, and
    /// then back; what that copy takes is left out.
    fn text(&self, distance: u64) -> Access {
        let dictionary = self.way.dictionary;
        Access::load(self.window.at(dictionary + self.way.position % (dictionary / 2) - distance))
    }

    /// One of the two sons of the position so many bytes before.
    fn son(&self, distance: u64, side: u64) -> Gva {
        let dictionary = self.way.dictionary;
        let place = (self.way.position + dictionary - distance) % dictionary;
        self.sons.at(place * SON + side * SLOT)
    }

    /// The slot of the hash of the next four bytes: that of the first node, which has the same.
    fn slot(&mut self) -> u64 {
        let place = |position: u64| (position % SLOTS_KNOWN) as usize;
        let slot = match self.way.distances.first() {
            Some(&distance) if distance < SLOTS_KNOWN.min(self.way.position) => {
                self.slots[place(self.way.position - distance)]
            }
            _ => {
                let short: u64 = SHORT_HASHES.iter().sum();
                (short + self.way.dice.below(self.hashes.bytes() / SLOT - short)) as u32
            }
        };
        self.slots[place(self.way.position)] = slot;
        slot.into()
    }

    /// Handles the next position.
    fn step(&mut self, accesses: &mut Vec<Access>) {
        self.way.next();
        let four = self.slot();
        // Which slots of the short hashes these bytes have follows from them.
        let [two, three] = [0, 1].map(|n: usize| mix(four << 1 | n as u64) % SHORT_HASHES[n]);
        let slots = [two, SHORT_HASHES[0] + three, four].map(|slot| self.hashes.at(slot * SLOT));
        accesses.extend((0..4).map(|_| self.text(0)));
        accesses.extend(slots.map(Access::load));
        accesses.extend(slots.map(Access::store));
        if !self.way.dice.chance(PASSED) {
            let looked_at = if self.way.dice.chance(OTHER_PLACE) { 2 } else { 1 };
            for octaves in &SHORT_OCTAVES[..looked_at] {
                let octave = self.way.dice.below(*octaves) as usize;
                let distance = self.way.within(octave).min(self.way.dictionary - 1);
                accesses.push(self.text(distance));
            }
        }
        // The sides to which it hangs nodes are in the pair of the node above, its own at first.
        let mut above = 0;
        for node in 0..self.way.distances.len() {
            let distance = self.way.distances[node];
            let compared = [self.text(distance - COMPARED.min(distance)), self.text(0)];
            accesses.extend(compared);
            if self.way.dice.chance(AGREE) {
                accesses.extend(compared);
                accesses.extend(compared);
            }
            let side = self.way.dice.below(2);
            accesses.push(Access::store(self.son(above, side)));
            accesses.push(Access::load(self.son(distance, side)));
            above = distance;
        }
        accesses.extend([0, 1].map(|side| Access::store(self.son(above, side))));
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
        self.encoders[thread].step(accesses);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_dictionary(bytes: u64) -> MatchFinderConfig {
        // Rounded up, with stack, libraries and all.
        MatchFinderConfig {
            footprint: PageCount(((bytes * 21 / 2) >> PAGE_SHIFT) + 300),
            ..MatchFinderConfig::default()
        }
    }

    /// The shares that were counted of a text come out as averages: 10.9 nodes a position, of which
    /// 685 in a thousand are where the position before had one; 0.4 % find none.
    #[test]
    fn ways_have_the_counted_length_and_go_on_as_counted() {
        let mut way = Way::new(64 << 20, 1);
        let (mut nodes, mut again, mut none, mut before) = (0, 0, 0, Vec::new());
        const POSITIONS: usize = 200_000;
        for _ in 0..POSITIONS {
            let now = way.next().to_vec();
            assert!(now.is_sorted_by(|near, far| near < far) && now.iter().all(|&distance| distance < 64 << 20));
            nodes += now.len();
            again += now.iter().filter(|distance| before.contains(*distance)).count();
            none += usize::from(now.is_empty());
            before = now;
        }
        let average = nodes as f64 / POSITIONS as f64;
        assert!((average - 10.93).abs() < 0.6, "{average}");
        let again = again as f64 / nodes as f64;
        assert!((again - 0.685).abs() < 0.03, "{again}");
        assert!(none > 0 && none < POSITIONS / 100, "{none}");
    }

    #[test]
    fn a_position_makes_as_many_accesses_as_its_share_of_locals_assumes() {
        for dictionary in [4_u64 << 20, 64 << 20] {
            let config = of_dictionary(dictionary);
            let mut finder = MatchFinder::new(&config).unwrap();
            let mut accesses = Vec::new();
            const POSITIONS: u64 = 50_000;
            (0..POSITIONS).for_each(|_| finder.operate(0, &mut accesses));
            let own = accesses.len() as f64 / POSITIONS as f64;
            let share = LOCALS as f64 / (LOCALS as f64 + own);
            let assumed = f64::from(config.local_permille_in_effect()) / 1000.0;
            assert!((share - assumed).abs() < 0.005, "{share} for {assumed}");
        }
    }

    #[test]
    fn xz_9_takes_674_mib() {
        let sizes = Sizes::of(674 << 8);
        let mib = |pages: u64| pages as f64 / 256.0;
        assert!((mib(sizes.dictionary) - 64.0).abs() < 0.3 && (mib(sizes.window) - 96.0).abs() < 0.4);
        let small = Sizes::of(100 << 8);
        assert_eq!(small.hashes, 2 * small.dictionary, "up to 32 MiB as many slots as half the bytes");
    }
}
