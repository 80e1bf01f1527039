// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a trace holds, item by item, for people and scripts.

use std::path::Path;

use serde::Serialize;

use super::event::TraceEvent;
use super::format::RecordKind;
use super::log::LogStep;
use super::reader::{Decoder, Trace};
use crate::stream::{Phase, WorkloadError};

/// An item of a trace.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(tag = "what", rename_all = "lowercase")]
pub enum Item {
    /// An access.
    Access {
        /// Its number within the file, from 0.
        number: u64,
        /// Whose it is.
        thread: u16,
        /// Where, in bytes.
        address: u64,
        /// Bytes, rounded up to a power of two.
        bytes: u64,
        /// Whether it is a store.
        store: bool,
        /// The number that the capture gave the instruction.
        site: u64,
        /// Accesses of the thread that a filter left out behind it.
        absorbed: u32,
    },
    /// The first access to a page in a stretch whose accesses are left out.
    Touch {
        /// Whose it is.
        thread: u16,
        /// The page's first byte.
        address: u64,
        /// Whether it is a store.
        store: bool,
    },
    /// A memory event.
    Event {
        /// Whose it is.
        thread: u16,
        /// What it is, as `mmap`.
        event: String,
        /// The range's first byte; of `mmap` where it was put.
        address: u64,
        /// The range's length.
        bytes: u64,
    },
    /// A phase begins.
    Mark {
        /// `populate`, `warm` or `measure`.
        phase: &'static str,
        /// Accesses of the program before it.
        access: u64,
    },
}

/// The items of the trace `path` from the one with the number `skip` on, at most `count` of them.
///
/// # Errors
/// When the trace cannot be read, or is damaged there.
pub fn head(path: &Path, skip: u64, count: usize) -> Result<Vec<Item>, WorkloadError> {
    let trace = Trace::open(path)?;
    let mut decoder = Decoder::new(&trace)?;
    let (mut items, mut left, mut number) = (Vec::new(), skip, 0);
    for record in trace.records() {
        if items.len() >= count {
            break;
        }
        let of_record = u64::from(record.items).max(1);
        let accesses = matches!(record.kind, RecordKind::Accesses | RecordKind::Filtered);
        if left >= of_record {
            left -= of_record;
            number += if accesses { of_record } else { 0 };
            continue;
        }
        let mut found = match record.kind {
            RecordKind::Accesses | RecordKind::Filtered => {
                let found = accesses_of(&trace, &mut decoder, record, number)?;
                number += of_record;
                found
            }
            RecordKind::Log => log_of(&trace, &mut decoder, record)?,
            _ => {
                let mark = decoder.mark(&trace, record)?;
                vec![Item::Mark { phase: phase_name(mark.phase), access: mark.access }]
            }
        };
        let from = usize::try_from(left).unwrap_or(0).min(found.len());
        left = 0;
        items.extend(found.drain(from..).take(count - items.len()));
    }
    Ok(items)
}

/// A phase's name.
pub(super) const fn phase_name(phase: Phase) -> &'static str {
    match phase {
        Phase::Populate => "populate",
        Phase::Warm => "warm",
        Phase::Measure => "measure",
    }
}

fn accesses_of(
    trace: &Trace,
    decoder: &mut Decoder,
    record: &super::index::RecordEntry,
    first: u64,
) -> Result<Vec<Item>, WorkloadError> {
    let (mut accesses, mut gaps) = (Vec::new(), Vec::new());
    decoder.begin(trace, record)?;
    decoder.fill_sites(trace, &mut accesses)?;
    decoder.fill_gaps(&mut gaps, accesses.len());
    let item = |(index, &(site, address)): (usize, &(super::sites::SiteId, nestwalk_mem::Gva))| {
        let attributes = trace.sites().attributes[site.0 as usize];
        Item::Access {
            number: first + index as u64,
            thread: record.thread.0,
            address: address.0,
            bytes: attributes.bytes(),
            store: attributes.is_store(),
            site: trace.sites().sources[site.0 as usize],
            absorbed: gaps.get(index).copied().unwrap_or(0),
        }
    };
    Ok(accesses.iter().enumerate().map(item).collect())
}

fn log_of(
    trace: &Trace,
    decoder: &mut Decoder,
    record: &super::index::RecordEntry,
) -> Result<Vec<Item>, WorkloadError> {
    decoder.begin_log(trace, record)?;
    let (mut items, mut touches) = (Vec::new(), Vec::new());
    loop {
        match decoder.log_step(trace, &mut touches, usize::MAX)? {
            LogStep::Touches(thread) => items.extend(touches.drain(..).map(|(page, store)| Item::Touch {
                thread: thread.0,
                address: page.address().0,
                store,
            })),
            LogStep::Event(event) => items.push(event_item(&event)),
            LogStep::End => return Ok(items),
        }
    }
}

fn event_item(event: &TraceEvent) -> Item {
    use super::event::EventOp;
    let address = if event.op == EventOp::Mmap { event.result } else { event.address.0 };
    let bytes = if event.op == EventOp::Mremap { event.argument } else { event.bytes };
    Item::Event { thread: event.thread.0, event: format!("{:?}", event.op).to_lowercase(), address, bytes }
}
