# SPDX-License-Identifier: GPL-2.0
# Inside the nested guest: page tables of every level come and go.
S=/sys/kernel/debug/hugegpt/stats
stats() { [ -e $S ] && sed "s/^/HGPT $1 /" $S; }
used() { awk '/^node/ {for (i = 1; i < NF; i++) if ($i == "used") u += $(i + 1)} END {print u + 0}' $S; }
stats boot
frag 32 seq l2 > /dev/null
toucher 96 64 0
i=0
while [ $i -lt 8 ]; do
	(toucher 8 3 0 > /dev/null; corun 4 $i /tmp/r.$i & sleep 1; kill $!) &
	i=$((i + 1))
done
wait
stats busy
if [ -e $S ]; then
	# Processes that look have as many page tables at each look.
	echo 0 > /proc/sys/kernel/randomize_va_space
	sleep 1
	a=$(used)
	for i in 1 2 3 4 5 6 7 8 9 10 11 12; do toucher 4096 512 0 > /dev/null; done
	sleep 1
	echo "# pool pages used before $a after $(used)"
	check "page-table pages come back to the pool, all of them" settles_at "$a" used
fi
stats end
