# SPDX-License-Identifier: GPL-2.0
# Two processes as the kernel shows them here, and as record keeps them for nestwalk inspect: frag, which measures its own
# memory, and a sparse one, whose reservations debugfs counts. nw.mode: vm.ptemagnet. nw.sorted: vm.sorted_page_tables.
[ -e /proc/sys/vm/ptemagnet ] && echo "${NW_mode:-0}" > /proc/sys/vm/ptemagnet
start_corunners 12 8 150
# From here on, as when the recordings were made: the co-runners' tables are not sorted.
[ -n "$NW_sorted" ] && echo "$NW_sorted" > /proc/sys/vm/sorted_page_tables
mkfifo /tmp/out
frag 32 seq inspect 1 /tmp/go > /tmp/out &
FRAG=$!
read -r line < /tmp/out
echo "$line"
toucher 4 8 600 > /tmp/touched &
SPARSE=$!
while ! grep -q TOUCH /tmp/touched; do sleep 0.2; done
stop_corunners
[ -n "$NW_sorted" ] && sed -n "s/^$FRAG .*/REGION &/p" /sys/kernel/debug/sorted_tables/regions
[ -n "$NW_sorted" ] && awk '$1 == "over_bound" {print "#", $0}' /sys/kernel/debug/sorted_tables/stats
awk -v p=$SPARSE '$1 == p {print "RESERVED", $3, $4}' /sys/kernel/debug/ptemagnet/tables
for one in frag:$FRAG sparse:$SPARSE; do
	record "${one#*:}" /tmp/rec
	echo "RECORD ${one%:*} $(gzip -9 < /tmp/rec | base64 | tr -d '\n')"
done
kill $FRAG $SPARSE
