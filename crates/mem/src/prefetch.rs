// SPDX-License-Identifier: MIT OR Apache-2.0
//! A hint to the processor that runs the simulation (it is no part of what is simulated).

/// Brings the line of `place` near to this processor. Changes nothing that a program can see.
#[inline(always)]
pub fn prefetch<T>(place: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch never faults and never writes, and the address comes from a live
        // reference.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(place).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}
