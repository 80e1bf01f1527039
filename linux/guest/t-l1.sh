# SPDX-License-Identifier: GPL-2.0
# First-level host of a nested guest. nw.cpus=N vCPUs for the guest, nw.stock=1: the host's kernel knows nothing of this.
if [ -d /modules ]; then
	check "KVM is not there before its modules are" [ ! -e /sys/module/kvm_amd ]
	for m in /modules/*.ko; do insmod $m; done
fi
[ -c /dev/kvm ] || mknod /dev/kvm c 10 232
echo madvise > /sys/kernel/mm/transparent_hugepage/enabled
echo "# npt=$(cat /sys/module/kvm_amd/parameters/npt)"

# l2 NAME HUGEGPT CPUS [BLOCKS]: boot a guest, its output marked, the VMM's verdict named. With BLOCKS the VMM answers the guest's calls.
l2() {
	minivmm /l2/vmlinux /l2/initrd.gz 192 "$3" \
		"console=ttyS0 noapic acpi=off pci=off nokaslr reboot=k panic=-1 quiet noxsave hugegpt=$2 test=l2" $4 \
		> /tmp/l2.out 2>&1
	_r=$?
	sed "s/^VMM /VMM.$1 /; t; s/^/L2.$1| /" /tmp/l2.out
	check "L2 $1 ends by itself" [ $_r = 0 ]
	check "L2 $1 has $3 CPUs and reaches its end" \
		awk -v c="cpus=$3" '/^UP/ {u = $3 == c} /^DONE/ {d = 1} END {exit !(u && d)}' /tmp/l2.out
	check "L2 $1 has nothing to complain about" sh -c '! grep -q "SPLAT\|^not ok" /tmp/l2.out'
}
if [ "${NW_stock:-0}" = 0 ]; then
	check "KVM's selftest of the hypercalls" /bin/hgpt_test
	hcprobe
	[ "$NW_probe" = 1 ] && return	# no guest with a kernel
	l2 unaware on 1		# a VMM that does not know
	l2 off off 1 64
	l2 on on 1 64
	[ "${NW_cpus:-1}" -gt 1 ] && l2 smp on "$NW_cpus" 64
else
	l2 stockhost on 1 64	# a host kernel without any of this
fi
if [ -d /modules ]; then
	check "KVM's modules can be taken out again" rmmod kvm-amd kvm irqbypass
fi
