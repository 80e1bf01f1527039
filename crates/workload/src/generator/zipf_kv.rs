// SPDX-License-Identifier: MIT OR Apache-2.0
//! `zipf_kv`: a key-value store in memory under YCSB-like load: zipf keys, GETs and SETs.
//!
//! Memory: an index of 8-byte slots, one a key, reached by hash; objects (header with key, then value) side by side in the
//! order in which keys were inserted, as a slab allocator would lay them; and a request buffer for each thread. Popular
//! keys lie anywhere among the objects (YCSB's scrambled zipfian).
//!
//! A request: load the index slot, load the object's header, then copy the value, line by line: a GET from the object to the
//! buffer, a SET from the buffer to the object. Chains of colliding keys are not followed, values are updated in place, and
//! the kernel's side of the network is left out.

use nestwalk_mem::addr::PAGE_BYTES;
use nestwalk_mem::{Access, PageCount, Vpn};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use super::bijection::{Bijection, mix, scale};
use super::config::{impossible, parameters};
use super::memory::{MmapArea, Region};
use super::program::Program;
use super::zipf::Zipf;
use crate::stream::WorkloadError;

/// Instructions of a request apart from copying (assumed): parse, hash, compare, dispatch, reply of a memcached-like server.
const INSTRUCTIONS_PER_REQUEST: u64 = 400;
/// Instructions for each line copied (assumed): two 32-byte loads and stores.
const INSTRUCTIONS_PER_LINE: u64 = 4;
/// Bytes of an index slot.
const SLOT: u64 = 8;
/// Bytes of an object before its value: links, sizes, key.
const HEADER: u64 = 64;
const LINE: u64 = 64;
/// Pages of a thread's request buffer.
const BUFFER_PAGES: u64 = 16;

parameters! {
    /// Key-value store under skewed requests.
    ZipfKvConfig {
        /// Bytes of a value, at most 65536.
        value_bytes: u64 = 1024,
        /// Zipf exponent of the keys' popularity, above 0 and at most 5. YCSB has 0.99.
        skew: f64 = 0.99,
        /// Of 1000 requests, how many are SETs. YCSB-B has 50.
        set_permille: u16 = 50,
    }
}

pub(super) struct ZipfKv {
    index: Region,
    objects: Region,
    buffers: Region,
    keys: u64,
    object_bytes: u64,
    value_lines: u64,
    set_permille: u64,
    seed: u64,
    popularity: Zipf,
    scramble: Bijection,
    threads: Vec<Thread>,
    filling: Filling,
}

/// A thread and its request under way.
#[derive(Clone)]
struct Thread {
    rng: Xoshiro256PlusPlus,
    key: u64,
    set: bool,
    /// How many accesses of the request are done.
    done: u64,
    /// Whether it has filled its buffer for the first time.
    buffered: bool,
}

/// The keys being inserted, one after the other. The server's main thread does it.
struct Filling {
    next_key: u64,
    /// Object pages touched so far.
    objects: u64,
    /// Index pages touched so far, a bit each.
    index: Vec<u64>,
}

impl ZipfKv {
    pub(super) fn new(config: &ZipfKvConfig) -> Result<Self, WorkloadError> {
        let common = config.common();
        common.check(Self::NAME)?;
        if !(1..=65_536).contains(&config.value_bytes) {
            return Err(impossible(Self::NAME, format!("value_bytes = {}: from 1 to 65536", config.value_bytes)));
        }
        if !(config.skew > 0.0 && config.skew <= 5.0) {
            return Err(impossible(Self::NAME, format!("skew = {}: above 0 and at most 5", config.skew)));
        }
        if config.set_permille > 1000 {
            return Err(impossible(Self::NAME, format!("set_permille = {}: at most 1000", config.set_permille)));
        }
        let buffer_pages = BUFFER_PAGES * u64::from(config.threads);
        let object_bytes = HEADER + config.value_bytes.next_multiple_of(8);
        let keys = (config.footprint.0 - buffer_pages) * PAGE_BYTES / (object_bytes + SLOT);
        // One page of each array is only used in part.
        let keys = keys.saturating_sub(2 * PAGE_BYTES / (object_bytes + SLOT) + 1);
        if keys < 16 {
            return Err(impossible(Self::NAME, "footprint: too small for 16 objects of this value_bytes"));
        }
        let mut area = MmapArea::new();
        let index = area.map(PageCount::covering(keys * SLOT));
        let objects = area.map(PageCount::covering(keys * object_bytes));
        let buffers = area.map(PageCount(buffer_pages));
        let thread = |index: u16| Thread {
            rng: Xoshiro256PlusPlus::seed_from_u64(mix(config.seed) ^ u64::from(index)),
            key: 0,
            set: false,
            done: u64::MAX,
            buffered: false,
        };
        Ok(Self {
            index,
            objects,
            buffers,
            keys,
            object_bytes,
            value_lines: config.value_bytes.div_ceil(LINE),
            set_permille: config.set_permille.into(),
            seed: config.seed,
            popularity: Zipf::new(keys, config.skew),
            scramble: Bijection::new(keys, mix(config.seed ^ 0x5c4a)),
            threads: (0..config.threads).map(thread).collect(),
            filling: Filling { next_key: 0, objects: 0, index: vec![0; index.pages.len().div_ceil(64) as usize] },
        })
    }

    /// Bytes from the index' start to the slot of `key`. The whole index is used: its slots are a few more than the keys.
    #[inline]
    fn slot(&self, key: u64) -> u64 {
        scale(mix(key ^ self.seed.rotate_left(32)), self.index.bytes() / SLOT) * SLOT
    }

    /// Accesses of a request: slot, header, and two for each line of the value.
    #[inline]
    fn request_len(&self) -> u64 {
        2 + 2 * self.value_lines
    }

    /// The `step`th access of a thread's request.
    #[inline]
    fn access(&self, thread: u16, key: u64, set: bool, step: u64) -> Access {
        let object = key * self.object_bytes;
        match step {
            0 => Access::load(self.index.at(self.slot(key))),
            1 => Access::load(self.objects.at(object)),
            _ => {
                let line = (step - 2) / 2;
                let in_object = self.objects.at(object + HEADER + line * LINE);
                let buffer = u64::from(thread) * BUFFER_PAGES * PAGE_BYTES;
                let in_buffer = self.buffers.at(buffer + line * LINE % (BUFFER_PAGES * PAGE_BYTES));
                let (from, to) = if set { (in_buffer, in_object) } else { (in_object, in_buffer) };
                if step.is_multiple_of(2) { Access::load(from) } else { Access::store(to) }
            }
        }
    }

    /// Touches what inserting the next key touches first: its object's new pages and perhaps a page of the index.
    fn insert(&mut self, touches: &mut Vec<(Vpn, bool)>) {
        let key = self.filling.next_key;
        self.filling.next_key += 1;
        let page = self.slot(key) / PAGE_BYTES;
        let word = &mut self.filling.index[(page / 64) as usize];
        if *word >> (page % 64) & 1 == 0 {
            *word |= 1 << (page % 64);
            touches.push((self.index.pages.start + page, true));
        }
        let needed = PageCount::covering((key + 1) * self.object_bytes).0;
        touches.extend((self.filling.objects..needed).map(|page| (self.objects.pages.start + page, true)));
        self.filling.objects = needed;
    }

    /// After the last key: index pages that no key hit, as the table's growth would have initialised them.
    fn finish_index(&mut self, touches: &mut Vec<(Vpn, bool)>) {
        let filling = &mut self.filling;
        let missed =
            (0..self.index.pages.len()).filter(|page| filling.index[(page / 64) as usize] >> (page % 64) & 1 == 0);
        touches.extend(missed.map(|page| (self.index.pages.start + page, true)));
        filling.index.fill(u64::MAX);
    }
}

impl Program for ZipfKv {
    const NAME: &'static str = "zipf_kv";

    fn regions(&self) -> Vec<Region> {
        vec![self.index, self.objects, self.buffers]
    }

    fn footprint(&self) -> PageCount {
        PageCount(self.regions().iter().map(|region| region.pages.len()).sum())
    }

    fn touch(&mut self, thread: u16, touches: &mut Vec<(Vpn, bool)>, most: usize) {
        if !std::mem::replace(&mut self.threads[usize::from(thread)].buffered, true) {
            let first = self.buffers.pages.start + u64::from(thread) * BUFFER_PAGES;
            touches.extend((0..BUFFER_PAGES).map(|page| (first + page, true)));
        }
        if thread != 0 {
            return;
        }
        // One insert touches at most a page of the index and, with values of 64 KiB, 18 pages of objects.
        while self.filling.next_key < self.keys && touches.len() + 20 <= most.max(40) {
            self.insert(touches);
        }
        if self.filling.next_key == self.keys && touches.is_empty() {
            self.finish_index(touches);
        }
    }

    fn fill(&mut self, thread: u16, accesses: &mut Vec<Access>, most: usize) -> u64 {
        let len = self.request_len();
        let Thread { mut rng, mut key, mut set, mut done, buffered } = self.threads[usize::from(thread)].clone();
        let room = (most - accesses.len()) as u64;
        while accesses.len() < most {
            if done >= len {
                key = self.scramble.apply(self.popularity.sample(&mut rng) - 1);
                set = scale(rng.next_u64(), 1000) < self.set_permille;
                done = 0;
            }
            let until = len.min(done + (most - accesses.len()) as u64);
            accesses.extend((done..until).map(|step| self.access(thread, key, set, step)));
            done = until;
        }
        self.threads[usize::from(thread)] = Thread { rng, key, set, done, buffered };
        // Evenly over the request's accesses, since batches cut requests anywhere.
        room * (INSTRUCTIONS_PER_REQUEST + INSTRUCTIONS_PER_LINE * self.value_lines) / len
    }
}
