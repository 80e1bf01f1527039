# SPDX-License-Identifier: GPL-2.0
# What PTEMagnet promises, one by one. nw.only=NAME,... runs some of them.
mkswap /dev/ram0 > /dev/null && swapon /dev/ram0
mount -t cgroup2 none /cg && echo +memory > /cg/cgroup.subtree_control
echo 1 > /proc/sys/vm/ptemagnet
pmtest $(echo "$NW_only" | tr , ' ')
[ -n "$NW_only" ] || ptemagnet | grep -v '^#'	# the kernel's own selftest
[ -n "$NW_numa" ] && for d in /sys/devices/system/node/node*; do echo "# $d $(cat "$d/meminfo" | grep MemTotal)"; done
[ -e /sys/kernel/tracing/events/ptemagnet ] && {
	echo 1 > /sys/kernel/tracing/events/ptemagnet/enable
	pmtest dontneed > /dev/null
	for e in reserve take release; do
		check "tracepoint ptemagnet_$e" grep -q "ptemagnet_$e: address=" /sys/kernel/tracing/trace
	done
	echo 0 > /sys/kernel/tracing/events/ptemagnet/enable
}
echo 2 > /proc/sys/vm/ptemagnet
start_toucher 4 8 600
check "debugfs shows the reservations of a process" awk -v p=$TOUCHER '$1 == p && $4 >= 896 {f = 1} END {exit !f}' \
	/sys/kernel/debug/ptemagnet/tables
kill $TOUCHER
wait
