# SPDX-License-Identifier: GPL-2.0
# The metric gate: the same kernel without and with PTEMagnet, alone and with
# 12 co-runners, in sequential and random order.
S=${NW_seed:-1}
for m in 0 2; do
	[ -e /proc/sys/vm/ptemagnet ] && echo $m > /proc/sys/vm/ptemagnet
	frag 128 seq "alone.$m"
	start_corunners 12 8 $((S * 100 + 50))
	frag 128 seq "co12.$m"
	frag 128 rand "co12.$m"
	stop_corunners
	frag 128 seq "aged.$m"
done
