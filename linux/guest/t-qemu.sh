# SPDX-License-Identifier: GPL-2.0
# First-level host that runs QEMU, for what QEMU passes on to its guest. See qemu_bit() in harness/suites.py.
[ -c /dev/kvm ] || mknod /dev/kvm c 10 232
echo madvise > /sys/kernel/mm/transparent_hugepage/enabled

# qemu TEST CPU ACCEL OPTION...: a guest that runs this test. Its serial line is in /tmp/vm.out.
qemu() {
	_test=$1 _cpu=$2 _accel=$3
	shift 3
	timeout -s KILL 240 /usr/bin/qemu-system-x86_64 -M pc -accel "$_accel" -cpu "$_cpu" -m 192 -nodefaults -no-user-config -display none \
		-vga none -no-reboot -kernel /l2/vmlinux -initrd /l2/initrd.gz \
		-append "console=ttyS0 noapic nokaslr reboot=t panic=-1 quiet noxsave tsc_early_khz=2000000 tsc=unstable test=$_test" "$@"
}
# ended NAME: says what the guest's pool and the host have counted.
ended() {
	sed "s/^/QEMU.$1| /" /tmp/vm.out
	check "QEMU guest $1 reaches its end" grep -q '^DONE' /tmp/vm.out
}
# vm NAME CPU [ACCEL]
vm() {
	qemu pool "$2" "${3:-kvm}" -serial stdio < /dev/null > /tmp/vm.out 2>&1
	ended "$1"
}
# migrated NAME CPU ACCEL: all the guest's memory is logged from before its first instruction, for a migration that is too slow to end,
# until the guest has said what it has.
migrated() {
	rm -f /tmp/monitor
	mkfifo /tmp/monitor
	qemu migrated "$2" "$3" -S -serial file:/tmp/vm.out -monitor stdio < /tmp/monitor > /tmp/monitor.out 2>&1 &
	exec 4> /tmp/monitor
	printf 'migrate_set_parameter max-bandwidth 4K\nmigrate -d "exec:cat > /dev/null"\ncont\n' >&4
	_i=0
	while [ $_i -lt 400 ] && ! grep -q "^HGPT logged" /tmp/vm.out 2>/dev/null; do
		sleep 0.5
		_i=$((_i + 1))
	done
	printf 'info migrate\nmigrate_cancel\n' >&4
	wait
	exec 4>&-
	tr -d '\r' < /tmp/monitor.out | grep "^Migration status" | sed "s/^/QEMU.$1| /"
	check "the migration of QEMU guest $1 was under way" grep -q "Migration status: active" /tmp/monitor.out
	ended "$1"
}
# told COMMAND: to the monitor of the first of two.
told() { echo "$1" >&4; }
# moved NAME CPU ACCEL: the guest goes on in another VMM, and there ends.
moved() {
	rm -f /tmp/monitor /tmp/console.in /tmp/console.out /tmp/move
	mkfifo /tmp/monitor /tmp/console.in /tmp/console.out /tmp/move
	: > /tmp/vm.out
	cat /tmp/console.out > /tmp/there.out &
	_cat=$!
	qemu moved "$2" "$3" -serial pipe:/tmp/console -incoming 'exec:cat /tmp/move' > /tmp/there.err 2>&1 &
	_there=$!
	qemu moved "$2" "$3" -serial file:/tmp/vm.out -monitor stdio < /tmp/monitor > /tmp/monitor.out 2>&1 &
	_here=$!
	exec 4> /tmp/monitor
	_i=0
	while [ $_i -lt 100 ] && kill -0 $_there 2>/dev/null && ! grep -q "^HGPT here" /tmp/vm.out 2>/dev/null; do
		sleep 0.5
		_i=$((_i + 1))
	done
	told 'migrate -d "exec:cat > /tmp/move"'
	_i=0
	while [ $_i -lt 100 ] && kill -0 $_here 2>/dev/null && ! grep -q "Migration status: completed" /tmp/monitor.out; do
		told "info migrate"
		sleep 1
		_i=$((_i + 1))
	done
	check "QEMU guest $1 was moved" grep -q "Migration status: completed" /tmp/monitor.out
	kill -0 $_here 2>/dev/null && told quit
	exec 4>&-
	wait $_here
	kill -0 $_there 2>/dev/null && echo > /tmp/console.in
	wait $_there
	kill $_cat
	tr -d '\r' < /tmp/monitor.out | grep -E '^(total time|downtime|transferred ram):' | tail -n 3 | sed 's/^/# /'
	cat /tmp/there.err
	cat /tmp/there.out >> /tmp/vm.out
	ended "$1"
}

vm migratable host
vm all host,migratable=off
if [ "$NW_patched" = 1 ]; then
	vm default host,migratable=off kvm,hgpt-ledger=/tmp/hgpt.blocks		# nobody has asked
	vm passed host,+kvm-hgpt kvm,hgpt-ledger=/tmp/hgpt.blocks,hgpt-blocks=64
	migrated logged host,+kvm-hgpt kvm,hgpt-ledger=/tmp/hgpt.blocks,hgpt-blocks=64
	moved moved host,+kvm-hgpt kvm,hgpt-ledger=/tmp/hgpt.blocks,hgpt-blocks=64
fi
