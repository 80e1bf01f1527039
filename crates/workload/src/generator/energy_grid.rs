// SPDX-License-Identifier: MIT OR Apache-2.0
//! `energy_grid`: XSBench (Tramm, Siegel, Islam, Schulz, PHYSOR 2014), the macroscopic
//! cross-section look-up of Monte Carlo neutron transport, with the unionised energy grid.
//!
//! Memory: the unionised energies (8 bytes a point), beside each an index into every nuclide's own
//! grid (4 bytes a nuclide), and the nuclides' grids (48 bytes a point: energy and five
//! cross-sections). A problem of `nuclides` with `n` points each has `nuclides * n` unionised
//! points, so the index array is nearly all of the memory; `n` follows from the footprint.
//!
//! A look-up draws a material (with XSBench's shares; fuel has nearly all nuclides, the others
//! between 4 and 27) and an energy, searches the unionised energies, and reads for each nuclide of
//! the material its index and two neighbouring points of its grid.

use nestwalk_mem::{Access, Vpn};

use super::bijection::{Dice, mix, scale};
use super::config::{impossible, parameters};
use super::layout::Layout;
use super::memory::{Region, Sweep};
use super::pattern::Pattern;
use crate::stream::WorkloadError;

/// Shares of the twelve materials in look-ups, in thousandths, and their nuclides at 355 in all
/// (XSBench's `Materials.c`, "large").
const MATERIALS: [(u64, u64); 12] = [
    (140, 321),
    (52, 5),
    (275, 4),
    (134, 4),
    (154, 27),
    (64, 21),
    (66, 21),
    (55, 21),
    (8, 21),
    (15, 21),
    (25, 9),
    (12, 9),
];
/// Bytes of a nuclide's grid point.
const POINT: u64 = 48;
const ENERGY: u64 = 8;
const INDEX: u64 = 4;

parameters! {
    /// Cross-section look-ups over a unionised energy grid. Local accesses and instructions are
    /// assumed to be those of the bundled BFS, a loop over arrays as this is.
    EnergyGridConfig mixed(124, 4200, 12) {
        /// Nuclides of the fuel and all others: 34 or more. XSBench's "large" has 355.
        nuclides: u64 = 355,
    }
}

pub(super) struct EnergyGrid {
    layout: Layout,
    energies: Region,
    indices: Region,
    grids: Region,
    points: u64,
    nuclides: u64,
    seed: u64,
    sweep: Sweep,
    dice: Vec<Dice>,
}

impl EnergyGrid {
    pub(super) fn new(config: &EnergyGridConfig) -> Result<Self, WorkloadError> {
        let name = Self::NAME;
        let mut layout = Layout::new(name, config.common(), config.mixture())?;
        let nuclides = config.nuclides;
        if !(34..=4096).contains(&nuclides) {
            return Err(impossible(name, format!("nuclides = {nuclides}: from 34 to 4096")));
        }
        // Each of the three arrays ends within a page.
        let bytes = (layout.left() - 3) * nestwalk_mem::addr::PAGE_BYTES;
        let points = bytes / (ENERGY + INDEX * nuclides + POINT) / nuclides * nuclides;
        if points < 2 * nuclides {
            return Err(impossible(name, "footprint: too small for two points a nuclide"));
        }
        let pages = |each: u64| nestwalk_mem::PageCount::covering(points * each).0;
        let energies = layout.map(pages(ENERGY));
        let grids = layout.map(pages(POINT));
        let indices = layout.map(layout.left());
        Ok(Self {
            sweep: Sweep::new(vec![vec![grids], vec![energies], vec![indices]], config.threads),
            layout,
            energies,
            indices,
            grids,
            points,
            nuclides,
            seed: mix(config.seed),
            dice: Dice::of_threads(config.seed, config.threads),
        })
    }
}

impl Pattern for EnergyGrid {
    const NAME: &'static str = "energy_grid";

    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn touch(&mut self, thread: u16, touches: &mut Vec<(Vpn, bool)>, most: usize) {
        self.sweep.touch(thread, touches, most);
    }

    fn operate(&mut self, thread: usize, accesses: &mut Vec<Access>) {
        let dice = &mut self.dice[thread];
        let mut drawn = dice.below(1000);
        let material = MATERIALS.iter().position(|&(share, _)| {
            let here = drawn < share;
            drawn = drawn.saturating_sub(share);
            here
        });
        let material = material.unwrap_or(0);
        let count = (MATERIALS[material].1 * self.nuclides / 355).max(1);
        let point = dice.below(self.points);
        let (mut low, mut high) = (0, self.points);
        while high - low > 1 {
            let middle = (low + high) / 2;
            accesses.push(Access::load(self.energies.at(middle * ENERGY)));
            if middle <= point { low = middle } else { high = middle }
        }
        let own = self.points / self.nuclides;
        for nth in 0..count {
            // A material's nuclides are the same at every look-up; fuel has the first ones.
            let nuclide =
                if material == 0 { nth } else { scale(mix(self.seed ^ (material as u64) << 32 ^ nth), self.nuclides) };
            accesses.push(Access::load(self.indices.at((point * self.nuclides + nuclide) * INDEX)));
            // The nuclide's grid covers the same energies; its points near this one lie at about
            // the same share of it.
            let at = nuclide * own + (point / self.nuclides).min(own - 2);
            let both = self.grids.at(at * POINT);
            accesses.extend((0..2 * POINT).step_by(8).map(|byte| Access::load(nestwalk_mem::Gva(both.0 + byte))));
        }
    }
}
