// SPDX-License-Identifier: MIT OR Apache-2.0
//! Populates a guest on a host, both with 4 KiB pages: for profilers, and to see what a large guest
//! takes.
//!
//! `cargo run --release -p nestwalk-os --example populate -- "16 GiB" [random]`

use std::time::Instant;

use nestwalk_mem::size::parse_pages;
use nestwalk_mem::{Cpu, PageCount, Vpn, VpnRange};
use nestwalk_os::{Bare, HostMemory, Kernel, KernelConfig, VmaFlags};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let size = parse_pages(&arguments.next().unwrap_or("4 GiB".into()))?;
    let random = arguments.next().is_some();
    // Tables take 0.2 % of memory, and some is kept free.
    let guest_size = PageCount(size.0 + size.0 / 64 + 65_536);
    let host_size = PageCount(guest_size.0 + guest_size.0 / 64 + 65_536);
    let mut host = Kernel::new(&KernelConfig::new(host_size))?;
    let mut guest = Kernel::new(&KernelConfig::new(guest_size))?;
    let (vm, base) = host.host_vm(guest_size, &mut Bare)?;
    let mut bare = Bare;
    let mut below = HostMemory { host: &mut host, process: vm, base, cpu: Cpu(0), below: &mut bare };
    let process = guest.spawn(&mut below)?;
    let start = guest.find_free(process, size, 9)?;
    guest.mmap(process, VpnRange::new(start, size), VmaFlags::ANONYMOUS, &mut below)?;
    let began = Instant::now();
    // An odd step visits every page of a power of two once, in no order.
    let step = if random { 0x9e37_79b9_7f4a_7c15 | 1 } else { 1 };
    let pages = if random { size.0.next_power_of_two() / 2 } else { size.0 };
    for i in 0..pages {
        let page = if random { i.wrapping_mul(step) & (pages - 1) } else { i };
        guest.fault(process, Vpn(start.0 + page), true, Cpu(0), &mut below)?;
    }
    let seconds = began.elapsed().as_secs_f64();
    println!("{pages} pages in {seconds:.2} s: {:.1} M faults/s", pages as f64 / seconds / 1e6);
    println!("guest: {} faults, {} nodes", guest.counters().faults_4k, guest.counters().nodes_made);
    println!("host: {} faults, {} nodes", host.counters().faults_4k, host.counters().nodes_made);
    Ok(())
}
