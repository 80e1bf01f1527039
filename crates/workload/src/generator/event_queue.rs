// SPDX-License-Identifier: MIT OR Apache-2.0
//! `event_queue`: SPEC CPU's omnetpp, a discrete-event simulation of a network.
//!
//! Memory, one heap: message objects (256 bytes: `cMessage` with its encapsulated packet), modules
//! with their gates and queues (1 KiB a module), and the future event set, a binary heap of 8-byte
//! pointers to messages. Messages have half of the footprint, as many are in flight as fit.
//!
//! An operation takes the first event: down the heap from the root, at each level two pointers and
//! the arrival times of the messages behind them (random objects, the upper ones used again and
//! again); then it works on the message's module (eight words, three of them stored to) and a
//! neighbour, reuses the message for the next event (`malloc` hands out what was freed last) and
//! moves it up the heap, half of the levels on average being passed once.

use nestwalk_mem::{Access, Gva, Vpn};

use super::bijection::{Bijection, Dice, mix, scale};
use super::config::parameters;
use super::layout::Layout;
use super::memory::{Region, Sweep};
use super::pattern::Pattern;
use crate::stream::WorkloadError;

const MESSAGE: u64 = 256;
const MODULE: u64 = 1024;
const WORD: u64 = 8;
/// Pages in a thousand: messages, and the heap of pointers to them (8 bytes for 256).
const MESSAGE_PERMILLE: u64 = 500;
const HEAP_PERMILLE: u64 = 16;

parameters! {
    /// Discrete-event simulation. Local accesses and instructions as measured of `cc1 -O2`, an
    /// integer program over objects.
    EventQueueConfig mixed(826, 2467, 14) {}
}

pub(super) struct EventQueue {
    layout: Layout,
    heap: Region,
    messages: Region,
    modules: Region,
    events: u64,
    module_count: u64,
    /// Which message a place of the heap points to.
    place: Bijection,
    seed: u64,
    sweep: Sweep,
    dice: Vec<Dice>,
}

impl EventQueue {
    pub(super) fn new(config: &EventQueueConfig) -> Result<Self, WorkloadError> {
        let mut layout = Layout::new(Self::NAME, config.common(), config.mixture())?;
        let all = layout.left();
        let heap = layout.map_share(all, HEAP_PERMILLE);
        let messages = layout.map_share(all, MESSAGE_PERMILLE);
        let modules = layout.map(layout.left());
        let events = (messages.bytes() / MESSAGE).min(heap.bytes() / WORD);
        Ok(Self {
            sweep: Sweep::new(vec![vec![modules], vec![heap, messages]], config.threads),
            module_count: modules.bytes() / MODULE,
            layout,
            heap,
            messages,
            modules,
            events,
            place: Bijection::new(events, mix(config.seed ^ 0xe7e)),
            seed: mix(config.seed),
            dice: Dice::of_threads(config.seed, config.threads),
        })
    }

    /// Loads a place's pointer and the arrival time of the message behind it.
    fn compare(&self, place: u64, accesses: &mut Vec<Access>) {
        accesses.push(Access::load(self.heap.at(place * WORD)));
        accesses.push(Access::load(self.message(place, 64)));
    }

    fn message(&self, place: u64, field: u64) -> Gva {
        self.messages.at(self.place.apply(place) * MESSAGE + field)
    }

    /// Down from the root to a leaf, one of both children at each level; returns where it ended.
    fn sift_down(&self, mut coin: u64, accesses: &mut Vec<Access>) -> u64 {
        let mut place = 0;
        while 2 * place + 2 < self.events {
            self.compare(2 * place + 1, accesses);
            self.compare(2 * place + 2, accesses);
            accesses.push(Access::store(self.heap.at(place * WORD)));
            place = 2 * place + 1 + (coin & 1);
            coin >>= 1;
        }
        place
    }
}

impl Pattern for EventQueue {
    const NAME: &'static str = "event_queue";

    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn touch(&mut self, thread: u16, touches: &mut Vec<(Vpn, bool)>, most: usize) {
        self.sweep.touch(thread, touches, most);
    }

    fn operate(&mut self, thread: usize, accesses: &mut Vec<Access>) {
        let dice = &mut self.dice[thread];
        let (coin, module) = (dice.below(1 << 48), dice.below(self.module_count));
        let place = self.sift_down(coin, accesses);
        accesses.extend((0..MESSAGE).step_by(32).map(|field| Access::load(self.message(place, field))));
        let other = scale(mix(self.seed ^ module ^ (coin & 3) << 60), self.module_count);
        for (module, words) in [(module, 8), (other, 2)] {
            let at = |word: u64| self.modules.at(module * MODULE + mix(word) % (MODULE / WORD) * WORD);
            accesses.extend((0..words).map(|word| Access::new(at(word), word % 3 == 1)));
        }
        accesses.extend((0..MESSAGE).step_by(64).map(|field| Access::store(self.message(place, field))));
        self.compare(place.saturating_sub(1) / 2, accesses);
        accesses.push(Access::store(self.heap.at(place * WORD)));
    }
}
