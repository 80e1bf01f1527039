// SPDX-License-Identifier: MIT OR Apache-2.0
//! Traces from end to end: captures converted, read back, played; whole and sampled, sound and
//! damaged.

mod capture;
mod captured;
mod damaged;
mod filtered;
mod following;
mod foreign;
mod imports;
mod playing;
mod real;
mod round_trip;
mod sampled;
mod system;
