// SPDX-License-Identifier: MIT OR Apache-2.0
//! `key_value`: redis and memcached under YCSB-like load: zipf keys, reads and updates.
//!
//! Memory: the hash table (8 bytes a slot; what the objects leave of the footprint, at least a slot
//! a key, as between two doublings), the objects as their allocator lays them
//! ([`slabs`](super::slabs)), and a buffer a thread. Popular keys lie anywhere among the objects
//! (YCSB's scrambled zipfian).
//! - redis (7.0, jemalloc): for each key a `dictEntry` (24 bytes), the key (an sds string, 2 bytes
//!   besides), an `robj` (16) and the value (sds, 4 bytes besides; up to 44 bytes it is part of the
//!   `robj`). One thread.
//! - memcached (1.6): an item for each key: 56 bytes of header with hash, LRU links and CAS, key,
//!   value. Its slabs may lie in several VMAs (`stretches`): each doubling of the table leaves a
//!   hole where the old one was.
//!
//! A redis request: slot, entry, key compared word by word, `robj` (its LRU clock stored to), value
//! copied word by word to the reply, or stored to from the request; with a load factor below one,
//! every other look-up passes another entry first. A memcached request: slot, item header
//! (reference count taken and given back), key; the value itself is copied by the kernel
//! (`sendmsg`, `read`) and not seen in user mode; an update links a new item in and takes the old
//! one out, with both LRU neighbours. The kernel's side of the network is left out.

use nestwalk_mem::addr::PAGE_BYTES;
use nestwalk_mem::{Access, Gva, Vpn};
use serde::{Deserialize, Serialize};

use super::bijection::{Bijection, Dice, mix, scale};
use super::config::{impossible, parameters};
use super::layout::Layout;
use super::memory::Region;
use super::pattern::Pattern;
use super::slabs::{Allocator, Slabs};
use super::zipf::Zipf;
use crate::stream::WorkloadError;

const WORD: u64 = 8;
/// Pages of a thread's buffers (redis: 16 KiB of query and 16 KiB of reply for each of 8 clients).
const BUFFER_PAGES: u64 = 64;
/// Bytes of an item before its key: `item` and the CAS number.
const ITEM: u64 = 56;
/// Values up to here are part of redis' `robj` (`OBJ_ENCODING_EMBSTR_SIZE_LIMIT`).
const EMBEDDED: u64 = 44;

/// Which server.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Server {
    /// redis.
    Redis,
    /// memcached.
    Memcached,
}

parameters! {
    /// A key-value server. Of redis were measured 1567 accesses a command (2.35 thousand million in
    /// the steady phase of the bundled trace's capture, 1.5 million commands) and 2689 instructions
    /// in a thousand. The structures here account for 77 of them at that trace's sizes, so 951 in a
    /// thousand are local: those to the hottest lines (909), and parsing and replying within the
    /// buffers.
    KeyValueConfig mixed(951, 2689, 6) {
        /// Which server.
        server: Server = Server::Redis,
        /// Bytes of a key, 8 to 250. YCSB's have 23.
        key_bytes: u64 = 23,
        /// Bytes of a value, on average, at most 8192. YCSB's record has 1000.
        value_bytes: u64 = 1000,
        /// Values have up to so many thousandths more or less, uniformly.
        value_spread_permille: u64 = 0,
        /// Zipf exponent of the keys' popularity, above 0 and at most 5. YCSB has 0.99.
        #[schemars(range(max = 5.0), extend("exclusiveMinimum" = 0.0, "x-unit" = "zipf's exponent"))]
        skew: f64 = 0.99,
        /// Of 1000 requests, how many are updates. YCSB-A has 500, B 50, C none.
        set_permille: u16 = 50,
        /// VMAs over which the objects are spread, 1 to 64.
        stretches: u64 = 1,
    }
}

pub(super) struct KeyValue {
    layout: Layout,
    table: Region,
    stretches: Vec<Region>,
    groups_per_stretch: u64,
    buffers: Region,
    config: KeyValueConfig,
    slabs: Slabs,
    keys: u64,
    popularity: Zipf,
    scramble: Bijection,
    dice: Vec<Dice>,
    filling: Filling,
}

/// The keys being inserted, by whichever thread's turn it is.
struct Filling {
    /// Buffer pages done, then the next key.
    buffers: u64,
    next_key: u64,
    /// Of the key's group: the next of its pages.
    next_page: usize,
    /// Table pages touched so far, a bit each.
    table: Vec<u64>,
    /// Table pages looked at after the last key.
    swept: u64,
    /// Pages of the last key for which there was no room any more.
    surplus: Vec<(Vpn, bool)>,
}

/// Bytes of a key's objects, if its draw is `draw`.
fn sizes(config: &KeyValueConfig, draw: u64) -> Vec<u64> {
    let spread = config.value_bytes * config.value_spread_permille / 1000;
    let value = config.value_bytes - spread + scale(draw, 2 * spread + 1);
    match config.server {
        Server::Redis if value <= EMBEDDED => vec![24, config.key_bytes + 2, 20 + value],
        Server::Redis => vec![24, config.key_bytes + 2, 16, value + 4],
        Server::Memcached => vec![ITEM + config.key_bytes + value],
    }
}

impl KeyValue {
    pub(super) fn new(config: &KeyValueConfig) -> Result<Self, WorkloadError> {
        let name = Self::NAME;
        let mut layout = Layout::new(name, config.common(), config.mixture())?;
        check(config)?;
        let buffers = BUFFER_PAGES * u64::from(config.threads);
        let allocator = if config.server == Server::Redis { Allocator::Jemalloc } else { Allocator::Memcached };
        let guess = layout.left() * PAGE_BYTES / (config.value_bytes + config.key_bytes + 100);
        let slabs = Slabs::new(allocator, guess, config.seed, |draw| sizes(config, draw));
        let room = (layout.left() * PAGE_BYTES).saturating_sub(buffers * PAGE_BYTES);
        // A group, and a slot of the table for each of its keys.
        let groups = room / (slabs.group_pages() * PAGE_BYTES + slabs.group_keys() * WORD);
        if groups < config.stretches {
            return Err(impossible(name, "footprint: too small for the slabs of these sizes and stretches"));
        }
        let groups_per_stretch = groups.div_ceil(config.stretches);
        let keys = groups * slabs.group_keys();
        let buffers = layout.map(buffers);
        let table = layout.map(layout.left() - groups * slabs.group_pages());
        let mut left = groups;
        let mut stretches = Vec::new();
        while left > 0 {
            if config.stretches > 1 {
                layout.gap();
            }
            let here = left.min(groups_per_stretch);
            stretches.push(layout.map(here * slabs.group_pages()));
            left -= here;
        }
        Ok(Self {
            filling: Filling {
                buffers: 0,
                next_key: 0,
                next_page: 0,
                table: vec![0; table.pages.len().div_ceil(64) as usize],
                swept: 0,
                surplus: Vec::new(),
            },
            layout,
            table,
            stretches,
            groups_per_stretch,
            buffers,
            slabs,
            keys,
            popularity: Zipf::new(keys, config.skew),
            scramble: Bijection::new(keys, mix(config.seed ^ 0x5c4a)),
            dice: Dice::of_threads(config.seed, config.threads),
            config: config.clone(),
        })
    }

    /// The slot of `key`.
    #[inline]
    fn slot(&self, key: u64) -> Gva {
        self.table.at(scale(mix(key ^ self.config.seed.rotate_left(32)), self.table.bytes() / WORD) * WORD)
    }

    /// Object `object` of `key`.
    #[inline]
    fn object(&self, key: u64, object: usize) -> Gva {
        let (group, within) = (key / self.slabs.group_keys(), key % self.slabs.group_keys());
        let region = self.stretches[(group / self.groups_per_stretch) as usize];
        let base = group % self.groups_per_stretch * self.slabs.group_pages() * PAGE_BYTES;
        region.at(base + self.slabs.offset(group, within, object))
    }

    fn sizes(&self, key: u64) -> Vec<u64> {
        sizes(&self.config, self.slabs.draw(key / self.slabs.group_keys(), key % self.slabs.group_keys()))
    }

    fn redis(&self, key: u64, set: bool, thread: usize, accesses: &mut Vec<Access>) {
        let entry = |key, accesses: &mut Vec<Access>| {
            accesses.extend([0, 16].map(|field| Access::load(plus(self.object(key, 0), field))));
            words(self.object(key, 1), self.config.key_bytes, false, accesses);
        };
        accesses.push(Access::load(self.slot(key)));
        if mix(key) & 1 == 0 {
            entry(scale(mix(key ^ 0xc4a1), self.keys), accesses);
        }
        entry(key, accesses);
        accesses.push(Access::load(plus(self.object(key, 0), 8)));
        let object = self.object(key, 2);
        accesses.extend([Access::load(object), Access::store(object), Access::load(plus(object, 8))]);
        let sizes = self.sizes(key);
        let value = match sizes.get(3) {
            Some(&bytes) => (self.object(key, 3), bytes),
            None => (plus(object, 16), sizes[2] - 16),
        };
        let buffer = self.buffers.at(thread as u64 * BUFFER_PAGES * PAGE_BYTES + mix(key) % 16 * 4 * PAGE_BYTES);
        for byte in (0..value.1).step_by(WORD as usize) {
            let (in_value, in_buffer) = (plus(value.0, byte), plus(buffer, byte));
            let (from, to) = if set { (in_buffer, in_value) } else { (in_value, in_buffer) };
            accesses.extend([Access::load(from), Access::store(to)]);
        }
    }

    fn memcached(&self, key: u64, set: bool, accesses: &mut Vec<Access>) {
        accesses.push(Access::load(self.slot(key)));
        let item = self.object(key, 0);
        let reference = plus(item, 36);
        // Chain link, time and sizes, key; reference count up and down.
        accesses.extend([16, 24, 32, 40].map(|field| Access::load(plus(item, field))));
        words(plus(item, ITEM), self.config.key_bytes, false, accesses);
        accesses.extend([Access::load(reference), Access::store(reference)]);
        if set {
            // The old item leaves its LRU list, the new one (which takes the place of another)
            // enters it.
            for other in [mix(key ^ 1), mix(key ^ 2)] {
                accesses.push(Access::store(self.object(scale(other, self.keys), 0)));
            }
            let fresh = self.object(scale(mix(key ^ 3), self.keys), 0);
            accesses.extend((0..ITEM).step_by(WORD as usize).map(|field| Access::store(plus(fresh, field))));
            words(plus(fresh, ITEM), self.config.key_bytes, true, accesses);
            accesses.extend([Access::store(self.slot(key)), Access::store(item)]);
        }
        accesses.push(Access::store(reference));
    }

    /// Touches what inserting the next key touches first: its objects' new pages and perhaps a page
    /// of the table.
    fn insert(&mut self, touches: &mut Vec<(Vpn, bool)>) {
        let key = self.filling.next_key;
        // The table got its present size at half of the keys; then new keys and moved ones fill it
        // at random places.
        if key >= self.keys / 2 {
            let page = (self.slot(key).0 - self.table.at(0).0) / PAGE_BYTES;
            let word = &mut self.filling.table[(page / 64) as usize];
            if *word >> (page % 64) & 1 == 0 {
                *word |= 1 << (page % 64);
                touches.push((self.table.pages.start + page, true));
            }
        }
        let (group, within) = (key / self.slabs.group_keys(), key % self.slabs.group_keys());
        let start = self.stretches[(group / self.groups_per_stretch) as usize].pages.start
            + group % self.groups_per_stretch * self.slabs.group_pages();
        let pages = self.slabs.touches(group);
        let new = pages[self.filling.next_page..].iter().take_while(|&&(user, _)| u64::from(user) <= within);
        let before = touches.len();
        touches.extend(new.map(|&(_, page)| (start + u64::from(page), true)));
        self.filling.next_page += touches.len() - before;
        // The table's page is counted apart: it was pushed before `before`.
        self.filling.next_key += 1;
        if within + 1 == self.slabs.group_keys() {
            self.filling.next_page = 0;
        }
    }
}

fn check(config: &KeyValueConfig) -> Result<(), WorkloadError> {
    let name = KeyValue::NAME;
    if !(8..=250).contains(&config.key_bytes) {
        return Err(impossible(name, format!("key_bytes = {}: from 8 to 250", config.key_bytes)));
    }
    if !(1..=8192).contains(&config.value_bytes) || config.value_spread_permille > 900 {
        return Err(impossible(name, "value_bytes is from 1 to 8192 and value_spread_permille at most 900"));
    }
    if !(config.skew > 0.0 && config.skew <= 5.0) {
        return Err(impossible(name, format!("skew = {}: above 0 and at most 5", config.skew)));
    }
    if config.set_permille > 1000 || !(1..=64).contains(&config.stretches) {
        return Err(impossible(name, "set_permille is at most 1000 and stretches from 1 to 64"));
    }
    Ok(())
}

fn plus(at: Gva, bytes: u64) -> Gva {
    Gva(at.0 + bytes)
}

/// `bytes` from `at` on, word by word.
fn words(at: Gva, bytes: u64, store: bool, accesses: &mut Vec<Access>) {
    accesses.extend((0..bytes).step_by(WORD as usize).map(|byte| Access::new(plus(at, byte), store)));
}

impl Pattern for KeyValue {
    const NAME: &'static str = "key_value";

    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn touch(&mut self, _: u16, touches: &mut Vec<(Vpn, bool)>, most: usize) {
        let surplus = &mut self.filling.surplus;
        let fits = surplus.len().min(most.saturating_sub(touches.len()));
        touches.extend(surplus.drain(..fits));
        while self.filling.buffers < self.buffers.pages.len() && touches.len() < most {
            touches.push((self.buffers.pages.start + self.filling.buffers, true));
            self.filling.buffers += 1;
        }
        while self.filling.next_key < self.keys && touches.len() < most {
            self.insert(touches);
        }
        // Table pages that no key hit, as the table's making would have zeroed them.
        while self.filling.next_key == self.keys && self.filling.swept < self.table.pages.len() && touches.len() < most
        {
            let page = self.filling.swept;
            self.filling.swept += 1;
            if self.filling.table[(page / 64) as usize] >> (page % 64) & 1 == 0 {
                touches.push((self.table.pages.start + page, true));
            }
        }
        if touches.len() > most {
            self.filling.surplus.extend(touches.drain(most..));
        }
    }

    fn operate(&mut self, thread: usize, accesses: &mut Vec<Access>) {
        let dice = &mut self.dice[thread];
        let key = self.scramble.apply(self.popularity.sample(&mut dice.0) - 1);
        let set = dice.chance(self.config.set_permille.into());
        match self.config.server {
            Server::Redis => self.redis(key, set, thread, accesses),
            Server::Memcached => self.memcached(key, set, accesses),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redis_request_finds_its_own_key_and_value() {
        let config = KeyValueConfig { value_spread_permille: 500, value_bytes: 256, ..KeyValueConfig::default() };
        let store = KeyValue::new(&config).unwrap();
        let mut accesses = Vec::new();
        for key in [0, 1, store.keys / 2, store.keys - 1] {
            accesses.clear();
            store.redis(key, true, 0, &mut accesses);
            let stored: Vec<u64> = accesses.iter().filter(|a| a.is_store()).map(|a| a.gva().0).collect();
            let value = store.object(key, 3).0;
            assert_eq!(stored[1], value, "after the robj, the value is written");
            let bytes = store.sizes(key)[3];
            assert!((132..=388).contains(&bytes), "{bytes}");
            assert_eq!(stored.len() as u64, 1 + bytes.div_ceil(8));
        }
    }

    #[test]
    fn a_memcached_read_does_not_see_the_value() {
        let config = KeyValueConfig { server: Server::Memcached, stretches: 3, ..KeyValueConfig::default() };
        let store = KeyValue::new(&config).unwrap();
        assert_eq!(store.stretches.len(), 3);
        let mut accesses = Vec::new();
        store.memcached(5, false, &mut accesses);
        let item = store.object(5, 0).0;
        assert!(accesses[1..].iter().all(|a| (item..item + ITEM + 24).contains(&a.gva().0)), "{accesses:?}");
    }

    #[test]
    fn keys_and_updates_come_as_often_as_configured() {
        let config = KeyValueConfig {
            server: Server::Memcached,
            footprint: nestwalk_mem::PageCount(2048),
            value_bytes: 64,
            set_permille: 250,
            ..KeyValueConfig::default()
        };
        let mut store = KeyValue::new(&config).unwrap();
        let (mut accesses, mut counts, mut sets) = (Vec::new(), std::collections::BTreeMap::new(), 0);
        let requests = 50_000;
        for _ in 0..requests {
            accesses.clear();
            store.operate(0, &mut accesses);
            *counts.entry(accesses[1].gva().0).or_insert(0) += 1;
            // An update stores to more than the reference count, down and up.
            sets += usize::from(accesses.iter().filter(|access| access.is_store()).count() > 2);
        }
        assert!((240..=260).contains(&(sets * 1000 / requests)), "{sets} of {requests}");
        let mut counts: Vec<usize> = counts.into_values().collect();
        counts.sort_unstable_by(|a, b| b.cmp(a));
        // With some 50,000 keys and exponent 0.99, the first has 8 to 9 % of the requests, twice as
        // many as the second.
        assert!((70..=100).contains(&(counts[0] * 1000 / requests)), "{} of {requests}", counts[0]);
        assert!((170..=230).contains(&(counts[0] * 100 / counts[1])), "{} {}", counts[0], counts[1]);
    }
}
