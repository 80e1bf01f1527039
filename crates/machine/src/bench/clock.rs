// SPDX-License-Identifier: MIT OR Apache-2.0
//! The clock that a processor really has: what its supply of power, its other thread and the neighbours of a virtual machine leave.

use std::time::Instant;

/// Additions of one measurement: some 10 ms.
const ADDITIONS: u64 = 1 << 25;

/// Additions of one turn of the loop.
const TURN: u64 = 8;

/// In GHz: additions that each need the result of the one before, of which all processors that are known here do one a cycle. (Of
/// registers: constants are added without a cycle by some.) `None` for other processors.
pub(super) fn in_effect() -> Option<f64> {
    let mut sum = 1_u64;
    let start = Instant::now();
    let one = std::hint::black_box(1);
    for _ in 0..ADDITIONS / TURN {
        sum = add_eight(sum, one)?;
    }
    std::hint::black_box(sum);
    Some(ADDITIONS as f64 / start.elapsed().as_secs_f64() / 1e9)
}

/// One addition of registers.
#[cfg(target_arch = "x86_64")]
macro_rules! add {
    () => {
        "add {0}, {1}"
    };
}

/// One addition of registers.
#[cfg(target_arch = "aarch64")]
macro_rules! add {
    () => {
        "add {0}, {0}, {1}"
    };
}

/// [`TURN`] additions, one after the other.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[inline(always)]
fn add_eight(mut sum: u64, one: u64) -> Option<u64> {
    // SAFETY: it changes one register, and the flags.
    unsafe {
        std::arch::asm!(
            add!(), add!(), add!(), add!(), add!(), add!(), add!(), add!(),
            inout(reg) sum, in(reg) one, options(pure, nomem, nostack)
        );
    }
    Some(sum)
}

/// Not known how.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn add_eight(_: u64, _: u64) -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_additions_add_eight() {
        assert!(add_eight(34, 1).is_none_or(|sum| sum == 34 + TURN));
        assert!(in_effect().is_none_or(|clock| clock > 0.0));
    }
}
