# SPDX-License-Identifier: GPL-2.0
# An interactive shell on the serial console.
setsid sh -c 'exec sh < /dev/ttyS0 > /dev/ttyS0 2>&1'
