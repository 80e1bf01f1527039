# SPDX-License-Identifier: GPL-2.0
# Huge pages on fragmented memory: linux/data/README.md, superpages. What is asked for is on the kernel's command line.
T=/sys/kernel/mm/transparent_hugepage
echo always > $T/enabled
if [ "$NW_fill" = scripts ]; then
	# They fragment memory under Linux's settings.
	echo always > $T/defrag
	echo 10000 > $T/khugepaged/scan_sleep_millisecs
else
	echo never > $T/defrag
	echo 600000 > $T/khugepaged/scan_sleep_millisecs
fi
[ ! -e /proc/sys/vm/compaction_proactiveness ] || echo 0 > /proc/sys/vm/compaction_proactiveness
# Boots of one case differ in this: so many MiB of a file are there before.
dd if=/dev/zero of=/tmp/before bs=1M count="$NW_before" 2>/dev/null
awk '/^Node/ {zone = $4} $1 ~ /^(min|low|high)$/ {sum[$1] += $2} $1 == "managed" {sum[$1] += $2}
	END {printf "WATERMARKS {\"min\":%d,\"low\":%d,\"high\":%d,\"managed\":%d}\n", sum["min"], sum["low"], sum["high"], sum["managed"]}' /proc/zoneinfo
superpages "$NW_memory" "$NW_need" "$NW_percent" "$NW_fill" "$NW_advice" "$NW_seconds"
