// SPDX-License-Identifier: MIT OR Apache-2.0
//! How much a shrinker is asked for (`do_shrink_slab`): a share of what it has that doubles with
//! each round in which reclaim has not made progress, in batches of 128; what is less than a batch
//! is carried over.

/// What is asked for at a time (`SHRINK_BATCH`).
const BATCH: u64 = 128;
/// What one object costs to make again, in the shrinkers' unit (`DEFAULT_SEEKS`).
const SEEKS: u64 = 2;

/// See the [module](self).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Shrinker {
    /// What it has been asked for and has not done (`nr_deferred`).
    carried: u64,
}

impl Shrinker {
    /// A round at `priority` over `freeable` objects. `scan` is given how many to look at, and says
    /// whether it is worth asking again (`SHRINK_STOP`).
    pub fn shrink(&mut self, freeable: u64, priority: u32, mut scan: impl FnMut(u64) -> bool) {
        if freeable == 0 {
            return;
        }
        let delta = (freeable >> priority) * 4 / SEEKS;
        let mut wanted = ((self.carried >> priority) + delta).min(2 * freeable);
        let mut scanned = 0;
        while wanted >= BATCH || wanted >= freeable {
            let now = wanted.min(BATCH);
            if !scan(now) {
                break;
            }
            wanted -= now;
            scanned += now;
        }
        self.carried = (self.carried + delta).saturating_sub(scanned).min(2 * freeable);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is scanned in each round from priority 12 down.
    fn rounds(freeable: u64) -> Vec<u64> {
        let mut shrinker = Shrinker::default();
        (0..=12)
            .rev()
            .map(|priority| {
                let mut scanned = 0;
                shrinker.shrink(freeable, priority, |count| {
                    scanned += count;
                    true
                });
                scanned
            })
            .collect()
    }

    #[test]
    fn a_batch_is_what_it_takes() {
        // Kept constant here, so that the last rounds ask for all of it once more.
        assert_eq!(rounds(463)[..11], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 256]);
        assert_eq!(rounds(464)[..11], [0, 0, 0, 0, 0, 0, 0, 0, 0, 128, 256]);
        assert_eq!(rounds(0), [0; 13]);
    }

    #[test]
    fn few_objects_are_asked_for_in_the_last_round() {
        assert_eq!(rounds(1), [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
    }

    #[test]
    fn a_shrinker_that_has_nothing_is_not_asked_again() {
        let mut asked = 0;
        Shrinker::default().shrink(1000, 0, |_| {
            asked += 1;
            false
        });
        assert_eq!(asked, 1);
    }
}
