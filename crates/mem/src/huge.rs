// SPDX-License-Identifier: MIT OR Apache-2.0
//! Large arrays on huge pages of the machine that runs the simulation (it is no part of what is
//! simulated).
//!
//! The arrays behind page tables and caches are used at random; on 4 KiB pages most of the time
//! would go into this machine's own page walks.

/// Arrays below this size are left alone.
const BYTES_MIN: usize = 4 << 20;

/// Asks the system to put `place` on huge pages. Only a request, and no error if it is refused.
pub fn advise<T>(place: &mut [T]) {
    #[cfg(target_os = "linux")]
    {
        const PAGE: usize = 4096;
        let (start, bytes) = (place.as_mut_ptr().addr(), size_of_val(place));
        if bytes < BYTES_MIN {
            return;
        }
        let skipped = start.next_multiple_of(PAGE) - start;
        let whole = (bytes - skipped) / PAGE * PAGE;
        // SAFETY: the range lies inside `place`, which is borrowed for as long as the call lasts,
        // and MADV_HUGEPAGE changes no contents.
        unsafe {
            libc::madvise(place.as_mut_ptr().cast::<u8>().add(skipped).cast(), whole, libc::MADV_HUGEPAGE);
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (place, BYTES_MIN);
}

/// Makes room for `additional` more elements, on huge pages if there are many. Like
/// [`Vec::reserve`], but a large array moves to a fresh place, since moved huge pages fall apart.
#[inline]
pub fn reserve<T: Copy>(array: &mut Vec<T>, additional: usize) {
    if array.capacity() - array.len() < additional {
        grow(array, additional);
    }
}

#[cold]
fn grow<T: Copy>(array: &mut Vec<T>, additional: usize) {
    let mut larger = Vec::with_capacity((array.len() + additional).max(2 * array.capacity()));
    advise(larger.spare_capacity_mut());
    larger.extend_from_slice(array);
    *array = larger;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_array_keeps_its_contents_as_it_grows() {
        let mut array = Vec::new();
        for number in 0..3_000_000_u64 {
            reserve(&mut array, 1);
            array.push(number);
        }
        assert!(array.iter().copied().eq(0..3_000_000));
    }
}
