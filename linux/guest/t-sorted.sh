# SPDX-License-Identifier: GPL-2.0
# Page tables in the order of their addresses: the rules of sorter.c, and that what is set aside comes back.
M=/proc/sys/vm/sorted_page_tables
S=/sys/kernel/debug/sorted_tables/stats
RULES="dense backwards not_chosen grows unmapped dropped moved forked upper_level one_gib stack reasons file_mapping huge threads"
# Where page tables have five levels.
grep -qw la57 /proc/cpuinfo && RULES="$RULES high"
stat() { awk -v k="$1" '$1 == k {print $2}' $S; }
[ -e /sys/kernel/mm/transparent_hugepage/enabled ] && echo madvise > /sys/kernel/mm/transparent_hugepage/enabled

# Off: nothing is set aside, even for who asks.
sorter dense > /dev/null
check "sorted: off is off" [ "$(stat held) $(stat taken)" = "0 0" ]
echo 1 > $M
# What only the first run leaves behind: slab, page cache.
sorter $RULES > /dev/null
settle
# Pages on per-CPU lists are free, too. KASAN keeps freed objects, which are slab: then that counts as free as well.
unused() {
	awk -v slab="$NW_quarantine" '$1 == "MemFree:" || (slab && $1 == "Slab:") {n += $2} $1 == "count:" {n += 4 * $2} END {print n}' \
		/proc/meminfo /proc/zoneinfo
}
FREE=$(unused)
sorter $RULES
settles_at "0 0" sh -c "awk '\$1 == \"held\" || \$1 == \"fresh\" {printf \"%s%s\", n++ ? \" \" : \"\", \$2}' $S"
check "sorted: no frame is left when processes have ended" [ "$(stat held) $(stat fresh)" = "0 0" ]
settle
LOST=$((FREE - $(unused)))
echo "# sorted: $LOST kB less are free"
# Most rules have a region of 2048 kB, the largest size.
check "sorted: memory is free again" [ $LOST -lt 512 ]

# One page in each GiB: a region of 2 MiB each time, up to the bound of 1 % of memory.
sorter sparse 200 1000 > /tmp/sparse &
SPARSE=$!
while ! grep -q SPARSE /tmp/sparse; do sleep 0.1; done
FRESH=$(stat fresh) BOUND=$(($(meminfo MemTotal) / 400))
echo "# sorted: $FRESH pages set aside for a sparse program, $BOUND allowed, $(stat smaller) regions smaller for that"
check "sorted: what is set aside is bounded" [ $FRESH -gt 0 -a $FRESH -le $BOUND -a "$(stat smaller)" -gt 0 ]
# Who comes then has a share of it.
sorter dense > /tmp/dense
cat /tmp/dense
echo "# sorted: $(stat given_up) never-used pages given up for that, $(stat fresh) left"
check "sorted: who has most gives up some for a program that comes later" [ "$(stat given_up)" -gt 0 -a "$(stat fresh)" -le $BOUND ]
grower 1 all > /dev/null
echo "# sorted: $(stat given_back) pages given back when memory was short, $(stat fresh) of $FRESH left"
check "sorted: what is set aside is given back when memory is short" [ "$(stat given_back)" -gt 0 -a $(($(stat fresh) * 10)) -le $FRESH ]
check "sorted: the sparse program goes on" kill -0 $SPARSE
kill $SPARSE
wait $SPARSE 2>/dev/null
check "sorted: and leaves nothing" settles_at 0 stat held

# For everyone, while programs begin and end, and all of their memory is verified.
echo 2 > $M
check "sorted: programs run, everyone with sorted tables" toucher 64 1 0
# One that begins after twelve others has what it has alone, whatever those have set aside for stacks that are moved. At the same
# address both times: a table at an end of its mapping may be a neighbour's.
start_late() {
	RANDOM_WAS=$(cat /proc/sys/kernel/randomize_va_space)
	echo 0 > /proc/sys/kernel/randomize_va_space
	frag 32 seq late 1 /tmp/go > /tmp/late &
	LATE=$!
	read -r line < /tmp/late
	echo "$RANDOM_WAS" > /proc/sys/kernel/randomize_va_space
	PLACED=$(awk -v p=$LATE '$1 == p && $2 == 1 {n += $6} END {print n + 0}' /sys/kernel/debug/sorted_tables/regions)
	echo "# sorted: $(head -n 1 /sys/kernel/debug/sorted_tables/processes)"
	echo "# sorted: $(grep "^$LATE " /sys/kernel/debug/sorted_tables/processes)"
}
stop_late() {
	kill $LATE
	wait $LATE 2>/dev/null
}
mkfifo /tmp/late
start_late
ALONE=$PLACED
stop_late
start_corunners 12 8 150
start_late
echo "# sorted: $ALONE tables of the lowest level in regions alone, $PLACED after twelve others"
check "sorted: a program that begins after twelve others has regions" [ $PLACED = $ALONE -a $ALONE -ge 15 ]
echo "# sorted: $(stat fresh) pages set aside by all"
check "sorted: thirteen programs set little aside" [ "$(stat fresh)" -lt $((BOUND / 4)) ]
stop_corunners
stop_late
echo 0 > $M
check "sorted: switched off, nothing new is taken" sh -c "A=\$(awk '\$1 == \"taken\" {print \$2}' $S); toucher 16 1 0; [ \$A = \$(awk '\$1 == \"taken\" {print \$2}' $S) ]"

# That no complaint of lockdep means something: it has seen the locks of the series, in each order that there is.
saw() { check "sorted: lockdep has seen $2 taken under $1" lockdep_saw "$1" "$2"; }
if [ -e /proc/lockdep ]; then
	saw "&mm->mmap_lock" "&sorted->change"
	saw "&sorted->change" fs_reclaim
	saw "&sorted->change" all_mutex
	saw "&sorted->change" "&mt->ma_lock"
	saw all_mutex "&mt->ma_lock"
	# Where most faults hold only the lock of their mapping.
	grep -q ' &vma->vm_lock->lock$' /proc/lockdep && saw "&vma->vm_lock->lock" "&sorted->change"
fi
