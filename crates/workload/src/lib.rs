// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs, as the machine sees them: a stream of memory accesses, first touches and memory
//! events.
//!
//! A [`Workload`] is pulled: the machine hands in a [`Batch`] to fill and gets told, by a [`Step`],
//! what came. Traces of real programs, generators and [co-runners](churn) look the same from there
//! on.

pub mod chase;
pub mod churn;
pub mod filtered;
pub mod generator;
pub mod locality;
pub mod modelled;
pub mod stream;
pub mod trace;

pub use churn::ChurnConfig;
pub use filtered::FilteredWorkload;
pub use generator::GeneratorConfig;
pub use modelled::{Modelled, ModelledSample};
pub use stream::{Batch, MemoryEvent, Phase, Step, ThreadId, Workload, WorkloadError, WorkloadFacts};
