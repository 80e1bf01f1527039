// SPDX-License-Identifier: MIT OR Apache-2.0
use proptest::prelude::*;

use crate::below::Bare;
use crate::config::KernelConfig;

use super::*;

proptest! {
    /// Whatever bytes say, the kernel stays sound.
    #[test]
    fn any_bytes_are_a_program(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        let mut kernel = Kernel::new(&KernelConfig::new(PageCount(2048))).unwrap();
        let (mut bytes, mut done) = (bytes.into_iter(), 0);
        let length = bytes.len();
        while let Some(op) = Op::read(&mut bytes, Vpn(512), PageCount(1536)) {
            let _ = op.apply(&mut kernel, &mut Bare);
            done += 1;
        }
        prop_assert_eq!(done, length / 6);
        kernel.check_invariants();
    }
}
