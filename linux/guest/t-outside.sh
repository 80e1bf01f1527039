# SPDX-License-Identifier: GPL-2.0
# Hold memory still for harness/outside.py, which ends the VM. nw.mode: vm.ptemagnet. nw.corunners: how many while the memory is
# touched; they are gone, unless nw.loud, when it is looked at. nw.sorted: vm.sorted_page_tables. nw.sorter: what sorter does instead
# of frag. nw.aged: all of memory was in use once, and of each so many KiB one page still is; but for 48 MiB, or with nw.whole=0 really
# all of it. nw.asks: frag asks for sorted tables.
[ -e /proc/sys/vm/ptemagnet ] && echo "${NW_mode:-0}" > /proc/sys/vm/ptemagnet
[ -n "$NW_sorted" ] && echo "$NW_sorted" > /proc/sys/vm/sorted_page_tables
# The same addresses in every boot.
echo 0 > /proc/sys/kernel/randomize_va_space
if [ -n "$NW_aged" -a "$NW_whole" = 0 ]; then
	# What is left is movable: the kernel would mend it within seconds, by itself.
	keep_nothing
	sorter age 0 "$NW_aged"
	keep_again
elif [ -n "$NW_aged" ]; then
	sorter age $(($(meminfo MemFree) / 1024 - 48)) "$NW_aged"
fi
start_corunners "${NW_corunners:-4}" 8 $((${NW_seed:-1} * 100 + 50))
mkfifo /tmp/out
if [ -n "$NW_sorter" ]; then
	sorter "$NW_sorter" "$NW_mib" /tmp/go > /tmp/out &
else
	sed 's/^/BUDDY /' /proc/buddyinfo
	${NW_asks:+sorter run} frag "${NW_mib:-64}" seq outside 1 /tmp/go > /tmp/out &
fi
# Without a process of its own, so that nobody but frag runs once this waits for more.
while read -r line; do
	echo "$line"
	case $line in
	FRAG*)
		[ -n "$NW_sorted" ] && sed -n "s/^tgid .*/REGION &/p;s/^$! .*/REGION &/p" /sys/kernel/debug/sorted_tables/regions
		[ -n "$NW_sorted" ] && sed -n "s/^tgid .*/PROCESS &/p;s/^$! .*/PROCESS &/p" /sys/kernel/debug/sorted_tables/processes
		[ -n "$NW_sorted" ] && sed 's/^/STAT /' /sys/kernel/debug/sorted_tables/stats
		[ -n "$NW_loud" ] || stop_corunners
		: > /tmp/go
		;;
	HOLD*) echo > /tmp/go ;;
	esac
done < /tmp/out
