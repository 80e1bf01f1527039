// SPDX-License-Identifier: MIT OR Apache-2.0
//! The range of every number in a file: a table for each sort of file, and the one place where
//! ranges are checked. Hardware techniques declare theirs themselves ([`accelerator::KEYS`]).
//!
//! A file is checked before it is read into its types, so that a message names line and key. The
//! code that reads two keys checks what depends on both.

use std::path::Path;

use nestwalk_mem::keys::{Key, Upper, assumed, key, limit};
use nestwalk_mem::size;
use nestwalk_mmu::accelerator;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::error::MachineError;

const BYTES: &str = "bytes";
const SHARE: &str = "thousandths";

/// Longer runs would take years; sums of cycles over so many accesses fit 64 bits.
const ACCESSES_MAX: u64 = 100_000_000_000_000;
/// 100,000 cycles are 40 us at 2.5 GHz: no memory is slower, and what is, is storage.
const LATENCY_MAX: u64 = 100_000;
/// A reference of a walk has 46 bits of address (`Reference::ADDRESS_BITS`).
const MEMORY_MAX: u64 = 1 << 46;
/// TOML's largest whole number.
const SEED_MAX: u64 = i64::MAX as u64;
/// A second at 10 GHz: no kernel event costs more, and sums stay within 64 bits.
const COST_MAX: u64 = 10_000_000_000;

/// All of what it is a share of.
const WHOLE: Upper = limit("the whole");
/// Why a latency is at most [`LATENCY_MAX`].
const NO_STORAGE: Upper = assumed("40 us at 2.5 GHz; what is slower is storage");
/// Why memory is at most [`MEMORY_MAX`].
const PHYSICAL: Upper = limit("46 bits of address in the model's references");

/// Why a structure has no more entries.
const REAL_ENTRIES: Upper = assumed("thousands of times what processors have");
/// Why a tag stands for no more of them.
const NODE_ENTRIES: Upper = limit("the entries of a page-table node");
/// Why a table's set has no more ways.
const REAL_WAYS: Upper = assumed("fully associative structures of processors have fewer");
/// Why a cache's set has no more ways.
const WAY_BITS: Upper = limit("the ways of a set are the bits of a word in the model");
/// Why a cache is no larger.
const REAL_CACHE: Upper = assumed("no cache is larger");
/// Why a look-up takes no longer.
const THREE_LOOKUPS: Upper = limit("three look-ups follow each other at most, and 12 bits of the model hold their sum");
/// Why a program's parameter is no larger.
const REAL_PROGRAM: Upper = assumed("more than the programs that it stands for have");
/// Why a run is at most [`ACCESSES_MAX`] long.
const YEARS: Upper = assumed("a longer run takes years");
/// Why a seed is at most [`SEED_MAX`].
const TOML_MAX: Upper = limit("the largest whole number of TOML");
/// Why a time is no longer.
const DAYS: Upper = assumed("eleven days");
/// As `mm/khugepaged.c` checks it.
const LINUX_PTES: Upper = limit("Linux: HPAGE_PMD_NR - 1");
/// Why a block has no more pages.
const BLOCK_PAGES: Upper = limit("the pages of a block of 2 MiB");
const GROUP_PAGES: Upper = limit("the pages of 64 KiB");
/// Why there are no more pages.
const ALL_PAGES: Upper = limit("the pages of 64 TiB");

/// The numbers of a machine file.
pub const MACHINE: &[Key] = &[
    key("frequency_mhz", 1, 100_000, "MHz", assumed("ten times today's fastest clock and more")),
    key("timing.base_cycles_per_kiloinstruction", 1, 1_000_000, "cycles", assumed("1,000 cycles an instruction")),
    key("timing.data_overlap_permille", 0, 1000, SHARE, WHOLE),
    key("timing.walk_critical_permille", 0, 1000, SHARE, WHOLE),
    key("timing.out_of_order.reorder_buffer", 1, 1 << 20, "instructions", assumed("cores of today have 512")),
    key("timing.out_of_order.store_buffer", 1, 1 << 20, "stores", assumed("cores of today have 112")),
    key("timing.out_of_order.page_walkers", 1, 1024, "walks", assumed("cores of today have 6")),
    key("timing.out_of_order.locked_cycles", 0, LATENCY_MAX, "cycles", NO_STORAGE),
    key("mmu.memory_latency_cycles", 1, LATENCY_MAX, "cycles", NO_STORAGE),
    key("mmu.l1d_miss_registers", 1, 4096, "misses", assumed("cores of today have 10 to 48")),
    key("mmu.l2_tlb_hit_cycles", 0, LATENCY_MAX, "cycles", NO_STORAGE),
    key("mmu.segment_latency_cycles", 0, 1000, "cycles", assumed("comparisons of a few registers take less")),
    key("mmu.l1d.size", 64, 1 << 36, BYTES, REAL_CACHE),
    key("mmu.l1d.ways", 1, 64, "ways", WAY_BITS),
    key("mmu.l1d.latency_cycles", 1, LATENCY_MAX, "cycles", NO_STORAGE),
    key("mmu.l2.size", 64, 1 << 36, BYTES, REAL_CACHE),
    key("mmu.l2.ways", 1, 64, "ways", WAY_BITS),
    key("mmu.l2.latency_cycles", 1, LATENCY_MAX, "cycles", NO_STORAGE),
    key("mmu.llc.size", 64, 1 << 36, BYTES, REAL_CACHE),
    key("mmu.llc.ways", 1, 64, "ways", WAY_BITS),
    key("mmu.llc.latency_cycles", 1, LATENCY_MAX, "cycles", NO_STORAGE),
    key("mmu.l1_tlb[].entries", 1, 1 << 24, "entries", REAL_ENTRIES),
    key("mmu.l1_tlb[].ways", 1, 4096, "ways", REAL_WAYS),
    key("mmu.l2_tlb[].entries", 1, 1 << 24, "entries", REAL_ENTRIES),
    key("mmu.l2_tlb[].ways", 1, 4096, "ways", REAL_WAYS),
    key("mmu.guest_pwc.latency_cycles", 1, 1000, "cycles", THREE_LOOKUPS),
    key("mmu.guest_pwc.*.entries", 1, 1 << 24, "entries", REAL_ENTRIES),
    key("mmu.guest_pwc.*.ways", 1, 4096, "ways", REAL_WAYS),
    key("mmu.guest_pwc.rules.entries_per_tag", 1, 512, "entries", NODE_ENTRIES),
    key("mmu.host_pwc.latency_cycles", 1, 1000, "cycles", THREE_LOOKUPS),
    key("mmu.host_pwc.*.entries", 1, 1 << 24, "entries", REAL_ENTRIES),
    key("mmu.host_pwc.*.ways", 1, 4096, "ways", REAL_WAYS),
    key("mmu.host_pwc.rules.entries_per_tag", 1, 512, "entries", NODE_ENTRIES),
    key("mmu.nested_tlb.entries", 1, 1 << 24, "entries", REAL_ENTRIES),
    key("mmu.nested_tlb.ways", 1, 4096, "ways", REAL_WAYS),
    key("mmu.nested_tlb.latency_cycles", 1, 1000, "cycles", THREE_LOOKUPS),
];

/// The numbers of a cost file.
pub const COSTS: &[Key] = &[
    key("events.*.cycles", 0, COST_MAX, "cycles", assumed("a second at 10 GHz")),
    key("scheduler.latency_us", 1, 1_000_000, "us", assumed("a second")),
    key("scheduler.granularity_us", 1, 1_000_000, "us", assumed("a second")),
    key("scheduler.balance_us", 1, 1_000_000, "us", assumed("a second")),
];

/// The numbers of a kernel in a scenario, wherever it is.
macro_rules! kernel_keys {
    ($before:literal) => {
        [
            key(concat!($before, ".memory"), 1 << 20, MEMORY_MAX, BYTES, PHYSICAL),
            key(concat!($before, ".levels"), 4, 5, "levels", limit("x86-64 has page tables of 4 and of 5 levels")),
            key(concat!($before, ".cpus"), 1, 4096, "processors", assumed("no server has more")),
            key(concat!($before, ".min_free"), 0, MEMORY_MAX, BYTES, PHYSICAL),
            key(concat!($before, ".compaction_proactiveness"), 0, 100, "per cent", WHOLE),
            key(concat!($before, ".swap"), 0, MEMORY_MAX, BYTES, PHYSICAL),
            key(concat!($before, ".paging.max"), 1, 8, "segments", limit("the model's segment registers")),
            key(concat!($before, ".start.blocks_permille"), 0, 1000, SHARE, WHOLE),
            key(concat!($before, ".start.frames_per_block"), 1, 512, "pages", BLOCK_PAGES),
            key(concat!($before, ".start.unmovable_permille"), 0, 1000, SHARE, WHOLE),
            key(concat!($before, ".start.used_permille"), 0, 1000, SHARE, WHOLE),
            key(concat!($before, ".start.kept_permille"), 0, 1000, SHARE, WHOLE),
            key(concat!($before, ".start.free_blocks[]"), 0, MEMORY_MAX >> 12, "blocks", ALL_PAGES),
            key(concat!($before, ".start.of"), 1 << 20, MEMORY_MAX, BYTES, PHYSICAL),
            key(concat!($before, ".start.kernel_permille"), 0, 1000, SHARE, WHOLE),
            key(concat!($before, ".start.kernel_kept_permille"), 0, 1000, SHARE, WHOLE),
            key(concat!($before, ".start.percent"), 0, 100, "per cent", WHOLE),
            key(concat!($before, ".start.need"), 0, MEMORY_MAX, BYTES, PHYSICAL),
            key(
                concat!($before, ".start.kept_pages"),
                1,
                511,
                "pages",
                limit("the pages of a block of 2 MiB, less one"),
            ),
            key(concat!($before, ".start.wait_ms"), 0, 1_000_000_000, "ms", DAYS),
            key(concat!($before, ".tables.pool_permille"), 0, 1000, SHARE, WHOLE),
            key(concat!($before, ".tables.levels"), 1, 4, "levels", limit("the root is placed nowhere")),
            key(concat!($before, ".tables.seed"), 0, SEED_MAX, "", TOML_MAX),
            key(concat!($before, ".manager.threshold_permille"), 0, 1000, SHARE, WHOLE),
            key(concat!($before, ".manager.cgroup_limit_min"), 0, MEMORY_MAX, BYTES, PHYSICAL),
            key(concat!($before, ".manager.khugepaged.scan_sleep_ms"), 0, 1_000_000_000, "ms", DAYS),
            key(concat!($before, ".manager.khugepaged.alloc_sleep_ms"), 0, 1_000_000_000, "ms", DAYS),
            key(concat!($before, ".manager.khugepaged.pages_to_scan"), 1, 1 << 34, "pages", ALL_PAGES),
            key(concat!($before, ".manager.khugepaged.max_ptes_none"), 0, 511, "entries", LINUX_PTES),
            key(concat!($before, ".manager.khugepaged.max_ptes_swap"), 0, 511, "entries", LINUX_PTES),
            key(concat!($before, ".manager.khugepaged.max_ptes_shared"), 0, 511, "entries", LINUX_PTES),
            key(concat!($before, ".manager.threshold"), 1, 512, "pages", BLOCK_PAGES),
            key(concat!($before, ".manager.small_threshold"), 0, 16, "pages", GROUP_PAGES),
            key(concat!($before, ".manager.inactive_ms"), 0, 1_000_000_000, "ms", DAYS),
            key(concat!($before, ".manager.evicted_pages_per_s"), 0, 1 << 34, "pages/s", ALL_PAGES),
            key(concat!($before, ".manager.utilized_pages"), 1, 512, "pages", BLOCK_PAGES),
            key(concat!($before, ".manager.scan_sleep_ms"), 1, 1_000_000_000, "ms", DAYS),
            key(concat!($before, ".manager.alloc_sleep_ms"), 1, 1_000_000_000, "ms", DAYS),
            key(concat!($before, ".manager.pages_to_scan"), 1, 1 << 34, "pages", ALL_PAGES),
            key(concat!($before, ".manager.access_sleep_ms"), 0, 1_000_000_000, "ms", DAYS),
            key(concat!($before, ".manager.sample_sleep_ms"), 0, 1_000_000_000, "ms", DAYS),
            key(concat!($before, ".manager.sample_ms"), 1, 1_000_000_000, "ms", DAYS),
            key(concat!($before, ".manager.measure_sleep_ms"), 0, 1_000_000_000, "ms", DAYS),
            key(concat!($before, ".manager.measure_ms"), 1, 1_000_000_000, "ms", DAYS),
            key(concat!($before, ".manager.measured_min"), 0, MEMORY_MAX, BYTES, PHYSICAL),
            key(concat!($before, ".manager.zeroed_pages_per_s"), 0, 1 << 34, "pages/s", ALL_PAGES),
            key(concat!($before, ".manager.recovery_sleep_ms"), 0, 1_000_000_000, "ms", DAYS),
            key(concat!($before, ".manager.recovery_above_permille"), 0, 1000, SHARE, WHOLE),
            key(concat!($before, ".manager.recovery_down_to_permille"), 0, 1000, SHARE, WHOLE),
        ]
    };
}

const KERNEL: [Key; 49] = kernel_keys!("kernels[]");
const COLOCATED_KERNEL: [Key; 49] = kernel_keys!("colocated[].kernel");

/// The numbers of a generator, wherever it is.
macro_rules! generator_keys {
    ($before:literal) => {
        [
            key(concat!($before, ".footprint"), 1 << 18, 1 << 46, BYTES, PHYSICAL),
            key(concat!($before, ".heap.step"), 1 << 12, 1 << 46, BYTES, PHYSICAL),
            key(concat!($before, ".text.agree"), 0, 1000, SHARE, WHOLE),
            key(concat!($before, ".text.passed"), 0, 1000, SHARE, WHOLE),
            key(concat!($before, ".text.other_place"), 0, 1000, SHARE, WHOLE),
            key(concat!($before, ".text.again[]"), 0, 1000, SHARE, WHOLE),
            key(concat!($before, ".text.again_after[]"), 0, 1000, SHARE, WHOLE),
            key(concat!($before, ".text.next[]"), 0, 1000, SHARE, WHOLE),
            key(concat!($before, ".text.kept[]"), 0, 1000, SHARE, WHOLE),
            key(concat!($before, ".text.kept_again[]"), 0, 1000, SHARE, WHOLE),
            key(concat!($before, ".text.first[]"), 0, 1000, SHARE, WHOLE),
            key(concat!($before, ".text.others[]"), 0, 1000, SHARE, WHOLE),
            key(concat!($before, ".text.others_again[]"), 0, 1000, SHARE, WHOLE),
            key(concat!($before, ".text.chain[]"), 0, 1000, SHARE, WHOLE),
            key(concat!($before, ".warm_accesses"), 0, ACCESSES_MAX, "accesses", YEARS),
            key(concat!($before, ".measured_accesses"), 1, ACCESSES_MAX, "accesses", YEARS),
            key(concat!($before, ".threads"), 1, 4096, "threads", assumed("no server has more processors")),
            key(concat!($before, ".seed"), 0, SEED_MAX, "", TOML_MAX),
            key(concat!($before, ".local_permille"), 0, 995, SHARE, limit("the rest are the program's own")),
            key(
                concat!($before, ".instructions_per_kiloaccess"),
                1000,
                1_000_000_000,
                "instructions",
                assumed("a million an access"),
            ),
            key(concat!($before, ".small_mappings"), 0, 10_000, "mappings", assumed("a sixth of vm.max_map_count")),
            key(concat!($before, ".passes"), 1, 1_000_000, "passes", REAL_PROGRAM),
            key(concat!($before, ".fanout"), 2, 1 << 20, "children", REAL_PROGRAM),
            key(concat!($before, ".nuclides"), 68, 4096, "nuclides", assumed("eleven times as many as XSBench has")),
            key(concat!($before, ".items"), 2, 65_535, "items", limit("an item has two bytes")),
            key(concat!($before, ".degree"), 1, 1 << 20, "edges", REAL_PROGRAM),
            key(
                concat!($before, ".locality"),
                0,
                900,
                SHARE,
                assumed("at 900 one half is already preferred by 38 to 1"),
            ),
            key(concat!($before, ".shards"), 1, 1000, "shards", REAL_PROGRAM),
            key(concat!($before, ".loads"), 1, 1000, "shards", REAL_PROGRAM),
            key(concat!($before, ".windows"), 2, 1000, "windows", REAL_PROGRAM),
            key(concat!($before, ".entries"), 3, 1000, "entries", REAL_PROGRAM),
            key(concat!($before, ".rows_per_column"), 1, 1000, "rows", REAL_PROGRAM),
            key(concat!($before, ".blocks"), 1, 1000, "blocks", REAL_PROGRAM),
            key(concat!($before, ".folds"), 0, 1000, "folds", REAL_PROGRAM),
            key(concat!($before, ".arcs"), 1, 65_536, "arcs", REAL_PROGRAM),
            key(concat!($before, ".property_bytes"), 1, 1 << 20, "bytes each", REAL_PROGRAM),
            key(concat!($before, ".key_bytes"), 1, 1 << 20, "bytes each", REAL_PROGRAM),
            key(concat!($before, ".value_bytes"), 0, 1 << 30, "bytes each", REAL_PROGRAM),
            key(concat!($before, ".value_spread_permille"), 0, 1000, SHARE, WHOLE),
            key(concat!($before, ".set_permille"), 0, 1000, SHARE, WHOLE),
            key(concat!($before, ".put_permille"), 0, 1000, SHARE, WHOLE),
            key(concat!($before, ".stretches"), 1, 1 << 20, "stretches", REAL_PROGRAM),
            key(concat!($before, ".connections"), 1, 1 << 20, "connections", REAL_PROGRAM),
            key(concat!($before, ".stride_pages"), 1, 1 << 34, "pages", ALL_PAGES),
            key(concat!($before, ".stride"), 1, MEMORY_MAX, "bytes each", PHYSICAL),
            key(concat!($before, ".record_bytes"), 1, 1 << 20, "bytes each", REAL_PROGRAM),
            key(concat!($before, ".records"), 1, 1 << 20, "records", REAL_PROGRAM),
            key(concat!($before, ".touches"), 1, 1 << 44, "pages", YEARS),
            key(concat!($before, ".units"), 1, 1 << 32, "units", YEARS),
            key(concat!($before, ".fill_requests"), 1, 1 << 36, "requests", YEARS),
            key(concat!($before, ".fill_keys"), 1, 1 << 36, "keys", REAL_PROGRAM),
            key(
                concat!($before, ".network_instructions"),
                0,
                1_000_000_000,
                "instructions",
                assumed("a tenth of a second and more"),
            ),
        ]
    };
}

const GENERATOR: [Key; 52] = generator_keys!("workload.generator");
const PRESET: [Key; 52] = generator_keys!("workload.preset");
const COLOCATED_GENERATOR: [Key; 52] = generator_keys!("colocated[].workload.generator");
const COLOCATED_PRESET: [Key; 52] = generator_keys!("colocated[].workload.preset");
const PRESET_FILE: [Key; 52] = generator_keys!("generator");

/// The numbers of a scenario that are in no kernel and no generator.
const SCENARIO: &[Key] = &[
    key("seed", 0, SEED_MAX, "", TOML_MAX),
    key("cgroup_limit", 1 << 12, MEMORY_MAX, BYTES, PHYSICAL),
    key("colocated_lead_ms", 0, 1_000_000_000, "ms", DAYS),
    key("sampling.measured_accesses_max", 1, ACCESSES_MAX, "accesses", YEARS),
    key("sampling.warm_accesses_max", 0, ACCESSES_MAX, "accesses", YEARS),
    key("sampling.warm_accesses_min", 0, ACCESSES_MAX, "accesses", YEARS),
    key("sampling.period", 1, ACCESSES_MAX, "accesses", YEARS),
    key("sampling.warm", 0, ACCESSES_MAX, "accesses", YEARS),
    key("sampling.measure", 0, ACCESSES_MAX, "accesses", YEARS),
    key("sampling.lapse_ms", 0, 1_000_000_000, "ms", DAYS),
    key("sampling.window", 1, ACCESSES_MAX, "accesses", YEARS),
    key("colocated[].count", 1, 4096, "programs", assumed("a program for each processor of the largest server")),
    key("colocated[].cgroup_limit", 1 << 12, MEMORY_MAX, BYTES, PHYSICAL),
    key("workload.churn.size", 1 << 16, MEMORY_MAX, BYTES, PHYSICAL),
    key("workload.churn.seed", 0, SEED_MAX, "", TOML_MAX),
    key("colocated[].workload.churn.size", 1 << 16, MEMORY_MAX, BYTES, PHYSICAL),
    key("colocated[].workload.churn.seed", 0, SEED_MAX, "", TOML_MAX),
    key("workload.preset.divide_footprint", 1, 1 << 34, "times", ALL_PAGES),
    key("workload.preset.data_accesses[]", 0, ACCESSES_MAX, "accesses", YEARS),
    key("colocated[].workload.preset.divide_footprint", 1, 1 << 34, "times", ALL_PAGES),
    key("colocated[].workload.preset.data_accesses[]", 0, ACCESSES_MAX, "accesses", YEARS),
];

/// A sort of file whose numbers have ranges.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum File {
    /// A run.
    Scenario,
    /// Hardware.
    Machine,
    /// What kernel work costs.
    Costs,
    /// A program.
    Preset,
}

impl File {
    /// Its numbers.
    pub fn keys(self) -> impl Iterator<Item = Key> {
        let parts: &[&[Key]] = match self {
            Self::Machine => &[MACHINE],
            Self::Costs => &[COSTS],
            Self::Preset => &[&PRESET_FILE],
            Self::Scenario => {
                &[SCENARIO, &KERNEL, &COLOCATED_KERNEL, &GENERATOR, &PRESET, &COLOCATED_GENERATOR, &COLOCATED_PRESET]
            }
        };
        let hardware: &[&[Key]] = if self == Self::Scenario { &accelerator::KEYS } else { &[] };
        parts.iter().chain(hardware).flat_map(|part| part.iter().copied())
    }

    /// Says which number of `text`, the file `path`, is out of its range, if one is.
    ///
    /// # Errors
    /// When it is no TOML; or the first number that is out of its range, with file, line, column
    /// and key.
    pub fn check(self, path: &Path, text: &str) -> Result<(), MachineError> {
        let document = DeTable::parse(text).map_err(|error| MachineError::toml(path, text, &error))?;
        for key in self.keys() {
            let names: Vec<&str> = key.path.split('.').collect();
            visit_table(document.get_ref(), &names, &mut |value| check_value(value, &key, path, text))?;
        }
        Ok(())
    }
}

/// How a message names the value at `path` (as [`Key::path`], without wildcards) of `text`, the
/// file `file`: with line and column of it, or of the deepest table on the way that is there, if
/// any is.
pub(crate) fn place(file: &Path, text: &str, path: &str) -> String {
    let mut at = None;
    if let Ok(document) = DeTable::parse(text) {
        let mut table = document.get_ref();
        for name in path.split('.') {
            let Some(value) = get(table, name) else { break };
            at = Some(value.span().start);
            let DeValue::Table(inner) = value.get_ref() else { break };
            table = inner;
        }
    }
    let place = at.map(|at| crate::error::line_and_column(text, at));
    place.map_or(file.display().to_string(), |(line, column)| format!("{}:{line}:{column}", file.display()))
}

fn get<'a, 'i>(table: &'a DeTable<'i>, name: &str) -> Option<&'a Spanned<DeValue<'i>>> {
    table.iter().find(|(key, _)| key.get_ref() == name).map(|(_, value)| value)
}

type Visitor<'a> = dyn FnMut(&Spanned<DeValue<'_>>) -> Result<(), MachineError> + 'a;

fn visit_table(table: &DeTable<'_>, names: &[&str], visit: &mut Visitor<'_>) -> Result<(), MachineError> {
    let [name, rest @ ..] = names else { return Ok(()) };
    match (*name, name.strip_suffix("[]")) {
        ("*", _) => table.values().try_for_each(|value| visit_value(value, rest, visit)),
        (_, Some(array)) => match get(table, array).map(Spanned::get_ref) {
            Some(DeValue::Array(items)) => items.iter().try_for_each(|item| visit_value(item, rest, visit)),
            _ => Ok(()),
        },
        (name, None) => get(table, name).map_or(Ok(()), |value| visit_value(value, rest, visit)),
    }
}

fn visit_value(value: &Spanned<DeValue<'_>>, names: &[&str], visit: &mut Visitor<'_>) -> Result<(), MachineError> {
    match value.get_ref() {
        _ if names.is_empty() => visit(value),
        DeValue::Table(table) => visit_table(table, names, visit),
        // A value of the wrong type is refused when the file is read into its types.
        _ => Ok(()),
    }
}

fn check_value(value: &Spanned<DeValue<'_>>, key: &Key, path: &Path, text: &str) -> Result<(), MachineError> {
    let in_range = |number: u64| (key.least..=key.most).contains(&number);
    let fits = match value.get_ref() {
        DeValue::Integer(number) => {
            u64::from_str_radix(&number.as_str().replace('_', ""), number.radix()).is_ok_and(in_range)
        }
        DeValue::Float(_) | DeValue::Boolean(_) => false,
        DeValue::String(words) if key.unit == BYTES => match size::parse(words) {
            Ok(bytes) => in_range(bytes),
            Err(what) => return Err(refused(value, key, path, text, &what)),
        },
        // As above.
        _ => true,
    };
    let range = match key.unit {
        BYTES => format!("{:?} to {:?}", size::format(key.least), size::format(key.most)),
        unit => format!("{} to {} {unit}", key.least, key.most).trim_end().to_owned(),
    };
    if fits { Ok(()) } else { Err(refused(value, key, path, text, &format!("give {range}"))) }
}

fn refused(value: &Spanned<DeValue<'_>>, key: &Key, path: &Path, text: &str, what: &str) -> MachineError {
    let span = value.span();
    let (line, column) = crate::error::line_and_column(text, span.start);
    let written = text.get(span).unwrap_or_default().replace('\n', " ");
    let name = key.path.replace("[]", "");
    MachineError::Config {
        place: format!("{}:{line}:{column}", path.display()),
        what: format!("{name} = {written}: {what}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::Shelf;

    fn said(file: File, text: &str) -> String {
        file.check(Path::new("mine.toml"), text).err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn the_first_and_the_last_value_of_a_range_are_in_it_and_their_neighbours_are_not() {
        for file in [File::Scenario, File::Machine, File::Costs, File::Preset] {
            for key in file.keys() {
                let written = |number: u128| {
                    let path = key.path.replace('*', "any");
                    path.split('.').rev().fold(number.to_string(), |inner, name| match name.strip_suffix("[]") {
                        Some(name) => format!("{{ {name} = [{inner}] }}"),
                        None => format!("{{ {name} = {inner} }}"),
                    })
                };
                // The outermost braces are the file itself.
                let closed = |number: u128| {
                    written(number).strip_prefix('{').and_then(|text| text.strip_suffix('}')).unwrap().trim().to_owned()
                };
                assert_eq!(said(file, &closed(key.least.into())), "", "{}", key.path);
                assert_eq!(said(file, &closed(key.most.into())), "", "{}", key.path);
                for wrong in
                    [Some(u128::from(key.most) + 1), u128::from(key.least).checked_sub(1)].into_iter().flatten()
                {
                    let what = said(file, &closed(wrong));
                    assert!(what.starts_with("mine.toml:1:"), "{}: {what}", key.path);
                    assert!(what.contains("give ") && what.contains(&wrong.to_string()), "{}: {what}", key.path);
                }
            }
        }
    }

    #[test]
    fn a_message_names_file_line_key_and_range() {
        assert_eq!(
            said(File::Machine, "name = 'x'\n[timing]\n  walk_critical_permille = 1001"),
            "mine.toml:3:28: timing.walk_critical_permille = 1001: give 0 to 1000 thousandths"
        );
        assert_eq!(
            said(File::Scenario, "[[kernels]]\n[[kernels]]\nmemory = \"1 KiB\""),
            "mine.toml:3:10: kernels.memory = \"1 KiB\": give \"1 MiB\" to \"64 TiB\""
        );
        assert!(said(File::Scenario, "seed = -1").contains("seed = -1: give 0 to"));
        assert!(said(File::Scenario, "seed = 1.5").contains("seed = 1.5"));
        assert!(said(File::Scenario, "kernels = [{ swap = '4 GB' }]").contains("is no size"));
    }

    /// What is called a limit is one: the number is that of the code that sets it.
    #[test]
    fn limits_are_those_of_the_code() {
        let most = |file: File, path: &str| {
            let key = file.keys().find(|key| key.path == path).unwrap();
            assert!(matches!(key.upper, Upper::Limit(_)), "{path}");
            key.most
        };
        assert_eq!(most(File::Scenario, "asap.registers"), nestwalk_mmu::RegisterCounters::MAX as u64);
        assert_eq!(most(File::Scenario, "kernels[].paging.max"), nestwalk_mmu::Segments::MAX as u64);
        assert_eq!(most(File::Scenario, "kernels[].levels"), nestwalk_mem::Geometry::LEVELS_MAX as u64);
        assert_eq!(most(File::Scenario, "seed"), i64::MAX as u64);
        for path in ["mmu.guest_pwc.latency_cycles", "mmu.host_pwc.latency_cycles", "mmu.nested_tlb.latency_cycles"] {
            assert!(most(File::Machine, path) < 1 << 12, "three of them must fit into 12 bits");
        }
        let machine = Shelf::Machines.text("zen4", Path::new("")).unwrap().1;
        let ways = machine.replacen("ways = 8", "ways = 65", 1);
        assert!(said(File::Machine, &ways).contains("give 1 to 64 ways"), "{}", said(File::Machine, &ways));
    }

    #[test]
    fn every_range_says_why_it_ends() {
        for file in [File::Scenario, File::Machine, File::Costs, File::Preset] {
            for key in file.keys() {
                let said = key.upper.to_string();
                assert!(said.starts_with("a limit: ") || said.starts_with("an assumption: "), "{}: {said}", key.path);
                assert!(said.len() > "an assumption: ".len() && !said.ends_with('.'), "{}: {said}", key.path);
                assert!(
                    key.unit != SHARE || key.most != 1000 || key.upper == WHOLE,
                    "{}: a share ends at the whole",
                    key.path
                );
            }
        }
    }

    #[test]
    fn what_comes_with_nestwalk_is_in_range() {
        let shelves = [
            (Shelf::Machines, File::Machine),
            (Shelf::Costs, File::Costs),
            (Shelf::Scenarios, File::Scenario),
            (Shelf::Presets, File::Preset),
        ];
        for (shelf, file) in shelves {
            for entry in shelf.entries() {
                let (path, text) = shelf.text(&entry.name, Path::new("")).unwrap();
                file.check(&path, &text).unwrap();
            }
        }
    }

    #[test]
    fn every_number_of_a_machine_and_of_a_cost_file_has_a_range() {
        fn numbers(value: &toml::Value, at: &str, out: &mut Vec<String>) {
            match value {
                toml::Value::Table(table) => {
                    table.iter().for_each(|(name, value)| numbers(value, &format!("{at}.{name}"), out));
                }
                toml::Value::Array(items) => items.iter().for_each(|item| numbers(item, &format!("{at}[]"), out)),
                toml::Value::Integer(_) => out.push(at[1..].to_owned()),
                _ => {}
            }
        }
        let matches = |pattern: &str, path: &str| {
            let (pattern, path): (Vec<_>, Vec<_>) = (pattern.split('.').collect(), path.split('.').collect());
            pattern.len() == path.len() && pattern.iter().zip(path).all(|(one, two)| *one == "*" || *one == two)
        };
        for (shelf, file) in [(Shelf::Machines, File::Machine), (Shelf::Costs, File::Costs)] {
            for entry in shelf.entries() {
                let (_, text) = shelf.text(&entry.name, Path::new("")).unwrap();
                let mut found = Vec::new();
                numbers(&toml::Value::Table(text.parse().unwrap()), "", &mut found);
                for path in found.into_iter().filter(|path| path != "schema") {
                    assert!(file.keys().any(|key| matches(key.path, &path)), "{}: {path} has no range", entry.name);
                }
            }
        }
    }
}
