# SPDX-License-Identifier: GPL-2.0
# How concurrent faults scale, without and with reservations, in one boot.
for round in 1 2 3; do
	for m in 0 2; do
		echo $m > /proc/sys/vm/ptemagnet
		for t in 1 2; do faultbench $t 32 6 $m; done
	done
done
