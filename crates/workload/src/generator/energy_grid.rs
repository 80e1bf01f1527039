// SPDX-License-Identifier: MIT OR Apache-2.0
//! `energy_grid`: XSBench (Tramm, Siegel, Islam, Schulz, PHYSOR 2014), the macroscopic
//! cross-section look-up of Monte Carlo neutron transport, with the unionised energy grid, as its
//! OpenMP version at commit ba08e52 does it by default (`-m history -G unionized`, gcc 12 -O3).
//!
//! Memory (`GridInit.c`): three arrays by `malloc`, large enough to be mappings of their own, which
//! one thread fills: the nuclides' grids (48 bytes a point: energy and five cross-sections; one
//! nuclide after the other), the unionised energies (8 bytes a point), and for each of these a row
//! of indices into the nuclides' grids (4 bytes a nuclide). With `nuclides` of `n` points there are
//! `nuclides * n` unionised points, so the rows are nearly all of the memory; `n` follows from the
//! footprint. Beside them small tables: each material's nuclides and concentrations.
//!
//! A look-up draws an energy and a material, searches the unionised energies, and for each nuclide
//! of the material reads its concentration, its number, its index in the row found and two
//! neighbouring points of its grid. All materials but the fuel share the first 68 nuclides, so what
//! they read of a row are 5 lines of it, and of the grids those of these nuclides.
//!
//! Accesses to the stack are those of the compiled loop, on the lines that it uses, and so none are
//! mixed in (`local_permille` is 0).

use std::ops::RangeInclusive;

use nestwalk_mem::{Access, Gva, Vpn};

use super::bijection::{Dice, mix};
use super::config::{impossible, parameters};
use super::layout::Layout;
use super::memory::{HEADER, Region, Sweep};
use super::pattern::Pattern;
use crate::stream::WorkloadError;

/// What the twelve materials are made of (`Materials.c`), as ranges of nuclides, in their order.
type Nuclides = &'static [RangeInclusive<u64>];
/// The fuel's first 34 nuclides; it has those from [`SHARED`] on as well.
const FUEL: Nuclides = &[
    58..=61,
    40..=40,
    42..=46,
    1..=3,
    7..=10,
    29..=29,
    57..=57,
    47..=48,
    0..=0,
    62..=62,
    15..=15,
    33..=34,
    52..=56,
    18..=18,
    23..=23,
    41..=41,
];
const CLADDING: Nuclides = &[63..=67];
const WATER: Nuclides = &[24..=24, 41..=41, 4..=5];
const VESSEL: Nuclides = &[19..=22, 35..=39, 25..=25, 27..=32, 26..=26, 49..=51, 11..=14, 6..=6, 16..=17];
const REFLECTOR: Nuclides = &[24..=24, 41..=41, 4..=5, 19..=22, 35..=39, 25..=25, 49..=51, 11..=14];
const ASSEMBLY: Nuclides = &[24..=24, 41..=41, 4..=5, 63..=67];
/// Materials with their shares of look-ups, in thousandths, as `pick_mat` draws them: the fuel has
/// what the others leave.
const MATERIALS: [(u64, Nuclides); 12] = [
    (139, FUEL),
    (52, CLADDING),
    (275, WATER),
    (134, WATER),
    (154, VESSEL),
    (64, REFLECTOR),
    (66, REFLECTOR),
    (55, REFLECTOR),
    (8, REFLECTOR),
    (15, REFLECTOR),
    (25, ASSEMBLY),
    (13, ASSEMBLY),
];
/// Nuclides that materials other than the fuel are made of.
const SHARED: u64 = 68;
/// Most nuclides of the fuel (the "large" problem's).
const FUEL_MOST: usize = 321;
/// Bytes of a nuclide's grid point.
const POINT: u64 = 48;
const ENERGY: u64 = 8;
const INDEX: u64 = 4;
/// Where the loop reads the two points, in its order (bytes behind the first one): before it stores
/// the first two sums, and after that.
const READS: ([u64; 10], [u64; 2]) = ([0x30, 0x38, 0x40, 0x08, 0x10, 0x18, 0x20, 0x00, 0x48, 0x50], [0x58, 0x28]);
/// Accesses to stack and constants of a look-up besides its nuclides', counted in a capture, and
/// how many of them are stores (`docs/model.md`).
const STACK_A_LOOKUP: u64 = 60;
const STACK_STORES: u64 = 24;
/// A nuclide's energies are drawn evenly, so that some of its points are next below many unionised
/// ones and others below few. What lies where is drawn for blocks that have so many of its points
/// (and of every other nuclide's), in a few variants.
const BLOCK: u64 = 64;
const VARIANTS: u64 = 512;

parameters! {
    /// Cross-section look-ups over a unionised energy grid. Instructions from a capture.
    EnergyGridConfig mixed(0, 2744, 12) {
        /// Nuclides: 68 to 4096. XSBench has 68 ("small") or 355 ("large").
        nuclides: u64 = 355,
    }
}

pub(super) struct EnergyGrid {
    layout: Layout,
    grids: Region,
    energies: Region,
    indices: Region,
    /// Concentrations (8 bytes), nuclides (4 bytes) and their number, of the materials.
    tables: Region,
    materials: Vec<Vec<u64>>,
    /// Places of a material in the tables.
    places: u64,
    /// Points of the unionised grid, and of a nuclide's.
    points: u64,
    own: u64,
    nuclides: u64,
    /// Of each variant of a block, where a nuclide's points lie in it, ascending, in 2^-32 of it.
    variants: Vec<[u32; BLOCK as usize]>,
    seed: u64,
    sweep: Sweep,
    dice: Vec<Dice>,
}

impl EnergyGrid {
    pub(super) fn new(config: &EnergyGridConfig) -> Result<Self, WorkloadError> {
        let name = Self::NAME;
        let mut layout = Layout::new(name, config.common(), config.mixture())?;
        let nuclides = config.nuclides;
        if !(SHARED..=4096).contains(&nuclides) {
            return Err(impossible(name, format!("nuclides = {nuclides}: from {SHARED} to 4096")));
        }
        let materials: Vec<Vec<u64>> = MATERIALS
            .iter()
            .enumerate()
            .map(|(material, &(_, ranges))| {
                let listed = ranges.iter().cloned().flatten();
                let more = if material == 0 { SHARED..nuclides } else { 0..0 };
                listed.chain(more).take(FUEL_MOST).collect()
            })
            .collect();
        let places = materials[0].len() as u64;
        let covering = |bytes: u64| nestwalk_mem::PageCount::covering(bytes).0;
        let table_pages = covering(MATERIALS.len() as u64 * (places * 12 + 4));
        // Each of the three arrays has a header and ends within a page.
        let bytes = (layout.left() - table_pages - 3) * nestwalk_mem::addr::PAGE_BYTES - 3 * HEADER;
        let own = bytes / (ENERGY + INDEX * nuclides + POINT) / nuclides;
        if own < 2 {
            return Err(impossible(name, "footprint: too small for two points a nuclide"));
        }
        let points = own * nuclides;
        let grids = layout.map(covering(HEADER + points * POINT));
        let energies = layout.map(covering(HEADER + points * ENERGY));
        let indices = layout.map(layout.left() - table_pages);
        layout.gap();
        let tables = layout.map(table_pages);
        let variant = |number| {
            let mut places = std::array::from_fn(|point| mix(config.seed ^ mix(number * BLOCK + point as u64)) as u32);
            places.sort_unstable();
            places
        };
        Ok(Self {
            variants: (0..VARIANTS).map(variant).collect(),
            // The first thread fills all of it.
            sweep: Sweep::new(vec![vec![grids], vec![energies], vec![indices], vec![tables]], 1),
            layout,
            grids,
            energies,
            indices,
            tables,
            materials,
            places,
            points,
            own,
            nuclides,
            seed: mix(config.seed),
            dice: Dice::of_threads(config.seed, config.threads),
        })
    }

    /// The point of `nuclide`'s own grid whose energy is the last one not above that of unionised
    /// point `point`.
    fn index(&self, point: u64, nuclide: u64) -> u64 {
        let width = BLOCK * self.nuclides;
        let (block, within) = (point / width, point % width);
        if block == self.own / BLOCK {
            // The last block is a shorter one: evenly.
            return (point / self.nuclides).min(self.own - 2);
        }
        let variant = mix(self.seed ^ (block * self.nuclides + nuclide)) % VARIANTS;
        let place = ((within << 32 | 0xffff_ffff) / width) as u32;
        let below = self.variants[variant as usize].partition_point(|&other| other <= place) as u64;
        (block * BLOCK + below).saturating_sub(1).min(self.own - 2)
    }

    /// The binary search for the energy between unionised points `point` and `point + 1`.
    fn search(&self, point: u64, accesses: &mut Vec<Access>) {
        let (mut lower, mut upper) = (0, self.points - 1);
        while upper - lower > 1 {
            let middle = lower + (upper - lower) / 2;
            accesses.push(Access::load(self.energies.at(HEADER + middle * ENERGY)));
            if middle > point { upper = middle } else { lower = middle }
        }
    }

    /// The accesses for place `nth` of material `material` at unionised point `point`.
    fn cross_section(&self, point: u64, material: usize, nth: usize, stack: Gva, accesses: &mut Vec<Access>) {
        let nuclide = self.materials[material][nth];
        let place = material as u64 * self.places + nth as u64;
        let numbers = MATERIALS.len() as u64 * self.places * 8;
        let low = HEADER + (nuclide * self.own + self.index(point, nuclide)) * POINT;
        let (spilt, sums) = (stack.0, stack.0 + 0xa0);
        let read = |byte: u64| Access::load(self.grids.at(low + byte));
        let store = |address: u64| Access::store(Gva(address));
        accesses.push(Access::load(self.tables.at(place * 8)));
        accesses.push(Access::load(self.tables.at(numbers + place * 4)));
        accesses.push(Access::load(Gva(spilt + 8)));
        accesses.push(Access::load(self.indices.at(HEADER + (point * self.nuclides + nuclide) * INDEX)));
        accesses.push(store(spilt));
        accesses.extend(READS.0.map(read));
        accesses.extend([sums, sums + 8].map(store));
        accesses.extend(READS.1.map(read));
        accesses.extend([sums + 16, sums + 24, sums + 32].map(store));
    }
}

impl Pattern for EnergyGrid {
    const NAME: &'static str = "energy_grid";

    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn touch(&mut self, thread: u16, touches: &mut Vec<(Vpn, bool)>, most: usize) {
        if thread == 0 {
            self.sweep.touch(0, touches, most);
        }
    }

    fn operate(&mut self, thread: usize, accesses: &mut Vec<Access>) {
        let dice = &mut self.dice[thread];
        let point = dice.below(self.points - 1);
        let mut drawn = dice.below(1000);
        let others = MATERIALS.iter().skip(1).position(|&(share, _)| {
            let here = drawn < share;
            drawn = drawn.saturating_sub(share);
            here
        });
        let material = others.map_or(0, |other| other + 1);
        // Ten lines of the stack, which grows downwards.
        let stack = Gva(self.layout.locals(thread).pages.end.address().0 - 640);
        let other = (0..STACK_A_LOOKUP)
            .map(|nth| Access::new(Gva(stack.0 + nth * 8), nth * STACK_STORES % STACK_A_LOOKUP < STACK_STORES));
        accesses.extend(other);
        self.search(point, accesses);
        let number = MATERIALS.len() as u64 * self.places * 12 + material as u64 * 4;
        accesses.push(Access::load(self.tables.at(number)));
        for nth in 0..self.materials[material].len() {
            self.cross_section(point, material, nth, stack, accesses);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid(nuclides: u64) -> EnergyGrid {
        let config = EnergyGridConfig {
            nuclides,
            footprint: nestwalk_mem::PageCount(64 << 8),
            small_mappings: 0,
            ..EnergyGridConfig::default()
        };
        EnergyGrid::new(&config).unwrap()
    }

    #[test]
    fn materials_are_those_of_the_source() {
        let counts = |nuclides| grid(nuclides).materials.iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(counts(68), [34, 5, 4, 4, 27, 21, 21, 21, 21, 21, 9, 9]);
        assert_eq!(counts(355), [321, 5, 4, 4, 27, 21, 21, 21, 21, 21, 9, 9]);
        assert_eq!(MATERIALS.iter().map(|(share, _)| share).sum::<u64>(), 1000);
        let large = grid(355);
        for nuclides in &large.materials {
            let distinct: std::collections::BTreeSet<_> = nuclides.iter().collect();
            assert_eq!(distinct.len(), nuclides.len());
        }
        assert_eq!(large.materials[0].iter().max(), Some(&354));
        assert!(large.materials[1..].iter().flatten().all(|&nuclide| nuclide < SHARED));
    }

    /// 64 MiB are 16,384 pages, of which the stack has 105, the tables 2 (12 * 34 * 12 + 48 bytes)
    /// and the ends of arrays 3. A unionised point takes 8 + 4 * 68 + 48 bytes.
    #[test]
    fn arrays_lie_below_each_other_behind_headers() {
        let grid = grid(68);
        assert_eq!(grid.tables.pages.len(), 2);
        let bytes = (16_384 - 105 - 2 - 3) * 4096 - 48;
        assert_eq!((grid.own, grid.points), (bytes / 328 / 68, bytes / 328 / 68 * 68));
        assert_eq!(grid.energies.pages.end, grid.grids.pages.start);
        assert_eq!(grid.indices.pages.end, grid.energies.pages.start);
        assert_eq!(grid.grids.pages.len(), (16 + grid.points * 48).div_ceil(4096));
    }

    #[test]
    fn a_search_halves_the_unionised_energies() {
        let grid = grid(68);
        let mut accesses = Vec::new();
        grid.search(0, &mut accesses);
        let mut upper = grid.points - 1;
        for access in &accesses {
            upper /= 2;
            assert_eq!(*access, Access::load(grid.energies.at(16 + upper * 8)));
        }
        assert_eq!(upper, 1);
        accesses.clear();
        grid.search(grid.points - 2, &mut accesses);
        let last = accesses.last().unwrap().gva();
        assert!((grid.points - 3..grid.points).any(|point| last == grid.energies.at(16 + point * 8)));
    }

    #[test]
    fn a_nuclides_index_rises_to_its_last_point_but_one() {
        let grid = grid(68);
        for nuclide in [0, 33, 67] {
            let indices: Vec<u64> = (0..grid.points).map(|point| grid.index(point, nuclide)).collect();
            assert!(indices.windows(2).all(|pair| pair[0] <= pair[1]));
            // A block begins with as many points below it as blocks have.
            let near = |(&index, point): (&u64, u64)| index.abs_diff(point / 68) <= BLOCK;
            assert!(indices.iter().zip(0..).all(near));
            assert_eq!((indices[0], indices[indices.len() - 1]), (0, grid.own - 2));
        }
    }

    /// Of points drawn evenly, the distances to the next one are spread as those of a Poisson
    /// process: 1 of e is larger than the mean of 68, 1 of e^2 larger than twice that.
    #[test]
    fn distances_between_a_nuclides_points_are_those_of_even_draws() {
        let grid = grid(68);
        let (mut gaps, mut from) = (Vec::new(), vec![0; 68]);
        for point in 1..grid.points {
            for (nuclide, from) in from.iter_mut().enumerate() {
                let rise = grid.index(point, nuclide as u64) - grid.index(point - 1, nuclide as u64);
                if rise > 0 {
                    gaps.push(point - *from);
                    gaps.extend(std::iter::repeat_n(0, rise as usize - 1));
                    *from = point;
                }
            }
        }
        for (least, permille) in [(68, 368), (136, 135), (272, 18)] {
            let larger = gaps.iter().filter(|&&gap| gap > least).count() * 1000 / gaps.len();
            assert!(larger.abs_diff(permille) <= 15, "{larger} of 1000 above {least}");
        }
    }

    /// Boron (nuclide 4) is the third of the water's.
    #[test]
    fn a_nuclide_takes_22_accesses() {
        let grid = grid(68);
        let stack = grid.layout.locals(0).at(0);
        let mut accesses = Vec::new();
        grid.cross_section(1000, 2, 2, stack, &mut accesses);
        assert_eq!(accesses.len(), 22);
        let place = 2 * 34 + 2;
        assert_eq!(accesses[0], Access::load(grid.tables.at(place * 8)));
        assert_eq!(accesses[1], Access::load(grid.tables.at(12 * 34 * 8 + place * 4)));
        assert_eq!(accesses[3], Access::load(grid.indices.at(16 + (1000 * 68 + 4) * 4)));
        let low = 16 + (4 * grid.own + grid.index(1000, 4)) * 48;
        let mut read: Vec<u64> = accesses.iter().map(|access| access.gva().0).collect();
        read.retain(|&address| grid.grids.pages.contains(Vpn(address >> 12)));
        read.sort_unstable();
        let start = grid.grids.pages.start.address().0 + low;
        assert!(read.into_iter().eq((start..start + 96).step_by(8)));
        let stored: Vec<u64> =
            accesses.iter().filter(|access| access.is_store()).map(|a| a.gva().0 - stack.0).collect();
        assert_eq!(stored, [0, 0xa0, 0xa8, 0xb0, 0xb8, 0xc0]);
    }
}
