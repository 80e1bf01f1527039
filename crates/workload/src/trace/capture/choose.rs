// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where the start-up ends, and which windows the trace gets: chosen once the program has ended,
//! from what [`Model`](super::model::Model) noted of every stretch.
//!
//! A window costs bytes: for the lines that fill the last-level cache before it (one byte each,
//! about), for what warms up, and for what is measured. Few long windows or many short ones can be
//! had for the same bytes. Which is better depends on how the program goes: for each length the
//! variance between stretches of that length is known, so the interval of a sample of `n` of them
//! is, and the shape with the narrowest one is taken. No more windows are taken than the precision
//! asked for needs, of the walk latency and of walk cycles an access.
//!
//! Places are drawn many times, one in each stratum, and those taken whose windows have walks, walk
//! cycles and data cycles an access as all of the steady phase has (rejective sampling: Fuller,
//! Some design properties of a rejective sampling procedure, Biometrika 96, 2009). Otherwise a
//! stage of the program that few windows lie in, or none, would be missing from what is measured.

use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::super::metadata::Sampling;
use super::model::{UNIT_ACCESSES, Unit};
use super::planner::Window;
use crate::modelled::{Modelled, ModelledSample};

/// Lines that a collapsed stretch may leave: 64 MiB of them, more than the last level of nearly all
/// machines.
pub const COLLAPSE_LINES: u64 = 1 << 20;
/// Accesses of a collapsed stretch, at most.
const COLLAPSE_ACCESSES: u64 = 1 << 27;
/// Bytes that a collapsed line takes; measured on redis and BFS (docs/capture.md), and put right by
/// the first attempt.
const COLLAPSED_BYTES: f64 = 1.0;
/// Measured accesses of the longest window, as a shift of [`UNIT_ACCESSES`].
const LONGEST: u32 = 8;
/// A window warms up for half of what it measures, within these bounds.
const WARM_ACCESSES: (u64, u64) = (1 << 18, 1 << 20);
/// Fewer windows give no interval worth the name; more cost time for nothing.
const WINDOWS: (u64, u64) = (8, 1000);
/// Windows that a trace that holds all of the steady phase is cut into.
const CONTIGUOUS_WINDOWS: u64 = 30;
/// Of such a trace, the share that warms up: one in so many.
const CONTIGUOUS_WARM: u64 = 10;
/// The start-up touches new pages so many times faster than what follows, or there is none.
const STARTUP_CONTRAST: f64 = 5.0;
/// A part of the start-up touches at least one in so many of all pages: less is no start-up, only
/// pages that come now and then.
const STARTUP_PAGES: u64 = 100;
/// What follows the start-up is at least one access in so many.
const STEADY_SHARE: u64 = 10;
/// Tries to find a place for a window where the spool has a gap.
const TRIES: u32 = 64;
/// Draws of places, of which the best balanced is taken.
const DRAWS: u64 = 2048;

/// What the spool has, and what is wanted of it.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// Every stretch that the spool has.
    pub units: &'a [Unit],
    /// What the spool has, from and until.
    pub kept: &'a [(u64, u64)],
    /// Accesses of the program.
    pub total: u64,
    /// Where the steady phase begins.
    pub steady: u64,
    /// Bytes that the trace may take for its windows.
    pub room: f64,
    /// Bytes of a kept access.
    pub bytes_per_kept: f64,
    /// Lines of all pages that the program touches: no collapsed stretch leaves more.
    pub lines: u64,
    /// The interval that is enough: half of it, as a share of the walk latency, and of walk cycles
    /// an access.
    pub precision: f64,
    /// Of the random places.
    pub seed: u64,
}

/// What was chosen.
#[derive(Clone, PartialEq, Debug)]
pub struct Choice {
    /// The windows; one after another without a gap if everything fits.
    pub windows: Vec<Window>,
    /// What the trace says of them.
    pub about: Sampling,
    /// Bytes that they are expected to take.
    pub bytes: f64,
    /// Whether more windows would have been better, had there been room.
    pub short_of_room: bool,
    /// Half of the 95 % interval of the average walk latency that the model foresees, as a share of
    /// it; `None` without walks.
    pub latency_ci95: Option<f64>,
    /// The same of walk cycles an access, of windows placed without looking at the program.
    pub cycles_ci95: Option<f64>,
}

/// Where the start-up ends: what comes before touches new pages many times faster than what
/// follows. 0 where there is no such place, as of a compiler: then all of the program is what it
/// does.
///
/// A start-up has parts: the program is loaded, its data are. The end of one is where the share of
/// pages that have been touched is farthest ahead of the share of accesses that have been made;
/// then the same is asked of what follows.
pub fn steady_from(units: &[Unit]) -> u64 {
    let accesses = |units: &[Unit]| units.iter().map(|unit| unit.accesses).sum::<u64>();
    let touches = |units: &[Unit]| units.iter().map(|unit| unit.touches).sum::<u64>();
    let (least, pages) = (accesses(units) / STEADY_SHARE, touches(units) / STARTUP_PAGES);
    let mut rest = units;
    while let Some(part) = part_that_touches(rest) {
        if accesses(&rest[part..]) < least.max(1) || touches(&rest[..part]) < pages {
            break;
        }
        rest = &rest[part..];
    }
    if rest.len() == units.len() { 0 } else { rest.first().map_or(0, |unit| unit.from) }
}

/// How many stretches at the beginning of `units` touch new pages much faster than the others, if
/// some do.
fn part_that_touches(units: &[Unit]) -> Option<usize> {
    let total = |of: fn(&Unit) -> u64| units.iter().map(of).sum::<u64>() as f64;
    let (accesses, touches) = (total(|unit| unit.accesses), total(|unit| unit.touches));
    let (mut made, mut touched, mut best) = (0.0, 0.0, (0.0, 0));
    for (count, unit) in (1..).zip(units) {
        made += unit.accesses as f64;
        touched += unit.touches as f64;
        // Without touches it is no number, and never the largest.
        let ahead = touched / touches - made / accesses;
        if ahead > best.0 {
            best = (ahead, count);
        }
    }
    let (early, late) = units.split_at(best.1);
    let rate = |part: &[Unit]| {
        let sum = |of: fn(&Unit) -> u64| part.iter().map(of).sum::<u64>() as f64;
        sum(|unit| unit.touches) / sum(|unit| unit.accesses)
    };
    (!early.is_empty() && !late.is_empty() && rate(early) > STARTUP_CONTRAST * rate(late)).then_some(best.1)
}

/// Chooses the windows.
pub fn choose(wanted: &Wanted) -> Choice {
    let steady: Vec<Unit> = wanted.units.iter().copied().filter(|unit| unit.from >= wanted.steady).collect();
    let length = wanted.total.saturating_sub(wanted.steady);
    let kept: u64 = steady.iter().map(|unit| unit.kept).sum();
    let has_all = wanted.kept.first().is_some_and(|&(from, until)| from == 0 && until >= wanted.total);
    if has_all && kept as f64 * wanted.bytes_per_kept <= wanted.room || length < 4 * UNIT_ACCESSES {
        return contiguous(wanted, length, kept);
    }
    let density = kept as f64 / steady.iter().map(|unit| unit.accesses).sum::<u64>().max(1) as f64;
    let shapes = (0..=LONGEST).filter_map(|shift| Shape::new(wanted, &steady, length, density, shift));
    let best = shapes.min_by(|a, b| {
        let narrower = || a.interval().total_cmp(&b.interval());
        a.over.total_cmp(&b.over).then_with(narrower)
    });
    best.map_or_else(|| contiguous(wanted, length, kept), |shape| shape.choice(wanted, &steady, length))
}

/// A length of windows, and how many of them.
struct Shape {
    measured: u64,
    warm: u64,
    windows: u64,
    bytes: f64,
    /// Bytes that it takes beyond the room there is.
    over: f64,
    short_of_room: bool,
    latency_ci95: Option<f64>,
    cycles_ci95: Option<f64>,
}

impl Shape {
    fn new(wanted: &Wanted, steady: &[Unit], length: u64, density: f64, shift: u32) -> Option<Self> {
        let measured = UNIT_ACCESSES << shift;
        let warm = (measured / 2).clamp(WARM_ACCESSES.0, WARM_ACCESSES.1);
        let kept_bytes = density * wanted.bytes_per_kept;
        let deviation = Deviation::of(steady, 1 << shift)?;
        let bytes = |windows: u64| {
            let before = (length / windows).min(COLLAPSE_ACCESSES) as f64 * density;
            let collapsed = before.min(COLLAPSE_LINES.min(wanted.lines) as f64) * COLLAPSED_BYTES;
            windows as f64 * (collapsed + (warm + measured) as f64 * kept_bytes)
        };
        let most = (length / (2 * (warm + measured))).min(WINDOWS.1);
        let fitting = partition(1, most + 1, |windows| bytes(windows) <= wanted.room);
        let needed = deviation.windows_for(wanted.precision).max(WINDOWS.0);
        // Fewer than two windows say nothing: if not even they fit, the trace is larger than asked
        // for.
        let windows = needed.min(fitting).max(2);
        (most >= 2).then(|| Self {
            measured,
            warm,
            windows,
            bytes: bytes(windows),
            over: (bytes(windows) - wanted.room).max(0.0),
            short_of_room: needed > fitting,
            latency_ci95: deviation.latency(windows),
            cycles_ci95: deviation.cycles(windows),
        })
    }

    /// What is to be small: the wider of the two intervals.
    fn interval(&self) -> f64 {
        self.latency_ci95.unwrap_or(0.0).max(self.cycles_ci95.unwrap_or(0.0))
    }

    fn choice(&self, wanted: &Wanted, steady: &[Unit], length: u64) -> Choice {
        let stratum = length / self.windows;
        let all = Sums::of(steady);
        let mut random = Xoshiro256PlusPlus::seed_from_u64(wanted.seed);
        let draws = (0..DRAWS).map(|_| self.places(wanted, stratum, &mut random));
        // Where the spool has gaps, a draw may have fewer windows than another.
        let ranked = draws.map(|windows| {
            let modelled = all.sample(&windows);
            (self.windows - windows.len() as u64, modelled.off(), modelled, windows)
        });
        let best = ranked.min_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
        let (_, _, modelled, windows) = best.unwrap_or_default();
        let collapsed = windows.iter().map(|window| window.warm_from - window.collapse_from).min().unwrap_or(0);
        Choice {
            about: Sampling {
                window_accesses: self.measured,
                collapsed_accesses: collapsed,
                warm_accesses: self.warm,
                stratum_accesses: stratum,
                first_access: wanted.steady,
                seed: wanted.seed,
                modelled: Some(modelled),
                ..Sampling::default()
            },
            windows,
            bytes: self.bytes,
            short_of_room: self.short_of_room,
            latency_ci95: self.latency_ci95,
            cycles_ci95: self.cycles_ci95,
        }
    }

    /// A window at a random place of each stratum.
    fn places(&self, wanted: &Wanted, stratum: u64, random: &mut Xoshiro256PlusPlus) -> Vec<Window> {
        let mut windows = Vec::new();
        let mut free_from = wanted.steady;
        for number in 0..self.windows {
            let from = wanted.steady + stratum * number;
            let room = stratum.saturating_sub(self.warm + self.measured);
            for _ in 0..TRIES {
                let warm_from = from + random.random_range(room / 4..=room);
                let until = warm_from + self.warm + self.measured;
                let inside = wanted.kept.iter().rfind(|stretch| stretch.0 <= warm_from);
                let Some(&(chunk, end)) = inside else { continue };
                if until > end.min(wanted.total) || warm_from < free_from {
                    continue;
                }
                let collapse_from = warm_from.saturating_sub(COLLAPSE_ACCESSES).max(free_from).max(chunk);
                windows.push(Window { collapse_from, warm_from, measure_from: warm_from + self.warm, until });
                free_from = until;
                break;
            }
        }
        windows
    }
}

/// What the model counted up to any access of the steady phase.
struct Sums {
    /// The access with which each stretch begins, and what was counted before it.
    before: Vec<(u64, Modelled)>,
    all: Modelled,
}

impl Sums {
    fn of(steady: &[Unit]) -> Self {
        let mut all = Modelled::default();
        let mut before = Vec::with_capacity(steady.len());
        for unit in steady {
            before.push((unit.from, all));
            all = all.plus(&unit.modelled());
        }
        Self { before, all }
    }

    /// What was counted before `access`. Within a stretch it is taken to come evenly.
    fn before(&self, access: u64) -> Modelled {
        let next = self.before.partition_point(|stretch| stretch.0 <= access);
        let Some(&(from, begin)) = next.checked_sub(1).map(|at| &self.before[at]) else { return Modelled::default() };
        let end = self.before.get(next).map_or(&self.all, |(_, before)| before);
        let length = end.accesses - begin.accesses;
        let done = (access - from).min(length);
        let part =
            |from: u64, to: u64| from + (u128::from(to - from) * u128::from(done) / u128::from(length.max(1))) as u64;
        Modelled {
            accesses: begin.accesses + done,
            walks: part(begin.walks, end.walks),
            walk_cycles: part(begin.walk_cycles, end.walk_cycles),
            data_cycles: part(begin.data_cycles, end.data_cycles),
        }
    }

    /// What was counted in the measured part of a window.
    fn within(&self, window: &Window) -> Modelled {
        let (from, until) = (self.before(window.measure_from), self.before(window.until));
        Modelled {
            accesses: until.accesses - from.accesses,
            walks: until.walks - from.walks,
            walk_cycles: until.walk_cycles - from.walk_cycles,
            data_cycles: until.data_cycles - from.data_cycles,
        }
    }

    /// What was counted in the measured part of each of the windows, and of all.
    fn sample(&self, windows: &[Window]) -> ModelledSample {
        ModelledSample { program: self.all, windows: windows.iter().map(|window| self.within(window)).collect() }
    }
}

/// All of the steady phase, in windows without gaps. The filter keeps `kept` accesses of it.
fn contiguous(wanted: &Wanted, length: u64, kept: u64) -> Choice {
    let warm = length / CONTIGUOUS_WARM;
    let count = ((length - warm) / UNIT_ACCESSES).clamp(1, CONTIGUOUS_WINDOWS);
    let measured = (length - warm) / count;
    let windows = (0..count)
        .map(|number| {
            let measure_from = wanted.steady + warm + number * measured;
            let warm_from = if number == 0 { wanted.steady } else { measure_from };
            let until = if number + 1 == count { wanted.total } else { measure_from + measured };
            Window { collapse_from: warm_from, warm_from, measure_from, until }
        })
        .collect();
    let about = Sampling {
        window_accesses: measured,
        stratum_accesses: measured,
        first_access: wanted.steady,
        seed: wanted.seed,
        ..Sampling::default()
    };
    let bytes = kept as f64 * wanted.bytes_per_kept;
    Choice { windows, about, bytes, short_of_room: false, latency_ci95: Some(0.0), cycles_ci95: Some(0.0) }
}

/// The largest number in `from..until` that holds, where all below it do; `from - 1` if none does.
fn partition(from: u64, until: u64, holds: impl Fn(u64) -> bool) -> u64 {
    let (mut low, mut high) = (from, until.max(from));
    while low < high {
        let middle = low + (high - low) / 2;
        if holds(middle) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low - 1
}

/// How much windows of one length differ: of the average walk latency and of walk cycles an access,
/// the relative standard deviation that one window leaves (Cochran, Sampling Techniques, 6.3: the
/// ratio estimator).
#[derive(Clone, Copy, Debug)]
struct Deviation {
    latency: Option<f64>,
    cycles: Option<f64>,
}

impl Deviation {
    /// Of windows of `units` stretches; `None` if there are not two of them.
    fn of(steady: &[Unit], units: usize) -> Option<Self> {
        let windows: Vec<(f64, f64, f64)> = steady
            .chunks_exact(units)
            .map(|window| {
                let sum = |of: fn(&Unit) -> u64| window.iter().map(of).sum::<u64>() as f64;
                (sum(|unit| unit.cycles), sum(|unit| unit.walks), sum(|unit| unit.accesses))
            })
            .collect();
        if windows.len() < 2 {
            return None;
        }
        let relative = |of: fn(&(f64, f64, f64)) -> f64| {
            let (above, below) = windows.iter().fold((0.0, 0.0), |sum, w| (sum.0 + w.0, sum.1 + of(w)));
            if above <= 0.0 || below <= 0.0 {
                return None;
            }
            let (ratio, count) = (above / below, windows.len() as f64);
            let squares: f64 = windows.iter().map(|w| (w.0 - ratio * of(w)).powi(2)).sum();
            Some((squares / (count - 1.0)).sqrt() / (above / count))
        };
        Some(Self { latency: relative(|w| w.1), cycles: relative(|w| w.2) })
    }

    fn latency(&self, windows: u64) -> Option<f64> {
        self.latency.map(|deviation| half(deviation, windows))
    }

    fn cycles(&self, windows: u64) -> Option<f64> {
        self.cycles.map(|deviation| half(deviation, windows))
    }

    /// The least number of windows whose intervals are both as narrow as `precision`.
    fn windows_for(&self, precision: f64) -> u64 {
        let wide = |half: Option<f64>| half.is_some_and(|half| half > precision);
        1 + partition(2, WINDOWS.1 + 1, |windows| wide(self.latency(windows)) || wide(self.cycles(windows))).max(1)
    }
}

/// Half of the 95 % interval: Student's factor, by its expansion (within 2 % from 5 windows on).
fn half(deviation: f64, windows: u64) -> f64 {
    let degrees = windows.max(2) as f64 - 1.0;
    (1.96 + 2.37 / degrees + 2.82 / (degrees * degrees)) * deviation / (windows as f64).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEPT: u64 = UNIT_ACCESSES / 20;

    fn units(count: u64, of: impl Fn(u64) -> (u64, u64, u64)) -> Vec<Unit> {
        (0..count)
            .map(|number| {
                let (walks, cycles, touches) = of(number);
                let from = number * UNIT_ACCESSES;
                Unit { from, accesses: UNIT_ACCESSES, kept: KEPT, walks, cycles, data_cycles: cycles, touches }
            })
            .collect()
    }

    fn wanted<'a>(units: &'a [Unit], kept: &'a [(u64, u64)], room: f64) -> Wanted<'a> {
        let total = units.len() as u64 * UNIT_ACCESSES;
        Wanted { units, kept, total, steady: 0, room, bytes_per_kept: 2.5, lines: u64::MAX, precision: 0.02, seed: 1 }
    }

    #[test]
    fn a_start_up_is_where_new_pages_are_touched() {
        let found = steady_from(&units(1000, |n| (0, 0, if n < 600 { 50 } else { 1 })));
        assert_eq!(found, 600 * UNIT_ACCESSES);
        assert_eq!(steady_from(&units(1000, |n| (0, 0, 20 + n % 7))), 0, "touches all the way: no start-up");
        assert_eq!(steady_from(&units(1000, |n| (0, 0, if n > 950 { 1 } else { 50 }))), 0, "too little is left");
        assert_eq!(steady_from(&[]), 0);
        assert_eq!(steady_from(&units(1000, |_| (0, 0, 0))), 0);
        // The program is loaded, then its data are, which takes longer; and a page comes now and
        // then.
        let server = units(1000, |n| {
            (
                0,
                0,
                if n < 5 {
                    400
                } else if n < 550 {
                    20
                } else {
                    u64::from(n % 50 == 0)
                },
            )
        });
        assert_eq!(steady_from(&server), 550 * UNIT_ACCESSES);
        let late = units(1000, |n| (0, 0, if n < 300 { 20 } else { u64::from(n == 800) }));
        assert_eq!(steady_from(&late), 300 * UNIT_ACCESSES, "one late page begins nothing");
    }

    #[test]
    fn what_fits_is_kept_without_gaps() {
        let units = units(1000, |_| (100, 5000, 0));
        let all = [(0, u64::MAX)];
        let choice = choose(&wanted(&units, &all, 1e9));
        assert_eq!(choice.windows.len() as u64, CONTIGUOUS_WINDOWS);
        assert!(choice.windows.windows(2).all(|pair| pair[0].until == pair[1].collapse_from));
        assert_eq!(choice.windows.last().unwrap().until, 1000 * UNIT_ACCESSES);
    }

    /// A number that looks random (the finalizer of `SplitMix64`).
    fn mixed(n: u64) -> u64 {
        let n = n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (n ^ (n >> 27)) >> 33
    }

    #[test]
    fn a_steady_program_needs_few_windows_and_a_bursty_one_many() {
        let all = [(0, u64::MAX)];
        let steady = units(60_000, |n| (150, 7500 + n % 11 * 10, 0));
        let few = choose(&wanted(&steady, &all, 3e7));
        assert_eq!(few.windows.len() as u64, WINDOWS.0);
        assert!(few.latency_ci95.unwrap() < 0.02 && !few.short_of_room);
        // Walks come in bursts of random places, and cost more there.
        let bursty = units(60_000, |n| if mixed(n) % 1000 < 30 { (1000, 200_000, 0) } else { (10, 200, 0) });
        let many = choose(&wanted(&bursty, &all, 3e9));
        assert!(many.windows.len() > 2 * few.windows.len(), "{many:?}");
        let cramped = choose(&wanted(&bursty, &all, 3e7));
        assert!(cramped.short_of_room && cramped.windows.len() < many.windows.len());
        assert!(cramped.latency_ci95 > few.latency_ci95 && cramped.latency_ci95 > many.latency_ci95);
    }

    #[test]
    fn few_windows_have_of_each_stage_what_the_program_has() {
        // A fifth of each iteration hardly walks.
        let units = units(60_000, |n| if n / 1000 % 5 == 4 { (1, 50, 0) } else { (900 + n % 7, 45_000 + n % 90, 0) });
        let all = [(0, u64::MAX)];
        for seed in 0..20 {
            let choice = choose(&Wanted { seed, ..wanted(&units, &all, 8e6) });
            assert!((5..12).contains(&choice.windows.len()), "{}", choice.windows.len());
            let modelled = choice.about.modelled.as_ref().unwrap();
            assert!(modelled.off() < 0.1, "{}", modelled.off());
            let ModelledSample { program, windows: counted } = modelled;
            let sum = counted.iter().fold(Modelled::default(), |sum, window| sum.plus(window));
            let [walks, walk_cycles, _] = sum.relative_to(program);
            assert!((walks - 1.0).abs() < 0.1 && (walk_cycles - 1.0).abs() < 0.1, "{walks} {walk_cycles}");
            for (window, counted) in choice.windows.iter().zip(counted) {
                assert_eq!(window.until - window.measure_from, counted.accesses);
                let middle = window.measure_from.midpoint(window.until) / UNIT_ACCESSES;
                let calm = middle / 1000 % 5 == 4;
                let rate = counted.walks as f64 * UNIT_ACCESSES as f64 / counted.accesses as f64;
                assert!(if calm { rate < 500.0 } else { rate > 400.0 }, "{rate} {calm}");
            }
        }
    }

    #[test]
    fn what_was_counted_up_to_an_access_comes_evenly_within_a_stretch() {
        let units = units(10, |n| (100 * n, 1000 * n, 0));
        let skipping: Vec<Unit> = units.iter().copied().filter(|unit| unit.from / UNIT_ACCESSES != 4).collect();
        let sums = Sums::of(&skipping);
        let at = |units: u64, part: u64| sums.before(units * UNIT_ACCESSES + UNIT_ACCESSES * part / 4).walks;
        assert_eq!((at(0, 0), at(1, 0), at(2, 0), at(2, 1)), (0, 0, 100, 150));
        // Nothing is known of the stretch that the spool skipped.
        assert_eq!((at(4, 0), at(4, 3), at(5, 0), at(5, 2)), (600, 600, 600, 850));
        assert_eq!(at(10, 0), 4100);
        assert_eq!(sums.before(u64::MAX), sums.all);
    }

    #[test]
    fn where_nothing_fits_the_smallest_is_taken() {
        let units = units(60_000, |n| (100, 5000 + n * 7919 % 3000, 0));
        let all = [(0, u64::MAX)];
        let choice = choose(&wanted(&units, &all, 1.0));
        assert_eq!((choice.windows.len(), choice.about.window_accesses), (2, UNIT_ACCESSES));
        assert!(choice.short_of_room);
    }

    #[test]
    fn windows_lie_where_the_spool_has_something() {
        let units = units(60_000, |n| (100, 5000 + n * 7919 % 3000, 0));
        let chunk = 64 << 20;
        let kept: Vec<_> = (0..60).map(|n| (n * chunk, n * chunk + chunk)).filter(|s| s.0 / chunk % 4 == 1).collect();
        let choice = choose(&Wanted { precision: 0.001, ..wanted(&units, &kept, 3e7) });
        assert!(choice.windows.len() > 4, "{choice:?}");
        for window in &choice.windows {
            assert!(kept.iter().any(|s| s.0 <= window.collapse_from && window.until <= s.1), "{window:?}");
            assert!(window.collapse_from <= window.warm_from && window.warm_from < window.measure_from);
        }
        assert!(choice.windows.windows(2).all(|pair| pair[0].until <= pair[1].collapse_from));
    }

    #[test]
    fn no_walks_at_all_are_no_trouble() {
        let all = [(0, u64::MAX)];
        let choice = choose(&wanted(&units(60_000, |_| (0, 0, 0)), &all, 3e7));
        assert_eq!((choice.latency_ci95, choice.cycles_ci95), (None, None));
        assert!(!choice.windows.is_empty());
        let choice = choose(&wanted(&[], &all, 3e7));
        assert_eq!(choice.windows.len(), 1, "nothing at all: one window of nothing");
    }
}
