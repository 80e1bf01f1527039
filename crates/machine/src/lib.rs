// SPDX-License-Identifier: MIT OR Apache-2.0
//! The machine that runs a program over one or more kernels.
