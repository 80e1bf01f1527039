# SPDX-License-Identifier: GPL-2.0
# What a deliberate mistake (harness/mistakes.patch) is made in. Whether the kernel complains is looked for from outside;
# what it does not complain of, provoke does.
if [ "$NW_provoke" = 1 ]; then
	echo 1 > /proc/sys/vm/ptemagnet
	provoke contig
	provoke kthread
fi
D=/sys/kernel/debug/sorted_tables
echo 1 > /proc/sys/vm/sorted_page_tables
sorter dense unmapped threads
# As many regions as the bound allows, and more are wanted.
sorter sparse 8 1000 > /tmp/sparse &
while ! grep -q SPARSE /tmp/sparse; do sleep 0.1; done
cat $D/regions > /dev/null
# Until the shrinkers have run, with whatever that takes.
[ -z "$NW_shrink" ] || grower 1 all > /dev/null
echo "# mistake: $(tr '\n' ' ' < $D/stats)"
kill $!
