// SPDX-License-Identifier: MIT OR Apache-2.0
//! The loops of [`run`](crate::run) for each accelerator, compiled here and once.
//!
//! A core is generic over what it meets on its hot path: the way to translate and the accelerator.
//! A compiler makes such code where it is used, again in each test and each program, for minutes.
//! So what a walker can be is closed, and an accelerator of this crate has functions without
//! parameters, one for each walker.

use nestwalk_mem::Access;

use crate::accelerator::asap::Asap;
use crate::accelerator::cuckoo::Cuckoo;
use crate::accelerator::pom_tlb::PomTlb;
use crate::accelerator::{Accelerator, NoAccelerator};
use crate::any_walker::AnyWalker;
use crate::corunner::CoRunner;
use crate::llc::Llc;
use crate::native::Native;
use crate::nested::Nested;
use crate::processor::{Core, RunEnd};
use crate::segmented::Segmented;
use crate::walker::Walker;

/// What sees accesses besides the TLBs, and who else uses it.
#[derive(Debug)]
pub enum SeenBy<'a> {
    /// Nothing: exact hits and misses of the TLBs, no latencies.
    Tlbs,
    /// The caches, which a co-runner may use as well.
    Caches(&'a mut Llc, Option<&'a mut CoRunner>),
}

/// The functions of [`Engine`], which compile the loops where they are written out.
macro_rules! loops {
    () => {
        /// Runs `accesses` over one page table.
        fn native(core: &mut Core<Self>, walker: &mut Native<'_>, accesses: &[Access], seen_by: SeenBy<'_>) -> RunEnd {
            match core.vectors() {
                Some(vectors) => core.run_in(vectors, walker, accesses, seen_by),
                None => core.run_portable(AnyWalker::Native(walker), accesses, seen_by),
            }
        }

        /// Runs `accesses` over a guest's table and its host's.
        fn nested(core: &mut Core<Self>, walker: &mut Nested<'_>, accesses: &[Access], seen_by: SeenBy<'_>) -> RunEnd {
            match core.vectors() {
                Some(vectors) => core.run_in(vectors, walker, accesses, seen_by),
                None => core.run_portable(AnyWalker::Nested(walker), accesses, seen_by),
            }
        }

        /// Runs `accesses` over a guest's table and segment registers.
        fn segmented(
            core: &mut Core<Self>,
            walker: &mut Segmented<'_>,
            accesses: &[Access],
            seen_by: SeenBy<'_>,
        ) -> RunEnd {
            match core.vectors() {
                Some(vectors) => core.run_in(vectors, walker, accesses, seen_by),
                None => core.run_portable(AnyWalker::Segmented(walker), accesses, seen_by),
            }
        }
    };
}

/// An accelerator with the loops that run accesses through a core that has it. For an accelerator
/// of another crate `impl Engine for ... {}` is enough: its loops are compiled there.
pub trait Engine: Accelerator + Sized {
    loops!();
}

impl Engine for NoAccelerator {
    loops!();
}

impl Engine for Asap {
    loops!();
}

impl Engine for PomTlb {
    loops!();
}

impl Engine for Cuckoo {
    loops!();
}

/// A walker for which an [`Engine`] has loops.
pub trait EngineWalker: Walker {
    /// Runs `accesses` through `core`.
    fn run<P: Engine>(&mut self, core: &mut Core<P>, accesses: &[Access], seen_by: SeenBy<'_>) -> RunEnd;
}

impl EngineWalker for Native<'_> {
    fn run<P: Engine>(&mut self, core: &mut Core<P>, accesses: &[Access], seen_by: SeenBy<'_>) -> RunEnd {
        P::native(core, self, accesses, seen_by)
    }
}

impl EngineWalker for Nested<'_> {
    fn run<P: Engine>(&mut self, core: &mut Core<P>, accesses: &[Access], seen_by: SeenBy<'_>) -> RunEnd {
        P::nested(core, self, accesses, seen_by)
    }
}

impl EngineWalker for Segmented<'_> {
    fn run<P: Engine>(&mut self, core: &mut Core<P>, accesses: &[Access], seen_by: SeenBy<'_>) -> RunEnd {
        P::segmented(core, self, accesses, seen_by)
    }
}
