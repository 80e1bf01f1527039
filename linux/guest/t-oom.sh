# SPDX-License-Identifier: GPL-2.0
# How much can be allocated before somebody is killed: the same on the stock kernel and with reservations for everyone.
# Boot with little memory (400 MiB). nw.mode= is the value of vm.ptemagnet where there is one (2).
M=/proc/sys/vm/ptemagnet
[ -e $M ] && echo ${NW_mode:-2} > $M
mount -t cgroup2 none /cg && echo +memory > /cg/cgroup.subtree_control
mkdir /cg/l && echo 48M > /cg/l/memory.max
limited() { (echo 0 > /cg/l/cgroup.procs; exec "$@"); }

grower 1 warm > /dev/null
for i in 1 2 3; do
	grown 1 "machine, dense"
	grown 8 "machine, sparse"
	# Somebody else holds reservations that are in the way.
	start_toucher 160 8 600
	grown 1 "machine, dense beside sparse"
	kill $TOUCHER
	wait $TOUCHER 2>/dev/null
	limited grower 1 "cgroup, dense"
	limited grower 8 "cgroup, sparse"
	start_toucher_in /cg/l 32 8 600
	limited grower 1 "cgroup, dense beside sparse"
	kill $TOUCHER
	wait $TOUCHER 2>/dev/null
done
if [ -e $M ]; then
	# The OOM reaper has taken most of their memory apart.
	sleep 1
	check "those killed for lack of memory leave no reservation" no_reservation_lost
fi
