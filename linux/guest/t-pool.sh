# SPDX-License-Identifier: GPL-2.0
# Is there a pool of page tables, and what has the host agreed to?
S=/sys/kernel/debug/hugegpt/stats
if [ -e $S ]; then sed 's/^/HGPT pool /' $S; else echo "HGPT none"; fi
