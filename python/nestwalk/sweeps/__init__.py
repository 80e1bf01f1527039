# SPDX-License-Identifier: MIT OR Apache-2.0
"""``nestwalk sweep``: programs, machines, techniques, seeds and any other keys, each against each."""
