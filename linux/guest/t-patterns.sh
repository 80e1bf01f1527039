# SPDX-License-Identifier: GPL-2.0
# Fragmentation of every allocation pattern in linux/data/README.md, in order.
# nw.seed=N (command line) seeds the co-runners and the random order.
S=${NW_seed:-1}
run() { frag "$1" "$2" "$3" $((S * 7919 + 1)); }
run 128 seq alone
run 128 rand alone
start_corunners 2 32 $((S * 100))
run 128 seq co2
run 128 rand co2
stop_corunners
start_corunners 12 8 $((S * 100 + 50))
run 128 seq co12
run 128 rand co12
stop_corunners
run 128 seq aged
run 128 rand aged
