// SPDX-License-Identifier: MIT OR Apache-2.0
//! Between long work and Python: progress goes out, and the wish to end comes back.

use std::fmt::Display;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use pyo3::prelude::*;

use crate::refuse;

/// Taking the GIL costs more than the engine's batches; people do not look more often than this.
const BETWEEN_CALLS: Duration = Duration::from_millis(50);

/// Tells a Python callback how far work is, and learns from it and from Ctrl-C whether to go on.
pub(crate) struct Listener {
    callback: Option<Py<PyAny>>,
    heard: Instant,
    /// Why Python wants the work to end: what the callback raised, or Ctrl-C.
    raised: Option<PyErr>,
}

impl Listener {
    /// A listener that calls `callback`, if there is one, with what is done and all that there is,
    /// if known.
    pub fn new(callback: Option<Py<PyAny>>) -> Self {
        Self { callback, heard: Instant::now(), raised: None }
    }

    /// To be called often while the GIL is not held.
    pub fn hear(&mut self, done: u64, total: Option<u64>) -> ControlFlow<()> {
        if self.heard.elapsed() < BETWEEN_CALLS {
            return ControlFlow::Continue(());
        }
        self.heard = Instant::now();
        let told = Python::attach(|py| {
            py.check_signals()?;
            match &self.callback {
                Some(callback) => callback.call1(py, (done, total))?.is_truthy(py),
                None => Ok(true),
            }
        });
        match told {
            Ok(true) => ControlFlow::Continue(()),
            Ok(false) => ControlFlow::Break(()),
            Err(error) => {
                self.raised = Some(error);
                ControlFlow::Break(())
            }
        }
    }

    /// The outcome of the work for Python: an exception that Python raised takes precedence over
    /// the engine's own "interrupted".
    pub fn conclude<T>(self, outcome: Result<T, impl Display>) -> PyResult<T> {
        match (self.raised, outcome) {
            (Some(raised), _) => Err(raised),
            (None, outcome) => outcome.map_err(refuse),
        }
    }
}
