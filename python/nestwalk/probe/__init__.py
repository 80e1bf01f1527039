# SPDX-License-Identifier: MIT OR Apache-2.0
"""What page walks cost on the machine that this runs on, from chases of pointers that need no privilege.

:mod:`nestwalk.probe.cells` measures; :mod:`nestwalk.probe.statistics` and :mod:`nestwalk.probe.knees` say
what is sure of it; :mod:`nestwalk.probe.probing` answers questions about this machine; and
:mod:`nestwalk.probe.validation` holds the simulator against it.
"""
