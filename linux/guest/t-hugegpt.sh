# SPDX-License-Identifier: GPL-2.0
# The pool itself, without a host: boot with hugegpt=force.
S=/sys/kernel/debug/hugegpt/stats
field() { awk -v k="$1" '/^node/ {for (i = 1; i < NF; i++) if ($i == k) s += $(i + 1)} END {print s + 0}' $S; }
# Page tables of who has just ended are freed after an RCU grace period. Processes that look have as many at each look: their addresses
# are not random.
echo 0 > /proc/sys/kernel/randomize_va_space
used_now() { sleep 1; field used; }
# All page tables, those from elsewhere too: a pool that grows in the background has more of them at one time than at another.
tables_now() {
	sleep 1
	echo 1 > /proc/sys/vm/stat_refresh
	vmstat nr_page_table_pages
}
echo "# at boot: $(sed -n 2p $S)"
check "about one per cent of memory" [ "$(field regions)" -ge $(($(meminfo MemTotal) / 100 / 2048 - 1)) ]
check "in use" [ "$(field used)" -gt 20 ]
check "nothing went elsewhere" [ "$(field fallbacks)" = 0 ]

# 12 GiB of addresses, a page in each 2 MiB: 6144 page tables, 12 regions.
# The pool grows in the background, so that on a busy machine the first program may be too fast for it.
m=$(field made) tables=0 i=0
while [ $i -lt 20 -a $tables -le 3000 ]; do
	a=$(used_now)
	toucher 12288 512 4 > /dev/null &
	A=$!
	sleep 3
	tables=$(($(field used) - a)) i=$((i + 1))
	echo "# with 12 GiB mapped thinly: $(sed -n 2p $S)"
	wait $A
	sleep 1
done
check "the pool has grown" [ "$(field made)" -gt "$m" ]
check "tables of the program are in it" [ $tables -gt 3000 ]
b=$(used_now)
echo "# used before $a after $b"
check "all of them came back, to the page" settles_at "$a" used_now

# The same again, and then all is unmapped but for a page table in 128. What keeps regions from being empty must not keep their
# free pages, which are in a counter meanwhile.
f=0 i=0
while [ "$f" -le 3000 -a $i -lt 10 ]; do
	[ $i = 0 ] || { kill $A; wait $A 2>/dev/null; sleep 5; }
	toucher 12288 512 90 128 > /dev/null &
	A=$!
	sleep 4
	f=$(field free) i=$((i + 1))
done
# What vmstat and meminfo have is what the pool has, to the page. One process looks at both, since another has page tables of its own, a dozen;
# as some come and go meanwhile, it may have to look again.
agreed() {
	awk -v stats=$S 'BEGIN {
		refresh = "/proc/sys/vm/stat_refresh"
		for (look = 0; look < 1000 && (!look || counted != free || kb != 4 * free || node != kb); look++) {
			print 1 > refresh
			close(refresh)
			while ((getline < "/proc/vmstat") > 0)
				if ($1 == "nr_pgtable_pool")
					counted = $2
			close("/proc/vmstat")
			kb = node = -1
			while ((getline < "/proc/meminfo") > 0)
				if ($1 == "PageTablePool:")
					kb = $2
			close("/proc/meminfo")
			while ((getline < "/sys/devices/system/node/node0/meminfo") > 0)
				if ($3 == "PageTablePool:")
					node = $4
			close("/sys/devices/system/node/node0/meminfo")
			free = 0
			while ((getline < stats) > 0)
				for (i = 1; /^node/ && i < NF; i++)
					if ($i == "free")
						free += $(i + 1)
			close(stats)
		}
		print "# nr_pgtable_pool " counted ", meminfo " kb " kB, of the node " node " kB, free " free ", looks " look
		exit counted != free || kb != 4 * free || node != kb || !free
	}'
}
d=$(field dissolved) f=$(field free)
check "the pool has its high-water mark in free pages" [ "$f" -gt 3000 ]
check "vmstat and meminfo have them, to the page" agreed
echo "# with one page table in 128: $(sed -n 2p $S)"
sleep 14
echo "# and 14 s later: $(sed -n 2p $S)"
check "some are given back though nobody wants them" [ "$(field free)" -lt $((f * 3 / 4)) -a "$(field dissolved)" -gt "$d" ]
echo 2 > /proc/sys/vm/drop_caches
echo "# and on demand: $(sed -n 2p $S)"
check "all but one region's are given back on demand" [ "$(field free)" -lt 640 ]
kill $A
wait $A 2>/dev/null
sleep 6		# no region is made for five seconds
i=0
while [ "$(field free)" -lt 64 -a $i -lt 50 ]; do toucher 64 512 0 > /dev/null; usleep 100000; i=$((i + 1)); done
toucher 4096 512 1 > /dev/null

# Pressure: whole regions go back, and the machine works on.
more=0
while [ "$(field returned)" = 0 -a $more -lt 60 ]; do
	more=$((more + 4))
	toucher $(($(meminfo MemAvailable) / 1024 + more)) 1 0 || break
done
echo "# after pressure: $(sed -n 2p $S)"
check "regions were given back under pressure" [ "$(field returned)" -gt 0 ]
# Pressure may have left none that is empty. After giving one back, or failing to make one, the pool makes none for five seconds.
i=0
while [ "$(field empty)" = 0 -a $i -lt 10 ]; do
	sleep 6
	toucher 4096 512 1 > /dev/null
	used_now > /dev/null
	i=$((i + 1))
done
a=$(field returned)
echo "# before it is asked: $(sed -n 2p $S)"
echo 2 > /proc/sys/vm/drop_caches
check "and on demand, all that are not in use" [ "$(field returned)" -gt "$a" -a "$(field empty)" = 0 ]
check "nobody was killed" [ "$(vmstat oom_kill)" = 0 ]

i=0
t=$(tables_now)
while [ $i -lt 30 ]; do
	toucher 512 512 9 > /dev/null &
	usleep 20000
	kill -9 $!
	wait $! 2>/dev/null
	i=$((i + 1))
done
echo "# page tables before $t, after killing 30 $(tables_now)"
check "killed processes leave no page table" settles_at "$t" tables_now

# Where all memory is set aside by PTEMagnet, the pool still grows: alloc_contig_range() gets what is reserved.
echo 2 > /proc/sys/vm/ptemagnet
echo 100 > /proc/sys/vm/ptemagnet_threshold
# A first attempt may find a page that cannot be moved just then; the next is five seconds later, when pressure has made room. So all is
# begun anew, until it grows at once, five times at most.
i=0 made=0 taken=0
while [ $i -lt 5 -a $made = 0 ]; do
	[ $i = 0 ] || { kill $A; wait $A 2>/dev/null; sleep 6; }
	# Counted from here on: the pool is low before the program has touched all, and may take what is reserved that early.
	a=$(field made) r=$(vmstat ptemagnet_reclaimed)
	toucher $(($(meminfo MemFree) / 1024 - 24)) 8 600 > /dev/null &
	A=$!
	j=0
	while [ "$(meminfo MemFree)" -gt 32768 -a $j -lt 600 ]; do usleep 100000; j=$((j + 1)); done
	echo "# free $(meminfo MemFree) kB, reserved $(vmstat nr_anon_reserved) pages: $(sed -n 2p $S)"
	toucher 8192 512 4 > /dev/null
	made=$(($(field made) - a)) taken=$(($(vmstat ptemagnet_reclaimed) - r)) i=$((i + 1))
	echo "# made $made regions, took $taken reserved pages"
done
check "the pool grows where all memory is reserved" [ $made -gt 0 -a $taken -gt 0 ]
kill $A
wait $A 2>/dev/null
echo 0 > /proc/sys/vm/ptemagnet
