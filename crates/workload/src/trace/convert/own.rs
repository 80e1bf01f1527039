// SPDX-License-Identifier: MIT OR Apache-2.0
//! A trace as a source: to cut it, to sample it, to filter it. It has to hold every access: of what
//! a sample or a filter left out, nothing can be made any more.

use std::path::Path;

use super::STDIN;
use super::import::{BATCH, Batch, Reader};
use crate::stream::WorkloadError;
use crate::trace::format::{ADDRESS_END, RecordKind};
use crate::trace::log::LogStep;
use crate::trace::metadata::Metadata;
use crate::trace::play::Spread;
use crate::trace::reader::{Decoder, Trace};
use crate::trace::sites::SiteId;
use nestwalk_mem::Gva;

/// What the format is called.
pub const NAME: &str = "nwt";
/// What a trace begins with.
pub const MAGIC: &[u8] = b"\x89NWT";

/// See the [module's documentation](self).
pub struct Own {
    trace: Trace,
    decoder: Decoder,
    /// The next record.
    record: usize,
    /// Whether a log has begun and not ended.
    in_log: bool,
    /// Accesses of the record that has begun, and how many of them have been handed out.
    accesses: Vec<(SiteId, Gva)>,
    done: usize,
    instructions: Spread,
    /// Accesses of the trace that are still to be handed out, and whether it is cut off behind
    /// them.
    left: u64,
    cut: bool,
}

impl Own {
    /// Opens the trace `path`, to be read up to access `until`, if that is given.
    ///
    /// # Errors
    /// When it cannot be read, or does not hold every access.
    pub fn open(path: &Path, until: Option<u64>) -> Result<Self, WorkloadError> {
        if path == Path::new(STDIN) {
            let what = "a trace is read from its end, which a pipe does not have: name the file";
            return Err(WorkloadError::Corrupt { path: path.into(), offset: 0, what: what.into() });
        }
        let trace = Trace::open(path)?;
        let metadata = trace.metadata();
        let part = match (&metadata.sampling, &metadata.filter) {
            (Some(_), _) => "windows of the program only",
            (None, Some(_)) => "what a filter kept only",
            (None, None) => "",
        };
        if !part.is_empty() {
            let what = format!(
                "it holds {part}, of which no other part or sample can be made: begin with the capture, or with a trace of every access"
            );
            return Err(WorkloadError::Corrupt { path: path.into(), offset: 0, what });
        }
        if let Some(until) = until.filter(|&until| until > metadata.accesses) {
            let what = format!("access {until} is behind the end of a trace of {} accesses", metadata.accesses);
            return Err(WorkloadError::Corrupt { path: path.into(), offset: trace.bytes(), what });
        }
        Ok(Self {
            decoder: Decoder::new(&trace)?,
            record: 0,
            in_log: false,
            accesses: Vec::new(),
            done: 0,
            instructions: Spread::new(0),
            left: until.unwrap_or(metadata.accesses),
            cut: until.is_some(),
            trace,
        })
    }

    /// Hands out the next accesses of the record that has begun.
    fn hand_out(&mut self, batch: &mut Batch) {
        let sites = self.trace.sites();
        let (items, from) = (self.accesses.len() as u64, self.done);
        let most = usize::try_from(self.left).unwrap_or(BATCH).min(BATCH);
        for &(site, address) in self.accesses[from..].iter().take(most) {
            self.done += 1;
            let site = site.0 as usize;
            let attributes = sites.attributes[site];
            let instructions = self.instructions.up_to(self.done as u64, items);
            let bytes = attributes.bytes() as u16;
            batch.push(
                address.0 & (ADDRESS_END - 1),
                sites.sources[site] as u32,
                instructions,
                bytes,
                attributes.is_store(),
            );
        }
        self.left -= (self.done - from) as u64;
    }

    /// Puts the log's next step into `batch`; `false` at its end. Where every access is kept, a
    /// log's touches are those of the kernel: the program's follow from its accesses.
    fn next_step(&mut self, batch: &mut Batch) -> Result<bool, WorkloadError> {
        match self.decoder.log_step(&self.trace, &mut batch.copies, BATCH)? {
            LogStep::Touches(thread) => batch.thread = thread.0.into(),
            LogStep::Event(event) => {
                batch.thread = event.thread.0.into();
                batch.event = Some(event);
            }
            LogStep::End => self.in_log = false,
        }
        Ok(self.in_log)
    }
}

impl Reader for Own {
    fn fill(&mut self, batch: &mut Batch) -> Result<bool, WorkloadError> {
        loop {
            if self.left > 0 && self.done < self.accesses.len() {
                batch.thread = self.trace.records()[self.record - 1].thread.0.into();
                self.hand_out(batch);
                return Ok(true);
            }
            if self.cut && self.left == 0 {
                return Ok(false);
            }
            if self.in_log && self.next_step(batch)? {
                return Ok(true);
            }
            let Some(record) = self.trace.records().get(self.record) else { return Ok(false) };
            self.record += 1;
            match record.kind {
                RecordKind::Accesses => {
                    self.decoder.begin(&self.trace, record)?;
                    self.accesses.clear();
                    self.done = 0;
                    self.decoder.fill_sites(&self.trace, &mut self.accesses)?;
                    self.instructions = Spread::new(record.instructions);
                }
                RecordKind::Log => {
                    self.decoder.begin_log(&self.trace, record)?;
                    self.in_log = true;
                }
                _ => {}
            }
        }
    }

    fn warnings(&self) -> Vec<String> {
        self.trace.metadata().warning.iter().cloned().collect()
    }

    fn about(&self) -> Option<&Metadata> {
        Some(self.trace.metadata())
    }
}
