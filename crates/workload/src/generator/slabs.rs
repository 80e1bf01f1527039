// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where a slab allocator puts the objects of very many keys, computed rather than stored.
//!
//! An allocator carves memory into slabs of one size class each, in the order in which it needs
//! them; objects of a class fill its present slab. So the objects of a key lie in several places,
//! and the pages of a neighbourhood are first touched in an order that mixes classes, which is what
//! scatters their frames. That order repeats statistically: the allocator is run once for some ten
//! thousand keys, in a few variants (deals), and each such *group* of keys uses one of the
//! variants. Memory is per variant, not per key.

use nestwalk_mem::addr::PAGE_BYTES;

use super::bijection::mix;

/// Different courses of allocation.
const DEALS: u64 = 4;
/// Keys of a group, at most.
const GROUP_KEYS_MAX: u64 = 1 << 15;
/// Offsets are kept in units of this.
const UNIT: u64 = 8;

/// Whose size classes and slabs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Allocator {
    /// jemalloc 5: four classes in every doubling, a slab the least number of pages that holds
    /// whole objects.
    Jemalloc,
    /// memcached: classes a quarter larger each from 96 bytes on, slabs of 1 MiB.
    Memcached,
}

impl Allocator {
    /// The size class of `bytes`.
    fn class(self, bytes: u64) -> u64 {
        match self {
            Self::Jemalloc if bytes <= 128 => bytes.max(1).next_multiple_of(16),
            Self::Jemalloc => {
                let step = 1 << ((bytes - 1).ilog2() - 2);
                bytes.next_multiple_of(step)
            }
            Self::Memcached => {
                let mut class: u64 = 96;
                while class < bytes {
                    class = (class * 5 / 4).next_multiple_of(UNIT);
                }
                class
            }
        }
    }

    /// Bytes of a slab of the class.
    fn slab(self, class: u64) -> u64 {
        match self {
            Self::Jemalloc => {
                let common = 1 << class.trailing_zeros().min(PAGE_BYTES.trailing_zeros());
                class / common * PAGE_BYTES
            }
            Self::Memcached => 1 << 20,
        }
    }
}

/// One course of allocation.
struct Deal {
    /// For each key its objects, in units from the group's start.
    offsets: Vec<u32>,
    /// Pages in the order of first use, with the key whose object used it.
    touches: Vec<(u32, u32)>,
}

/// See the [module's documentation](self).
pub(super) struct Slabs {
    deals: Vec<Deal>,
    objects: usize,
    group_keys: u64,
    group_pages: u64,
    seed: u64,
}

impl Slabs {
    /// The layout under `allocator` of keys whose objects have the `sizes` that follow from a draw,
    /// for about `keys` keys.
    pub(super) fn new(allocator: Allocator, keys: u64, seed: u64, sizes: impl Fn(u64) -> Vec<u64>) -> Self {
        let group_keys = (keys / 16).clamp(64, GROUP_KEYS_MAX);
        let courses: Vec<_> = (0..DEALS).map(|deal| course(allocator, group_keys, mix(seed ^ deal), &sizes)).collect();
        let group_pages = courses.iter().map(|(_, pages)| *pages).max().unwrap_or(1);
        let pad = |(mut deal, pages): (Deal, u64)| {
            // The end of a shorter course: the next slabs are begun there.
            deal.touches.extend((pages..group_pages).map(|page| (group_keys as u32 - 1, page as u32)));
            deal
        };
        Self {
            objects: sizes(seed).len(),
            deals: courses.into_iter().map(pad).collect(),
            group_keys,
            group_pages,
            seed,
        }
    }

    /// Keys of a group.
    pub(super) fn group_keys(&self) -> u64 {
        self.group_keys
    }

    /// Pages of a group.
    pub(super) fn group_pages(&self) -> u64 {
        self.group_pages
    }

    /// Which of the courses a group takes.
    fn course(&self, group: u64) -> u64 {
        mix(self.seed ^ group) % DEALS
    }

    fn deal(&self, group: u64) -> &Deal {
        &self.deals[self.course(group) as usize]
    }

    /// Bytes from the group's start to object `object` of key number `within` of group `group`.
    #[inline]
    pub(super) fn offset(&self, group: u64, within: u64, object: usize) -> u64 {
        u64::from(self.deal(group).offsets[within as usize * self.objects + object]) * UNIT
    }

    /// The draw from which the sizes of a key's objects follow.
    pub(super) fn draw(&self, group: u64, within: u64) -> u64 {
        mix(mix(self.seed ^ self.course(group)) ^ within)
    }

    /// Pages of the group (counted from its start) in the order of first use, with the number of
    /// the key that uses it first.
    pub(super) fn touches(&self, group: u64) -> &[(u32, u32)] {
        &self.deal(group).touches
    }
}

/// Runs the allocator for one group; returns also how many pages it took.
fn course(allocator: Allocator, keys: u64, seed: u64, sizes: &impl Fn(u64) -> Vec<u64>) -> (Deal, u64) {
    let mut deal = Deal { offsets: Vec::new(), touches: Vec::new() };
    // Class, next free byte of its slab, end of it.
    let mut open: Vec<(u64, u64, u64)> = Vec::new();
    let mut seen = Vec::new();
    let mut end = 0;
    for key in 0..keys {
        for size in sizes(mix(seed ^ key)) {
            let class = allocator.class(size);
            let slab = match open.iter().position(|&(of, ..)| of == class) {
                Some(slab) => slab,
                None => {
                    open.push((class, 0, 0));
                    open.len() - 1
                }
            };
            let (_, next, limit) = &mut open[slab];
            if *next + class > *limit {
                let bytes = allocator.slab(class).max(class.next_multiple_of(PAGE_BYTES));
                (*next, *limit) = (end, end + bytes);
                end += bytes;
                seen.resize((end / PAGE_BYTES) as usize, false);
            }
            let at = *next;
            *next += class;
            deal.offsets.push((at / UNIT) as u32);
            for page in at / PAGE_BYTES..=(at + size.max(1) - 1) / PAGE_BYTES {
                if !std::mem::replace(&mut seen[page as usize], true) {
                    deal.touches.push((key as u32, page as u32));
                }
            }
        }
    }
    // Slabs that are still open at the end are filled by the next group's keys in truth; here they
    // count as used.
    let rest = (0..seen.len()).filter(|&page| !seen[page]).map(|page| (keys as u32 - 1, page as u32));
    deal.touches.extend(rest.collect::<Vec<_>>());
    (deal, end / PAGE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_and_slabs_are_the_allocators() {
        let jemalloc = Allocator::Jemalloc;
        for (bytes, class, pages) in [
            (1, 16, 1),
            (24, 32, 1),
            (48, 48, 3),
            (129, 160, 5),
            (192, 192, 3),
            (225, 256, 1),
            (400, 448, 7),
            (1100, 1280, 5),
        ] {
            assert_eq!(jemalloc.class(bytes), class, "{bytes}");
            assert_eq!(jemalloc.slab(class), pages * PAGE_BYTES, "{class}");
        }
        // memcached -vv: 96, 120, 152, 192, 240, 304 ...
        for (bytes, class) in [(90, 96), (97, 120), (121, 152), (190, 192), (241, 304)] {
            assert_eq!(Allocator::Memcached.class(bytes), class, "{bytes}");
        }
    }

    #[test]
    fn objects_never_overlap_and_every_page_is_touched_once() {
        let sizes = |draw: u64| vec![24, 21, 16, 128 + draw % 256];
        let slabs = Slabs::new(Allocator::Jemalloc, 20_000, 9, sizes);
        for group in 0..6 {
            let mut spans = Vec::new();
            for within in 0..slabs.group_keys() {
                for (object, size) in sizes(slabs.draw(group, within)).into_iter().enumerate() {
                    let at = slabs.offset(group, within, object);
                    spans.push((at, at + size));
                }
            }
            spans.sort_unstable();
            assert!(spans.windows(2).all(|pair| pair[0].1 <= pair[1].0), "group {group}");
            assert!(spans.last().unwrap().1 <= slabs.group_pages() * PAGE_BYTES);
            let mut pages: Vec<u32> = slabs.touches(group).iter().map(|&(_, page)| page).collect();
            assert!(slabs.touches(group).windows(2).all(|pair| pair[0].0 <= pair[1].0), "in the order of keys");
            pages.sort_unstable();
            assert!(pages.into_iter().map(u64::from).eq(0..slabs.group_pages()));
        }
    }
}
