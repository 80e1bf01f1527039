// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the tests of this room share: a machine, tables whose nodes sit where the test says, and a
//! core over them.
#![allow(dead_code, reason = "each test uses its part")]

use nestwalk_mem::{Access, Entry, Frame, Geometry, Gva, Level, PageSize, PageTable, Vpn};
use nestwalk_mmu::{Core, Counters, Llc, MmuConfig, Native, Nested, NestedTlbConfig, PwcConfig, RunEnd, Served, Table};

/// The machine of `tests/machine.toml`.
pub fn machine() -> MmuConfig {
    toml::from_str(include_str!("../machine.toml")).unwrap()
}

/// The same without page-walk caches.
pub fn machine_without_pwc() -> MmuConfig {
    MmuConfig { guest_pwc: PwcConfig::default(), host_pwc: PwcConfig::default(), ..machine() }
}

/// The same with a nested TLB.
pub fn machine_with_nested_tlb() -> MmuConfig {
    MmuConfig { nested_tlb: Some(NestedTlbConfig { entries: 16, ways: 4, latency_cycles: 1 }), ..machine() }
}

/// A table that takes the frames of its nodes one after the other, `step` frames apart.
pub struct TestTable {
    pub table: PageTable,
    next: u64,
    step: u64,
}

impl TestTable {
    pub fn new(geometry: Geometry, first: u64, step: u64) -> Self {
        Self { table: PageTable::new(geometry, Frame(first)), next: first + step, step }
    }

    pub fn map(&mut self, page: u64, frame: u64, size: PageSize, flags: u64) {
        let nodes = |_: Level, _: Vpn| {
            self.next += self.step;
            Ok::<_, ()>(Frame(self.next - self.step))
        };
        self.table.map(Vpn(page), Frame(frame), size, flags, nodes).unwrap();
    }

    /// The frames of all nodes.
    pub fn nodes(&self) -> Vec<u64> {
        let mut nodes = Vec::new();
        self.table.for_each_node(|view| nodes.push(view.frame.0));
        nodes
    }
}

/// A core and a last-level cache.
pub struct Rig {
    pub core: Core,
    pub llc: Llc,
}

impl Rig {
    pub fn new(config: &MmuConfig) -> Self {
        Self { core: Core::new(config).unwrap(), llc: Llc::new(config).unwrap() }
    }

    pub fn native(&mut self, table: &mut PageTable, accesses: &[Access]) -> RunEnd {
        self.core.run(&mut self.llc, &mut Native { table }, accesses, None)
    }

    pub fn nested(&mut self, guest: &mut PageTable, host: &mut PageTable, accesses: &[Access]) -> RunEnd {
        self.core.run(&mut self.llc, &mut Nested { guest, host, base: Vpn(0) }, accesses, None)
    }
}

/// What one load of `gva` adds to the counters.
pub fn load_native(rig: &mut Rig, table: &mut PageTable, gva: u64) -> Counters {
    let before = rig.core.counters();
    assert_eq!(rig.native(table, &[Access::load(Gva(gva))]), RunEnd::Done);
    rig.core.counters().minus(&before)
}

/// The same, nested.
pub fn load_nested(rig: &mut Rig, guest: &mut PageTable, host: &mut PageTable, gva: u64) -> Counters {
    let before = rig.core.counters();
    assert_eq!(rig.nested(guest, host, &[Access::load(Gva(gva))]), RunEnd::Done);
    rig.core.counters().minus(&before)
}

/// Cycles of all walks, worked out from the events and the machine's latencies. There must be no
/// accelerator.
pub fn cycles_of_events(config: &MmuConfig, counters: &Counters) -> u64 {
    let latencies =
        [config.l1d.latency_cycles, config.l2.latency_cycles, config.llc.latency_cycles, config.memory_latency_cycles];
    let events = &counters.walk_events;
    let references: u64 = [Table::Guest, Table::Host]
        .into_iter()
        .flat_map(|table| {
            Served::ALL.map(|served| events.of_table(table)[served as usize] * u64::from(latencies[served as usize]))
        })
        .sum();
    let nested = config.nested_tlb.map_or(0, |nested| u64::from(nested.latency_cycles));
    references
        + counters.guest_pwc.lookups() * u64::from(config.guest_pwc.latency_cycles)
        + counters.host_pwc.lookups() * u64::from(config.host_pwc.latency_cycles)
        + (counters.nested_tlb.hits + counters.nested_tlb.misses) * nested
        + (0..4).map(|served| counters.pom_tlb.references[served] * u64::from(latencies[served])).sum::<u64>()
}

/// All flags that a page of a program has after it was stored to.
pub const WRITABLE: u64 = Entry::WRITABLE;
