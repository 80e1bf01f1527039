# SPDX-License-Identifier: GPL-2.0
# Inside a guest whose memory the host logs for a migration until it has read this guest's first lines: what does the pool have of the
# host's huge pages, and what once that has ended?
S=/sys/kernel/debug/hugegpt/stats
stats() { sed "s/^/HGPT $1 /" $S; }
mapped() { awk '/^node/ {for (i = 1; i < NF; i++) if ($i == "mapped") m += $(i + 1)} END {print (m > 0)}' $S; }
sleep 3		# it asks once a second
stats logged
check "what was put off is had once the memory is not logged any more" settles_at 1 mapped
stats free
