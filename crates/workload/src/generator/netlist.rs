// SPDX-License-Identifier: MIT OR Apache-2.0
//! `netlist`: PARSEC's canneal (Bienia, 2011), simulated annealing of a chip's placement, one of
//! the netlists that PARSEC's own script makes: each element's fan-ins are any elements.
//!
//! **Memory**, by the sources and by glibc's and libstdc++'s layouts. One array of elements (88
//! bytes: name, vectors of fan-in and fan-out, pointer to the location), which the script's callers
//! make a tenth larger than the netlist has elements; those have no connections and are swapped all
//! the same. In the heap: the locations (8 bytes, rows one after the other), then what reading a
//! line of the file leaves: a node of the map from names to elements, an array of fan-ins, and
//! arrays of fan-outs that have outgrown their room. All that is read once lies between what is
//! used: of the heap's pages no line is dense. The array of elements is one allocation of more than
//! `malloc`'s threshold, so a mapping of its own (`mmap`); all else comes in small pieces, so the
//! heap grows by the program break ([`heap`](super::heap)), if the key `heap` says so.
//!
//! **Order.** `create_elem_if_necessary` hands out elements in the order in which the file names
//! them first, be it as an element or as another's fan-in. So the fan-ins that line `l` of `n`
//! names first, (1 - 6l/n)-ish of them at the beginning and hardly any at the end, are neighbours
//! in the array, and what is named first is mostly used by one that is anywhere. This follows from
//! the line's number alone: of `n` elements, `n (1 - exp(-6l/n))` are named before it.
//!
//! **A swap** (`annealer_thread::Run`) draws one new element; the other is that of the swap before
//! ("only get one new element, so that reuse should help the cache"). Of each it loads the location
//! and, for each connection, the pointer in the array, the connected element's pointer to its
//! location, and the location's two coordinates. A pointer to a location is an `AtomicPtr`, which
//! the program with threads reads by a compare-and-exchange: every look at an element writes to it.
//! An accepted swap exchanges the two pointers.
//!
//! **Counted** in canneal run on netlists of 250,000 and 1,000,000 elements with PARSEC's `native`
//! arguments: of the swaps that 2400 temperatures of 15,000 among a million make (as many an
//! element as in the native run), 55 in a thousand are accepted. An element whose swaps were all
//! refused is where it was at the beginning, when element `e` has location `e`.

use nestwalk_mem::addr::PAGE_BYTES;
use nestwalk_mem::{Access, PageCount, Vpn};

use super::bijection::{Bijection, Dice, mix, scale};
use super::config::{impossible, parameters};
use super::heap::GrowingHeapConfig;
use super::layout::Layout;
use super::memory::{Region, Sweep};
use super::pattern::Pattern;
use crate::stream::WorkloadError;

const ELEMENT: u64 = 88;
/// Of an element: the first of the two vectors' pointers, and the pointer to its location.
const FAN_IN: u64 = 32;
const FAN_OUT: u64 = 56;
const LOCATION_POINTER: u64 = 80;
const LOCATION: u64 = 8;
const WORD: u64 = 8;
/// Heap of a node of the map: a chunk of 72 bytes.
const NAME_NODE: u64 = 80;
/// Elements without connections to a thousand with.
const SPARE_PERMILLE: u64 = 100;
const ACCEPTED_PERMILLE: u64 = 55;
/// Elements that were never moved, in a thousand.
const UNMOVED_PERMILLE: u64 = 170;

parameters! {
    /// Swaps of elements of a netlist. Local accesses and instructions as measured of canneal.
    NetlistConfig mixed(668, 3205, 14) {
        /// Fan-ins of an element, and fan-outs on average: 1 to 64. PARSEC's netlists have 5.
        connections: u64 = 5,
        /// How the heap grows, with the locations at its beginning, while one thread reads the
        /// netlist. If left out, all is mapped from the start and every thread fills its share.
        #[serde(skip_serializing_if = "Option::is_none")]
        heap: Option<GrowingHeapConfig> = None,
    }
}

pub(super) struct Netlist {
    layout: Layout,
    elements: Region,
    locations: Region,
    heap: Region,
    names: Names,
    connections: u64,
    /// Bytes of heap that a line of the file leaves, and of an array of fan-ins.
    stride: u64,
    array: u64,
    /// Which location an element has that was moved.
    moved: Bijection,
    seed: u64,
    sweep: Sweep,
    /// By thread: dice, and the element of the last swap.
    threads: Vec<(Dice, u64)>,
}

impl Netlist {
    pub(super) fn new(config: &NetlistConfig) -> Result<Self, WorkloadError> {
        let name = Self::NAME;
        let mut layout = Layout::new(name, config.common(), config.mixture())?;
        let connections = config.connections;
        if !(1..=64).contains(&connections) {
            return Err(impossible(name, format!("connections = {connections}: from 1 to 64")));
        }
        // A vector that grows doubles; a chunk has 8 bytes besides and whole 16.
        let array = (connections.next_power_of_two() * WORD + 8).next_multiple_of(16).max(32);
        let stride = NAME_NODE + 2 * array;
        let permille = (ELEMENT + LOCATION) * (1000 + SPARE_PERMILLE) + stride * 1000;
        let count = (layout.left() - 3) * PAGE_BYTES * 1000 / permille;
        let all = count * (1000 + SPARE_PERMILLE) / 1000;
        layout.gap();
        let elements = layout.map(PageCount::covering(all * ELEMENT).0);
        layout.gap();
        let of_locations = PageCount::covering(all * LOCATION).0;
        let [locations, heap] = match config.heap {
            Some(heap) => layout.heap(name, layout.left(), heap)?.split(of_locations),
            None => [layout.map(of_locations), layout.map(layout.left())],
        };
        let groups = vec![vec![elements], vec![locations], vec![heap]];
        let seed = mix(config.seed);
        let dice = Dice::of_threads(config.seed, config.threads);
        Ok(Self {
            sweep: if config.heap.is_some() { Sweep::by_the_first(groups) } else { Sweep::new(groups, config.threads) },
            layout,
            elements,
            locations,
            heap,
            names: Names::new(count, all, connections, seed),
            connections,
            stride,
            array,
            moved: Bijection::new(all, seed ^ 0x10c),
            seed,
            threads: dice.into_iter().map(|dice| (dice, 0)).collect(),
        })
    }

    fn element(&self, element: u64, field: u64) -> Access {
        Access::load(self.elements.at(element * ELEMENT + field))
    }

    /// Loads an element's pointer to its location, and the location's coordinates.
    fn located(&self, element: u64, accesses: &mut Vec<Access>) {
        accesses.push(self.element(element, LOCATION_POINTER));
        accesses.push(Access::store(self.elements.at(element * ELEMENT + LOCATION_POINTER)));
        let unmoved = scale(mix(self.seed ^ 0x5a ^ element), 1000) < UNMOVED_PERMILLE;
        let location = if unmoved { element } else { self.moved.apply(element) };
        accesses.extend([0, 4].map(|half| Access::load(self.locations.at(location * LOCATION + half))));
    }

    /// Loads what decides what moving `element` would cost.
    fn swap_cost(&self, element: u64, accesses: &mut Vec<Access>) {
        self.located(element, accesses);
        accesses.push(self.element(element, FAN_IN));
        let Some(line) = self.names.line_of(element) else {
            accesses.push(self.element(element, FAN_OUT));
            return;
        };
        let fan_ins = line * self.stride + NAME_NODE;
        for nth in 0..self.connections {
            accesses.push(Access::load(self.heap.at(fan_ins + nth * WORD)));
            self.located(self.names.fan_in(line, nth), accesses);
        }
        accesses.push(self.element(element, FAN_OUT));
        // Where the array is that the fan-outs last outgrew their room for: any line's.
        let fan_outs = scale(mix(self.seed ^ 0xf0 ^ element), self.names.count) * self.stride + NAME_NODE + self.array;
        for nth in 0..self.names.fan_outs(element) {
            accesses.push(Access::load(self.heap.at(fan_outs + nth * WORD % self.array)));
            self.located(self.names.fan_out(element, nth), accesses);
        }
    }
}

impl Pattern for Netlist {
    const NAME: &'static str = "netlist";

    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn touch(&mut self, thread: u16, touches: &mut Vec<(Vpn, bool)>, most: usize) {
        self.sweep.touch(thread, touches, most);
    }

    fn operate(&mut self, thread: usize, accesses: &mut Vec<Access>) {
        let (dice, last) = &mut self.threads[thread];
        let pair = [*last, dice.below(self.names.all)];
        *last = pair[1];
        let accepted = dice.chance(ACCEPTED_PERMILLE);
        pair.into_iter().for_each(|element| self.swap_cost(element, accesses));
        if accepted {
            let pointer = |element| Access::store(self.elements.at(element * ELEMENT + LOCATION_POINTER));
            accesses.extend(pair.map(pointer));
        }
    }
}

/// Which elements are connected, by the order in which the file names them: a line an element, its
/// own name first and its fan-ins', any names, behind it.
struct Names {
    /// Elements that the file has, and all that there are.
    count: u64,
    all: u64,
    connections: u64,
    /// Names of a line.
    a_line: f64,
    seed: u64,
    /// Of 2^32, how many have at most so many fan-outs, when the average is `connections`
    /// (Poisson).
    fan_outs: Vec<u64>,
}

impl Names {
    fn new(count: u64, all: u64, connections: u64, seed: u64) -> Self {
        let mean = connections as f64;
        let (mut term, mut sum) = (libm::exp(-mean), 0.0);
        let at_most = |nth: u64| {
            sum += term;
            term *= mean / (nth + 1) as f64;
            (sum * (1u64 << 32) as f64) as u64
        };
        let fan_outs = (0..8 * connections).map(at_most).collect();
        Self { count, all, connections, a_line: mean + 1.0, seed, fan_outs }
    }

    fn draw(&self, salt: u64, bound: u64) -> u64 {
        scale(mix(self.seed ^ mix(salt)), bound)
    }

    /// Elements that have been named before line `line`.
    fn named_before(&self, line: u64) -> u64 {
        let count = self.count as f64;
        (-count * libm::expm1(-self.a_line * line as f64 / count)) as u64
    }

    /// The line that names `element` first.
    fn first_line(&self, element: u64) -> u64 {
        let count = self.count as f64;
        ((-count / self.a_line * libm::log1p(-(element as f64) / count)) as u64).min(self.count - 1)
    }

    /// Whether the line that names `element` first is its own.
    fn named_by_itself(&self, element: u64) -> bool {
        self.draw(element << 8, self.connections + 1) == 0
    }

    /// The line of `element`; `None` if the file has none.
    fn line_of(&self, element: u64) -> Option<u64> {
        if element >= self.count {
            return None;
        }
        let first = self.first_line(element);
        let later = self.count - 1 - first;
        Some(if self.named_by_itself(element) || later == 0 {
            first
        } else {
            first + 1 + self.draw(element << 8 | 1, later)
        })
    }

    /// An element named before line `line` or, if there was none, any.
    fn known(&self, line: u64, salt: u64) -> u64 {
        self.draw(salt, self.named_before(line).max(1))
    }

    /// Whether what line `line` names is new; the `salt` of the name decides.
    fn is_new(&self, line: u64, salt: u64) -> bool {
        self.draw(salt, self.count) >= self.named_before(line)
    }

    /// Fan-in `nth` of line `line`.
    fn fan_in(&self, line: u64, nth: u64) -> u64 {
        let salt = |name: u64| 1 << 63 | line << 9 | name << 1;
        if self.is_new(line, salt(nth)) {
            // New names of a line follow one another, its own first.
            let before = (0..nth).filter(|&name| self.is_new(line, salt(name))).count() as u64;
            (self.named_before(line) + before).min(self.count - 1)
        } else {
            self.known(line, salt(nth) | 1)
        }
    }

    /// How many elements `element` is a fan-in of.
    fn fan_outs(&self, element: u64) -> u64 {
        let drawn = self.draw(element << 8 | 2, 1 << 32);
        self.fan_outs.iter().take_while(|&&at_most| at_most <= drawn).count() as u64
    }

    /// Element `nth` of those that `element` is a fan-in of: the one whose line names it first, if
    /// it is not its own, and those of later lines.
    fn fan_out(&self, element: u64, nth: u64) -> u64 {
        let salt = element << 8 | (16 + (nth & 0x3f)) << 1;
        let first = self.first_line(element);
        let (line, own) = match nth {
            0 if !self.named_by_itself(element) => {
                (first, element.saturating_sub(1 + self.draw(salt, self.connections)))
            }
            _ => {
                let line = first + self.draw(salt, self.count - first);
                (line, self.named_before(line))
            }
        };
        // The element of that line is new with it, or was named before.
        if self.is_new(line, salt | 1) { own.min(self.count - 1) } else { self.known(line, salt ^ 1 << 62) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the file of PARSEC's script makes of elements, done by the program's own rule, beside
    /// what [`Names`] says without reading it.
    #[test]
    fn connections_are_near_each_other_as_often_as_in_a_netlist_that_was_read() {
        const COUNT: u64 = 20_000;
        let mut dice = Dice::of_threads(7, 1).remove(0);
        let lines: Vec<Vec<u64>> =
            (0..COUNT).map(|own| std::iter::once(own).chain((0..5).map(|_| dice.below(COUNT))).collect()).collect();
        let mut number = vec![None; COUNT as usize];
        let mut next = 0..;
        for &name in lines.iter().flatten() {
            number[name as usize].get_or_insert_with(|| next.next().expect("numbers do not end"));
        }
        let number = |name: u64| number[name as usize].expect("every name is in its own line");
        let read = |line: u64| -> Vec<u64> { lines[line as usize][1..].iter().map(|&name| number(name)).collect() };
        let names = Names::new(COUNT, COUNT, 5, 3);
        let made = |line: u64| -> Vec<u64> { (0..5).map(|nth| names.fan_in(line, nth)).collect() };
        // Fan-ins within 46 numbers (a page) of each other, by eighths of the file.
        let near = |fan_ins: &dyn Fn(u64) -> Vec<u64>| -> Vec<f64> {
            let share = |eighth: u64| {
                let lines = COUNT / 8 * eighth..COUNT / 8 * (eighth + 1);
                let pairs = lines.map(fan_ins).flat_map(|of| (1..5).map(move |nth| of[nth].abs_diff(of[nth - 1])));
                pairs.filter(|&apart| apart < 46).count() as f64 / (COUNT / 8 * 4) as f64
            };
            (0..8).map(share).collect()
        };
        let (read, made) = (near(&read), near(&made));
        assert!(read[0] > 0.4 && read[7] < 0.02, "{read:?}");
        read.iter().zip(&made).for_each(|(read, made)| assert!((read - made).abs() < 0.03, "{read} {made}"));
        // As many fan-outs as fan-ins, and lines for all.
        let outs: u64 = (0..COUNT).map(|element| names.fan_outs(element)).sum();
        assert!(outs.abs_diff(5 * COUNT) < COUNT / 10, "{outs}");
        let mut own: Vec<u64> = (0..COUNT).filter_map(|element| names.line_of(element)).collect();
        own.sort_unstable();
        own.dedup();
        assert!(own.len() as u64 > COUNT * 6 / 10, "{}", own.len());
        assert_eq!(names.line_of(COUNT), None);
    }

    #[test]
    fn a_swap_takes_one_element_of_the_swap_before() {
        let mut netlist = Netlist::new(&NetlistConfig { footprint: PageCount(1 << 14), ..Default::default() }).unwrap();
        let mut swaps = Vec::new();
        for _ in 0..100 {
            let mut accesses = Vec::new();
            netlist.operate(0, &mut accesses);
            swaps.push((accesses, netlist.threads[0].1));
        }
        for pair in swaps.windows(2) {
            let [(_, kept), (later, _)] = pair else { unreachable!() };
            assert_eq!(later[0], netlist.element(*kept, LOCATION_POINTER));
        }
    }
}
