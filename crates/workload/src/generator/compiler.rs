// SPDX-License-Identifier: MIT OR Apache-2.0
//! `compiler`: SPEC CPU's gcc, passes over the intermediate code of one function after another.
//!
//! **Memory**: the garbage-collected heap, one mapping or, with the key `heap`, as many as
//! `ggc-page.c` makes, each when those before are full ([`heap`](super::heap)): a tenth of it the
//! declarations and types of the whole unit (assumed), then what `malloc` gives (bitmaps, pools,
//! obstacks: with the key `heap` a part of the heap), the rest functions' code in the order in
//! which they are compiled.
//!
//! **Functions** have as many instructions as those of Lua 5.4.7 at `-O2` ([`SIZES`]). Passes make
//! code anew and leave the old behind, so a function's code lies scattered over what was allocated
//! for it: 4 KiB an instruction. Half of that are statements, half what they refer to (assumed).
//! Its pages are those that had room anywhere in the heap: 256 of them made 183 runs of
//! neighbours, in 147 groups of 8 and on 30 page tables. What `malloc` gave for a function is given
//! back and taken again, so all functions use the same pages of it, scattered, too: 236 pages in
//! 139 runs.
//!
//! **An operation** is a visit of one instruction: to its statement, to what defines its two
//! operands (as far back as an octave drawn evenly, and the same ones in each pass), to what
//! passes know of both (`malloc`), and, for one instruction in four, to a declaration. Which
//! declarations a function refers to is drawn once for it (zipf, exponent 1: some types are
//! everywhere). After `passes` times over the function the next one comes.
//!
//! The counts are of `cc1` (GCC 12.2, `-O2`) on three copies of Lua in its early passes
//! (`docs/fidelity.md`, "cc1 against captures"), in every fourth 2^20 accesses of 120 million: the
//! 512 hottest lines have 741 of 1000 accesses, the rest of stack, static data and libraries 39,
//! the rest of the collected heap 71 (a tenth stores; 1452 lines on 256 pages) and of `malloc` 148
//! (560 of 1000 stores; 2353 lines on 236 pages). Instructions of Lua's functions but for its
//! interpreter's, each function weighted by its size, are 198 a function.

use nestwalk_mem::addr::PAGE_BYTES;
use nestwalk_mem::{Access, Gva, Vpn};

use super::bijection::{Bijection, Dice, mix};
use super::config::{impossible, parameters};
use super::heap::GrowingHeapConfig;
use super::layout::Layout;
use super::memory::{Region, Sweep};
use super::pattern::Pattern;
use super::zipf::Zipf;
use crate::stream::WorkloadError;

/// Of 10,000 functions so many have fewer than so many instructions: Lua's 701, but for the largest
/// (3784). Even between these.
const SIZES: [(u64, u64); 23] = [
    (0, 1),
    (500, 3),
    (1000, 8),
    (1500, 12),
    (2000, 19),
    (2500, 25),
    (3000, 30),
    (3500, 35),
    (4000, 38),
    (4500, 42),
    (5000, 46),
    (5500, 50),
    (6000, 54),
    (6500, 60),
    (7000, 68),
    (7500, 78),
    (8000, 91),
    (8500, 116),
    (9000, 144),
    (9500, 193),
    (9900, 404),
    (9950, 567),
    (10_000, 1533),
];
const DECLARATION: u64 = 192;
const DECLARATION_PERMILLE: u64 = 100;
/// One instruction in so many refers to a declaration (assumed).
const DECLARES: u64 = 4;
const LINE: u64 = 64;
/// An instruction's part of what a function's code lies on, half of it for statements: 199 MB were
/// allocated for Lua's 51,409 instructions.
const CODE: u64 = PAGE_BYTES;
/// Of them used: 1452 lines by 198 instructions.
const STATEMENT_LINES: u64 = 4;
const NAME_LINES: u64 = 3;
/// Pages that `malloc` gives, counted in 32 million accesses: 580 to 609.
const POOL_PAGES: u64 = 580;
/// An instruction's part of them: 236 pages and 2353 lines by 198 instructions.
const POOL: u64 = 76 * LINE;
const POOL_LINES: u64 = 12;
/// Operands of an instruction (assumed).
const OPERANDS: u64 = 2;
/// Accesses of a visit, for each operand: to the statement and to its names, to the operand's name,
/// to what is known of the instruction and of the operand. 71 of the former to 148 of the latter.
/// That a visit has some 80 of them follows from 6.8 uses, in a thousand accesses, of pages of
/// these two sorts that are not among the last 64: so many times did passes go over the 492 pages.
const TO_STATEMENT: u64 = 4;
const TO_NAMES: u64 = 2;
const TO_OPERAND: u64 = 6;
const TO_POOL: u64 = 14;
const TO_OPERANDS_POOL: u64 = 12;
/// Of a thousand accesses to the page of the one before, those to another line: of code 365 stay on
/// the line and 529 on the page, of what `malloc` gave 648 and 777.
const CODE_MOVES: u64 = 310;
const POOL_MOVES: u64 = 166;
/// Of a thousand pages, those that lie beside the next or the last one of the same function: with
/// these, runs have 1.4 and 1.7 pages.
const CODE_PAIRS: u64 = 571;
const POOL_PAIRS: u64 = 823;
/// Stores among them.
const CODE_STORES: u64 = 104;
const POOL_STORES: u64 = 559;

parameters! {
    /// Passes over functions' code. Local accesses as counted of `cc1 -O2` in its early passes.
    CompilerConfig mixed(780, 2467, 12) {
        /// Times over a function before the next one: 1 to 1000.
        passes: u64 = 67,
        /// How the collected heap grows, which one thread fills. If left out, all is mapped from
        /// the start and every thread fills its share.
        #[serde(skip_serializing_if = "Option::is_none")]
        heap: Option<GrowingHeapConfig> = None,
    }
}

/// The function that a thread compiles.
#[derive(Default)]
struct Function {
    /// Its first page in the thread's part of the code, and its instructions, of a page each.
    start: u64,
    size: u64,
    /// What it refers to: a declaration for each [`DECLARES`] instructions.
    declarations: Vec<u64>,
    pass: u64,
    instruction: u64,
}

pub(super) struct Compiler {
    layout: Layout,
    declarations: Region,
    pool: Region,
    code: Region,
    popularity: Zipf,
    scramble: Bijection,
    passes: u64,
    functions: Vec<Function>,
    /// Where a thread's pages of code and of what `malloc` gave lie.
    scattered: [Scattered; 2],
    sweep: Sweep,
    dice: Vec<Dice>,
}

/// An order of pages in which some pairs are neighbours, and nothing else is but by chance.
struct Scattered {
    pages: Bijection,
    pairs: Bijection,
    /// Of a thousand pages.
    paired: u64,
    seed: u64,
    count: u64,
}

impl Scattered {
    fn new(count: u64, paired: u64, seed: u64) -> Self {
        let [pages, pairs] = [count, count / 2].map(|count| Bijection::new(count.max(1), mix(seed ^ count)));
        Self { pages, pairs, paired, seed, count }
    }

    /// Where a byte lies.
    fn place(&self, byte: u64) -> u64 {
        let (page, within) = (byte / PAGE_BYTES, byte % PAGE_BYTES);
        let pair = page / 2;
        let is_paired = 2 * pair + 1 < self.count && mix(self.seed ^ pair) % 1000 < self.paired;
        let place = if is_paired { 2 * self.pairs.apply(pair) + page % 2 } else { self.pages.apply(page) };
        place * PAGE_BYTES + within
    }
}

/// How many instructions a function has.
fn draw_size(dice: &mut Dice) -> u64 {
    let nth = dice.below(10_000);
    let next = SIZES.partition_point(|&(fewer, _)| fewer <= nth);
    let [(from, low), (until, high)] = [SIZES[next - 1], SIZES[next]];
    low + (high - low) * (nth - from) / (until - from)
}

impl Compiler {
    pub(super) fn new(config: &CompilerConfig) -> Result<Self, WorkloadError> {
        let name = Self::NAME;
        let mut layout = Layout::new(name, config.common(), config.mixture())?;
        if !(1..=1000).contains(&config.passes) {
            return Err(impossible(name, format!("passes = {}: from 1 to 1000", config.passes)));
        }
        let (all, threads) = (layout.left(), u64::from(config.threads));
        let for_declarations = (all * DECLARATION_PERMILLE / 1000).max(1);
        // A small process has less for one function, too (assumed: an eighth).
        let for_pool = (POOL_PAGES * threads).min(all / 8).max(threads);
        let [declarations, pool, code] = match config.heap {
            Some(heap) => {
                let [declarations, rest] = layout.heap(name, all, heap)?.split(for_declarations);
                let [pool, code] = rest.split(for_pool);
                [declarations, pool, code]
            }
            None => {
                let [declarations, pool] = [for_declarations, for_pool].map(|pages| layout.map(pages));
                [declarations, pool, layout.map(layout.left())]
            }
        };
        let count = declarations.bytes() / DECLARATION;
        let groups = vec![vec![declarations], vec![pool], vec![code]];
        let mut compiler = Self {
            sweep: if config.heap.is_some() { Sweep::by_the_first(groups) } else { Sweep::new(groups, config.threads) },
            layout,
            declarations,
            pool,
            code,
            popularity: Zipf::new(count, 1.0),
            scramble: Bijection::new(count, mix(config.seed)),
            passes: config.passes,
            scattered: [(code, CODE_PAIRS), (pool, POOL_PAIRS)].map(|(region, paired)| {
                let share = region.pages.len() / u64::from(config.threads);
                Scattered::new(share, paired, mix(config.seed ^ paired))
            }),
            functions: (0..config.threads).map(|_| Function::default()).collect(),
            dice: Dice::of_threads(config.seed, config.threads),
        };
        (0..usize::from(config.threads)).for_each(|thread| compiler.begin(thread));
        Ok(compiler)
    }

    /// A thread's part of a region, in bytes.
    fn share(&self, region: Region) -> u64 {
        region.pages.len() / self.functions.len() as u64 * PAGE_BYTES
    }

    /// The thread's next function: behind the last one, or from the beginning of its code.
    fn begin(&mut self, thread: usize) {
        let (room, dice) = (self.share(self.code) / CODE, &mut self.dice[thread]);
        let size = draw_size(dice).min(room);
        let declarations = (0..size.div_ceil(DECLARES))
            .map(|_| self.scramble.apply(self.popularity.sample(&mut dice.0) - 1))
            .collect();
        let last = &self.functions[thread];
        let end = last.start + last.size;
        let start = if end + size > room { 0 } else { end };
        self.functions[thread] = Function { start, size, declarations, pass: 0, instruction: 0 };
    }

    fn advance(&mut self, thread: usize) {
        let function = &mut self.functions[thread];
        function.instruction += 1;
        if function.instruction == function.size {
            (function.instruction, function.pass) = (0, function.pass + 1);
        }
        if function.pass == self.passes {
            self.begin(thread);
        }
    }
}

impl Function {
    /// What defines an operand of the instruction: as far back as an octave drawn evenly. The same
    /// in each pass.
    fn operand(&self, instruction: u64, nth: u64) -> u64 {
        let draw = mix(self.start << 24 ^ instruction << 4 ^ nth);
        let back = 1 << (draw % (u64::from(self.size.ilog2()) + 1));
        (instruction + self.size - (back + (draw >> 32) % back) % self.size) % self.size
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
        let Function { start, size, instruction, .. } = self.functions[thread];
        let (code_share, pool_share) = (self.share(self.code), self.share(self.pool));
        let (code_base, pool_base) = (thread as u64 * code_share, thread as u64 * pool_share);
        let [code_order, pool_order] = &self.scattered;
        let function = &self.functions[thread];
        let dice = &mut self.dice[thread];
        // Which of an instruction's lines, scattered over its part of `lines`.
        let line = |part: u64, nth: u64, lines: u64| mix(part << 8 ^ nth) % lines * LINE;
        let half = CODE / 2;
        let statement = |of: u64, nth: u64| {
            let within = of * half + line(of, nth % STATEMENT_LINES, half / LINE);
            self.code.at(code_base + code_order.place(start * CODE + within))
        };
        let name = |of: u64, nth: u64| {
            let within = (size + of) * half + line(of, 16 + nth % NAME_LINES, half / LINE);
            self.code.at(code_base + code_order.place(start * CODE + within))
        };
        let known = |of: u64, nth: u64| {
            let within = (of * POOL + line(of, 32 + nth % POOL_LINES, POOL / LINE)) % pool_share;
            self.pool.at(pool_base + pool_order.place(within))
        };
        let mut add = |count: u64, [moves, stores]: [u64; 2], place: &dyn Fn(u64) -> Gva| {
            let mut nth = dice.below(u64::from(u16::MAX));
            for _ in 0..count {
                accesses.push(Access::new(place(nth), dice.chance(stores)));
                if dice.chance(moves) {
                    nth = dice.below(u64::from(u16::MAX));
                }
            }
        };
        let (of_code, of_pool) = ([CODE_MOVES, CODE_STORES], [POOL_MOVES, POOL_STORES]);
        for nth in 0..OPERANDS {
            let operand = function.operand(instruction, nth);
            add(TO_STATEMENT, of_code, &|nth| statement(instruction, nth));
            add(TO_NAMES, of_code, &|nth| name(instruction, nth));
            add(TO_POOL, of_pool, &|nth| known(instruction, nth));
            add(TO_OPERAND, of_code, &|nth| name(operand, nth));
            add(TO_OPERANDS_POOL, of_pool, &|nth| known(operand, nth));
        }
        if instruction % DECLARES == 0 {
            let base = function.declarations[(instruction / DECLARES) as usize] * DECLARATION;
            accesses.extend([0, LINE].map(|field| Access::load(self.declarations.at(base + field))));
        }
        self.advance(thread);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use nestwalk_mem::PageCount;

    use super::*;

    fn compiler(mib: u64) -> Compiler {
        let footprint = PageCount(mib << 8);
        Compiler::new(&CompilerConfig { footprint, ..CompilerConfig::default() }).unwrap()
    }

    /// Lua's functions but for the largest have 68 instructions, half of them 46 or fewer.
    #[test]
    fn functions_have_the_counted_sizes() {
        let mut dice = Dice::of_threads(1, 1).remove(0);
        let mut sizes: Vec<u64> = (0..100_000).map(|_| draw_size(&mut dice)).collect();
        sizes.sort_unstable();
        let mean = sizes.iter().sum::<u64>() as f64 / sizes.len() as f64;
        assert!((64.0..72.0).contains(&mean), "{mean}");
        let weighted = sizes.iter().map(|size| size * size).sum::<u64>() as f64 / sizes.iter().sum::<u64>() as f64;
        assert!((170.0..230.0).contains(&weighted), "{weighted}");
        assert!((44..=48).contains(&sizes[50_000]), "{}", sizes[50_000]);
        assert!((300..=404).contains(&sizes[98_900]) && sizes[99_999] > 1400, "{} {}", sizes[98_900], sizes[99_999]);
    }

    /// All that a function refers to is drawn once: a second time over it finds nothing new.
    #[test]
    fn a_pass_uses_what_the_pass_before_used() {
        let mut compiler = compiler(100);
        let mut accesses = Vec::new();
        let mut pass = |compiler: &mut Compiler| -> BTreeSet<u64> {
            accesses.clear();
            let size = compiler.functions[0].size;
            (0..size).for_each(|_| compiler.operate(0, &mut accesses));
            accesses.iter().map(|access| access.gva().page().0).collect()
        };
        for _ in 0..20 {
            let first = pass(&mut compiler);
            let second = pass(&mut compiler);
            // Which of its lines are asked for is drawn, and they may lie on two pages.
            assert!(second.difference(&first).count() * 50 <= first.len() + 50, "{first:?} {second:?}");
            (2..compiler.passes).for_each(|_| drop(pass(&mut compiler)));
            assert_eq!(compiler.functions[0].pass, 0, "the next function");
        }
    }

    /// As counted: 1.4 and 1.7 pages a run.
    #[test]
    fn pages_are_scattered_in_short_runs() {
        for (count, paired, runs) in [(30_000, CODE_PAIRS, 183..=183), (580, POOL_PAIRS, 139..=139)] {
            let used = if count == 580 { 236 } else { 256 };
            let order = Scattered::new(count, paired, 7);
            let mut places: Vec<u64> = (0..used).map(|page| order.place(page * PAGE_BYTES) / PAGE_BYTES).collect();
            places.sort_unstable();
            places.dedup();
            let found = 1 + places.windows(2).filter(|pair| pair[1] != pair[0] + 1).count();
            // Of the few pages of malloc's some are neighbours by chance.
            assert!((runs.start() * 3 / 5..runs.end() * 5 / 4).contains(&found), "{found} runs for {runs:?}");
            assert!(places.iter().all(|&place| place < count));
        }
    }

    /// As counted: 248 pages of the collected heap and 236 of malloc's by 198 instructions.
    #[test]
    fn a_function_lies_on_as_many_pages_as_counted() {
        let mut compiler = compiler(100);
        let mut accesses = Vec::new();
        (compiler.functions[0].size, compiler.functions[0].declarations) =
            (198, (0..50).map(|nth| nth * 100).collect());
        (0..198 * 8).for_each(|_| compiler.operate(0, &mut accesses));
        let pages: BTreeSet<Vpn> = accesses.iter().map(|access| Vpn(access.gva().page().0)).collect();
        let of = |region: Region| pages.iter().filter(|&&page| region.pages.contains(page)).count();
        let [declarations, pool, code] = [compiler.declarations, compiler.pool, compiler.code].map(of);
        // Some single pages lie where a pair does.
        assert!((170..=198).contains(&code), "{code}");
        assert!((170..=237).contains(&pool), "{pool}");
        assert_eq!(declarations, 50);
        let share = |region: Region| {
            accesses.iter().filter(|access| region.pages.contains(Vpn(access.gva().page().0))).count() as f64
        };
        let ratio = share(compiler.pool) / (share(compiler.code) + share(compiler.declarations));
        assert!((1.9..2.3).contains(&ratio), "148 to 71, {ratio}");
    }
}
