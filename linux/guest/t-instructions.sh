# SPDX-License-Identifier: GPL-2.0
# With the plugin harness/insncount.c, -icount, one CPU: see instructions() in harness/suites.py. nw.mib: of so much memory, and
# then without the big steps.
M=/proc/sys/vm/ptemagnet
# The same addresses, and so the same number of page tables, in every run.
echo 0 > /proc/sys/kernel/randomize_va_space

# Twice: the harness takes the lesser, since a timer interrupt, or a page cleared for something else, is more than some steps differ by.
measure() {
	opbench "${NW_mib:-16}" 1 "$1" ${NW_mib:+0}
	opbench "${NW_mib:-16}" 1 "$1" ${NW_mib:+0}
}
opbench "${NW_mib:-16}" 1 warm ${NW_mib:+0}
measure off
# Before PTEMagnet is on, which leaves the lists of free pages otherwise than it found them.
S=/proc/sys/vm/sorted_page_tables
if [ -e $S ] && [ -z "$NW_short" ]; then
	echo 2 > $S
	measure sorted
	echo 0 > $S
fi
if [ -e $M ]; then
	# on, but not for this process
	[ -n "$NW_short" ] || { echo 1 > $M; measure others; }
	echo 2 > $M
	measure on
fi
