# SPDX-License-Identifier: GPL-2.0
# Memory that holds reservations can be taken away. Boot with movablecore=.
echo 2 > /proc/sys/vm/ptemagnet
start_toucher 640 8 600
echo "# reserved $(vmstat nr_anon_reserved) pages"
n=0
for i in 8 9 10; do	# inside the movable zone; the last block has a hole
	b=/sys/devices/system/memory/memory$i
	grep -q Movable $b/valid_zones || continue
	n=$((n + 1))
	check "memory$i goes offline" sh -c "echo offline > $b/state"
	check "memory$i comes back" sh -c "echo online_movable > $b/state"
done
check "there were blocks to take" [ $n -gt 1 ]
check "reservations were returned for it" [ "$(vmstat ptemagnet_reclaimed)" -gt 1000 ]
check "the others were not" [ "$(vmstat nr_anon_reserved)" -gt 1000 ]
kill $TOUCHER
