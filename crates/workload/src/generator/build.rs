// SPDX-License-Identifier: MIT OR Apache-2.0
//! `build`: one job of `make -j`, the build of a kernel: for each unit the processes `sh`, `gcc`,
//! `cc1` and `as`, one in the other, none of which lives long.
//!
//! What they do was measured of gcc 12.2 compiling 22 units of Linux 6.12 (x86-64 defconfig-like,
//! -O2), drawn at random, by strace and by `/proc/self/smaps` at their exit
//! (`packaging/build_units.py`):
//! - memory of each `cc1`: `UNITS`, from which a unit is drawn; of the others, which differ by a
//!   few pages only, the median: `SH`, `GCC`, `CC1`, `AS`;
//! - files: executables and libraries are mapped, and so many of their 64 KiB are used (the kernel
//!   maps 64 KiB at a fault); 397 headers are read by four units in five, the others by one in
//!   five. 1137 were seen, of 2.5 pages on average;
//! - an object file of 13 KiB is written. Nothing is linked.
//!
//! Memory is touched page by page in ascending order, code as the heap grows. How it grows
//! (`heap`):
//! - `chunks`: all of it in aligned chunks of 2 MiB, each mapped when the one before is full, as
//!   jemalloc (FreeBSD's libc) asks for it, and as FreeBSD aligns mappings of 2 MiB;
//! - `brk`: `malloc` by `brk`, in steps of 132 KiB (glibc's `M_TOP_PAD`), and gcc's collected heap
//!   in mappings of 2 MiB (`GGC_QUIRE_SIZE`), each below the one before, which Linux up to 6.6 does
//!   not align.
//!
//! At last, if `measures`, one more `cc1` of the mean size fills its memory in this way; its
//! accesses are those of [`compiler`](super::compiler).

use std::collections::VecDeque;

use nestwalk_mem::addr::PAGE_BYTES;
use nestwalk_mem::{Access, Gva, PageCount, Vpn, VpnRange};
use serde::{Deserialize, Serialize};

use super::bijection::{mix, scale};
use super::compiler::{Compiler, CompilerConfig};
use super::config::impossible;
use super::memory::MmapArea;
use super::pattern::Mixed;
use super::program::Driver;
use crate::stream::{Batch, MemoryEvent, Phase, Step, Workload, WorkloadError, WorkloadFacts};

/// KiB of gcc's collected heap and of `malloc`, files read, and milliseconds in user mode, of the
/// `cc1` of each measured unit (Xeon at 2.3 GHz, beside others).
const UNITS: [(u64, u64, u64, u64); 22] = [
    (10_164, 1904, 225, 58),
    (27_636, 3352, 510, 205),
    (29_304, 3156, 541, 174),
    (29_948, 3740, 536, 227),
    (31_288, 3560, 556, 203),
    (36_072, 4216, 594, 382),
    (37_220, 3572, 618, 292),
    (39_992, 3428, 660, 273),
    (40_096, 3536, 662, 286),
    (42_188, 4192, 734, 317),
    (46_736, 5228, 763, 406),
    (46_864, 4336, 769, 407),
    (47_244, 5136, 732, 513),
    (47_612, 4460, 748, 405),
    (48_668, 4200, 799, 344),
    (49_540, 4592, 812, 286),
    (51_368, 4468, 905, 425),
    (64_636, 6676, 852, 874),
    (69_148, 6392, 934, 658),
    (69_484, 5648, 889, 636),
    (88_216, 6984, 1101, 827),
    (90_148, 7148, 991, 1000),
];
/// Their mean memory, KiB.
const MEAN_KIB: u64 = 47_435 + 4542;
/// Headers that four units in five read, and all that were seen.
const CORE_HEADERS: u64 = 397;
const HEADERS: u64 = 1137;
/// Instructions a microsecond: one a cycle at 2.3 GHz, an assumption.
const INSTRUCTIONS_PER_US: u64 = 2300;
/// Pages of the object file.
const OBJECT: PageCount = PageCount(4);

/// An executable or a library: its name, pages, and of 1000 of its 64 KiB those that are used.
type Image = (&'static str, u64, u64);

const LIBC: Image = ("lib/libc.so.6", 482, 800);

/// One of the programs.
struct Tool {
    images: &'static [Image],
    /// Pages of the executable's data, which are stored to.
    copied: u64,
    stack: u64,
    malloc: u64,
    user_us: u64,
}

const SH: Tool = Tool { images: &[("bin/sh", 31, 1000), LIBC], copied: 6, stack: 8, malloc: 12, user_us: 500 };
const GCC: Tool = Tool { images: &[("bin/gcc", 318, 820), LIBC], copied: 15, stack: 8, malloc: 19 + 12, user_us: 3500 };
const CC1: Tool = Tool {
    images: &[("lib/cc1", 8141, 668), LIBC, ("lib/cc1-libraries", 1100, 360)],
    copied: 43,
    stack: 30,
    malloc: 0,
    user_us: 0,
};
const AS: Tool = Tool {
    images: &[("bin/as", 225, 980), LIBC, ("lib/as-libraries", 600, 575)],
    copied: 113,
    stack: 8,
    malloc: 114 + 18,
    user_us: 3400,
};

/// The executable's first page: 4 MiB, as linked without a position of its own.
const EXECUTABLE: Vpn = Vpn(0x400);
/// Where `brk` begins.
const BRK: Vpn = Vpn(0x1_0000);
/// Where aligned chunks lie.
const CHUNKS: Vpn = Vpn(0x8_0000_0000 >> 12);
/// Where libraries lie.
const LIBRARIES: Vpn = Vpn(0x7_f000_0000);
const STACK_END: Vpn = Vpn(0x7_ffff_f000);
const CHUNK: u64 = 512;
/// Pages by which `brk` grows.
const STEP: u64 = 33;
/// Pages that are touched in one go.
const TURN: usize = 64;
/// Windows of this many pages are used or not.
const WINDOW: u64 = 16;

/// How memory grows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Heap {
    /// In aligned chunks of 2 MiB.
    #[default]
    Chunks,
    /// By `brk`, and in mappings of 2 MiB that lie as they come.
    Brk,
}

/// A job of a build.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BuildConfig {
    /// Units that it compiles.
    pub units: u64,
    /// How memory grows.
    pub heap: Heap,
    /// Whether one more is compiled, whose accesses are simulated. `false`: for jobs beside the
    /// measured one.
    pub measures: bool,
    /// Accesses before counting begins. If left out, until what is measured no longer drifts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warm_accesses: Option<u64>,
    /// Accesses that are counted.
    pub measured_accesses: u64,
    /// Which units they are follows from this and from the run's seed.
    pub seed: u64,
}

impl Default for BuildConfig {
    fn default() -> Self {
        let (heap, warm_accesses) = Default::default();
        Self { units: 100, heap, measures: true, warm_accesses, measured_accesses: 20_000_000, seed: 1 }
    }
}

/// What comes next.
enum Item {
    Event(MemoryEvent),
    Touches(Vec<(Vpn, bool)>, u64),
}

/// See the [module's documentation](self).
pub(super) struct Build {
    config: BuildConfig,
    begun: bool,
    unit: u64,
    items: VecDeque<Item>,
    last: Option<Last>,
}

impl Build {
    pub(super) fn new(config: &BuildConfig) -> Result<Self, WorkloadError> {
        if config.units == 0 {
            return Err(impossible("build", "units = 0: it would build nothing"));
        }
        let last = config.measures.then(|| Last::new(config)).transpose()?;
        Ok(Self { config: config.clone(), begun: false, unit: 0, items: VecDeque::new(), last })
    }

    /// All that one unit's processes do.
    fn compile(&mut self) {
        let draw = mix(self.config.seed.rotate_left(40) ^ self.unit);
        let (collected, malloc, files, user_ms) = UNITS[scale(mix(draw), UNITS.len() as u64) as usize];
        let headers = headers(draw, files);
        let mut script = Script { heap: self.config.heap, items: &mut self.items };
        script.begin(&SH);
        script.grow(SH.malloc, 0, &SH, &[]);
        script.begin(&GCC);
        script.grow(GCC.malloc, 0, &GCC, &[]);
        script.begin(&CC1);
        let cc1 = Tool { user_us: user_ms * 1000, ..CC1 };
        script.grow(malloc / 4, collected / 4, &cc1, &headers);
        script.end();
        script.begin(&AS);
        script.grow(AS.malloc, 0, &AS, &[]);
        let object = mix(draw ^ 0x6f);
        script.event(MemoryEvent::WriteFile { file: object, pages: OBJECT });
        (0..3).for_each(|_| script.end());
        self.unit += 1;
    }
}

/// The files that a unit reads, as name and pages: its source, and its headers.
fn headers(draw: u64, count: u64) -> Vec<(u64, PageCount)> {
    let header = |number: u64| (mix(number ^ 0x0068_6561_6465_7200), PageCount(1 + mix(number) % 4));
    let core = (0..CORE_HEADERS.min(count)).map(header);
    let others = (CORE_HEADERS.min(count)..count - 1)
        .map(|i| header(CORE_HEADERS + scale(mix(draw ^ i << 20), HEADERS - CORE_HEADERS)));
    let source = (mix(draw ^ 0x63), PageCount(8));
    std::iter::once(source).chain(core).chain(others).collect()
}

/// Writes down what processes do.
struct Script<'a> {
    heap: Heap,
    items: &'a mut VecDeque<Item>,
}

impl Script<'_> {
    fn event(&mut self, event: MemoryEvent) {
        self.items.push_back(Item::Event(event));
    }

    fn map(&mut self, start: Vpn, pages: u64) {
        let range = VpnRange::new(start, PageCount(pages));
        self.event(MemoryEvent::Mmap { range, writable: true, anonymous: true });
    }

    /// A process of that program begins, whose parent waits for it.
    fn begin(&mut self, tool: &Tool) {
        self.event(MemoryEvent::SpawnAndWait);
        for (&(name, pages, _), start) in tool.images.iter().zip(places(tool)) {
            let range = VpnRange::new(start, PageCount(pages));
            let (file, size) = (path(name), PageCount(pages));
            self.event(MemoryEvent::MmapFile { range, file, size, first: 0, shared: false, writable: true });
        }
        self.map(Vpn(STACK_END.0 - tool.stack), tool.stack);
        let stack = (1..=tool.stack).map(|page| (Vpn(STACK_END.0 - page), true));
        let data = (1..=tool.copied).map(|page| (EXECUTABLE + (tool.images[0].1 - page), true));
        self.items.push_back(Item::Touches(stack.chain(data).collect(), 0));
    }

    fn end(&mut self) {
        self.event(MemoryEvent::ChildExit);
    }

    /// It fills so many pages by `malloc` and of the collected heap, uses its code meanwhile, and
    /// reads its files in the first third of that.
    fn grow(&mut self, malloc: u64, collected: u64, tool: &Tool, files: &[(u64, PageCount)]) {
        let code = code(tool);
        let pages = malloc + collected;
        let mut heap = Growth::new(self.heap, malloc, collected);
        let (mut touches, mut read, mut used) = (Vec::new(), 0, 0);
        let instructions = tool.user_us * INSTRUCTIONS_PER_US / pages.max(1);
        for done in 0..pages {
            let (page, mapping) = heap.next(done);
            if let Some(event) = mapping {
                self.flush(&mut touches, instructions);
                self.event(event);
            }
            touches.push((page, true));
            while used * pages < code.len() as u64 * (done + 1) {
                touches.push((code[used as usize], false));
                used += 1;
            }
            while read * pages < files.len() as u64 * 3 * (done + 1) && read < files.len() as u64 {
                self.flush(&mut touches, instructions);
                let (file, pages) = files[read as usize];
                self.event(MemoryEvent::ReadFile { file, pages });
                read += 1;
            }
            if touches.len() >= TURN {
                self.flush(&mut touches, instructions);
            }
        }
        self.flush(&mut touches, instructions);
    }

    fn flush(&mut self, touches: &mut Vec<(Vpn, bool)>, instructions: u64) {
        if !touches.is_empty() {
            let instructions = instructions * touches.iter().filter(|(_, store)| *store).count() as u64;
            self.items.push_back(Item::Touches(std::mem::take(touches), instructions));
        }
    }
}

/// The number that a path stands for (FNV-1a, as a kernel's `FileName::of`).
fn path(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// Where its images lie: the executable, and libraries one after the other, each at a multiple of
/// 2 MiB.
fn places(tool: &Tool) -> impl Iterator<Item = Vpn> + use<> {
    let sizes: Vec<u64> = tool.images.iter().skip(1).map(|&(_, pages, _)| pages.next_multiple_of(CHUNK)).collect();
    let ends = sizes.into_iter().scan(LIBRARIES, |next, size| {
        let at = *next;
        *next = at + size;
        Some(at)
    });
    std::iter::once(EXECUTABLE).chain(ends)
}

/// A page of each 64 KiB of its images that it uses, which are the same in each of its processes,
/// in no order.
fn code(tool: &Tool) -> Vec<Vpn> {
    let mut found = Vec::new();
    for (&(name, pages, permille), start) in tool.images.iter().zip(places(tool)) {
        let used = |window: &u64| scale(mix(path(name) ^ window), 1000) < permille;
        let page = |window: u64| start + (window * WINDOW + mix(window) % WINDOW).min(pages - 1);
        found.extend((0..pages.div_ceil(WINDOW)).filter(used).map(page));
    }
    found.sort_unstable_by_key(|page| mix(page.0));
    found
}

/// How the memory of one process grows, page by page.
struct Growth {
    heap: Heap,
    /// Pages of `malloc` and of the collected heap, and how many of each are done.
    wanted: [u64; 2],
    done: [u64; 2],
    /// For each, the next page and the end of what is mapped.
    next: [(Vpn, Vpn); 2],
    /// Where the next chunk of either begins, and where mappings are made that lie as they come.
    chunk: Vpn,
    area: MmapArea,
}

impl Growth {
    fn new(heap: Heap, malloc: u64, collected: u64) -> Self {
        let mut area = MmapArea::new();
        // Libraries' private data and the like: the first mapping is no multiple of 2 MiB.
        area.skip(PageCount(77));
        let none = (Vpn(0), Vpn(0));
        let next = if heap == Heap::Brk { [(BRK, BRK), none] } else { [none; 2] };
        Self { heap, wanted: [malloc, collected], done: [0; 2], next, chunk: CHUNKS, area }
    }

    /// The next page, and the mapping that has to be made for it.
    fn next(&mut self, done: u64) -> (Vpn, Option<MemoryEvent>) {
        let all = self.wanted[0] + self.wanted[1];
        // Both grow in step.
        let which = usize::from(self.done[0] * all >= self.wanted[0] * (done + 1) || self.done[0] == self.wanted[0]);
        let which = if self.done[which] == self.wanted[which] { 1 - which } else { which };
        let (mut page, end) = self.next[which];
        let mut event = None;
        if page == end {
            let range = match (self.heap, which) {
                (Heap::Brk, 0) => {
                    self.next[0].1 = end + STEP;
                    event = Some(MemoryEvent::Brk { end: (end + STEP).address() });
                    None
                }
                (Heap::Brk, _) => Some(self.area.map(PageCount(CHUNK)).pages),
                (Heap::Chunks, _) => {
                    self.chunk += CHUNK;
                    Some(VpnRange::new(Vpn(self.chunk.0 - CHUNK), PageCount(CHUNK)))
                }
            };
            if let Some(range) = range {
                (page, self.next[which].1) = (range.start, range.end);
                event = Some(MemoryEvent::Mmap { range, writable: true, anonymous: true });
            }
        }
        self.next[which].0 = page + 1;
        self.done[which] += 1;
        (page, event)
    }
}

/// The process whose accesses are simulated.
struct Last {
    inner: Driver<Mixed<Compiler>>,
    /// By how many pages all of it is moved, so that its large mappings are aligned as `heap` says.
    shift: u64,
    begun: bool,
    /// What of its large mappings is not mapped yet.
    large: Vec<VpnRange>,
    pending: VecDeque<(Vpn, bool)>,
}

impl Last {
    fn new(config: &BuildConfig) -> Result<Self, WorkloadError> {
        let compiler = CompilerConfig {
            footprint: PageCount(MEAN_KIB / 4),
            warm_accesses: config.warm_accesses,
            measured_accesses: config.measured_accesses,
            seed: config.seed,
            ..CompilerConfig::default()
        };
        let driver = || {
            let common = compiler.common();
            Driver::new(common, Mixed::new(common, compiler.mixture(), Compiler::new(&compiler)?))
        };
        let shift = if config.heap == Heap::Chunks { lowest_mapping(driver()?)?.0 % CHUNK } else { 0 };
        Ok(Self { inner: driver()?, shift, begun: false, large: Vec::new(), pending: VecDeque::new() })
    }

    fn place(&self, page: Vpn) -> Vpn {
        Vpn(page.0 - self.shift)
    }

    fn next(&mut self, batch: &mut Batch) -> Result<Step, WorkloadError> {
        if !std::mem::replace(&mut self.begun, true) {
            return Ok(Step::Event(MemoryEvent::SpawnAndWait));
        }
        while self.pending.is_empty() {
            match self.inner.next(batch)? {
                Step::Event(MemoryEvent::Mmap { range, writable, anonymous }) => {
                    let range = VpnRange::new(self.place(range.start), PageCount(range.len()));
                    if range.len() <= CHUNK {
                        return Ok(Step::Event(MemoryEvent::Mmap { range, writable, anonymous }));
                    }
                    // It is mapped as it grows.
                    self.large.push(range);
                }
                Step::Touches => self.pending.extend(batch.touches.drain(..)),
                Step::Accesses => {
                    for access in &mut batch.accesses {
                        let moved = Gva(access.gva().0 - self.shift * PAGE_BYTES);
                        *access = Access::new(moved, access.is_store());
                    }
                    return Ok(Step::Accesses);
                }
                other => return Ok(other),
            }
        }
        batch.clear();
        while let Some(&(page, store)) = self.pending.front() {
            let page = self.place(page);
            if let Some(rest) = self.large.iter_mut().find(|rest| rest.contains(page)) {
                if !batch.touches.is_empty() {
                    break;
                }
                let start = rest.start;
                rest.start = (start + CHUNK).min(rest.end);
                let range = VpnRange { start, end: rest.start };
                return Ok(Step::Event(MemoryEvent::Mmap { range, writable: true, anonymous: true }));
            }
            batch.touches.push((page, store));
            self.pending.pop_front();
        }
        Ok(Step::Touches)
    }
}

/// Where the lowest mapping of a program begins, which it makes last.
fn lowest_mapping(mut program: Driver<Mixed<Compiler>>) -> Result<Vpn, WorkloadError> {
    let (mut batch, mut lowest) = (Batch::default(), Vpn(0));
    loop {
        match program.next(&mut batch)? {
            Step::Phase(_) => {}
            Step::Event(MemoryEvent::Mmap { range, .. }) => lowest = range.start,
            _ => return Ok(lowest),
        }
    }
}

/// Pages of the largest process, its files included.
fn footprint() -> u64 {
    let largest = UNITS.iter().map(|&(collected, malloc, ..)| (collected + malloc) / 4).max().unwrap_or(0);
    largest + CC1.images.iter().map(|&(_, pages, _)| pages).sum::<u64>()
}

impl Workload for Build {
    fn facts(&self) -> WorkloadFacts {
        let inner = self.last.as_ref().map(|last| last.inner.facts());
        WorkloadFacts {
            name: "build".into(),
            footprint: PageCount(footprint()),
            accesses: inner.as_ref().and_then(|facts| facts.accesses),
            threads: 1,
            warms_until_told: inner.is_some_and(|facts| facts.warms_until_told),
            kernel_half: false,
            tells_dependences: false,
            modelled: None,
        }
    }

    fn end_warm_up(&mut self) {
        self.last.iter_mut().for_each(|last| last.inner.end_warm_up());
    }

    fn next(&mut self, batch: &mut Batch) -> Result<Step, WorkloadError> {
        batch.clear();
        if !std::mem::replace(&mut self.begun, true) {
            return Ok(Step::Phase(Phase::Populate));
        }
        while self.items.is_empty() && self.unit < self.config.units {
            self.compile();
        }
        match (self.items.pop_front(), &mut self.last) {
            (Some(Item::Event(event)), _) => Ok(Step::Event(event)),
            (Some(Item::Touches(touches, instructions)), _) => {
                (batch.touches, batch.instructions) = (touches, instructions);
                Ok(Step::Touches)
            }
            (None, Some(last)) => last.next(batch),
            (None, None) => Ok(Step::End),
        }
    }
}

#[cfg(test)]
mod tests;
