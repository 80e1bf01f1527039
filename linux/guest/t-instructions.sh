# SPDX-License-Identifier: GPL-2.0
# With the plugin harness/insncount.c, -icount, one CPU: see instructions() in harness/suites.py.
M=/proc/sys/vm/ptemagnet
opbench 16 1 warm
for i in 1 2; do
	opbench 16 3 off
	[ -e $M ] || continue
	echo 1 > $M	# on, but not for this process
	opbench 16 3 others
	echo 2 > $M
	opbench 16 3 on
	echo 0 > $M
done
