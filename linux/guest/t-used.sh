# SPDX-License-Identifier: GPL-2.0
# A recipe that makes a memory used, and what a program then gets of it (harness/used.py). nw.seed=N seeds the co-runners;
# nw.fresh=1: without the recipe.
S=${NW_seed:-1}
FILES=20000 ROUNDS=3
if [ -z "$NW_fresh" ]; then
	# Most of the memory, page by page in random order; and back again, in the order of addresses.
	frag 800 rand filled $((S * 7919 + 1)) &
	while kill -0 $! 2>/dev/null; do
		meminfo MemFree | sed 's/^/MEMFREE /'
		sleep 1
	done
	start_corunners 6 64 $((S * 100))
	_r=0
	while [ $_r -lt $ROUNDS ]; do
		# Inodes and directory entries come and go, of which one in ten stays.
		mkdir -p /tmp/files.$_r
		cd /tmp/files.$_r
		_i=0
		while [ $_i -lt $FILES ]; do
			: > $_i
			_i=$((_i + 1))
		done
		rm *[1-9]
		cd /
		_r=$((_r + 1))
	done
	stop_corunners
fi
sleep 1
sed 's/^/TYPES /' /proc/pagetypeinfo
sed 's/^/ZONES /' /proc/zoneinfo
gzip -c < /proc/kpageflags | base64 | sed 's/^/FLAGS /'
sed -n 's/^\(MemTotal\|MemFree\|Slab\|SUnreclaim\|PageTables\|Shmem\|AnonPages\):/MEMORY \1/p' /proc/meminfo
frame_runs 16 64 256 | sed 's/^/RUNS /'
rm -rf /tmp/files.*
