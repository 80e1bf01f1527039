// SPDX-License-Identifier: MIT OR Apache-2.0
//! Prints the fragmentation of the patterns of `linux/data` on the simulated kernel, boot by boot:
//! `real_kernel [BOOTS]`.

use nestwalk_machine::patterns::boot;
use nestwalk_os::ManagerConfig;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let boots = std::env::args().nth(1).map_or(Ok(5), |count| count.parse())?;
    for seed in 1..=boots {
        for m in boot(ManagerConfig::Linux4k, seed)? {
            let mean = m.fragmentation.average().unwrap_or_default();
            println!("{seed} {:6} {:10?} {mean:.3} {:?}", m.tag, m.order, m.fragmentation.distribution);
        }
    }
    Ok(())
}
