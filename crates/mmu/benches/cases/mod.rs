// SPDX-License-Identifier: MIT OR Apache-2.0
//! The three cases that measure the hot path: a guest (16 GB by default) with 4 KiB pages in both
//! tables. Its pages and page-table nodes are scattered over guest and host memory.

use nestwalk_mem::{Access, Entry, Frame, Geometry, Gva, PageSize, PageTable, Vpn};
use nestwalk_mmu::{Core, Llc, MmuConfig, Nested, RunEnd};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// log2 of the guest's data pages: 16 GB.
pub const GUEST_ORDER: u32 = 22;
/// Where the program's data begins.
const DATA: Vpn = Vpn(0x7_f000_0000 & !0x3_ffff);
/// Where the host's VMA for the guest begins.
const BASE: Vpn = Vpn(0x7_e000_0000);

/// What a case does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Case {
    /// Uniformly random lines: every access walks.
    AllWalks,
    /// Objects of ten words at random places, each read word by word: one access in ten walks.
    Objects,
    /// Eight-byte words one after the other.
    Sequential,
}

impl Case {
    pub const ALL: [Self; 3] = [Self::AllWalks, Self::Objects, Self::Sequential];

    pub fn name(self) -> &'static str {
        match self {
            Self::AllWalks => "nested_all_walks",
            Self::Objects => "nested_objects",
            Self::Sequential => "nested_sequential",
        }
    }

    /// `count` accesses to a guest of `2^order` data pages.
    pub fn accesses(self, count: usize, order: u32) -> Vec<Access> {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(42);
        let first = DATA.address().0;
        let bytes = 1 << (order + 12);
        let mut object = 0;
        let mut address = |index: usize| match self {
            Self::AllWalks => (random.next_u64() % bytes) & !7,
            Self::Objects => {
                if index.is_multiple_of(10) {
                    let page = (random.next_u64() % bytes) & !4095;
                    object = page + ((random.next_u64() % (4096 - 80)) & !7);
                }
                object + index as u64 % 10 * 8
            }
            Self::Sequential => index as u64 * 8 % bytes,
        };
        (0..count).map(|index| Access::new(Gva(first + address(index)), index % 4 == 0)).collect()
    }
}

/// The MMU of a machine file of that name, if there is one.
pub fn machine_config(name: &str) -> Option<MmuConfig> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../machines");
    let text = std::fs::read_to_string(format!("{folder}/{name}.toml")).ok()?;
    let mut file: toml::Table = toml::from_str(&text).ok()?;
    file.remove("mmu")?.try_into().ok()
}

/// Guest and host tables.
pub struct Machine {
    guest: PageTable,
    host: PageTable,
    core: Core,
    llc: Llc,
}

/// A permutation of the numbers below `2^bits` that keeps no neighbours together.
fn scatter(number: u64, bits: u32) -> u64 {
    let mask = (1 << bits) - 1;
    let mixed = (number ^ number >> (bits / 2)).wrapping_mul(0x9e37_79b9_7f4a_7c15) & mask;
    (mixed ^ mixed >> (bits / 2)).wrapping_mul(0xbf58_476d_1ce4_e5b9) & mask
}

impl Machine {
    /// A machine with this MMU and a guest of `2^order` data pages.
    pub fn new(config: &MmuConfig, order: u32) -> Self {
        let bits = order + 1;
        let mut guest_nodes = (1 << order..).map(|n| Frame(scatter(n, bits)));
        let mut guest = PageTable::new(Geometry::X86_4, guest_nodes.next().unwrap());
        // As of memory that the program has written.
        let flags = Entry::WRITABLE | Entry::ACCESSED | Entry::DIRTY;
        for page in 0..1 << order {
            let frame = Frame(scatter(page, bits));
            guest.map(DATA + page, frame, PageSize::Small, flags, |_, _| guest_nodes.next().ok_or(())).unwrap();
        }
        let mut host_nodes = (1 << bits..).map(|n| Frame(scatter(n, bits + 1)));
        let mut host = PageTable::new(Geometry::X86_4, host_nodes.next().unwrap());
        for page in 0..1 << bits {
            let frame = Frame(scatter(page, bits + 1));
            host.map(BASE + page, frame, PageSize::Small, flags, |_, _| host_nodes.next().ok_or(())).unwrap();
        }
        Self { guest, host, core: Core::new(config).unwrap(), llc: Llc::new(config).unwrap() }
    }

    pub fn core(&mut self) -> &mut Core {
        &mut self.core
    }

    /// Runs `accesses`, which need no faults.
    pub fn run(&mut self, accesses: &[Access]) {
        let mut walker = Nested { guest: &mut self.guest, host: &mut self.host, base: BASE };
        for batch in accesses.chunks(1 << 14) {
            assert_eq!(self.core.run(&mut self.llc, &mut walker, batch, None), RunEnd::Done);
        }
    }
}
