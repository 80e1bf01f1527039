// SPDX-License-Identifier: MIT OR Apache-2.0
//! `key_value`: redis and memcached under YCSB-like load: zipf keys, reads and updates.
//!
//! Memory: the hash table (8 bytes a slot, a power of two of them), the objects and what the
//! allocator keeps about them ([`slabs`](super::slabs)), and a buffer a thread. What the objects
//! and the table leave of the footprint lies beside the table, as memory of tables that were
//! outgrown does. Popular keys lie anywhere among the objects (YCSB's scrambled zipfian).
//! - redis (7.0, jemalloc 5.3): for each key a `dictEntry` (24 bytes), the key (an sds string), an
//!   `robj` (16) and the value (sds; up to 44 bytes it is part of the `robj`). One thread. Its
//!   table has a slot a key at least.
//! - memcached (1.6): an item for each key: 56 bytes of header with hash, LRU links and CAS, key
//!   and a byte, value and a line's end. Its slabs may lie in several VMAs (`stretches`): each
//!   doubling of the table leaves a hole where the old one was. It has up to 1.5 keys a slot.
//!
//! What a request does follows the source, step by step ([`KeyValue::redis`],
//! [`KeyValue::memcached`]). A look-up passes the keys that share the slot and came later. A value
//! is set at the place that the set before has freed, since both allocators take what was freed
//! last; here the key itself stays where it is, so the places of two keys are exchanged in truth
//! and not here. The kernel's side of the network is left out: it copies memcached's values to the
//! client (`sendmsg`), so a read does not touch them; what the server has read from the socket it
//! copies itself. memcached's thread that maintains the LRU lists is left out.

use nestwalk_mem::addr::PAGE_BYTES;
use nestwalk_mem::{Access, Gva, Vpn};
use serde::{Deserialize, Serialize};

use super::bijection::{Bijection, Dice, mix, scale};
use super::config::{Mixture, impossible, parameters};
use super::layout::Layout;
use super::locals::LOCAL_PAGES;
use super::memory::Region;
use super::pattern::Pattern;
use super::slabs::{Allocator, Slabs};
use super::zipf::Zipf;
use crate::stream::WorkloadError;

const WORD: u64 = 8;
/// Pages of a thread's buffers: redis has 16 KiB of query and 16 KiB of reply for each of 8
/// clients.
const BUFFER_PAGES: u64 = 64;
const CLIENTS: u64 = 8;
const BUFFER: u64 = BUFFER_PAGES / 2 / CLIENTS * PAGE_BYTES;
/// Values up to here are part of redis' `robj` (`OBJ_ENCODING_EMBSTR_SIZE_LIMIT`).
const EMBEDDED: u64 = 44;

/// Fields of redis' `dictEntry` and `robj`.
mod redis {
    pub(super) const ENTRY: usize = 0;
    pub(super) const KEY: usize = 1;
    pub(super) const OBJECT: usize = 2;
    pub(super) const VALUE: usize = 3;
    pub(super) const ENTRY_VALUE: u64 = 8;
    pub(super) const ENTRY_NEXT: u64 = 16;
    /// Of an `robj`, behind type, LRU clock and count of references: a word.
    pub(super) const OBJECT_POINTER: u64 = 8;
    pub(super) const OBJECT_BYTES: u64 = 16;
}

/// Fields of memcached's `item`.
mod item {
    pub(super) const NEXT: u64 = 0;
    pub(super) const PREVIOUS: u64 = 8;
    pub(super) const CHAIN: u64 = 16;
    pub(super) const TIME: u64 = 24;
    pub(super) const EXPIRES: u64 = 28;
    pub(super) const BYTES: u64 = 32;
    pub(super) const REFERENCES: u64 = 36;
    pub(super) const FLAGS: u64 = 38;
    pub(super) const CLASS: u64 = 40;
    pub(super) const KEY_BYTES: u64 = 41;
    pub(super) const CAS: u64 = 48;
    pub(super) const KEY: u64 = 56;
}

/// Which server.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Server {
    /// redis.
    Redis,
    /// memcached.
    Memcached,
}

/// What a request makes besides the accesses here: counted in the servers under
/// `capture/programs/ycsb_client` (docs/model.md).
struct Request {
    /// Accesses to stack, locals, static data and the client's own state.
    locals: u64,
    /// Instructions, but for those that copy the value.
    instructions: u64,
}

impl Server {
    /// Of a read and of an update.
    fn requests(self) -> [Request; 2] {
        match self {
            Self::Redis => [Request { locals: 1868, instructions: 4585 }, Request { locals: 2390, instructions: 5968 }],
            Self::Memcached => {
                [Request { locals: 1160, instructions: 2794 }, Request { locals: 2080, instructions: 5245 }]
            }
        }
    }

    /// Slots of the hash table of so many keys.
    fn slots(self, keys: u64) -> u64 {
        match self {
            // `dictExpand` to the next power of two when there are as many keys as slots.
            Self::Redis => keys.next_power_of_two(),
            // `assoc_start_expand` above 1.5 keys a slot.
            Self::Memcached => (keys * 2).div_ceil(3).next_power_of_two(),
        }
    }
}

parameters! {
    /// A key-value server.
    KeyValueConfig {
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
        /// Of a thousand accesses, those to stack, locals and static data; at most 995. If left
        /// out, as many as the server was counted to make a request.
        #[serde(skip_serializing_if = "Option::is_none")]
        local_permille: Option<u16> = None,
        /// Instructions of a thousand accesses, their own included. If left out, as many as the
        /// server was counted to make a request.
        #[serde(skip_serializing_if = "Option::is_none")]
        instructions_per_kiloaccess: Option<u32> = None,
        /// Mappings of code, libraries and their data.
        small_mappings: u16 = 6,
        /// redis alone, of one thread: it is empty when the run begins, and so many updates of
        /// keys that are drawn evenly among `fill_keys` are the run. 16 of 1024 requests are made
        /// in full, and of the others the pages are touched. `skew`, `set_permille`,
        /// `warm_accesses` and `measured_accesses` do not matter then.
        #[serde(skip_serializing_if = "Option::is_none")]
        fill_requests: Option<u64> = None,
        /// Keys that the clients draw from while they fill the server.
        #[serde(skip_serializing_if = "Option::is_none")]
        fill_keys: Option<u64> = None,
        /// Instructions of the kernel for the network, a request. With this key, or
        /// `fill_requests`, requests are told apart (`statistics.requests`).
        #[serde(skip_serializing_if = "Option::is_none")]
        network_instructions: Option<u64> = None,
    }
}

impl KeyValueConfig {
    /// Local accesses and instructions: as configured, or as counted in the server.
    pub(super) fn mixture(&self) -> Mixture {
        let sets = if self.fill_requests.is_some() { 1000 } else { u64::from(self.set_permille.min(1000)) };
        let [get, set] = self.server.requests();
        let average = |get: u64, set: u64| get * (1000 - sets) + set * sets;
        let data = average(self.data_accesses(false), self.data_accesses(true));
        let locals = average(get.locals, set.locals);
        // A value is copied 32 bytes at a time: a load and a store of four words each.
        let copied = average(self.copied_words(false), self.copied_words(true)) / 2;
        let network = 1000 * self.network_instructions.unwrap_or(0);
        let instructions = average(get.instructions, set.instructions) + copied + network;
        let permille = (locals * 1000 + (locals + data) / 2) / (locals + data);
        Mixture {
            local_permille: self.local_permille.unwrap_or(permille.min(995) as u16),
            instructions_per_kiloaccess: self
                .instructions_per_kiloaccess
                .unwrap_or((instructions * 1000 / (locals + data)) as u32),
            small_mappings: self.small_mappings,
            local_pages: LOCAL_PAGES,
        }
    }

    /// Instructions of an update, those of the network included.
    fn instructions_of_update(&self) -> u64 {
        let [_, set] = self.server.requests();
        let accesses = set.locals + self.data_accesses(true);
        accesses * u64::from(self.mixture().instructions_per_kiloaccess) / 1000
    }

    /// How many different keys a server has that was filled as configured: what it has on average,
    /// and 6 standard deviations of it at the most.
    fn filled_keys_max(&self) -> u64 {
        let (keys, requests) = (self.fill_keys.unwrap_or(0), self.fill_requests.unwrap_or(0));
        let average = keys as f64 * (1.0 - libm::exp(-(requests as f64) / keys.max(1) as f64));
        ((average + 6.0 * libm::sqrt(average)) as u64 + 1).min(keys).min(requests)
    }

    /// Of a thousand accesses, those to locals.
    #[must_use]
    pub fn local_permille_in_effect(&self) -> u16 {
        self.mixture().local_permille
    }

    fn copied_words(&self, set: bool) -> u64 {
        match self.server {
            Server::Memcached if !set => 0,
            _ => self.value_bytes.div_ceil(WORD),
        }
    }

    /// Accesses of a request to the data structures, on average.
    fn data_accesses(&self, set: bool) -> u64 {
        let key = self.key_bytes.div_ceil(WORD);
        let copied = 2 * self.copied_words(set);
        // A look-up passes a third of another key.
        match (self.server, set) {
            (Server::Redis, false) => 3 + key + (3 + key) / 3 + 5 + copied,
            (Server::Redis, true) => 2 * (3 + key + (3 + key) / 3) + 21 + copied,
            (Server::Memcached, false) => 2 + key + (2 + key) / 2 + 12 + 2 * key + copied,
            (Server::Memcached, true) => 2 * (2 + key + (2 + key) / 2) + 57 + 2 * key + copied,
        }
    }
}

pub(super) struct KeyValue {
    layout: Layout,
    table: Region,
    slots: u64,
    stretches: Vec<Region>,
    /// What the allocator keeps about the objects.
    records: Option<Region>,
    groups_per_stretch: u64,
    buffers: Region,
    config: KeyValueConfig,
    slabs: Slabs,
    keys: u64,
    popularity: Zipf,
    scramble: Bijection,
    /// Keys that share a slot with one, in 2^-32: at most so many with probability `sharing[n]`.
    sharing: [u32; 8],
    threads: Vec<Thread>,
    filling: Filling,
}

/// What a thread remembers.
struct Thread {
    dice: Dice,
    /// The key whose value the last update freed: the next value takes its place.
    freed: u64,
    /// memcached: the item at the head of the LRU list.
    head: u64,
    /// Pages that its last key touches first and for which there was no room any more.
    surplus: Vec<(Vpn, bool)>,
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
    /// Pages between groups touched after that.
    between: u64,
}

/// Bytes of a key's objects, if its draw is `draw`.
fn sizes(config: &KeyValueConfig, draw: u64) -> Vec<u64> {
    let spread = config.value_bytes * config.value_spread_permille / 1000;
    let value = config.value_bytes - spread + scale(draw, 2 * spread + 1);
    // An sds string has a header that depends on its length, and a zero behind it (`sdsReqType`).
    let string = |bytes| bytes + if bytes < 32 { 2 } else { 4 + 2 * u64::from(bytes >= 256) };
    match config.server {
        Server::Redis if value <= EMBEDDED => vec![24, string(config.key_bytes), redis::OBJECT_BYTES + 4 + value],
        Server::Redis => vec![24, string(config.key_bytes), redis::OBJECT_BYTES, string(value)],
        Server::Memcached => vec![item::KEY + config.key_bytes + 1 + value + 2],
    }
}

/// Of the bytes of a long sds string, those that are not the string's own.
fn string_overhead(bytes: u64) -> u64 {
    if bytes < 256 + 6 { 4 } else { 6 }
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
        let room = layout.left().saturating_sub(buffers);
        let pages = slabs.group_span() + slabs.record_pages();
        let table_pages = |groups| {
            let slots = config.server.slots(groups * slabs.group_keys());
            (slots * WORD).div_ceil(PAGE_BYTES)
        };
        let mut groups = room / pages;
        while groups > 0 && groups * pages + table_pages(groups) > room {
            groups -= 1;
        }
        if groups < config.stretches {
            return Err(impossible(name, "footprint: too small for the slabs of these sizes and stretches"));
        }
        let groups_per_stretch = groups.div_ceil(config.stretches);
        let keys = groups * slabs.group_keys();
        let wanted = config.filled_keys_max();
        if keys < wanted {
            let what = format!("footprint: has room for {keys} keys of the {wanted} by which the server may be filled");
            return Err(impossible(name, what));
        }
        let buffers = layout.map(buffers);
        let table = layout.map(layout.left() - groups * pages);
        let records = (slabs.record_pages() > 0).then(|| layout.map(groups * slabs.record_pages()));
        let mut left = groups;
        let mut stretches = Vec::new();
        while left > 0 {
            if config.stretches > 1 {
                layout.gap();
            }
            let here = left.min(groups_per_stretch);
            stretches.push(layout.map(here * slabs.group_span()));
            left -= here;
        }
        let slots = config.server.slots(keys);
        let dice = Dice::of_threads(config.seed, config.threads);
        let begun = |(thread, dice)| Thread {
            dice,
            freed: if config.fill_requests.is_some() { 0 } else { scale(mix(config.seed ^ thread as u64), keys) },
            head: scale(mix(config.seed ^ thread as u64 ^ 0x4ead), keys),
            surplus: Vec::new(),
        };
        Ok(Self {
            filling: Filling {
                buffers: 0,
                next_key: 0,
                next_page: 0,
                table: vec![0; table.pages.len().div_ceil(64) as usize],
                swept: 0,
                between: 0,
            },
            layout,
            table,
            slots,
            stretches,
            records,
            groups_per_stretch,
            buffers,
            slabs,
            keys,
            popularity: Zipf::new(keys, config.skew),
            scramble: Bijection::new(keys, mix(config.seed ^ 0x5c4a)),
            sharing: poisson(keys as f64 / slots as f64),
            threads: dice.into_iter().enumerate().map(begun).collect(),
            config: config.clone(),
        })
    }

    /// The slot of `key`.
    #[inline]
    fn slot(&self, key: u64) -> Gva {
        self.table.at(scale(mix(key ^ self.config.seed.rotate_left(32)), self.slots) * WORD)
    }

    /// A key's group and its number in it.
    fn place(&self, key: u64) -> (u64, u64) {
        (key / self.slabs.group_keys(), key % self.slabs.group_keys())
    }

    /// The first page of a group.
    fn group_start(&self, group: u64) -> Vpn {
        let region = self.stretches[(group / self.groups_per_stretch) as usize];
        region.pages.start + group % self.groups_per_stretch * self.slabs.group_span()
    }

    /// Object `object` of `key`.
    #[inline]
    fn object(&self, key: u64, object: usize) -> Gva {
        let (group, within) = self.place(key);
        let region = self.stretches[(group / self.groups_per_stretch) as usize];
        let base = group % self.groups_per_stretch * self.slabs.group_span() * PAGE_BYTES;
        region.at(base + self.slabs.offset(group, within, object))
    }

    /// Where jemalloc looks up the size of object `object` of `key`.
    fn size_of(&self, key: u64, object: usize) -> Gva {
        let (group, within) = self.place(key);
        let base = group * self.slabs.record_pages() * PAGE_BYTES;
        let records = self.records.expect("jemalloc keeps records");
        records.at(base + self.slabs.word_of(self.slabs.offset(group, within, object)))
    }

    fn sizes(&self, key: u64) -> Vec<u64> {
        let (group, within) = self.place(key);
        sizes(&self.config, self.slabs.draw(group, within))
    }

    /// Keys that the server has.
    fn known(&self) -> u64 {
        if self.config.fill_requests.is_some() { self.filling.next_key } else { self.keys }
    }

    /// The keys in the slot of `key` that are looked at before it: those that came later, of as
    /// many as share a slot by chance when the server has all its keys.
    fn passed(&self, key: u64) -> impl Iterator<Item = u64> + use<> {
        let draw = mix(key ^ self.config.seed.rotate_left(16));
        let others = self.sharing.iter().filter(|&&most| draw as u32 >= most).count() as u64;
        let (keys, known) = (self.keys, self.known());
        let all = (0..scale(mix(draw), others + 1)).map(move |nth| scale(mix(key ^ 0xc4a1 ^ nth << 48), keys));
        all.filter(move |&other| other < known)
    }

    /// The value of `key` and its bytes.
    fn value(&self, key: u64) -> (Gva, u64) {
        let sizes = self.sizes(key);
        match self.config.server {
            Server::Redis if sizes.len() == 3 => {
                let object = self.object(key, redis::OBJECT);
                (plus(object, redis::OBJECT_BYTES), sizes[2] - redis::OBJECT_BYTES - 4)
            }
            Server::Redis => (self.object(key, redis::VALUE), sizes[3] - string_overhead(sizes[3])),
            Server::Memcached => {
                let before = item::KEY + self.config.key_bytes + 1;
                (plus(self.object(key, 0), before), sizes[0] - before)
            }
        }
    }

    /// A client's buffer: of what it asked for, or of the reply.
    fn buffer(&self, key: u64, thread: usize, reply: bool) -> Gva {
        let client = thread as u64 * CLIENTS + mix(key) % CLIENTS;
        self.buffers.at((client * 2 + u64::from(reply)) * BUFFER)
    }

    /// `key` of an entry and the string, to compare it with another one.
    fn redis_look(&self, key: u64, accesses: &mut Vec<Access>) {
        accesses.push(Access::load(self.object(key, redis::ENTRY)));
        // The string's header says how long it is.
        accesses.push(Access::load(self.object(key, redis::KEY)));
        words(self.object(key, redis::KEY), self.config.key_bytes, false, accesses);
    }

    /// The slot of `key`, then `key`, string and `next` of each entry before it: `dictFind` of a
    /// key that is not there.
    fn redis_pass(&self, key: u64, accesses: &mut Vec<Access>) {
        accesses.push(Access::load(self.slot(key)));
        for other in self.passed(key) {
            self.redis_look(other, accesses);
            accesses.push(Access::load(plus(self.object(other, redis::ENTRY), redis::ENTRY_NEXT)));
        }
    }

    /// `dictFind`: the entries in the slot of `key` until it is found.
    fn redis_find(&self, key: u64, accesses: &mut Vec<Access>) {
        self.redis_pass(key, accesses);
        self.redis_look(key, accesses);
    }

    /// `lookupKey`: the key, then the value's object, whose LRU clock is set.
    fn redis_look_up(&self, key: u64, accesses: &mut Vec<Access>) {
        self.redis_find(key, accesses);
        let (entry, object) = (self.object(key, redis::ENTRY), self.object(key, redis::OBJECT));
        let value = plus(entry, redis::ENTRY_VALUE);
        accesses.extend([Access::load(value), Access::load(object), Access::store(object)]);
    }

    /// `getGenericCommand`, `setGenericCommand`.
    fn redis(&mut self, key: u64, set: bool, thread: usize, accesses: &mut Vec<Access>) {
        let entry = self.object(key, redis::ENTRY);
        let object = self.object(key, redis::OBJECT);
        let entry_value = plus(entry, redis::ENTRY_VALUE);
        if !set {
            self.redis_look_up(key, accesses);
            // `addReplyBulk`: the string, its length, and the copy of it.
            let (value, bytes) = self.value(key);
            accesses.extend([Access::load(plus(object, redis::OBJECT_POINTER)), Access::load(value)]);
            copy(value, self.buffer(key, thread, true), bytes, accesses);
            return;
        }
        // `processMultibulkBuffer`: the value is a new object, with the count of bytes in use.
        let new = std::mem::replace(&mut self.threads[thread].freed, key);
        let sizes = |key| (self.size_of(key, redis::OBJECT), self.size_of(key, redis::OBJECT + self.own_value()));
        let (value, bytes) = self.value(new);
        let (size_of_object, size_of_value) = sizes(new);
        accesses.extend([Access::load(size_of_value), Access::store(value)]);
        copy(self.buffer(key, thread, false), value, bytes, accesses);
        accesses.push(Access::load(size_of_object));
        accesses.extend([0, redis::OBJECT_POINTER].map(|field| Access::store(plus(self.object(new, 2), field))));
        // `setKey`: `lookupKeyWrite`, then `dbOverwrite`, which looks it up again and copies the
        // entry.
        self.redis_look_up(key, accesses);
        self.redis_find(key, accesses);
        accesses.extend([0, redis::ENTRY_VALUE, redis::ENTRY_NEXT].map(|field| Access::load(plus(entry, field))));
        accesses.extend([Access::load(object), Access::store(entry_value)]);
        // `decrRefCount`: the old value and its object are freed; `zfree` asks for their sizes, and
        // so does `free`.
        let (size_of_object, size_of_value) = sizes(key);
        let (old, _) = self.value(key);
        accesses.extend([object, plus(object, redis::OBJECT_POINTER), old].map(Access::load));
        accesses.extend([size_of_value, size_of_value, size_of_object, size_of_object].map(Access::load));
    }

    /// `setKey` of a key that is not there yet: `lookupKeyWrite` finds nothing, and `dbAdd` adds a
    /// copy of the key and an entry.
    fn redis_add(&self, key: u64, thread: usize, accesses: &mut Vec<Access>) {
        let object = self.object(key, redis::OBJECT);
        let (value, bytes) = self.value(key);
        // `processMultibulkBuffer`, as for a key that is there.
        accesses.extend([Access::load(self.size_of(key, redis::OBJECT + self.own_value())), Access::store(value)]);
        copy(self.buffer(key, thread, false), value, bytes, accesses);
        accesses.push(Access::load(self.size_of(key, redis::OBJECT)));
        accesses.extend([0, redis::OBJECT_POINTER].map(|field| Access::store(plus(object, field))));
        // `dictFind`, and `_dictKeyIndex` of `dictAddRaw`.
        (0..2).for_each(|_| self.redis_pass(key, accesses));
        accesses.push(Access::load(self.size_of(key, redis::KEY)));
        words(self.object(key, redis::KEY), self.config.key_bytes, true, accesses);
        let entry = self.object(key, redis::ENTRY);
        accesses.push(Access::load(self.size_of(key, redis::ENTRY)));
        accesses.extend([0, redis::ENTRY_VALUE, redis::ENTRY_NEXT].map(|field| Access::store(plus(entry, field))));
        accesses.push(Access::store(self.slot(key)));
    }

    /// The key of the next request that fills the server, if it has it already. A key that it has
    /// not is the next, as it does not matter which one it is.
    fn draw_known(&mut self, thread: usize) -> Option<u64> {
        let drawn = self.threads[thread].dice.below(self.config.fill_keys.unwrap_or(1));
        (drawn < self.filling.next_key || self.filling.next_key >= self.keys).then_some(drawn.min(self.keys - 1))
    }

    /// The accesses of the next request that fills the server.
    fn fill_one(&mut self, thread: usize, accesses: &mut Vec<Access>) {
        if let Some(key) = self.draw_known(thread) {
            return self.redis(key, true, thread, accesses);
        }
        let key = self.filling.next_key;
        let mut touches = Vec::new();
        self.insert(&mut touches);
        accesses.extend(touches.iter().map(|&(page, store)| Access::new(Gva(page.address().0), store)));
        self.redis_add(key, thread, accesses);
    }

    /// 1 if a key's value is an object of the allocator's own, and not part of the `robj`.
    fn own_value(&self) -> usize {
        self.slabs.objects() - redis::VALUE
    }

    /// `assoc_find`: slot, then the length of the key, the key and the link of each item.
    fn memcached_find(&self, key: u64, accesses: &mut Vec<Access>) {
        let look = |key, accesses: &mut Vec<Access>| {
            accesses.push(Access::load(plus(self.object(key, 0), item::KEY_BYTES)));
            words(plus(self.object(key, 0), item::KEY), self.config.key_bytes, false, accesses);
        };
        accesses.push(Access::load(self.slot(key)));
        for other in self.passed(key) {
            look(other, accesses);
            accesses.push(Access::load(plus(self.object(other, 0), item::CHAIN)));
        }
        look(key, accesses);
    }

    /// `process_get_command`, `process_update_command` and what follows it.
    fn memcached(&mut self, key: u64, set: bool, thread: usize, accesses: &mut Vec<Access>) {
        let found = self.object(key, 0);
        let load = |field| Access::load(plus(found, field));
        let store = |field| Access::store(plus(found, field));
        if !set {
            // `do_item_get`, `do_item_bump`; the reply's head has the key and the length.
            self.memcached_find(key, accesses);
            accesses.extend([load(item::REFERENCES), store(item::REFERENCES)]);
            accesses.extend([item::TIME, item::EXPIRES, item::FLAGS, item::BYTES].map(load));
            words(plus(found, item::KEY), self.config.key_bytes, false, accesses);
            accesses.extend([item::FLAGS, item::CLASS].map(load));
            // `item_remove` once it is sent: the key is hashed again.
            accesses.push(load(item::KEY_BYTES));
            words(plus(found, item::KEY), self.config.key_bytes, false, accesses);
            accesses.extend([item::FLAGS, item::REFERENCES].map(load));
            accesses.push(store(item::REFERENCES));
            return;
        }
        let state = &mut self.threads[thread];
        let new = std::mem::replace(&mut state.freed, key);
        let head = std::mem::replace(&mut state.head, new);
        // The old item's neighbours in the LRU list are items that were used about when it was.
        let neighbours = [(); 2].map(|()| self.scramble.apply(self.popularity.sample(&mut state.dice.0) - 1));
        let (at, head) = (self.object(new, 0), self.object(head, 0));
        let new_load = |field| Access::load(plus(at, field));
        let new_store = |field| Access::store(plus(at, field));
        // `do_item_alloc` of the item that was freed last.
        accesses.push(new_load(item::NEXT));
        let fields = [item::REFERENCES, item::FLAGS, item::NEXT, item::PREVIOUS, item::CLASS];
        accesses.extend(fields.map(new_store));
        accesses.extend([item::KEY_BYTES, item::BYTES].map(new_store));
        words(plus(at, item::KEY), self.config.key_bytes, true, accesses);
        accesses.extend([item::EXPIRES, item::CHAIN, item::CAS].map(new_store));
        // `conn_nread`: the value came with the command and is copied; `complete_nread_ascii` looks
        // at its end.
        let (value, bytes) = self.value(new);
        copy(self.buffer(key, thread, false), value, bytes, accesses);
        accesses.extend([new_load(item::BYTES), Access::load(plus(value, bytes - 2))]);
        // `do_store_item`: the old item is looked up,
        self.memcached_find(key, accesses);
        accesses.extend([load(item::REFERENCES), store(item::REFERENCES), load(item::TIME), load(item::EXPIRES)]);
        // taken out of the table and of its list, (`do_item_unlink`)
        accesses.extend([load(item::FLAGS), store(item::FLAGS)]);
        self.memcached_find(key, accesses);
        accesses.extend([load(item::CHAIN), store(item::CHAIN), Access::store(self.slot(key))]);
        accesses.extend([load(item::PREVIOUS), load(item::NEXT)]);
        accesses.push(Access::store(plus(self.object(neighbours[0], 0), item::PREVIOUS)));
        accesses.push(Access::store(plus(self.object(neighbours[1], 0), item::NEXT)));
        accesses.extend([load(item::REFERENCES), store(item::REFERENCES)]);
        // the new one linked (`do_item_link`),
        accesses.extend([new_load(item::FLAGS), new_store(item::FLAGS), new_store(item::TIME), new_store(item::CAS)]);
        accesses.extend([Access::load(self.slot(key)), new_store(item::CHAIN), Access::store(self.slot(key))]);
        accesses.extend([new_store(item::PREVIOUS), new_store(item::NEXT)]);
        accesses.push(Access::store(plus(head, item::PREVIOUS)));
        accesses.extend([new_load(item::REFERENCES), new_store(item::REFERENCES)]);
        // and the old one freed (`do_item_remove`, `do_slabs_free`).
        accesses.extend([load(item::REFERENCES), store(item::REFERENCES)]);
        accesses.extend([item::KEY_BYTES, item::BYTES, item::CLASS].map(load));
        accesses.extend([item::FLAGS, item::CLASS, item::PREVIOUS, item::NEXT].map(store));
        words(plus(at, item::KEY), self.config.key_bytes, false, accesses);
        accesses.extend([new_load(item::REFERENCES), new_store(item::REFERENCES)]);
    }

    /// Touches what inserting the next key touches first: its objects' new pages and perhaps a page
    /// of the table.
    fn insert(&mut self, touches: &mut Vec<(Vpn, bool)>) {
        let key = self.filling.next_key;
        // The table got its present size when the one of half as many slots was full; then new keys
        // and moved ones fill it at random places.
        // While clients fill the server, it has that size from the beginning.
        let full = match self.config.server {
            Server::Redis if self.config.fill_requests.is_some() => 0,
            Server::Redis => self.slots / 2,
            Server::Memcached => self.slots / 4 * 3,
        };
        if key >= full.min(self.keys - 1) {
            let page = (self.slot(key).0 - self.table.at(0).0) / PAGE_BYTES;
            let word = &mut self.filling.table[(page / 64) as usize];
            if *word >> (page % 64) & 1 == 0 {
                *word |= 1 << (page % 64);
                touches.push((self.table.pages.start + page, true));
            }
        }
        let (group, within) = self.place(key);
        let start = self.group_start(group);
        let records = self.records.map(|region| region.pages.start + group * self.slabs.record_pages());
        let pages = self.slabs.touches(group);
        let new = pages[self.filling.next_page..].iter().take_while(|touch| u64::from(touch.key) <= within);
        let before = touches.len();
        touches.extend(new.map(|&touch| match (self.slabs.record_page(touch), records) {
            (Some(page), Some(records)) => (records + page, true),
            _ => (start + u64::from(touch.page), true),
        }));
        self.filling.next_page += touches.len() - before;
        // The table's page is counted apart: it was pushed before `before`.
        self.filling.next_key += 1;
        if within + 1 == self.slabs.group_keys() {
            self.filling.next_page = 0;
        }
    }
}

/// With `mean` on average: the probabilities, in 2^-32, that there are at most 0, 1, 2 ... .
fn poisson(mean: f64) -> [u32; 8] {
    let (mut term, mut sum) = (libm::exp(-mean), 0.0);
    std::array::from_fn(|n| {
        sum += term;
        term *= mean / (n + 1) as f64;
        (sum * f64::from(u32::MAX)) as u32
    })
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
    let fills = config.fill_requests.is_some();
    if fills != config.fill_keys.is_some() || config.fill_requests == Some(0) || config.fill_keys == Some(0) {
        return Err(impossible(name, "fill_requests and fill_keys: give both, each at least 1, or none"));
    }
    if fills && (config.server != Server::Redis || config.threads > 1) {
        return Err(impossible(name, "fill_requests: only for server = \"redis\" with threads = 1"));
    }
    if config.set_permille > 1000 || !(1..=64).contains(&config.stretches) {
        return Err(impossible(name, "set_permille is at most 1000 and stretches from 1 to 64"));
    }
    Ok(())
}

/// `bytes` are copied word by word. (A vector's access is one for each word, as in a capture.)
fn copy(from: Gva, to: Gva, bytes: u64, accesses: &mut Vec<Access>) {
    let word = |byte| [Access::load(plus(from, byte)), Access::store(plus(to, byte))];
    accesses.extend((0..bytes).step_by(WORD as usize).flat_map(word));
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

    fn touch(&mut self, thread: u16, touches: &mut Vec<(Vpn, bool)>, most: usize) {
        let surplus = &mut self.threads[usize::from(thread)].surplus;
        let fits = surplus.len().min(most.saturating_sub(touches.len()));
        touches.extend(surplus.drain(..fits));
        while self.filling.buffers < self.buffers.pages.len() && touches.len() < most {
            touches.push((self.buffers.pages.start + self.filling.buffers, true));
            self.filling.buffers += 1;
        }
        if self.filling() > 0 {
            return;
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
        let (between, groups) = (self.slabs.between(), self.keys / self.slabs.group_keys());
        let pages = groups * (between.end - between.start);
        while self.filling.swept == self.table.pages.len() && self.filling.between < pages && touches.len() < most {
            let (group, page) = (self.filling.between % groups, self.filling.between / groups);
            touches.push((self.group_start(group) + between.start + page, true));
            self.filling.between += 1;
        }
        if touches.len() > most {
            self.threads[usize::from(thread)].surplus.extend(touches.drain(most..));
        }
    }

    fn tells_requests(&self) -> bool {
        self.config.network_instructions.is_some()
    }

    fn filling(&self) -> u64 {
        self.config.fill_requests.unwrap_or(0)
    }

    fn touch_request(&mut self, touches: &mut Vec<(Vpn, bool)>) -> u64 {
        let key = match self.draw_known(0) {
            // An update's value goes where the last one freed one.
            Some(key) => std::mem::replace(&mut self.threads[0].freed, key),
            None => {
                let key = self.filling.next_key;
                self.insert(touches);
                key
            }
        };
        let (value, bytes) = self.value(key);
        let pages = value.0 / PAGE_BYTES..=(value.0 + bytes - 1) / PAGE_BYTES;
        touches.extend(pages.map(|page| (Vpn(page), true)));
        self.config.instructions_of_update()
    }

    fn operate(&mut self, thread: usize, accesses: &mut Vec<Access>) {
        if self.filling() > 0 {
            return self.fill_one(thread, accesses);
        }
        let dice = &mut self.threads[thread].dice;
        let key = self.scramble.apply(self.popularity.sample(&mut dice.0) - 1);
        let set = dice.chance(self.config.set_permille.into());
        match self.config.server {
            Server::Redis => self.redis(key, set, thread, accesses),
            Server::Memcached => self.memcached(key, set, thread, accesses),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests(store: &mut KeyValue, requests: u64) -> Vec<Vec<Access>> {
        let request = |_| {
            let mut accesses = Vec::new();
            store.operate(0, &mut accesses);
            accesses
        };
        (0..requests).map(request).collect()
    }

    fn redis(store: &mut KeyValue, key: u64, set: bool) -> Vec<Access> {
        let mut accesses = Vec::new();
        store.redis(key, set, 0, &mut accesses);
        accesses
    }

    fn stores(accesses: &[Access]) -> Vec<u64> {
        accesses.iter().filter(|access| access.is_store()).map(|access| access.gva().0).collect()
    }

    /// How many accesses begin in the `bytes` from `at` on: loads, stores.
    fn within(accesses: &[Access], at: Gva, bytes: u64) -> (usize, usize) {
        let inside = accesses.iter().filter(|access| (at.0..at.0 + bytes).contains(&access.gva().0));
        let stores = inside.clone().filter(|access| access.is_store()).count();
        (inside.count() - stores, stores)
    }

    #[test]
    fn a_redis_read_finds_its_own_key_and_copies_its_value() {
        let config = KeyValueConfig { value_spread_permille: 500, value_bytes: 256, ..KeyValueConfig::default() };
        let mut store = KeyValue::new(&config).unwrap();
        for key in [0, 1, store.keys / 2, store.keys - 1] {
            let accesses = redis(&mut store, key, false);
            assert_eq!(accesses[0], Access::load(store.slot(key)));
            // Key and value of the entry; the string's header and three words of it; clock and
            // pointer of the object.
            assert_eq!(within(&accesses, store.object(key, redis::ENTRY), 24), (2, 0));
            assert_eq!(within(&accesses, store.object(key, redis::KEY), 25), (4, 0));
            assert_eq!(within(&accesses, store.object(key, redis::OBJECT), 16), (2, 1));
            let (value, bytes) = store.value(key);
            assert!((128..=384).contains(&bytes), "{bytes}");
            let words = bytes.div_ceil(8) as usize;
            assert_eq!(within(&accesses, value, bytes), (1 + words, 0), "its header, then all of it");
            assert_eq!(within(&accesses, store.buffer(key, 0, true), BUFFER), (0, words));
        }
    }

    /// The value goes where the update before has freed one, and the entry points to it.
    #[test]
    fn a_redis_update_takes_what_the_last_one_freed() {
        let mut store = KeyValue::new(&KeyValueConfig::default()).unwrap();
        redis(&mut store, 77, true);
        let accesses = redis(&mut store, 5000, true);
        let (value, bytes) = store.value(77);
        let words = bytes.div_ceil(8) as usize;
        assert_eq!(within(&accesses, value, bytes), (0, 1 + words));
        assert_eq!(within(&accesses, store.object(77, redis::OBJECT), 16), (0, 2));
        assert_eq!(within(&accesses, store.buffer(5000, 0, false), BUFFER), (words, 0));
        assert_eq!(accesses.iter().filter(|access| access.gva() == store.slot(5000)).count(), 2, "two look-ups");
        let pointer = plus(store.object(5000, redis::ENTRY), redis::ENTRY_VALUE);
        assert_eq!(stores(&accesses).iter().filter(|&&at| at == pointer.0).count(), 1);
        assert_eq!(within(&accesses, store.value(5000).0, 1000), (1, 0), "the old value's header");
        // `zmalloc` and `zfree` ask for the size of what they gave and take.
        for (key, times) in [(77, 1), (5000, 2)] {
            for object in [redis::OBJECT, redis::VALUE] {
                let loads = accesses.iter().filter(|access| access.gva() == store.size_of(key, object));
                assert!(loads.count() >= times, "key {key}, object {object}");
            }
        }
        let accesses = redis(&mut store, 9, true);
        assert_eq!(within(&accesses, store.value(5000).0, 1000).1, 1 + words);
    }

    #[test]
    fn a_memcached_read_does_not_see_the_value_and_an_update_copies_it() {
        let config = KeyValueConfig { server: Server::Memcached, stretches: 3, ..KeyValueConfig::default() };
        let mut store = KeyValue::new(&config).unwrap();
        assert_eq!(store.stretches.len(), 3);
        let key = (0..).find(|&key| store.passed(key).next().is_none()).unwrap();
        let item = store.object(key, 0);
        let mut accesses = Vec::new();
        store.memcached(key, false, 0, &mut accesses);
        assert!(accesses[1..].iter().all(|a| (item.0..item.0 + item::KEY + 24).contains(&a.gva().0)), "{accesses:?}");
        // Its reference count goes up and down.
        assert_eq!(stores(&accesses), [item.0 + item::REFERENCES; 2]);
        let freed = store.threads[0].freed;
        accesses.clear();
        store.memcached(key, true, 0, &mut accesses);
        let (value, bytes) = store.value(freed);
        assert_eq!(bytes, 1002, "with the end of the line");
        assert_eq!(within(&accesses, value, bytes), (1, 126));
        assert_eq!(within(&accesses, store.value(key).0, 1000), (0, 0), "the old value is not looked at");
        assert_eq!((store.threads[0].freed, store.threads[0].head), (key, freed));
        // Out of the list with the old item: a store to each of its neighbours; into the list with
        // the new one: a store to the item that was the first.
        let others = |access: &&Access| {
            let at = access.gva().0;
            let apart = |from: Gva, bytes| !(from.0..from.0 + bytes).contains(&at);
            access.is_store() && apart(item, 1100) && apart(store.object(freed, 0), 1100) && at != store.slot(key).0
        };
        assert_eq!(accesses.iter().filter(others).count(), 3);
    }

    /// redis' table has as many slots as keys or up to twice as many, memcached's down to two for
    /// three keys; so many keys are passed on the way to one.
    #[test]
    fn tables_are_powers_of_two_and_look_ups_pass_who_shares_a_slot() {
        for (server, mebibytes, least, most) in
            [(Server::Redis, 1024, 0.5, 1.0), (Server::Redis, 1536, 0.5, 1.0), (Server::Memcached, 1024, 0.75, 1.5)]
        {
            let footprint = nestwalk_mem::PageCount(mebibytes << 8);
            let store = KeyValue::new(&KeyValueConfig { server, footprint, ..KeyValueConfig::default() }).unwrap();
            let load = store.keys as f64 / store.slots as f64;
            assert!(store.slots.is_power_of_two() && (least..=most).contains(&load), "{server:?}: {load}");
            let passed = (0..40_000).map(|key| store.passed(key).count()).sum::<usize>() as f64 / 40_000.0;
            assert!((passed - load / 2.0).abs() < 0.02, "{server:?}: {passed} passed at {load} keys a slot");
        }
    }

    /// The share of local accesses follows from what a request makes: the stated average of the
    /// accesses here is the true one.
    #[test]
    fn a_request_makes_as_many_accesses_as_its_share_of_locals_assumes() {
        for (server, value_bytes) in [(Server::Redis, 1000), (Server::Redis, 100), (Server::Memcached, 1000)] {
            for set_permille in [0, 1000] {
                let config = KeyValueConfig { server, value_bytes, set_permille, ..KeyValueConfig::default() };
                let mut store = KeyValue::new(&config).unwrap();
                let made: usize = requests(&mut store, 4000).iter().map(Vec::len).sum();
                let stated = 4000 * config.data_accesses(set_permille > 0);
                assert!(made.abs_diff(stated as usize) * 20 < made, "{config:?}: {made} for {stated}");
                let locals = f64::from(config.local_permille_in_effect()) / 1000.0;
                let request = &server.requests()[usize::from(set_permille > 0)];
                let exact = request.locals as f64 / (request.locals as f64 + made as f64 / 4000.0);
                assert!((locals - exact).abs() < 0.005, "{config:?}: {locals} for {exact}");
            }
        }
        let config = KeyValueConfig { local_permille: Some(0), ..KeyValueConfig::default() };
        assert_eq!(config.local_permille_in_effect(), 0, "as configured");
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
        let (mut counts, mut sets) = (std::collections::BTreeMap::new(), 0);
        let count = 50_000;
        for accesses in requests(&mut store, count) {
            // An update stores to more than the reference count, down and up.
            let set = stores(&accesses).len() > 2;
            sets += u64::from(set);
            if !set {
                *counts.entry(accesses[0].gva().0).or_insert(0) += 1;
            }
        }
        assert!((240..=260).contains(&(sets * 1000 / count)), "{sets} of {count}");
        let reads = (count - sets) as usize;
        let mut counts: Vec<usize> = counts.into_values().collect();
        counts.sort_unstable_by(|a, b| b.cmp(a));
        // With some 50,000 keys and exponent 0.99, the first has 8 to 9 % of the requests, twice as
        // many as the second.
        assert!((70..=100).contains(&(counts[0] * 1000 / reads)), "{} of {reads}", counts[0]);
        assert!((170..=230).contains(&(counts[0] * 100 / counts[1])), "{} {}", counts[0], counts[1]);
    }
}
