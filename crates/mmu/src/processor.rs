// SPDX-License-Identifier: MIT OR Apache-2.0
//! A core: TLBs, walk unit, private caches and counters. How accesses run through it is in
//! [`run`](crate::run).

use nestwalk_mem::{Cycles, VpnRange};

use crate::absorbed::AbsorbedServed;
use crate::accelerator::prefetch::PrefetchCounters;
use crate::accelerator::{Accelerator, NoAccelerator};
use crate::config::MmuConfig;
use crate::counters::{AcceleratorCounters, Counters, Taken};
use crate::error::MmuError;
use crate::events::{Table, WalkEvents};
use crate::hierarchy::{CacheCounters, PrivateCaches};
use crate::key::Asid;
use crate::memo::Memo;
use crate::play::Player;
use crate::recent_pages::RecentPages;
use crate::simd::Vectors;
use crate::tlb::Tlbs;
use crate::walk_cache::{NestedTlbCounters, PwcCounters};
use crate::walk_unit::WalkUnit;
use crate::walker::Fault;

/// How a run ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum RunEnd {
    /// All accesses are done.
    Done,
    /// Access `index` needs a page fault first. It has not been counted: handle the fault and run
    /// on from `index`.
    Fault {
        /// Which access.
        index: usize,
        /// What is needed.
        fault: Fault,
    },
}

/// Counters that a core counts into: one for each program that it runs, so that programs on the
/// same core count apart.
#[derive(Clone, Debug, Default)]
pub struct Account {
    counters: Counters,
    prefetch: PrefetchCounters,
}

/// One core. `P` is its accelerator.
#[derive(Clone, Debug)]
pub struct Core<P = NoAccelerator> {
    pub(crate) tlbs: Tlbs,
    pub(crate) unit: WalkUnit<P>,
    pub(crate) player: Player,
    /// Beside a co-runner.
    pub(crate) absorbed: AbsorbedServed,
    /// Walks that were prepared, for the tables that this core met of late.
    pub(crate) memos: Vec<Memo>,
    /// Which of them is in use, if one is.
    pub(crate) memo: Option<usize>,
    /// The one to be given up next.
    pub(crate) oldest_memo: usize,
    /// Whether walks may be done in [stages](crate::stages).
    pub(crate) stages: bool,
    /// Whether to fetch ahead from the simulation's own memory.
    pub(crate) hints: bool,
    /// Walks of the batch before: how many to expect of the next.
    pub(crate) recent_walks: usize,
    /// Whose pages need not be fetched ahead for.
    pub(crate) recent_pages: RecentPages,
}

impl Core {
    /// A core without an accelerator, all empty.
    ///
    /// # Errors
    /// When the configuration cannot be built.
    pub fn new(config: &MmuConfig) -> Result<Self, MmuError> {
        Self::with_accelerator(config, NoAccelerator)
    }
}

impl<P: Accelerator<Counters: AcceleratorCounters>> Core<P> {
    /// What it has counted so far, for the program that it counts for.
    pub fn counters(&self) -> Counters {
        let mut counters = self.unit.counters.clone();
        if let (Some(part), Some(counted)) = (AcceleratorCounters::of(&mut counters), self.unit.accelerator.counters())
        {
            counted.clone_into(part);
        }
        self.snapshot(counters, self.player.in_flight.counters())
    }

    /// How long what it has simulated in full took, for the program that it counts for. Cheaper
    /// than its counters.
    pub fn taken(&self) -> Taken {
        let Counters { walk_cycles, walk_events, tlb, .. } = &self.unit.counters;
        Taken {
            walk: Cycles(*walk_cycles),
            data: Cycles(self.player.caches.cycles_of(walk_events.counts(WalkEvents::DATA))),
            second_tlb_hits: tlb.l2_hits.iter().sum(),
        }
    }

    /// What is in an account that it has put away.
    pub fn counters_of(&self, account: &Account) -> Counters {
        self.snapshot(account.counters.clone(), account.prefetch)
    }

    /// Counts into `account` from now on, and leaves there what it has counted into until now.
    pub fn exchange_account(&mut self, account: &mut Account) {
        std::mem::swap(&mut self.unit.counters, &mut account.counters);
        // What the accelerator counts is with the other counters while they are put away.
        for counters in [&mut account.counters, &mut self.unit.counters] {
            if let (Some(part), Some(counted)) =
                (AcceleratorCounters::of(counters), self.unit.accelerator.counters_mut())
            {
                std::mem::swap(part, counted);
            }
        }
        self.player.in_flight.exchange_counters(&mut account.prefetch);
    }

    /// `counters` as a snapshot has them: each event under the structure that it belongs to.
    fn snapshot(&self, mut counters: Counters, prefetch: PrefetchCounters) -> Counters {
        let events = &mut counters.walk_events;
        counters.guest_pwc = PwcCounters::of(events.take(WalkEvents::pwc_code(Table::Guest, 0)));
        counters.host_pwc = PwcCounters::of(events.take(WalkEvents::pwc_code(Table::Host, 0)));
        let [misses, hits] = events.take(WalkEvents::nested_tlb_code(false));
        counters.nested_tlb = NestedTlbCounters { hits, misses };
        [counters.segments.translations] = events.take(WalkEvents::segments_code());
        let [useful] = events.take(WalkEvents::prefetch_hit_code());
        counters.prefetch = PrefetchCounters { useful, ..prefetch };
        let data: [u64; 4] = events.take(WalkEvents::DATA);
        let data_cycles = self.player.caches.cycles_of(data);
        counters.caches = CacheCounters { data, data_cycles, corunner: events.take(WalkEvents::CORUNNER) };
        let mut events = std::mem::take(&mut counters.walk_events);
        if let Some(part) = AcceleratorCounters::of(&mut counters) {
            P::take_events(&mut events, part);
        }
        Counters { walk_events: events, ..counters }
    }
}

impl<P: Accelerator> Core<P> {
    /// A core, all empty.
    ///
    /// # Errors
    /// When the configuration cannot be built.
    pub fn with_accelerator(config: &MmuConfig, accelerator: P) -> Result<Self, MmuError> {
        let miss_registers = config.l1d_miss_registers.map_or(0, |count| count as usize);
        Ok(Self {
            tlbs: Tlbs::new(config)?,
            unit: WalkUnit::new(config, accelerator)?,
            player: Player::new(config, miss_registers)?,
            absorbed: AbsorbedServed::default(),
            memos: Vec::new(),
            memo: None,
            oldest_memo: 0,
            // With one that prefetches they are exact, too, but slower.
            stages: !P::ACTIVE,
            hints: true,
            recent_walks: 0,
            recent_pages: RecentPages::new(),
        })
    }

    /// Its accelerator, to set range registers and the like.
    pub fn accelerator_mut(&mut self) -> &mut P {
        &mut self.unit.accelerator
    }

    /// Its TLBs.
    pub fn tlbs(&self) -> &Tlbs {
        &self.tlbs
    }

    /// Its L1-D and L2.
    pub fn caches(&self) -> &PrivateCaches {
        &self.player.caches
    }

    /// Switches to another process (`guest`) and, nested, another VM (`host`). Entries of others
    /// stay but are not used.
    pub fn switch_to(&mut self, guest: Asid, host: Asid) {
        self.tlbs.switch_to(guest);
        self.unit.accelerator.switch_to(guest, host);
        self.unit.guest_pwc.switch_to(guest);
        self.unit.host_pwc.switch_to(host);
        if let Some(nested) = &mut self.unit.nested_tlb {
            nested.switch_to(host);
        }
    }

    /// The program's kernel changed the table for `pages` of the process in use (`INVLPG`, once or
    /// in a row): their translations go, and so does all that the page-walk caches know of the
    /// process.
    pub fn invalidate(&mut self, pages: VpnRange) {
        self.tlbs.invalidate(pages);
        self.unit.guest_pwc.flush();
        self.unit.accelerator.invalidate(pages);
    }

    /// The guest flushed the process in use (`MOV CR3`, `INVPCID`): host structures stay.
    pub fn flush_guest(&mut self) {
        self.tlbs.flush();
        self.unit.guest_pwc.flush();
        self.unit.accelerator.flush();
    }

    /// The host changed its table (`INVEPT`): everything that came from it goes, combined
    /// translations included.
    pub fn flush_nested(&mut self) {
        self.flush_all();
    }

    /// Everything goes but the data caches.
    pub fn flush_all(&mut self) {
        self.tlbs.flush_all();
        self.unit.guest_pwc.flush_all();
        self.unit.host_pwc.flush_all();
        self.unit.accelerator.flush_all();
        if let Some(nested) = &mut self.unit.nested_tlb {
            nested.flush_all();
        }
    }

    /// Whether the simulation may fetch ahead from its own memory (it does by default). Makes no
    /// difference to any result.
    pub fn set_hints(&mut self, on: bool) {
        self.hints = on;
    }

    /// Whether walks may be done in stages over a batch (by default they are, unless something
    /// prefetches). Makes no difference to any result.
    pub fn set_stages(&mut self, on: bool) {
        self.stages = on;
    }

    /// Whether vectors may be used, if this processor has them (by default they are). Makes no
    /// difference to any result.
    pub fn set_vectors(&mut self, on: bool) {
        self.player.vectors = if on { Vectors::detect() } else { None };
    }

    /// The vectors to be used, if any are.
    pub(crate) fn vectors(&self) -> Option<Vectors> {
        self.player.vectors
    }

    /// Checks what must always hold in each of its structures.
    ///
    /// # Panics
    /// When something does not hold.
    pub fn check_invariants(&self) {
        self.tlbs.check_invariants();
        self.unit.guest_pwc.check_invariants();
        self.unit.host_pwc.check_invariants();
        self.unit.accelerator.check_invariants();
        if let Some(nested) = &self.unit.nested_tlb {
            nested.check_invariants();
        }
        self.player.caches.l1d().check_invariants();
        self.player.caches.l2().check_invariants();
        let Counters { walk_cycles, guest_walk_cycles, host_walk_cycles, .. } = self.unit.counters;
        assert_eq!(walk_cycles, guest_walk_cycles + host_walk_cycles, "walk cycles by table");
    }
}
