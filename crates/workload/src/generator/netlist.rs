// SPDX-License-Identifier: MIT OR Apache-2.0
//! `netlist`: PARSEC's canneal (Bienia, 2011), simulated annealing of a chip's placement.
//!
//! Memory, four mappings: elements (128 bytes: name, vectors of fan-in and fan-out, pointer to the
//! present location), the arrays behind those vectors (8 bytes a connection, `connections` an
//! element and direction), locations (8 bytes), names and the map from names to elements (80 bytes,
//! used while the netlist is read). Elements are connected to any others, as in PARSEC's synthetic
//! netlists.
//!
//! An operation is a swap (`annealer_thread::Run`): of two random elements it loads element and
//! location, then for each connection the pointer, the neighbour's element (its pointer to a
//! location) and that location; two in five are accepted and store both location pointers (assumed:
//! between the all of the hot start and the few of the cold end).

use nestwalk_mem::{Access, PageCount, Vpn};

use super::bijection::{Dice, mix, scale};
use super::config::{impossible, parameters};
use super::layout::Layout;
use super::memory::{Region, Sweep};
use super::pattern::Pattern;
use crate::stream::WorkloadError;

const ELEMENT: u64 = 128;
const WORD: u64 = 8;
const NAME_ENTRY: u64 = 80;
const ACCEPTED_PERMILLE: u64 = 400;

parameters! {
    /// Swaps of elements of a netlist. Local accesses and instructions as measured of `cc1 -O2`, an
    /// integer program over pointers.
    NetlistConfig mixed(826, 2467, 14) {
        /// Fan-ins of an element, and fan-outs: 1 to 64. PARSEC's netlists have 5 on average.
        connections: u64 = 5,
    }
}

pub(super) struct Netlist {
    layout: Layout,
    elements: Region,
    arrays: Region,
    locations: Region,
    count: u64,
    connections: u64,
    seed: u64,
    sweep: Sweep,
    dice: Vec<Dice>,
}

impl Netlist {
    pub(super) fn new(config: &NetlistConfig) -> Result<Self, WorkloadError> {
        let name = Self::NAME;
        let mut layout = Layout::new(name, config.common(), config.mixture())?;
        let connections = config.connections;
        if !(1..=64).contains(&connections) {
            return Err(impossible(name, format!("connections = {connections}: from 1 to 64")));
        }
        let array = 2 * connections * WORD;
        let count = (layout.left() - 4) * nestwalk_mem::addr::PAGE_BYTES / (ELEMENT + array + WORD + NAME_ENTRY);
        let mut map = |bytes: u64| {
            layout.gap();
            layout.map(PageCount::covering(count * bytes).0)
        };
        let (elements, arrays, locations) = (map(ELEMENT), map(array), map(WORD));
        layout.gap();
        let names = layout.map(layout.left());
        Ok(Self {
            // Elements, arrays and names are made while the netlist is read, locations before.
            sweep: Sweep::new(vec![vec![locations], vec![elements, arrays, names]], config.threads),
            layout,
            elements,
            arrays,
            locations,
            count,
            connections,
            seed: mix(config.seed),
            dice: Dice::of_threads(config.seed, config.threads),
        })
    }

    /// Loads an element's pointer to its location, and the location. Its position changes with
    /// every swap; any will do.
    fn located(&self, element: u64, accesses: &mut Vec<Access>) {
        accesses.push(Access::load(self.elements.at(element * ELEMENT + 80)));
        let location = scale(mix(self.seed ^ 0x10c ^ element), self.count);
        accesses.push(Access::load(self.locations.at(location * WORD)));
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
        let dice = &mut self.dice[thread];
        let pair = [dice.below(self.count), dice.below(self.count)];
        let accepted = dice.chance(ACCEPTED_PERMILLE);
        for element in pair {
            self.located(element, accesses);
            accesses.extend([16, 24, 40, 48].map(|field| Access::load(self.elements.at(element * ELEMENT + field))));
            for nth in element * 2 * self.connections..(element + 1) * 2 * self.connections {
                accesses.push(Access::load(self.arrays.at(nth * WORD)));
                self.located(scale(mix(self.seed ^ nth), self.count), accesses);
            }
        }
        if accepted {
            accesses.extend(pair.map(|element| Access::store(self.elements.at(element * ELEMENT + 80))));
        }
    }
}
