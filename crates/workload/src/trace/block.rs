// SPDX-License-Identifier: MIT OR Apache-2.0
//! The payload of an access record: up to [`ITEMS_MAX`] accesses of one thread, which decode alone.
//!
//! Per access two flag bits, four accesses a byte, lowest bits first: bit 0 = the site is the
//! predicted one, bit 1 = the address is. What was predicted wrongly is in two side streams. A
//! dictionary says which of the trace's sites the block's sites are, in the order of their first
//! appearance. See [`super::predict`] for the prediction.

use std::mem::MaybeUninit;

use nestwalk_mem::{Access, Gva};

use super::format::{ADDRESS_END, Fault, ITEMS_MAX, u32_at};
use super::predict::{LocalSite, SiteState};
use super::sites::{SiteAttributes, SiteId};
use super::varint::{self, VarintReader};

/// Bytes before the flags: number of sites, and the lengths of the dictionary and the side streams.
const PREFIX_BYTES: usize = 16;
const SITE_HIT: u8 = 1;
const ADDRESS_HIT: u8 = 2;

/// Encodes accesses of one thread.
#[derive(Debug)]
pub struct BlockEncoder {
    states: Vec<SiteState>,
    /// For each site of the trace: the block that it was last seen in, and its number there.
    locals: Vec<(u32, LocalSite)>,
    block: u32,
    items: usize,
    previous: LocalSite,
    before: u64,
    last_in_dictionary: u32,
    flags: Vec<u8>,
    dictionary: Vec<u8>,
    site_misses: Vec<u8>,
    address_misses: Vec<u8>,
}

impl Default for BlockEncoder {
    fn default() -> Self {
        Self {
            states: Vec::new(),
            locals: Vec::new(),
            block: 1,
            items: 0,
            previous: LocalSite(0),
            before: 0,
            last_in_dictionary: 0,
            flags: vec![0; ITEMS_MAX / 4],
            dictionary: Vec::new(),
            site_misses: Vec::new(),
            address_misses: Vec::new(),
        }
    }
}

impl BlockEncoder {
    /// How many accesses it holds.
    pub const fn items(&self) -> usize {
        self.items
    }

    /// Whether it can take no more.
    pub const fn is_full(&self) -> bool {
        self.items == ITEMS_MAX
    }

    /// Takes in the next access.
    ///
    /// # Panics
    /// When full.
    #[inline]
    pub fn push(&mut self, site: SiteId, address: Gva) {
        let local = self.local(site);
        let address = address.0;
        let mut flags = 0;
        // The first access of a block has no site before it: it counts as predicted, since it is
        // always site 0.
        if self.items == 0 || self.states[self.previous.0 as usize].successor() == local {
            flags |= SITE_HIT;
        } else {
            self.states[self.previous.0 as usize].correct_successor(local);
            varint::put_signed(&mut self.site_misses, i64::from(local.0) - i64::from(self.previous.0));
        }
        let state = &mut self.states[local.0 as usize];
        if state.address() == address {
            flags |= ADDRESS_HIT;
            state.confirm_address();
        } else {
            let distance = address.wrapping_sub(state.base(self.before));
            varint::put_signed(&mut self.address_misses, distance as i64);
            state.correct_address(address);
        }
        let shift = self.items % 4 * 2;
        let byte = &mut self.flags[self.items / 4];
        *byte = if shift == 0 { flags } else { *byte | flags << shift };
        self.previous = local;
        self.before = address;
        self.items += 1;
    }

    #[inline]
    fn local(&mut self, site: SiteId) -> LocalSite {
        match self.locals.get(site.0 as usize) {
            Some(&(block, local)) if block == self.block => local,
            _ => self.new_local(site),
        }
    }

    #[cold]
    fn new_local(&mut self, site: SiteId) -> LocalSite {
        let local = LocalSite(self.states.len() as u32);
        if self.locals.len() <= site.0 as usize {
            self.locals.resize(site.0 as usize + 1, (0, LocalSite(0)));
        }
        self.locals[site.0 as usize] = (self.block, local);
        self.states.push(SiteState::new(local, false));
        varint::put_signed(&mut self.dictionary, i64::from(site.0) - i64::from(self.last_in_dictionary));
        self.last_in_dictionary = site.0;
        local
    }

    /// Writes the payload to `out` (cleared first) and begins anew.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        out.clear();
        let side = [&mut self.dictionary, &mut self.site_misses, &mut self.address_misses];
        out.extend_from_slice(&(self.states.len() as u32).to_le_bytes());
        for column in &side {
            out.extend_from_slice(&(column.len() as u32).to_le_bytes());
        }
        out.extend_from_slice(&self.flags[..self.items.div_ceil(4)]);
        for column in side {
            out.append(column);
        }
        self.states.clear();
        self.block += 1;
        self.items = 0;
        self.previous = LocalSite(0);
        self.before = 0;
        self.last_in_dictionary = 0;
    }
}

/// Decodes a payload, all at once or in pieces. Keeps its room from block to block.
#[derive(Debug, Default)]
pub struct BlockDecoder {
    /// The payload that is being decoded; put there by the reader.
    pub(super) plain: Vec<u8>,
    states: Vec<SiteState>,
    items: usize,
    done: usize,
    previous: LocalSite,
    before: u64,
    /// The positions of the next misses in `plain`.
    site_miss: usize,
    address_miss: usize,
    address_misses: usize,
}

const CUT: &str = "a block of accesses whose parts are not as long as it says";

impl BlockDecoder {
    /// Begins with the payload in `self.plain`, which has `items` accesses by sites of a table with
    /// these `attributes`.
    ///
    /// # Errors
    /// Says what is wrong with it, if anything is.
    pub fn begin(&mut self, items: u32, attributes: &[SiteAttributes]) -> Result<(), Fault> {
        let plain = &self.plain[..];
        let items = items as usize;
        if plain.len() < PREFIX_BYTES || items == 0 || items > ITEMS_MAX {
            return Err(CUT.into());
        }
        let [sites, dictionary, site_misses, address_misses] = [0, 4, 8, 12].map(|at| u32_at(plain, at) as usize);
        let dictionary_at = PREFIX_BYTES + items.div_ceil(4);
        self.site_miss = dictionary_at + dictionary;
        self.address_miss = self.site_miss + site_misses;
        self.address_misses = self.address_miss;
        if self.address_miss + address_misses != plain.len() || sites == 0 || sites > items {
            return Err(CUT.into());
        }
        self.states.clear();
        let mut words = VarintReader::new(&plain[..self.site_miss], dictionary_at);
        let mut site = 0i64;
        for local in 0..sites as u32 {
            site = site.wrapping_add(words.signed().ok_or(CUT)?);
            let known = usize::try_from(site).ok().and_then(|site| attributes.get(site));
            let known = known.ok_or_else(|| format!("a block with site {site}, which the table of sites lacks"))?;
            self.states.push(SiteState::new(LocalSite(local), known.is_store()));
        }
        // Only the last site can name as its successor one that is not there; any that is will do.
        self.states[sites - 1].correct_successor(LocalSite(0));
        self.items = items;
        self.done = 0;
        self.previous = LocalSite(0);
        self.before = 0;
        if words.is_at_end() { Ok(()) } else { Err(CUT.into()) }
    }

    /// How many accesses are still to come.
    pub const fn left(&self) -> usize {
        self.items - self.done
    }

    /// Appends the next accesses, as many as `out` has room for up to `most`, and says how many
    /// there were. After the last one, checks that nothing is left over.
    ///
    /// # Errors
    /// Says what is wrong with the payload, if anything is.
    pub fn fill(&mut self, out: &mut Vec<Access>, most: usize) -> Result<usize, Fault> {
        let count = most.min(self.left());
        out.reserve(count);
        let all = self.decode(&mut out.spare_capacity_mut()[..count])?;
        if all >= ADDRESS_END {
            return Err("a block with an address that no program can have".into());
        }
        // SAFETY: there was room, and `decode` has written all of it, or it would have returned an
        // error.
        unsafe { out.set_len(out.len() + count) };
        let over = self.site_miss != self.address_misses || self.address_miss != self.plain.len();
        if self.left() == 0 && over {
            return Err(CUT.into());
        }
        Ok(count)
    }

    /// Appends all accesses that are left, with their sites: for those who write them anew. Slower
    /// than [`BlockDecoder::fill`], which does without sites.
    ///
    /// # Errors
    /// Says what is wrong with the payload, if anything is.
    pub fn fill_sites(&mut self, out: &mut Vec<(SiteId, Gva)>) -> Result<(), Fault> {
        let mut words = VarintReader::new(&self.plain, PREFIX_BYTES + self.items.div_ceil(4));
        let mut site = 0i64;
        let mut sites = Vec::with_capacity(self.states.len());
        for _ in 0..self.states.len() {
            site = site.wrapping_add(words.signed().ok_or(CUT)?);
            sites.push(SiteId(u32::try_from(site).map_err(|_| CUT)?));
        }
        let mut one = Vec::with_capacity(1);
        while self.left() > 0 {
            one.clear();
            self.fill(&mut one, 1)?;
            let local = sites.get(self.previous.0 as usize).ok_or(CUT)?;
            out.extend(one.iter().map(|access| (*local, access.gva())));
        }
        Ok(())
    }

    /// Writes all of `out` and returns all its addresses or-ed together. After an error some of it
    /// may not be written.
    fn decode(&mut self, out: &mut [MaybeUninit<Access>]) -> Result<u64, Fault> {
        let flags = &self.plain[PREFIX_BYTES..PREFIX_BYTES + self.items.div_ceil(4)];
        let mut cursor = Cursor {
            // The site "before" the first is one whose successor is site 0: the last one, see
            // `begin`.
            previous: if self.done == 0 { LocalSite(self.states.len() as u32 - 1) } else { self.previous },
            states: &mut self.states,
            site_misses: VarintReader::new(&self.plain[..self.address_misses], self.site_miss),
            address_misses: VarintReader::new(&self.plain, self.address_miss),
            before: self.before,
            all: 0,
        };
        // Up to a byte of flags that is whole, whole bytes, and the rest.
        let head = (self.done.wrapping_neg() % 4).min(out.len());
        let (first, rest) = out.split_at_mut(head);
        let start = (self.done + head) / 4;
        let (quads, last) = rest.split_at_mut(rest.len() / 4 * 4);
        let whole = quads.len() / 4;
        let done = cursor
            .some(first, flags.get(self.done / 4).map_or(0, |&byte| byte >> (self.done % 4 * 2)))
            .and_then(|()| {
                quads
                    .chunks_exact_mut(4)
                    .zip(&flags[start..start + whole])
                    .try_for_each(|(quad, &byte)| cursor.four(quad, byte))
            })
            .and_then(|()| cursor.some(last, flags.get(start + whole).copied().unwrap_or(0)));
        done.ok_or(CUT)?;
        self.done += out.len();
        (self.previous, self.before) = (cursor.previous, cursor.before);
        (self.site_miss, self.address_miss) = (cursor.site_misses.position(), cursor.address_misses.position());
        Ok(cursor.all)
    }
}

/// The state of decoding. `None` from its functions means that the payload is damaged.
struct Cursor<'a> {
    states: &'a mut [SiteState],
    site_misses: VarintReader<'a>,
    address_misses: VarintReader<'a>,
    previous: LocalSite,
    before: u64,
    all: u64,
}

impl Cursor<'_> {
    /// Four accesses, whose flags are a whole byte. Written out, so that each of the four has
    /// branches of its own to be predicted by.
    #[inline(always)]
    fn four(&mut self, quad: &mut [MaybeUninit<Access>], byte: u8) -> Option<()> {
        let [first, second, third, fourth] = quad else { return None };
        if byte == 0xff {
            first.write(self.predicted());
            second.write(self.predicted());
            third.write(self.predicted());
            fourth.write(self.predicted());
        } else {
            first.write(self.one(byte)?);
            second.write(self.one(byte >> 2)?);
            third.write(self.one(byte >> 4)?);
            fourth.write(self.one(byte >> 6)?);
        }
        Some(())
    }

    fn some(&mut self, out: &mut [MaybeUninit<Access>], mut flags: u8) -> Option<()> {
        for slot in out {
            slot.write(self.one(flags)?);
            flags >>= 2;
        }
        Some(())
    }

    /// An access whose site and address are the predicted ones.
    #[inline(always)]
    fn predicted(&mut self) -> Access {
        let local = self.states[self.previous.0 as usize].successor();
        let state = &mut self.states[local.0 as usize];
        let address = state.confirm_address();
        (self.previous, self.before) = (local, address);
        self.all |= address;
        Access::new(Gva(address), state.is_store())
    }

    #[inline(always)]
    fn one(&mut self, flags: u8) -> Option<Access> {
        let local = if flags & SITE_HIT != 0 {
            self.states[self.previous.0 as usize].successor()
        } else {
            let site = i64::from(self.previous.0).wrapping_add(self.site_misses.signed()?);
            let site = usize::try_from(site).ok().filter(|&site| site < self.states.len())?;
            let local = LocalSite(site as u32);
            self.states[self.previous.0 as usize].correct_successor(local);
            local
        };
        let state = &mut self.states[local.0 as usize];
        let address = if flags & ADDRESS_HIT != 0 {
            state.confirm_address()
        } else {
            let address = state.base(self.before).wrapping_add(self.address_misses.signed()? as u64);
            state.correct_address(address);
            address
        };
        (self.previous, self.before) = (local, address);
        self.all |= address;
        Some(Access::new(Gva(address), state.is_store()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn round_trip(accesses: &[(SiteId, Gva)], attributes: &[SiteAttributes], piece: usize) -> usize {
        let mut encoder = BlockEncoder::default();
        let mut decoder = BlockDecoder::default();
        let mut out = Vec::new();
        for _ in 0..2 {
            accesses.iter().for_each(|&(site, address)| encoder.push(site, address));
            encoder.finish(&mut decoder.plain);
            decoder.begin(accesses.len() as u32, attributes).unwrap();
            out.clear();
            while decoder.left() > 0 {
                assert!(decoder.fill(&mut out, piece).unwrap() > 0);
            }
            let wanted: Vec<_> =
                accesses.iter().map(|&(s, a)| Access::new(a, attributes[s.0 as usize].is_store())).collect();
            assert_eq!(out, wanted);
            decoder.begin(accesses.len() as u32, attributes).unwrap();
            let mut with_sites = Vec::new();
            decoder.fill_sites(&mut with_sites).unwrap();
            assert_eq!(with_sites, accesses);
        }
        decoder.plain.len()
    }

    fn attributes() -> Vec<SiteAttributes> {
        (0..50u8).map(|i| SiteAttributes::new(i % 3 == 0, i % 4).unwrap()).collect()
    }

    fn accesses() -> impl Strategy<Value = Vec<(SiteId, Gva)>> {
        let address = prop_oneof![0u64..16, any::<u64>().prop_map(|a| a >> 8)];
        prop::collection::vec(((0u32..50).prop_map(SiteId), address.prop_map(Gva)), 1..300)
    }

    proptest! {
        #[test]
        fn accesses_round_trip(accesses in accesses(), piece in 1usize..70) {
            round_trip(&accesses, &attributes(), piece);
        }

        #[test]
        fn no_bytes_make_it_panic(plain in prop::collection::vec(any::<u8>(), 0..300), items in 0u32..600, small: bool) {
            let mut plain = plain;
            if small {
                // Likelier to get past the first checks.
                plain.iter_mut().take(PREFIX_BYTES).enumerate().for_each(|(i, b)| *b = if i % 4 == 0 { *b % 64 } else { 0 });
            }
            let mut decoder = BlockDecoder { plain, ..BlockDecoder::default() };
            if decoder.begin(items, &attributes()).is_ok() {
                let _ = decoder.fill(&mut Vec::new(), 1000);
            }
        }

        #[test]
        fn a_spoilt_payload_decodes_to_something_or_an_error(accesses in accesses(), at: prop::sample::Index, bits: u8) {
            let mut encoder = BlockEncoder::default();
            let mut decoder = BlockDecoder::default();
            accesses.iter().for_each(|&(site, address)| encoder.push(site, address));
            encoder.finish(&mut decoder.plain);
            let at = at.index(decoder.plain.len());
            decoder.plain[at] ^= bits;
            if decoder.begin(accesses.len() as u32, &attributes()).is_ok() {
                let _ = decoder.fill(&mut Vec::new(), accesses.len());
            }
        }
    }

    #[test]
    fn a_loop_over_an_array_costs_two_bits_an_access() {
        let accesses: Vec<_> =
            (0..ITEMS_MAX as u64).map(|i| (SiteId(i as u32 % 4), Gva(0x10_0000 * (i % 4 + 1) + i / 4 * 8))).collect();
        assert!(round_trip(&accesses, &attributes(), 1 << 14) < ITEMS_MAX / 4 + 100);
    }
}
