// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a program waits for: the stretches that pass through a model of its core one access after
//! the other, without the machine that says how long each takes.

use std::path::Path;

use nestwalk_mem::{Access, Cycles, Dependence};
use nestwalk_mmu::Taken;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use super::{Scale, Watch, random_pages, repeat};
use crate::catalog::Shelf;
use crate::error::MachineError;
use crate::scenario::MachineConfig;
use crate::waiting::Waiting;

/// Its name.
pub(super) const NAME: &str = "sampled_waiting";

/// Passes updates of random places, each of which walks, through all that is between an access and
/// a share; each fourth needs the value before it.
pub(super) fn pass(scale: Scale, repetitions: u32, watch: &mut dyn Watch) -> Result<u64, MachineError> {
    let machine: MachineConfig = Shelf::Machines.load("sapphire-rapids", Path::new(""))?;
    let mut random = Xoshiro256PlusPlus::seed_from_u64(1);
    let mut cycles = |most: u64| Cycles(5 + random.next_u64() % most);
    let accesses: Vec<(Access, Taken)> = (random_pages(scale).into_iter().enumerate())
        .map(|(index, access)| {
            let dependence = if index % 4 == 0 { Dependence::After } else { Dependence::Free };
            (access.depending(dependence), Taken { walk: cycles(600), data: cycles(400), second_tlb_hits: 0 })
        })
        .collect();
    let prepare = || Ok(Waiting::on(&machine, 1).expect("this machine has a model of its core"));
    repeat(repetitions, watch, prepare, |waiting| {
        let (mut passed, mut at) = (0, 0);
        while at < accesses.len() {
            let (count, one_by_one) = waiting.ahead(0, accesses.len() - at);
            if one_by_one {
                accesses[at..at + count].iter().for_each(|(access, taken)| waiting.pass(*access, 4, taken));
                passed += count as u64;
            } else {
                waiting.skip(count);
            }
            at += count;
        }
        Ok(passed)
    })
}
