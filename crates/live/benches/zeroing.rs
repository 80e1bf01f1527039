// SPDX-License-Identifier: MIT OR Apache-2.0
//! How fast this machine zeroes memory, by method and size: `cargo bench -p nestwalk-live`.
//!
//! What kernels do: Linux zeroes 4 KiB by `rep stosb` (or `stosq`), a huge page 4 KiB by 4 KiB;
//! FreeBSD has non-temporal stores for memory that no one waits for; Quicksilver zeroes 2 MiB at
//! once. Pages are taken in random order out of 512 MiB, which are mapped by huge pages if Linux
//! gives any (a kernel's own mapping is), and none is zeroed again before all others.

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
fn main() {
    println!("zeroing: unavailable, because its instructions are those of x86-64, and its memory is Linux's");
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn main() {
    linux::main();
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod linux {
    use std::arch::asm;
    use std::arch::x86_64::{__m128i, _mm_setzero_si128, _mm_sfence, _mm_store_si128, _mm_stream_si128};
    use std::time::Instant;

    const MEMORY: usize = 512 << 20;
    const HUGE: usize = 2 << 20;
    const PAGE: usize = 4 << 10;
    const ROUNDS: usize = 9;

    /// Zeroes `bytes` from `start` on, a multiple of 64.
    type Method = unsafe fn(start: *mut u8, bytes: usize);

    const METHODS: [(&str, Method); 4] = [
        ("rep stosb", rep_stosb),
        ("rep stosq", rep_stosq),
        ("plain stores of 16 bytes", plain),
        ("non-temporal stores of 16 bytes", non_temporal),
    ];

    unsafe fn rep_stosb(start: *mut u8, bytes: usize) {
        // SAFETY: the caller owns the memory; the direction flag is clear (System V ABI).
        unsafe { asm!("rep stosb", inout("rdi") start => _, inout("rcx") bytes => _, in("al") 0u8, options(nostack)) }
    }

    unsafe fn rep_stosq(start: *mut u8, bytes: usize) {
        // SAFETY: as above; the length is a multiple of 8.
        unsafe {
            asm!("rep stosq", inout("rdi") start => _, inout("rcx") bytes / 8 => _, in("rax") 0u64, options(nostack));
        }
    }

    unsafe fn plain(start: *mut u8, bytes: usize) {
        for at in (0..bytes).step_by(16) {
            // SAFETY: the caller owns the memory, which is aligned; SSE2 is part of x86-64.
            unsafe { _mm_store_si128(start.add(at).cast::<__m128i>(), _mm_setzero_si128()) }
        }
    }

    unsafe fn non_temporal(start: *mut u8, bytes: usize) {
        for at in (0..bytes).step_by(16) {
            // SAFETY: as for plain stores.
            unsafe { _mm_stream_si128(start.add(at).cast::<__m128i>(), _mm_setzero_si128()) }
        }
        // SAFETY: it has no operands.
        unsafe { _mm_sfence() }
    }

    /// Memory of this process, aligned to 2 MiB, all of it touched.
    fn memory() -> *mut u8 {
        // SAFETY: a new private mapping, checked, is advised and written within its bounds.
        unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let raw = libc::mmap(std::ptr::null_mut(), MEMORY + HUGE, protection, flags, -1, 0);
            assert!(raw != libc::MAP_FAILED, "no memory");
            let start = raw.cast::<u8>().add(raw.cast::<u8>().align_offset(HUGE));
            libc::madvise(start.cast(), MEMORY, libc::MADV_HUGEPAGE);
            std::ptr::write_bytes(start, 1, MEMORY);
            start
        }
    }

    /// `0..count` in an order that is random and always the same (xorshift, Fisher and Yates).
    fn shuffled(count: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..count).collect();
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        for last in (1..count).rev() {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            order.swap(last, (state % (last as u64 + 1)) as usize);
        }
        order
    }

    /// ns for each 4 KiB, where blocks of `size` bytes are zeroed in random order, each `step`
    /// bytes at a time: of [`ROUNDS`] rounds over all memory the least and the median.
    fn measure(start: *mut u8, method: Method, size: usize, step: usize) -> (f64, f64) {
        let order = shuffled(MEMORY / size);
        let mut rounds: Vec<f64> = (0..ROUNDS)
            .map(|_| {
                let begun = Instant::now();
                for &place in &order {
                    for at in (place * size..(place + 1) * size).step_by(step) {
                        // SAFETY: the bytes lie in the memory, which is this function's alone.
                        unsafe { method(start.add(at), step) }
                    }
                }
                begun.elapsed().as_nanos() as f64 / (MEMORY / PAGE) as f64
            })
            .collect();
        rounds.sort_by(f64::total_cmp);
        (rounds[0], rounds[ROUNDS / 2])
    }

    /// How much of this process's memory Linux has in huge pages, as it says.
    fn huge() -> String {
        let text = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("AnonHugePages:"));
        line.map_or("an unknown part".into(), |size| size.trim().to_owned())
    }

    pub fn main() {
        let start = memory();
        println!("ns for 4 KiB, least and median of {ROUNDS} rounds over 512 MiB; {} of it in huge pages:", huge());
        println!("| method | 4 KiB anywhere | 2 MiB, 4 KiB at a time | 2 MiB at once | medians, GB/s |");
        println!("| --- | --- | --- | --- | --- |");
        for (name, method) in METHODS {
            let all = [(PAGE, PAGE), (HUGE, PAGE), (HUGE, HUGE)].map(|(size, step)| measure(start, method, size, step));
            let times = all.map(|(least, median)| format!("{least:.0}, {median:.0}")).join(" | ");
            let rates = all.map(|(_, median)| format!("{:.1}", PAGE as f64 / median)).join(", ");
            println!("| {name} | {times} | {rates} |");
        }
    }
}
