# SPDX-License-Identifier: GPL-2.0
# Inside a guest that is moved to another VMM while it waits: is its memory the same, and does the new host have huge pages for it?
S=/sys/kernel/debug/hugegpt/stats
stats() { sed "s/^/HGPT $1 /" $S; }
gathered() { awk '/^node/ {for (i = 1; i < NF; i++) if ($i == "gathered") g += $(i + 1)} END {print g + 0}' $S; }
more() { echo $(($(gathered) > before)); }
toucher 16 1 600 &
head -c 16777216 /dev/urandom > /tmp/content
sum=$(md5sum < /tmp/content)
sleep 3		# it asks once a second
before=$(gathered)
stats here
read -r _	# only the new VMM has something to say
stats there
check "what was in memory still is" [ "$(md5sum < /tmp/content)" = "$sum" ]
check "a process goes on" kill -0 $!
toucher 4096 512 600 > /dev/null &
check "blocks that the pool makes there are on the new host's huge pages" settles_at 1 more
stats end
