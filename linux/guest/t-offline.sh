# SPDX-License-Identifier: GPL-2.0
# Memory that holds reservations can be taken away. Boot with movablecore=.
echo 2 > /proc/sys/vm/ptemagnet
toucher 400 8 30 &
A=$!
sleep 2
echo "# reserved $(vmstat nr_anon_reserved) pages"
n=0
for b in /sys/devices/system/memory/memory*; do
	grep -q Movable "$b/valid_zones" || continue
	[ "$(cat "$b/state")" = online ] || continue
	n=$((n + 1))
	check "${b##*/} goes offline" sh -c "echo offline > $b/state"
	check "${b##*/} comes back" sh -c "echo online_movable > $b/state"
	[ $n = 2 ] && break
done
check "there was a block to take" [ $n -gt 0 ]
check "reservations were returned for it" [ "$(vmstat ptemagnet_reclaimed)" -gt 0 ]
kill $A
