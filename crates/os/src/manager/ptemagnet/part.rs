// SPDX-License-Identifier: MIT OR Apache-2.0
//! PaRT, the page reservation table of one process: a radix tree of four levels over groups of 8
//! pages (PTEMagnet, section 4.2).

use nestwalk_mem::Frame;

use crate::manager::radix::Radix;

/// Pages of a group: a line of guest PTEs.
pub(super) const GROUP: u64 = 8;
/// Every page of a group.
const ALL: u8 = 0xff;

/// A block of 8 frames that is set aside for a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Reservation {
    /// Its first frame, a multiple of 8.
    pub base: Frame,
    /// A bit for each page of the group that is mapped to its frame of the block.
    pub mapped: u8,
    /// A bit for each frame that belongs to the reservation no longer: it was copied away from,
    /// moved, swapped out, is shared, or went to a forked child.
    pub gone: u8,
}

impl Reservation {
    pub const fn new(base: Frame) -> Self {
        Self { base, mapped: 0, gone: 0 }
    }

    /// The frames that are set aside and not mapped, as bits.
    pub const fn unmapped(self) -> u8 {
        ALL & !(self.mapped | self.gone)
    }

    /// Nothing is left to give: the entry can go, its pages are pages like any other.
    pub const fn is_spent(self) -> bool {
        self.unmapped() == 0
    }

    const fn pack(self) -> u64 {
        self.base.0 << 16 | (self.mapped as u64) << 8 | self.gone as u64 | 1 << 63
    }

    const fn unpack(slot: u64) -> Option<Self> {
        if slot == 0 {
            return None;
        }
        Some(Self { base: Frame(slot << 1 >> 17), mapped: (slot >> 8) as u8, gone: slot as u8 })
    }
}

/// See the [module](self).
#[derive(Clone, Debug, Default)]
pub(super) struct Part(Radix);

impl Part {
    /// Reservations in it.
    pub fn len(&self) -> u64 {
        self.0.len()
    }

    /// The reservation of `group`.
    #[inline]
    pub fn get(&self, group: u64) -> Option<Reservation> {
        Reservation::unpack(self.0.get(group))
    }

    /// Puts in, or changes, the reservation of `group`.
    #[inline]
    pub fn set(&mut self, group: u64, reservation: Reservation) {
        self.0.set(group, reservation.pack());
    }

    /// Takes out the reservation of `group`, if there is one.
    #[inline]
    pub fn remove(&mut self, group: u64) {
        self.0.remove(group);
    }

    /// The first group at or after `from` that has a reservation.
    pub fn next(&self, from: u64) -> Option<u64> {
        self.0.next(from)
    }

    /// All groups with their reservations, in order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, Reservation)> {
        self.0.iter().filter_map(|(group, word)| Some((group, Reservation::unpack(word)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reservation_comes_back_as_it_was_put_in() {
        let mut part = Part::default();
        for (group, mapped) in [(0, 1), (7, 0x80), ((1 << 44) - 1, 0xff)] {
            let reservation =
                Reservation { mapped, gone: !mapped, ..Reservation::new(Frame(group * GROUP % (1 << 40))) };
            part.set(group, reservation);
            assert_eq!(part.get(group), Some(reservation));
        }
        assert_eq!(part.iter().map(|(group, _)| group).collect::<Vec<_>>(), [0, 7, (1 << 44) - 1]);
        part.remove(7);
        assert_eq!((part.len(), part.get(7), part.next(1)), (2, None, Some((1 << 44) - 1)));
    }
}
