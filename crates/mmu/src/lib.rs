// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory-management unit: caches, TLBs, page-walk caches and walkers.
