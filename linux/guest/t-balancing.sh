# SPDX-License-Identifier: GPL-2.0
# NUMA balancing against reservations, for nw.seconds. Boot with two nodes, a CPU on each.
B=/sys/kernel/debug/sched/numa_balancing
check "there are two nodes" [ -d /sys/devices/system/node/node1 ]
check "NUMA balancing is on" [ "$(cat /proc/sys/kernel/numa_balancing)" = 1 ]
# From the start, as often as it can, and at each time as much as the region has.
echo 0 > $B/scan_delay_ms
echo 10 > $B/scan_period_min_ms
echo 40 > $B/scan_period_max_ms
echo 16 > $B/scan_size_mb
mkswap /dev/ram0 > /dev/null && swapon /dev/ram0
echo 2 > /proc/sys/vm/ptemagnet

# change_nodes PID: its threads, half of them on each CPU, change places until it is gone.
change_nodes() {
	_first=1
	while kill -0 $1 2>/dev/null; do
		_cpu=$_first _first=$((3 - _first))
		for _t in /proc/$1/task/*; do
			taskset -p $_cpu ${_t##*/} > /dev/null 2>&1
			_cpu=$((3 - _cpu))
		done
		sleep 0.5
	done
}
hints=$(vmstat numa_hint_faults) moved=$(vmstat numa_pages_migrated) taken=$(vmstat ptemagnet_taken)
stress "${NW_seconds:-20}" 1 > /tmp/s1 &
S=$!
change_nodes $S
wait $S
check "races while pages are moved" [ $? = 0 ]
cat /tmp/s1
hints=$(($(vmstat numa_hint_faults) - hints))
moved=$(($(vmstat numa_pages_migrated) - moved))
taken=$(($(vmstat ptemagnet_taken) - taken))
echo "# balancing: $hints hinting faults, $moved pages moved, $taken touches that found a reserved page"
check "there were hinting faults" [ $hints -gt 1000 ]
check "pages were moved to where they are used" [ $moved -gt 100 ]
check "pages were taken from reservations" [ $taken -gt 1000 ]
sleep 1
check "no reservation is left" no_reservation_lost
