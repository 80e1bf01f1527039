# SPDX-License-Identifier: GPL-2.0
# Hold memory still for harness/outside.py, which ends the VM. nw.mode: vm.ptemagnet. nw.corunners: how many while the memory is
# touched; they are gone, unless nw.loud, when it is looked at.
[ -e /proc/sys/vm/ptemagnet ] && echo "${NW_mode:-0}" > /proc/sys/vm/ptemagnet
# The same addresses in every boot.
echo 0 > /proc/sys/kernel/randomize_va_space
start_corunners "${NW_corunners:-4}" 8 $((${NW_seed:-1} * 100 + 50))
frag "${NW_mib:-64}" seq outside 1 /tmp/go > /tmp/out &
until grep -q FRAG /tmp/out; do sleep 0.2; done
[ -n "$NW_loud" ] || stop_corunners
touch /tmp/go
until grep -q HOLD /tmp/out; do sleep 0.2; done
cat /tmp/out
wait
