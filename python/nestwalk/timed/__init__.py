# SPDX-License-Identifier: MIT OR Apache-2.0
"""A program timed by turns with 4 KiB and with huge pages, and the simulator's time held against that."""
