# SPDX-License-Identifier: GPL-2.0
# Hold memory still for harness/outside.py, which ends the VM. nw.mode: vm.ptemagnet. nw.quiet: co-runners only before.
[ -e /proc/sys/vm/ptemagnet ] && echo "${NW_mode:-0}" > /proc/sys/vm/ptemagnet
start_corunners 4 8 $((${NW_seed:-1} * 100))
[ -n "$NW_quiet" ] && stop_corunners
frag "${NW_mib:-64}" seq outside 1 hold
