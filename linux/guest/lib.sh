# SPDX-License-Identifier: GPL-2.0
# Shell helpers of the guest-side tests.
ok() { echo "ok - $*"; }
not_ok() { echo "not ok - $*"; }
check() { # check DESCRIPTION COMMAND...
	_d=$1
	shift
	if "$@"; then ok "$_d"; else not_ok "$_d"; fi
}
meminfo() { awk -v k="$1:" '$1 == k {print $2}' /proc/meminfo; }
vmstat() { awk -v k="$1" '$1 == k {print $2}' /proc/vmstat; }

# grown ARGUMENTS: of grower, and the pages that were on per-CPU lists when the OOM killer of the machine came. Linux 6.12 does not always
# empty these before: up to 5,296 pages were there, which is more than what is compared.
grown() {
	grower "$@"
	echo "PER_CPU $(dmesg | sed -n 's/.* free:[0-9]* free_pcp:\([0-9]*\) .*/\1/p' | tail -n 1)"
}

# start_toucher ARGUMENTS: of toucher. Returns once it has touched its memory, however long that takes on a busy machine; it is $TOUCHER.
start_toucher() { start_toucher_in "" "$@"; }
# start_toucher_in CGROUP ARGUMENTS
start_toucher_in() {
	: > /tmp/touched
	(
		[ -z "$1" ] || echo 0 > "$1/cgroup.procs"
		shift
		exec toucher "$@"
	) > /tmp/touched &
	TOUCHER=$!
	while kill -0 $TOUCHER 2>/dev/null && ! grep -q TOUCH /tmp/touched; do sleep 0.1; done
}

# settles_at VALUE COMMAND...: whether it prints that within half a minute.
settles_at() {
	_wanted=$1 _i=0
	shift
	while [ $_i -lt 150 ] && [ "$("$@")" != "$_wanted" ]; do
		sleep 0.2
		_i=$((_i + 1))
	done
	[ $_i -lt 150 ]
}

# start_corunners COUNT MIB SEED: returns once each has finished a first round.
start_corunners() {
	CORUNNERS=
	rm -f /tmp/ready.*
	_i=0
	while [ $_i -lt "$1" ]; do
		corun "$2" $(($3 + _i)) /tmp/ready.$_i &
		CORUNNERS="$CORUNNERS $!"
		_i=$((_i + 1))
	done
	while [ "$(ls /tmp/ready.* 2>/dev/null | wc -l)" -lt "$1" ]; do sleep 0.2; done
}
stop_corunners() {
	kill $CORUNNERS
	wait $CORUNNERS 2>/dev/null
	rm -f /tmp/corun.* /tmp/ready.*
	CORUNNERS=
}
# Nobody who is gone holds a reservation; and what is counted is what the tables have, to the page: with these emptied it is 0.
no_reservation_lost() {
	_mode=$(cat /proc/sys/vm/ptemagnet) _lost=
	echo 1 > /proc/sys/vm/ptemagnet		# from here on not for what this function runs
	for _t in $(awk 'NR > 1 && $4 > 0 {print $1}' /sys/kernel/debug/ptemagnet/tables); do
		[ -d /proc/$_t ] || _lost="$_lost $_t"
	done
	echo 0 > /proc/sys/vm/ptemagnet
	echo 1 > /proc/sys/vm/stat_refresh
	_n=$(vmstat nr_anon_reserved)
	echo $_mode > /proc/sys/vm/ptemagnet
	[ -z "$_lost" -a "$_n" = 0 ] || { echo "# tables of dead processes:$_lost; $_n pages reserved in no table"; false; }
}
# lockdep_saw OUTER INNER: whether lockdep has seen a lock of class INNER taken when one of class OUTER was the last that was held.
lockdep_saw() {
	awk -v outer="^$1(#[0-9]+)?\$" -v inner="^$2(#[0-9]+)?\$" '
		/^ ->/ { found += held && $NF ~ inner; next }
		{ held = $NF ~ outer }
		END { exit !found }' /proc/lockdep
}
# Nothing is kept for the kernel and for the lowest zone, which would stay in one piece, until keep_again; and nothing is compacted by
# itself, then and later.
KEPT="min_free_kbytes watermark_scale_factor lowmem_reserve_ratio"
keep_nothing() {
	for _k in $KEPT; do cat /proc/sys/vm/$_k > /tmp/$_k; done
	echo 0 > /proc/sys/vm/compaction_proactiveness
	echo 256 > /proc/sys/vm/min_free_kbytes
	echo 1 > /proc/sys/vm/watermark_scale_factor
	echo 0 0 0 0 > /proc/sys/vm/lowmem_reserve_ratio
}
keep_again() {
	for _k in $KEPT; do cat /tmp/$_k > /proc/sys/vm/$_k; done
}
# What MemFree can be compared after: caches dropped, per-CPU lists drained. The
# latter is a side effect of trying to take memory away that cannot be taken.
settle() {
	sync
	sleep 0.3
	echo 3 > /proc/sys/vm/drop_caches
	_b=/sys/devices/system/memory/memory1/state
	[ -e $_b ] || return 0
	echo offline 2>/dev/null > $_b
	[ "$(cat $_b)" = online ] || echo online > $_b
	sleep 0.3
}
