# SPDX-License-Identifier: GPL-2.0
# Races, for nw.seconds, with everything on; then nothing may be left. Boot with movablecore=, where memory can be taken away.
mkswap /dev/ram0 > /dev/null && swapon /dev/ram0
mount -t cgroup2 none /cg && echo +memory > /cg/cgroup.subtree_control
mkdir -p /cg/s
echo 64M > /cg/s/memory.max
[ -e /proc/sys/vm/ptemagnet ] && echo 2 > /proc/sys/vm/ptemagnet
N=${NW_seconds:-20}
echo madvise > /sys/kernel/mm/transparent_hugepage/enabled
check "races" stress "$N" 1
# Memory of the movable zone goes and comes back; an attempt ends where a page cannot be moved in time.
BLOCKS=$(grep -l Movable /sys/devices/system/memory/memory*/valid_zones 2>/dev/null)
gone=0 back=0
(echo 0 > /cg/s/cgroup.procs; exec stress "$N" 2) > /tmp/s2 &
S=$!
while kill -0 $S 2>/dev/null; do
	echo 2 > /proc/sys/vm/drop_caches
	echo 1 > /proc/sys/vm/compact_memory
	for b in $BLOCKS; do
		if timeout 20 sh -c "echo offline > ${b%/*}/state" 2>/dev/null; then
			gone=$((gone + 1))
			sleep 0.2
			echo online_movable > "${b%/*}/state" && back=$((back + 1))
		fi
	done
	sleep 0.5
done
wait $S
check "races at a memcg limit, while memory is reclaimed, compacted, and taken away" [ $? = 0 ]
[ -z "$BLOCKS" ] || check "memory went ($gone times) and came back" [ $gone -gt 0 -a $gone = $back ]
cat /tmp/s2
sleep 1
echo 1 > /proc/sys/vm/stat_refresh
echo "# $(grep '^ptemagnet\|^nr_anon_reserved' /proc/vmstat | tr '\n' ' ')"
check "no reservation is left" no_reservation_lost
# The kernel puts the counts of the CPUs together every two seconds.
if [ -e /cg/s/memory.stat ]; then
	sleep 5
	check "none is counted in the cgroup" [ "$(awk '$1 == "anon_reserved" {print $2}' /cg/s/memory.stat)" = 0 ]
fi
[ -e /sys/kernel/debug/hugegpt/stats ] && cat /sys/kernel/debug/hugegpt/stats
# Where all tables were sorted: no new ones are from here on, so that this script adds nothing to what it counts.
D=/sys/kernel/debug/sorted_tables
if [ "$(cat /proc/sys/vm/sorted_page_tables 2>/dev/null)" = 2 ]; then
	echo 0 > /proc/sys/vm/sorted_page_tables
	echo "# sorted: $(tr '\n' ' ' < $D/stats)"
	check "sorted: tables had their places, of which the shrinker has taken some" awk '{n[$1] = $2} END {exit n["taken"] < 100 || !n["given_back"]}' $D/stats
	check "sorted: no process that has ended has a region" settles_at "" sh -c "awk 'NR > 1 {print \$1}' $D/processes | while read -r p; do [ -d /proc/\$p ] || echo \$p; done"
	check "sorted: what is counted is what the regions have" settles_at "0 0" sh -c "awk '
		FILENAME ~ /stats/ {n[\$1] = \$2}
		FILENAME ~ /regions/ && FNR > 1 {held += \$6 + \$7}
		FILENAME ~ /processes/ && FNR > 1 {fresh += \$2}
		END {print n[\"held\"] - held, n[\"fresh\"] - fresh}' $D/stats $D/regions $D/processes"
fi
