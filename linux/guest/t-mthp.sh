# SPDX-License-Identifier: GPL-2.0
# One way to have neighbouring frames, or none, on a fresh machine: nw.way=none|mthp|ptemagnet. See harness/mthp.py.
# nw.cost=1: only instructions, with the plugin harness/insncount.c. nw.swap=1: only a cgroup at its limit.
T=/sys/kernel/mm/transparent_hugepage
# The programs' memory may have folios.
export NESTWALK_FOLIOS=1
echo never > $T/enabled
for f in $T/hugepages-*/enabled; do [ -e "$f" ] && echo never > "$f"; done
case "$NW_way" in
mthp)
	echo always > $T/hugepages-32kB/enabled
	check "32 KiB folios are on" grep -q '\[always\]' $T/hugepages-32kB/enabled
	[ "$(cat /proc/sys/vm/ptemagnet)" = 0 ] || not_ok "reservations are off"
	;;
ptemagnet)
	echo 2 > /proc/sys/vm/ptemagnet
	check "reservations are on" [ "$(cat /proc/sys/vm/ptemagnet)" = 2 ]
	;;
none)
	check "both are off" [ "$(cat /proc/sys/vm/ptemagnet)" = 0 ]
	;;
esac
if [ -n "$NW_cost" ]; then
	# As in t-instructions.sh.
	echo 0 > /proc/sys/kernel/randomize_va_space
	# Until the threads of a kernel that has just booted are done. Virtual time: it costs nothing.
	sleep 60
	opbench 16 1 warm 0
	opbench 16 1 "$NW_way" 0
	opbench 16 1 "$NW_way" 0
	return
fi
if [ -n "$NW_swap" ]; then
	# A cgroup that has to swap, to a RAM disk.
	mkswap /dev/ram0 > /dev/null && swapon /dev/ram0
	mount -t cgroup2 none /cg && echo +memory > /cg/cgroup.subtree_control
	mkdir /cg/l && echo 48M > /cg/l/memory.max
	limited() { (echo 0 > /cg/l/cgroup.procs; exec "$@"); }
	limited swapper 128 8 3 sparse
	limited swapper 64 1 3 dense
	# Not by limited(), whose program would be a child of $HOLDER, and stay.
	(echo 0 > /cg/l/cgroup.procs; exec toucher 128 8 600) > /tmp/touched &
	HOLDER=$!
	while ! grep -q TOUCH /tmp/touched; do sleep 0.2; done
	limited swapper 24 1 3 "dense beside sparse"
	kill $HOLDER
	wait $HOLDER 2>/dev/null
	for f in anon_fault_alloc anon_fault_fallback split_deferred swpout swpout_fallback; do
		echo "COUNTER $f $(cat $T/hugepages-32kB/stats/$f)"
	done
	grep ptemagnet /proc/vmstat | sed 's/^/COUNTER /'
	return
fi
S=${NW_seed:-1}
folios 64 fresh
start_corunners 12 8 $((S * 100 + 50))
frag 128 seq corunners
frag 128 rand corunners
stop_corunners
frag 128 seq aged
folios 64 aged
grown 1 dense
grown 8 sparse
toucher 256 8 600 > /tmp/touched &
HOLDER=$!
while ! grep -q TOUCH /tmp/touched; do sleep 0.2; done
grown 1 "dense beside sparse"
kill $HOLDER
wait $HOLDER 2>/dev/null
