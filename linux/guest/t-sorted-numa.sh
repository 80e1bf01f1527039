# SPDX-License-Identifier: GPL-2.0
# Page tables in the order of their addresses, on two nodes: where regions lie.
M=/proc/sys/vm/sorted_page_tables
S=/sys/kernel/debug/sorted_tables/stats
stat() { awk -v k="$1" '$1 == k {print $2}' $S; }
keep_nothing
echo 1 > $M
sorter numa_bound numa_local numa_interleaved numa_later
echo 2 > $M
sorter numa_no_remote_region
echo 0 > $M
keep_again
check "sorted: no frame is left when processes have ended" settles_at 0 stat held
