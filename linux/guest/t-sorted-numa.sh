# SPDX-License-Identifier: GPL-2.0
# Page tables in the order of their addresses, on two nodes: where regions lie.
M=/proc/sys/vm/sorted_page_tables
S=/sys/kernel/debug/sorted_tables/stats
stat() { awk -v k="$1" '$1 == k {print $2}' $S; }
# What is kept for the kernel and for the lowest zone would stay in one piece.
cd /proc/sys/vm
KEPT="min_free_kbytes watermark_scale_factor lowmem_reserve_ratio"
for k in $KEPT; do cat $k > /tmp/$k; done
echo 0 > compaction_proactiveness
echo 256 > min_free_kbytes
echo 1 > watermark_scale_factor
echo 0 0 0 0 > lowmem_reserve_ratio
cd /
echo 1 > $M
sorter numa_bound numa_local numa_interleaved numa_later
echo 2 > $M
sorter numa_no_remote_region
echo 0 > $M
for k in $KEPT; do cat /tmp/$k > /proc/sys/vm/$k; done
check "sorted: no frame is left when processes have ended" settles_at 0 stat held
