// SPDX-License-Identifier: MIT OR Apache-2.0
//! `compiler`: SPEC CPU's gcc, passes over the intermediate code of one function after another.
//!
//! Memory: the garbage-collected heap, one mapping or, with the key `heap`, as many as `ggc-page.c`
//! makes, each when those before are full ([`heap`](super::heap)): a tenth of it the declarations
//! and types of the whole unit, the rest functions' code in the order in which they were parsed
//! (256 KiB a function; statements and expressions of 64 bytes).
//!
//! An operation is a pass over 32 statements of the thread's function: each statement and two
//! operands near it (within 64 statements), one statement in four stores, one in four looks up a
//! declaration (zipf, exponent 1: some types are everywhere). After `passes` passes the next
//! function comes.

use nestwalk_mem::{Access, Vpn};

use super::bijection::{Bijection, Dice, mix};
use super::config::{impossible, parameters};
use super::heap::GrowingHeapConfig;
use super::layout::Layout;
use super::memory::{Region, Sweep};
use super::pattern::Pattern;
use super::zipf::Zipf;
use crate::stream::WorkloadError;

const STATEMENT: u64 = 64;
/// Statements of a function.
const FUNCTION: u64 = 4096;
const STEP: u64 = 32;
const NEAR: u64 = 64;
const DECLARATION: u64 = 192;
const DECLARATION_PERMILLE: u64 = 100;

parameters! {
    /// Passes over functions' code. Local accesses and instructions as measured of `cc1 -O2`.
    CompilerConfig mixed(826, 2467, 12) {
        /// Passes over a function before the next one: 1 to 1000. GCC 12 at -O2 runs about 200.
        passes: u64 = 200,
        /// How the collected heap grows, which one thread fills. If left out, all is mapped from
        /// the start and every thread fills its share.
        #[serde(skip_serializing_if = "Option::is_none")]
        heap: Option<GrowingHeapConfig> = None,
    }
}

pub(super) struct Compiler {
    layout: Layout,
    declarations: Region,
    code: Region,
    popularity: Zipf,
    scramble: Bijection,
    functions: u64,
    passes: u64,
    /// Of each thread: pass of its function, statement in it, and function.
    at: Vec<(u64, u64, u64)>,
    sweep: Sweep,
    dice: Vec<Dice>,
}

impl Compiler {
    pub(super) fn new(config: &CompilerConfig) -> Result<Self, WorkloadError> {
        let name = Self::NAME;
        let mut layout = Layout::new(name, config.common(), config.mixture())?;
        if !(1..=1000).contains(&config.passes) {
            return Err(impossible(name, format!("passes = {}: from 1 to 1000", config.passes)));
        }
        let [declarations, code] = match config.heap {
            Some(heap) => {
                let all = layout.left();
                layout.heap(name, all, heap)?.split((all * DECLARATION_PERMILLE / 1000).max(1))
            }
            None => [layout.map_share(layout.left(), DECLARATION_PERMILLE), layout.map(layout.left())],
        };
        let (count, functions) = (declarations.bytes() / DECLARATION, code.bytes() / (FUNCTION * STATEMENT));
        if functions == 0 {
            return Err(impossible(name, "footprint: too small for a function's code"));
        }
        let groups = vec![vec![declarations], vec![code]];
        Ok(Self {
            sweep: if config.heap.is_some() { Sweep::by_the_first(groups) } else { Sweep::new(groups, config.threads) },
            layout,
            declarations,
            code,
            popularity: Zipf::new(count, 1.0),
            scramble: Bijection::new(count, mix(config.seed)),
            functions,
            passes: config.passes,
            at: (0..u64::from(config.threads)).map(|thread| (0, 0, thread % functions)).collect(),
            dice: Dice::of_threads(config.seed, config.threads),
        })
    }

    fn advance(&mut self, thread: usize) {
        let (pass, statement, function) = &mut self.at[thread];
        *statement += STEP;
        if *statement == FUNCTION {
            (*statement, *pass) = (0, *pass + 1);
        }
        if *pass == self.passes {
            (*pass, *function) = (0, (*function + self.dice.len() as u64) % self.functions);
        }
    }
}

impl Pattern for Compiler {
    const NAME: &'static str = "compiler";

    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn touch(&mut self, thread: u16, touches: &mut Vec<(Vpn, bool)>, most: usize) {
        self.sweep.touch(thread, touches, most);
    }

    fn operate(&mut self, thread: usize, accesses: &mut Vec<Access>) {
        let (_, first, function) = self.at[thread];
        let dice = &mut self.dice[thread];
        let code =
            |statement: u64, field: u64| self.code.at((function * FUNCTION + statement % FUNCTION) * STATEMENT + field);
        for statement in first..first + STEP {
            accesses.extend([0, 8, 16].map(|field| Access::load(code(statement, field))));
            for _ in 0..2 {
                let operand = statement + FUNCTION - NEAR / 2 + dice.below(NEAR);
                accesses.push(Access::load(code(operand, 0)));
            }
            if dice.chance(250) {
                accesses.push(Access::store(code(statement, 24)));
            }
            if dice.chance(250) {
                let declaration = self.scramble.apply(self.popularity.sample(&mut dice.0) - 1);
                let base = declaration * DECLARATION;
                accesses.extend([0, 64].map(|field| Access::load(self.declarations.at(base + field))));
            }
        }
        self.advance(thread);
    }
}
