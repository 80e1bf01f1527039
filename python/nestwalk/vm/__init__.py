# SPDX-License-Identifier: MIT OR Apache-2.0
"""Whole virtual machines: accesses of a process in a QEMU guest, and the page tables that its kernel made."""
