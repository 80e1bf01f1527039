# SPDX-License-Identifier: GPL-2.0
# With the plugin harness/insncount.c, -icount, one CPU: see instructions() in harness/suites.py.
M=/proc/sys/vm/ptemagnet
opbench 16 1 warm
opbench 16 2 off
if [ -e $M ]; then
	echo 1 > $M	# on, but not for this process
	opbench 16 2 others
	echo 2 > $M
	opbench 16 2 on
fi
