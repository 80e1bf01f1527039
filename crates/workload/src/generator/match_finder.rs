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
//! **What a text does to that** was counted in files ([`text`](super::text)): while the text
//! repeats, a position finds what the one before it found, a byte further. So most nodes have the
//! distance of a node of the way before, their pairs and their text lie right behind those, and
//! only the others are drawn: the first as far back as the same four bytes were seen last, which
//! also says whose slot of the hash table it is; the rest octave by octave, from the ways of those
//! that had the same four bytes before, or else anywhere.
//!
//! **First touches** are in the order of the program: a page of the window as it is read, eight of
//! the trees for it, and pages of the hash tables, which are not cleared, as positions come to
//! them.

use std::collections::VecDeque;

use nestwalk_mem::addr::{PAGE_BYTES, PAGE_SHIFT};
use nestwalk_mem::{Access, Gva, PageCount, Vpn};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;

use super::bijection::{Dice, mix};
use super::config::{Mixture, impossible, parameters};
use super::layout::Layout;
use super::memory::Region;
use super::pattern::Pattern;
use super::text::TextConfig;
use crate::stream::WorkloadError;

const SON: u64 = 8;
const SLOT: u64 = 4;
/// Slots of the hashes of two and of three bytes, before those of four.
const SHORT_HASHES: [u64; 2] = [1 << 10, 1 << 16];
/// `depth` of `nice_len` 64.
const DEPTH: usize = 48;
/// Positions of which a thread knows the slot: what was used longer ago is in no cache.
const SLOTS_KNOWN: u64 = 1 << 18;

/// Positions of which a thread knows the way, and as many of its nodes as it knows.
const WAYS_KNOWN: usize = 1 << 16;
const NODES_KNOWN: usize = 16;
/// Bytes into the text at which a node is compared (an assumption: they share their line mostly).
const COMPARED: u64 = 4;
/// What those two hashes found is mostly within so many octaves: more than 0.9.
const SHORT_OCTAVES: [u64; 2] = [10, 15];
/// Of a thousand positions, those whose first node is not as far back as one of the position before
/// (counted: 225 to 264): they come to another page of the hash table.
const NEW_SLOTS: u64 = 250;
/// Pages on which xz' locals lie, as counted (`locals` has the average of three programs).
const LOCAL_PAGES: u64 = 48;
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
        /// What is compressed.
        text: TextConfig = TextConfig::default(),
    }
}

impl MatchFinderConfig {
    /// Local accesses and instructions: as configured, or as counted.
    pub(super) fn mixture(&self) -> Mixture {
        let permille = || {
            let pages = self.footprint.0 / u64::from(self.threads.max(1));
            let mut way = Way::new(Sizes::of(pages).dictionary << PAGE_SHIFT, &self.text, mix(self.seed));
            let nodes: u64 = (0..SAMPLE).map(|_| way.next().len() as u64).sum();
            let [agree, passed, other_place] =
                [self.text.agree, self.text.passed, self.text.other_place].map(|share| u64::from(share.min(1000)));
            // The hashes and the position's own pair; each node: four, four more if it agrees.
            let own = SAMPLE * (4 + 6 + 2) + SAMPLE * (1000 - passed) * (1000 + other_place) / 1_000_000;
            let own = own + nodes * 4 + nodes * 4 * agree / 1000;
            (SAMPLE * LOCALS * 1000 / (SAMPLE * LOCALS + own)) as u16
        };
        Mixture {
            local_permille: self.local_permille.unwrap_or_else(permille),
            instructions_per_kiloaccess: self.instructions_per_kiloaccess,
            small_mappings: self.small_mappings,
            local_pages: LOCAL_PAGES,
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
    text: TextConfig,
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
    fn new(dictionary: u64, text: &TextConfig, seed: u64) -> Self {
        Self {
            dictionary,
            text: text.clone(),
            distances: Vec::with_capacity(2 * DEPTH),
            again: false,
            position: 0,
            known: vec![[0; NODES_KNOWN]; WAYS_KNOWN],
            dice: Dice(Xoshiro256PlusPlus::seed_from_u64(seed)),
        }
    }

    /// The way of the position so many bytes back, if it is known.
    fn known(&self, back: u64) -> Option<&[u32; NODES_KNOWN]> {
        let position = self.position.checked_sub(back).filter(|_| back < WAYS_KNOWN as u64)?;
        Some(&self.known[position as usize % WAYS_KNOWN])
    }

    /// A distance of `octave`.
    fn within(&mut self, octave: usize) -> u64 {
        (1 << octave) + self.dice.below(1 << octave)
    }

    /// The distance of a first node that is drawn, if there is a node.
    fn first(&mut self) -> Option<u64> {
        let mut drawn = self.dice.below(1000);
        let octave = self.text.first.iter().position(|&share| {
            let found = drawn < share.into();
            drawn = drawn.saturating_sub(share.into());
            found
        })?;
        Some(self.within(octave)).filter(|&first| first < self.dictionary)
    }

    /// A node of `octave` on the way of one further up the chain.
    fn on_the_chain(&mut self, first: u64, octave: usize) -> Option<u64> {
        let mut back = first;
        for nth in 0..self.text.chain.len() {
            let (way, before) = (self.known(back)?, self.known(1)?);
            let (mut nodes, mut count) = ([0; NODES_KNOWN], 0);
            for &distance in way.iter().take_while(|distance| **distance != 0) {
                let distance = back + u64::from(distance);
                if distance.ilog2() as usize == octave && !before.contains(&(distance as u32)) {
                    nodes[count] = distance;
                    count += 1;
                }
            }
            let next = way[0];
            if count > 0 && self.dice.chance(self.text.chain[nth].into()) {
                return Some(nodes[self.dice.below(count as u64) as usize]);
            }
            if next == 0 {
                return None;
            }
            back += u64::from(next);
        }
        None
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
        let (text, dice) = (&self.text, &mut self.dice);
        let before = self.distances.first().copied();
        let again = if self.again { &text.again_after } else { &text.again };
        self.again = before.is_some_and(|before| dice.chance(TextConfig::of(again, before)));
        let kept = if self.again { &text.kept_again } else { &text.kept };
        // One of the others, if one of them is to be the first.
        let next = before.filter(|&before| {
            !self.again && self.distances.len() > 1 && dice.chance(TextConfig::of(&text.next, before))
        });
        let next = next.map(|_| self.distances[1 + dice.below(self.distances.len() as u64 - 1) as usize]);
        self.distances.retain(|&distance| Some(distance) != before && dice.chance(TextConfig::of(kept, distance)));
        let first = match next {
            _ if self.again => before,
            Some(any) => self.distances.first().copied().or(Some(any)),
            None => self.first(),
        };
        self.distances.retain(|&distance| first.is_some_and(|first| distance > first));
        let Some(first) = first else { return };
        self.distances.push(first);
        for octave in first.ilog2() as usize + 1..self.text.others.len() {
            let others = if self.again { &self.text.others_again } else { &self.text.others };
            if self.dice.chance(others.get(octave).copied().unwrap_or(0).into()) {
                let distance = self.on_the_chain(first, octave).unwrap_or_else(|| self.within(octave));
                self.distances.push(distance);
            }
        }
        self.distances.retain(|&distance| distance < self.dictionary);
        self.distances.sort_unstable();
        self.distances.dedup();
        self.distances.truncate(DEPTH);
    }
}

/// The order in which an encoder's pages are touched first.
struct Filling {
    /// Pages of the window, and of the trees, so far.
    window: u64,
    sons: u64,
    /// Of each page of the hash tables: whether it is touched.
    hashes: Vec<bool>,
    dice: Dice,
    /// Touched, and not yet handed out.
    next: VecDeque<Vpn>,
}

impl Filling {
    fn new(hashes: Region, seed: u64) -> Self {
        let dice = Dice(Xoshiro256PlusPlus::seed_from_u64(seed));
        Self { window: 0, sons: 0, hashes: vec![false; hashes.pages.len() as usize], dice, next: VecDeque::new() }
    }

    /// As far as the next page of the trees, or of the window behind them. Whether there was one.
    fn go_on(&mut self, encoder: &Encoder) -> bool {
        let page = |region: Region, nth: u64| region.pages.start + nth;
        // A page of the window has as many positions as eight of the trees.
        if self.window * SON <= self.sons && self.window < encoder.window.pages.len() {
            self.next.push_back(page(encoder.window, self.window));
            self.window += 1;
        }
        if self.sons < encoder.sons.pages.len() {
            self.next.push_back(page(encoder.sons, self.sons));
            self.sons += 1;
            // Positions whose four bytes were not where those of the position before were.
            for _ in 0..PAGE_BYTES / SON * NEW_SLOTS / 1000 {
                let nth = self.dice.below(self.hashes.len() as u64);
                if !std::mem::replace(&mut self.hashes[nth as usize], true) {
                    self.next.push_back(page(encoder.hashes, nth));
                }
            }
        } else if self.window < encoder.window.pages.len() {
            self.next.push_back(page(encoder.window, self.window));
            self.window += 1;
        } else {
            let bare = (0..self.hashes.len()).filter(|&nth| !self.hashes[nth]);
            self.next.extend(bare.map(|nth| page(encoder.hashes, nth as u64)));
            self.hashes.fill(true);
        }
        !self.next.is_empty()
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
    fillings: Vec<Filling>,
}

impl MatchFinder {
    pub(super) fn new(config: &MatchFinderConfig) -> Result<Self, WorkloadError> {
        config.text.check(Self::NAME)?;
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
        let encoders: Vec<_> = seeds.map(|seed| Encoder::new(&mut layout, own, &config.text, seed)).collect();
        let fillings = encoders.iter().zip(0..).map(|(encoder, n)| Filling::new(encoder.hashes, mix(config.seed ^ n)));
        Ok(Self { fillings: fillings.collect(), layout, encoders })
    }
}

impl Encoder {
    /// One of `pages`.
    fn new(layout: &mut Layout, pages: u64, text: &TextConfig, seed: u64) -> Self {
        let Sizes { dictionary, window, hashes } = Sizes::of(pages);
        Self {
            window: layout.map(window),
            hashes: layout.map(hashes),
            sons: layout.map(pages - window - hashes),
            way: Way::new(dictionary << PAGE_SHIFT, text, seed),
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
        let [agree, passed, other_place] =
            [self.way.text.agree, self.way.text.passed, self.way.text.other_place].map(u64::from);
        if !self.way.dice.chance(passed) {
            let looked_at = if self.way.dice.chance(other_place) { 2 } else { 1 };
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
            if self.way.dice.chance(agree) {
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
        let thread = usize::from(thread);
        let (Some(filling), Some(encoder)) = (self.fillings.get_mut(thread), self.encoders.get(thread)) else { return };
        while touches.len() < most && (!filling.next.is_empty() || filling.go_on(encoder)) {
            let own = filling.next.drain(..filling.next.len().min(most - touches.len()));
            touches.extend(own.map(|page| (page, true)));
        }
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

    /// What was counted of the text comes out, beyond the shares that are drawn: 10.96 nodes a
    /// position, 0.4 % find none, and how many first nodes, and nodes, each octave has.
    #[test]
    fn ways_have_the_counted_length_and_go_on_as_counted() {
        let mut way = Way::new(64 << 20, &TextConfig::default(), 1);
        let (mut nodes, mut none, mut first, mut all) = (0, 0, [0; 26], [0; 26]);
        const POSITIONS: usize = 300_000;
        for _ in 0..POSITIONS {
            let now = way.next().to_vec();
            assert!(now.is_sorted_by(|near, far| near < far) && now.iter().all(|&distance| distance < 64 << 20));
            nodes += now.len();
            none += usize::from(now.is_empty());
            now.iter().for_each(|distance| all[distance.ilog2() as usize] += 1);
            now.first().iter().for_each(|distance| first[distance.ilog2() as usize] += 1);
        }
        let average = nodes as f64 / POSITIONS as f64;
        assert!((average - 10.96).abs() < 0.7, "{average}");
        // Counted, in thousandths of a position: octaves below 8, 8 to 15, and above. Nodes nearer
        // than 256 bytes that are not the first are fewer than counted, by some 40 %.
        let share = |counts: &[usize]| counts.iter().sum::<usize>() as f64 * 1000.0 / POSITIONS as f64;
        let parts = |counts: [usize; 26]| [share(&counts[..8]), share(&counts[8..16]), share(&counts[16..])];
        let (first, [_, near, far]) = (parts(first), parts(all));
        let counted = [488.0, 401.0, 107.0, 3657.0, 6195.0];
        for (share, counted) in first.into_iter().chain([near, far]).zip(counted) {
            assert!((share - counted).abs() < 0.12 * counted, "{share} for {counted}");
        }
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

    /// A node that a way up the chain has in the octave is taken as often as the text says.
    #[test]
    fn nodes_come_from_the_ways_up_the_chain() {
        let only = |octave: usize| (0..26).map(|n| if n == octave { 1000 } else { 0 }).collect::<Vec<u16>>();
        // Every position: one node in octave 3, then one in octave 12.
        let text = |chain: Vec<u16>| TextConfig {
            again: vec![],
            again_after: vec![],
            next: vec![],
            kept: vec![],
            first: only(3),
            others: only(12),
            others_again: only(12),
            chain,
            ..TextConfig::default()
        };
        let chained = |chain: Vec<u16>| {
            let mut way = Way::new(64 << 20, &text(chain), 1);
            (0..1000).for_each(|_| drop(way.next().to_vec()));
            let mut ways = vec![way.next().to_vec()];
            let mut chained = 0;
            for _ in 0..5000 {
                let way = way.next().to_vec();
                assert_eq!(way.len(), 2);
                let up = ways.len().checked_sub(way[0] as usize).map(|up| &ways[up]);
                chained += usize::from(up.is_some_and(|up| way[1] == way[0] + up[1]));
                ways.push(way);
            }
            chained
        };
        assert!(chained(vec![]) < 50);
        assert!(chained(vec![1000]) > 4500);
        assert!((1900..2900).contains(&chained(vec![500])));
    }

    /// A page of the window, eight of the trees, and pages of the hash tables in no order; each
    /// page once.
    #[test]
    fn pages_are_touched_in_the_order_of_the_text() {
        let mut finder = MatchFinder::new(&of_dictionary(4 << 20)).unwrap();
        let mut touches = Vec::new();
        while {
            let before = touches.len();
            finder.touch(0, &mut touches, before + 100);
            touches.len() > before
        } {}
        let encoder = &finder.encoders[0];
        let of = |region: Region| -> Vec<(usize, u64)> {
            let own = touches.iter().enumerate().filter(|(_, touch)| region.pages.contains(touch.0));
            own.map(|(at, touch)| (at, touch.0.0 - region.pages.start.0)).collect()
        };
        let [window, sons, hashes] = [encoder.window, encoder.sons, encoder.hashes].map(of);
        let in_order = |pages: &[(usize, u64)]| pages.iter().map(|page| page.1).eq(0..pages.len() as u64);
        assert!(in_order(&window) && in_order(&sons) && !in_order(&hashes));
        let lengths = [window.len(), sons.len(), hashes.len()].map(|pages| pages as u64);
        let pages = [encoder.window, encoder.sons, encoder.hashes].map(|region| region.pages.len());
        assert_eq!(lengths, pages);
        assert!(sons[7].0 < window[1].0 && window[1].0 < sons[8].0);
        // Nearly all pages of the hash tables are used while few of the text's are.
        assert!(hashes[hashes.len() * 9 / 10].0 < sons[sons.len() / 4].0);
        assert_eq!(touches.len() as u64, pages.iter().sum::<u64>());
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
