// SPDX-License-Identifier: MIT OR Apache-2.0
//! The one kernel: processes, VMAs, page faults and memory managers.
