# SPDX-License-Identifier: GPL-2.0
# With the plugin harness/insncount.c, -icount, one CPU: see crowd() in harness/suites.py.
echo 0 > /proc/sys/kernel/randomize_va_space
echo 2 > /proc/sys/vm/sorted_page_tables
for n in 1 1 $NW_processes $NW_processes; do
	check "sorted: what $n processes take" sorter crowd $n $n
done
