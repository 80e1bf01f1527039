// SPDX-License-Identifier: MIT OR Apache-2.0
//! Traces of real programs: the `.nwt` format, its writer and reader, and converters from captures.
//!
//! `docs/trace-format.md` is the format's specification. A capture goes through [`convert`] once;
//! [`info`] says what a trace holds, [`check`] that it is whole, and [`TraceWorkload`] plays it to
//! the machine.
//!
//! A trace holds every access of a program, or windows of them with, between the windows, the first
//! touch of each page and every memory event, in order: the footprint is real, and the windows see
//! the memory that the program would have had.

pub mod block;
pub mod capture;
pub mod collapse;
pub mod convert;
mod destination;
mod encode;
pub mod event;
pub mod filter;
pub mod filtered;
pub mod format;
pub mod guest;
pub mod head;
pub mod index;
pub mod inspect;
pub mod live;
pub mod log;
pub mod metadata;
pub mod pages;
pub mod play;
pub mod predict;
pub mod profile;
pub mod reader;
pub mod recorder;
pub mod sample;
pub mod sites;
pub mod source;
pub mod space;
pub mod stack;
pub mod varint;
pub mod writer;

pub use convert::{ConvertOptions, ConvertReport, Progress, convert};
pub use filter::FilterOptions;
pub use inspect::{CheckReport, TraceInfo, check, fuzz_one, info};
pub use metadata::{Metadata, Sampling, Vma};
pub use play::{PlayOptions, TraceWorkload};
pub use reader::{Decoder, Trace};
pub use sample::{SampleOptions, SteadyFrom, Strata};
