// SPDX-License-Identifier: MIT OR Apache-2.0
//! From the spool, which is a trace itself, to the trace: every record goes through a [`Recorder`]
//! once more, which has a plan of windows now.

use nestwalk_mem::Gva;

use super::super::format::RecordKind;
use super::super::log::LogStep;
use super::super::reader::{Decoder, Trace};
use super::super::recorder::{Recorder, Represented};
use super::super::sites::SiteId;
use crate::stream::WorkloadError;

/// Touches that are taken from a log at a time.
const TOUCHES: usize = 1 << 12;

/// Feeds all of `spool` to `recorder`. `going_on` is called record by record and ends the work by
/// an error.
///
/// # Errors
/// When the spool cannot be read or the trace not be written.
pub fn resample(
    spool: &Trace,
    recorder: &mut Recorder,
    going_on: &mut dyn FnMut() -> Result<(), WorkloadError>,
) -> Result<(), WorkloadError> {
    let mut decoder = Decoder::new(spool)?;
    let (mut accesses, mut gaps, mut touches) = (Vec::new(), Vec::new(), Vec::new());
    recorder.share_sites(spool.sites());
    for record in spool.records() {
        going_on()?;
        match record.kind {
            RecordKind::Accesses | RecordKind::Filtered => {
                accesses.clear();
                gaps.clear();
                decoder.accesses(spool, record, &mut accesses, &mut gaps)?;
                let thread = recorder.known_thread(record.thread);
                let mut spread = Spread::new(record.represented(), record.instructions, record.absorbed_stores);
                for (&(site, address), absorbed) in accesses.iter().zip(gaps.iter().copied()) {
                    recorder.represented(&spread.next(thread, site, address, absorbed))?;
                }
            }
            RecordKind::Log => {
                recorder.skipped_instructions(record.instructions);
                decoder.begin_log(spool, record)?;
                loop {
                    match decoder.log_step(spool, &mut touches, TOUCHES)? {
                        LogStep::Touches(thread) => {
                            for (page, store) in touches.drain(..) {
                                recorder.touched(thread, page, store)?;
                            }
                        }
                        LogStep::Event(event) => recorder.event(&event)?,
                        LogStep::End => break,
                    }
                }
            }
            _ => {
                let mark = decoder.mark(spool, record)?;
                recorder.jump(mark.access, mark.instructions)?;
            }
        }
    }
    Ok(())
}

/// Spreads what is known of a record as a whole over its accesses, evenly and without loss.
struct Spread {
    all: u64,
    done: u64,
    instructions: (u64, u64),
    stores: (u64, u64),
}

impl Spread {
    const fn new(all: u64, instructions: u64, stores: u64) -> Self {
        Self { all, done: 0, instructions: (instructions, 0), stores: (stores, 0) }
    }

    fn next(&mut self, thread: crate::stream::ThreadId, site: SiteId, address: Gva, absorbed: u32) -> Represented {
        self.done += 1 + u64::from(absorbed);
        let (done, all) = (u128::from(self.done), u128::from(self.all.max(1)));
        let share = |part: &mut (u64, u64)| {
            let by_now = (u128::from(part.0) * done / all) as u64;
            by_now - std::mem::replace(&mut part.1, by_now)
        };
        let instructions = share(&mut self.instructions);
        // What does not fit here goes to the next ones.
        let due = (u128::from(self.stores.0) * done / all) as u64 - self.stores.1;
        let absorbed_stores = due.min(u64::from(absorbed));
        self.stores.1 += absorbed_stores;
        Represented { thread, site, address, absorbed, absorbed_stores, instructions }
    }
}
