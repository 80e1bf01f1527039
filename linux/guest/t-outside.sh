# SPDX-License-Identifier: GPL-2.0
# Hold memory still for harness/outside.py, which ends the VM. nw.mode: vm.ptemagnet. nw.corunners: how many while the memory is
# touched; they are gone, unless nw.loud, when it is looked at.
[ -e /proc/sys/vm/ptemagnet ] && echo "${NW_mode:-0}" > /proc/sys/vm/ptemagnet
# The same addresses in every boot.
echo 0 > /proc/sys/kernel/randomize_va_space
start_corunners "${NW_corunners:-4}" 8 $((${NW_seed:-1} * 100 + 50))
mkfifo /tmp/out
frag "${NW_mib:-64}" seq outside 1 /tmp/go > /tmp/out &
# Without a process of its own, so that nobody but frag runs once this waits for more.
while read -r line; do
	echo "$line"
	case $line in
	FRAG*)
		[ -n "$NW_loud" ] || stop_corunners
		: > /tmp/go
		;;
	HOLD*) echo > /tmp/go ;;
	esac
done < /tmp/out
