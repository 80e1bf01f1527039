# SPDX-License-Identifier: GPL-2.0
# First-level host that runs QEMU, for what QEMU passes on to its guest. See qemu_bit() in harness/suites.py.
[ -c /dev/kvm ] || mknod /dev/kvm c 10 232
echo madvise > /sys/kernel/mm/transparent_hugepage/enabled

# vm NAME CPU [ACCEL]: boot a guest under QEMU with this -cpu; says what its pool and the host have counted.
vm() {
	timeout -s KILL 240 /usr/bin/qemu-system-x86_64 -M pc -accel "${3:-kvm}" -cpu "$2" -m 192 -nodefaults -no-user-config -display none -vga none \
		-serial stdio -no-reboot -kernel /l2/vmlinux -initrd /l2/initrd.gz \
		-append "console=ttyS0 noapic nokaslr reboot=t panic=-1 quiet noxsave tsc_early_khz=2000000 tsc=unstable test=pool" \
		< /dev/null > /tmp/vm.out 2>&1
	sed "s/^/QEMU.$1| /" /tmp/vm.out
	check "QEMU guest $1 reaches its end" grep -q '^DONE' /tmp/vm.out
}
vm migratable host
vm all host,migratable=off
if [ "$NW_patched" = 1 ]; then
	vm default host,migratable=off kvm,hgpt-ledger=/tmp/hgpt.blocks		# nobody has asked
	vm passed host,+kvm-hgpt kvm,hgpt-ledger=/tmp/hgpt.blocks,hgpt-blocks=64
fi
