# SPDX-License-Identifier: GPL-2.0
# A kernel with the first patches of the series: programs run, and what there is so far of the series does what it is for. Boot with
# kunit.enable=1 hugegpt=force, and with nw.suites= the suites of KUnit that are there.
mkswap /dev/ram0 > /dev/null && swapon /dev/ram0
mount -t cgroup2 none /cg && echo +memory > /cg/cgroup.subtree_control
check "programs run, and keep their data" toucher 64 1 0
M=/proc/sys/vm/ptemagnet
if [ -e $M ]; then
	echo 1 > $M
	pmtest sequential random_order dontneed fork_shares_what_is_reserved moved swapped_out memcg_is_charged memcg_single_leaf memcg_statistic killed
	check "the selftest of PTEMagnet" sh -c "ptemagnet > /tmp/selftest"
	echo 2 > $M
	check "dense programs run, everyone with reservations" toucher 64 1 0
	check "sparse ones, too" toucher 64 8 0
	sleep 1
	check "no reservation is left" no_reservation_lost
fi
S=/sys/kernel/debug/hugegpt/stats
[ -e $S ] && check "there is a pool of page tables" grep -q '^node' $S
[ -n "$NW_suites" ] && . /bin/t-kunit.sh
