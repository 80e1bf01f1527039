// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counters, each declared once.
//!
//! A structure declares what it counts with [`counters!`](crate::counters!), in its own file: the
//! name, the unit and the meaning of each counter. That one declaration makes
//! - the struct, with a field for each counter;
//! - sums (`add`, `plus`) and differences (`minus`) of two snapshots;
//! - what results and their schema show ([`Shown`]): each number with its path, unit and meaning.
//!
//! ```
//! nestwalk_mem::counters! {
//!     /// What a cache counts.
//!     pub struct CacheCounters {
//!         /// Look-ups that hit, by page size.
//!         hits: [u64; 2] ["look-ups" by ["4KiB", "2MiB"]],
//!         /// Look-ups that missed.
//!         misses: u64 ["look-ups"],
//!     }
//!     computed {
//!         /// All look-ups.
//!         "all" ["look-ups"] = |own: &Self| own.hits.iter().sum::<u64>() + own.misses,
//!     }
//! }
//! let once = CacheCounters { hits: [3, 4], misses: 1 };
//! assert_eq!(once.plus(&once).minus(&once), once);
//! let list = nestwalk_mem::counters::list(&once).into_iter();
//! let shown: Vec<_> = list.map(|counter| (counter.path, counter.value)).collect();
//! let expected = [("hits.4KiB", 3), ("hits.2MiB", 4), ("misses", 1), ("all", 8)];
//! assert_eq!(shown, expected.map(|(path, value)| (path.to_owned(), Some(value))));
//! ```
//!
//! In brackets behind a field is how it is shown:
//! - `["unit"]`: under its own name; `["unit" at "path"]`: elsewhere, where a dot leads into a
//!   table;
//! - `["unit" by LABELS]`: an array, with a label for each of its numbers;
//! - `[group at "path"]`: a group that was declared like this one; `[group]`: its counters are
//!   beside the others;
//! - `[optional at "path"]`: a group of hardware that most machines lack: only where it counted
//!   something;
//! - `[hidden]`: not at all.

/// A number as results show it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Counter {
    /// Its place, with dots between the names of tables.
    pub path: String,
    /// What it is a number of.
    pub unit: &'static str,
    /// What it means.
    pub text: &'static str,
    /// `None` if it cannot be known.
    pub value: Option<u64>,
    /// Whether results have it only where its group counted something.
    pub optional: bool,
}

/// The place of a value, and what it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct About<'a> {
    /// The table that it is in; empty for the outermost one.
    pub table: &'a str,
    /// Its name in that table; empty for a group whose counters are in the table itself.
    pub name: &'a str,
    /// What it is a number of.
    pub unit: &'static str,
    /// What it means: a doc comment.
    pub text: &'static str,
    /// A name for each number of an array.
    pub labels: &'a [&'a str],
    /// Whether it is in a group that is shown only if it counted something.
    pub optional: bool,
    /// Whether such a group is shown in any case.
    pub all: bool,
}

impl About<'_> {
    /// Its path.
    pub fn path(&self) -> String {
        match (self.table, self.name) {
            (table, "") => table.to_owned(),
            ("", name) => name.to_owned(),
            (table, name) => format!("{table}.{name}"),
        }
    }
}

/// What counters are made of: numbers, arrays of them, and groups.
pub trait Counted: Clone {
    /// Nothing counted.
    const ZERO: Self;

    /// Applies `op` to each number and its counterpart.
    fn combine(&mut self, other: &Self, op: impl Fn(&mut u64, u64) + Copy);
}

/// What can be shown.
pub trait Shown {
    /// Hands each number in here to `see`.
    fn show(&self, about: About<'_>, see: &mut dyn FnMut(Counter));
}

/// The numbers of a group that results have.
pub fn list<C: Shown>(counters: &C) -> Vec<Counter> {
    listed(counters, false)
}

/// All numbers that results may have.
pub fn list_all<C: Shown + Default>() -> Vec<Counter> {
    listed(&C::default(), true)
}

/// The count at `path`.
///
/// # Panics
/// When there is no counter of that path, or its value cannot be known.
pub fn value(counters: &[Counter], path: &str) -> u64 {
    let found = counters.iter().find(|counter| counter.path == path);
    found.and_then(|counter| counter.value).unwrap_or_else(|| panic!("no counter {path} with a value"))
}

fn listed<C: Shown>(counters: &C, all: bool) -> Vec<Counter> {
    let mut found = Vec::new();
    counters.show(About { all, ..About::default() }, &mut |counter| found.push(counter));
    found
}

impl Counted for u64 {
    const ZERO: Self = 0;

    #[inline(always)]
    fn combine(&mut self, other: &Self, op: impl Fn(&mut u64, u64) + Copy) {
        op(self, *other);
    }
}

impl<const N: usize> Counted for [u64; N] {
    const ZERO: Self = [0; N];

    #[inline(always)]
    fn combine(&mut self, other: &Self, op: impl Fn(&mut u64, u64) + Copy) {
        self.iter_mut().zip(other).for_each(|(to, from)| op(to, *from));
    }
}

impl Shown for Option<u64> {
    fn show(&self, about: About<'_>, see: &mut dyn FnMut(Counter)) {
        let About { unit, text, optional, .. } = about;
        see(Counter { path: about.path(), unit, text: text.trim(), value: *self, optional });
    }
}

impl Shown for u64 {
    fn show(&self, about: About<'_>, see: &mut dyn FnMut(Counter)) {
        Some(*self).show(about, see);
    }
}

impl<T: Shown, const N: usize> Shown for [T; N] {
    fn show(&self, about: About<'_>, see: &mut dyn FnMut(Counter)) {
        assert_eq!(about.labels.len(), N, "{}: a label for each number", about.name);
        let table = about.path();
        for (number, name) in self.iter().zip(about.labels) {
            number.show(About { table: &table, name, labels: &[], ..about }, see);
        }
    }
}

/// Declares a group of counters. See the [module](mod@crate::counters).
#[macro_export]
macro_rules! counters {
    (
        $(#[doc = $about:literal])+
        pub struct $group:ident {
            $($(#[doc = $doc:literal])+ $name:ident: $kind:ty [$($how:tt)+],)+
        }
        $(computed { $($(#[doc = $text:literal])+ $path:literal [$unit:literal $($by:tt)*] = $value:expr,)+ })?
    ) => {
        $(#[doc = $about])+
        #[derive(Clone, PartialEq, Eq, Debug)]
        pub struct $group {
            $($(#[doc = $doc])+ pub $name: $kind,)+
        }

        impl $crate::counters::Counted for $group {
            const ZERO: Self = Self { $($name: <$kind as $crate::counters::Counted>::ZERO,)+ };

            #[inline]
            fn combine(&mut self, other: &Self, op: impl Fn(&mut u64, u64) + Copy) {
                $($crate::counters::Counted::combine(&mut self.$name, &other.$name, op);)+
            }
        }

        impl $crate::counters::Shown for $group {
            fn show(&self, about: $crate::counters::About<'_>, see: &mut dyn FnMut($crate::counters::Counter)) {
                let table = $crate::counters::About { table: &about.path(), name: "", labels: &[], ..about };
                $($crate::counters!(@show self.$name, stringify!($name), concat!($($doc),+), table, see, $($how)+);)+
                $($(
                    let value: fn(&Self) -> _ = $value;
                    $crate::counters!(@show value(self), $path, concat!($($text),+), table, see, $unit $($by)*);
                )+)?
            }
        }

        impl Default for $group {
            fn default() -> Self {
                <Self as $crate::counters::Counted>::ZERO
            }
        }

        // A group that is private may need only some of them.
        #[allow(dead_code)]
        impl $group {
            /// Counts what `other` counted, too.
            #[inline]
            pub fn add(&mut self, other: &Self) {
                $crate::counters::Counted::combine(self, other, |to, from| *to += from);
            }

            /// The sum with `other`: that of another structure, or of another window.
            #[must_use]
            pub fn plus(&self, other: &Self) -> Self {
                let mut sum = self.clone();
                sum.add(other);
                sum
            }

            /// What was counted since `earlier`, a snapshot of the same structure.
            #[must_use]
            pub fn minus(&self, earlier: &Self) -> Self {
                let mut difference = self.clone();
                $crate::counters::Counted::combine(&mut difference, earlier, |to, from| *to -= from);
                difference
            }
        }
    };
    (
        $(#[doc = $about:literal])+
        pub numbers $group:ident {
            $($(#[doc = $doc:literal])+ $name:ident [$unit:literal],)+
        }
    ) => {
        $crate::counters! {
            $(#[doc = $about])+
            pub struct $group {
                $($(#[doc = $doc])+ $name: u64 [$unit],)+
            }
        }

        impl Copy for $group {}

        #[allow(dead_code)]
        impl $group {
            /// The names, in the order of [`Self::values`].
            pub const NAMES: &'static [&'static str] = &[$(stringify!($name)),*];

            /// All counts.
            pub fn values(&self) -> impl Iterator<Item = u64> + use<> {
                [$(self.$name),*].into_iter()
            }

            /// Counts what is new in `now` since `seen`, which is brought up to date. Tells `each`
            /// of the place in [`Self::NAMES`] of every count that went on, and by how much. Most
            /// did not: that is what makes it cheap.
            #[inline]
            pub fn take_news(&mut self, now: &Self, seen: &mut Self, mut each: impl FnMut(usize, u64)) {
                let mut place = 0;
                $(
                    if now.$name != seen.$name {
                        let more = now.$name - seen.$name;
                        self.$name += more;
                        seen.$name = now.$name;
                        each(place, more);
                    }
                    place += 1;
                )*
                debug_assert_eq!(place, Self::NAMES.len());
            }
        }
    };
    (@show $value:expr, $name:expr, $text:expr, $table:ident, $see:ident, hidden) => {};
    (@show $value:expr, $name:expr, $text:expr, $table:ident, $see:ident, group) => {
        $crate::counters!(@show $value, $name, $text, $table, $see, "" at "")
    };
    (@show $value:expr, $name:expr, $text:expr, $table:ident, $see:ident, group at $path:literal) => {
        $crate::counters!(@show $value, $name, $text, $table, $see, "" at $path)
    };
    (@show $value:expr, $name:expr, $text:expr, $table:ident, $see:ident, optional at $path:literal) => {
        if $table.all || $value != $crate::counters::Counted::ZERO {
            let inside = $crate::counters::About { optional: true, ..$table };
            $crate::counters!(@show $value, $name, $text, inside, $see, "" at $path)
        }
    };
    (@show $value:expr, $name:expr, $text:expr, $table:ident, $see:ident, $unit:literal) => {
        $crate::counters!(@as $value, $name, $text, $table, $see, $unit, &[])
    };
    (@show $value:expr, $name:expr, $text:expr, $table:ident, $see:ident, $unit:literal by $labels:expr) => {
        $crate::counters!(@as $value, $name, $text, $table, $see, $unit, &$labels)
    };
    (@show $value:expr, $name:expr, $text:expr, $table:ident, $see:ident, $unit:literal at $path:literal) => {
        $crate::counters!(@as $value, $path, $text, $table, $see, $unit, &[])
    };
    (@show $value:expr, $name:expr, $text:expr, $table:ident, $see:ident, $unit:literal at $path:literal by $labels:expr) => {
        $crate::counters!(@as $value, $path, $text, $table, $see, $unit, &$labels)
    };
    (@as $value:expr, $name:expr, $text:expr, $table:ident, $see:ident, $unit:expr, $labels:expr) => {
        $crate::counters::Shown::show(
            &$value,
            $crate::counters::About { name: $name, unit: $unit, text: $text, labels: $labels, ..$table },
            $see,
        )
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    crate::counters! {
        /// Inside.
        pub struct Inner {
            /// A number.
            one: u64 ["steps"],
            /// Elsewhere,
            /// on two lines.
            two: [u64; 2] ["steps" at "other.place" by ["a", "b"]],
        }
        computed {
            /// Nothing without steps.
            "half" ["steps"] = |own| (own.one > 0).then_some(own.one / 2),
        }
    }

    crate::counters! {
        /// Outside.
        pub struct Outer {
            /// In a table of its own.
            inner: Inner [group at "in"],
            /// Beside.
            beside: Inner [group],
            /// Not shown.
            raw: [u64; 40] [hidden],
            /// Only if there is something.
            rare: Inner [optional at "rare"],
        }
    }

    crate::counters! {
        /// Numbers.
        pub numbers Flat {
            /// The first.
            first ["steps"],
            /// The second.
            second ["pages"],
        }
    }

    #[test]
    fn a_path_is_what_the_declaration_says() {
        let one = Inner { one: 7, two: [1, 2] };
        let all = list(&Outer { inner: one.clone(), beside: one, raw: [9; 40], rare: Inner::default() });
        let shown: Vec<_> = all.iter().map(|counter| (counter.path.as_str(), counter.value)).collect();
        let names = ["one", "other.place.a", "other.place.b", "half"];
        let values = [7, 1, 2, 3].map(Some);
        let inside: Vec<_> = names.iter().map(|name| format!("in.{name}")).collect();
        let expected: Vec<_> = inside.iter().map(String::as_str).chain(names).zip(values.into_iter().cycle()).collect();
        assert_eq!(shown, expected);
        assert_eq!((all[1].unit, all[1].text), ("steps", "Elsewhere, on two lines."));
        assert_eq!(list(&Inner::default()).last().unwrap().value, None);
        let mut rare = Outer::default();
        let paths = |counters: &Outer| list(counters).into_iter().filter(|counter| counter.optional).map(|c| c.path);
        assert_eq!(paths(&rare).count(), 0);
        rare.rare.one = 1;
        assert_eq!(paths(&rare).next().as_deref(), Some("rare.one"));
        let all = list_all::<Outer>();
        assert_eq!((all.len(), all.iter().filter(|counter| counter.optional).count()), (12, 4));
    }

    #[test]
    fn a_difference_and_a_sum_are_inverse_in_every_field() {
        let inner = |n| Inner { one: n, two: [n + 1, n + 2] };
        let (one, two) = (
            Outer { inner: inner(1), beside: inner(4), raw: [7; 40], rare: inner(7) },
            Outer { inner: inner(10), beside: inner(20), raw: [30; 40], rare: inner(8) },
        );
        let sum = one.plus(&two);
        assert_eq!((sum.inner.two, sum.beside.one, sum.raw[39]), ([13, 15], 24, 37));
        assert_eq!((sum.minus(&two), sum.minus(&one)), (one, two));
    }

    #[test]
    fn news_are_what_went_on() {
        let (now, mut seen, mut own) = (Flat { first: 3, second: 9 }, Flat { first: 3, second: 5 }, Flat::default());
        let mut news = Vec::new();
        own.take_news(&now, &mut seen, |place, more| news.push((Flat::NAMES[place], more)));
        assert_eq!((news, own, seen), (vec![("second", 4)], Flat { first: 0, second: 4 }, now));
        assert_eq!(now.values().collect::<Vec<_>>(), [3, 9]);
        own.add(&seen);
        assert_eq!(own.minus(&now).plus(&now), Flat { first: 3, second: 13 });
    }
}
