// SPDX-License-Identifier: MIT OR Apache-2.0
//! Table nodes wherever the buddy allocator puts them: stock Linux (`pte_alloc_one`,
//! `__GFP_ACCOUNT`, order 0, unmovable).

use nestwalk_mem::{Frame, Order};

use crate::context::placement::{NodeKey, TableContext, TablePlacement};

/// See the [module](self).
#[derive(Clone, Copy, Debug, Default)]
pub struct Buddy;

impl TablePlacement for Buddy {
    fn name(&self) -> &'static str {
        "buddy"
    }

    fn place(&mut self, cx: &mut TableContext<'_>, _: NodeKey) -> Option<Frame> {
        cx.state.alloc_kernel(cx.cpu)
    }

    fn release(&mut self, cx: &mut TableContext<'_>, _: NodeKey, frame: Frame) {
        cx.state.memory.free(frame, Order::PAGE, cx.cpu);
    }
}
