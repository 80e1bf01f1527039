# SPDX-License-Identifier: GPL-2.0
# With the plugin harness/insncount.c, four CPUs in turns: see scaling() in harness/suites.py.
M=/proc/sys/vm/ptemagnet
faultbench 4 2 1 warm own
for m in 0 2; do
	[ -e $M ] || [ $m = 0 ] || continue
	[ -e $M ] && echo $m > $M
	for area in own shared; do
		for t in 1 2 4; do faultbench $t 4 10 $m $area; done
	done
done
