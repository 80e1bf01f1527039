# SPDX-License-Identifier: MIT OR Apache-2.0
"""``nestwalk capture``: runs a program under QEMU's user mode (or valgrind) and makes a trace of its accesses.

:mod:`.tools` finds QEMU and builds the plugin, :mod:`.program` says what is to be run, :mod:`.session` runs it,
:mod:`.view` shows how far it is, :mod:`.commands` is the verb. The plugin's C source is in ``plugin/``.
"""
