// SPDX-License-Identifier: MIT OR Apache-2.0
//! Stock Linux without huge pages: each fault takes one frame (`do_anonymous_page`).

use nestwalk_mem::{FrameRange, PageCount, PageSize};

use crate::context::Context;
use crate::context::event::Fault;
use crate::error::OsError;
use crate::manager::contract::{Deallocation, Facts, MemoryManager, Preparation, Promotion, When};

/// Its choices at the five events.
pub const FACTS: Facts = Facts {
    name: "linux4k",
    source: "Linux 6.1, mm/memory.c, do_anonymous_page",
    block: PageCount(1),
    allocation: When::Fault,
    preparation: Preparation::Full,
    mapping: When::Never,
    promotion: Promotion::None,
    deallocation: Deallocation::OnUnmap,
};

/// See the [module](self).
#[derive(Clone, Copy, Debug, Default)]
pub struct Linux4k;

impl MemoryManager for Linux4k {
    fn facts(&self) -> &'static Facts {
        &FACTS
    }

    fn fault(&mut self, cx: &mut Context<'_>, fault: &Fault) -> Result<PageSize, OsError> {
        map_one_page(cx, fault)
    }
}

/// Takes a frame, zeroes it and maps it: what every manager falls back to.
///
/// # Errors
/// When there is no memory, or nothing below backs it.
#[inline(always)]
pub fn map_one_page(cx: &mut Context<'_>, fault: &Fault) -> Result<PageSize, OsError> {
    let frame = cx.page_frame()?;
    let frames = FrameRange::single(frame);
    match cx.zero(frames).and_then(|()| cx.map_fault(fault, frame)) {
        Ok(()) => Ok(PageSize::Small),
        Err(error) => {
            cx.free(frames);
            Err(error)
        }
    }
}

#[cfg(test)]
mod tests;
