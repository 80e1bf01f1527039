# SPDX-License-Identifier: GPL-2.0
# Memory pressure: nothing lost, nobody killed whom the stock kernel would not
# have killed. Boot with little memory (600 MiB).
# nw.generations=y|n: with LRU lists of generations or without, in a kernel that has both.
if [ -n "$NW_generations" ]; then
	L=/sys/kernel/mm/lru_gen/enabled
	echo $NW_generations > $L
	case "$(cat $L)" in 0x0000) _now=n ;; *) _now=y ;; esac
	check "generations of pages: $NW_generations" [ "$_now" = "$NW_generations" ]
fi
# What is on per-CPU lists is free, too, and so is slab here: that this does not grow is looked at by itself (init).
free_now() {
	settle
	awk '$1 == "MemFree:" || $1 == "Slab:" {n += $2} $1 == "count:" {n += 4 * $2} END {print n}' /proc/meminfo /proc/zoneinfo
}
oom_kills() { vmstat oom_kill; }
echo ${NW_mode:-2} > /proc/sys/vm/ptemagnet
# The daemon would be faster than the pressure.
echo 100 > /proc/sys/vm/ptemagnet_threshold

# Warm up slab caches and per-CPU lists, then compare before with after.
toucher 64 8 0 > /dev/null
before=$(free_now)
killed=$(oom_kills)

# 480 MiB reserved of which 60 are touched; then 300 MiB are wanted.
start_toucher 480 8 20
echo "# reserved $(vmstat nr_anon_reserved) pages, free $(meminfo MemFree) kB, available $(meminfo MemAvailable) kB"
[ "$(vmstat nr_anon_reserved)" -gt 50000 ] && ok "a sparse program holds reservations" || not_ok "a sparse program holds reservations"
check "available memory counts what is reserved" [ "$(meminfo MemAvailable)" -gt $(($(meminfo MemFree) + 150000)) ]
check "300 MiB can be had" toucher 300 1 0
check "reservations were reclaimed for it" [ "$(vmstat ptemagnet_reclaimed)" -gt 10000 ]
wait $TOUCHER
check "the sparse program has kept its data" [ $? = 0 ]
check "nobody was killed" [ "$(oom_kills)" = "$killed" ]

# Kill a few in the middle of their faults.
i=0
while [ $i -lt 20 ]; do
	toucher 64 8 9 > /dev/null &
	usleep 30000
	kill -9 $!
	wait $! 2>/dev/null
	i=$((i + 1))
done
sleep 1
check "killed processes leave no reservation" no_reservation_lost

# Before swap is on: a RAM disk keeps what was swapped to it.
after=$(free_now)
lost=$((before - after))
echo "# free before $before after $after"
check "as much is free as was (lost $lost kB)" [ $lost -lt 512 ]

# A cgroup that has to swap, with reservations in it.
mkswap /dev/ram0 > /dev/null && swapon /dev/ram0
mount -t cgroup2 none /cg && echo +memory > /cg/cgroup.subtree_control
mkdir /cg/p && echo 48M > /cg/p/memory.max
start_toucher_in /cg/p 128 8 8
check "a cgroup at its limit swaps" sh -c "echo 0 > /cg/p/cgroup.procs; exec toucher 80 1 0"
wait $TOUCHER
check "the sparse program has kept its data in swap" [ $? = 0 ]
check "something was swapped" [ "$(vmstat pswpout)" -gt 1000 ]
check "still nobody was killed" [ "$(oom_kills)" = "$killed" ]

# The daemon: everything is above its threshold.
reserved_now() {
	echo 1 > /proc/sys/vm/stat_refresh
	vmstat nr_anon_reserved
}
start_toucher 64 8 60
echo 1 > /proc/sys/vm/ptemagnet_threshold
check "the daemon takes all reservations back" settles_at 0 reserved_now
kill $TOUCHER
