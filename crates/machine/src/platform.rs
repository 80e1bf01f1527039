// SPDX-License-Identifier: MIT OR Apache-2.0
//! What tenants run on: kernels, cores, and the meter that tells whose work a kernel did.

use crate::hardware::Hardware;
use crate::meter::Meter;
use crate::stack::Stack;
use crate::timing::Timing;

/// See the [module's documentation](self).
pub(crate) struct Platform {
    pub stack: Stack,
    /// None where no access is simulated.
    pub hardware: Option<Hardware>,
    pub meter: Meter,
    pub timing: Timing,
}

impl Platform {
    /// Applies the shootdowns that kernels asked for: to shadow tables and cores.
    #[inline]
    pub fn shoot_down(&mut self) {
        match &mut self.hardware {
            Some(hardware) => {
                self.stack.drain_invalidations(|kernel, invalidation| hardware.shoot_down(kernel, &invalidation));
            }
            None => self.stack.drain_invalidations(|_, _| {}),
        }
    }
}
