# SPDX-License-Identifier: GPL-2.0
# With the plugin harness/insncount.c, -icount, one CPU: see instructions() in harness/suites.py.
faultbench 1 16 1 warm
for i in 1 2; do
	faultbench 1 16 4 off
	[ -e /proc/sys/vm/ptemagnet ] || continue
	echo 2 > /proc/sys/vm/ptemagnet
	faultbench 1 16 4 on
	echo 0 > /proc/sys/vm/ptemagnet
done
